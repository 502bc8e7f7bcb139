"""Ids and masks of whole conversations beside transformers' own: real tokenizers, real chats."""

import functools
import gzip
import itertools
import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import transformers

from beam_prep import testing
from beam_prep.chat.apply import apply_template
from beam_prep.chat.chat_format import ChatFormat, template_of
from beam_prep.data.schema import Output, Section, TextRules
from beam_prep.reading.adapters import adapter
from beam_prep.tokens.backends import choose, encoder_of
from beam_prep.tokens.rows import RoleMask, build_mask
from beam_prep.tokens.tokenize import tokenize
from beam_prep.tokens.tokenizer import Tokenizer
from tests.conftest import shared
from tests.reference import auto

pytestmark = pytest.mark.long

WITH_VARIANT = ("qwen2.5", "gpt2", "mistral-v1", "mistral-v3", "minimind")
MARKED = ("chatml-12k", "tekken-32k", "mistral-v1-conversations")
"""Tokenizers whose own template has generation blocks."""

FILES = {
    "chat_messages_sgd": ("chat_messages_sgd.jsonl.gz", 50),
    "dpo_hh_messages": ("dpo_hh_messages.jsonl", 100),
    "tool_messages_glaive_en": ("tool_messages_glaive_en.jsonl", 150),
    "sharegpt_vicuna_dummy": ("sharegpt_vicuna_dummy.jsonl", 200),
}
ROW = (Output("sequence", "ids", (Section("messages", "$role", "conversation"),), "loss_mask"),)

Row = tuple[list[int], list[int]]
"""(ids, mask) of a record."""


@functools.cache
def tokenizer(name: str) -> Tokenizer:
    return Tokenizer.load(shared("tokenizers", name))


def template(name: str, marked: bool) -> str:
    folder = shared("tokenizers", name)
    source = (folder / "chat_template.jinja").read_text()
    if name in WITH_VARIANT:
        return (folder / "chat_template_generation.jinja").read_text() if marked else source
    # The same without its marks; a block in their place, which treats white space in the same way.
    mark = r"({%-? *)(end)?generation( *-?%})"
    return source if marked else re.sub(mark, lambda m: m[1] + ("endif" if m[2] else "if true") + m[3], source)


@functools.cache
def records(file: str) -> list[dict[str, Any]]:
    name, count = FILES[file]
    path = shared("data", name)
    with gzip.open(path) if name.endswith(".gz") else open(path, "rb") as lines:
        rows = [json.loads(line) for line in itertools.islice(lines, count)]
    if file == "dpo_hh_messages":
        return [{"messages": row["chosen"]} for row in rows]
    adapt = adapter("sharegpt")
    return [adapt(row) for row in rows] if file == "sharegpt_vicuna_dummy" else rows


def ours(name: str, rows: Sequence[dict[str, Any]], source: str) -> list[Row | str]:
    """What beam_prep gives for each record, or its reason for rejecting it. (`name` may be a folder of its own.)"""
    made = tokenizer(name)
    encoder = encoder_of(made, choose(made, "auto")[0])
    tokens = made.special_tokens
    rules = TextRules(chat_template=source, tool_arguments="as_is", not_rendered="keep")
    chat_format = ChatFormat(
        template_of(made, rules.chat_template, tool_arguments=rules.tool_arguments),
        bos=tokens.get("bos_token", ""),
        eos=tokens.get("eos_token", ""),
        rules=rules,
    )
    rendered = apply_template(testing.records(rows), ROW, chat_format)
    batch = build_mask(tokenize(rendered, encoder, made.bos_id), RoleMask({"assistant": "train"}))
    found: dict[int, Row | str] = dict(testing.rejects(batch))
    columns = (batch["sequence"].to_lists(), batch["loss_mask"].to_lists())
    found.update(zip(batch.line.tolist(), zip(*columns, strict=True), strict=True))
    return [found[line] for line in range(len(rows))]


