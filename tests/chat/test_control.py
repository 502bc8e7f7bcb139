"""Control-token text that a user typed must not become a control token, unless it is asked for."""

import functools
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from beam_prep import testing
from beam_prep.chat.apply import apply_template
from beam_prep.chat.chat_format import chat_format_of
from beam_prep.chat.checks import JOINER, Guard
from beam_prep.data.schema import Output, Section, TextRules
from beam_prep.tokens.batch import Batch
from beam_prep.tokens.tokenize import tokenize
from beam_prep.tokens.tokenizer import Tokenizer
from tests.conftest import ROOT, shared

REAL = (
    "qwen2.5",
    "gpt2",
    "mistral-v1",
    "mistral-v3",
    "minimind",
    "chatml-12k",
    "tekken-32k",
    "mistral-v1-conversations",
    "t5-small",
)
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
    return np.array([number for number, token in added if token.special and token.content != "<unk>"])


def counts(batch: Batch, ids: np.ndarray) -> list[int]:
    return batch["sequence"].sums(np.isin(batch["sequence"].flat, ids)).tolist()


@functools.cache
def load(name: str) -> Tokenizer:
    return Tokenizer.load(shared("tokenizers", name))


def typed(tokenizer: Tokenizer) -> list[str]:
    return [text for text in tokenizer.controls if text != "<unk>"][:12]


def chats(tokenizer: Tokenizer) -> Iterator[dict[str, Any]]:
    for text in typed(tokenizer):
        yield {
            "messages": [{"role": "user", "content": f"a {text} b{text}{text}"}, {"role": "assistant", "content": text}]
        }


@pytest.mark.parametrize("name", REAL)
@pytest.mark.parametrize("output", [CONVERSATION, MESSAGE, TEXT], ids=["conversation", "message", "text"])
def test_escaped_content_gives_no_control_token(name: str, output: Output) -> None:
    tokenizer = load(name)
    if output is TEXT:
        rows: list[dict[str, Any]] = [{"text": f"a {text} b {text}"} for text in typed(tokenizer)]
        plain: list[dict[str, Any]] = [{"text": "a x b x"}] * len(rows)
    elif tokenizer.chat_template is None:
        pytest.skip("this tokenizer has no chat template")
    elif output is MESSAGE and name.startswith("mistral-v1"):
        pytest.skip("this template refuses an answer alone")
    else:
        rows = list(chats(tokenizer))
        plain = [{"messages": [{"role": "user", "content": "a x b"}, {"role": "assistant", "content": "x"}]}] * len(
            rows
        )
    ids = control_ids(tokenizer)
    kept = tokens(tokenizer, output, rows, "keep")
    escaped = tokens(tokenizer, output, rows, "escape")
    ours = tokens(tokenizer, output, plain, "keep")
    assert len(escaped) == len(rows)
    assert counts(escaped, ids) == counts(ours, ids)  # those that the template writes, and the tokenizer adds
    assert all(more > wanted for more, wanted in zip(counts(kept, ids), counts(ours, ids), strict=True))


@pytest.mark.parametrize("name", ["qwen2.5", "mistral-v3", "minimind", "chatml-12k"])
def test_the_collection_of_injections_gives_no_control_token(name: str) -> None:
    tokenizer = load(name)
    path = shared("data", "bad", "special_tokens_in_content.jsonl")
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
    rows = [row for row in rows if row.get("messages")]
    harmless = json.loads(json.dumps(rows))
    for row in harmless:
        for message in row["messages"]:
            message["content"] = "x"
    ids = control_ids(tokenizer)
    escaped, plain = (
        tokens(tokenizer, CONVERSATION, given, rule) for given, rule in ((rows, "escape"), (harmless, "keep"))
    )
    assert len(escaped) == len(plain) > 20
    assert counts(escaped, ids) == counts(plain, ids)


def test_a_record_with_a_control_token_is_rejected_when_asked() -> None:
    tokenizer = Tokenizer.load(ROOT / "examples" / "tokenizer")
    rows = [{"text": "fine"}, {"text": "not <|im_end|> fine"}]
    batch = tokens(tokenizer, TEXT, rows, "reject")
    assert testing.rejects(batch) == [(1, "control_token")]
    assert "'<|im_end|>'" in batch.ledger.messages[1]


def test_every_string_of_a_record_is_guarded() -> None:
    guard = Guard("escape", ("<x>",))
    given = {"role": "<x>", "tools": [{"<x>": {"a": ["<x><x>", 1, None]}}]}
    escaped = f"<{JOINER}x>"
    assert guard(given) == {"role": escaped, "tools": [{escaped: {"a": [escaped * 2, 1, None]}}]}


def test_tokens_that_overlap_are_all_escaped() -> None:
    guard = Guard("escape", ("<<a>>", "<a>"))
    text = guard("<<a>>")
    assert "<<a>>" not in text
    assert "<a>" not in text
