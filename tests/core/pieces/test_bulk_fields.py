"""Rows of several fields that are given as columns: the same pieces and numbers as one by one."""

import json
from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from beam_prep.core.data.columns import Wanted
from beam_prep.core.pieces.apply import apply_template
from beam_prep.core.pieces.rendered import Rendered
from hypothesis import example, given

from beam_prep.core.data.schema import Output, Section, TextRules
from beam_prep.core.reading.records import MostLines
from tests.core.data.test_columns import SPACED, lines, read
from tests.core.pieces.test_bulk import VOICES, with_names

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("at_once")]


def conversation(*fields: str, last: Any = "train") -> tuple[Section, ...]:
    *before, end = fields
    prompts = [Section(field, "mask", "conversation") for field in before]
    return (*prompts, Section(end, last, "conversation"))


def wanted(**kinds: Any) -> Wanted:
    first, *others = (Wanted(kind, field) for field, kind in kinds.items())
    return first._replace(others=tuple(others))


THREE = Output(
    "sequence", "ids", (Section("a", "mask"), Section("b", "train", None, True), Section("c", "train")), "loss_mask"
)
PAIR = tuple(
    Output(side, "ids", (Section("prompt", "mask"), Section(side, "train")), f"{side}_mask")
    for side in ("chosen", "rejected")
)
CHAT = Output("sequence", "ids", conversation("prompt", "completion"), "loss_mask")
BY_ROLE = Output("sequence", "ids", conversation("prompt", "completion", last="$role"), "loss_mask")
SIDES = tuple(Output(side, "ids", conversation("prompt", side), f"{side}_mask") for side in ("chosen", "rejected"))
ROLLOUTS = (
    Output("prompts", "ids", (Section("prompt", "mask", "message"),)),
    Output("responses", "list", (Section("responses", "train"),), "masks"),
    Output("rewards", "value", (Section("rewards", "value"),)),
)

# Outputs, fields, a prompt is what both sides begin with.
SHAPES: dict[str, tuple[tuple[Output, ...], Wanted, bool]] = {
    "sections": ((THREE,), wanted(a="texts", b="texts", c="texts"), False),
    "a pair of texts": (PAIR, wanted(prompt="texts", chosen="texts", rejected="texts"), False),
    "prompt and completion": ((CHAT,), wanted(prompt="chats", completion="chats"), False),
    "by role": ((BY_ROLE,), wanted(prompt="chats", completion="chats"), False),
    "a pair": (SIDES, wanted(prompt="chats", chosen="chats", rejected="chats"), False),
    "a pair without a prompt": (SIDES, wanted(chosen="chats", rejected="chats"), True),
    "rollouts": (ROLLOUTS, wanted(prompt="chats", responses="lists", rewards="numbers"), False),
    "responses": (ROLLOUTS[1:], wanted(responses="lists", rewards="numbers"), False),
}

TEXT = st.sampled_from(["a", "b", "c c", *SPACED, "", "a</s>", "</s>"])
ROLES = [["user"], ["user", "assistant"], ["system", "user"], ["assistant"], []]
NUMBER = st.sampled_from([0, 0.0, -0.0, 1, 0.5, -2, 2**53, 2**53 + 1, 1e300, 5e-324, 3.0, 777])  # 777 is written as -0
ODD: st.SearchStrategy[Any] = st.sampled_from(
    [None, 3, "text", [], [None], [3], [{"role": "user"}], {"a": 1}, ["x", None], True, [[]]]
)


@st.composite
def records(draw: st.DrawFn, kinds: Wanted) -> list[dict[str, Any]]:
    """Records of which most are plain and alike."""

    def chat(most: int) -> list[Any]:
        roles = ROLES[draw(st.integers(0, most))]
        text = TEXT if draw(st.booleans()) else st.sampled_from(["a", "b"])
        return [{"role": role, "content": draw(text)} for role in roles]

    begin, most = chat(4), draw(st.integers(0, 4))
    odd = draw(st.sampled_from([False, False, True]))
    one = draw(st.booleans())  # numbers, no lists of them
    found = []
    for at in range(draw(st.integers(2, 8))):
        record: dict[str, Any] = {}
        count = draw(st.integers(1, 2))
        for each in kinds.each:
            match each.kind:
                case "texts":
                    record[each.field] = draw(TEXT)
                case "chats":
                    record[each.field] = [*(begin if each.field in ("chosen", "rejected") else []), *chat(most)]
                case "lists":
                    record[each.field] = [draw(TEXT) for _ in range(count)]
                case "numbers":
                    listed = [draw(NUMBER) for _ in range(count if draw(st.integers(0, 3)) else 2)]
                    record[each.field] = draw(NUMBER) if one else listed
        if odd and draw(st.integers(0, 3)) == 0:
            record[draw(st.sampled_from([*(each.field for each in kinds.each), "prompt"]))] = draw(ODD)
        if odd and draw(st.integers(0, 3)) == 0:
            del record[draw(st.sampled_from(sorted(record)))]
        found.append({**record, "d": "xy"[at % 2]})
    return found


