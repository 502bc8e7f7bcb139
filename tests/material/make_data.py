"""Writes the records: sentences of texts.json, combined by a random generator with a fixed seed.

python -m tests.material.make_data
"""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DATA = Path(__file__).with_name("data")
TEXTS: dict[str, Any] = json.loads(Path(__file__).with_name("texts.json").read_text(encoding="utf-8"))
SENTENCES, QUESTIONS, TOOLS, CODE = (TEXTS[name] for name in ("sentences", "questions", "tools", "code"))
SEED = 20261122

Record = dict[str, Any]
Message = dict[str, Any]

NAMES = ("Ana", "Bo", "Chidi", "Dilnoza", "Eero", "Fátima", "Grzegorz", "Hana", "Iñaki", "Jürgen", "Кира", "Lý", "明")
THINGS = ("apples", "lamps", "ropes", "tickets", "stones", "letters", "boats", "keys", "chairs", "candles", "maps")


def said(role: str, content: Any) -> Message:
    return {"role": role, "content": content}


def paragraph(rng: random.Random, language: str, most: int = 4) -> str:
    """A few sentences of a language."""
    separator = "" if language in ("zh", "ja") else " "
    return separator.join(rng.choices(SENTENCES[language], k=rng.randint(1, most)))


def sum_(rng: random.Random) -> tuple[str, str]:
    """A sum in words, and how it is worked out."""
    name, other, thing = rng.choice(NAMES), rng.choice(NAMES), rng.choice(THINGS)
    a, b, c = rng.randint(2, 400), rng.randint(2, 99), rng.randint(2, 9)
    question = f"{name} has {a} {thing} and buys {b} boxes with {c} in each. {other} takes one. How many are left?"
    return (
        question,
        f"{b} boxes hold {b} * {c} = {b * c} {thing}.\n{a} + {b * c} - 1 = {a + b * c - 1}.\n#### {a + b * c - 1}",
    )


def exchange(rng: random.Random, language: str) -> tuple[str, str]:
    """A question and its answer."""
    if language == "en" and rng.random() < 0.4:
        return sum_(rng)
    if rng.random() < 0.15:
        return f"{rng.choice(QUESTIONS[language])}\n\n{paragraph(rng, language, 1)}", "```\n" + rng.choice(CODE) + "```"
    return f"{paragraph(rng, language, 2)} {rng.choice(QUESTIONS[language])}", paragraph(rng, language)


def conversation(rng: random.Random, language: str) -> list[Message]:
    """One to four exchanges, a third of them after a system message."""
    messages = [said("system", f"Language: {language}. Be brief.")] if rng.random() < 0.33 else []
    for _ in range(rng.choice((1, 1, 2, 2, 3, 4))):
        question, answer = exchange(rng, language)
        messages += [said("user", question), said("assistant", answer)]
    return messages


