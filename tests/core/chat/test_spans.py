"""Templates and conversations that got a wrong mask, two masks, or none: found by reading the code against its rule."""

import pytest

from tests.core.chat.test_conversation import say, talk
from tests.core.chat.trained import CHATML, END, HEADER, PROMPT, trained

pytestmark = pytest.mark.usefixtures("plans_at_once")

# Completions of several messages


def test_the_last_messages_weight_is_its_own() -> None:
    messages = [say("user", "q"), say("assistant", "a"), say("user", "r"), say("assistant", "b", weight=0)]
    assert trained(CHATML, messages, "prompt") == ["a<|im_end|>", "r<|im_end|>"]
    messages[2]["weight"] = 0
    assert trained(CHATML, messages, "prompt") == ["a<|im_end|>"]


def test_a_later_message_of_the_completion_that_the_prompt_decides_on_is_not_proven() -> None:
    template = CHATML.replace(
        "{{ m.content }}", "{% if loop.index0 > 1 and 'x' in messages[0].content %}X {% endif %}{{ m.content }}"
    )
    assert trained(template, talk("x", "a", "b", "c"), "prompt") == "spans_unproven"


def test_words_of_the_prompt_within_the_completion_are_not_proven() -> None:
    # `%` cannot be traced, so contents are found by marks; a middle word of the question has none.
    template = CHATML.replace(
        "{{ m.content }}",
        "{% if loop.index0 > 1 %}{{ messages[0].content.split(' ')[1] }} {% endif %}{{ '%s' % m.content }}",
    )
    assert trained(template, talk("say paris now", "a", "b", "c"), "prompt") == "spans_unproven"
    plain = CHATML.replace("m.content", "'%s' % m.content")
    whole = "a<|im_end|>\n<|im_start|>user\nb<|im_end|>\n<|im_start|>assistant\nc<|im_end|>\n"
    assert trained(plain, talk("say paris now", "a", "b", "c"), "prompt") == [whole]


# Templates in use that have to be proven

LLAMA2 = (
    "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}"
    "{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}"
    "{% set system_message = false %}{% endif %}{% for message in loop_messages %}"
    "{% if loop.index0 == 0 and system_message != false %}"
    "{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}"
    "{% else %}{% set content = message['content'] %}{% endif %}"
    "{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
)


@pytest.mark.parametrize("system", [None, "S"])
def test_llama_2_with_a_system_message(system: str | None) -> None:
    messages = talk("q", "a", "r", "b", system=system)
    assert trained(LLAMA2, messages) == ["a </s>", "b </s>"]
    assert trained(LLAMA2, messages, "$last") == [" b </s>"]


@pytest.mark.xfail(strict=True, reason="refused, though plain: what the template asks of others in each turn")
def test_a_loop_filter_that_looks_at_contents() -> None:
    template = CHATML.replace("in messages %}", "in messages if m.content %}")
    assert trained(template, talk("q", "a", "r", "b")) == ["a<|im_end|>", "b<|im_end|>"]


@pytest.mark.xfail(strict=True, reason="refused, though plain: what the template asks of others in each turn")
def test_a_system_text_that_is_asked_for_in_every_turn() -> None:
    template = (
        "{% if messages[0].role == 'system' %}{% set s = messages[0].content %}{% else %}{% set s = '' %}{% endif %}"
        "{% for m in messages if m.role != 'system' %}" + HEADER + "{% if s and loop.first %}{{ s + '\n' }}{% endif %}"
        "{{ m.content }}" + END + PROMPT
    )
    assert trained(template, talk("q", "a", "r", "b", system="S")) == ["a<|im_end|>", "b<|im_end|>"]
