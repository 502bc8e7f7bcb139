"""Generates corpora of any size, without the test material: agents, calls, chats, documents.

    python benchmarks/invented.py agents 80 OUT.jsonl
    python benchmarks/invented.py agents_strings 80 OUT.jsonl --seed 2

* `agents`: every record has another shape: 1 to 8 tools with random names and parameters, 1 to 15 rounds of 1 to 3
  calls with nested arguments, results in JSON or text, reasoning in a third of the records, answers.
* `agents_strings`: the same records with arguments as JSON in a string, as OpenAI's API writes them.
* `calls`: short dialogues about a task, with calls of twelve functions that have flat arguments.
* `chats`: only user and assistant in turns; `domains`: the same in a hundred domains.
* `alpaca`, `preference`, `rollouts`: a question with one answer, with two answers, or with eight answers and rewards.
* `documents`: texts.

The prose has the sentences of examples/data in another order. One word in fifteen is invented, and every digit is
random. The same kind and seed give the same records, and a larger corpus begins with the smaller one.
"""

import argparse
import json
import os
import random
import re
import string
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from _measure import ROOT, say

Row = dict[str, Any]

VERSION = 2
"""The version of the corpora. Raise it with every change of their bytes."""

PROSE = 6_000_000
"""Characters from which passages are cut."""

NAMES = 20_000
"""How many names of tools and parameters there are, about."""

_SOURCES = ("chat", "text", "instruction")
_SYLLABLES = [first + vowel + last for first in "bdfgklmnprstvz" for vowel in "aeiou" for last in ("", "l", "n", "r")]
_TYPES = ("string", "integer", "number", "boolean", "object", "array")


