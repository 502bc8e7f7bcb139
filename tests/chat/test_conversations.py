"""Conversations of one block: what one record is does not change another, however it is rendered."""

from typing import Any

import pytest

from beam_prep import testing
from beam_prep.chat.apply import apply_template
from beam_prep.chat.chat_format import ChatFormat
from beam_prep.chat.template import ChatTemplate
from beam_prep.data.rendered import Rendered
from beam_prep.data.schema import Output, Section
from beam_prep.reading.adapters import map_records
from beam_prep.reading.records import Record
from tests.chat.generated_templates import Seeded, template
from tests.chat.generated_templates import conversations as drawn
from tests.chat.trained import CHATML, CONTROLS, SECTIONS, TOKENS, each, outcomes, prepared, say, talk

TEXTS = ("words", "", " ", "\n", "other words", "<|im_end|>", "<s>", "\U0001f600")


def rendered(rows: Any, *sections: Section, compared: int | None = 0) -> Rendered:
    chat_format = ChatFormat(ChatTemplate(CHATML, TOKENS, CONTROLS), bos=TOKENS["bos_token"], eos=TOKENS["eos_token"])
    output = Output("sequence", "ids", sections or SECTIONS["$role"], "loss_mask")
    block = testing.records(rows) if isinstance(rows, list) else rows
    return apply_template(block, (output,), chat_format, compared=compared)


def test_a_conversation_that_cannot_be_encoded_leaves_nothing_for_the_next_one() -> None:
    plain = [{"messages": talk("q1", "a1")}] * 3  # the third is replayed
    weighted = [say("user", "q2"), say("assistant", "a2", weight=1)]
    rows = [*plain, {"messages": talk("q3", "torn")}, {"messages": weighted}]

    def tear(row: Record) -> Record:
        return {"messages": talk("q3", "\ud800a")} if row["messages"][1]["content"] == "torn" else row

    found = rendered(map_records(testing.records(rows), tear), *SECTIONS["$last"])
    assert found.line.tolist() == [0, 1, 2, 4]
    assert found.pieces["sequence"].borders.tolist() == [0, 1, 2, 3, 5]  # the answer; it again for its weight
    assert found.ledger.outcomes == [("rejected", "bad_text")]


@pytest.mark.parametrize("value", ["", 0, {}, "x", True, [[]], [None]])
def test_a_section_that_is_no_list_of_messages_is_rejected(value: Any) -> None:
    """What is false is not absent: only null is."""
    plain = {"history": [], "messages": talk("question", "answer")}
    absent: list[Record] = [{**plain, "history": None}, {"messages": talk("question", "answer")}]
    rows = [*[plain] * 4, {**plain, "history": value}, *absent, {**plain, "messages": value}]
    sections = (Section("history", "mask", "conversation"), Section("messages", "$role", "conversation"))
    found = rendered(rows, *sections)
    assert found.line.tolist() == [0, 1, 2, 3, 5, 6]
    # A text before messages is what the user says, who does not speak twice.
    also = [("rejected", "prompt_differs")] if value == "x" else []
    assert found.ledger.outcomes == [*also, ("rejected", "wrong_type")]


def each_alone(template_: ChatTemplate, rows: list[Record], action: str = "$role") -> list[Any]:
    """What becomes of each row in a block of its own, by a template that has seen nothing."""
    given = template_.source, template_.special_tokens, template_.tokens.texts
    found = {str(row): row for row in rows}  # some are equal
    alone = {text: outcomes(prepared(ChatTemplate(*given), [row], action))[0] for text, row in found.items()}
    return [alone[str(row)] for row in rows]


CHANGES: tuple[dict[str, Any], ...] = (
    *({"weight": weight} for weight in (0, 0.5, 1)),
    *({"train": train} for train in (True, False, None, 1)),
    *({"content": content} for content in (None, ["a"], [{"type": "image"}], 3)),
    {"role": 3},
    {"name": None},
)


@pytest.mark.parametrize("number", range(5))
def test_conversations_of_a_block_are_what_each_is_alone(number: int) -> None:
    """Facts that are known of a template, and kinds that come again, change no mask."""
    draw = Seeded(f"together/{number}")
    made = template(draw)
    chat = ChatTemplate(made.source, {"bos_token": made.bos, "eos_token": made.eos}, made.controls)
    rows: list[Record] = []
    for messages in drawn(draw, made, 4, False):
        other = [dict(message) for message in messages]
        for message in other:  # blank and odd contents too
            if isinstance(message.get("content"), str) and draw.integer(0, 2) == 0:
                message["content"] = draw.choice(TEXTS)
            if draw.integer(0, 3) == 0:
                message |= draw.choice(CHANGES)
        rows += [{"messages": messages}, {"messages": other}, {"messages": messages}]
    for action in ("$role", "$last"):
        together = outcomes(prepared(chat, rows, action))
        assert together == each_alone(chat, rows, action)


def test_a_block_of_which_a_sample_differs_is_rendered_in_the_plain_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full check ends there: tests/test_check.py."""
    rows: list[Record] = [{"messages": talk(f"question {at}", "yes")} for at in range(20)]
    chat = ChatTemplate(CHATML, TOKENS, CONTROLS)
    wanted = outcomes(prepared(chat, rows))
    assert "blocks_rendered_plainly" not in rendered(rows, compared=16).made
    assert rendered(rows, compared=None).made["conversations_compared"] == 20
    monkeypatch.setattr(ChatTemplate, "differs", lambda _, chat, *given, **more: "question 7" in chat.text)
    assert rendered(rows, compared=20).made["blocks_rendered_plainly"] == 1
    assert outcomes(prepared(chat, rows, compared=20)) == wanted


def test_a_begin_that_is_not_found_is_told_by_the_last_characters_before_it_and_of_the_prompt() -> None:
    source = each("{{ 'h' * 70 + m.content }}") + "{{ 'p' * 70 if add_generation_prompt }}"
    (said,) = prepared(ChatTemplate(source, TOKENS, CONTROLS), [{"messages": talk("q", "a")}]).ledger.messages.values()
    assert said.startswith("what is trained of message 1 cannot be told: ")
    assert f"found '{'h' * 60}' before its text, and the generation prompt is '{'p' * 60}'" in said
