"""What is compared with the reference, what is kept of it with a block, and who may use the block again."""

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from beam_prep import testing
from beam_prep.chat.replay import Replay
from beam_prep.data.ragged import Ragged
from beam_prep.data.schema import Column
from beam_prep.errors import OutputError, RunError
from beam_prep.tokens import backends as backend
from beam_prep.tokens.backends import FastEncoder
from beam_prep.tokens.batch import Batch, first_difference
from tests.conftest import ROOT, Patch, Run, records_of, run_of, says, text_config, tree
from tests.test_backends import CONFIG

pytestmark = pytest.mark.long

CHAT = records_of(ROOT / "examples" / "data" / "chat.jsonl") * 3
TEXT = text_config(preprocessing={"min_chars": 0})
TEXTS = [{"text": f"Text number {number}, as good as any other."} for number in range(200)]


@pytest.fixture
def run(run: Run) -> Run:
    """A run by gigatoken, unless another backend is asked for."""
    return functools.partial(run, tokenizer_backend="gigatoken")


def ways(made: Any) -> dict[str, Any]:
    """How its records were made, and what was compared."""
    names = ("conversations_", "encoded_", "compared_", "encoders", "blocks_checked")
    return {name: value for name, value in run_of(made.output).items() if name.startswith(names)}


@pytest.fixture
def cache_dir(tmp_path: Path) -> str:
    return str(tmp_path / "token_cache")


# Kept with a block, and summed


def test_a_run_says_who_made_its_blocks_those_that_it_found_too(run: Run, cache_dir: str) -> None:
    first = run(CONFIG, CHAT, cache_dir=cache_dir)
    found, records = ways(first), first.manifest["ledger"]["kept"]
    assert found["encoders"] == {f"gigatoken {backend.GIGATOKEN_VERSION}": records}
    assert found["encoded_by_gigatoken"] == records
    assert 0 < found["compared_with_transformers"] <= 16
    assert 0 < found["conversations_compared"] <= 16
    other = run(CONFIG, CHAT, "other", cache_dir=cache_dir)
    assert run_of(other.output)["blocks_reused"] == run_of(other.output)["blocks"]
    assert ways(other) == found
    assert tree(other.output) == tree(first.output)


# Who may use a block again


@pytest.mark.parametrize(("second", "again"), [("transformers", True), ("gigatoken", False)])
def test_the_reference_uses_no_block_of_others(run: Run, cache_dir: str, second: str, again: bool) -> None:
    first = "gigatoken" if again else "transformers"
    made = run(CONFIG, CHAT, cache_dir=cache_dir, tokenizer_backend=first)
    other = run(CONFIG, CHAT, "other", cache_dir=cache_dir, tokenizer_backend=second)
    found = run_of(other.output)
    assert (found["blocks_reused"], found.get("blocks_replaced", 0)) == ((0, 1) if again else (1, 0))
    assert tree(other.output) == tree(made.output)


def test_a_block_that_was_checked_in_full_is_good_enough_for_all(run: Run, cache_dir: str) -> None:
    made = run(CONFIG, CHAT, cache_dir=cache_dir)
    full = run(CONFIG, CHAT, "full", cache_dir=cache_dir, check="full")
    assert (run_of(full.output)["blocks_reused"], run_of(full.output)["blocks_replaced"]) == (0, 1)
    strict = run(CONFIG, CHAT, "strict", cache_dir=cache_dir, tokenizer_backend="transformers")
    assert run_of(strict.output)["blocks_reused"] == 1
    assert ways(strict) == ways(full)
    assert tree(strict.output) == tree(made.output)


# --check full


def test_a_full_check_changes_nothing_and_is_counted(run: Run) -> None:
    lines = [json.dumps(each) for each in CHAT]
    lines[3], lines[7], lines[9] = "no JSON", "", '{"messages": [{"role": "user", "content": "a", "content": "b"}]}'
    data = "\n".join(lines).encode()
    sampled = run(CONFIG, data, max_reject_rate=1)
    full = run(CONFIG, data, "full", max_reject_rate=1, check="full")
    assert tree(full.output) == tree(sampled.output)
    found, records = run_of(full.output), full.manifest["ledger"]["kept"]
    assert (found["check"], found["blocks_checked_in_full"]) == ("full", found["blocks"])
    assert (found["conversations_compared"], found["compared_with_transformers"]) == (records, records)
    assert run(CONFIG, data, "full", check="full", max_reject_rate=1).up_to_date


