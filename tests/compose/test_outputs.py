"""Outputs with splits, a shuffle, a mix and without copies: how they are read, shown, checked and replaced."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import beam_prep as bp
from beam_prep.config import FORMAT_NAMES
from beam_prep.errors import BeamPrepError
from beam_prep.formats.manifest import UNLISTED, sum_problems
from beam_prep.inspect.output import inspect
from beam_prep.readers.dataset import Dataset
from tests.compose.test_jobs import run as run_job
from tests.compose.test_jobs import write as write_lines
from tests.conftest import Command, Folders, Log, Run, chat_config, run_of, says, text_config, tree
from tests.test_verify import Told, manifest_of, told

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


def make(folder: Path, rows: Sequence[Row], output: Row, preprocessing: Row | None = None, **options: Any) -> Path:
    """Runs a job, in this process."""
    rules = {"min_chars": 1, **(preprocessing or {})}
    config = text_config(preprocessing=rules, output={"domain_key": "domain", "max_tokens_per_shard": 300, **output})
    run_job(config, [write_lines(folder / "in.jsonl", rows)], folder / "out", **options)
    return folder / "out"


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
def sound(tmp_path_factory: Folders) -> Path:
    """All formats, splits, a shuffle, a mix, no copies, provenance. Not to be changed."""
    return make(tmp_path_factory.mktemp("sound"), records(), OUTPUT, DEDUPLICATE)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: Folders) -> Path:
    """Splits in the order of the input, one record without a user; the number of each is kept as metadata."""
    output = {
        "splits": SPLITS,
        "split_key": "user",
        "keep_fields": {"number": "int64"},
        "storage_format": ["bin", "arrow"],
    }
    return make(tmp_path_factory.mktemp("plain"), [*records(), {"text": "Whose?", "domain": "math"}], output)


def numbers(rows: Dataset) -> list[int]:
    return [int(row["number"]) for row in rows]


def test_records_without_the_split_key_are_rejected(plain: Path) -> None:
    (reject,) = bp.open(plain, split="all").rejects()
    assert reject["reason"] == "no_split_key"
    assert reject["message"] == "the record has no 'user', which decides its split"


OPENED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no split": (bp.open, r"has the splits 'train' \(\d+ rows\), .*\): say which, split='train', or split='all'"),
    "another": (lambda out: bp.open(out, split="tset"), r"unknown split 'tset'; did you mean 'test'\? known: train, "),
    "empty": (lambda out: bp.open(out, split="train").split(""), "unknown split ''; known: train, "),
    "a domain of several": (
        lambda out: bp.open(out, split="all").domain("math"),
        r"are in the splits 'train', 'validation', 'test'; give one of them: \.split\('train'\)\.domain\('math'\)",
    ),
    "a folder": (lambda out: bp.open(out / "test" / "math"), "is a part of an output: open "),
    "no record": (
        lambda out: inspect(out, split="test", domain="math", record=999),
        r"no record 999: .*--domain math --split test",
    ),
    "dropped": (lambda out: inspect(out, split="test", reason="dropped"), "--reason and --split exclude each other"),
}


@pytest.mark.parametrize("name", OPENED)
def test_how_a_split_is_opened_is_said(name: str, plain: Path) -> None:
    opens, message = OPENED[name]
    with pytest.raises(BeamPrepError, match=message):
        opens(plain)


def test_a_split_that_stays_empty_is_said_and_has_no_rows(tmp_path: Path, caplog: Log) -> None:
    output = {"splits": {"train": 0.99999, "test": 0.00001}, "storage_format": ["bin", "arrow"]}
    out = make(tmp_path, records(20), output)
    warning = (
        "split 'test' has no records: none of the 20 that are kept falls into it; give it a larger share in "
        "output.splits, or choose another split_seed"
    )
    assert run_of(out)["warnings"] == [warning]
    assert f"warning: {warning}" in caplog.text
    assert "none of the 20 that are kept falls into it" in (out / "report.html").read_text()
    assert manifest_of(out)["splits"]["test"] == {"rows": 0, "tokens": {}, "trained": {}}
    empty = bp.open(out, split="test")
    assert (len(empty), empty.domains, list(empty), empty.columns) == (0, (), [], ("sequence",))
    assert len(bp.open(out, split="train")) == 20
    bp.open(out, split="train").verify()


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


def test_a_sound_output_has_no_problems_and_wrong_sums_are_told(sound: Path, plain: Path, told: Told) -> None:
    assert told(sound) == []
    assert told(plain) == []
    manifest = manifest_of(sound)
    assert manifest["repeated"] > 0
    assert manifest["totals"]["rows"] == manifest["ledger"]["kept"] + manifest["repeated"]
    assert manifest["ledger"]["dropped"].keys() == {"duplicate", "not_sampled"}
    assert any("the ledger says kept (and repeated) " in each for each in sum_problems(manifest | {"repeated": 0}))
    manifest["ledger"]["dropped"]["duplicate"] = 0
    assert any("but blank + kept + dropped + rejected + not_read are " in each for each in sum_problems(manifest))


def test_the_tokens_of_copies_are_not_counted_of_their_roles(run: Run) -> None:
    chats = [{"messages": says(user=f"How far {number}?", assistant="No.")} for number in range(5)]
    rules = {"deduplicate": {"by": ["messages"]}}
    many = run(chat_config(True, preprocessing=rules), chats * 3, "many").manifest
    once = run(chat_config(True), chats, "once").manifest
    assert many["totals"] == once["totals"]
    for role, counts in once["roles"].items():
        assert counts["messages"] == 5
        assert many["roles"][role] == counts | {"messages": 15}


# inspect and cat


def test_inspect_counts_rows_within_the_split(plain: Path, command: Command) -> None:
    head = command("inspect", plain, "--count", 0).splitlines()
    for name, found in manifest_of(plain)["splits"].items():
        assert f"  split {name}: {found['rows']:,} rows, {found['tokens']['sequence']:,} tokens" in head
    view = bp.open(plain, ["math"], split="test")
    text = command("inspect", plain, "--split", "test", "--domain", "math", "--record", 0)
    assert "━━ record 0 · split test · domain math · " in text
    assert f"── number: {view[0]['number']}" in text
    every = bp.open(plain, split="all")
    assert f"━━ record {len(every) - 1} · split test · " in command("inspect", plain, "--record", -1)


def test_copies_are_shown_with_the_record_that_they_are_equal_to(sound: Path, command: Command) -> None:
    source = str(sound.parent / "in.jsonl")
    lines = Path(source).read_text().splitlines()
    text = command("inspect", sound, "--reason", "duplicate")
    assert (
        f"━━ {source}, line 20 · dropped: duplicate\n"
        f"equal to line 18 of {source} (byte offset {sum(len(line.encode()) + 1 for line in lines[:17])})\n"
        f"── {lines[19]}\n"
        f"── {source}, line 18: {lines[17]}\n"
    ) in text
    assert "dropped: 12 duplicate, " in text
    assert "an output keeps the places of the first 20 of each reason" in text
    drops = [drop for drop in bp.open(sound, split="all").drops() if drop["reason"] == "duplicate"]
    assert [drop["same_as"]["line"] for drop in drops] == list(range(8, 120, 10))
    # Those that the mix left out have no places.
    assert "and none of not_sampled\n" in command("inspect", sound, "--reason", "not_sampled")


def test_cat_says_split_and_domain_of_each_row(plain: Path, command: Command) -> None:
    rows = [json.loads(line) for line in command("cat", plain).splitlines()]
    every = bp.open(plain, split="all")
    places = [(every.split_of(place), every.domain_of(place)) for place in range(len(every))]
    assert [row["number"] for row in rows] == numbers(every)
    assert [(row["split"], row["domain"]) for row in rows] == places
    rows = [json.loads(line) for line in command("cat", plain, "--split", "test", "--domain", "math").splitlines()]
    assert [row["number"] for row in rows] == numbers(bp.open(plain, ["math"], split="test"))


def test_the_report_and_a_page_say_splits_mixes_and_copies(sound: Path, tmp_path: Path, command: Command) -> None:
    page, report = tmp_path / "page.html", tmp_path / "report.html"
    command("report", sound, "-o", report)
    text, manifest = report.read_text(), manifest_of(sound)
    for name, found in manifest["splits"].items():
        tokens = found["tokens"]["sequence"]
        assert f'<td>{name}</td><td class="n">{found["rows"]:,}</td><td class="n">{tokens:,}</td>' in text
    for domain, each in manifest["mix"].items():
        counts = (each["wanted_tokens"], each["tokens"], each["records"], each["rows"])
        cells = "".join(f'<td class="n">{count:,}</td>' for count in counts)
        assert f"<td>{domain}</td>{cells}" in text
    assert "<td>duplicate: is equal to an earlier record (`preprocessing.deduplicate`)</td>" in text
    assert f"Repeated for the mix: {manifest['repeated']} rows more than records." in text
    assert "<tr><td>test</td><td>math</td>" in text
    command("inspect", sound, "--html", page)
    assert all(said in page.read_text() for said in ("split test", "equal to line 8 of "))


def test_a_mix_of_packed_chunks_adds_up_and_knows_no_blocks(tmp_path: Path, told: Told) -> None:
    rows = [{**row, "filler": "x" * 700} for row in records()]
    layout = {"truncation_mode": "chunk", "max_seq_len": 8, "packing_strategy": "bfd", "max_packed_len": 32}
    output, rules = OUTPUT | {"storage_format": "bin"}, DEDUPLICATE | layout | {"max_items": 70}
    out = make(tmp_path, rows, output, rules)
    assert told(out) == []
    small = make(tmp_path / "small", rows, output, rules, block_bytes=65536)
    assert bp.open(small, split="all").run["blocks"] > 1
    leave_out = (*UNLISTED, "manifest.json")  # which names the input
    assert tree(out, leave_out) == tree(small, leave_out)
