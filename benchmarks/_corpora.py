"""Corpora of any size in the shapes that the corpus maker of the test material has not.

As in that maker, the first pass over the records is real (each once). Every later one has them in another order, and
every number in their texts is replaced by another with as many digits. A row that still equals an earlier one gets a
reference number. So no row occurs twice, but words and lengths repeat. The same arguments give the same bytes.
"""

import importlib.util
import itertools
import json
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import invented
from _measure import BenchmarkError, make_corpus, say

VERSION = 1
"""Of what is made here: other bytes need another one."""

Row = dict[str, Any]
_MAKERS_OWN = ("chat", "text")  # kinds of the material's own maker
_NO_TEXTS = ("role", "from", "type", "name", "required", "domain", "rewards")
"""Keys whose values are no texts: they stay as they are."""


def make(kind: str, shared: Path, megabytes: float, cache: Path) -> Path:
    """A corpus of a kind and a size, made unless it is there. It ends with the line that reaches the size.

    Raises:
        BenchmarkError: the maker of the material failed.
    """
    if kind in _MAKERS_OWN:
        return make_corpus(shared, kind, megabytes, cache)
    path, wanted = cache / f"{kind}-{VERSION}_{megabytes:g}mb.jsonl", megabytes * 1e6
    if path.exists() and wanted <= path.stat().st_size < wanted + 1e6:
        return path
    say(f"making {path}")
    cache.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}.part")
    try:
        with open(part, "wb") as file:
            rows = KINDS[kind](shared)
            for row in rows if kind in invented.KINDS else varied(rows, maker(shared), kind):
                file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
                if file.tell() >= wanted:
                    break
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return path


