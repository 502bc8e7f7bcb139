"""Outputs with splits, a shuffle, a mix and without copies: how they are read, shown, checked and replaced."""

import glob
import gzip
import hashlib
import json
import pickle
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import beam_prep as bp
from beam_prep import cli
from beam_prep.config import FORMAT_NAMES
from beam_prep.errors import BeamPrepError, ConfigError, FormatError
from beam_prep.formats.manifest import TOKENIZER, UNLISTED
from beam_prep.readers.dataset import Dataset
from tests.conftest import ROOT, tree
from tests.formats import test_mds, test_megatron
from tests.test_verify import Told, manifest_of, told, write

__all__ = ["told"]  # a fixture

SPLITS = {"train": 0.6, "validation": 0.2, "test": 0.2}
DOMAINS = ("train", "math", "Größe")
"""One has the name of a split, one is no folder's name."""
Row = dict[str, Any]


def records(count: int = 120) -> list[Row]:
    """Texts by three domains and forty users; every tenth is a copy of the one before the one before it."""
    found: list[Row] = []
    for number in range(count):
        text = found[number - 2]["text"] if number % 10 == 9 else f"text {number} " + "and so on " * (number % 7)
        found.append({"text": text, "domain": DOMAINS[number % 3], "user": f"user {number % 40}", "number": number})
    return found


def make(
    folder: Path,
    rows: Sequence[Row],
    output: Row,
    preprocessing: Row | None = None,
    more: Sequence[Row] = (),
    **options: Any,
) -> Path:
    """Runs a job, in this process. `more`: the records of a second file."""
    folder.mkdir(parents=True, exist_ok=True)
    sources = [folder / "in.jsonl", *([folder / "more.jsonl"] if more else [])]
    for source, its in zip(sources, (rows, more), strict=False):
        source.write_text("".join(json.dumps(row) + "\n" for row in its))
    config = {
        "input": {"sections": [{"field": "text", "action": "train"}]},
        "preprocessing": {"min_chars": 1, **(preprocessing or {})},
        "output": {"domain_key": "domain", "max_tokens_per_shard": 300, **output},
    }
    job = bp.Pipeline(
        bp.PipelineConfig.from_dict(config),
        [str(source) for source in sources],
        output_dir=folder / "out",
        tokenizer_path=ROOT / "examples" / "tokenizer",
        **options,
    )
    return Path(job.run(["--runner=FnApiRunner"]).output)


OUTPUT: Row = {
    "splits": SPLITS,
    "split_key": "user",
    "shuffle": {"seed": 7},
    "mix": {"math": {"epochs": 2.5}, "train": {"tokens": 150}},
    "storage_format": list(FORMAT_NAMES),
    "provenance": True,
}
DEDUPLICATE: Row = {"deduplicate": {"by": ["text"]}}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All formats, splits, a shuffle, a mix, no copies, provenance. Not to be changed."""
    return make(tmp_path_factory.mktemp("sound"), records(), OUTPUT, DEDUPLICATE)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Splits in the order of the input; the number of each record is kept as metadata."""
    output = {
        "splits": SPLITS,
        "split_key": "user",
        "keep_fields": {"number": "int64"},
        "storage_format": ["bin", "arrow"],
    }
    return make(tmp_path_factory.mktemp("plain"), records(), output)


@pytest.fixture
def output(sound: Path, tmp_path: Path) -> Path:
    """A copy, to be changed."""
    return Path(shutil.copytree(sound, tmp_path / "out"))


def numbers(rows: Dataset) -> list[int]:
    return [int(row["number"]) for row in rows]


# Readers


def test_splits_share_no_user_and_lose_no_row(plain: Path) -> None:
    found = {name: numbers(bp.open(plain, split=name)) for name in SPLITS}
    users = {name: {number % 40 for number in rows} for name, rows in found.items()}
    assert all(users.values())
    assert len(set.union(*users.values())) == sum(map(len, users.values())) == 40
    assert sorted(number for rows in found.values() for number in rows) == list(range(120))
    assert numbers(bp.open(plain, split="all")) == [*found["train"], *found["validation"], *found["test"]]
    # Without a shuffle the rows of a domain are in the order of the input.
    for name in SPLITS:
        of_domains = [[number for number in found[name] if number % 3 == place] for place in (2, 1, 0)]
        assert [sorted(rows) for rows in of_domains] == of_domains
        assert found[name] == [number for rows in of_domains for number in rows]


