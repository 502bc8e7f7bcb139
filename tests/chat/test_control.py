"""Control-token text that a user typed must not become a control token, unless it is asked for."""

import functools
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers

from beam_prep import testing
from beam_prep.chat.apply import apply_template
from beam_prep.chat.chat_format import chat_format_of
from beam_prep.chat.control import JOINER, Guard, control_tokens, parsed_tokens
from beam_prep.data.rendered import Rendered
from beam_prep.data.schema import Output, Section, TextRules
from beam_prep.errors import TokenizerError
from beam_prep.tokens.batch import Batch
from beam_prep.tokens.tokenize import tokenize
from beam_prep.tokens.tokenizer import Tokenizer
from tests.conftest import ROOT, shared
from tests.reference import ours

PARSED = ("<think>", "</think>")
"""Some of these templates parse them in an answer."""

CONVERSATION = Output("sequence", "ids", (Section("messages", "$role", "conversation"),), "loss_mask")
MESSAGE = Output("sequence", "ids", (Section("messages", "$role", "message"),), "loss_mask")
TEXT = Output("sequence", "ids", (Section("text", "train"),))


def tokens(tokenizer: Tokenizer, output: Output, rows: list[dict[str, Any]], rule: Any) -> Batch:
    chat_format = chat_format_of((output,), tokenizer, TextRules(control_tokens=rule))
    return tokenize(apply_template(testing.records(rows), (output,), chat_format), tokenizer, tokenizer.bos_id)


def control_ids(tokenizer: Tokenizer) -> np.ndarray:
    backend = tokenizer.reference
    # <unk> controls nothing: it stands for any character that a vocabulary lacks.
    added = backend.get_added_tokens_decoder().items()
    return np.array([number for number, token in added if token.content != "<unk>"])


def counts(batch: Batch, ids: np.ndarray) -> list[int]:
    return batch["sequence"].sums(np.isin(batch["sequence"].flat, ids)).tolist()


def load(name: str) -> Tokenizer:
    return ours(shared("tokenizers", name))


def typed(tokenizer: Tokenizer) -> list[str]:
    texts = control_tokens(tokenizer.added.values())
    return [text for text in texts if text != "<unk>" and text not in PARSED][:40]


@pytest.mark.parametrize(
    ("name", "output"),
    [("qwen2.5", CONVERSATION), ("mistral-v3", CONVERSATION), ("chatml-12k", MESSAGE), ("t5-small", TEXT)],
)
def test_escaped_content_gives_no_control_token(name: str, output: Output) -> None:
    tokenizer = load(name)
    rows: list[dict[str, Any]] = [asked(f"a {text} b{text}{text}", text) for text in typed(tokenizer)]
    plain = [asked("a x b", "x")] * len(rows)
    if output is TEXT:
        rows = [{"text": f"a {text} b {text}"} for text in typed(tokenizer)]
        plain = [{"text": "a x b x"}] * len(rows)
    ids = control_ids(tokenizer)
    kept = tokens(tokenizer, output, rows, "keep")
    escaped = tokens(tokenizer, output, rows, "escape")
    without = tokens(tokenizer, output, plain, "keep")
    assert len(escaped) == len(rows)
    assert counts(escaped, ids) == counts(without, ids)  # those that the template writes, and the tokenizer adds
    assert all(more > wanted for more, wanted in zip(counts(kept, ids), counts(without, ids), strict=True))


def test_every_string_of_a_record_is_guarded() -> None:
    guard = Guard("escape", ("<x>",))
    harmless = {"arguments": '{"as":  ["it", "was\\n"]}'}
    given = {"role": "<x>", "tools": [{"<x>": {"a": ["<x><x>", 1, None]}}], **harmless}
    escaped = f"<{JOINER}x>"
    assert guard(given, "record") == {"role": escaped, "tools": [{escaped: {"a": [escaped * 2, 1, None]}}], **harmless}


def test_tokens_that_overlap_are_all_escaped() -> None:
    text = Guard("escape", ("<<a>>", "<a>"))("<<a>>", "text")
    assert "<<a>>" not in text
    assert "<a>" not in text


THINKS = (
    "{% for m in messages %}{% set text = m.content %}"
    "{% if m.role == 'assistant' and '</think>' in text %}{% set text = text.split('</think>')[-1] %}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ text }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)
"""Parses one tag, as DeepSeek-R1's."""


def asked(question: Any, answer: Any = "Fine.", **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}], **more}


def parts(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts]


def called(arguments: Any, result: str = "Nine.") -> dict[str, Any]:
    call = {"id": "call00001", "type": "function", "function": {"name": "look", "arguments": arguments}}
    messages = [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "name": "look", "content": result},
        {"role": "assistant", "content": "Done."},
    ]
    return {"messages": messages}


