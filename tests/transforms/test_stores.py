"""Object stores, as far as none is needed: tests/engines/test_storage.py has the rest."""

import subprocess
import sys

import pytest

from beam_prep.errors import OutputError, StorageError
from beam_prep.storage.output import normal
from beam_prep.storage.staging import Staging
from beam_prep.storage.stores import objects
from tests.conftest import ROOT

WITHOUT = """
import sys

for name in ("boto3", "google.cloud"):
    sys.modules[name] = None  # as if it were not installed
from beam_prep import cli

sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.mark.parametrize(("scheme", "extra"), [("gs", "gcp"), ("s3", "aws")])
def test_a_store_whose_libraries_are_missing_says_what_to_type(scheme: str, extra: str) -> None:
    job = ["run", f"{scheme}://bucket/a.jsonl", "-o", "out", "-c", "configs/sft_chat.json", "--tokenizer_path", "x"]
    done = subprocess.run([sys.executable, "-c", WITHOUT, *job], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith(
        f"beam-prep: cannot look up '{scheme}://bucket/a.jsonl': {scheme}:// needs libraries ("
    )
    assert f"pip install 'beam-prep[{extra}]'" in done.stderr


def test_other_schemes_are_named() -> None:
    with pytest.raises(StorageError, match="hdfs:// is no store that is known here: wanted gs:// or s3://"):
        objects.find("hdfs://host/x")


def test_the_path_of_an_output_is_written_in_one_way() -> None:
    assert normal("s3://bucket/a/out/") == "s3://bucket/a/out"
    assert normal("x/../out").endswith("/out")
    for path in ("s3://bucket", "gs://bucket/"):
        with pytest.raises(OutputError, match="wanted a folder in the bucket, for instance"):
            normal(path)


def test_staging_lies_beside_the_output_whatever_holds_it() -> None:
    staging = Staging.beside("gs://bucket/a/out")
    assert staging.root.startswith("gs://bucket/a/.beam_prep/out-")
    assert staging.path("x", "y") == f"{staging.root}/{staging.launch}/x/y"
    assert Staging.beside("gs://bucket/b/out").root.rpartition("-")[2] != staging.root.rpartition("-")[2]
    assert Staging.beside("gs://bucket/a/out", "/fast").root == f"/fast/out-{staging.root.rpartition('-')[2]}"