def test_an_output_with_splits_is_not_opened_without_one(plain: Path) -> None:
    rows = {name: found["rows"] for name, found in manifest_of(plain)["splits"].items()}
    shown = ", ".join(f"{name!r} ({count} rows)" for name, count in rows.items())
    with pytest.raises(BeamPrepError) as caught:
        bp.open(plain)
    assert str(caught.value) == f"{plain} has the splits {shown}: say which, split='train', or split='all' for all rows"


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ("tset", "has no split 'tset'; did you mean 'test'? it has 'train', 'validation', 'test'"),
        ("", "has no split ''; it has 'train', 'validation', 'test'"),
    ],
)
def test_an_unknown_split_is_told(plain: Path, split: str, message: str) -> None:
    with pytest.raises(BeamPrepError) as caught:
        bp.open(plain, split=split)
    assert str(caught.value) == f"{plain} {message}"
    with pytest.raises(BeamPrepError, match="has no split"):
        bp.open(plain, split="train").split(split)


def test_an_output_without_splits_says_so(tmp_path: Path) -> None:
    out = make(tmp_path, records(6), {})
    assert (bp.open(out).splits, bp.open(out).split_of(0)) == ((), None)
    assert len(bp.open(out, split="all")) == 6
    with pytest.raises(
        BeamPrepError, match=r"has no splits, wanted 'train': leave out the split, or add output\.splits"
    ):
        bp.open(out, split="train")


def test_views_of_splits_and_domains_have_the_rows_of_their_folders(plain: Path) -> None:
    rows = bp.open(plain, split="all")
    assert (rows.splits, rows.domains) == (tuple(SPLITS), tuple(sorted(DOMAINS)))
    for name in SPLITS:
        view, opened = rows.split(name), bp.open(plain, split=name)
        assert view.splits == opened.splits == (name,)
        assert numbers(view) == numbers(opened)
        assert repr(opened).startswith(f"Dataset({str(plain)!r}, split={name!r}, rows=")
        for domain in DOMAINS:
            wanted = [number for number in numbers(opened) if DOMAINS[number % 3] == domain]
            assert wanted
            assert numbers(view.domain(domain)) == numbers(opened.domain(domain)) == wanted
            assert numbers(bp.open(plain, [domain], split=name)) == wanted
            place = numbers(rows).index(wanted[0])
            assert (rows.split_of(place), rows.domain_of(place)) == (name, domain)
    assert rows[::-1].splits == tuple(SPLITS)
    assert numbers(rows[::-1].split("test")) == numbers(rows.split("test"))[::-1]
    assert numbers(pickle.loads(pickle.dumps(bp.open(plain, split="test")))) == numbers(rows.split("test"))


def test_a_domain_of_several_splits_is_asked_for_by_split(plain: Path) -> None:
    rows = bp.open(plain, split="all")
    with pytest.raises(BeamPrepError) as caught:
        rows.domain("math")
    assert str(caught.value) == (
        "the rows of domain 'math' are in the splits 'train', 'validation', 'test'; give one of them: "
        ".split('train').domain('math')"
    )
    assert numbers(bp.open(plain, ["math"], split="all")) == [n for n in numbers(rows) if n % 3 == 1]
    assert len(rows[:1].domain(rows.domain_of(0))) == 1  # one split has it


def test_mixtures_packed_views_and_batches_are_of_one_split(plain: Path) -> None:
    train = bp.open(plain, split="train")
    mixed = train.mixture({"math": 1, "Größe": 1}, seed=1)
    here = set(numbers(train))
    assert {row["number"] for row in mixed} <= here
    packed = train.packed(64, seed=1)
    assert {number for row in packed for number in row["number"].tolist()} == here
    batch = bp.collate(train, pad_id=0)([train[0], train[1]])
    assert batch["number"].tolist() == numbers(train)[:2]
    other = bp.open(plain, split="test").packed(64, seed=1)
    with pytest.raises(ConfigError, match="the state is that of another view"):
        other.load_state_dict(packed.state_dict(1))