def content(rendered: Rendered) -> dict[str, Any]:
    """All that a step after it sees."""
    found: dict[str, Any] = {
        name: (
            list(pieces.texts),
            with_names(pieces),
            pieces.prompts,
            [[pieces.roles[code] for code in roles] for roles in pieces.message_roles.to_lists()],
            *(
                getattr(pieces, each).tolist()
                for each in ("special", "prompt_end", "borders", "sequences", "rows", "bos")
            ),
        )
        for name, pieces in rendered.pieces.items()
    }
    numbers = {name: [list(map(repr, row)) for row in rows.to_lists()] for name, rows in rendered.values.items()}
    ledger = rendered.ledger
    return {**found, **numbers, "domain": rendered.domain, "line": rendered.line.tolist()} | {
        "status": ledger.status.tolist(),
        "messages": ledger.messages,
    }


def render(shape: str, data: bytes, rules: TextRules, as_columns: bool) -> Rendered:
    outputs, kinds, implicit = SHAPES[shape]
    voice = replace(VOICES["bos"], rules=replace(rules, implicit_prompt=implicit))
    return apply_template(read(data, kinds if as_columns else None), outputs, voice, "d")


@pytest.mark.parametrize("shape", SHAPES)
@given(st.data())
def test_the_same_pieces(shape: str, data: st.DataObject) -> None:
    rows = data.draw(records(SHAPES[shape][1]))
    rules = TextRules(
        eos=data.draw(st.sampled_from(["never", "if_missing", "always"])),
        bos=data.draw(st.sampled_from(["keep", "template", "tokenizer"])),
        control_tokens=data.draw(st.sampled_from(["keep", "escape", "reject"])),
    )
    for _ in range(2):  # the second time with plans
        written = lines(*rows).replace(b"777", b"-0")
        found, expected = (render(shape, written, rules, as_columns) for as_columns in (True, False))
        assert content(found) == content(expected)


USER, ANSWER = {"role": "user", "content": "a question"}, {"role": "assistant", "content": "an answer"}
GOOD: dict[str, dict[str, Any]] = {
    "sections": {"a": "a", "b": "", "c": "c"},
    "a pair of texts": {"prompt": "p", "chosen": "c", "rejected": "r"},
    "prompt and completion": {"prompt": [USER], "completion": [ANSWER]},
    "by role": {"prompt": [USER], "completion": [ANSWER]},
    "a pair": {"prompt": [USER], "chosen": [ANSWER], "rejected": [{**ANSWER, "content": "no"}]},
    "a pair without a prompt": {"chosen": [USER, ANSWER], "rejected": [USER, {**ANSWER, "content": "no"}]},
    "rollouts": {"prompt": [USER], "responses": ["one", "two"], "rewards": [0.5, 1]},
    "responses": {"responses": ["one", "two"], "rewards": [0.5, 1]},
}


NO = {**ANSWER, "content": "no"}
AMONG: list[tuple[str, dict[str, Any], str | None]] = [
    ("sections", {"a": "", "b": "", "c": ""}, "empty"),
    ("sections", {"a": " ", "b": "", "c": "\n"}, "empty"),
    ("sections", {"a": "x", "b": None, "c": "y"}, None),
    ("prompt and completion", {"prompt": [USER, ANSWER], "completion": []}, "no_answer"),
    ("prompt and completion", {"prompt": [], "completion": [USER, ANSWER]}, "no_prompt"),
    ("a pair without a prompt", {"chosen": [USER, ANSWER], "rejected": [USER, ANSWER]}, "equal_sides"),
    ("a pair without a prompt", {"chosen": [USER, ANSWER, USER], "rejected": [USER, ANSWER]}, None),
    ("a pair without a prompt", {"prompt": "text", "chosen": [USER, ANSWER], "rejected": [USER, NO]}, None),
    ("rollouts", {"prompt": [USER], "responses": ["one"], "rewards": [0.5, 1]}, "count_mismatch"),
    ("rollouts", {"prompt": [USER], "responses": ["one", "two"], "rewards": [0.5, 2**53 + 1]}, "bad_number"),
]