def in_words(row: dict[str, Any], source: str, rule: Any) -> Rendered:
    rules = TextRules(control_tokens=rule, chat_template=source)
    chat_format = chat_format_of((CONVERSATION,), load("chatml-12k"), rules)
    return apply_template(testing.records([row]), (CONVERSATION,), chat_format)


def outcome(name: str, row: dict[str, Any], output: Output = CONVERSATION) -> str:
    """ "kept", or the message of the reject."""
    batch = tokens(load(name), output, [row], "reject")
    assert {reason for _, reason in testing.rejects(batch)} <= {"control_token"}
    return batch.ledger.messages.get(0, "kept")


FOUND = '\'{}\' holds the control token \'{}\', wanted none ("control_tokens": "escape" in "preprocessing" '
FOUND += "makes it plain text)"


@pytest.mark.parametrize(
    ("row", "where", "token"),
    [
        (asked("Ignore that. </tool_call>"), "messages[0].content", "</tool_call>"),
        (asked(parts("a <tool", "_call> b")), "messages[0].content", "<tool_call>"),
        (called({"port": ["<|repo_name|>"]}), "messages[1].tool_calls[0].function.arguments.port[0]", "<|repo_name|>"),
        (called('{"port": "<\\/tool_call>"}'), "messages[1].tool_calls[0].function.arguments.port", "</tool_call>"),
        (asked("Hi", tools=[{"name": "a<|fim_pad|>"}]), "tools[0].name", "<|fim_pad|>"),
    ],
)  # fmt: skip
def test_tokens_that_are_not_flagged_special_control_too(row: dict[str, Any], where: str, token: str) -> None:
    assert outcome("qwen2.5", row) == FOUND.format(where, token)
    number = load("qwen2.5").reference.token_to_id(token)
    given, escaped = (tokens(load("qwen2.5"), CONVERSATION, [row], rule) for rule in ("keep", "escape"))
    assert counts(escaped, np.array([number])) < counts(given, np.array([number]))


R1 = "models/lcpp-deepseek-ai-DeepSeek-R1-Distill-Llama-8B.jinja"


@pytest.mark.parametrize(
    ("template", "question", "answer", "kept"),
    [
        ("trl/qwen3.jinja", "Hi", [{"type": "text", "text": "<think>\nWell.\n</think>\n\nYes."}], True),
        ("trl/qwen3.jinja", "Hi </think>", "Yes.", False),
        ("trl/qwen3.jinja", "Hi", "<tool_call>Yes.", False),
        (R1, "Hi", "<think>\nWell.\n</think>\n\nYes.", True),
        ("models/lcpp-Qwen-Qwen2.5-7B-Instruct.jinja", "Hi", "<think>\nWell.\n</think>\n\nYes.", False),
    ],
)  # fmt: skip
def test_an_answer_may_hold_what_its_template_parses(template: str, question: str, answer: Any, kept: bool) -> None:
    source = shared("templates", template).read_text(encoding="utf-8")
    rendered = in_words(asked(question, answer), source, "reject")
    assert (rendered.ledger.messages == {}) == kept, rendered.ledger.messages


def test_what_a_template_parses_is_not_escaped_in_answers() -> None:
    row = asked("a <think> b </think>", "<think>\nWell.</think>Yes <|im_end|>.")
    made = in_words(row, THINKS, "escape")
    escaped = f"a <{JOINER}think> b <{JOINER}/think>"
    answer = f"Yes <{JOINER}|im_end|>."
    assert made.pieces["sequence"].texts == [
        f"<|im_start|>user\n{escaped}<|im_end|>\n<|im_start|>assistant\n{answer}<|im_end|>\n"
    ]


def test_parsed_tokens_are_found_by_rendering() -> None:
    def written(content: str) -> str:
        shown = content.split("</a>")[-1].removeprefix("[B]").replace("{c}\n", "")
        return f"said: {shown.strip()}" if "<d>" not in shown else "<d>"

    tokens_ = ["</a>", "[B]", "<e>", "{c}", "<d>"]
    assert parsed_tokens(written, tokens_, ["<a>", *tokens_]) == ["</a>", "[B]", "{c}", "<d>", "<a>"]
    assert parsed_tokens(lambda content: None, tokens_, tokens_) == []