def test_a_folder_of_a_split_names_the_output_and_the_split(plain: Path) -> None:
    for part in ("test", "test/math"):
        with pytest.raises(FormatError, match=rf"is a part of an output: open {plain}, split='test'$"):
            bp.open(plain / part)


def test_a_split_that_stays_empty_is_said_and_has_no_rows(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    output = {"splits": {"train": 0.99999, "test": 0.00001}, "storage_format": ["bin", "arrow"]}
    out = make(tmp_path, records(20), output)
    warning = (
        "split 'test' has no records: none of the 20 that are kept falls into it; give it a larger share in "
        "output.splits, or choose another split_seed"
    )
    assert json.loads((out / "run.json").read_text())["warnings"] == [warning]
    assert f"warning: {warning}" in caplog.text
    assert "none of the 20 that are kept falls into it" in (out / "report.html").read_text()
    assert manifest_of(out)["splits"]["test"] == {"rows": 0, "tokens": {}, "trained": {}}
    empty = bp.open(out, split="test")
    assert (len(empty), empty.domains, list(empty), empty.columns) == (0, (), [], ("sequence",))
    assert len(bp.open(out, split="train")) == 20
    bp.open(out, split="train").verify()


# Other libraries, from the folder of a domain


@pytest.fixture(scope="module")
def wanted(sound: Path) -> dict[str, dict[str, list[Any]]]:
    """Split -> column -> its values, row by row, of the domain math."""
    found = {}
    for name in SPLITS:
        rows = list(bp.open(sound, ["math"], split=name))
        assert rows
        found[name] = {key: [np.atleast_1d(row[key]).tolist() for row in rows] for key in ("sequence", "offset")}
    return found


def of_arrow(folder: str) -> list[Any]:
    import datasets

    return list(datasets.load_from_disk(folder)["sequence"])


def of_parquet(folder: str) -> list[Any]:
    import datasets

    files = sorted(glob.glob(f"{folder}/*.parquet"))
    cache = f"{folder}/.cache"
    return list(datasets.load_dataset("parquet", data_files=files, split="train", cache_dir=cache)["sequence"])


def of_h5(folder: str) -> list[Any]:
    h5py: Any = pytest.importorskip("h5py")
    found = []
    for path in sorted(glob.glob(f"{folder}/*.h5")):
        with h5py.File(path) as file:
            borders = file["offsets/sequence"][:]
            found += [ids.tolist() for ids in np.split(file["sequence"][:], borders[1:-1])]
    return found


def of_npy(folder: str) -> list[Any]:
    found = []
    for path in sorted(glob.glob(f"{folder}/sequence/*.npy")):
        ids = np.fromfile(path, np.uint32)
        lines = gzip.decompress(Path(path.removesuffix(".npy") + ".csv.gz").read_bytes()).decode().split()
        found += [ids[int(start) : int(stop)].tolist() for start, stop in (line.split(",") for line in lines)]
    return found


def of_mds(folder: str) -> list[Any]:
    found: list[Any] = []
    for shard in json.loads(Path(folder, "index.json").read_text())["shards"]:
        path = Path(folder, shard["raw_data"]["basename"])
        assert hashlib.sha256(path.read_bytes()).hexdigest() == shard["raw_data"]["hashes"]["sha256"]
        rows = test_mds.foreign(path)[1]
        assert len(rows) == shard["samples"]
        found += [row["sequence"].tolist() for row in rows]
    return found


def of_megatron(folder: str) -> list[Any]:
    prefixes = [path.removesuffix(".idx") for path in sorted(glob.glob(f"{folder}/*-sequence.idx"))]
    return [lists[0] for prefix in prefixes for lists in test_megatron.foreign(Path(prefix))[1]]


def _parsed(folder: str, examples: Any) -> list[Any]:
    tf = pytest.importorskip("tensorflow")
    features = json.loads(Path(folder).parent.parent.joinpath("features.json").read_text())
    assert features["sequence"] == {"type": "int64", "dtype": "int32", "kind": "ragged"}
    spec = {"sequence": tf.io.RaggedFeature(tf.int64, row_splits_dtype=tf.int64)}
    return [tf.io.parse_single_example(example, spec)["sequence"].numpy().tolist() for example in examples]


def of_tfrecord(folder: str) -> list[Any]:
    tf = pytest.importorskip("tensorflow")
    return _parsed(folder, tf.data.TFRecordDataset(sorted(glob.glob(f"{folder}/*.tfrecord"))))


def of_array_record(folder: str) -> list[Any]:
    grain = pytest.importorskip("grain")
    source = grain.sources.ArrayRecordDataSource(sorted(glob.glob(f"{folder}/*.array_record")))
    return _parsed(folder, [source[place] for place in range(len(source))])


FOREIGN: dict[str, Callable[[str], list[Any]]] = {
    "arrow": of_arrow,
    "parquet": of_parquet,
    "h5": of_h5,
    "npy": of_npy,
    "mds": of_mds,
    "megatron": of_megatron,
    "tfrecord": of_tfrecord,
    "array_record": of_array_record,
}


@pytest.mark.parametrize("name", FOREIGN)
def test_other_libraries_read_a_domain_of_a_split(
    name: str, output: Path, wanted: dict[str, dict[str, list[Any]]]
) -> None:
    assert {"bin", *FOREIGN} == {*FORMAT_NAMES}
    for split, columns in wanted.items():
        assert FOREIGN[name](str(output / split / "math")) == columns["sequence"]


@pytest.mark.parametrize("name", [name for name in FORMAT_NAMES if name != "bin"])
def test_each_format_gives_the_same_rows_of_a_split(
    name: str, sound: Path, tmp_path: Path, wanted: dict[str, dict[str, list[Any]]]
) -> None:
    """With `bin` in an output its files are read; here they are gone from the manifest."""
    out = Path(shutil.copytree(sound, tmp_path / "out"))
    manifest = manifest_of(out)
    write(out, manifest | {"formats": [name]})
    for split, columns in wanted.items():
        rows = bp.open(out, ["math"], split=split)
        assert rows.format == name
        found = {key: [np.atleast_1d(row[key]).tolist() for row in rows] for key in columns}
        assert found == columns


def test_datasets_opens_the_output_as_its_splits(plain: Path) -> None:
    import datasets

    found = datasets.load_from_disk(str(plain))
    assert isinstance(found, datasets.DatasetDict)
    assert list(found) == list(SPLITS)
    for name in SPLITS:
        ours = bp.open(plain, split=name)
        assert list(found[name]["number"]) == numbers(ours)
        assert list(found[name]["sequence"]) == [row["sequence"].tolist() for row in ours]
        assert list(datasets.load_from_disk(str(plain / name))["number"]) == numbers(ours)
        of_domain = datasets.load_from_disk(str(plain / name / "train"))
        assert list(of_domain["number"]) == numbers(ours.domain("train"))


# verify


def test_a_sound_output_has_no_problems(sound: Path, plain: Path, told: Told) -> None:
    assert told(sound) == []
    assert told(plain) == []
    manifest = manifest_of(sound)
    assert manifest["repeated"] > 0
    assert manifest["totals"]["rows"] == manifest["ledger"]["kept"] + manifest["repeated"]
    assert manifest["ledger"]["dropped"].keys() == {"duplicate", "not_sampled"}


def test_files_that_are_moved_to_another_split_are_told(output: Path, told: Told) -> None:
    shutil.move(output / "test" / "math", output / "test" / "other")
    found = told(output)
    assert any(line.startswith("test/math/") and "no such file" in line for line in found)
    assert any(line.startswith("test/other/") and "does not list it" in line for line in found)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda m: m["splits"]["test"].update(rows=1), "splits say of 'test' rows 1, the shards add up to "),
        (lambda m: m.update(repeated=m["repeated"] + 1), "the ledger says kept (and repeated) "),
        (lambda m: m["ledger"]["dropped"].update(duplicate=0), "but kept + dropped + rejected are "),
    ],
)
def test_counts_that_do_not_add_up_are_told(
    change: Callable[[dict[str, Any]], Any], problem: str, output: Path, told: Told
) -> None:
    manifest = manifest_of(output)
    change(manifest)
    write(output, manifest)
    found = told(output)
    assert any(line.startswith("manifest.json: ") and problem in line for line in found), found


