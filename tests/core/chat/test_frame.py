"""Constants that depend on what another message says: found by reading the code against its rule."""

from typing import Any

import pytest

from tests.core.chat.test_conversation import CONTROLS, TOKENS, say, talk
from tests.core.chat.trained import CALL, CHATML, END, HEADER, PROMPT, trained, trained_by

pytestmark = pytest.mark.usefixtures("plans_at_once")

FLAG = (
    "{% set ns = namespace(w='') %}{% for m in messages %}{% if m.role == 'user' %}"
    "{% if 'paris' in m.content %}{% set ns.w = 'PARIS ' %}{% endif %}{% endif %}" + HEADER
)
BEFORE = (
    "{% set ns = namespace(w='') %}{% if 'paris' in messages[0].content %}{% set ns.w = 'PARIS ' %}{% endif %}"
    "{% for m in messages %}" + HEADER
)


@pytest.mark.parametrize("flag", [FLAG, BEFORE])
def test_a_constant_put_together_with_the_content_after_a_look_at_the_question(flag: str) -> None:
    template = flag + "{{ (ns.w + m.content) | trim }}" + END + PROMPT
    assert trained(template, talk("paris", "a")) == "spans_unproven"


@pytest.mark.parametrize("flag", [FLAG, BEFORE])
@pytest.mark.parametrize(
    "message",
    [
        say("assistant", "", tool_calls=CALL),
        say("assistant", "a", reasoning_content="r"),
    ],
    ids=["calls", "reasoning"],
)
def test_a_constant_around_reasoning_and_calls_after_a_look_at_the_question(flag: str, message: Any) -> None:
    template = flag + (
        "{% if m.role == 'assistant' and 'tool_calls' in m %}{{ ns.w }}"
        "{% for c in m.tool_calls %}<call>{{ c.function.name }}</call>{% endfor %}{{ ns.w }}{% endif %}"
        "{% if 'reasoning_content' in m %}<think>{{ m.reasoning_content }}</think>{{ ns.w }}{% endif %}{{ m.content }}"
    )
    assert trained(template + END + PROMPT, [say("user", "paris"), message]) == "spans_unproven"


@pytest.mark.parametrize("flag", [FLAG, BEFORE])
def test_a_constant_within_a_content_that_is_taken_apart_after_a_look_at_the_question(flag: str) -> None:
    template = flag + "{{ m.content.split('|')[0] }}{{ ns.w }}{{ m.content.split('|')[-1] }}" + END + PROMPT
    assert trained(template, talk("paris|", "a|b")) == "spans_unproven"


def test_indent_writes_what_it_is_given() -> None:
    template = CHATML.replace("m.content", "m.content | indent('<|im_start|>', true)")
    assert trained(template, talk("q", "a")) == "spans_unproven"


def test_an_end_token_that_is_put_into_a_content_is_not_proven() -> None:
    template = CHATML.replace("m.content", "m.content.replace('X', '<|im_end|>')")
    assert trained(template, talk("q", "aXb")) == "spans_unproven"


def test_what_the_record_says_beside_its_messages_is_no_answer() -> None:
    template = CHATML.replace("{{ m.content }}", "{{ persona }}{{ m.content }}")
    row = {"messages": talk("q", "a"), "chat_template_kwargs": {"persona": "BOB: "}}
    assert trained_by("jinja", template, row, "$role", CONTROLS, TOKENS) in (["a<|im_end|>"], "spans_unproven")
    template = CHATML.replace("{{ m.content }}", "{{ tools | length }}{{ m.content }}")
    row = {"messages": talk("q", "a"), "tools": [{"type": "function", "function": {"name": "f"}}]}
    assert trained_by("jinja", template, row, "$role", CONTROLS, TOKENS) in (["a<|im_end|>"], "spans_unproven")


def test_blocks_of_an_index_loop_belong_to_the_message_that_they_hold() -> None:
    template = (
        "{% for i in range(messages | length) %}{% set m = messages[i] %}{{ m.role }}:"
        "{% if m.role == 'assistant' and i == messages | length - 1 %}"
        "{% generation %}{{ m.content }}{% endgeneration %}{% generation %}{{ '</s>' }}{% endgeneration %}"
        "{% else %}{{ m.content }}{% endif %};{% endfor %}"
    )
    messages = [*talk("q", "a", "r", "b")]
    messages[1]["weight"] = 0  # and not the first half of the last answer's
    assert trained(template, messages) in (["b</s>"], "spans_unproven")