def test_words_and_blanks_of_a_vocabulary_control_nothing() -> None:
    def added(content: str, special: bool = False) -> tokenizers.AddedToken:
        return tokenizers.AddedToken(content, special=special)

    blanks = ["\n\n", "  ", "\u2581\u2581", ""]
    words = ["covid", "你好", "2026", "हिन्दी", "cafe\u0301", "snake_case", "COVID-19"]
    signs = ["don't", "C++", "e.g.", "\\frac", "(c)", "°C", "...", "```", ":)", "❤\ufe0f", "👍🏽", "🇩🇪", "==", "\u00f7"]
    marked = ["<x>", "[y]", "</y>", "\u2581<PRE>", "__end__", "|end|", "\uff5cDSML\uff5c", "<tool>\n"]
    texts = [*blanks, *words, *signs, *marked, "### User", "### Other"]
    found = control_tokens([*map(added, texts), added("END", True), added("", True)], "{{ m }} ### User covid ==")
    assert sorted(found) == sorted([*marked, "### User", "END"])


# Tokens that no single text holds


def with_added(*added: tokenizers.AddedToken, **parts: Any) -> Tokenizer:
    """The example's tokenizer with tokens added to it, and with other parts."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "tokenizer")
        shutil.copytree(ROOT / "examples" / "tokenizer", copy)
        made = json.loads((copy / "tokenizer.json").read_text())
        backend = tokenizers.Tokenizer.from_str(json.dumps({**made, **parts}))
        backend.add_tokens([*added])
        backend.save(str(copy / "tokenizer.json"))
        return Tokenizer.load(copy)


JOINT = Output("sequence", "ids", (Section("prompt", "mask"), Section("completion", "train")), "loss_mask", joint=True)
JOINED = "{{ messages | map(attribute='content') | join('') }}<|im_end|>"


WIDE = "\uff1cfi", "nd\uff1e"
"""Halves of what NFKC makes the token `<find>`."""
HALVES = "<fi", "nd>"


@pytest.mark.parametrize("rule", ["reject", "escape"])
@pytest.mark.parametrize(
    ("output", "row", "source"),
    [
        (TEXT, {"text": "a \uff1cfind\uff1e b"}, None),
        (JOINT, {"prompt": f"a {HALVES[0]}", "completion": f"{HALVES[1]} b"}, None),
        (CONVERSATION, asked(*HALVES), JOINED),
        (CONVERSATION, asked(parts(*WIDE)), JOINED),
        (CONVERSATION, asked("find", "find"), "{% for m in messages %}<{{ m.content }}>{% endfor %}"),
        (MESSAGE, asked("find", "find"), "{% for m in messages %}<{{ m.content }}>{% endfor %}"),
    ],
)
def test_a_token_that_comes_about_behind_the_normaliser_or_at_a_seam_is_rejected(
    output: Output, row: dict[str, Any], source: str | None, rule: Any
) -> None:
    assert testing.rejects(with_find(output, row, source, rule)) == [(0, "control_token")]


@pytest.mark.parametrize("rule", ["reject", "escape"])
def test_a_token_that_the_model_has_in_its_own_vocabulary_is_rejected_behind_the_normaliser(rule: Any) -> None:
    rows = [{"text": text} for text in ("\uff1c/s\uff1e", "a \uff1cextra_id_0\uff1e", "a b")]
    assert testing.rejects(tokens(load("t5-small"), TEXT, rows, rule)) == [(0, "control_token"), (1, "control_token")]


@functools.cache
def finding() -> Tokenizer:
    added = tokenizers.AddedToken("<find>", special=False, normalized=True)
    return with_added(added, normalizer={"type": "NFKC"})


def with_find(output: Output, row: dict[str, Any], source: str | None, rule: Any) -> Batch:
    """The tokens of a record, of a tokenizer whose normaliser may make the token `<find>`."""
    tokenizer = finding()
    chat_format = chat_format_of((output,), tokenizer, TextRules(control_tokens=rule, chat_template=source))
    return tokenize(apply_template(testing.records([row]), (output,), chat_format), tokenizer, None)


def test_a_reject_shows_where_joined_texts_form_a_token() -> None:
    row = {"prompt": "a" * 30 + HALVES[0], "completion": HALVES[1] + "b" * 30}
    (message,) = with_find(JOINT, row, None, "reject").ledger.messages.values()
    assert f"joined texts form the control token '<find>': '{'a' * 20}<find>{'b' * 20}'; change the texts" in message


def test_tokens_that_the_template_writes_are_no_seams() -> None:
    source = "{% for m in messages %}\uff1cfind><find>{{ m.content }}<find>{% endfor %}"
    for output in (CONVERSATION, MESSAGE):
        assert testing.rejects(with_find(output, asked("a <b", "> c"), source, "reject")) == []


def test_an_escape_that_the_tokenizer_takes_away_is_an_error() -> None:
    added = tokenizers.AddedToken("<find>", special=False, normalized=True)
    tokenizer = with_added(added, normalizer={"type": "Replace", "pattern": {"String": JOINER}, "content": ""})
    with pytest.raises(TokenizerError, match="because its normalizer removes the escape: use 'reject'"):
        chat_format_of((TEXT,), tokenizer, TextRules(control_tokens="escape"))
