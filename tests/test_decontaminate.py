"""Decontaminated outputs: what is dropped or marked, listed and said, and what a changed evaluation does."""

import functools
import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import beam_prep as bp
from beam_prep import cli, recipe
from beam_prep.config import PipelineConfig
from beam_prep.data.block import Split
from beam_prep.data.hashing import CHUNK
from beam_prep.errors import ConfigError, InputError, RunError, StorageError
from beam_prep.replay import Replay
from beam_prep.storage.inputs import read_split
from beam_prep.storage.shipped import IndexFile, read_references, ship_references
from tests.conftest import (
    ROOT,
    TOKENIZER_PATH,
    Command,
    Run,
    chat_config,
    flip,
    records_of,
    text_config,
    tree,
    write_lines,
)
from tests.formats.shards import plain
from tests.reference import ours

CHATS = records_of(ROOT / "examples/data/chat.jsonl")[:120]
TEXTS = [[message["content"] or "" for message in chat["messages"]] for chat in CHATS]
LEAKED = (3, 40, 41, 100)


def evaluation(path: Path, places: tuple[int, ...] = LEAKED, change: Callable[[str], str] = str) -> Path:
    """A file of evaluation data: the last answers of some chats."""
    return write_lines(path, [{"id": place, "answer": change(TEXTS[place][-1])} for place in places])


def config(against: Any, **rule: Any) -> dict[str, Any]:
    rules = {"max_seq_len": 512, "decontaminate": {"against": str(against), "field": "answer", "ngram": 8, **rule}}
    return chat_config(preprocessing=rules, output={"columns": "labels", "max_tokens_per_shard": 10_000})


def leaked() -> list[int]:
    """The places of the chats that share eight words in a row with the evaluation, by a set of words."""

    def ngrams(text: str) -> set[tuple[str, ...]]:
        plain = "".join(each if each.isalnum() else " " for each in text.casefold()).split()
        return {tuple(plain[first : first + 8]) for first in range(len(plain) - 7)}

    known = set.union(*(ngrams(TEXTS[place][-1]) for place in LEAKED))
    return [place for place, texts in enumerate(TEXTS) if any(known & ngrams(text) for text in texts)]


@pytest.mark.parametrize("mode", ["drop", "mark"])
def test_contaminated_records_are_counted_and_listed(mode: str, run: Run, tmp_path: Path, command: Command) -> None:
    """And dropped: the rest is what is made of the other records; or kept: all is what is made without a rule."""
    against = evaluation(tmp_path / "eval.jsonl", change=str.upper)
    against.write_text(against.read_text("utf-8") + '{"answer": "yes"}\n{"answer": null}\n', "utf-8")
    result = run(config(against, mode=mode), CHATS)
    made = bp.open(result.output)
    counts = made.manifest["ledger"]["dropped"] if mode == "drop" else made.manifest["counters"]
    assert counts["contaminated"] == len(leaked())
    found, others = (made.drops(), made.marked())[:: 1 if mode == "drop" else -1]
    assert [each["line"] - 1 for each in found] == leaked()
    assert others == []
    first = "".join(each if each.isalnum() else " " for each in TEXTS[3][-1].casefold()).split()
    assert found[0]["note"] == f"shares {' '.join(first[:8])!r} with {against}, line 1"
    said = "2 of 6 records of preprocessing.decontaminate.against have no text of 8 words, and are not looked for"
    assert any(said in warning for warning in made.run["warnings"])
    assert found[0]["note"] in " ".join(command("inspect", result.output, "--reason", "contaminated").split())
    assert cli.main(["verify", result.output]) == 0
    rest = [chat for place, chat in enumerate(CHATS) if mode == "mark" or place not in leaked()]
    given = config(against)
    del given["preprocessing"]["decontaminate"]
    assert [*map(plain, made)] == [*map(plain, bp.open(run(given, rest, "alone").output))]


def test_texts_are_not_kept_where_none_are_wanted(run: Run, tmp_path: Path) -> None:
    given = config(evaluation(tmp_path / "eval.jsonl"), mode="mark")
    given["preprocessing"]["max_items"] = 41
    listed = bp.open(run(given, CHATS, max_reject_chars=0).output).marked()
    assert [(each["line"] - 1, each["text"], "note" in each) for each in listed] == [(3, "", False), (40, "", False)]


def test_a_changed_evaluation_makes_another_output_and_new_blocks(run: Run, tmp_path: Path) -> None:
    against = evaluation(tmp_path / "eval.jsonl")
    made = functools.partial(run, config(against), CHATS, cache_dir=str(tmp_path / "token_cache"), overwrite=True)
    first = made()
    assert made().up_to_date
    evaluation(against, LEAKED[:1])
    second = made()
    assert second.manifest["ledger"]["dropped"]["contaminated"] < first.manifest["ledger"]["dropped"]["contaminated"]
    assert bp.open(second.output).run["blocks_reused"] == 0
    assert second.manifest["references"]["files"] != first.manifest["references"]["files"]


def test_a_replay_is_what_a_run_from_scratch_makes(run: Run, tmp_path: Path) -> None:
    against = evaluation(tmp_path / "eval.jsonl")
    narrow, wide = (config(against, mode="mark") | {"mask": {"system": "train"}} for _ in "ab")  # most chats have none
    narrow["preprocessing"]["rows_without_loss"] = "reject"
    wide["preprocessing"]["rows_without_loss"] = "keep"
    options: dict[str, Any] = {"max_reject_rate": 1.0, "cache_dir": str(tmp_path / "token_cache")}
    run(narrow, CHATS, **options)
    evaluation(against, (0, 7))
    replay = Replay(tmp_path / "out", PipelineConfig.from_dict(wide), output_dir=tmp_path / "again", **options)
    replay.run(["--runner=FnApiRunner"])
    run(wide, CHATS, "scratch", max_reject_rate=1.0)
    again, scratch = bp.open(tmp_path / "again"), bp.open(tmp_path / "scratch")
    assert tree(tmp_path / "again") == tree(tmp_path / "scratch")
    assert (again.drops(), again.marked()) == (scratch.drops(), scratch.marked())