@pytest.mark.parametrize(
    "preprocessing",
    [
        {"packing_strategy": "bfd", "max_seq_len": 32},
        {"packing_strategy": "wrapped", "max_seq_len": 32},
        {"truncation_mode": "chunk", "max_seq_len": 8},
        {"padding": "max_length", "max_seq_len": 32},
        {"max_items": 70},
    ],
    ids=["bfd", "wrapped", "chunk", "padding", "max_items"],
)
def test_mixes_of_other_layouts_add_up(preprocessing: Row, tmp_path: Path, told: Told) -> None:
    output = OUTPUT | {"storage_format": "bin"}
    assert told(make(tmp_path, records(), output, DEDUPLICATE | preprocessing)) == []


def test_the_tokens_of_copies_are_not_counted_of_their_roles(tmp_path: Path, tokenizer_path: str, told: Told) -> None:
    def chat(number: int) -> Row:
        return {
            "messages": [{"role": "user", "content": f"How far {number}?"}, {"role": "assistant", "content": "No."}]
        }

    rows = [chat(number % 5) for number in range(15)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "once.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:5]))
    config = {
        "input": {"sections": [{"field": "messages", "action": "$role", "template": True}]},
        "mask": {"assistant": "train"},
    }
    found = {}
    for name, rules in (("in", {"deduplicate": {"by": ["messages"]}}), ("once", {})):
        settings = bp.PipelineConfig.from_dict(config | {"preprocessing": rules})
        job = bp.Pipeline(settings, [str(tmp_path / f"{name}.jsonl")], tmp_path / name, tokenizer_path)
        job.run(["--runner=FnApiRunner"])
        assert told(tmp_path / name) == []
        found[name] = manifest_of(tmp_path / name)
    assert found["in"]["totals"] == found["once"]["totals"]
    for role, counts in found["once"]["roles"].items():
        assert counts["messages"] == 5
        assert found["in"]["roles"][role] == counts | {"messages": 15}


# inspect and cat


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What a command prints."""

    def _shown(*words: object) -> str:
        assert cli.main([*map(str, words)]) == 0
        return capsys.readouterr().out

    return _shown


Shown = Callable[..., str]


def test_inspect_counts_rows_within_the_split(plain: Path, shown: Shown) -> None:
    head = shown("inspect", plain, "--count", 0).splitlines()
    for name, found in manifest_of(plain)["splits"].items():
        assert f"split {name}: {found['rows']:,} rows, {found['tokens']['sequence']:,} tokens" in head
    rows = bp.open(plain, split="test")
    text = shown("inspect", plain, "--split", "test", "--record", 3)
    assert f"━━ record 3 · split test · domain {rows.domain_of(3)} · " in text
    assert f"── number: {rows[3]['number']}" in text
    view = rows.domain("math")
    text = shown("inspect", plain, "--split", "test", "--domain", "math", "--record", 0)
    assert "━━ record 0 · split test · domain math · " in text
    assert f"── number: {view[0]['number']}" in text
    every = bp.open(plain, split="all")
    text = shown("inspect", plain, "--record", -1)
    assert f"━━ record {len(every) - 1} · split test · " in text
    last = [number for number in numbers(every) if number % 3 == 1][-1]
    assert f"── number: {last}" in shown("inspect", plain, "--domain", "math", "--record", -1)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--split", "tset"), "has no split 'tset'; did you mean 'test'?"),
        (("--split", "test", "--record", "9999"), "no record 9999: split 'test' of "),
        (
            ("--split", "test", "--domain", "math", "--record", "999"),
            "no record 999: domain 'math' of split 'test' of ",
        ),
        (("--split", "test", "--reason", "dropped"), "a record that was left out is in no split; leave out --split"),
    ],
)
def test_inspect_says_what_it_does_not_find(
    words: Sequence[str], message: str, plain: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["inspect", str(plain), *words]) != 0
    assert message in capsys.readouterr().err


def test_copies_are_shown_with_the_record_that_they_are_equal_to(sound: Path, shown: Shown) -> None:
    source = str(sound.parent / "in.jsonl")
    lines = Path(source).read_text().splitlines()
    text = shown("inspect", sound, "--reason", "duplicate")
    for number in range(9, 120, 10):
        offset = sum(len(line) + 1 for line in lines[: number - 2])
        assert (
            f"━━ {source}, line {number + 1} · dropped: duplicate\n"
            f"equal to line {number - 1} of {source} (byte offset {offset})\n"
            f"── {lines[number]}\n"
            f"── {source}, line {number - 1}: {lines[number - 2]}\n"
        ) in text
    assert "dropped: 12 duplicate; an output keeps the first 20 of each reason\n" in text
    assert shown("inspect", sound, "--reason", "duplicate", "--grep", '"number": 19').count("· dropped") == 1
    drops = [drop for drop in bp.open(sound, split="all").drops() if drop["reason"] == "duplicate"]
    assert [drop["same_as"]["line"] for drop in drops] == list(range(8, 120, 10))


def test_copies_of_a_changed_input_are_shown_by_their_places(sound: Path, tmp_path: Path, shown: Shown) -> None:
    folder = Path(shutil.copytree(sound.parent, tmp_path / "moved"))
    manifest, run = (json.loads((folder / "out" / name).read_text()) for name in ("manifest.json", "run.json"))
    manifest["inputs"][0]["path"] = str(folder / "in.jsonl")
    for drop in run["report"]["dropped"]:
        for place in (drop, drop.get("same_as", {})):
            place["file"] = str(folder / "in.jsonl")
    write(folder / "out", manifest)
    (folder / "out" / "run.json").write_text(json.dumps(run))
    (folder / "in.jsonl").write_text("{}\n")
    text = shown("inspect", folder / "out", "--reason", "duplicate")
    assert "line 10 · dropped: duplicate\nequal to line 8 of " in text
    assert "── (its line cannot be read: the file has 3 bytes, and had " in text
    (folder / "in.jsonl").unlink()
    assert "── (its line cannot be read: " in shown("inspect", folder / "out", "--reason", "duplicate")


def test_records_that_the_mix_left_out_are_said_to_have_no_places(sound: Path, shown: Shown) -> None:
    count = manifest_of(sound)["ledger"]["dropped"]["not_sampled"]
    text = shown("inspect", sound, "--reason", "not_sampled")
    said = "not_sampled are the records that output.mix left out, whose places are not kept"
    assert f"\ndropped: {count} not_sampled; {said}\n" in text
    assert "· dropped" not in text


def test_the_source_of_a_shuffled_row_is_its_line(sound: Path, shown: Shown) -> None:
    lines = (sound.parent / "in.jsonl").read_bytes().split(b"\n")
    for split in SPLITS:
        rows = bp.open(sound, split=split)
        for number in (0, len(rows) - 1):
            line = shown("inspect", sound, "--split", split, "--record", number, "--source").splitlines()[1]
            assert line.encode() in lines
            assert json.loads(line)["domain"] == rows.domain_of(number)
            text = rows.decode(number)
            assert isinstance(text, str)
            assert json.loads(line)["text"] == text.removeprefix("<|bos|>").removesuffix("<|im_end|>")


def test_a_page_says_the_split_of_each_row(sound: Path, tmp_path: Path, shown: Shown) -> None:
    page = tmp_path / "page.html"
    shown("inspect", sound, "--html", page)
    text = page.read_text()
    assert "split test \\u00b7" in text or "split test ·" in text
    assert "equal to line 8 of " in text


def test_cat_says_split_and_domain_of_each_row(plain: Path, shown: Shown) -> None:
    rows = [json.loads(line) for line in shown("cat", plain).splitlines()]
    every = bp.open(plain, split="all")
    assert [row["number"] for row in rows] == numbers(every)
    assert list(rows[0])[:2] == ["split", "domain"]
    places = [(every.split_of(place), every.domain_of(place)) for place in range(len(every))]
    assert [(row["split"], row["domain"]) for row in rows] == places
    rows = [json.loads(line) for line in shown("cat", plain, "--split", "test", "--domain", "math").splitlines()]
    assert [row["number"] for row in rows] == numbers(bp.open(plain, ["math"], split="test"))


# The report


def test_the_report_says_splits_mixes_and_copies(sound: Path, tmp_path: Path, shown: Shown) -> None:
    page = tmp_path / "page.html"
    shown("report", sound, "-o", page)
    text, manifest = page.read_text(), manifest_of(sound)
    for name, found in manifest["splits"].items():
        tokens = found["tokens"]["sequence"]
        assert f'<td>{name}</td><td class="n">{found["rows"]:,}</td><td class="n">{tokens:,}</td>' in text
    for domain, each in manifest["mix"].items():
        counts = (each["wanted_tokens"], each["tokens"], each["records"], each["rows"])
        cells = "".join(f'<td class="n">{count:,}</td>' for count in counts)
        assert f"<td>{domain}</td>{cells}" in text
    assert "<td>duplicate (equal to an earlier record)</td>" in text
    assert "<td>not_sampled (left out by output.mix)</td>" in text
    assert f"Repeated for the mix: {manifest['repeated']} rows more than records." in text
    assert "<tr><td>test</td><td>math</td>" in text
    assert "equal to line 8 of " in text


# Runs again


def test_a_second_run_does_nothing_and_another_config_leaves_nothing_behind(tmp_path: Path, told: Told) -> None:
    out = make(tmp_path, records(), OUTPUT | {"storage_format": ["bin", "arrow"]}, DEDUPLICATE)
    before = tree(out)
    stamps = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    make(tmp_path, records(), OUTPUT | {"storage_format": ["bin", "arrow"]}, DEDUPLICATE)
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == stamps
    other = OUTPUT | {"storage_format": ["bin", "arrow"], "split_seed": 5}
    make(tmp_path, records(), other, DEDUPLICATE, overwrite=True)
    assert tree(out) != before
    assert told(out) == []
    make(tmp_path, records(), {"storage_format": ["bin", "arrow"]}, overwrite=True)
    assert told(out) == []  # nothing is left of the splits
    folders = {path.name for path in out.iterdir() if path.is_dir()}
    assert folders == {*manifest_of(out)["domains"].values(), TOKENIZER}


def test_shards_of_a_split_that_did_not_change_are_linked(tmp_path: Path, told: Told) -> None:
    output = {"splits": SPLITS, "split_key": "user", "storage_format": ["bin", "arrow", "mds"]}
    rows, cache_dir = records(), str(tmp_path / "token_cache")
    one_more = [{"text": "one more", "domain": "math", "user": "user 0"}]
    out = make(tmp_path, rows, output, cache_dir=cache_dir, keep_versions=2, version_name="first")
    alone = make(tmp_path / "alone", rows, output, more=one_more)
    again = make(tmp_path, rows, output, more=one_more, cache_dir=cache_dir, keep_versions=2, version_name="second")
    assert again != out
    assert told(again) == []
    changed = [name for name in SPLITS if numbered(again, name) != numbered(out, name)]
    assert len(changed) == 1
    shards = manifest_of(again)["shards"]
    same = sum(shard["split"] not in changed for shard in shards)
    assert 0 < same <= json.loads((again / "run.json").read_text())["shards_linked"] < len(shards)
    leave_out = (*UNLISTED, "manifest.json")  # which names the input
    assert tree(again, leave_out) == tree(alone, leave_out)


def numbered(out: Path, split: str) -> list[list[int]]:
    return [row["sequence"].tolist() for row in bp.open(out, split=split)]


@pytest.mark.parametrize("name", ["all", "reject", "rejects", "tokenizer"])
def test_a_split_has_no_name_that_means_something_else(name: str) -> None:
    config = {
        "input": {"sections": [{"field": "text", "action": "train"}]},
        "output": {"splits": {"train": 0.5, name: 0.5}},
    }
    with pytest.raises(ConfigError, match=rf"output\.splits\.{name}.*found a split with a name that is taken"):
        bp.PipelineConfig.from_dict(config)
