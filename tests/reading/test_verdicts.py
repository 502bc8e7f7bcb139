"""Fields that judge answers: what they mean, which records they mark as bad, and what is said of it before training."""

import json
from pathlib import Path
from typing import Any

import pytest

import beam_prep as bp
from beam_prep import first_records
from beam_prep.first_records import FirstRecords
from beam_prep.reading.verdicts import verdicts, warning_of
from beam_prep.storage.files import list_inputs
from tests.conftest import ROOT, Patch, Run

PAIR: dict[str, Any] = {
    "input": {"sections": [{"field": "prompt", "action": "mask"}, {"field": "completion", "action": "train"}]},
    "preprocessing": {"encode": "joint", "eos": "if_missing"},
    "output": {"columns": "labels"},
}
DOCUMENT: dict[str, Any] = {"input": {"sections": [{"field": "text", "action": "train"}]}}
CHAT: dict[str, Any] = json.loads((ROOT / "configs" / "sft_conversation.json").read_text())
DPO: dict[str, Any] = json.loads((ROOT / "configs" / "dpo.json").read_text())


def answered(name: str, *values: Any) -> list[dict[str, Any]]:
    return [{"prompt": "1 + 1 =", "completion": f" {place}", name: value} for place, value in enumerate(values)]


def judged(config: dict[str, Any], records: list[dict[str, Any]]) -> list[tuple[str, tuple[int, ...]]]:
    found = verdicts(records, bp.PipelineConfig.from_dict(config).field_use)
    return [(str(each), each.bad) for each in found]


CASES: dict[str, tuple[list[dict[str, Any]], str, tuple[int, ...]]] = {
    "label": (answered("label", True, False), "'label' marks answers as good or bad (true 1, false 1)", (1,)),
    "label, 0 is neutral": (answered("label", 1, -1, 0), "'label' marks answers as good or bad", (1,)),
    "feedback": (
        answered("human_feedback", "positive", "negative"),
        "'human_feedback' marks answers as good or bad",
        (1,),
    ),
    "steps": (answered("labels", [True, True], [True, False]), "'labels' marks answers as good or bad", (1,)),
    "score": (answered("score", 0.9, 0.5, 0.0), "'score' rates answers (0 to 0.9, in 3 records)", (2,)),
    "reward": (answered("reward", 1.5, -2.0), "'reward' rates answers (-2 to 1.5, in 2 records)", (1,)),
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
        answered("score", "3-1", "0-0"),
        answered("note", "The request was rejected by us", "rejected"),  # sentences
        answered("word", *"abcdefgh", "rejected"),  # a vocabulary
        [],
    ],
)
def test_what_judges_nothing_is_not_said(records: list[dict[str, Any]]) -> None:
    assert judged(PAIR, records) == []


def test_a_label_that_is_the_answer_is_no_verdict() -> None:
    sections = [{"field": "prompt", "action": "mask"}, {"field": "label", "action": "train"}]
    records = [{"prompt": "So?", "label": label, "split": split} for label, split in (("yes", "train"), ("no", "test"))]
    assert [says[:7] for says, _ in judged({**PAIR, "input": {"sections": sections}}, records)] == ["'split'"]


def test_documents_and_pairs_have_no_bad_answers() -> None:
    assert judged(DOCUMENT, [{"text": "x", "score": 0}, {"text": "y", "score": 5}]) == []
    pairs = [{"prompt": "a", "chosen": "b", "rejected": "c", "score": 0, "label": False, "split": "test"}]
    assert [says[:7] for says, _ in judged(DPO, pairs)] == ["'split'"]


@pytest.mark.parametrize(
    ("name", "values", "output", "says"),
    [
        ("label", (True, False), {"keep_fields": {"label": "bool"}}, "keeps it beside the tokens"),
        ("split", ("train", "test"), {"domain_key": "split"}, "gives each value a folder (output.domain_key)"),
        ("weight", (1, 0), {"loss_weights": True}, "weighs the loss by it (output.loss_weights)"),
    ],
)
def test_a_field_that_is_used_marks_nothing_as_bad(name: str, values: Any, output: dict[str, Any], says: str) -> None:
    config = {**PAIR, "output": {**PAIR["output"], **output}}
    ((found, bad),) = judged(config, answered(name, *values))
    assert found.endswith(f"; the config {says}")
    assert bad == ()


def test_the_mask_of_tokenised_records_is_no_label() -> None:
    records = [{"input_ids": [1], "loss_mask": mask} for mask in ([True], [False], [True, False])]
    assert not verdicts(records, bp.PipelineConfig.from_dict({"input": {"adapter": "tokenized"}}).field_use)


def test_the_warning_is_one_line_with_the_mend() -> None:
    records = answered("label", True, False, False)
    text = warning_of(verdicts(records, bp.PipelineConfig.from_dict(PAIR).field_use), 3)
    assert text == (
        "answers marked as bad are trained like the others: of 3 records looked at, 'label' (false) in 2: "
        'leave these records out before the run; or "output": {"keep_fields": {"label": "bool"}} for a trainer that '
        "reads the field (as KTO)"
    )


def test_a_number_that_some_records_lack_is_no_typed_column() -> None:
    """Such a column rejects them."""
    (found,) = verdicts(answered("rating", 1, None, 5), bp.PipelineConfig.from_dict(PAIR).field_use)
    assert found.mend == "leave these records out before the run"


