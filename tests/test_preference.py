"""Preference rows and rollouts that cannot teach anything are rejected, with the reason."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import beam_prep as bp
from beam_prep.cli import main
from beam_prep.errors import ConfigError, RunError
from beam_prep.tokens.batch import Batch
from beam_prep.tokens.rows import RowsWithoutLoss, split_prompt
from tests.conftest import ROOT, config_of, prepared, run_job, says, text_config

DPO = config_of("dpo_conversation")


def pair(chosen: str, rejected: str, question: str = "What is two and two?") -> dict[str, Any]:
    return {"chosen": says(user=question, assistant=chosen), "rejected": says(user=question, assistant=rejected)}


def rejects(batch: Batch) -> dict[int, str]:
    """Line of each reject, from 1 on, to its reason."""
    return {line + 1: reason for line, reason in bp.testing.rejects(batch)}


def test_the_last_message_is_the_assistants() -> None:
    config = config_of("sft_last_turn_shifted")
    good = {"messages": pair("Four.", "")["chosen"]}
    bad = {"messages": good["messages"] + says(user="Sure?")}
    assert rejects(prepared(config, [good, bad])) == {2: "last_not_assistant"}


def test_a_side_that_is_null_is_named() -> None:
    sides = pair("Four.", "Five.")
    prompt = {"field": "prompt", "action": "mask", "template": "conversation"}
    sources = {side: {"sections": [prompt, {**prompt, "field": side, "action": "train"}]} for side in sides}
    config = {"input": {"sources": sources}}
    batch = prepared(config, [{"prompt": sides["chosen"][:1], "chosen": sides["chosen"][1:], "rejected": None}])
    assert rejects(batch) == {1: "no_answer"}
    assert "'rejected'" in batch.ledger.messages[0]


def test_sides_that_only_the_cut_makes_equal_say_so() -> None:
    long = "word " * 200
    config = config_of("dpo_conversation", preprocessing={"max_seq_len": 64})
    rows = [pair("Four.", "Five."), pair(long + "yes", long + "no", "Say it."), pair(long, long, "Say it.")]
    rows.append(pair("Yes " + long, "No " + long))
    batch = prepared(config, rows)
    assert rejects(batch) == {2: "equal_sides", 3: "equal_sides"}
    assert "all that differs is cut off" in batch.ledger.messages[1]
    assert "cut off" not in batch.ledger.messages[2]


def test_a_prompt_before_sampled_texts_gets_no_end_token() -> None:
    sources = config_of("grpo")["input"]["sources"]
    sources["prompts"]["sections"][0]["template"] = False
    record = {"prompt": "Two and two?", "responses": ["Four.", "Five."], "rewards": [1, 0]}
    ends = [{"input": {"sources": sources}, "preprocessing": {"eos": eos}} for eos in ("never", "always")]
    without, always = (prepared(config, [record])["prompts"].to_lists() for config in ends)
    assert without == always


# `output.columns: "prompt_completion"`: a prompt and two completions, exactly as `chosen` and `rejected` hold them


COLUMNS = ("chosen_ids", "rejected_ids", "prompt_ids")


PAIRS = ROOT / "examples/data/preference.jsonl"


def make(folder: Path, **changes: Any) -> bp.Dataset:
    return bp.open(run_job(config_of("dpo_conversation", **changes), PAIRS, folder).output)


def test_prompt_and_completions_are_the_two_sides(tmp_path: Path) -> None:
    sides = make(tmp_path / "sides")
    split = make(tmp_path / "split", output={"preset": "trl_dpo"})
    assert split.columns == COLUMNS
    assert len(split) == len(sides) > 10
    for one, other in zip(split, sides, strict=True):
        for side in ("chosen", "rejected"):
            assert [*one["prompt_ids"], *one[f"{side}_ids"]] == other[side].tolist()
            assert other[f"{side}_mask"].tolist() == [0] * len(one["prompt_ids"]) + [1] * len(one[f"{side}_ids"])
    assert main(["verify", str(split.path), "--inputs"]) == 0


def test_sides_by_role_whose_line_end_is_not_trained_fail_with_the_action_to_write(tmp_path: Path) -> None:
    sources = json.loads(json.dumps(DPO["input"]["sources"]).replace('"train"', '"$role"'))
    changes = {"input": {"sources": sources}, "mask": {"assistant": "train"}, "output": {"preset": "trl_dpo"}}
    with pytest.raises(RunError, match='not trained; "action": "train" for both sides'):
        make(tmp_path / "roles", **changes)


@st.composite
def pairs(draw: st.DrawFn) -> list[tuple[list[int], list[int], list[int]]]:
    ids = st.lists(st.integers(1, 9), max_size=5)
    return draw(st.lists(st.tuples(ids, ids, ids), min_size=1, max_size=6))


def batch_of(rows: list[tuple[list[int], list[int], list[int]]]) -> Batch:
    sides = ("chosen", "rejected")
    outputs = tuple(bp.Output(side, "ids", (bp.Section(side, "train"),), f"{side}_mask") for side in sides)
    records = bp.testing.records([{} for _ in rows])
    columns, schema = {}, {}
    for place, side in enumerate(sides):
        columns[side] = bp.Ragged.from_lists([row[0] + row[place + 1] for row in rows])
        masks = [[0] * len(row[0]) + [1] * len(row[place + 1]) for row in rows]
        columns[f"{side}_mask"] = bp.Ragged.from_lists(masks, np.uint8)
        schema[side] = bp.Column(side, "int32", 1, "ids")
        schema[f"{side}_mask"] = bp.Column(f"{side}_mask", "int32", 1, "mask", side)
    line = np.arange(len(rows), dtype=np.int32)
    domain = ["__default__"] * len(rows)
    return Batch(records.origin, records.ledger, line, None, outputs, domain, columns, schema)


@given(pairs())
def test_what_goes_in_comes_out(rows: list[tuple[list[int], list[int], list[int]]]) -> None:
    kept = [row for row in rows if row[1] and row[2] and row[1] != row[2]]
    split = split_prompt(batch_of(rows))
    found = zip(*(split[name].to_lists() for name in ("prompt_ids", "chosen_ids", "rejected_ids")), strict=True)
    assert list(found) == kept


def test_rows_without_a_completion_are_dropped_where_rows_without_loss_are_kept() -> None:
    outcomes: dict[RowsWithoutLoss, str] = {"drop": "dropped", "keep": "dropped", "reject": "rejected"}
    for rule, outcome in outcomes.items():
        split = split_prompt(batch_of([([1], [], [2])]), rule)
        assert split.ledger.outcomes == [(outcome, "rows_without_loss")]


def test_a_mask_with_holes_and_sides_of_two_prompts_are_refused() -> None:
    batch = batch_of([([1, 2], [3, 4, 5], [6, 7]), ([1, 2], [3, 4], [5, 6])])
    batch.columns["chosen_mask"] = bp.Ragged.from_lists([[0, 0, 1, 0, 1], [0, 0, 1, 1]], np.uint8)
    batch.columns["rejected"] = bp.Ragged.from_lists([[1, 2, 6, 7], [1, 9, 5, 6]])
    split = bp.SplitPrompt().step()(batch)
    assert len(split) == 0
    assert [reason for _, reason in split.ledger.outcomes] == ["not_prompt_first", "prompt_differs"]


def test_sides_whose_prompts_differ_since_they_are_cut_say_so() -> None:
    batch = bp.Truncate(4, "keep_end").step()(batch_of([([1, 2], [3, 4], [5, 6, 7])]))
    (message,) = bp.SplitPrompt().step()(batch).ledger.messages.values()
    assert "same prompt once they are cut: wanted a larger max_seq_len, or truncation_mode 'keep" in message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (text_config(), "output.columns: found 'prompt_completion'"),
        ({"output": {"preset": "trl_sft"}}, "output.preset: found 'trl_sft', which is for input.sections"),
        ({"output": {"preset": "trl_dpo", "columns": "loss_mask"}}, "output.columns: found 'loss_mask', wanted"),
    ],
)
def test_other_configs_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        bp.PipelineConfig.from_dict({**DPO, "output": {"columns": "prompt_completion"}, **change})
    assert message in str(caught.value)
