"""Makes each record's prompt stand once: a side that begins with the prompt loses it, a side with only answers stays.

A side is what follows the prompt in the sections of a config: `chosen` and `rejected`, or a `completion`.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from beam_prep.data.block import Reject
from beam_prep.data.schema import Output
from beam_prep.reading.adapters import ROLES
from beam_prep.reading.records import Record, describe, is_absent

_Message = dict[str, Any]
_Chat = list[_Message]

_WITHIN_WORD = re.compile(r"[^\W\u3040-\u9fff]{2}")
"""Two characters of one word. Chinese and Japanese have no blanks between words."""

_ECHO = 4
"""Words: an answer that begins with this many words of its prompt repeats the prompt."""

_SHOWN = 60  # characters of a text, in messages


@dataclass(frozen=True, slots=True)
class Sides:
    """The fields of a prompt and of what follows it.

    Attributes:
        prompt: the fields of the prompt, in order.
        names: the fields of the sides.
        messages: True: the sides are rendered as messages; False: they are texts.
        implicit: True: in a record without a prompt, the common beginning of all sides is the prompt.
    """

    prompt: tuple[str, ...]
    names: tuple[str, ...]
    messages: bool
    implicit: bool


def sides_of(outputs: Sequence[Output], implicit: bool) -> list[Sides]:
    """The sides of each prompt: of outputs whose sections are a prompt (`mask`) and one trained side."""
    found: dict[tuple[tuple[str, ...], bool], dict[str, None]] = {}
    for output in outputs:
        *prompt, side = output.sections
        templates = {section.template is not None for section in output.sections}
        is_trained = side.action in ("train", "$role")
        if output.kind != "ids" or not prompt or not is_trained or len(templates) > 1:
            continue
        if all(section.action == "mask" for section in prompt):
            fields = tuple(section.field for section in prompt)
            names = found.setdefault((fields, side.template is not None), {})
            names[side.field] = None
    return [
        Sides(prompt, tuple(names), messages, implicit and len(names) > 1)
        for (prompt, messages), names in found.items()
    ]


def with_prompt(record: Record, sides: Sides) -> Record:
    """The record with its prompt only in the prompt's fields, and not in the sides.

    Raises:
        Reject: `prompt_differs`: a side neither begins with the prompt nor holds only an answer; `no_answer`: a side
            holds only the prompt; `equal_sides`; `wrong_type`: one side is a text, another one messages.
    """
    names = tuple(name for name in sides.names if not is_absent(record.get(name)))
    if len(names) < len(sides.names):  # a record with an absent side is rejected later
        sides = replace(sides, names=names, implicit=False)
    values = [record[name] for name in names]
    if not all(values) or not all(isinstance(value, str | list | dict) for value in values):
        return record  # the checks of the sections reject it
    if len({type(value) for value in values}) > 1:
        found = ", ".join(f"{name!r} is {describe(value)}" for name, value in zip(names, values, strict=True))
        raise Reject("wrong_type", f"{found}: wanted sides of one kind")
    given = {name: record[name] for name in sides.prompt if not is_absent(record.get(name))}
    if given:
        without_prompt = _of_messages if sides.messages else _of_texts
        return without_prompt(record, sides, given, values)
    kind = list if sides.messages else str
    if not sides.implicit or not isinstance(values[0], kind):
        return record
    return _with(record, sides, *_shared(sides, values))


def _with(record: Record, sides: Sides, prompt: Any, answers: Sequence[Any]) -> Record:
    rest = dict.fromkeys(sides.prompt[1:])
    by_side = dict(zip(sides.names, answers, strict=True))
    return {**record, sides.prompt[0]: prompt, **rest, **by_side}


def _shared(sides: Sides, values: Sequence[Any]) -> tuple[Any, list[Any]]:
    """(the common beginning of all sides, the rest of each), in messages or characters, like TRL's extract_prompt.

    If one side is the beginning of another, its last element is not part of the prompt. A prompt of characters steps
    back over a final space.
    """
    _check_different(sides, values, values)
    first = values[0]
    size = min(map(len, values))
    ends = (place for place in range(size) if any(value[place] != first[place] for value in values[1:]))
    at = next(ends, size - 1)
    if isinstance(first, str) and first[:at].endswith(" "):
        at -= 1
    return first[:at], [value[at:] for value in values]


def _check_different(sides: Sides, values: Sequence[Any], answers: Sequence[Any]) -> None:
    if len(answers) > 1 and all(answer == answers[0] for answer in answers):
        names = " and ".join(map(repr, sides.names))
        only = "" if all(value == values[0] for value in values) else ", once the prompt is taken out of them"
        raise Reject("equal_sides", f"{names} are equal{only}; wanted a difference")


def _differs(sides: Sides, name: str, prompt: Any, value: Any, why: str) -> Reject:
    fields = " + ".join(map(repr, sides.prompt))
    return Reject(
        "prompt_differs",
        f"{why}: the prompt ({fields}) is {_shown(prompt)}, {name!r} is {_shown(value)}; "
        "wanted a side that begins with the prompt as it is, or one that holds only what follows it",
    )


def _no_answer(name: str, value: Any) -> Reject:
    return Reject("no_answer", f"{name!r} is the prompt alone, {_shown(value)}; wanted an answer after it")


def _shown(value: Any) -> str:
    if isinstance(value, str):
        beginning = json.dumps(value[:_SHOWN], ensure_ascii=False)
        return beginning + "..." * (len(value) > _SHOWN)
    parts = [f"{message['role']}: {_shown(_text_of(message) or '')}" for message in value[:3]]
    if len(value) > 3:
        parts.append("...")
    return f"[{', '.join(parts)}]"


# Texts.


def _of_texts(record: Record, sides: Sides, given: Mapping[str, Any], values: Sequence[Any]) -> Record:
    if not all(isinstance(value, str) for value in (*given.values(), *values)):
        return record
    prompt = "".join(record.get(name) or "" for name in sides.prompt)
    # Sections are joined without separator, so a side that repeats the prompt would follow it directly.
    if all(begins(value, prompt) for value in values):
        answers = [value[len(prompt) :] for value in values]
        _check_different(sides, values, answers)
        return {**record, **dict(zip(sides.names, answers, strict=True))}
    _check_echo(sides, prompt, dict(zip(sides.names, values, strict=True)))
    return record


def begins(side: str, prompt: str) -> bool:
    """True if a side is exactly the prompt and then something else, not within a word.

    >>> begins("The sky is blue.", "The sky is"), begins("The skyline is long.", "The sky")
    (True, False)
    """
    if not side.startswith(prompt) or not side[len(prompt) :].strip():
        return False
    return _WITHIN_WORD.fullmatch(side, len(prompt) - 1, len(prompt) + 1) is None


def _check_echo(sides: Sides, prompt: str, answers: Mapping[str, str]) -> None:
    """Raises Reject if a side begins with the prompt's words, so that it is probably no answer by itself.

    A side that is only the prompt may be an answer: a correction of a text without faults, or the text to correct. It
    is not an answer if another side is the prompt with an answer.
    """
    words = prompt.split()
    if len(words) < _ECHO:
        return
    asked = "".join(words)
    texts = {}
    for name, side in answers.items():
        if side.lstrip().startswith(words[0]):
            texts[name] = "".join(side.split())
    longer = [name for name, text in texts.items() if text.startswith(asked) and text != asked]
    alone = [name for name, text in texts.items() if text == asked]
    if longer and alone:
        raise _no_answer(alone[0], answers[alone[0]])
    if longer:
        raise _differs(sides, longer[0], prompt, answers[longer[0]], "it is not certain where the answer begins")


# Messages.


def _of_messages(record: Record, sides: Sides, given: Mapping[str, Any], values: Sequence[Any]) -> Record:
    # In a conversation, a prompt that is a text is the user's message (`system`: the system's), a side is the answer.
    lists = [_messages(value, "system" if name == "system" else "user") for name, value in given.items()]
    chats = [_messages(value, "assistant") for value in values]
    if not all(lists) or not all(chats):
        return record
    asked = [message for each in lists for message in each]
    chats = _without_echo(sides, asked[-1], values, chats)
    prompts, answers = list[_Chat](), list[_Chat]()
    for name, chat in zip(sides.names, chats, strict=True):
        own, answer = _found(asked, chat)
        if own is None and not _is_answer(asked, chat):
            raise _differs(sides, name, asked, chat, "a side has another prompt")
        if not answer:
            raise _no_answer(name, chat)
        answers.append(answer)
        prompts += [] if own is None else [own]
        if own is not None and not _same(prompts[0], own):
            raise _differs(sides, name, prompts[0], own, "the sides begin with other prompts")
    _check_different(sides, values, answers)
    prompt = prompts[0] if prompts else asked
    if len(prompts) == len(answers) > 1:
        # The sides are entire conversations: further turns that they share are no answers either.
        more, answers = _shared(sides, answers)
        prompt = [*prompt, *more]
    return _with(record, sides, prompt, answers)


def _without_echo(sides: Sides, question: _Message, values: Sequence[Any], chats: list[_Chat]) -> list[_Chat]:
    """The sides of a pair without the words of the user's question, if each side is one answer that begins with them.

    A short question, or a single completion, may not be a repetition: an answer to "Hello" may be "Hello Anna", and
    code is completed together with its beginning.
    """
    asked = _text_of(question)
    answers = [chat[0] for chat in chats if len(chat) == 1]
    said = [_text_of(each) for each in answers if _speaker(each) == "assistant"]
    texts = [text for text in said if text is not None]
    if asked is None or len(texts) < len(chats):
        return chats
    rests = [text[len(asked) :] for text in texts]
    pairs = zip(texts, rests, strict=True)
    repeated = all(begins(text, asked) and rest[0].isspace() for text, rest in pairs)
    if repeated and len(chats) > 1 and len(asked.split()) >= _ECHO and _speaker(question) == "user":
        rests = [rest.lstrip("\n" if rest[0] == "\n" else " ") for rest in rests]
        return [[{**answer, "content": rest}] for answer, rest in zip(answers, rests, strict=True)]
    plain = {name: value for name, value in zip(sides.names, values, strict=True) if type(value) is str}
    _check_echo(sides, asked, plain)
    return chats


def _text_of(message: _Message) -> str | None:
    """A content that is a text, or parts of text; otherwise None."""
    content = message.get("content")
    if isinstance(content, list):
        if not all(isinstance(part, dict) and part.get("type") == "text" for part in content):
            return None
        content = "".join(str(part.get("text")) for part in content)
    return content if isinstance(content, str) else None


def _messages(value: Any, role: str) -> _Chat:
    """The messages of a field: a list, a single message, or a text of this role; [] if it holds no messages."""
    if isinstance(value, str):
        return [{"role": role, "content": value}]
    messages = value if isinstance(value, list) else [value]
    good = all(isinstance(message, dict) and isinstance(message.get("role"), str) for message in messages)
    return messages if good else []


def _found(asked: _Chat, chat: _Chat) -> tuple[_Chat | None, _Chat]:
    """(the whole prompt, what follows) of a side that begins with the prompt; (None, all of it) of another one.

    The common beginning may be more than the prompt (a system message, earlier turns), or less (its last turns).
    """
    system, asked = _without_system(asked)
    own, rest = _without_system(chat)
    if system and own and not _same(system, own):
        return None, chat
    system = system or own
    begins = bool(rest) and _speaker(rest[0]) == "user"
    said, wanted = [*map(_compared, rest)], [*map(_compared, asked)]
    for place in range(len(rest) - len(asked) + 1 if begins else 1):
        end = place + len(asked)
        # A prompt of only system messages is the beginning of every conversation.
        if said[place:end] == wanted and (asked or begins or own):
            return [*system, *rest[:end]], rest[end:]
    # No answer begins with a result. One that begins with the last call of the prompt may make it again.
    repeats = begins or (bool(rest) and _speaker(rest[0]) == "tool")
    for size in range(len(asked) - 1, 0, -1):
        if repeats and said[:size] == wanted[-size:]:
            return [*system, *asked], rest[size:]
    return None, chat


def _is_answer(asked: _Chat, chat: _Chat) -> bool:
    """True if messages can follow a prompt: the first is no system message, and the user does not speak twice."""
    first = _speaker(chat[0])
    return first != "system" and not first == _speaker(asked[-1]) == "user"


def _speaker(message: _Message) -> str:
    role: str = message["role"].lower()
    return "system" if role == "developer" else ROLES.get(role, role)


def _without_system(messages: _Chat) -> tuple[_Chat, _Chat]:
    """(the system messages at the beginning, the others)."""
    others = (place for place, each in enumerate(messages) if _speaker(each) != "system")
    size = next(others, len(messages))
    return messages[:size], messages[size:]


def _same(ones: Sequence[_Message], others: Sequence[_Message]) -> bool:
    """True if messages say the same. Other keys, names of one role, and blanks around a content do not count."""
    return [*map(_compared, ones)] == [*map(_compared, others)]


_SAID = ("name", "tool_call_id", "tool_calls", "function_call", "reasoning_content", "reasoning", "thinking")


def _compared(message: _Message) -> list[Any]:
    text = _text_of(message)
    content = message.get("content") if text is None else text.strip()
    return [_speaker(message), content, *(message.get(key) or None for key in _SAID)]
