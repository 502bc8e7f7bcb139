"""`bp.open`: what a trainer gets, from outputs of the real pipeline."""

import json
import multiprocessing
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import beam_prep as bp
from beam_prep.config import PipelineConfig
from beam_prep.data.ragged import Ragged
from beam_prep.errors import BeamPrepError, FormatError, RunError, TokenizerError
from beam_prep.pipeline import Pipeline
from beam_prep.readers.dataset import Dataset
from tests.conftest import ROOT

CHATS = ROOT / "examples" / "data" / "chat.jsonl"
ROWS = len(CHATS.read_text("utf-8").splitlines())
PLACES = {"domain_key": "domain", "max_tokens_per_shard": 5_000}


def make(folder: Path, config: str, data: str, **changes: dict[str, Any]) -> Path:
    """The output of a config of the project over an example file; `changes`: parts of the config."""
    settings = json.loads((ROOT / "configs" / f"{config}.json").read_text())
    settings |= changes
    source = ROOT / "examples" / "data" / f"{data}.jsonl"
    Pipeline(
        PipelineConfig.from_dict(settings),
        [str(source)],
        output_dir=folder / "out",
        tokenizer_path=ROOT / "examples" / "tokenizer",
    ).run(["--runner=FnApiRunner"])
    return folder / "out"


