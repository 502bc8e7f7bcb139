"""Object stores, as far as none is needed: tests/engines/test_storage.py has the rest."""

import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions

from beam_prep.errors import ConfigError, OutputError
from beam_prep.output_claim import is_within
from beam_prep.shards.layout import Layout
from beam_prep.storage import stores
from beam_prep.storage.output import Staging, normalise_path
from beam_prep.storage.shipped import IndexFile, TokenizerFolder
from beam_prep.storage.stores import StoreOptions
from beam_prep.storage.token_cache import TokenCache
from tests.conftest import ROOT, Patch, config_of, prepared
from tests.storage.memory import MemoryStore

WITHOUT = """
import sys

for name in ("boto3", "google.cloud"):
    sys.modules[name] = None  # as if it were not installed
from beam_prep import cli

for url in sys.argv[1:]:
    print(cli.main(["run", url, "-o", "out", "-c", "configs/sft_chat.json", "--tokenizer_path", "x"]))
"""


def test_a_store_whose_libraries_are_missing_says_what_to_type() -> None:
    extras = {"gs://bucket/a.jsonl": "gcp", "s3://bucket/a.jsonl": "aws"}
    done = subprocess.run([sys.executable, "-c", WITHOUT, *extras], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "2\n2\n"
    said = [line for line in done.stderr.splitlines() if line.startswith("beam-prep: ")]
    for line, (url, extra) in zip(said, extras.items(), strict=True):
        assert line.startswith(f"beam-prep: cannot look up '{url}': {url[:5]} needs libraries (")
        assert f"pip install 'beam-prep[{extra}]'" in line


def test_other_schemes_are_named() -> None:
    with pytest.raises(ConfigError, match="hdfs:// is not a known store: wanted gs:// or s3://"):
        stores.find("hdfs://host/x")


def test_the_path_of_an_output_is_written_in_one_way() -> None:
    assert normalise_path("s3://bucket/a/out/") == "s3://bucket/a/out"
    assert normalise_path("x/../out").endswith("/out")
    for path in ("s3://bucket", "gs://bucket/"):
        with pytest.raises(OutputError, match="wanted a folder in the bucket, for instance"):
            normalise_path(path)


def test_a_folder_is_within_another_by_its_names_and_not_by_its_letters(tmp_path: Path, monkeypatch: Patch) -> None:
    """Otherwise a run would remove the blocks of a `--cache_dir` that is given from the current folder."""
    monkeypatch.chdir(tmp_path)
    outer = str(tmp_path / "staging")
    assert is_within("staging", outer)
    assert is_within("staging/token_cache", outer)
    assert not is_within("staging2/token_cache", outer)
    assert not is_within(None, outer)
    assert is_within("s3://bucket/a/cache", "s3://bucket/a")
    assert not is_within("s3://bucket", "s3://bucket/a")


GIVEN = StoreOptions((("s3_endpoint_url", "http://launcher:2"),))


def test_what_uses_a_store_brings_the_options_of_its_launcher_to_a_worker() -> None:
    before = FileSystems._pipeline_options
    staging = Staging("s3://bucket/a", "s3://bucket/a", "launch", GIVEN)
    token_cache = TokenCache("s3://bucket/token_cache", "recipe", GIVEN)
    folder, index = TokenizerFolder("s3://bucket/a", (), GIVEN), IndexFile("s3://bucket/a", GIVEN)
    try:
        for each in (staging, token_cache, folder, index):
            sent = pickle.dumps(each)
            FileSystems.set_options(PipelineOptions([]))
            assert StoreOptions.current().given == ()
            assert pickle.loads(sent) == each
            assert StoreOptions.current() == GIVEN
    finally:
        FileSystems._pipeline_options = before


LEASE = """
from beam_prep.readers.shards import ReaderLease
from beam_prep.storage import stores
from tests.storage.memory import MemoryStore

class Store(MemoryStore):
    def delete(self, path):
        super().delete(path)
        print("removed", path.rpartition("/")[0])

store = Store()
stores.CLIENTS["mem"] = (lambda options: store, "")
lease = ReaderLease("mem://bucket/out/one")
print(len(list(store.listed("mem://bucket/out/.beam_prep/readers/one/"))))
"""


def test_the_lease_of_a_reader_ends_with_its_process() -> None:
    ended = subprocess.run([sys.executable, "-c", LEASE], capture_output=True, text=True, cwd=ROOT, check=True)
    assert ended.stdout == "1\nremoved mem://bucket/out/.beam_prep/readers/one\n"
    assert "Traceback" not in ended.stderr  # Beam may warn of what is not installed


def test_a_cached_block_in_a_store_is_found_again(store: MemoryStore) -> None:
    cache, batch = TokenCache("mem://bucket/cache", "recipe"), prepared(config_of("pretrain"), [{"text": "a" * 80}] * 2)
    receipt = cache.write(batch, Layout().tokens(batch), 100)
    found = cache.find(cache.digest(batch.origin))
    assert found is not None
    assert found.values["lines"] == receipt.values["lines"]


def test_a_glob_in_a_store_names_no_hidden_objects(store: MemoryStore) -> None:
    for name in ("a/x", "a/.x", "a/.b/x", "a/b/x", ".c/x"):
        store.put(f"mem://bucket/{name}", b"", None, None)
    named = {"a/*": "a/x", "**": "a/b/x a/x", "a/.*": "a/.x", "**/.*/x": "a/.b/x", ".c/*": ".c/x"}
    for pattern, names in named.items():
        found = [each.path.removeprefix("mem://bucket/") for each in stores.match_pattern(f"mem://bucket/{pattern}")]
        assert (pattern, sorted(found)) == (pattern, names.split())