@pytest.mark.parametrize(("shape", "row", "reason"), AMONG)
def test_a_record_among_those_that_are_taken_at_once(shape: str, row: dict[str, Any], reason: str | None) -> None:
    data = lines(*[GOOD[shape]] * 20, row, *[GOOD[shape]] * 20)
    for _ in range(3):
        found, expected = (render(shape, data, TextRules(), as_columns) for as_columns in (True, False))
        assert content(found) == content(expected)
    assert [why for _, why in found.ledger.outcomes] == ([] if reason is None else [reason])


@pytest.mark.parametrize("shape", SHAPES)
def test_plain_records_of_a_known_pattern_are_taken_at_once(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = lines(*([GOOD[shape]] * 40))
    for _ in range(3):  # plans are recorded
        render(shape, data, TextRules(), True)
    monkeypatch.setattr("beam_prep.core.pieces.collector.TextCollector.add", None)
    assert len(render(shape, data, TextRules(), True)) == 40


@pytest.mark.parametrize("shape", SHAPES)
def test_an_odd_record_does_not_make_objects_of_the_others(shape: str) -> None:
    rows = [GOOD[shape]] * 400
    rows[77] = {**rows[0], "more": {"a": 1}}
    block = read(lines(*rows), SHAPES[shape][1])
    assert isinstance(block.rows, MostLines)
    assert block.in_columns >= 300
    found, expected = (render(shape, lines(*rows), TextRules(), as_columns) for as_columns in (True, False))
    assert content(found) == content(expected)


@given(st.lists(st.lists(st.sampled_from([*SPACED, "\U0001f600\u00e9a"]), max_size=4), min_size=1, max_size=5))
@example([[]])
def test_lists_of_texts_are_read_as_they_are(rows: list[list[str]]) -> None:
    data = lines(*({"responses": row} for row in rows))
    block = read(data, Wanted("lists", "responses"))
    if block.columns is not None:
        mine = [list(block.columns.take(np.array([at])).text) for at in range(len(rows))]
        assert json.dumps(mine) == json.dumps(rows)
    else:
        assert not any(rows)


def test_the_domain_is_what_the_record_says_before_its_prompt_is_found() -> None:
    """A prompt that is text beside sides that are messages is not read, but may name the domain."""
    rows = [{**GOOD["a pair without a prompt"], "prompt": f"topic {at % 2}"} for at in range(20)]
    kinds = wanted(chosen="chats", rejected="chats", prompt="texts")
    voice = replace(VOICES["bos"], rules=TextRules(implicit_prompt=True))
    for _ in range(3):
        for each in (kinds, None):
            found = apply_template(read(lines(*rows), each), SIDES, voice, "prompt")
            assert found.domain == [f"topic {at % 2}" for at in range(20)]


EXTRA = (*SIDES, Output("extra", "ids", (Section("extra", "train"),)))


@pytest.mark.parametrize("field", ["extra", "prompt", "chosen"])
def test_beside_a_pair_another_output_reads_what_the_pair_leaves(field: str) -> None:
    template = None if field == "extra" else "conversation"
    outputs = (*SIDES, replace(EXTRA[2], sections=(Section(field, "train", template),)))  # type: ignore[arg-type]
    data = lines(*[{**GOOD["a pair without a prompt"], "extra": "more"}] * 20)
    kinds = wanted(chosen="chats", rejected="chats", extra="texts")
    voice = replace(VOICES["bos"], rules=TextRules(implicit_prompt=True))
    for _ in range(3):
        found, expected = (apply_template(read(data, each), outputs, voice) for each in (kinds, None))
        assert content(found) == content(expected)
    assert len(found) == 20


def test_messages_whose_keys_are_in_another_order_are_not_taken_for_others() -> None:
    """Two fields, each in its own order, and a row in which both are the other way round."""
    turned = {key: [dict(reversed(m.items())) for m in GOOD["by role"][key]] for key in ("prompt", "completion")}
    one = {**GOOD["by role"], "completion": turned["completion"]}
    data = lines(*[one] * 99, {**GOOD["by role"], "prompt": turned["prompt"]})
    outputs, kinds, _ = SHAPES["by role"]
    block = read(data, kinds)
    assert block.columns is None
    assert not isinstance(block.rows, MostLines)
    for _ in range(3):
        found, expected = (apply_template(read(data, each), outputs, VOICES["keys"]) for each in (kinds, None))
        assert content(found) == content(expected)
