"""Spans that conversations of a plan share are those that each of them has by itself."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from beam_prep.core.chat.conversation import Conversation, MessageSpan
from beam_prep.core.chat.message import Message
from beam_prep.core.chat.recorded import plans
from beam_prep.core.chat.template import ChatTemplate

from beam_prep.core.data.block import Reject
from tests.core.generated_templates import Seeded, template
from tests.core.generated_templates import conversations as drawn

TOOLS = "{% if tools %}{{ '<tools>' + (tools | tojson) + '</tools>' }}{% elif tools is not none %}[no tools]{% endif %}"
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
CALLS = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{% if m.content %}{{ m.content }}{% endif %}"
    "{% for call in m.tool_calls or [] %}{{ '<call>' + call.function.name + (call.function.arguments | tojson) }}"
    "{{ '</call>' }}{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TEXTS = ("words", "", " ", "\n", "other words", "<|im_end|>", "<s>", "\U0001f600")


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans from the first conversation of a pattern on."""
    monkeypatch.setattr(plans, "SIGHTINGS_BEFORE_TRACE", 1)
    monkeypatch.setattr(plans, "FREE_TRACES", 10_000)


def found(
    chat: ChatTemplate, controls: tuple[str, ...], messages: list[Message], variables: dict[str, Any]
) -> Iterator[list[MessageSpan] | MessageSpan]:
    """All spans of a conversation."""
    rendered = chat.render_chat(messages, **variables)
    conversation = Conversation(chat, controls, rendered, messages, variables)
    yield conversation.spans()
    for first in range(1, len(messages)):
        try:
            prompt = chat.render(messages[:first], True, **variables)
        except Reject:
            continue
        yield conversation.after_prompt(first, prompt)


def compare(chat: ChatTemplate, controls: tuple[str, ...], rows: list[tuple[list[Message], dict[str, Any]]]) -> int:
    """Compares the spans of all rows, one after the other, with those of each by itself. Returns how many had both."""
    compared = 0
    for messages, variables in rows:
        try:
            shared = [*found(chat, controls, messages, variables)]
        except Reject:
            continue
        kept, chat.spans, chat.known_variables = chat.spans, {}, {}
        assert [*found(chat, controls, messages, variables)] == shared, (messages, variables)
        chat.spans = kept
        compared += 1
    return compared


def test_spans_of_generated_templates() -> None:
    compared = kinds = 0
    for number in range(40):
        draw = Seeded(f"memo/{number}")
        made = template(draw)
        tokens = {"bos_token": made.bos, "eos_token": made.eos}
        for source in (made.source, TOOLS + made.source):
            chat = ChatTemplate(source, tokens, plans=True)
            rows: list[tuple[list[Message], dict[str, Any]]] = []
            for messages in drawn(draw, made, 12, False):
                other = [dict(message) for message in messages]
                for message in other:  # blank and odd contents too
                    if isinstance(message.get("content"), str) and draw.integer(0, 2) == 0:
                        message["content"] = draw.choice(TEXTS)
                variables: list[dict[str, Any]] = [{}, {"tools": []}, {"tools": [TOOL]}, {"word": "words"}]
                rows += [(each, draw.choice(variables)) for each in (messages, other)]
            compared += compare(chat, made.controls, rows)
            kinds += len(chat.spans)
    assert compared > 1500
    assert kinds < compared / 2  # most share them


def test_spans_of_calls() -> None:
    chat = ChatTemplate(TOOLS + CALLS, {"eos_token": "<|im_end|>"}, plans=True)
    draw = Seeded("calls")
    rows: list[tuple[list[Message], dict[str, Any]]] = []
    for _ in range(400):
        messages: list[Message] = [{"role": "user", "content": draw.choice(TEXTS)}]
        for _ in range(draw.integer(1, 3)):
            call = {
                "function": {"name": draw.choice(["look", "go"]), "arguments": json.loads(draw.choice(["{}", "[1]"]))}
            }
            content = draw.choice((None, *TEXTS))
            calls: dict[str, Any] = draw.choice(
                [{}, {"tool_calls": [call]}, {"tool_calls": []}, {"tool_calls": [call] * 2}]
            )
            messages.append({"role": "assistant", "content": content, **calls})
            if calls:
                messages.append({"role": "tool", "content": draw.choice(TEXTS)})
        variables: list[dict[str, Any]] = [{}, {"tools": []}, {"tools": [TOOL]}]
        rows.append((messages, draw.choice(variables)))
    assert compare(chat, ("<|im_start|>", "<|im_end|>"), rows) == 400
    assert chat.rendered_by_plan > chat.rendered_by_jinja


def test_long_texts_of_which_all_counts_are_not_kept() -> None:
    """Here: each content is one piece with a constant of the template's."""
    source = (
        "{% for m in messages %}{{ '<s>' + m.role + ' ' }}{{ (m.content ~ '!') | upper }}{{ '</s>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<s>assistant ' }}{% endif %}"
    )
    kinds = []
    for size in (10, 2000):
        chat = ChatTemplate(source, {}, plans=True)
        rows: list[tuple[list[Message], dict[str, Any]]] = [
            ([{"role": "user", "content": f"{at}" * size}, {"role": "assistant", "content": "yes"}], {})
            for at in range(20)
        ]
        assert compare(chat, ("<s>", "</s>"), rows) == 20
        assert chat.rendered_by_plan > 30
        kinds.append(len(chat.spans))
    assert kinds[0] > 10
    assert kinds[1] == 0


@pytest.mark.parametrize("tools", [[], [TOOL]])
def test_conversations_with_an_empty_list_of_tools_have_plans_too(tools: list[Any]) -> None:
    chat, plain = ChatTemplate(TOOLS + CALLS, {}, plans=True), ChatTemplate(TOOLS + CALLS, {})
    for number in range(20):
        messages = [{"role": "user", "content": f"question {number}"}, {"role": "assistant", "content": "yes"}]
        text = chat.render_chat(messages, tools=tools).text
        assert text == plain.render_chat(messages, tools=tools).text
        assert text.startswith("[no tools]") == (not tools)
    assert chat.rendered_by_plan >= 15
