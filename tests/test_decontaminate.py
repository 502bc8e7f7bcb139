"""Decontaminated outputs: what is dropped or marked, listed and said, and what a changed evaluation does."""

import functools
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import beam_prep as bp
from beam_prep import cli
from beam_prep.config import PipelineConfig
from beam_prep.errors import ConfigError, InputError, RunError, StorageError
from beam_prep.pipeline import Pipeline
from beam_prep.replay import Replay
from beam_prep.storage.references import IndexFile, read_references, ship
from tests.conftest import ROOT, tree

CHATS = [json.loads(line) for line in (ROOT / "examples/data/chat.jsonl").read_text("utf-8").splitlines()[:120]]
LEAKED = (3, 40, 41, 100)


def evaluation(path: Path, places: tuple[int, ...] = LEAKED, change: Callable[[str], str] = str) -> Path:
    """A file of evaluation data: the last answers of some chats."""
    rows = [{"id": place, "answer": change(CHATS[place]["messages"][-1]["content"])} for place in places]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def config(against: Any, **rule: Any) -> dict[str, Any]:
    return {
        "input": {"sections": [{"field": "messages", "action": "$role", "template": "conversation"}]},
        "mask": {"assistant": "train"},
        "preprocessing": {
            "max_seq_len": 512,
            "decontaminate": {"against": str(against), "field": "answer", "ngram": 8, **rule},
        },
        "output": {"columns": "labels", "max_tokens_per_shard": 10_000},
    }


def leaked() -> list[int]:
    """The places of the chats that share eight words in a row with the evaluation, by a set of words."""

    def ngrams(text: str) -> set[tuple[str, ...]]:
        plain = "".join(each if each.isalnum() else " " for each in text.casefold()).split()
        return {tuple(plain[first : first + 8]) for first in range(len(plain) - 7)}

    known = set.union(*(ngrams(CHATS[place]["messages"][-1]["content"]) for place in LEAKED))
    return [
        place
        for place, chat in enumerate(CHATS)
        if any(
            known & ngrams(message["content"]) for message in chat["messages"] if isinstance(message["content"], str)
        )
    ]


def job(tmp_path: Path, tokenizer_path: str, name: str, given: dict[str, Any], **options: Any) -> Pipeline:
    source = tmp_path / "chats.jsonl"
    source.write_text("".join(json.dumps(chat) + "\n" for chat in CHATS), "utf-8")
    return Pipeline(PipelineConfig.from_dict(given), source, tmp_path / name, tokenizer_path, **options)


def test_contaminated_records_are_dropped_counted_and_listed(tmp_path: Path, tokenizer_path: str, capsys: Any) -> None:
    against = evaluation(tmp_path / "eval.jsonl", change=str.upper)
    against.write_text(against.read_text("utf-8") + '{"answer": "yes"}\n{"answer": null}\n', "utf-8")
    result = job(tmp_path, tokenizer_path, "out", config(against)).run(["--runner=FnApiRunner"])
    assert result.manifest is not None
    assert result.manifest["ledger"]["dropped"] == {"contaminated": len(leaked())}
    found = bp.open(result.output).drops()
    assert [drop["line"] - 1 for drop in found] == leaked()
    said = "2 of 6 records of preprocessing.decontaminate.against have no text of 8 words, and are not looked for"
    assert any(said in warning for warning in bp.open(result.output).run["warnings"])
    first = "".join(each if each.isalnum() else " " for each in CHATS[3]["messages"][-1]["content"].casefold()).split()
    assert found[0]["note"] == f"shares {' '.join(first[:8])!r} with {against}, line 1"
    assert cli.main(["inspect", str(result.output), "--reason", "contaminated"]) == 0
    assert found[0]["note"] in " ".join(capsys.readouterr().out.split())
    assert cli.main(["verify", str(result.output)]) == 0

    rest = tmp_path / "rest.jsonl"
    rest.write_text("".join(json.dumps(chat) + "\n" for n, chat in enumerate(CHATS) if n not in leaked()), "utf-8")
    given = config(against)
    del given["preprocessing"]["decontaminate"]
    alone = Pipeline(PipelineConfig.from_dict(given), rest, tmp_path / "alone", tokenizer_path)
    assert content(result.output) == content(alone.run(["--runner=FnApiRunner"]).output)


def content(output: str) -> list[list[Any]]:
    return [[column.tolist() for column in row.values()] for row in bp.open(output)]


def test_marked_records_are_kept_counted_and_listed(tmp_path: Path, tokenizer_path: str, capsys: Any) -> None:
    against = evaluation(tmp_path / "eval.jsonl")
    made = functools.partial(job, tmp_path, tokenizer_path)
    result = made("out", config(against, mode="mark")).run(["--runner=FnApiRunner"])
    assert result.manifest is not None
    assert result.manifest["counters"]["contaminated"] == len(leaked())
    assert result.manifest["ledger"]["kept"] == len(CHATS)
    found = bp.open(result.output).marked()
    assert [mark["line"] - 1 for mark in found] == leaked()
    assert str(against) in found[0]["note"]
    assert bp.open(result.output).drops() == []
    assert cli.main(["inspect", str(result.output), "--reason", "contaminated"]) == 0
    assert "marked: contaminated" in capsys.readouterr().out
    assert cli.main(["verify", str(result.output)]) == 0
    given = config(against)
    del given["preprocessing"]["decontaminate"]
    assert content(result.output) == content(made("plain", given).run(["--runner=FnApiRunner"]).output)