FORMS: dict[str, Any] = {
    "scores": ({"toxicity": 0.02, "note": "x"}, {"toxicity": 0.7, "note": "y"}),
    "ratings": ({"average": 4.5, "count": 900}, {"average": 1.0, "count": 3}),
    "moderation": ({"flagged": False}, {"flagged": True}),
    "quality": ("excellent", "very poor"),
    "grade": ("A-", "F"),
    "judge": ({"verdict": "correct"}, {"verdict": "incorrect"}),
}


@pytest.mark.parametrize("name", FORMS)
def test_what_judges_answers_is_found_in_all_its_forms(name: str) -> None:
    (found,) = verdicts(answered(name, *FORMS[name]), bp.PipelineConfig.from_dict(PAIR).field_use)
    assert found.bad == (1,)
    assert found.name == name or found.name.startswith(f"{name}.")
    assert found.mend.startswith("leave these records out before the run")
    assert ("keep_fields" in found.mend) is (found.name == name)  # only a field of the record can be kept


@pytest.mark.parametrize(
    ("name", "values", "bad"),
    [
        ("rating", (1, 1, 1, 5), [(0, 1, 2)]),  # most are bad
        ("score", (250, 3, -4), [(2,)]),
        ("thumbs", ("up", "none", "down", None), [(2,)]),
        ("score", (float("nan"), 1.0, 0.0), [(2,)]),
        ("rejected", ("no", "yes"), [(1,)]),
        ("feedback", (1, -1, 0), [(1,)]),
        # counts, open scales and classes
        ("scores", ({"toxicity": 0.001, "overall": 4}, {"toxicity": 0.3, "overall": 5}), []),
        ("score", (2, 5, 3, 11, 1, 4, 250), []),
        ("label", (0, 1, 2), []),
        ("status", ("failed", "ok", "pending"), []),
        ("meta", ({"finish_reason": "failed"}, {"finish_reason": "passed"}), []),
        ("is_test", (False, True), []),
    ],
)
def test_the_bad_end_of_a_scale_is_bad_and_no_other(name: str, values: Any, bad: list[tuple[int, ...]]) -> None:
    found = [each for _, each in judged(PAIR, answered(name, *values))]
    assert found == bad or not (bad or any(found))


@pytest.mark.parametrize(
    ("label", "answers"), [((False, True), ("No.", "Yes.")), ((1, 0), ("The answer is 1", "The answer is 0"))]
)
@pytest.mark.parametrize("name", ["label", "score", "toxic", "verdict"])
def test_a_label_that_the_answers_say_is_the_class_of_a_task(name: str, label: Any, answers: Any) -> None:
    pairs = list(zip(label, answers, strict=True)) * 3
    records: list[dict[str, Any]] = [{"prompt": "q", "completion": of, name: is_} for is_, of in pairs]
    assert judged(PAIR, records) == []
    chats = [{"messages": [{"role": "assistant", "content": each["completion"]}], name: each[name]} for each in records]
    assert judged(CHAT, chats) == []
    others = [{**each, "completion": f"{at} apples"} for at, each in enumerate(records)]
    assert [len(bad) for _, bad in judged(PAIR, others)] == [3]


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("label", (False, True)),
        ("rating", (1, 5)),
        *((key, (False, True)) for key in ("loss", "compute_loss", "train_on_turn", "training", "trainable", "learn")),
        ("ignore", (True, False)),
    ],
)
def test_a_message_that_is_marked_as_bad_is_found(key: str, values: Any) -> None:
    asked = {"role": "user", "content": "q", "weight": 0, "loss": False}
    one, other = ([asked, {"role": "assistant", "content": "a", key: value}] for value in values)
    records = [{"messages": one + one}, {"messages": other}]
    (found,) = verdicts(records, bp.PipelineConfig.from_dict(CHAT).field_use)
    assert (found.name, found.bad) == (f"messages[].{key}", (0,))
    assert found.mend.endswith('or "weight": 0 in these messages, which are not trained then')


def test_bad_answers_are_found_in_each_file_and_at_the_end_of_a_file(tmp_path: Path, tokenizer_path: str) -> None:
    good = [json.dumps({"prompt": "1 + 1 =", "completion": " 2" * 20, "label": True})] * 2000
    bad = json.dumps({"prompt": "1 + 1 =", "completion": " 3", "label": False})
    for name, lines in {"a": good[:5], "b": [*good, bad], "c": good[:5]}.items():
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    config, tokenizer = bp.PipelineConfig.from_dict(PAIR), bp.Tokenizer.load(tokenizer_path)
    (told, *_) = FirstRecords(config, tokenizer, list_inputs(str(tmp_path / "*.jsonl"))).warnings()
    assert "a.jsonl and 2 more: answers" in told
    assert "records looked at, 'label' (false) in 1:" in told


def test_a_run_counts_bad_answers_that_its_start_did_not_see(run: Run, monkeypatch: Patch) -> None:
    monkeypatch.setattr(first_records, "LOOKED_AT", 4)
    labels = [True] * 200 + [False] * 3 + [True] * 200
    done = run(PAIR, answered("label", *labels))
    made = json.loads((Path(done.output) / "run.json").read_text())
    assert made["bad_answers"] == {"label": 3}
    (warning,) = made["warnings"]
    assert "of 3 records by 'label'" in warning
