"""A prompt stands once: what a record's prompt and sides become, as exact texts, masks and reasons."""

import copy
import functools
from typing import Any

import pytest

from beam_prep.data.block import Reject
from beam_prep.data.schema import Output, Section
from beam_prep.reading.prompts import sides_of, with_prompt
from tests.chat.trained import say
from tests.conftest import steps

Row = dict[str, Any]


user, assistant, system = (functools.partial(say, role) for role in ("user", "assistant", "system"))
ASK, OTHER, SYSTEM = user("Which bird wades?"), user("Which tree bends?"), system("Be brief.")
LONG = "Which bird wades in the shallow water?"
HERON, ROBIN = assistant("A heron."), assistant("A robin.")
CALL = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "look", "arguments": {}}}]}
RESULT = {"role": "tool", "content": "It stands in the water."}


def outputs(*names: str, template: Any = None, fields: tuple[str, ...] = ("prompt",)) -> tuple[Output, ...]:
    before = tuple(Section(field, "mask", template) for field in fields)
    return tuple(Output(name, "ids", (*before, Section(name, "train", template)), f"{name}_mask") for name in names)


def outcome(record: Row, template: Any = None, implicit: bool = False) -> Any:
    """(prompt, each side), or the reason of the reject and its message."""
    names = [name for name in ("chosen", "rejected", "completion") if name in record]
    (sides,) = sides_of(outputs(*names, template=template), implicit)
    before = copy.deepcopy(record)
    try:
        found = with_prompt(record, sides)
    except Reject as reject:
        return reject.reason, reject.message
    assert record == before
    return (found.get("prompt"), *(found[name] for name in names))


def pair(prompt: Any, chosen: Any, rejected: Any) -> Row:
    return {"prompt": prompt, "chosen": chosen, "rejected": rejected}


# Messages: (prompt, chosen, rejected) -> the same, with the prompt once.

ONCE = ([ASK], [HERON], [ROBIN])

PROMPTED = ([SYSTEM, ASK], [HERON], [ROBIN])
CONVERSATION = [ASK, HERON, OTHER]
CALLED = [ASK, CALL, RESULT]
FOUND, OTHERS = {**RESULT, "tool_call_id": "a"}, {**RESULT, "tool_call_id": "b"}
AGAIN = [HERON, OTHER, HERON], [HERON, OTHER, ROBIN]
NEXT = [OTHER, HERON], [OTHER, ROBIN]
Sides = tuple[Any, Any, Any]

CONVERSATIONS: dict[str, tuple[Sides, Sides]] = {
    "both sides begin with the prompt": (([ASK], [ASK, HERON], [ASK, ROBIN]), ONCE),
    "the prompt is a text with other white space": ((" Which bird wades?\n", [ASK, HERON], [ASK, ROBIN]), ONCE),
    "the prompt has no system message": (([ASK], [SYSTEM, ASK, HERON], [SYSTEM, ASK, ROBIN]), PROMPTED),
    "the sides have no system message": (([SYSTEM, ASK], [ASK, HERON], [ASK, ROBIN]), PROMPTED),
    "the prompt is a system message alone": (([SYSTEM], [ASK, HERON], [ASK, ROBIN]), PROMPTED),
    "the prompt is the last turn of what the sides begin with": (
        ("Which tree bends?", [*CONVERSATION, HERON], [*CONVERSATION, ROBIN]),
        (CONVERSATION, [HERON], [ROBIN]),
    ),
    "the sides begin with the last turn of the prompt": ((CONVERSATION, *NEXT), (CONVERSATION, [HERON], [ROBIN])),
    "the sides begin with the result that ends the prompt": (
        (CALLED, [RESULT, HERON], [RESULT, ROBIN]),
        (CALLED, [HERON], [ROBIN]),
    ),
    **{
        about: (sides, sides)
        for about, sides in {
            "the sides begin with the result of another call": ([ASK, CALL, FOUND], [OTHERS, HERON], [ROBIN]),
            "sides make the prompt's last call again": (CALLED, [CALL, RESULT, HERON], [ROBIN]),
            "answers that share their first message are answers": ([ASK], *AGAIN),
            "a continuation that the user begins, after an answer": ([ASK, HERON], *NEXT),
        }.items()
    },
    "sides that are texts after a prompt of messages": (([ASK], "A heron.", "A robin."), ONCE),
    "nulls of a table in the sides alone": (
        ([ASK], [{**ASK, "name": None, "tool_calls": []}, HERON], [{**ASK, "name": None}, ROBIN]),
        ([{**ASK, "name": None, "tool_calls": []}], [HERON], [ROBIN]),
    ),
    "texts that begin with a question": ((LONG, f"{LONG} A heron.", f"{LONG}\nA robin."), ([user(LONG)], *ONCE[1:])),
    "other keys in the prompt": (([{**ASK, "id": "m1"}], [ASK, HERON], [{**ASK, "time": 3}, ROBIN]), ONCE),
    "other roles in the prompt": (([{**ASK, "role": "human"}], [ASK, HERON], [{**ASK, "role": "USER"}, ROBIN]), ONCE),
}