class Voice:
    """Draws the parts of records: words, names, numbers, arguments."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        sentences = [sentence for text in _texts() for sentence in re.split(r"(?<=[.!?])\s+", text)]
        words = sorted({word for sentence in sentences for word in re.findall(r"\b[a-z]{3,9}\b", sentence)})
        sizes = self.chance.choices((1, 2, 2, 3), k=NAMES)
        self.names = sorted({"_".join(self.chance.sample(words, size)) for size in sizes})
        parts, size = list[str](), 0
        while size < PROSE:
            self.chance.shuffle(sentences)
            parts.append(re.sub(r"\d|[a-z]{4,}", self._other, " ".join(sentences)))
            size += len(parts[-1])
        self.prose = " ".join(parts)

    def _other(self, found: re.Match[str]) -> str:
        if found[0].isdigit():
            return self.chance.choice(string.digits)
        return self.word() if self.chance.random() < 1 / 15 else found[0]

    def word(self) -> str:
        return "".join(self.chance.choices(_SYLLABLES, k=self.chance.choice((2, 3, 3, 4))))

    def name(self) -> str:
        return self.chance.choice(self.names)

    def passage(self, low: int, high: int) -> str:
        """A text of `low` to `high` characters; short ones are more frequent."""
        size = int(self.chance.triangular(low, high, low))
        begin = self.prose.index(" ", self.chance.randrange(len(self.prose) - 2 * high - 100)) + 1
        return self.prose[begin : begin + size].strip()

    def value(self, depth: int = 3) -> Any:
        """A random argument; objects are nested up to `depth`."""
        kind = self.chance.random()
        if kind < 0.45:
            return self.passage(3, 60)
        if kind < 0.6:
            return self.chance.randrange(-(10**6), 10**9)
        if kind < 0.68:
            # Eighths, because the reader of `datasets` sometimes rounds other fractions to a neighbour.
            return self.chance.randrange(-8000, 8000) / 8
        if kind < 0.75:
            return self.chance.random() < 0.5
        if kind < 0.78:
            return None
        if depth and kind < 0.9:
            return self.object(self.chance.randrange(1, 5), depth - 1)
        return [self.value(0) for _ in range(self.chance.randrange(5))]

    def object(self, size: int, depth: int = 3) -> Row:
        return {self.name(): self.value(depth) for _ in range(size)}

    def call_id(self) -> str:
        return "".join(self.chance.choices(string.ascii_letters + string.digits, k=9))  # as Mistral writes ids


def _texts() -> Iterator[str]:
    for name in _SOURCES:
        for line in (ROOT / "examples" / "data" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            yield from (message["content"] for message in row.get("messages", ()))
            yield from (text for text in row.values() if isinstance(text, str) and " " in text)


def _tool(name: str, description: str, properties: Row, required: list[str]) -> Row:
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def _called(voice: Voice, name: str, arguments: Row) -> Row:
    return {"id": voice.call_id(), "type": "function", "function": {"name": name, "arguments": arguments}}


def _answered(call: Row, content: str) -> Row:
    return {"role": "tool", "name": call["function"]["name"], "tool_call_id": call["id"], "content": content}


def _written(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


# Agents


def agents(voice: Voice) -> Row:
    chance = voice.chance
    tools = [_any_tool(voice) for _ in range(chance.randint(1, 8))]
    thinks, silent = chance.random() < 1 / 3, chance.choice(("", None))
    messages: list[Row] = [{"role": "system", "content": voice.passage(50, 600)}] if chance.random() < 0.6 else []

    def said(content: str | None, **more: Any) -> None:
        reasoning = {"reasoning_content": voice.passage(50, 600)} if thinks else {}
        messages.append({"role": "assistant", "content": content, **reasoning, **more})

    tasks = chance.choice((1, 1, 1, 2, 3))
    for _ in range(tasks):
        messages.append({"role": "user", "content": voice.passage(30, 800)})
        for _ in range(min(15 // tasks, 1 + int(chance.expovariate(0.4)))):
            calls = [_any_call(voice, chance.choice(tools)) for _ in range(chance.choice((1, 1, 1, 2, 3)))]
            said(silent if chance.random() < 0.7 else voice.passage(20, 200), tool_calls=calls)
            messages += [_answered(call, _result(voice)) for call in calls]
        said(voice.passage(30, 900))
    return {"messages": messages, "tools": tools}


def agents_strings(voice: Voice) -> Row:
    row = agents(voice)
    for message in row["messages"]:
        for call in message.get("tool_calls", ()):
            call["function"]["arguments"] = _written(call["function"]["arguments"])
    return row


def _any_tool(voice: Voice) -> Row:
    keys = voice.chance.sample(voice.names, voice.chance.randint(1, 6))
    properties = {key: {"type": voice.chance.choice(_TYPES), "description": voice.passage(5, 80)} for key in keys}
    return _tool(voice.name(), voice.passage(20, 200), properties, keys[: voice.chance.randint(0, len(keys))])


def _any_call(voice: Voice, tool: Row) -> Row:
    keys = tool["function"]["parameters"]["properties"]
    return _called(voice, tool["function"]["name"], {key: voice.value() for key in keys if voice.chance.random() < 0.8})


def _result(voice: Voice) -> str:
    text = voice.chance.random() < 0.5
    return voice.passage(50, 2000) if text else _written(voice.object(voice.chance.randint(1, 7)))


# Calls

SERVICES = {
    "ferries": {
        "find_crossings": "from_harbour to_harbour date",
        "book_crossing": "from_harbour to_harbour date time passengers with_car",
        "cancel_crossing": "booking",
    },
    "library": {
        "find_books": "author subject branch",
        "reserve_book": "title branch date",
        "opening_hours": "branch date",
    },
    "workshops": {
        "find_workshops": "town bicycle_make",
        "book_repair": "workshop bicycle_make date time collected",
    },
    "rooms": {
        "find_rooms": "town date nights guests breakfast",
        "book_room": "house date nights guests",
    },
    "gardens": {
        "find_plots": "district square_metres with_water",
        "rent_plot": "plot district date years",
    },
}
"""Service -> function -> its parameters."""

_COUNTS = ("passengers", "nights", "guests", "years", "square_metres", "booking", "plot")
_FLAGS = ("with_car", "collected", "breakfast", "with_water")


def _type_of(slot: str) -> str:
    return "integer" if slot in _COUNTS else "boolean" if slot in _FLAGS else "string"


TOOLS = {
    service: [
        _tool(
            name,
            f"{name.replace('_', ' ').capitalize()}: a function of the {service} desk.",
            {slot: {"type": _type_of(slot), "description": f"The {slot.replace('_', ' ')}."} for slot in slots.split()},
            slots.split(),
        )
        for name, slots in functions.items()
    ]
    for service, functions in SERVICES.items()
}


def calls(voice: Voice) -> Row:
    """A dialogue with one service: its tools and its system message. Slots keep their values from call to call."""
    chance = voice.chance
    service = chance.choice(list(SERVICES))
    found: Row = {}
    messages: list[Row] = [{"role": "system", "content": f"You are the {service} desk. Ask for what you need to know."}]
    for tool in TOOLS[service][: chance.choice((1, 2, 2, 3))]:
        slots = list(tool["function"]["parameters"]["properties"])
        messages.append({"role": "user", "content": voice.passage(30, 120)})
        for slot in slots:
            if slot not in found:
                found[slot] = _slot(voice, slot)
                if chance.random() < 0.5:
                    messages.append({"role": "assistant", "content": f"And the {slot.replace('_', ' ')}?"})
                    messages.append({"role": "user", "content": f"{found[slot]}, please. {voice.passage(5, 60)}"})
        call = _called(voice, tool["function"]["name"], {slot: found[slot] for slot in slots})
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        result = {"number": chance.randrange(10**6), "name": voice.word().title(), "price": chance.randrange(800) / 8}
        messages.append(_answered(call, _written([result] * chance.choice((1, 1, 2)))))
        told = f"{result['name']}, {result['price']}. {voice.passage(20, 120)}"
        messages.append({"role": "assistant", "content": told})
    return {"messages": messages, "tools": TOOLS[service]}


def _slot(voice: Voice, slot: str) -> Any:
    chance = voice.chance
    if slot == "date":
        return f"2026-{chance.randint(1, 12):02d}-{chance.randint(1, 28):02d}"
    if slot == "time":
        return f"{chance.randint(6, 22):02d}:{chance.choice((0, 15, 30, 45)):02d}"
    if slot in _COUNTS:
        return chance.randint(1, 9)
    return chance.random() < 0.5 if slot in _FLAGS else f"{voice.word()} {voice.word()}".title()


# Texts


def chats(voice: Voice) -> Row:
    turns = voice.chance.randint(1, 8)
    return {
        "messages": [
            {"role": role, "content": voice.passage(20, most)}
            for _ in range(turns)
            for role, most in (("user", 200), ("assistant", 600))
        ]
    }


def domains(voice: Voice) -> Row:
    """A chat with a domain. The first domain is about seventy times as frequent as the last."""
    return {**chats(voice), "domain": f"source-{int(101 ** voice.chance.random()) - 1:02d}"}


def alpaca(voice: Voice) -> Row:
    given = voice.passage(20, 400) if voice.chance.random() < 0.5 else ""
    return {"instruction": voice.passage(20, 200), "input": given, "output": voice.passage(20, 600)}


def preference(voice: Voice) -> Row:
    said = chats(voice)["messages"]
    other = {"role": "assistant", "content": voice.passage(20, 600)}
    return {"chosen": said, "rejected": [*said[:-1], other]}


def rollouts(voice: Voice) -> Row:
    responses = [voice.passage(20, 600) for _ in range(8)]
    rewards = [float(voice.chance.random() < 0.5) for _ in responses]
    prompt = [{"role": "user", "content": voice.passage(20, 400)}]
    return {"prompt": prompt, "responses": responses, "rewards": rewards}


def documents(voice: Voice) -> Row:
    return {"text": voice.passage(200, 12_000)}


KINDS: dict[str, Callable[[Voice], Row]] = {
    function.__name__: function
    for function in (agents, agents_strings, calls, chats, domains, alpaca, preference, rollouts, documents)
}


def rows(kind: str, seed: int = 1) -> Iterator[Row]:
    """An endless iterator of records of a kind."""
    voice = Voice(seed)
    while True:
        yield KINDS[kind](voice)


def write(kind: str, megabytes: float, path: Path, seed: int = 1) -> None:
    """Writes a corpus. It ends with the line that reaches the size."""
    with open(path, "wb") as file:
        for row in rows(kind, seed):
            file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
            if file.tell() >= megabytes * 1e6:
                break


def made(kind: str, megabytes: float, cache: Path) -> Path:
    """The path of a corpus in a folder. It is made if it is missing."""
    path = cache / f"{kind}-{VERSION}_{megabytes:g}mb.jsonl"
    if not path.exists():
        say(f"making {path}")
        part = path.with_suffix(f".{os.getpid()}.part")
        write(kind, megabytes, part)
        part.replace(path)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("megabytes", type=float)
    parser.add_argument("output", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    write(given.kind, given.megabytes, given.output, given.seed)


if __name__ == "__main__":
    main()