@pytest.fixture(scope="session")
def single(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One domain, one shard."""
    return make(tmp_path_factory.mktemp("single"), "sft_chat", "chat")


@pytest.fixture(scope="session")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Many domains, some of several shards, in both formats."""
    output = PLACES | {"storage_format": ["bin", "tfrecord"]}
    return make(tmp_path_factory.mktemp("many"), "sft_chat", "chat", output=output)


@pytest.fixture(scope="session")
def tfrecord(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same rows as `many`, without bin."""
    return make(tmp_path_factory.mktemp("tfrecord"), "sft_chat", "chat", output=PLACES | {"storage_format": "tfrecord"})


@pytest.fixture(scope="session")
def rollouts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("rollouts"), "grpo", "rollouts")


@pytest.fixture
def copy_of(tmp_path: Path) -> Callable[[Path], Path]:
    return lambda output: Path(shutil.copytree(output, tmp_path / "copy"))


def ids(dataset: Dataset) -> list[list[int]]:
    return [row["sequence"].tolist() for row in dataset]


def chats_by_domain() -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for line in CHATS.read_text("utf-8").splitlines():
        record = json.loads(line)
        found.setdefault(record["domain"], []).append(record)
    return found


def test_is_a_sequence_of_dicts_of_arrays(single: Path) -> None:
    dataset = bp.open(single)
    assert len(dataset) == ROWS
    assert dataset.columns == ("sequence", "loss_mask")
    row = dataset[0]
    assert list(row) == ["sequence", "loss_mask"]
    assert (row["sequence"].dtype, row["loss_mask"].dtype) == (np.int32, np.bool_)
    assert len(row["sequence"]) == len(row["loss_mask"]) > 0
    assert [column.role for column in dataset.schema] == ["ids", "mask"]
    assert dataset.manifest["totals"]["rows"] == ROWS
    assert str(single) in repr(dataset)
    assert str(ROWS) in repr(dataset)


def test_rows_stand_by_domain_and_then_in_input_order(many: Path) -> None:
    dataset, records = bp.open(many), chats_by_domain()
    assert max(shard["shard"] for shard in dataset.manifest["shards"]) >= 2
    assert dataset.domains == tuple(sorted(records))
    wanted = [record for domain in sorted(records) for record in records[domain]]
    assert len(dataset) == len(wanted)
    for index, record in enumerate(wanted):
        assert dataset.domain_of(index) == record["domain"]
        assert record["messages"][-1]["content"].strip() in dataset.decode(index)


def test_indexing_iteration_and_negative_indices_agree(many: Path) -> None:
    dataset = bp.open(many)
    rows = ids(dataset)
    for order in (range(len(dataset)), reversed(range(len(dataset)))):
        assert all(dataset[index]["sequence"].tolist() == rows[index] for index in order)
        assert all(dataset[index - len(rows)]["sequence"].tolist() == rows[index] for index in (0, 100, ROWS - 1))
    assert dataset[np.int64(7)]["sequence"].tolist() == rows[7]


@pytest.mark.parametrize("index", [ROWS, -ROWS - 1, 10**20])
def test_a_row_that_is_not_there_is_an_index_error(many: Path, index: int) -> None:
    with pytest.raises(IndexError, match=f"row {index} of {ROWS}"):
        bp.open(many)[index]


@pytest.mark.parametrize(
    "part", [slice(5, 50), slice(None, None, -3), slice(-20, None), slice(40, 10), slice(3, 200, 7)]
)
def test_a_slice_is_a_view(many: Path, part: slice) -> None:
    dataset = bp.open(many)
    view, rows = dataset[part], ids(dataset)
    assert isinstance(view, Dataset)
    assert len(view) == len(rows[part])
    assert ids(view) == rows[part]
    assert ids(view[1:][::-1]) == rows[part][1:][::-1]
    assert [view[index]["sequence"].tolist() for index in range(len(view))] == rows[part]


@pytest.mark.parametrize("part", [slice(None), slice(10, 100), slice(None, None, -2)])
def test_a_domain_is_a_view(many: Path, part: slice) -> None:
    whole = bp.open(many)
    view = whole[part]
    by_domain = [(view.domain_of(index), row) for index, row in enumerate(ids(view))]
    assert set(view.domains) == {name for name, _ in by_domain}
    for domain in view.domains:
        assert ids(view.domain(domain)) == [row for name, row in by_domain if name == domain]
        assert view.domain(domain).domains == (domain,)
    assert sum(len(view.domain(domain)) for domain in whole.domains) == len(view)


def test_some_domains_are_opened(many: Path) -> None:
    whole = bp.open(many)
    names = [whole.domains[3], whole.domains[0]]
    part = bp.open(many, domains=names)
    assert part.domains == (names[1], names[0])  # the order of the output
    assert ids(part) == ids(whole.domain(names[1])) + ids(whole.domain(names[0]))
    assert ids(pickle.loads(pickle.dumps(part))) == ids(part)
    assert len(bp.open(many, domains=[])) == 0
    with pytest.raises(BeamPrepError, match="no domain 'cookng'; did you mean 'cooking'"):
        bp.open(many, domains=["cookng"])
    with pytest.raises(BeamPrepError, match=r"domains is 'maths', wanted a list: domains=\['maths'\]"):
        bp.open(many, domains="maths")


def test_an_unknown_domain_is_an_error_that_helps(many: Path) -> None:
    with pytest.raises(BeamPrepError, match="no domain 'cookng'; did you mean 'cooking'"):
        bp.open(many).domain("cookng")


def test_both_formats_hold_the_same_rows(many: Path, tfrecord: Path) -> None:
    bins, records = bp.open(many), bp.open(tfrecord)
    assert bins.manifest["formats"] == ["bin", "tfrecord"]
    assert len(bins) == len(records)
    for one, other in zip(bins, records, strict=True):
        for name in bins.columns:
            np.testing.assert_array_equal(one[name], other[name], strict=True)


def test_bin_is_preferred_to_tfrecord(many: Path, copy_of: Callable[[Path], Path]) -> None:
    output = copy_of(many)
    for path in output.rglob("*.tfrecord"):
        path.unlink()
    assert ids(bp.open(output)) == ids(bp.open(many))


@pytest.mark.parametrize("name", ["single", "tfrecord"])
def test_arrays_are_the_callers_own(name: str, request: pytest.FixtureRequest) -> None:
    dataset = bp.open(request.getfixturevalue(name))
    before = dataset[0]["sequence"].tolist()
    dataset[0]["sequence"][:] = -1
    next(iter(dataset))["sequence"][:] = -1
    assert dataset[0]["sequence"].tolist() == before
    assert dataset[0]["sequence"].dtype.isnative


def test_lists_of_lists_are_ragged(rollouts: Path) -> None:
    dataset = bp.open(rollouts)
    assert dataset.columns == ("prompts", "responses", "masks", "rewards")
    records = [json.loads(line) for line in (ROOT / "examples/data/rollouts.jsonl").read_text("utf-8").splitlines()]
    for index, (row, record) in enumerate(zip(dataset, records, strict=True)):
        assert isinstance(row["responses"], Ragged)
        assert isinstance(row["masks"], Ragged)
        assert row["responses"].lengths.tolist() == row["masks"].lengths.tolist()
        assert row["rewards"].dtype == np.float32
        np.testing.assert_allclose(row["rewards"], record["rewards"])
        assert dataset.decode(index, "responses") == record["responses"]
        row["responses"].flat[:] = -1
    assert dataset.decode(0, "responses") == records[0]["responses"]


def test_preference_rows_have_both_sides(tmp_path: Path) -> None:
    dataset = bp.open(make(tmp_path, "dpo", "preference"))
    assert dataset.columns == ("chosen", "chosen_mask", "rejected", "rejected_mask")
    assert dataset.decode(0) != dataset.decode(0, "rejected")
    assert all(len(row["rejected"]) == len(row["rejected_mask"]) for row in dataset)


@pytest.mark.parametrize("shift", [False, True])
def test_labels(tmp_path: Path, shift: bool) -> None:
    preprocessing = {"shift": shift}
    dataset = bp.open(make(tmp_path, "sft_chat", "chat", output={"columns": "labels"}, preprocessing=preprocessing))
    assert dataset.columns == ("input_ids", "labels")
    assert dataset.schema[1].shifted is shift
    for row in dataset[:50]:
        inputs, labels = row["input_ids"], row["labels"]
        if shift:
            inputs, labels = inputs[1:], labels[:-1]
        assert (labels != -100).any()
        np.testing.assert_array_equal(inputs[labels != -100], labels[labels != -100])
    answer = dataset.decode(0, "labels")
    assert isinstance(answer, str)
    assert answer.endswith("<|im_end|>\n")
    assert "user" not in answer
    assert str(dataset.decode(0)).startswith("<|bos|><|im_start|>system")


def test_decode_refuses_what_is_no_text(single: Path) -> None:
    for column in ("loss_mask", "other"):
        with pytest.raises(BeamPrepError, match=f"no column '{column}' of token ids in .*; it has sequence"):
            bp.open(single).decode(0, column)


def test_the_tokenizer_is_the_one_of_the_run(single: Path, copy_of: Callable[[Path], Path]) -> None:
    tokenizer = bp.open(single).tokenizer
    assert tokenizer is not None
    assert tokenizer.bos_id == 0
    output = copy_of(single)
    (output / "tokenizer" / "chat_template.jinja").write_text("another")
    with pytest.raises(FormatError, match="is not the tokenizer that made the output"):
        _ = bp.open(output).tokenizer
    shutil.rmtree(output / "tokenizer")
    with pytest.raises(FormatError, match=r"tokenizer: no such directory, though manifest\.json lists it"):
        bp.open(output).decode(0)


def without_tokenizer(output: Path) -> Path:
    """Takes the tokenizer out of an output, as a chain without one would have written it."""
    shutil.rmtree(output / "tokenizer")
    manifest = json.loads((output / "manifest.json").read_bytes())
    manifest["files"] = [file for file in manifest["files"] if not file["path"].startswith("tokenizer/")]
    (output / "manifest.json").write_text(json.dumps(manifest))
    return output


def test_an_output_may_keep_no_tokenizer(single: Path, copy_of: Callable[[Path], Path]) -> None:
    dataset = bp.open(without_tokenizer(copy_of(single)))
    assert dataset.tokenizer is None
    assert len(dataset[0]["sequence"]) > 0
    with pytest.raises(TokenizerError, match="keeps no tokenizer"):
        dataset.decode(0)


# A trainer


class Loader:
    """What `torch.utils.data.DataLoader` does with a map-style dataset."""

    def __init__(self, dataset: Dataset, batch_size: int, seed: int) -> None:
        self.dataset, self.batch_size = dataset, batch_size
        self.order = np.random.default_rng(seed).permutation(len(dataset)).tolist()

    def __iter__(self) -> Iterator[dict[str, np.ndarray[Any, Any]]]:
        for first in range(0, len(self.order), self.batch_size):
            yield self.collate([self.dataset[index] for index in self.order[first : first + self.batch_size]])

    @staticmethod
    def collate(rows: list[dict[str, Any]]) -> dict[str, np.ndarray[Any, Any]]:
        width = max(len(row["sequence"]) for row in rows)
        return {name: np.stack([np.pad(row[name], (0, width - len(row[name]))) for row in rows]) for name in rows[0]}


def test_a_trainers_loop_sees_every_token_once(many: Path) -> None:
    dataset = bp.open(many)
    trained = sum(int(batch["loss_mask"].sum()) for batch in Loader(dataset, 8, seed=3))
    assert trained == dataset.manifest["totals"]["trained"]["loss_mask"]


def _rows_in_another_process(given: tuple[Dataset, list[int]]) -> list[list[int]]:
    dataset, indices = given
    return [dataset[index]["sequence"].tolist() for index in indices]


def test_crosses_to_other_processes(many: Path) -> None:
    dataset = bp.open(many)
    rows = ids(dataset)
    _ = dataset[0], dataset.tokenizer  # something is open
    parts = [list(range(first, len(dataset), 2)) for first in range(2)]
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        found = pool.map(_rows_in_another_process, [(dataset, part) for part in parts])
    assert found == [[rows[index] for index in part] for part in parts]


@pytest.mark.parametrize("name", ["many", "tfrecord"])
def test_pickles_small_and_keeps_its_view(name: str, request: pytest.FixtureRequest) -> None:
    dataset = bp.open(request.getfixturevalue(name)).domain("maths")[::-1]
    before = len(pickle.dumps(dataset))
    rows = [dataset[index]["sequence"].tolist() for index in range(len(dataset))]
    assert len(pickle.dumps(dataset)) == before  # nothing of what is open
    again = pickle.loads(pickle.dumps(dataset))
    assert ids(again) == rows
    assert again.decode(0) == dataset.decode(0)


def test_opening_reads_only_the_manifest(many: Path, tmp_path: Path) -> None:
    shutil.copy(many / "manifest.json", tmp_path / "manifest.json")
    dataset = bp.open(tmp_path)
    assert len(dataset.domain("maths")[3:]) == len(chats_by_domain()["maths"]) - 3
    with pytest.raises(FormatError, match="no such file"):
        dataset[0]


@pytest.mark.parametrize("name", ["single", "tfrecord"])
def test_needs_neither_beam_nor_transformers(name: str, request: pytest.FixtureRequest) -> None:
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
    subprocess.run([sys.executable, "-c", code, str(request.getfixturevalue(name))], check=True, cwd=ROOT)


# What is not an output, and what is damaged


def test_says_why_a_path_is_not_an_output(tmp_path: Path, single: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    cases: dict[Path | str, str] = {
        tmp_path / "empty": "has no manifest.json: not an output of beam_prep, or the run did not finish",
        tmp_path / "none": "no such directory; give the directory",
        tmp_path / "file": "is a file; give the directory",
        single / "__default__": f"is a part of an output: open {single}",
        single / "manifest.json": f"is a part of an output: open {single}",
        "/": "has no manifest.json",
    }
    for path, message in cases.items():
        with pytest.raises(FormatError) as caught:
            bp.open(path)
        assert message in str(caught.value)
        assert str(path) in str(caught.value)
    monkeypatch.chdir(single)
    assert bp.open(".").path == single


def test_says_that_a_run_failed(tmp_path: Path) -> None:
    with pytest.raises(RunError):
        make(tmp_path, "pretrain", "chat")  # no field `text`: nothing is kept
    for path in ("out", "out.failed"):
        with pytest.raises(FormatError, match=r"fail.* the reason is in .*out\.failed/failure\.json"):
            bp.open(tmp_path / path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("{}", "is not a manifest"),
        ('{"manifest_version": 99}', "later version"),
        ('{"manifest_version": 1}', "is damaged"),
        ('{"manifest_version": 1, "columns": [], "shards": [], "formats": ["zarr"]}', "zarr, which this version"),
    ],
)
def test_a_bad_manifest_is_a_clear_error(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(FormatError, match=message):
        bp.open(tmp_path)


@pytest.mark.parametrize("name", ["single", "tfrecord"])
@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_a_missing_or_cut_shard_is_named(
    name: str, damage: str, copy_of: Callable[[Path], Path], request: pytest.FixtureRequest
) -> None:
    output = copy_of(request.getfixturevalue(name))
    dataset = bp.open(output)
    file = output / dataset.manifest["shards"][0]["files"][0]["path"]
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(FormatError, match=file.name):
        dataset[0]
    with pytest.raises(FormatError, match=file.name):
        list(dataset)
    with pytest.raises(FormatError, match=f"{file.name}.*{'lists it' if damage == 'missing' else 'bytes'}"):
        dataset.verify()


def test_a_shard_of_another_output_is_seen(single: Path, tfrecord: Path, copy_of: Callable[[Path], Path]) -> None:
    output = copy_of(tfrecord)
    shards = sorted((output / "maths").iterdir())
    shutil.copy(shards[0], shards[1])
    with pytest.raises(FormatError, match=r"maths: shard 1 \(tfrecord\) holds \d+ rows, manifest"):
        list(bp.open(output).domain("maths"))


def test_verify_accepts_a_sound_output(many: Path, rollouts: Path) -> None:
    for output in (many, rollouts):
        bp.open(output).verify()


def test_verify_finds_one_flipped_bit_in_any_file(many: Path, copy_of: Callable[[Path], Path]) -> None:
    output = copy_of(many)
    dataset = bp.open(output)
    shards = [file["path"] for shard in dataset.manifest["shards"][::20] for file in shard["files"]]
    others = [file["path"] for file in dataset.manifest["files"]]
    assert any(path.startswith("tokenizer/") for path in others)
    for name in shards + others:
        sound = (output / name).read_bytes()
        (output / name).write_bytes(bytes([sound[0] ^ 1]) + sound[1:])
        with pytest.raises(FormatError, match=f"{name} is damaged"):
            dataset[:1].verify()
        (output / name).write_bytes(sound)
    dataset.verify()


def test_what_the_manifest_does_not_list_is_not_there(single: Path, copy_of: Callable[[Path], Path]) -> None:
    output = copy_of(single)
    shutil.copytree(output / "__default__", output / "another")
    dataset = bp.open(output)
    assert dataset.domains == ("__default__",)
    assert len(dataset) == ROWS