@pytest.mark.parametrize("template", ["conversation", "message"])
@pytest.mark.parametrize("case", CONVERSATIONS)
def test_a_prompt_of_messages_stands_once(case: str, template: str) -> None:
    given, wanted = CONVERSATIONS[case]
    for implicit in (False, True):
        assert outcome(pair(*given), template, implicit) == wanted


OF_PAIRS = ("the prompt is a system message alone", "texts that begin with a question")
"""Cases in which only the other side shows where the answer begins."""


@pytest.mark.parametrize("case", [case for case in CONVERSATIONS if case not in OF_PAIRS])
def test_a_completion_is_a_side_by_itself(case: str) -> None:
    (prompt, side, _), wanted = CONVERSATIONS[case]
    assert outcome({"prompt": prompt, "completion": side}, "conversation") == wanted[:2]


WADES = "Which bird wades here?"
NAMED, SPACED = {**ASK, "name": "Ann"}, WADES.replace(" here", "  here")
REFUSED: dict[str, tuple[Sides, str, tuple[str, ...]]] = {
    "another question": (([ASK], [OTHER, HERON], [ASK, ROBIN]), "prompt_differs", ("Which bird", "Which tree")),
    "a question of another name": (([ASK], [NAMED, HERON], [ASK, ROBIN]), "prompt_differs", ("Which bird",)),
    "a system message of one side": (
        ([ASK], [SYSTEM, ASK, HERON], [ASK, ROBIN]),
        "prompt_differs",
        ("Be brief.", "'rejected'"),
    ),
    "a system message before the answer": (
        ([ASK], [SYSTEM, HERON], [SYSTEM, ROBIN]),
        "prompt_differs",
        ("Be brief.", "Which bird"),
    ),
    "a side that is the prompt alone": (([ASK], [ASK], [ASK, ROBIN]), "no_answer", ("'chosen'", "Which bird")),
    "equal answers": (([ASK], [ASK, HERON], [HERON]), "equal_sides", ("once the prompt is taken out of them",)),
    "text and its prompt alone": ((WADES, WADES, f"{SPACED} A robin."), "no_answer", ("'chosen'", "here?")),
    "texts that repeat a text, but for blanks": (
        (WADES, f"{SPACED} A heron.", f"{WADES} A robin."),
        "prompt_differs",
        ("A heron.",),
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_sides_that_fit_neither_are_rejects_that_show_both(case: str) -> None:
    given, reason, shown = REFUSED[case]
    for implicit in (False, True):
        found = outcome(pair(*given), None if case.startswith("text and its") else "conversation", implicit)
        assert found[0] == reason
        assert all(text in found[1] for text in shown)


# Texts.

BLUE, ASKS = ("The sky is", "The sky is blue.", "The sky is green."), "Which bird wades? "
SKYLINE = ("The sky", "The skyline.", "The skyscraper.")
OTHERWISE = (ASKS, "Which bird, you ask? A heron.", "Which bird? A robin.")
TEXTS: dict[str, tuple[tuple[str, str, str], tuple[str, str, str]]] = {
    "both sides begin with the prompt": (BLUE, ("The sky is", " blue.", " green.")),
    "the prompt ends in a space": (("Sky? ", "Sky? Blue.", "Sky? Green."), ("Sky? ", "Blue.", "Green.")),
    "another word that begins as the prompt does": (SKYLINE, SKYLINE),
    "first words that look like the prompt, and differ": (OTHERWISE, OTHERWISE),
}


@pytest.mark.parametrize("case", TEXTS)
def test_a_prompt_of_text_stands_once(case: str) -> None:
    given, wanted = TEXTS[case]
    for implicit in (False, True):
        assert outcome(pair(*given), implicit=implicit) == wanted
    assert outcome({"prompt": given[0], "completion": given[1]}) == wanted[:2]


def test_an_answer_may_be_the_question_itself() -> None:
    right, wrong = "She wades in the water.", "She wade in the water."
    for asked, chosen, rejected in ((right, right, wrong), (wrong, right, wrong)):
        assert outcome(pair(asked, chosen, rejected)) == (asked, chosen, rejected)
        said = [user(asked)], [assistant(chosen)], [assistant(rejected)]
        assert outcome(pair(*said), "conversation") == said
        assert outcome(pair(said[0], chosen, rejected), "conversation") == said


# Records without a prompt.


@pytest.mark.parametrize("absent", [{}, {"prompt": None}, {"prompt": ""}, {"prompt": []}])
def test_without_a_prompt_an_implicit_one_is_what_both_begin_with(absent: Row) -> None:
    chat = {**absent, "chosen": [ASK, HERON], "rejected": [ASK, ROBIN]}
    assert outcome(chat, "conversation", implicit=True) == ([ASK], [HERON], [ROBIN])
    text = {**absent, "chosen": "The sky is blue.", "rejected": "The sky is grey."}
    assert outcome(text, implicit=True) == ("The sky is", " blue.", " grey.")
    assert outcome({**absent, "chosen": "blue", "rejected": "blues"}, implicit=True) == ("blu", "e", "es")
    for record, template in ((chat, "conversation"), (text, None)):
        assert outcome(record, template) == (absent.get("prompt"), record["chosen"], record["rejected"])


@pytest.mark.parametrize("value", [0, {}, [1], [{"role": 3}]])
def test_what_is_no_prompt_or_no_side_stays_for_the_checks_of_the_sections(value: Any) -> None:
    for record in (pair(value, [HERON], [ROBIN]), pair([ASK], value, value)):
        assert outcome(record, "conversation", implicit=True) == tuple(record.values())


def test_only_a_masked_prompt_before_one_trained_section_has_sides() -> None:
    text = Section("text", "train")
    assert sides_of((Output("a", "ids", (text,)),), True) == []
    assert sides_of((Output("a", "list", (Section("p", "mask"), text)),), True) == []
    assert sides_of((Output("a", "ids", (Section("p", "mask", "message"), text)),), True) == []
    assert sides_of((Output("a", "ids", (Section("p", "mask"), text, text)),), True) == []
    (found,) = sides_of(outputs("chosen", "rejected", fields=("s", "p")), True)
    assert (found.prompt, found.names) == (("s", "p"), ("chosen", "rejected"))


def test_a_prompt_of_several_fields_is_their_sum() -> None:
    (sides,) = sides_of(outputs("a", template="conversation", fields=("s", "p")), False)
    found = with_prompt({"s": [SYSTEM], "p": [ASK], "a": [ASK, HERON]}, sides)
    assert [*(found["s"] or []), *(found["p"] or [])] == [SYSTEM, ASK]
    assert found["a"] == [HERON]
    (sides,) = sides_of(outputs("a", fields=("s", "p")), False)
    found = with_prompt({"s": "Be brief. ", "p": "Sky?", "a": "Be brief. Sky? Blue."}, sides)
    assert found == {"s": "Be brief. ", "p": "Sky?", "a": " Blue."}


def test_a_text_in_the_field_system_is_the_systems_message() -> None:
    fields = ("system", "prompt")
    (sides,) = sides_of(outputs("chosen", "rejected", template="conversation", fields=fields), False)
    texts = {"system": "Be brief.", "prompt": "Which bird wades?"}
    for record in (pair(None, "A heron.", "A robin."), pair(None, [SYSTEM, ASK, HERON], [SYSTEM, ASK, ROBIN])):
        found = with_prompt({**record, **texts}, sides)
        assert [found[name] for name in (*fields, "chosen", "rejected")] == [[SYSTEM, ASK], None, [HERON], [ROBIN]]


def test_a_long_prompt_is_compared_once() -> None:
    def work(size: int) -> Any:
        asked = [each for number in range(size) for each in (user(f"q {number}"), assistant("Yes."))]
        record = pair([*asked, ASK], [ASK, HERON], [ASK, ROBIN])
        return steps(outcome, record, "conversation"), outcome(record, "conversation")

    (few, found), (many, _) = work(10), work(40)
    assert found[1:] == ([HERON], [ROBIN])
    assert many < 4.5 * few