def with_ids(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages with an id for each call, which its result repeats: in this file a message has one call."""
    count = itertools.count(1)
    made: list[dict[str, Any]] = []
    for message in messages:
        if message.get("tool_calls"):
            calls = [{**call, "id": f"call{next(count):05}"} for call in message["tool_calls"]]
            message = {**message, "tool_calls": calls}
        elif message["role"] == "tool":
            message = {**message, "tool_call_id": made[-1]["tool_calls"][0]["id"]}
        made.append(message)
    return made


def theirs(name: str, rows: Sequence[dict[str, Any]], source: str) -> list[Row | str]:
    """What transformers gives for each record, or for one with ids of calls, or `template_error`: it refuses both."""
    from jinja2 import TemplateError

    reference = auto(shared("tokenizers", name))

    def encoded(row: dict[str, Any], messages: list[dict[str, Any]]) -> Row:
        found = reference.apply_chat_template(
            messages,
            tools=row.get("tools"),
            chat_template=source,
            tokenize=True,
            return_dict=True,
            return_assistant_tokens_mask=True,
        )
        return found["input_ids"], found["assistant_masks"]

    def either(row: dict[str, Any]) -> Row | str:
        try:
            return encoded(row, row["messages"])
        except (TemplateError, TypeError):
            pass
        try:
            return encoded(row, with_ids(row["messages"]))
        except (TemplateError, TypeError):
            return "template_error"

    return [either(row) for row in rows]


def trained(name: str, row: Row | str) -> str:
    assert not isinstance(row, str), row
    return tokenizer(name).decode([token for token, mark in zip(*row, strict=True) if mark])


@functools.cache
def marked(name: str, file: str) -> list[Row | str]:
    return ours(name, records(file), template(name, True))


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("name", WITH_VARIANT + MARKED)
def test_ids_and_masks_are_those_of_transformers(name: str, file: str) -> None:
    mine = marked(name, file)
    assert mine == theirs(name, records(file), template(name, True))
    # Many of the tool files' records have a role `tool`, or calls without content.
    refuses = file.startswith("tool") and name in ("mistral-v1", "mistral-v1-conversations")
    assert any(isinstance(row, str) for row in mine) == refuses
    assert all(1 in row[1] for row in mine if not isinstance(row, str))


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("name", ["qwen2.5", "gpt2", "mistral-v1", "mistral-v3", "chatml-12k", "tekken-32k"])
def test_derived_spans_are_the_marked_ones(name: str, file: str) -> None:
    assert ours(name, records(file), template(name, False)) == marked(name, file)


# Where transformers is wrong, or was: 5.24 masks every token that overlaps a block, as we do.

MENDED = tuple(map(int, transformers.__version__.split(".")[:2])) >= (5, 24)


@pytest.mark.parametrize("answer", [" Hello.", "    Hello."])
def test_white_space_at_the_beginning_of_an_answer(answer: str, tmp_path: Path) -> None:
    """With `trim_offsets: true`, as Llama 3 and RoBERTa have it, a space at a token's edge belongs to no token.

    Before 5.24 transformers looks for the token of a block's first character, finds none, and masks nothing from there
    on: not this answer, and no later one. Ours covers both, whether the spans are marked or derived.
    """
    folder = shutil.copytree(shared("tokenizers", "gpt2"), tmp_path / "trimming")
    backend = json.loads((folder / "tokenizer.json").read_text())
    byte_level = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    backend["post_processor"] = {"type": "Sequence", "processors": [byte_level]}
    (folder / "tokenizer.json").write_text(json.dumps(backend))
    talk = [("user", "Hi"), ("assistant", answer), ("user", "More"), ("assistant", "Bye.")]
    rows = [{"messages": [{"role": role, "content": content} for role, content in talk]}]
    (reference,) = theirs(str(folder), rows, template("gpt2", True))
    (untrimmed,) = theirs("gpt2", rows, template("gpt2", True))
    assert reference[0] == untrimmed[0]
    assert reference == untrimmed if MENDED else 1 not in reference[1]
    for is_marked in (True, False):
        (mine,) = ours(str(folder), rows, template("gpt2", is_marked))
        assert mine == untrimmed
        assert trained(str(folder), mine) == f" {answer}<|endoftext|> Bye.<|endoftext|>"
