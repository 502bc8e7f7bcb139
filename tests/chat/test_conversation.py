"""Spans of whole conversations: marked and derived, on templates that try to lead them astray."""

import re
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import example, given

from tests.chat.trained import each, outcome, said, say, talk, trained

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{% if m.role == 'assistant' %}{% generation %}{{ m.content + '<|im_end|>' }}{% endgeneration %}"
    "{% else %}{{ m.content + '<|im_end|>' }}{% endif %}{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TRIMMED = CHATML.replace("m.content", "m.content | trim").replace("| trim + '<|im_end|>'", "| trim }}{{ '<|im_end|>'")
# No generation prompt, the system's text in the first user turn, the end of a user turn is no special token.
FOLDED = (
    "{{ bos_token }}{% set ns = namespace(system='', first=true) %}{% for m in messages %}"
    "{% if m.role == 'system' %}{% set ns.system = m.content + '\n\n' %}"
    "{% elif m.role == 'user' %}{{ '[INST] ' + (ns.system if ns.first else '') + m.content + ' [/INST]' }}"
    "{% set ns.first = false %}"
    "{% else %}{% generation %}{{ m.content + eos_token }}{% endgeneration %}{% endif %}{% endfor %}"
)
# Roles in words; the space behind "Assistant:" is the answer's.
WORDS = (
    "{% for m in messages %}{% if m.role == 'assistant' %}{{ 'Assistant:' }}"
    "{% generation %}{{ ' ' + m.content + eos_token }}{% endgeneration %}{{ '\n' }}"
    "{% else %}{{ m.role | capitalize + ': ' + m.content + '\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
TEMPLATES = {"chatml": CHATML, "trimmed": TRIMMED, "folded": FOLDED, "words": WORDS}


def plain(template: str) -> str:
    """The template without its marks."""
    return re.sub(r"{% (end)?generation %}", lambda found: "{% endif %}" if found[1] else "{% if true %}", template)


# Marked spans, wherever the blocks stand


@pytest.mark.parametrize(
    "body",
    [
        "{% set x %}{% generation %}{{ m.content }}!{% endgeneration %}{% endset %}h:{{ x }}",
        "{% set x %}h:{% generation %}{{ m.content }}!{% endgeneration %}{% endset %}{{ x }}",
        "{{ speak(m) }}",
        "{% filter replace('q', 'q') %}h:{% generation %}{{ m.content }}!{% endgeneration %}{% endfilter %}",
        "{% call wrap() %}{% generation %}{{ m.content }}!{% endgeneration %}{% endcall %}",
        "{% for i in [1] %}{% for j in [1] %}h:{% generation %}{{ m.content }}!{% endgeneration %}"
        "{% endfor %}{% endfor %}",
        "h:{% generation %}{% for c in m.content %}{{ c }}{% endfor %}!{% endgeneration %}",
    ],
)
def test_blocks_in_captures_macros_filters_and_loops(body: str) -> None:
    template = (
        "{% macro speak(m) %}h:{% generation %}{{ m.content }}!{% endgeneration %}{% endmacro %}"
        "{% macro wrap() %}h:{{ caller() }}{% endmacro %}"
    )
    template += each("{% if m.role == 'assistant' %}" + body + "{% else %}<{{ m.content }}>{% endif %}")
    assert said(template, talk("alpha", "h:beta", "h:beta!", "gamma")) == ["h:beta!", "gamma!"]


@pytest.mark.parametrize("change", ["upper", "reverse"])
def test_marks_that_a_filter_loses_train_no_other_text(change: str) -> None:
    marked = "{{ m.role[0] }}{% generation %}{{ m.content }}{% endgeneration %}"
    template = each("{% filter " + change + " %}" + marked + "{% endfilter %}")
    found = said(template, talk("q", "bc"))
    assert isinstance(found, str) or "".join(found) in ("", "BC"), found


def test_several_blocks_a_message() -> None:
    template = (
        "{% for m in messages %}{% if m.role == 'assistant' %}"
        "[{% generation %}{{ m.think }}{% endgeneration %}|{% generation %}{{ m.content }}{% endgeneration %}]"
        "{% else %}<{{ m.content }}>{% endif %}{% endfor %}"
    )
    messages = [say("user", "q"), say("assistant", "a", think="t"), say("user", "r"), say("assistant", "b", think="u")]
    assert said(template, messages) == ["t", "a", "u", "b"]
    assert said(template, messages, assistant="last") == ["u", "b"]
    messages[1]["train"], messages[3]["train"] = True, False
    assert said(template, messages) == ["t", "a"]


# Derived spans


def test_a_folded_system_message_ends_no_turn_and_is_not_the_users() -> None:
    messages = talk("hello", "hi", "more", "ok", system="be kind")
    assert said(plain(FOLDED), messages) == ["hi</s>", "ok</s>"]
    # " [/INST]" is no special token, and no word of the user's.
    assert said(plain(FOLDED), messages, user="train") == ["hello", "more"]
    assert said(plain(FOLDED), messages, system="train") == ["be kind"]
    assert said(FOLDED, messages, system="train") == ["be kind"]
    same = talk("be kind", "be kind", system="be kind")
    assert said(plain(FOLDED), same, user="train") == ["be kind"]


def test_only_a_message_that_is_to_be_trained_rejects_its_record() -> None:
    template = (
        "{% for m in messages %}{{ m.role[0] + ':' }}{% if m.role == 'assistant' %}{{ messages[0].content }}{% endif %}"
        "{{ m.content + '</s>' }}{% endfor %}{% if add_generation_prompt %}a:{% endif %}"
    )
    assert said(template, talk("q", "a")) == "turn_apart"
    assert said(template, talk("q", "a"), user="train") == ["q</s>"]
    assert said(template, talk("q", "a"), user="mask") == []
    assert said(template, [say("user", "q"), say("assistant", "a", train=True)], user="mask") == "turn_apart"
    assert said(template, [say("user", "q"), say("assistant", "a", train=False)]) == []


def test_every_action_takes_the_turn_with_its_end() -> None:
    answered = "a<|im_end|>\n<|im_start|>user\nr<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n"
    wanted = {
        "$role": ["a<|im_end|>", "b<|im_end|>"],
        "$last": ["b<|im_end|>\n"],
        "train": ["<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n" + answered],
        "prompt": [answered],
    }
    assert {action: trained(plain(CHATML), talk("q", "a", "r", "b"), action) for action in wanted} == wanted


# Anything

ALIKES = ["<|im_end|>", "<|im_start|>assistant\n", "</s>", "[/INST]", " [INST] ", "Assistant:", "user", "\n\n", " "]
ROLES = ["system", "user", "assistant"]
ANY = st.text(st.characters(codec="utf-8"), max_size=6)
EDGED = st.lists(st.one_of(st.sampled_from(ALIKES), ANY), max_size=5).map("".join)


@st.composite
def conversations(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Every content holds a text of its own in its middle."""

    def content(place: int) -> str:
        drawn = draw(EDGED)
        half = len(drawn) // 2
        return f"{drawn[:half]}⟦{place}⟧{drawn[half:]}"

    turns, has_system = draw(st.integers(1, 6)), draw(st.booleans())
    system = content(0) if has_system else None
    return talk(*[content(turn + has_system) for turn in range(turns)], system=system)


@given(conversations(), st.sampled_from(sorted(TEMPLATES)))
@example(talk("a", "b", system=""), "folded")
@example(talk("same", "same", "same", "same"), "folded")
@example(talk("[/INST]", "[/INST]", "]", "s"), "folded")
@example(talk("<|im_end|>", "<|im_end|>", "</s>", "</s>"), "chatml")
@example(talk("system", "b", system="system"), "chatml")
@example(talk("Assistant: a", "Assistant:", "A", "Assist"), "words")
def test_derived_equals_marked(messages: list[dict[str, Any]], name: str) -> None:
    assert outcome(plain(TEMPLATES[name]), messages) == outcome(TEMPLATES[name], messages)


@given(conversations(), st.sampled_from(sorted(TEMPLATES)), st.sets(st.sampled_from(ROLES)), st.booleans())
def test_what_is_trained_is_what_was_said(
    messages: list[dict[str, Any]], name: str, roles: set[str], marked: bool
) -> None:
    template = TEMPLATES[name] if marked else plain(TEMPLATES[name])
    found = said(template, messages, **dict.fromkeys(roles, "train"), other="mask")
    if name == "folded" and messages[-1]["role"] == "system":
        assert found == "not_rendered"
        return
    text = "".join(found)
    assert re.findall("⟦[0-9]+⟧", text) == [f"⟦{n}⟧" for n, m in enumerate(messages) if m["role"] in roles]
    assert all(message["content"].strip() in text for message in messages if message["role"] in roles)
