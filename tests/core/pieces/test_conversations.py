"""Conversations of one block: rendered by plans, by jinja, or rejected."""

from typing import Any

import hypothesis.strategies as st
import pytest
from beam_prep.core.chat.recorded import plans
from beam_prep.core.chat.template import ChatTemplate
from beam_prep.core.pieces.apply import apply_template
from beam_prep.core.pieces.compared import are_equal
from beam_prep.core.pieces.conversations import ConversationCollector
from beam_prep.core.pieces.rendered import Pieces
from beam_prep.core.pieces.voice import Voice
from hypothesis import given

from beam_prep.core.data.schema import Output, Section
from beam_prep.core.reading.filters import map_records
from beam_prep.core.reading.records import Record
from tests.core.chat.test_conversation import CONTROLS, TOKENS, say, talk
from tests.core.chat.test_span_memo import CALLS, TEXTS, TOOL, TOOLS
from tests.core.chat.trained import CHATML
from tests.core.generated_templates import Seeded, template
from tests.core.generated_templates import conversations as drawn
from tests.core.mask_judge import records
from tests.core.reference import same_pieces


def test_a_conversation_that_cannot_be_encoded_leaves_nothing_for_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "SIGHTINGS_BEFORE_TRACE", 1)
    weighted = [say("user", "q"), say("assistant", "a", weight=1)]  # which no plan's table of segments fits
    rows = [{"messages": talk("q", "a")}, {"messages": talk("q", "torn")}, {"messages": weighted}]

    def tear(row: Record) -> Record:
        return {"messages": talk("q", "\ud800")} if row["messages"][1]["content"] == "torn" else row

    voice = Voice(ChatTemplate(CHATML, TOKENS, plans=True), CONTROLS, TOKENS["bos_token"], TOKENS["eos_token"])
    output = Output("sequence", "ids", (Section("messages", "$last", "conversation"),), "loss_mask")
    rendered = apply_template(map_records(records(rows), tear), (output,), voice)
    assert rendered.line.tolist() == [0, 2]
    assert rendered.pieces["sequence"].borders.tolist() == [0, 1, 3]  # the answer; it again for its weight
    assert rendered.ledger.outcomes == [("rejected", "bad_text")]