def languages(rng: random.Random, count: int) -> Iterator[str]:
    """English half of the time; each other language at least once."""
    others = [language for language in SENTENCES if language != "en"]
    for index in range(count):
        yield "en" if index % 2 else others[index // 2] if index // 2 < len(others) else rng.choice(others)


def chats(rng: random.Random) -> Iterator[Record]:
    for language in languages(rng, 64):
        yield {"language": language, "messages": conversation(rng, language)}


def odd_chats(_: random.Random) -> Iterator[Record]:
    yield from TEXTS["odd chats"]
    long = [
        said("user" if turn % 2 == 0 else "assistant", f"Turn {turn}: {turn} + 1 = {turn + 1}.") for turn in range(24)
    ]
    yield {"what": "24 messages", "messages": long}
    yield {
        "what": "a long question",
        "messages": [said("user", " ".join(SENTENCES["en"]) * 3), said("assistant", "No.")],
    }
    yield {
        "what": "a long answer",
        "messages": [said("user", "All?"), said("assistant", "\n".join(SENTENCES["ru"]) * 3)],
    }


def tool_chats(rng: random.Random) -> Iterator[Record]:
    for record in TEXTS["tool chats"]:
        yield {**record, "tools": TOOLS}
    yield {"what": "calls without tools", "messages": TEXTS["tool chats"][0]["messages"]}
    greeting = TEXTS["tool chats"][-1]["messages"]
    yield {"what": "no tools in a list of tools", "messages": greeting, "tools": []}
    for language in languages(rng, 16):
        question, answer = exchange(rng, language)
        amount = rng.choice((rng.randint(1, 10**6), round(rng.random() * 100, 3)))
        convert = {"name": "convert", "arguments": {"amount": amount, "unit": rng.choice("m尺")}}
        messages = [
            said("user", question),
            {
                **said("assistant", None),
                "tool_calls": [{"id": "c1", "type": "function", "function": convert}],
            },
            {**said("tool", json.dumps({"amount": amount * 3}, ensure_ascii=False)), "tool_call_id": "c1"},
            said("assistant", answer),
        ]
        yield {"what": f"one call, {language}", "messages": messages, "tools": [TOOLS[1], TOOLS[rng.choice((0, 2, 3))]]}


def texts(rng: random.Random) -> Iterator[Record]:
    for text in TEXTS["odd texts"]:
        yield {"text": text}
    for record in TEXTS["odd chats"]:
        yield {"text": "\n".join(message["content"] for message in record["messages"])}
    for code in CODE:
        yield {"text": code}
    for language in languages(rng, 60):
        yield {"text": "\n\n".join(paragraph(rng, language) for _ in range(rng.randint(1, 4)))}


def pairs(rng: random.Random) -> Iterator[Record]:
    yield from TEXTS["pairs"]
    for language in languages(rng, 40):
        prompt, completion = exchange(rng, language)
        yield {"prompt": prompt + rng.choice(("", " ", "\n", "\n\n")), "completion": completion}


def chat_pairs(rng: random.Random) -> Iterator[Record]:
    for language in languages(rng, 40):
        messages = conversation(rng, language)
        end = len(messages) - rng.choice((1, 1, 1, 3)) if len(messages) > 3 else len(messages) - 1
        yield {"prompt": messages[:end], "completion": messages[end:]}


def preferences(rng: random.Random) -> Iterator[Record]:
    """Prompt and two answers, as texts."""
    yield from TEXTS["preferences"]
    for language in languages(rng, 36):
        prompt, chosen = exchange(rng, language)
        other = rng.choice([text for text in SENTENCES[language] if text != chosen])
        yield {"prompt": prompt + "\n", "chosen": chosen, "rejected": other}


def chat_preferences(rng: random.Random) -> Iterator[Record]:
    """The same as messages: some of several turns, one with an answer that begins like the other."""
    yield {
        "prompt": [said("user", "Count.")],
        "chosen": [said("assistant", "One, two, three.")],
        "rejected": [said("assistant", "One, two, four.")],
    }
    for language in languages(rng, 36):
        prompt = conversation(rng, language)
        answer = prompt.pop()
        other = rng.choice([text for text in SENTENCES[language] if text != answer["content"]])
        yield {"prompt": prompt, "chosen": [answer], "rejected": [said("assistant", other)]}


def implicit(rows: Iterator[Record]) -> Iterator[Record]:
    """Preferences of which each side holds the prompt as well."""
    for row in rows:
        yield {side: row["prompt"] + row[side] for side in ("chosen", "rejected")}


def implicit_preferences(rng: random.Random) -> Iterator[Record]:
    return implicit(preferences(rng))


def implicit_chat_preferences(rng: random.Random) -> Iterator[Record]:
    return implicit(chat_preferences(rng))


def rollouts(rng: random.Random) -> Iterator[Record]:
    for index, language in enumerate(languages(rng, 32)):
        question, answer = exchange(rng, language)
        responses = [answer, *(paragraph(rng, language, 2) for _ in range(index % 4))]
        rewards = [round(rng.uniform(-2, 2), 3) for _ in responses]
        yield {"prompt": [said("user", question)], "responses": responses, "rewards": rewards}


def sharegpt(rng: random.Random) -> Iterator[Record]:
    names = {"system": "system", "user": "human", "assistant": "gpt"}
    for language in languages(rng, 12):
        turns = [{"from": names[m["role"]], "value": m["content"]} for m in conversation(rng, language)]
        yield {"conversations": turns}


MAKERS = (
    *(chats, odd_chats, tool_chats, texts, pairs, chat_pairs, preferences, chat_preferences),
    *(implicit_preferences, implicit_chat_preferences, rollouts, sharegpt),
)
FILES = {make.__name__: make for make in MAKERS}


def file_of(name: str) -> bytes:
    """The bytes of a file; each file has a random generator of its own."""
    records = FILES[name](random.Random(f"{SEED} {name}"))
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records).encode()


def main() -> None:
    DATA.mkdir(exist_ok=True)
    for name in FILES:
        (DATA / f"{name}.jsonl").write_bytes(file_of(name))


if __name__ == "__main__":
    main()