def test_texts_are_not_kept_where_none_are_wanted(tmp_path: Path, tokenizer_path: str) -> None:
    given = config(evaluation(tmp_path / "eval.jsonl"), mode="mark")
    given["preprocessing"]["max_items"] = 41
    result = job(tmp_path, tokenizer_path, "out", given, max_reject_chars=0).run(["--runner=FnApiRunner"])
    listed = bp.open(result.output).marked()
    assert [(each["line"] - 1, each["text"], "note" in each) for each in listed] == [(3, "", False), (40, "", False)]


def test_a_changed_evaluation_makes_another_output_and_new_blocks(tmp_path: Path, tokenizer_path: str) -> None:
    against = evaluation(tmp_path / "eval.jsonl")
    cache_dir = str(tmp_path / "token_cache")
    made = functools.partial(job, tmp_path, tokenizer_path, "out", config(against), cache_dir=cache_dir, overwrite=True)
    first = made().run(["--runner=FnApiRunner"])
    assert made().run(["--runner=FnApiRunner"]).up_to_date
    evaluation(against, LEAKED[:1])
    second = made().run(["--runner=FnApiRunner"])
    assert not second.up_to_date
    assert first.manifest is not None
    assert second.manifest is not None
    assert second.manifest["ledger"]["dropped"]["contaminated"] < first.manifest["ledger"]["dropped"]["contaminated"]
    assert bp.open(second.output).run["blocks_reused"] == 0
    assert second.manifest["references"]["files"] != first.manifest["references"]["files"]


def test_a_replay_is_what_a_run_from_scratch_makes(tmp_path: Path, tokenizer_path: str) -> None:
    against = evaluation(tmp_path / "eval.jsonl")
    given = config(against, mode="mark")
    given |= {"mask": {"system": "train"}}  # most chats have none
    narrow, wide = (
        {**given, "preprocessing": {**given["preprocessing"], "rows_without_loss": rows_without_loss}}
        for rows_without_loss in ("reject", "keep")
    )
    cache_dir = str(tmp_path / "token_cache")
    options: dict[str, Any] = {"max_reject_rate": 1.0, "cache_dir": cache_dir}
    job(tmp_path, tokenizer_path, "out", narrow, **options).run(["--runner=FnApiRunner"])
    evaluation(against, (0, 7))
    replay = Replay(
        tmp_path / "out",
        PipelineConfig.from_dict(wide),
        output_dir=tmp_path / "again",
        cache_dir=cache_dir,
        max_reject_rate=1.0,
    )
    replay.run(["--runner=FnApiRunner"])
    job(tmp_path, tokenizer_path, "scratch", wide, max_reject_rate=1.0).run(["--runner=FnApiRunner"])
    again, scratch = bp.open(tmp_path / "again"), bp.open(tmp_path / "scratch")
    assert tree(tmp_path / "again") == tree(tmp_path / "scratch")
    assert (again.drops(), again.marked()) == (scratch.drops(), scratch.marked())


def test_an_input_that_is_the_evaluation_is_said(run: Callable[..., Any], tmp_path: Path) -> None:
    rows = [{"text": f"These are the nine words of record number {number}."} for number in range(3)]
    against = tmp_path / "input.jsonl"
    given = {
        "input": {"sections": [{"field": "text", "action": "train"}]},
        "preprocessing": {"min_chars": 0, "decontaminate": {"against": [str(against)], "ngram": 9}},
    }
    against.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(RunError, match=r"nothing is kept of 3 records \(3 contaminated\): .*against names what the in"):
        run(given, rows)


def test_fields_that_no_section_reads_can_be_compared(run: Callable[..., Any], tmp_path: Path) -> None:
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
    lines: bytes | None, rule: dict[str, Any], message: str, tmp_path: Path, tokenizer_path: str
) -> None:
    against = tmp_path / "eval.jsonl"
    if lines is not None:
        against.write_bytes(lines)
    with pytest.raises(InputError, match=message):
        job(tmp_path, tokenizer_path, "out", config(against, **rule))
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
    texts = [
        message["content"] for chat in CHATS for message in chat["messages"] if isinstance(message["content"], str)
    ]
    source = ship(found, str(tmp_path / "staging"))
    assert source.load().find(texts) == found.index.find(texts) != {}
    damaged = Path(source.path).with_name("0" * 32)
    content = bytearray(Path(source.path).read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    with pytest.raises(StorageError, match="cannot be read on this worker"):
        IndexFile(str(damaged)).load()