def test_an_input_that_is_the_evaluation_is_said(run: Run, tmp_path: Path) -> None:
    rows = [{"text": f"These are the nine words of record number {number}."} for number in range(3)]
    against = tmp_path / "input.jsonl"
    given = text_config(preprocessing={"min_chars": 0, "decontaminate": {"against": [str(against)], "ngram": 9}})
    write_lines(against, rows)
    with pytest.raises(RunError, match=r"nothing is kept of 3 records \(3 contaminated\): .*against names what the in"):
        run(given, rows)


def test_fields_that_no_section_reads_can_be_compared(run: Run, tmp_path: Path) -> None:
    (tmp_path / "eval.jsonl").write_text('{"q": "How far is it?"}\n')
    rows = [{"input_ids": [1, 2], "text": "How far is it"}, {"input_ids": [3], "text": "Not far"}]
    rule = {"against": str(tmp_path / "eval.jsonl"), "ngram": 4, "fields": "text"}
    given = {"input": {"adapter": "tokenized"}, "preprocessing": {"decontaminate": rule}}
    assert run(given, rows).manifest["ledger"]["dropped"] == {"contaminated": 1}
    del rule["fields"]
    with pytest.raises(ConfigError, match=r"preprocessing\.decontaminate: .* token ids, which hold no words: name"):
        run(given, rows)


@pytest.mark.parametrize(
    ("lines", "rule", "message"),
    [
        (None, {}, "preprocessing.decontaminate.against: no such input: "),
        (b"", {}, r"eval.jsonl has no record"),
        (b'{"answer": "one two"}\n', {}, "no text of 1 records in `against` has 8 words.*: check `field`"),
        (b'{"answer": "a b"}\n\n{"q": 3}\n', {"ngram": 2}, r"eval.jsonl, line 3: no field 'answer'; its fields: 'q'"),
        (b'{"answer": "a b"}\n{"answer": \n', {"ngram": 2}, r"eval.jsonl, line 2: bad_json: "),
    ],
)
def test_evaluation_data_that_cannot_be_used_is_an_error_before_the_run(
    lines: bytes | None, rule: dict[str, Any], message: str, run: Run, tmp_path: Path
) -> None:
    against = tmp_path / "eval.jsonl"
    if lines is not None:
        against.write_bytes(lines)
    with pytest.raises(InputError, match=message):
        run(config(against, **rule), CHATS)
    assert not (tmp_path / "out").exists()


def test_references_of_several_files_are_found_where_they_are_first(tmp_path: Path) -> None:
    (tmp_path / "b.jsonl").write_text('\n{"q": "one two three"}\n{"a": ["four five six", "x"]}\n')
    with gzip.open(tmp_path / "a.jsonl.gz", "wt") as file:
        file.write('{"a": "nothing", "q": 3}\n{"q": "Zero. One, two!"}\n')
    (tmp_path / "c.json").write_text('[{"q": "seven eight"}]')
    found = read_references([str(tmp_path / "*.json*")], None, 2)
    shared = found.index.find(["ONE two", "two three", "five six", "seven eight"])
    places = [(Path(each.file).name, each.line) for each in shared.values()]
    assert places == [("a.jsonl.gz", 2), ("b.jsonl", 2), ("b.jsonl", 3), ("c.json", 1)]
    assert found.facts()["records"] == 5
    assert found.facts()["records_without"] == 1


def test_an_index_that_is_sent_to_workers_is_the_same(tmp_path: Path) -> None:
    found = read_references([str(evaluation(tmp_path / "eval.jsonl"))], ["answer"], 8)
    texts = [text for each in TEXTS for text in each]
    source = ship_references(found, str(tmp_path / "staging"))
    assert source.load().find(texts) == found.index.find(texts) != {}
    damaged = Path(source.path).with_name("0" * 32)
    damaged.write_bytes(Path(source.path).read_bytes())
    flip(damaged)
    with pytest.raises(StorageError, match="cannot be read on this worker"):
        IndexFile(str(damaged)).load()


def test_evaluation_data_is_read_once_for_all_groups_and_their_checks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Any] = []

    def counted(*given: Any) -> Any:
        read.append(given)
        return read_references(*given)

    monkeypatch.setattr(recipe, "read_references", counted)
    against = evaluation(tmp_path / "eval.jsonl")
    fields = {"sections": [{"field": "text", "action": "train"}]}
    rows = [{"text": TEXTS[3][-1]}, {"text": "b"}]
    groups = [{"files": [str(write_lines(tmp_path / name, rows))], **fields} for name in ("a", "b")]
    rules = config(against)["preprocessing"] | {"min_chars": 0}
    given = PipelineConfig.from_dict({"input": {"groups": groups}, "preprocessing": rules})
    (step,) = recipe.chain(given, ours(TOKENIZER_PATH), check="full")
    against.unlink()  # workers do not have it
    (block,) = read_split(Split(1, recipe.inputs_of(given, None)[1], 0, -1), CHUNK)
    assert (step.step()(block).line.tolist(), len(read)) == ([1], 1)
