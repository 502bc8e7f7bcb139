"""Templates and conversations that got a wrong mask, two masks, or none: found by reading the code against its rule."""

import itertools
from typing import Any

import pytest

from beam_prep.core.chat.recorded import plans
from beam_prep.core.chat.template import ChatTemplate
from beam_prep.core.data.columns import Wanted
from beam_prep.core.data.schema import Output, Section
from beam_prep.core.pieces.apply import apply_template
from beam_prep.core.pieces.voice import Voice
from beam_prep.core.tokens.mask import RoleMask, build_mask
from beam_prep.core.tokens.tokenize import tokenize
from tests.core.chat.test_conversation import CONTROLS, TOKENS, say, talk
from tests.core.mask_judge import PATHS, POINTS, records

SECTIONS = {
    "$role": (Section("messages", "$role", "conversation"),),
    "$last": (Section("messages", "$last", "conversation"),),
    "prompt": (Section("prompt", "mask", "conversation"), Section("messages", "train", "conversation")),
}
HEADER = "{{ '<|im_start|>' + m.role + '\n' }}"
END = "{{ '<|im_end|>\n' }}{% endfor %}"
PROMPT = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
CHATML = "{% for m in messages %}" + HEADER + "{{ m.content }}" + END + PROMPT
CALL = [{"function": {"name": "f", "arguments": {}}}]


@pytest.fixture(autouse=True)
def plans_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "SIGHTINGS_BEFORE_TRACE", 1)


def trained(
    template: str,
    messages: list[dict[str, Any]],
    action: str = "$role",
    controls: tuple[str, ...] = CONTROLS,
    tokens: dict[str, str] = TOKENS,
) -> Any:
    """The trained runs of text, or the reason of the reject; the same by every path."""
    row = {"prompt": messages[:1], "messages": messages[1:]} if action == "prompt" else {"messages": messages}
    found = {path: _by(path, template, row, action, controls, tokens) for path in PATHS}
    assert all(each == found["jinja"] for each in found.values()), found
    return found["jinja"]


def _by(path: str, template: str, row: Any, action: str, controls: tuple[str, ...], tokens: dict[str, str]) -> Any:
    chat = ChatTemplate(template, tokens, plans=path != "jinja")
    voice = Voice(chat, controls, tokens["bos_token"], tokens["eos_token"])
    wanted = Wanted("chats", "messages") if path == "columns" else None
    output = Output("sequence", "ids", SECTIONS[action], "loss_mask")
    last = None
    for _ in range(1 if path == "jinja" else 3):
        rendered = apply_template(records([row] * 8, wanted), (output,), voice)
        batch = build_mask(tokenize(rendered, POINTS, None), RoleMask({"assistant": "train"}))
        if not len(batch):
            last = batch.ledger.outcomes[batch.ledger.status[0] - 1][1]
            continue
        pairs = zip(batch["sequence"].to_lists()[-1], batch["loss_mask"].to_lists()[-1], strict=True)
        groups = itertools.groupby(pairs, key=lambda pair: pair[1])
        last = ["".join(chr(token) for token, _ in run) for marked, run in groups if marked]
    return last


# Tokens that begin turns


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


# Constants that depend on what another message says

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
    assert _by("jinja", template, row, "$role", CONTROLS, TOKENS) in (["a<|im_end|>"], "spans_unproven")
    template = CHATML.replace("{{ m.content }}", "{{ tools | length }}{{ m.content }}")
    row = {"messages": talk("q", "a"), "tools": [{"type": "function", "function": {"name": "f"}}]}
    assert _by("jinja", template, row, "$role", CONTROLS, TOKENS) in (["a<|im_end|>"], "spans_unproven")


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