def seen_by_a_full_check_alone(run: Run, job: dict[str, Any], rows: list[dict[str, Any]], text: str, how: str) -> None:
    """The row that has the text is named by its place."""
    wrong = run(job, rows)
    assert "blocks_encoded_again" not in run_of(wrong.output)
    assert "blocks_rendered_plainly" not in run_of(wrong.output)
    lines = [json.dumps(row) for row in rows]
    offset = "\n".join(lines).index(next(line for line in lines if text in line))
    with pytest.raises(RunError, match=rf"--check full: .+input.jsonl \(byte offset {offset}\) is not .+: {how}"):
        run(job, rows, "full", check="full")


def test_one_text_that_gigatoken_encodes_in_another_way(run: Run, monkeypatch: Patch) -> None:
    """The sample misses it: this is what `--check full` is for."""
    whole = FastEncoder.encode

    def other(self: FastEncoder, texts: Sequence[str], special: bool) -> Ragged:
        ids = whole(self, texts, special)
        flat = ids.flat.copy()
        for place in (place for place, text in enumerate(texts) if "number 124," in text):
            flat[ids.offsets[place] + 2] += 1
        return ids.with_flat(flat)

    monkeypatch.setattr(backend.FastEncoder, "encode", other)
    says = r"column 'sequence': found '.+', wanted '.+'"
    seen_by_a_full_check_alone(run, TEXT, TEXTS, "number 124,", says)


CHATS = [{"messages": says(user=f"Say {n}!", assistant=f"So: {n}")} for n in range(200)]


def test_one_chat_that_is_rendered_in_another_way(run: Run, monkeypatch: Patch) -> None:
    whole = Replay.find

    def other(self: Replay, messages: Any, *given: Any) -> Any:
        found = whole(self, messages, *given)
        return found and found._replace(text=found.text.replace("Say 123!", "Say 321!"))

    monkeypatch.setattr(Replay, "find", other)
    seen_by_a_full_check_alone(run, CONFIG, CHATS, "Say 123!", "the rendering differs")


def test_an_output_that_was_not_checked_is_not_taken_for_one_that_was(run: Run) -> None:
    assert not run(CONFIG, CHAT).up_to_date
    assert run(CONFIG, CHAT).up_to_date
    with pytest.raises(OutputError, match="was made without --check full: pass --overwrite"):
        run(CONFIG, CHAT, check="full")
    full = run(CONFIG, CHAT, check="full", overwrite=True)
    assert not full.up_to_date
    assert run_of(full.output)["blocks_checked_in_full"] == 1
    assert run(CONFIG, CHAT).up_to_date


@pytest.mark.parametrize("text", [None, "", "{", "[]"])
def test_an_output_whose_run_json_is_gone_or_damaged_was_not_checked(text: str | None, run: Run) -> None:
    path = Path(run(CONFIG, CHAT, check="full").output, "run.json")
    path.unlink() if text is None else path.write_text(text)
    assert run(CONFIG, CHAT).up_to_date
    with pytest.raises(OutputError, match="was made without --check full: pass --overwrite"):
        run(CONFIG, CHAT, check="full")


# Two batches


def batch(values: list[list[int]], domain: Sequence[str] = ()) -> Batch:
    records = testing.records([{"n": number} for number in range(10)])
    made = Batch(records.origin, records.ledger, np.arange(len(values), dtype=np.int32) * 2)
    made.domain = list(domain) or ["a"] * len(values)
    made.columns["x"] = Ragged.from_lists(values, np.int32)
    made.schema["x"] = Column("x", "int32", 1, "ids")
    return made


def test_the_first_difference_of_two_batches() -> None:
    rows = [[1, 2], [3], [], [4, 5, 6]]
    whole, counted, rejected, wide = (batch(rows) for _ in range(4))
    counted.count("doubles", np.array([0, 1, 0, 0]))
    rejected.ledger.reject(5, "bad", "why")
    wide.columns["x"] = wide.columns["x"].with_flat(wide.columns["x"].flat.astype(np.int64))
    assert first_difference(whole, batch(rows)) is None
    for one, other, wanted in (
        (whole, batch(rows, "aaba"), (4, "domain: found 'a', wanted 'b'")),
        (whole, batch(rows[:3]), (6, "outcome: found 'rows: 1', wanted 'rows: 0'")),
        (counted, whole, (2, "counter 'doubles': found '1', wanted 'nothing'")),
        (whole, rejected, (5, "outcome: found 'rows: 0', wanted 'rejected (bad): why'")),
        (wide, whole, (0, "column 'x': found 'int64 [1, 2]', wanted 'int32 [1, 2]'")),
    ):
        assert first_difference(one, other) == wanted
    for row in range(4):
        found = first_difference(whole, batch([each + [7] * (place >= row) for place, each in enumerate(rows)]))
        assert found is not None
        assert found[0] == 2 * row
        assert found[1] == f"column 'x': found 'int32 {rows[row]}', wanted 'int32 {[*rows[row], 7]}'"
