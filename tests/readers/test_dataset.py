"""`bp.open`: what a trainer gets, from outputs of the real pipeline. Indices, slices and views: test_rows.py."""

import json
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import beam_prep as bp
from beam_prep.errors import BeamPrepError, FormatError, TokenizerError
from beam_prep.readers.dataset import Dataset
from tests.conftest import ROOT, Folders, Patch, config_of, run_job
from tests.readers.conftest import IDS, Make, documents

CHATS = ROOT / "examples" / "data" / "chat.jsonl"


@pytest.fixture(scope="module")
def many(tmp_path_factory: Folders) -> Path:
    """Many domains, some of several shards, in two formats."""
    output = {"domain_key": "domain", "max_tokens_per_shard": 5_000, "storage_format": ["bin", "tfrecord"]}
    return Path(run_job(config_of("sft_chat", output=output), CHATS, tmp_path_factory.mktemp("many") / "out").output)


@pytest.fixture
def copy(many: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(many, tmp_path / "copy"))


def ids(dataset: Dataset) -> list[list[int]]:
    return [row["sequence"].tolist() for row in dataset]


def test_some_domains_are_opened(many: Path) -> None:
    whole = bp.open(many)
    names = [whole.domains[3], whole.domains[0]]
    part = bp.open(many, domains=names)
    assert part.domains == (names[1], names[0])  # the order of the output
    assert ids(part) == ids(whole.domain(names[1])) + ids(whole.domain(names[0]))
    assert len(bp.open(many, domains=[])) == 0
    with pytest.raises(BeamPrepError, match="unknown domain 'cookng'; did you mean 'cooking'"):
        bp.open(many, domains=["cookng"])
    with pytest.raises(BeamPrepError, match="unknown domain 'cookng'; did you mean 'cooking'"):
        whole.domain("cookng")
    assert (whole.splits, whole.split_of(0), len(bp.open(many, split="all"))) == ((), None, len(whole))
    with pytest.raises(BeamPrepError, match="unknown split 'train'; known: none"):
        bp.open(many, split="train")
    with pytest.raises(BeamPrepError, match=r"domains is 'maths', wanted a list: domains=\['maths'\]"):
        bp.open(many, domains="maths")


def test_decode_refuses_what_is_no_text(many: Path) -> None:
    for column in ("loss_mask", "other"):
        with pytest.raises(BeamPrepError, match=f"no column '{column}' of token ids in .*; it has sequence"):
            bp.open(many).decode(0, column)


def test_the_tokenizer_is_the_one_of_the_run(copy: Path) -> None:
    tokenizer = bp.open(copy).tokenizer
    assert tokenizer is not None
    assert tokenizer.bos_id == 0
    (copy / "tokenizer" / "chat_template.jinja").write_text("another")
    with pytest.raises(FormatError, match="is not the tokenizer that made the output"):
        _ = bp.open(copy).tokenizer
    shutil.rmtree(copy / "tokenizer")
    with pytest.raises(FormatError, match=r"tokenizer: no such directory, though manifest\.json lists it"):
        bp.open(copy).decode(0)
    # A chain without one writes none.
    manifest = json.loads((copy / "manifest.json").read_bytes())
    manifest["files"] = [file for file in manifest["files"] if not file["path"].startswith("tokenizer/")]
    (copy / "manifest.json").write_text(json.dumps(manifest))
    assert bp.open(copy).tokenizer is None
    with pytest.raises(TokenizerError, match="keeps no tokenizer"):
        bp.open(copy).decode(0)


def test_needs_neither_beam_nor_transformers(many: Path) -> None:
    code = """
import sys, pickle
import beam_prep as bp
dataset = bp.open(sys.argv[1])
assert "pyarrow" not in sys.modules, "opening waits for no format but its own"
sum(len(row["sequence"]) for row in dataset), dataset[-1], dataset.domain(dataset.domains[0])[::2], dataset.verify()
pickle.loads(pickle.dumps(dataset))
heavy = {"apache_beam", "tensorflow", "transformers", "pydantic", "torch", "datasets"}
assert not {*sys.modules} & {*heavy, "tokenizers"}, {*sys.modules} & {*heavy, "tokenizers"}
dataset.decode(0)
assert not {*sys.modules} & heavy, {*sys.modules} & heavy
"""
    subprocess.run([sys.executable, "-c", code, str(many)], check=True, cwd=ROOT)


# What is not an output, and what is damaged


def test_says_why_a_path_is_not_an_output(tmp_path: Path, many: Path, monkeypatch: Patch) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    cases: dict[Path | str, str] = {
        tmp_path / "empty": "has no manifest.json: not an output of beam_prep, or the run did not finish",
        tmp_path / "none": "is no directory; give the directory",
        tmp_path / "file": "is no directory; give the directory",
        many / "maths": f"is a part of an output: open {many}",
        many / "manifest.json": f"is a part of an output: open {many}",
        "/": "has no manifest.json",
    }
    for path, message in cases.items():
        with pytest.raises(FormatError) as caught:
            bp.open(path)
        assert message in str(caught.value)
        assert str(path) in str(caught.value)
    monkeypatch.chdir(many)
    assert bp.open(".").path == many


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is damaged, or is another"),
        ("{}", "is damaged, or is another"),
        ('{"manifest_version": 99}', "later version"),
        ('{"manifest_version": 1}', "is damaged"),
        ('{"manifest_version": 1, "columns": [], "shards": [], "formats": ["zarr"]}', "zarr, which this version"),
    ],
)
def test_a_bad_manifest_is_a_clear_error(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(FormatError, match=message):
        bp.open(tmp_path)


def test_a_shard_of_another_output_is_seen(copy: Path) -> None:
    manifest = json.loads((copy / "manifest.json").read_bytes())
    (copy / "manifest.json").write_text(json.dumps(manifest | {"formats": ["tfrecord"]}))
    shards = sorted((copy / "maths").glob("*.tfrecord"))
    shutil.copy(shards[0], shards[1])
    with pytest.raises(FormatError, match=r"maths: shard 1 \(tfrecord\) holds \d+ rows, manifest"):
        list(bp.open(copy).domain("maths"))


def test_rows_of_an_output_that_was_written_again_are_not_mixed_with_those_of_the_old_one(output: Make) -> None:
    shards = {"a": [documents([3], 0), documents([3], 10)]}
    old, new = output([IDS], shards), output([IDS], {"a": [documents([3], 20), documents([3], 30)]})
    opened = bp.open(old)
    first, others = opened[0]["input_ids"].tolist(), pickle.dumps(opened)
    (old / "manifest.json").write_bytes((old / "manifest.json").read_bytes())  # the same output
    assert opened[:1][0]["input_ids"].tolist() == first
    shutil.rmtree(old)
    new.rename(old)
    assert opened[0]["input_ids"].tolist() == first  # that shard is open
    for reads in (lambda: opened[1], lambda: [*opened], lambda: pickle.loads(others)[0], lambda: opened.packed(4)):
        with pytest.raises(FormatError, match="was written again since it was opened: open it again"):
            reads()
    assert bp.open(old)[0]["input_ids"].tolist() == [20, 21, 22]
    shutil.rmtree(old)
    with pytest.raises(FormatError, match="removed, or not on this machine"):
        opened[1]
