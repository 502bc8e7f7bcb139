"""Writes the records: sentences of texts.py, combined by a random generator with a fixed seed.

python -m tests.material.make_data
"""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.material.texts import CODE, ODD, PAIRS, QUESTIONS, SENTENCES

DATA = Path(__file__).with_name("data")
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
    for what, messages in ODD:
        yield {"what": what, "messages": [said(role, content) for role, content in messages]}
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


def tool(name: str, description: str, **parameters: Any) -> dict[str, Any]:
    properties = {key: value if isinstance(value, dict) else {"type": value} for key, value in parameters.items()}
    function = {
        "name": name,
        "description": description,
        "parameters": {"type": "object", "properties": properties, "required": sorted(parameters)[:1]},
    }
    return {"type": "function", "function": function}


TOOLS = (
    tool("tide_table", "Gives high and low water for a harbour.", harbour="string", day="string"),
    tool(
        "convert", "Converts an amount — 单位换算.", amount="number", unit={"type": "string", "enum": ["m", "ft", "尺"]}
    ),
    tool("search_boats", "Finds boats.", filters={"type": "object", "properties": {"min_length": {"type": "number"}}}),
    tool("now", "Says what time it is."),
)


def call(name: str, arguments: Any, identity: str | None = None) -> dict[str, Any]:
    made = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return made if identity is None else {"id": identity, **made}


def tool_chats(rng: random.Random) -> Iterator[Record]:
    ask = said("user", "When is high water?")
    tide = call("tide_table", {"harbour": "Łeba", "day": "2026-11-22"})
    result = said("tool", '{"high": ["04:12", "16:40"], "low": null}')
    end = said("assistant", "At 04:12 and at 16:40.")
    calls: list[tuple[str, list[Message]]] = [
        ("content is null", [ask, {**said("assistant", None), "tool_calls": [tide]}, result, end]),
        ("content is missing", [ask, {"role": "assistant", "tool_calls": [tide]}, result, end]),
        ("text and a call", [ask, {**said("assistant", "Let me look."), "tool_calls": [tide]}, result, end]),
        (
            "two calls at once",
            [ask, {**said("assistant", ""), "tool_calls": [tide, call("now", {})]}, result, said("tool", "12:00"), end],
        ),
        ("a call ends the conversation", [ask, {**said("assistant", None), "tool_calls": [tide]}]),
        (
            "numbers and nested arguments",
            [
                said("user", "Big ones?"),
                {
                    **said("assistant", None),
                    "tool_calls": [
                        call(
                            "search_boats",
                            {"filters": {"min_length": 7.0, "ids": [9007199254740993, -0.5, 1e-7], "a": None}},
                        ),
                    ],
                },
                said("tool", "[]"),
                said("assistant", "None."),
            ],
        ),
        (
            "arguments with all kinds of quotes",
            [
                said("user", "Quote it."),
                {**said("assistant", None), "tool_calls": [call("tide_table", {"harbour": '"d\'Or" \\ <|end|>\n换'})]},
                said("tool", "no such harbour"),
                said("assistant", "I found nothing."),
            ],
        ),
        ("tools that nobody calls", [said("user", "Hi"), said("assistant", "Hello!")]),
    ]
    for what, messages in calls:
        yield {"what": what, "messages": messages, "tools": list(TOOLS)}
    yield {"what": "calls without tools", "messages": calls[0][1]}
    yield {
        "what": "no tools in a list of tools",
        "messages": [said("user", "Hi"), said("assistant", "Hello!")],
        "tools": [],
    }
    for language in languages(rng, 16):
        question, answer = exchange(rng, language)
        amount = rng.choice((rng.randint(1, 10**6), round(rng.random() * 100, 3)))
        messages = [
            said("user", question),
            {
                **said("assistant", None),
                "tool_calls": [call("convert", {"amount": amount, "unit": rng.choice("m尺")}, "c1")],
            },
            {**said("tool", json.dumps({"amount": amount * 3}, ensure_ascii=False)), "tool_call_id": "c1"},
            said("assistant", answer),
        ]
        yield {"what": f"one call, {language}", "messages": messages, "tools": [TOOLS[1], TOOLS[rng.choice((0, 2, 3))]]}


def texts(rng: random.Random) -> Iterator[Record]:
    for text in (
        "",
        " ",
        "\n",
        "a",
        "ends with its end<|end|>",
        "ends with its end</s>",
        "end and a space</s> ",
        "<s>begins",
    ):
        yield {"text": text}
    for _, messages in ODD:
        yield {"text": "\n".join(content for _, content in messages)}
    for code in CODE:
        yield {"text": code}
    for language in languages(rng, 60):
        yield {"text": "\n\n".join(paragraph(rng, language) for _ in range(rng.randint(1, 4)))}


def pairs(rng: random.Random) -> Iterator[Record]:
    for prompt, completion in PAIRS:
        yield {"prompt": prompt, "completion": completion}
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
    edges = (
        ("one two", " three", " four"),
        ("ab", "cd", "ce"),
        ("Say it: ", "", "yes"),
        ("", "left", "right"),
        ("12", "3", "34"),
    )
    for prompt, chosen, rejected in edges:
        yield {"prompt": prompt, "chosen": chosen, "rejected": rejected}
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


FILES = {
    "chats": chats,
    "odd_chats": odd_chats,
    "tool_chats": tool_chats,
    "texts": texts,
    "pairs": pairs,
    "chat_pairs": chat_pairs,
    "preferences": preferences,
    "chat_preferences": chat_preferences,
    "implicit_preferences": implicit_preferences,
    "implicit_chat_preferences": implicit_chat_preferences,
    "rollouts": rollouts,
    "sharegpt": sharegpt,
}


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
