"""Spans of whole conversations: marked and derived, on templates that try to lead them astray.

With `Chars` a token is a character, so masks can be read: `said` gives the trained runs of text.
"""

import itertools
import re
from typing import Any

import hypothesis.strategies as st
import pytest
from beam_prep.core.chat.template import ChatTemplate
from beam_prep.core.pieces.apply import apply_template
from beam_prep.core.pieces.voice import Voice
from hypothesis import example, given, settings

from beam_prep import testing
from beam_prep.core.data.schema import Output, Section
from beam_prep.core.tokens.mask import RoleMask, build_mask
from beam_prep.core.tokens.tokenize import tokenize
from tests.core.chars import Chars

CONTROLS = ("<|im_start|>", "<|im_end|>", "<s>", "</s>")
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
ROW = (Output("sequence", "ids", (Section("messages", "$role", "conversation"),), "loss_mask"),)

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
    "{% else %}{{ ' ' }}{% generation %}{{ m.content + eos_token }}{% endgeneration %}{% endif %}{% endfor %}"
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


def say(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def talk(*contents: str, system: str | None = None) -> list[dict[str, Any]]:
    """User and assistant in turn."""
    roles = itertools.cycle(["user", "assistant"])
    head = [] if system is None else [say("system", system)]
    return head + [say(role, content) for role, content in zip(roles, contents, strict=False)]


def outcome(template: str, messages: list[dict[str, Any]], default: Any = "mask", **roles: Any) -> tuple[str, Any]:
    """("", the row as text, its mask), or the reason of the reject."""
    voice = Voice(ChatTemplate(template, TOKENS), CONTROLS, "<s>", "</s>")
    rows = [{"messages": messages}]
    batch = build_mask(
        tokenize(apply_template(testing.records(rows), ROW, voice), Chars(), None),
        RoleMask(roles or {"assistant": "train"}, default),
    )
    if not len(batch):
        ledger = batch.ledger
        return ledger.outcomes[ledger.status[0] - 1][1], ledger.messages.get(0)
    text = "".join(map(chr, batch["sequence"].to_lists()[0]))
    return "", (text, batch["loss_mask"].to_lists()[0])


def said(template: str, messages: list[dict[str, Any]], default: Any = "mask", **roles: Any) -> Any:
    """The trained runs of text, or the reason of the reject."""
    reason, found = outcome(template, messages, default, **roles)
    if reason:
        return reason
    text, mask = found
    groups = itertools.groupby(zip(text, mask, strict=True), key=lambda pair: pair[1])
    return ["".join(character for character, _ in run) for trained, run in groups if trained]


# Marked spans, wherever the blocks stand


@pytest.mark.parametrize(
    "body",
    [
        "{% set x %}{% generation %}{{ m.content }}!{% endgeneration %}{% endset %}h:{{ x }}",
        "{% set x %}h:{% generation %}{{ m.content }}!{% endgeneration %}{% endset %}{{ x }}",
        "{% set ns.text %}h:{% generation %}{{ m.content }}!{% endgeneration %}{% endset %}{{ ns.text }}",
        "{{ speak(m) }}",
        "{% filter replace('q', 'q') %}h:{% generation %}{{ m.content }}!{% endgeneration %}{% endfilter %}",
        "{% call wrap() %}{% generation %}{{ m.content }}!{% endgeneration %}{% endcall %}",
        "{% for i in [1] %}{% for j in [1] %}h:{% generation %}{{ m.content }}!{% endgeneration %}"
        "{% endfor %}{% endfor %}",
        "h:{% generation %}{% for c in m.content %}{{ c }}{% endfor %}!{% endgeneration %}",
        "h:{% generation %}{% set x %}{{ m.content }}{% endset %}{{ x }}!{% endgeneration %}",
    ],
)
def test_blocks_in_captures_macros_filters_and_loops(body: str) -> None:
    template = (
        "{% macro speak(m) %}h:{% generation %}{{ m.content }}!{% endgeneration %}{% endmacro %}"
        "{% macro wrap() %}h:{{ caller() }}{% endmacro %}{% set ns = namespace(text='') %}"
        "{% for m in messages %}{% if m.role == 'assistant' %}"
        + body
        + "{% else %}<{{ m.content }}>{% endif %}{% endfor %}"
    )
    assert said(template, talk("alpha", "h:beta", "h:beta!", "gamma")) == ["h:beta!", "gamma!"]


def test_a_capture_that_changes_the_text_is_not_proven() -> None:
    template = (
        "{% for m in messages %}{% filter upper %}{% generation %}{{ m.content }}"
        "{% endgeneration %}{% endfilter %}{% endfor %}"
    )
    assert said(template, [say("assistant", "bc")]) == ["BC"]  # as many characters, in the same places
    assert said(template.replace("upper", "reverse"), [say("assistant", "bc")]) == "spans_unproven"


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


def test_a_loop_in_a_macro_keeps_its_marked_spans() -> None:
    template = (
        "{% macro all(ms) %}{% for m in ms %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
        "{% endgeneration %};{% else %}{{ m.content }};{% endif %}{% endfor %}{% endmacro %}{{ all(messages) }}"
    )
    assert said(template, talk("yes", "yes", "yes", "no")) == ["yes", "no"]
    assert said(template, talk("yes", "yes", "yes", "no"), assistant="last") == ["no"]


def test_what_the_template_does_not_mark_is_not_trained() -> None:
    template = (
        "{% for m in messages %}{% if loop.last %}{% generation %}{{ m.content }}{% endgeneration %}"
        "{% else %}{{ m.content }}{% endif %};{% endfor %}"
    )
    assert said(template, talk("a", "b", "c", "d")) == ["d"]


# Derived spans


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize(
    "messages",
    [
        talk("assistant", "assistant"),
        talk("user", "user", "assistant", "user"),
        talk("same", "same", "same", "same"),
        talk("", ""),
        talk("  \n", " "),
        talk("x", "", "", "y"),
        talk("d", "d", "e", "im_end"),
        talk("<|im_end|>", "<|im_end|>", "</s>", "</s>"),
        talk("[/INST]", " [/INST]", "]", "s"),
        talk("q<|im_end|>\n<|im_start|>assistant\nno<|im_end|>", "<|im_start|>user\n</s>[INST] x [/INST]"),
        talk("Assistant: a", "Assistant:", "A", "Assist"),
        talk(" lead", " lead", "trail \n", "trail \n"),
        talk("a", "b", system="a"),
        talk("system", "b", system="system"),
        talk("\u2028x\u3000", "\u00a0y\u2028"),
    ],
)
def test_derived_spans_are_the_marked_ones(name: str, messages: list[dict[str, Any]]) -> None:
    marked = outcome(TEMPLATES[name], messages)
    assert marked[0] == ""
    assert outcome(plain(TEMPLATES[name]), messages) == marked


@pytest.mark.parametrize("content", ["user", "u", "d", "im_end", "|>", "<|im_end|>", "\n", "", " x", "x ", "\nuser\n"])
def test_other_roles_begin_with_their_content(content: str) -> None:
    messages = [say("user", content), say("assistant", content), say("user", content)]
    assert said(CHATML, messages, user="train") == [content + "<|im_end|>"] * 2
    assert said(plain(CHATML), messages, default="train") == [content + "<|im_end|>"] * 3
    assert said(plain(TRIMMED), messages, user="train") == [content.strip() + "<|im_end|>"] * 2


def test_a_folded_system_message_is_nobodys() -> None:
    messages = talk("hello", "hi", "more", "ok", system="be kind")
    assert said(plain(FOLDED), messages) == ["hi</s>", "ok</s>"]
    # " [/INST]" is no special token, and no word of the user's.
    assert said(plain(FOLDED), messages, user="train") == ["hello", "more"]
    assert said(plain(FOLDED), messages, system="train") == "spans_unproven"
    assert said(FOLDED, messages, system="train") == "spans_unproven"
    same = talk("be kind", "be kind", system="be kind")
    assert said(plain(FOLDED), same, user="train") == ["be kind"]
    assert said(plain(FOLDED), talk("s", "s", system="s"), system="train") == "spans_unproven"


def test_a_system_message_written_before_the_loop() -> None:
    template = (
        "{{ '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}"
        "{% for m in messages[1:] %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    )
    assert said(template, talk("q", "a", system="be kind"), system="train") == ["be kind<|im_end|>"]
    assert said(template, [say("system", "be kind")], system="train") == ["be kind<|im_end|>"]


BY_INDEX = (
    "{% for i in range(messages | length) %}{{ '<|im_start|>' + messages[i].role + '\n' + messages[i].content }}"
    "{{ '<|im_end|>\n' }}{% endfor %}"
)
# What a message says is written in another's turn, or in nobody's.
ASTRAY = {
    "by index": BY_INDEX,
    "collected, then written": (
        "{% set ns = namespace(t='') %}{% for m in messages %}"
        "{% set ns.t = ns.t + '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' %}{% endfor %}{{ ns.t }}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    ),
    "a loop in a macro": (
        "{% macro all() %}{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
        "{% endfor %}{% endmacro %}{{ all() }}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    ),
    "a loop in a capture": (
        "{% set all %}{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
        "{% endfor %}{% endset %}{{ all }}"
    ),
    "the question kept for the answer": (
        "{% set ns = namespace(q='') %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.q = m.content %}"
        "{% else %}{{ 'Q: ' + ns.q + ' A: ' + m.content + '</s>' }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'Q: ' }}{% endif %}"
    ),
}


@pytest.mark.parametrize("name", ASTRAY)
@pytest.mark.parametrize("messages", [talk("yes", "no", "yes", "no"), talk("yes", "yes", "yes", "yes")])
def test_what_cannot_be_proven_is_rejected(name: str, messages: list[dict[str, Any]]) -> None:
    assert said(ASTRAY[name], messages) == "spans_unproven"


def test_the_next_message_in_this_ones_turn_is_not_trained() -> None:
    template = (
        "{% for m in messages %}{% if loop.index0 % 2 == 1 %}{{ m.content + '</s>' }}"
        "{% if not loop.last %}{{ messages[loop.index0 + 1].content + '</s>' }}{% endif %}"
        "{% elif loop.first %}{{ m.content + '</s>' }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ ' ' }}{% endif %}"
    )
    assert said(template, talk("yes", "no", "yes", "no")) == ["no</s>", "no</s>"]
    assert said(template, talk("yes", "yes", "yes", "yes")) == ["yes</s>", "yes</s>"]
    assert said(template, talk("yes", "no", "yes", "no"), user="train") == "spans_unproven"


@pytest.mark.parametrize("name", ["by index", "a loop in a macro", "collected, then written"])
def test_only_where_such_a_message_is_to_be_trained(name: str) -> None:
    assert said(ASTRAY[name], talk("a", "b"), user="mask") == []
    assert said(ASTRAY[name], [say("user", "a", train=True), say("assistant", "b")], user="mask") == "spans_unproven"
    assert said(ASTRAY[name], [say("user", "a"), say("assistant", "b", train=False)]) == []


def test_an_index_loop_with_blocks_is_proven_where_there_is_one_a_turn() -> None:
    template = BY_INDEX.replace(
        "messages[i].content }}{{ '<|im_end|>\n' }}",
        "'' }}{% if messages[i].role == 'assistant' %}{% generation %}{{ messages[i].content }}{% endgeneration %}"
        "{% else %}{{ messages[i].content }}{% endif %};",
    )
    assert said(template, talk("a", "b", "a", "c"), assistant="last") == ["c"]


def test_what_follows_the_loop_is_not_the_last_messages() -> None:
    template = (
        "{% for m in messages[:-1] %}{{ m.role + ':' + m.content + ';' }}{% endfor %}"
        "{{ messages[-1].role + ':' + messages[-1].content + '</s>' }}"
    )
    assert said(template, talk("a", "b", "c")) == ["b"]
    assert said(template, talk("a", "b", "c"), user="train") == "spans_unproven"
    ends = "{% for m in messages %}{{ m.role + ':' + m.content + ';' }}{% endfor %}{{ eos_token }}"
    assert said(ends, talk("a", "b")) == "spans_unproven"  # is ";" the end of the answer, or the "</s>"?
    assert said(ends.replace(" + ';'", ""), talk("a", "b")) == ["b</s>"]


def test_a_first_loop_that_only_looks() -> None:
    looks = "{% for m in messages[::-1] %}{% if m.role == 'user' %}{% set x = m.content %}{% endif %}{% endfor %}"
    assert said(looks + "{{ 'Have fun.\n' }}" + plain(CHATML), talk("a", "b", "a", "b")) == ["b<|im_end|>"] * 2
    nested = plain(CHATML).replace("{{ '\n' }}", "{% for o in messages %}{% if o.x %}{% endif %}{% endfor %}{{ '\n' }}")
    assert said(nested, talk("a", "b", "a", "b"), default="train") == ["a<|im_end|>", "b<|im_end|>"] * 2


def test_one_and_the_same_message_twice() -> None:
    again = say("assistant", "ok")
    chat = ChatTemplate(plain(CHATML), TOKENS).render_chat([say("user", "a"), again, say("user", "b"), again])
    texts = [chat.text[region[0] : region[1]] for region in chat.regions if region is not None]
    said_by = [("user", "a"), ("assistant", "ok"), ("user", "b"), ("assistant", "ok")]
    assert texts == [f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in said_by]


TOOLS = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% generation %}"
    "{% if m.reasoning_content %}{{ '<think>' + m.reasoning_content + '</think>' }}{% endif %}{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}{{ '<call>' + c.function | tojson + '</call>' }}{% endfor %}"
    "{{ '<|im_end|>' }}{% endgeneration %}{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CALL = {"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}
CALLED = '<call>{"name": "f", "arguments": {"x": 1}}</call>'


@pytest.mark.parametrize("template", [TOOLS, plain(TOOLS)])
@pytest.mark.parametrize(
    ("message", "wanted"),
    [
        (say("assistant", None, tool_calls=[CALL]), CALLED),
        ({"role": "assistant", "tool_calls": [CALL, CALL]}, CALLED * 2),
        (say("assistant", "", tool_calls=[CALL]), CALLED),
        (say("assistant", "x", tool_calls=[CALL]), "x" + CALLED),
        (say("assistant", "f", tool_calls=[CALL], reasoning_content="f"), "<think>f</think>f" + CALLED),
        (say("assistant", "a", reasoning_content="b"), "<think>b</think>a"),
        (say("assistant", "a", thinking="a"), "<think>a</think>a"),
        (say("assistant", "", reasoning_content="q"), "<think>q</think>"),
    ],
)
def test_tool_calls_and_reasoning(template: str, message: dict[str, Any], wanted: str) -> None:
    messages = [say("user", "f"), message, say("tool", "1"), say("assistant", "done")]
    assert said(template, messages) == [wanted + "<|im_end|>", "done<|im_end|>"]
    assert said(template, messages, assistant="last") == ["done<|im_end|>"]
    assert said(template, [messages[0], {**message, "train": True}, *messages[2:]], user="mask") == [
        wanted + "<|im_end|>"
    ]


def test_reasoning_that_stands_in_the_content_and_is_left_out() -> None:
    template = plain(CHATML).replace("m.content", "m.content.split('</think>')[-1].lstrip('\n')")
    messages = talk("q", "<think>\nq\n</think>\n\nyes", "q", "no")
    assert said(template, messages) == ["yes<|im_end|>", "no<|im_end|>"]


def test_a_content_that_is_not_written_is_not_proven() -> None:
    template = plain(CHATML).replace("m.content", "'...'")
    assert said(template, talk("a", "bcd")) == "spans_unproven"


def test_contents_that_hold_the_fences_themselves() -> None:
    for content in ("\ufdd0", "a\ufdd1b\ufdd0", "\ufdd0\U000f0001x\ufdd1\U000f0001"):
        assert said(plain(CHATML), talk(content, content)) == [content + "<|im_end|>"]
        assert said(plain(FOLDED), talk(content, content)) == [content + "</s>"]
        assert said(plain(CHATML), talk(content, ""), user="train") == [content + "<|im_end|>"]
        assert said(plain(FOLDED), talk(content, "")) == ["</s>"]
        assert said(plain(FOLDED), talk(content, "s")) == ["s</s>"]
        # Where marks are needed, and a content holds them, it is not guessed.
        untraced = plain(CHATML).replace("m.content", "'%s' % m.content")
        assert said(untraced, talk(content, "a")) == "spans_unproven"


@pytest.mark.parametrize("template", [CHATML, plain(CHATML)])
def test_last_and_the_messages_own_word(template: str) -> None:
    messages = talk("a", "b", "c", "d")
    assert said(template, messages, assistant="last") == ["d<|im_end|>"]
    messages[1]["train"] = True
    assert said(template, messages, assistant="last") == ["b<|im_end|>", "d<|im_end|>"]
    messages[3]["train"] = False
    assert said(template, messages, assistant="last") == ["b<|im_end|>"]
    messages[0]["train"] = True
    assert said(template, messages, assistant="mask") == ["a<|im_end|>", "b<|im_end|>"]


# Cost


@pytest.mark.parametrize("template", [CHATML, plain(CHATML), plain(FOLDED), TOOLS, plain(TOOLS)])
@pytest.mark.parametrize("content", ["turn {}", "a", " {} \n", "<|im_end|>", ""])
def test_rendering_is_linear_in_turns(template: str, content: str, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    run = ChatTemplate._run

    def counted(*args: Any) -> str:
        text = run(*args)
        written.append(len(text))
        return text

    monkeypatch.setattr(ChatTemplate, "_run", counted)
    counts = []
    for turns in (100, 200):
        written.clear()
        messages = [say("user" if n % 2 == 0 else "assistant", content.format(n % 10)) for n in range(turns)]
        assert outcome(template, messages, default="train")[0] == ""
        counts.append((len(written), sum(written)))
    (few, short), (many, long) = counts
    # The whole, the generation prompt (two), and what the template writes around any message.
    assert many == few <= (6 if content else 30)
    assert long < 2.1 * short


# Anything

ALIKES = ["<|im_end|>", "<|im_start|>assistant\n", "</s>", "[/INST]", " [INST] ", "Assistant:", "user", "\n\n", " "]
ANY = st.text(st.characters(exclude_characters="\ufdd0\ufdd1", codec="utf-8"), max_size=6)
EDGED = st.lists(st.one_of(st.sampled_from(ALIKES), ANY), max_size=5).map("".join)


@st.composite
def conversations(draw: st.DrawFn, contents: st.SearchStrategy[str] = EDGED) -> list[dict[str, Any]]:
    turns = draw(st.integers(1, 6))
    return talk(*[draw(contents) for _ in range(turns)], system=draw(contents) if draw(st.booleans()) else None)


@settings(max_examples=150, deadline=None)
@given(conversations(), st.sampled_from(sorted(TEMPLATES)))
@example(talk("a", "b", system=""), "folded")
def test_derived_equals_marked(messages: list[dict[str, Any]], name: str) -> None:
    marked = outcome(TEMPLATES[name], messages)
    assert marked[0] in ("", "empty")
    assert outcome(plain(TEMPLATES[name]), messages) == marked


@settings(max_examples=150, deadline=None)
@given(
    conversations(),
    st.sampled_from(sorted(TEMPLATES)),
    st.sets(st.sampled_from(["system", "user", "assistant"])),
    st.booleans(),
)
def test_what_is_trained_is_what_was_said(
    messages: list[dict[str, Any]], name: str, roles: set[str], marked: bool
) -> None:
    # Every content holds a text of its own in its middle.
    for place, message in enumerate(messages):
        half = len(message["content"]) // 2
        message["content"] = message["content"][:half] + f"⟦{place}⟧" + message["content"][half:]
    template = TEMPLATES[name] if marked else plain(TEMPLATES[name])
    found = said(template, messages, **dict.fromkeys(roles, "train"), other="mask")
    if name == "folded" and "system" in roles and messages[0]["role"] == "system":
        assert found == "spans_unproven"
        return
    text = "".join(found)
    assert re.findall("⟦[0-9]+⟧", text) == [f"⟦{n}⟧" for n, m in enumerate(messages) if m["role"] in roles]
    assert all(message["content"].strip() in text for message in messages if message["role"] in roles)
