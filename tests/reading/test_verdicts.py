"""Fields that judge answers: what they mean, which records they mark as bad, and what is said of it before training."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import beam_prep as bp
from beam_prep.reading.verdicts import verdicts, warning_of
from tests.conftest import ROOT

PAIR: dict[str, Any] = {
    "input": {
        "sections": [{"field": "prompt", "action": "mask"}, {"field": "completion", "action": "train"}],
    },
    "preprocessing": {"encode": "joint", "eos": "if_missing"},
    "output": {"columns": "labels"},
}
DOCUMENT: dict[str, Any] = {"input": {"sections": [{"field": "text", "action": "train"}]}}
CHAT: dict[str, Any] = json.loads((ROOT / "configs" / "sft_conversation.json").read_text())
DPO: dict[str, Any] = json.loads((ROOT / "configs" / "dpo.json").read_text())
GRPO: dict[str, Any] = json.loads((ROOT / "configs" / "grpo.json").read_text())
IDS: dict[str, Any] = {"input": {"adapter": "tokenized"}}


def answered(name: str, *values: Any) -> list[dict[str, Any]]:
    return [{"prompt": "1 + 1 =", "completion": f" {place}", name: value} for place, value in enumerate(values)]


def judged(config: dict[str, Any], records: list[dict[str, Any]]) -> list[tuple[str, tuple[int, ...]]]:
    found = verdicts(records, bp.PipelineConfig.from_dict(config).field_use)
    return [(str(each), each.bad) for each in found]


ALIKE = "the config does not read it, and trains all alike"

CASES: dict[str, tuple[list[dict[str, Any]], str, tuple[int, ...]]] = {
    "label": (answered("label", True, False), "'label' marks answers as good or bad (true 1, false 1)", (1,)),
    "desirable": (answered("desirable", 1, 0, 0), "'desirable' marks answers as good or bad (0 2, 1 1)", (1, 2)),
    "is_correct": (answered("is_correct", "yes", "No"), "'is_correct' marks answers as good or bad", (1,)),
    "thumbs": (answered("feedback", "thumbs_up", "thumbs_down"), "'feedback' marks answers as good or bad", (1,)),
    "steps": (answered("labels", [True, True], [True, False]), "'labels' marks answers as good or bad", (1,)),
    "is_toxic": (answered("is_toxic", False, True), "'is_toxic' marks answers as good or bad", (1,)),
    "rejected, a boolean": (answered("rejected", True, False), "'rejected' marks answers as good or bad", (0,)),
    "rejected, a text": (answered("rejected", " 3", " 4"), "'rejected' holds answers that were rejected (in 2", ()),
    "rating": (answered("rating", 5, 4, 1), "'rating' rates answers (1 to 5, in 3 records)", (2,)),
    "score": (answered("score", 0.9, 0.5, 0.0), "'score' rates answers (0 to 0.9, in 3 records)", (2,)),
    "reward": (answered("reward", 1.5, -2.0), "'reward' rates answers (-2 to 1.5, in 2 records)", (1,)),
    "good scores": (answered("score", 7, 8, 9), "'score' rates answers (7 to 9, in 3 records)", ()),
    "weight": (answered("weight", 1.0, 0, None), "'weight' is 0 in 1 of 2 records: do not train these", (1,)),
    "split": (answered("split", "train", "test"), "'split' names parts of a data set, also those for evaluation", (1,)),
}


@pytest.mark.parametrize("case", CASES)
def test_a_field_that_judges_answers_is_said_in_one_line(case: str) -> None:
    records, begins, bad = CASES[case]
    ((says, found),) = judged(PAIR, records)
    assert says.startswith(begins)
    assert "; the config does not read it" in says
    assert "\n" not in says
    assert found == bad


@pytest.mark.parametrize(
    "records",
    [
        answered("label", 3, 7),  # of classes
        answered("label", "sports", "news"),
        answered("score", "3-1", "0-0"),
        answered("weight", 1, 2.5),
        answered("split", "train", "train"),
        answered("labels", [1, 2]),
        answered("label", None, None),
        answered("other", False, False),
        [],
    ],
)
def test_what_judges_nothing_is_not_said(records: list[dict[str, Any]]) -> None:
    assert judged(PAIR, records) == []


def test_log_probabilities_are_no_ratings() -> None:
    assert [bad for _, bad in judged(PAIR, answered("score", -12.5, -3.0))] == [()]


def test_a_label_that_is_the_answer_is_no_verdict() -> None:
    sections = [{"field": "prompt", "action": "mask"}, {"field": "label", "action": "train"}]
    records = [{"prompt": "Is it so?", "label": "yes"}, {"prompt": "Is it?", "label": "no"}]
    assert judged({**PAIR, "input": {"sections": sections}}, records) == []


def test_documents_and_pairs_have_no_bad_answers() -> None:
    assert judged(DOCUMENT, [{"text": "x", "score": 0}, {"text": "y", "score": 5}]) == []
    pairs = [{"prompt": "a", "chosen": "b", "rejected": "c", "score": 0, "label": False, "split": "test"}]
    assert [says[:7] for says, _ in judged(DPO, pairs)] == ["'split'"]


def test_rewards_that_are_written_are_no_bad_answers() -> None:
    records = [{"prompt": [], "responses": ["a", "b"], "rewards": [0, 1], "reward": 0}]
    assert [bad for _, bad in judged(GRPO, records)] == [()]


def test_a_rejected_answer_that_is_trained_is_bad() -> None:
    sections = [{"field": "prompt", "action": "mask"}, {"field": "rejected", "action": "train"}]
    ((says, bad),) = judged({**PAIR, "input": {"sections": sections}}, answered("rejected", " 3", " 4"))
    assert says == "'rejected' holds answers that were rejected (in 2 records); the config trains it"
    assert bad == (0, 1)


@pytest.mark.parametrize(
    ("name", "values", "output", "says"),
    [
        ("label", (True, False), {"keep_fields": {"label": "bool"}}, "keeps it beside the tokens"),
        ("split", ("train", "test"), {"domain_key": "split"}, "gives each value a folder (output.domain_key)"),
        ("weight", (1, 0), {"loss_weights": True}, "weighs the loss by it (output.loss_weights)"),
    ],
)
def test_a_field_that_the_config_uses_marks_nothing_as_bad(
    name: str, values: Any, output: dict[str, Any], says: str
) -> None:
    config = {**PAIR, "output": {**PAIR["output"], **output}}
    ((found, bad),) = judged(config, answered(name, *values))
    assert found.endswith(f"; the config {says}")
    assert bad == ()


def test_ids_with_a_label_are_answers() -> None:
    records = [{"input_ids": [1, 2], "labels": [-100, 2], "label": False}]
    assert [bad for _, bad in judged(IDS, records)] == [(0,)]


def test_the_warning_is_one_line_with_the_mend() -> None:
    records = answered("label", True, False, False)
    text = warning_of(verdicts(records, bp.PipelineConfig.from_dict(PAIR).field_use), 3)
    assert text == (
        "answers marked as bad are trained like the others: of the first 3 records, 'label' (false) in 2: leave these "
        'records out before the run; or "output": {"keep_fields": {"label": "bool"}} for a trainer that reads the '
        "field (as KTO)"
    )


def test_a_run_says_it_before_it_starts(run: Callable[..., Any], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "beam_prep"):
        done = run(PAIR, answered("label", True, False))
    told = [record.getMessage() for record in caplog.records]
    (place,) = [place for place, text in enumerate(told) if "answers marked as bad are trained" in text]
    assert place < next(place for place, text in enumerate(told) if text.startswith("records encoded"))
    assert "input.jsonl: answers marked as bad" in told[place]
    (warning,) = json.loads((Path(done.output) / "run.json").read_text())["warnings"]
    assert told[place] == f"warning: {warning}"


def test_a_run_with_good_answers_says_nothing(run: Callable[..., Any]) -> None:
    done = run(PAIR, answered("label", True, True))
    assert json.loads((Path(done.output) / "run.json").read_text())["warnings"] == []
