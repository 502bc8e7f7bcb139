"""Chats that a plan renders: pieces, segments and prompts as `Conversation` and jinja give them, whatever is said."""

import functools
from typing import Any

import hypothesis.strategies as st
import pytest
from beam_prep.core.chat.fences import FENCES
from beam_prep.core.chat.recorded import plans
from beam_prep.core.chat.template import ChatTemplate
from beam_prep.core.pieces.apply import apply_template
from beam_prep.core.pieces.rendered import Rendered
from beam_prep.core.pieces.voice import Voice
from hypothesis import given

from beam_prep import testing
from beam_prep.core.data.ragged import Ragged
from beam_prep.core.data.schema import Output, Section
from beam_prep.core.encoding.spans import TokenSpans
from beam_prep.core.tokens.tokenize import tokenize
from tests.core.chars import Chars
from tests.core.chat.test_conversation import CONTROLS, TEMPLATES, TOKENS, plain, talk
from tests.core.reference import same_pieces

# A default system message; the system's own text before all others.
DEFAULT = (
    "{% if messages[0].role == 'system' %}{{ '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}"
    "{% else %}{{ '<|im_start|>system\nYou are here.<|im_end|>\n' }}{% endif %}"
    "{% for m in messages %}{% if m.role in ['user', 'assistant'] or (m.role == 'system' and not loop.first) %}"
    "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' + '\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# It decides by what is said, and writes something between header and content.
THINKS = (
    "{{ bos_token }}{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{% if '</think>' in m.content %}{{ m.content.split('</think>')[-1] }}"
    "{% else %}{{ '<think>\n' + m.content }}{% endif %}"
    "{{ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SOURCES = {
    **TEMPLATES,
    **{f"{name} unmarked": plain(source) for name, source in TEMPLATES.items()},
    "default": DEFAULT,
    "thinks": THINKS,
}
ROWS = {
    "$role": (Section("messages", "$role", "conversation"),),
    "$last": (Section("messages", "$last", "conversation"),),
    "train": (Section("messages", "train", "conversation"),),
    "prompt": (Section("prompt", "mask", "conversation"), Section("messages", "train", "conversation")),
}
SAID = [
    "x", "hello there", "m", "im_end", "assistant", "user\n", "", " ", "\n", " x", "x ", "\nx\n", "a b", "1",
    "Assistant:", *CONTROLS, "<|im_start|>assistant\n", "x<|im_end|>", "<|im_end|>\n<|im_start|>assistant\nx",
    "<|im_end", "[/INST]",
    "a</think>b", "</think>", "é", f"a{FENCES[0]}b", f"{FENCES[1]}", "\u0301e", "You are here.",
]  # fmt: skip
ROLES = st.lists(st.sampled_from(["user", "assistant", "assistant", "system", "tool"]), min_size=1, max_size=5)


@functools.cache
def voice(name: str, plans: bool) -> Voice:
    return Voice(ChatTemplate(SOURCES[name], TOKENS, plans), CONTROLS, "<s>", "</s>")


def rendered(name: str, rows: list[dict[str, Any]], action: str, plans: bool) -> Rendered:
    output = Output("sequence", "ids", ROWS[action], "loss_mask")
    return apply_template(testing.records(rows), (output,), voice(name, plans))


def assert_same(one: Rendered, other: Rendered) -> None:
    assert one.ledger.status.tolist() == other.ledger.status.tolist()
    assert one.ledger.outcomes == other.ledger.outcomes
    assert one.ledger.messages == other.ledger.messages
    mine, theirs = one.pieces["sequence"], other.pieces["sequence"]
    assert mine.texts == theirs.texts
    assert mine.segments.tolist() == theirs.segments.tolist()
    assert same_pieces(mine, theirs)


@pytest.fixture(autouse=True, scope="module")
def at_once() -> Any:
    """Plans from the second conversation of a pattern on."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plans, "SIGHTINGS_BEFORE_TRACE", 1)
        yield


@pytest.mark.parametrize("action", ROWS)
@pytest.mark.parametrize("name", SOURCES)
@given(roles=ROLES, said=st.lists(st.lists(st.sampled_from(SAID), min_size=5, max_size=5), min_size=3, max_size=3))
def test_as_conversations_and_jinja_give_them(name: str, action: str, roles: list[str], said: list[list[str]]) -> None:
    rows = []
    for contents in said:
        messages = [{"role": role, "content": text} for role, text in zip(roles, contents, strict=False)]
        rows.append(
            {"prompt": messages[:-1], "messages": messages[-1:]} if action == "prompt" else {"messages": messages}
        )
    assert_same(rendered(name, rows, action, True), rendered(name, rows, action, False))


@pytest.mark.parametrize("name", ["chatml", "chatml unmarked", "default"])
@pytest.mark.parametrize("action", ["$role", "$last", "prompt"])
def test_plain_chats_need_no_look_at_the_text(name: str, action: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[dict[str, Any]] = []
    for number in range(6):
        messages = talk(f"question {number}", "answer", "and", f"more {number}")
        rows.append(
            {"prompt": messages[:3], "messages": messages[3:]} if action == "prompt" else {"messages": messages}
        )
    wanted = rendered(name, rows, action, False)
    rendered(name, rows, action, True)  # plans are recorded, and compared with jinja
    monkeypatch.setattr("beam_prep.core.pieces.conversations.Conversation.spans", None)
    monkeypatch.setattr(ChatTemplate, "render", None)
    assert_same(rendered(name, rows, action, True), wanted)


@pytest.mark.parametrize("plans", [True, False])
def test_a_prompt_is_not_encoded(plans: bool) -> None:
    rows = [{"messages": talk(f"question {number}", f"answer {number}")} for number in range(8)]
    rendered("chatml unmarked", rows, "$last", plans)
    block = rendered("chatml unmarked", rows, "$last", plans)
    asked: list[str] = []

    class Noted(Chars):
        def encode(self, texts: Any, add_special_tokens: bool) -> Any:
            asked.extend(texts)
            return super().encode(texts, add_special_tokens)

    batch = tokenize(block, Noted(), None)
    assert asked == list(block.pieces["sequence"].texts)
    starts = [text.index("answer") for text in asked]
    assert (batch.segments["sequence"].start - batch["sequence"].offsets[:-1]).tolist() == starts


def test_a_token_over_the_end_of_the_prompt_is_trained_and_counted() -> None:
    class Pairs(Chars):
        """Two characters are a token."""

        def encode(self, texts: Any, add_special_tokens: bool) -> Any:
            return Ragged.from_lists([[ord(text[at]) for at in range(0, len(text), 2)] for text in texts])

        def encode_spans(self, texts: Any, add_special_tokens: bool, spans: Any) -> Any:
            return self.encode(texts, add_special_tokens), TokenSpans(spans.start // 2, (spans.stop + 1) // 2)

    for question in ("q", "qq"):
        block = rendered("chatml unmarked", [{"messages": talk(question, "answer")}], "$last", False)
        batch = tokenize(block, Pairs(), None)
        start = block.pieces["sequence"].texts[0].index("answer")
        assert batch.segments["sequence"].start.tolist() == [start // 2]
        assert ("prompt_not_prefix" in batch.counters) == bool(start % 2)
