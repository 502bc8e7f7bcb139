"""End tokens that were taken for the wrong message's: found by reading the code against its rule."""

import pytest

from tests.core.chat.test_conversation import talk
from tests.core.chat.trained import CHATML, PROMPT, trained

pytestmark = pytest.mark.usefixtures("plans_at_once")


@pytest.mark.parametrize(
    "template",
    [
        "{{ bos_token }}{% for m in messages %}{{ m.role + ': ' + m.content }}"
        "{% if not loop.last %}{{ bos_token }}{% endif %}{% endfor %}",
        "{{ '<|im_start|>' }}{% for m in messages %}{{ m.role + '\n' + m.content + '\n' }}"
        "{% if not loop.last %}{{ '<|im_start|>' }}{% endif %}{% endfor %}" + PROMPT,
        "{{ '<|im_start|>' }}{% for m in messages %}{{ m.role + '\n' + m.content + '\n<|im_start|>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'assistant\n' }}{% endif %}",
    ],
)
def test_a_token_that_begins_the_next_turn_ends_no_answer(template: str) -> None:
    assert trained(template, talk("q", "a", "r", "b")) == "spans_unproven"


@pytest.mark.parametrize("question", ["", "r"])
def test_the_end_token_of_a_blank_message_is_not_the_answers(question: str) -> None:
    template = (
        "{% for m in messages %}{% if m.role == 'user' %}{{ m.content + '</s>' }}{% else %}{{ 'A:' + m.content }}"
        "{% endif %}{% endfor %}{% if add_generation_prompt %}A:{% endif %}"
    )
    assert trained(template, talk("q", "a", question, "b")) == ["a", "b"]


@pytest.mark.parametrize("first", ["", "q"])
def test_a_blank_echo_behind_the_end_token_changes_nothing(first: str) -> None:
    template = CHATML.replace("{{ '<|im_end|>\n' }}", "{{ '<|im_end|>' + messages[0].content + '</s>' }}")
    assert trained(template, talk(first, "a", "r", "b")) == ["a<|im_end|>", "b<|im_end|>"]


def test_of_two_tokens_the_longer_one_is_meant() -> None:
    template = CHATML.replace("<|im_end|>", "<|im_end|>x")
    controls = ("<|im_end|>", "<|im_end|>x", "<|im_start|>")
    assert trained(template, talk("q", "a"), controls=controls) == ["a<|im_end|>x"]
