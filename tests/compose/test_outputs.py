"""Outputs with splits, a shuffle, a mix and without copies: how they are read, shown, checked and replaced."""

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import beam_prep as bp
from beam_prep import cli
from beam_prep.config import FORMAT_NAMES
from beam_prep.errors import BeamPrepError
from beam_prep.formats.manifest import TOKENIZER
from beam_prep.readers.dataset import Dataset
from tests.conftest import ROOT
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


def test_an_output_without_splits_says_so(tmp_path: Path) -> None:
    out = make(tmp_path, records(6), {})
    assert (bp.open(out).splits, bp.open(out).split_of(0)) == ((), None)
    assert len(bp.open(out, split="all")) == 6
    with pytest.raises(BeamPrepError, match=r"has no splits, wanted 'train': leave out the split, or "):
        bp.open(out, split="train")


OPENED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no split": (bp.open, r"has the splits 'train' \(\d+ rows\), .*\): say which, split='train', or split='all'"),
    "another": (lambda out: bp.open(out, split="tset"), "has no split 'tset'; did you mean 'test'? it has 'train', "),
    "empty": (lambda out: bp.open(out, split="train").split(""), "has no split ''; it has 'train'"),
    "a domain of several": (
        lambda out: bp.open(out, split="all").domain("math"),
        r"are in the splits 'train', 'validation', 'test'; give one of them: \.split\('train'\)\.domain\('math'\)",
    ),
    "a folder": (lambda out: bp.open(out / "test" / "math"), "is a part of an output: open .*, split='test'$"),
}


@pytest.mark.parametrize("name", OPENED)
def test_how_a_split_is_opened_is_said(name: str, plain: Path) -> None:
    opens, message = OPENED[name]
    with pytest.raises(BeamPrepError, match=message.replace("test'?", r"test'\?")):
        opens(plain)


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
    datasets = pytest.importorskip("datasets")
    found = datasets.load_from_disk(str(plain))
    assert isinstance(found, datasets.DatasetDict)
    assert list(found) == list(SPLITS)
    for name in SPLITS:
        ours = bp.open(plain, split=name)
        assert list(found[name]["number"]) == numbers(ours)
        assert list(found[name]["sequence"]) == [row["sequence"].tolist() for row in ours]
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
    [{"packing_strategy": "bfd", "max_seq_len": 32}, {"truncation_mode": "chunk", "max_seq_len": 8, "max_items": 70}],
    ids=["bfd", "chunk"],
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
    view = bp.open(plain, ["math"], split="test")
    text = shown("inspect", plain, "--split", "test", "--domain", "math", "--record", 0)
    assert "━━ record 0 · split test · domain math · " in text
    assert f"── number: {view[0]['number']}" in text
    every = bp.open(plain, split="all")
    assert f"━━ record {len(every) - 1} · split test · " in shown("inspect", plain, "--record", -1)


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
    assert (
        f"━━ {source}, line 20 · dropped: duplicate\n"
        f"equal to line 18 of {source} (byte offset {sum(len(line) + 1 for line in lines[:17])})\n"
        f"── {lines[19]}\n"
        f"── {source}, line 18: {lines[17]}\n"
    ) in text
    assert "dropped: 12 duplicate; an output keeps the first 20 of each reason\n" in text
    drops = [drop for drop in bp.open(sound, split="all").drops() if drop["reason"] == "duplicate"]
    assert [drop["same_as"]["line"] for drop in drops] == list(range(8, 120, 10))
    # Those that the mix left out have no places.
    count = manifest_of(sound)["ledger"]["dropped"]["not_sampled"]
    text = shown("inspect", sound, "--reason", "not_sampled")
    said = "not_sampled are the records that output.mix left out, whose places are not kept"
    assert f"\ndropped: {count} not_sampled; {said}\n" in text


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


def test_the_source_of_a_shuffled_row_is_its_line(sound: Path, shown: Shown) -> None:
    for split in SPLITS:
        rows = bp.open(sound, split=split)
        line = shown("inspect", sound, "--split", split, "--record", len(rows) - 1, "--source").splitlines()[1]
        text = str(rows.decode(len(rows) - 1)).removeprefix("<|bos|>").removesuffix("<|im_end|>")
        assert json.loads(line)["text"] == text


def test_cat_says_split_and_domain_of_each_row(plain: Path, shown: Shown) -> None:
    rows = [json.loads(line) for line in shown("cat", plain).splitlines()]
    every = bp.open(plain, split="all")
    places = [(every.split_of(place), every.domain_of(place)) for place in range(len(every))]
    assert [row["number"] for row in rows] == numbers(every)
    assert [(row["split"], row["domain"]) for row in rows] == places
    rows = [json.loads(line) for line in shown("cat", plain, "--split", "test", "--domain", "math").splitlines()]
    assert [row["number"] for row in rows] == numbers(bp.open(plain, ["math"], split="test"))


def test_the_report_and_a_page_say_splits_mixes_and_copies(sound: Path, tmp_path: Path, shown: Shown) -> None:
    page, report = tmp_path / "page.html", tmp_path / "report.html"
    shown("report", sound, "-o", report)
    text, manifest = report.read_text(), manifest_of(sound)
    for name, found in manifest["splits"].items():
        tokens = found["tokens"]["sequence"]
        assert f'<td>{name}</td><td class="n">{found["rows"]:,}</td><td class="n">{tokens:,}</td>' in text
    for domain, each in manifest["mix"].items():
        counts = (each["wanted_tokens"], each["tokens"], each["records"], each["rows"])
        cells = "".join(f'<td class="n">{count:,}</td>' for count in counts)
        assert f"<td>{domain}</td>{cells}" in text
    assert "<td>duplicate (equal to an earlier record)</td>" in text
    assert f"Repeated for the mix: {manifest['repeated']} rows more than records." in text
    assert "<tr><td>test</td><td>math</td>" in text
    shown("inspect", sound, "--html", page)
    assert all(said in page.read_text() for said in ("split test", "equal to line 8 of "))


def test_an_output_of_another_config_leaves_nothing_behind(tmp_path: Path, told: Told) -> None:
    make(tmp_path, records(), OUTPUT | {"storage_format": ["bin", "arrow"]}, DEDUPLICATE)
    out = make(tmp_path, records(), {"storage_format": ["bin", "arrow"]}, overwrite=True)
    assert told(out) == []
    folders = {path.name for path in out.iterdir() if path.is_dir()}
    assert folders == {*manifest_of(out)["domains"].values(), TOKENIZER}


# The report


# Runs again


def test_shards_of_a_split_that_did_not_change_are_linked(tmp_path: Path, told: Told) -> None:
    output = {"splits": SPLITS, "split_key": "user", "storage_format": ["bin", "arrow", "mds"]}
    options: Row = {"cache_dir": str(tmp_path / "token_cache"), "keep_versions": 2}
    one_more = [{"text": "one more", "domain": "math", "user": "user 0"}]
    out = make(tmp_path, records(), output, **options, version_name="first")
    again = make(tmp_path, records(), output, more=one_more, **options, version_name="second")
    assert told(again) == []
    changed = [name for name in SPLITS if numbered(again, name) != numbered(out, name)]
    assert len(changed) == 1
    shards = manifest_of(again)["shards"]
    same = sum(shard["split"] not in changed for shard in shards)
    assert 0 < same <= json.loads((again / "run.json").read_text())["shards_linked"] < len(shards)


def numbered(out: Path, split: str) -> list[list[int]]:
    return [row["sequence"].tolist() for row in bp.open(out, split=split)]