def maker(shared: Path) -> ModuleType:
    """The material's own maker: how it reads its files, and what it does with numbers."""
    path = shared / "bench" / "make_corpus.py"
    spec = importlib.util.spec_from_file_location("make_corpus", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise BenchmarkError(f"no corpus maker at {path}: pass --shared DIR, or set BEAM_PREP_SHARED")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def varied(rows: Iterator[Row], own: ModuleType, seed: str) -> Iterator[Row]:
    """The rows in another order, then again and again with other numbers. It does not end."""
    base = list({own.digest(row): row for row in rows}.values())
    seen = {own.digest(row) for row in base}
    for turn in itertools.count():
        order = list(range(len(base)))
        random.Random(f"{seed}:{turn}").shuffle(order)
        for place in order:
            row = base[place]
            if turn:
                chance = random.Random(f"{seed}:{turn}:{place}")
                row = _other(row, own, chance)
                while (digest := own.digest(row)) in seen:
                    row = _marked(row, f" [ref {chance.randrange(10**8, 10**9)}]")
                seen.add(digest)
            yield row


def _other(row: Row, own: ModuleType, chance: random.Random) -> Row:
    """The row with other numbers; the same text has the same numbers wherever the row says it again."""
    said: dict[str, str] = {}

    def other(value: Any, key: str = "") -> Any:
        if key in _NO_TEXTS:
            return value
        if isinstance(value, str):
            return said.setdefault(value, own.vary(value, chance))
        if isinstance(value, list):
            return [other(item) for item in value]
        return {name: other(item, name) for name, item in value.items()} if isinstance(value, dict) else value

    found: Row = other(row)
    return found


def _marked(value: Any, text: str) -> Any:
    """The row with a text behind its first text; where both sides of a pair begin with it, behind both."""
    if isinstance(value, dict) and "chosen" in value:
        return {name: _marked(side, text) for name, side in value.items()}
    if isinstance(value, str):
        return value + text
    if isinstance(value, list):
        return [_marked(value[0], text), *value[1:]]
    name = next(name for name in ("content", "value", "text", "messages", "conversations", *value) if name in value)
    return {**value, name: _marked(value[name], text)}


# The shapes. A row's first field is the one that gets the reference number.


def _chats(shared: Path) -> Iterator[list[Row]]:
    """All chats of the material, of two turns or more."""
    own = maker(shared)
    for _, messages in own.chats(shared / "data"):
        if own.usable(messages):
            yield [{"role": message["role"], "content": message["content"]} for message in messages]


def _file(shared: Path, name: str) -> Iterator[Row]:
    for _, row in maker(shared).rows(shared / "data", name):
        yield row


def _questions(shared: Path) -> Iterator[tuple[str, str, str]]:
    """(what is given, what is asked, the answer): of arithmetic, and of chats, what was said before the last turn."""
    for row in _file(shared, "prompt_response_gsm8k_train.jsonl"):
        given, _, asked = row["prompt"].rpartition(". ")
        yield given, asked, row["response"]
    for messages in _chats(shared):
        given = "\n".join(message["content"] for message in messages[:-2])
        yield given, messages[-2]["content"], messages[-1]["content"]


def sgd(shared: Path) -> Iterator[Row]:
    usable = maker(shared).usable
    for row in _file(shared, "chat_messages_sgd.jsonl.gz"):
        if usable(row["messages"]):
            yield {"messages": row["messages"]}


def tools(shared: Path) -> Iterator[Row]:
    for row in _file(shared, "tool_messages_glaive_en.jsonl"):
        yield {"messages": row["messages"], "tools": row["tools"]}


def sharegpt(shared: Path) -> Iterator[Row]:
    names = {"user": "human", "assistant": "gpt", "system": "system"}
    for messages in _chats(shared):
        yield {"conversations": [{"from": names[each["role"]], "value": each["content"]} for each in messages]}


def alpaca(shared: Path) -> Iterator[Row]:
    for given, asked, answer in _questions(shared):
        yield {"instruction": asked, "input": given, "output": answer}


def prompt_completion(shared: Path) -> Iterator[Row]:
    for given, asked, answer in _questions(shared):
        yield {"prompt": f"{given} {asked}".strip(), "completion": f" {answer}"}


def prompt_completion_chat(shared: Path) -> Iterator[Row]:
    for messages in _chats(shared):
        yield {"prompt": messages[:-1], "completion": messages[-1:]}


def preference(shared: Path) -> Iterator[Row]:
    for row in _file(shared, "dpo_hh_messages.jsonl"):
        yield {"chosen": row["chosen"], "rejected": row["rejected"]}


def rollouts(shared: Path) -> Iterator[Row]:
    for row in _file(shared, "grpo_gsm8k.jsonl"):
        prompt = [{"role": "user", "content": row["prompt"]}]
        yield {"prompt": prompt, "responses": row["responses"], "rewards": row["rewards"]}


def sections(shared: Path) -> Iterator[Row]:
    for given, asked, answer in _questions(shared):
        yield {"question": asked, "context": given, "answer": answer}


def domains(shared: Path) -> Iterator[Row]:
    """Chats of 100 domains, the first of them some seventy times as frequent as the last."""
    for place, messages in enumerate(_chats(shared)):
        number = int(101 ** random.Random(f"domain:{place}").random()) - 1
        yield {"messages": messages, "domain": f"source-{number:02d}"}


def _documents(*names: str) -> Callable[[Path], Iterator[Row]]:
    def documents(shared: Path) -> Iterator[Row]:
        for name in names:
            for row in _file(shared, name):
                if row["text"].strip():
                    yield {"text": row["text"]}

    return documents


def _invented(kind: str) -> Callable[[Path], Iterator[Row]]:
    def records(shared: Path) -> Iterator[Row]:
        return invented.rows(kind)

    return records


KINDS: dict[str, Callable[[Path], Iterator[Row]]] = {
    "sgd": sgd,
    "tools": tools,
    "sharegpt": sharegpt,
    "alpaca": alpaca,
    "prompt_completion": prompt_completion,
    "prompt_completion_chat": prompt_completion_chat,
    "preference": preference,
    "rollouts": rollouts,
    "sections": sections,
    "domains": domains,
    "text_zh": _documents("text_libreoffice_help_zh-cn.jsonl.gz"),
    "text_ru": _documents("text_libreoffice_help_ru.jsonl.gz"),
    **{kind: _invented(kind) for kind in invented.KINDS},
}
"""Kind -> its real rows, in the order of the files; or, without end and without the material, those of invented.py."""


def texts_of(shared: Path) -> Iterator[str]:
    """What a tokenizer is trained on: all chats, and all documents, as they are."""
    for messages in _chats(shared):
        yield from (message["content"] for message in messages)
    for _, text in maker(shared).texts(shared / "data"):
        yield text