@pytest.mark.parametrize("value", ["", 0, 0.0, False, {}, "x", 3, True, [[]], [None]])
def test_a_section_that_is_no_list_of_messages_is_rejected_by_plans_too(
    value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is false is not absent: only null is."""
    monkeypatch.setattr(plans, "SIGHTINGS_BEFORE_TRACE", 1)
    plain = {"history": [], "messages": talk("q", "a")}
    absent: list[Record] = [{**plain, "history": None}, {"messages": talk("q", "a")}]
    rows = [*[plain] * 9, {**plain, "history": value}, *absent, {**plain, "messages": value}]
    sections = (Section("history", "mask", "conversation"), Section("messages", "$role", "conversation"))
    output = Output("sequence", "ids", sections, "loss_mask")
    found = [
        apply_template(records(rows), (output,), Voice(ChatTemplate(CHATML, TOKENS, by_plans), CONTROLS))
        for by_plans in (True, False)
    ]
    for each in found:
        assert each.line.tolist() == [*range(9), 10, 11]
        assert each.ledger.outcomes == [("rejected", "wrong_type")]
    assert found[0].ledger.messages == found[1].ledger.messages
    assert found[0].made["rendered_by_plans"] == 11


CHECKED: tuple[dict[str, Any], ...] = (
    {}, {"train": True}, {"train": False}, {"train": None}, {"weight": 1}, {"weight": 0}, {"weight": 0.5}, {"train": 1},
    {"content": None}, {"content": ["a"]}, {"content": [{"type": "text", "text": "b"}]}, 
    {"content": [{"type": "image"}]},
    {"content": 3}, {"role": None}, {"role": 3}, {"name": None}, {"thinking": "so"}, {"reasoning_content": None},
    {"train": False, "weight": 1}, {"tool_calls": []},
)  # fmt: skip


@given(st.lists(st.tuples(st.sampled_from(CHECKED), st.sampled_from(CHECKED)), min_size=2, max_size=12))
def test_what_was_checked_of_one_conversation_is_not_taken_for_checked_of_another(said: list[tuple[Any, Any]]) -> None:
    """Checks run once for each shape of messages: whatever they look at, values too, must be in it."""
    rows = [
        {"messages": [{**say("user", "q"), **one}, {**say("assistant", "a"), **other}], "tools": []}
        for one, other in said
    ]
    output = Output("sequence", "ids", (Section("messages", "$role", "conversation"),), "loss_mask")
    voice = Voice(ChatTemplate(CHATML, TOKENS, plans=True), CONTROLS)
    together = apply_template(records(rows), (output,), voice)
    for place, row in enumerate(rows):
        alone = apply_template(records([row]), (output,), voice)
        assert are_equal(together, [place], alone, [0])


def rendered(chat: ChatTemplate, controls: tuple[str, ...], rows: list[Record], bos: str = "") -> Pieces:
    """The pieces of all conversations, rendered with all that plans know."""
    voice = Voice(chat, controls, bos)
    output = Output("sequence", "ids", (Section("messages", "$role", "conversation"),), "loss_mask")
    return apply_template(records(rows), (output,), voice).pieces["sequence"]


def compare_with_each_by_itself(
    monkeypatch: pytest.MonkeyPatch, chats: tuple[ChatTemplate, ChatTemplate], *given: Any
) -> int:
    """Returns how many of the first had the segments of another one that is like it."""
    hits = 0
    own = ConversationCollector._add_alike

    def counted(*arguments: Any) -> bool:
        nonlocal hits
        found = own(*arguments)
        hits += found
        return found

    with monkeypatch.context() as patch:
        patch.setattr(plans, "SIGHTINGS_BEFORE_TRACE", 1)
        patch.setattr(plans, "FREE_TRACES", 10_000)
        patch.setattr(ConversationCollector, "_add_alike", counted)
        alike = rendered(chats[0], *given)
        patch.setattr(ConversationCollector, "_add_alike", lambda *_: False)
        each = rendered(chats[1], *given)
    assert same_pieces(alike, each)
    assert alike.message_roles.to_lists() == each.message_roles.to_lists()
    return hits


def test_conversations_that_are_alike_have_the_segments_that_each_has_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hits = total = 0
    for number in range(40):
        draw = Seeded(f"alike/{number}")
        made = template(draw)
        tokens = {"bos_token": made.bos, "eos_token": made.eos}
        source = draw.choice([made.source, TOOLS + made.source])
        rows: list[Record] = []
        for messages in drawn(draw, made, 12, False):
            other = [dict(message) for message in messages]
            for message in other:  # blank and odd contents too
                if isinstance(message.get("content"), str) and draw.integer(0, 2) == 0:
                    message["content"] = draw.choice(TEXTS)
                if draw.integer(0, 3) == 0:
                    message |= draw.choice([{"weight": 0}, {"weight": 1}, {"train": True}, {"train": False}])
            for each in (messages, other):
                about: Record = draw.choice(
                    [{}, {"tools": []}, {"tools": [TOOL]}, {"chat_template_kwargs": {"word": "words"}}]
                )
                rows.append({"messages": each, **about})
        chats = (ChatTemplate(source, tokens, plans=True), ChatTemplate(source, tokens, plans=True))
        hits += compare_with_each_by_itself(monkeypatch, chats, made.controls, rows, made.bos)
        total += len(rows)
    assert hits > total / 3


def test_calls_that_are_alike_have_the_segments_that_each_has_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = Seeded("alike calls")
    rows: list[Record] = []
    for _ in range(400):
        messages: list[dict[str, Any]] = [{"role": "user", "content": draw.choice(TEXTS)}]
        for _ in range(draw.integer(1, 3)):
            call = {"function": {"name": draw.choice(["look", "go"]), "arguments": draw.choice([{}, [1]])}}
            calls: dict[str, Any] = draw.choice([{}, {"tool_calls": [call]}, {"tool_calls": [call] * 2}])
            messages.append({"role": "assistant", "content": draw.choice((None, *TEXTS)), **calls})
            if calls:
                messages.append({"role": "tool", "content": draw.choice(TEXTS)})
        rows.append({"messages": messages, "tools": draw.choice([[], [TOOL]])})
    chats = [ChatTemplate(TOOLS + CALLS, {"eos_token": "<|im_end|>"}, plans=True) for _ in range(2)]
    assert compare_with_each_by_itself(monkeypatch, (chats[0], chats[1]), ("<|im_start|>", "<|im_end|>"), rows) > 200
