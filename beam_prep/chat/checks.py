"""Checks of a record's fields and messages: wrong values reject the record."""

import itertools
from typing import Any

from beam_prep.chat.messages import Message, text_of_part
from beam_prep.chat.origins import REASONING_FIELDS
from beam_prep.data.block import Reject
from beam_prep.reading.adapters import check_loss_weight, parsed_field, template_kwargs, tools
from beam_prep.reading.records import Record, are_bare, describe


def text_of(value: Any, where: str, blank: bool = False) -> str | None:
    """A text field; None if it is missing, or blank (`blank`: a blank text counts)."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise Reject("wrong_type", f"field {where!r} is {describe(value)}, wanted a string")
    return value if blank or value.strip() else None


def checked(text: str) -> str:
    """The text, if it can be encoded.

    Raises:
        Reject: `bad_text`: it cannot be encoded. A parsed line never has such a text, but a user's own step may make
            one, or JSON within a string (`tools`).
    """
    try:
        if not text.isascii():
            text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise Reject("bad_text", f"character {error.start} of a text is half of a surrogate pair") from None
    return text


def check_messages(value: Any, where: str, loss_weights: bool = False) -> list[Message]:
    """The messages of a field. For `loss_weights` see `check_message`.

    Raises:
        Reject: the value is no list of messages; `unsupported_part`: a content is a list with parts other than text and
            reasoning.
    """
    if value is None:
        return []
    if not isinstance(value, list):
        raise Reject("wrong_type", f"field {where!r} is {describe(value)}, wanted a list of messages")
    if are_bare(value):
        return value
    messages = []
    for turn, message in enumerate(value):
        if not are_bare([message]):
            at = f"{where}[{turn}]"
            message = with_calls(message, at)
            check_message(message, at, loss_weights)
            message = with_reasoning(message, at)
        messages.append(message)
    return messages


def with_calls(message: Any, where: str) -> Any:
    """A message whose calls are objects: tables hold them as JSON in a string, one for all calls or one for each.

    >>> with_calls({"role": "assistant", "tool_calls": '[{"name": "find"}]'}, "m")["tool_calls"]
    [{'name': 'find'}]

    Raises:
        Reject: `bad_json`: the string is no JSON.
    """
    if type(message) is not dict:
        return message
    calls, function = message.get("tool_calls"), message.get("function_call")
    if type(calls) is str:
        calls = parsed_field(calls, f"{where}.tool_calls", "a list of calls")
    if type(calls) is list and str in map(type, calls):
        calls = [
            parsed_field(call, f"{where}.tool_calls[{place}]", "a call") if type(call) is str else call
            for place, call in enumerate(calls)
        ]
    if calls is not message.get("tool_calls"):
        message = {**message, "tool_calls": calls}
    if type(function) is str:
        message = {**message, "function_call": parsed_field(function, f"{where}.function_call", "a call")}
    return message


def with_reasoning(message: Message, where: str) -> Message:
    """A message whose reasoning is a field: Anthropic, Cohere and Mistral write it as parts at the head of a content.

    >>> parts = [{"type": "thinking", "thinking": "Two and two."}, {"type": "text", "text": "Four."}]
    >>> with_reasoning({"role": "assistant", "content": parts}, "messages[1]")
    {'role': 'assistant', 'content': [{'type': 'text', 'text': 'Four.'}], 'reasoning_content': 'Two and two.'}

    Raises:
        Reject: `unsupported_part`: a template could not tell to which text the reasoning belongs.
    """
    content: Any = message.get("content")
    if type(content) is not list or all(_thought(part) is None for part in content):
        return message
    parts = [part for part in content if _thought(part) != ""]  # Claude's API leaves reasoning empty on request
    thoughts = [_thought(part) or "" for part in parts]
    alone = None if message.get("tool_calls") else ""  # as OpenAI's API writes calls
    if not any(thoughts):
        return {**message, "content": parts or alone}
    count = len([*itertools.takewhile(bool, thoughts)])
    if message["role"] != "assistant" or any(thoughts[count:]) or any(map(message.get, REASONING_FIELDS)):
        wanted = "wanted it before the texts of an assistant's message, and in no other field"
        raise Reject("unsupported_part", f"'{where}.content' has parts of reasoning, {wanted}")
    rest = {key: value for key, value in message.items() if key not in REASONING_FIELDS}
    return {**rest, "content": parts[count:] or alone, "reasoning_content": "".join(thoughts)}


_THOUGHTS = ("thinking", "reasoning")


def _thought(part: Any) -> str | None:
    """The reasoning of a part; None if it is another part, or says more. Mistral writes it as a list of text parts."""
    kind = part.get("type") if isinstance(part, dict) else None
    if kind not in _THOUGHTS:
        return None
    given = [part[key] for key in (kind, "text") if part.get(key) is not None]
    said = [each for each in given if each not in ("", [])]
    texts = [*map(text_of_part, said[0] if said and isinstance(said[0], list) else said)]
    return "".join(texts) if given and len(said) < 2 and all(texts) else None


def variables_of(record: Record) -> dict[str, Any]:
    """The template's variables from a record: its `tools` and `chat_template_kwargs`."""
    schemas, others = tools(record), template_kwargs(record)
    return others if schemas is None else {"tools": schemas, **others}


def check_message(message: Any, where: str, loss_weights: bool = False) -> None:
    """Checks a message.

    Args:
        message: the message.
        where: its place, for messages of rejects.
        loss_weights: its `weight` may be any loss weight, not only 0 or 1.

    Raises:
        Reject: `wrong_type`, `bad_message` or `bad_weight`: not an object, no role, content that is no text, a
            wrong `function_call` or `tool_calls`, a weight that is not allowed, or that contradicts `train`;
            `unsupported_part`: see `check_messages`.
    """
    if not isinstance(message, dict):
        raise Reject("wrong_type", f"{where!r} is {describe(message)}, wanted a message (an object)")
    role = message.get("role")
    if not isinstance(role, str):
        if role is None:
            keys = ", ".join(repr(key[:40]) for key in list(message)[:8]) or "none"
            raise Reject("bad_message", f"{where!r} has no role (keys: {keys}), wanted 'role' (a string) and 'content'")
        raise Reject("bad_message", f"{where!r} has a role that is {describe(role)}, wanted a string")
    content = message.get("content")
    if isinstance(content, list):
        for place, part in enumerate(content):
            _check_part(part, f"{where}.content[{place}]")
    elif content is not None and not isinstance(content, str):
        text = " (an object is written as JSON in a text)" if isinstance(content, dict) else ""
        raise Reject("wrong_type", f"'{where}.content' is {describe(content)}, wanted a string{text}")
    if message.get("function_call"):
        _check_function_call(message, where)
    if message.get("tool_calls"):
        _check_tool_calls(message["tool_calls"], f"{where}.tool_calls")
    if not isinstance(message.get("train"), bool | None):
        raise Reject("wrong_type", f"'{where}.train' is {describe(message['train'])}, wanted true or false")
    if message.get("weight") is not None:
        _check_weight(message["weight"], message.get("train"), where, loss_weights)


def _check_function_call(message: Message, where: str) -> None:
    found = message["function_call"]
    if not isinstance(found, dict) or not isinstance(found.get("name"), str):
        what = "an object without a name" if isinstance(found, dict) else describe(found)
        raise Reject("bad_message", f"'{where}.function_call' is {what}, wanted an object of 'name' and 'arguments'")
    if message.get("tool_calls"):
        raise Reject("bad_message", f"{where!r} has both 'function_call' and 'tool_calls', wanted one of them")


def _check_tool_calls(calls: Any, where: str) -> None:
    if not isinstance(calls, list):
        raise Reject("bad_message", f"{where!r} is {describe(calls)}, wanted a list of calls (objects)")
    for place, call in enumerate(calls):
        if not isinstance(call, dict):
            raise Reject("bad_message", f"'{where}[{place}]' is {describe(call)}, wanted a call (an object)")


def _check_part(part: Any, where: str) -> None:
    if isinstance(part, str) or _thought(part) is not None:
        return
    if not isinstance(part, dict):
        raise Reject("unsupported_part", f"'{where}' is {describe(part)}, wanted a text part")
    kind, text = part.get("type"), part.get("text")
    if kind is None:
        raise Reject("unsupported_part", f"'{where}' has no type, wanted the type 'text'")
    if kind in _THOUGHTS:
        raise Reject("unsupported_part", f"'{where}' is of type {kind!r}, wanted one text in it, or only text parts")
    if kind != "text":
        raise Reject("unsupported_part", f"'{where}' is of type {str(kind)[:40]!r}, wanted the type 'text'")
    if not isinstance(text, str):
        found = f"has a text that is {describe(text)}" if "text" in part else "has no text"
        raise Reject("unsupported_part", f"'{where}' {found}, wanted a string")


def _check_weight(weight: Any, train: bool | None, where: str, loss_weights: bool) -> None:
    if loss_weights:
        check_loss_weight(weight, f"{where}.weight")
    # SlimOrca has 0.0 and 1.0, because a column of numbers and nulls becomes floats.
    elif type(weight) not in (int, float):
        raise Reject("wrong_type", f"'{where}.weight' is {describe(weight)}, wanted 0 or 1")
    elif weight not in (0, 1):
        wanted = 'wanted 0 or 1: there are no loss weights (of sections: "output": {"loss_weights": true})'
        raise Reject("bad_weight", f"'{where}.weight' is {describe(weight)}, {wanted}")
    if train is not None and train != (weight != 0):
        found = f"train {'true' if train else 'false'} and weight {weight}"
        raise Reject("bad_weight", f"'{where}' has {found}, wanted one of them, or both alike")


def list_of(record: Record, name: str) -> list[Any]:
    value = record.get(name)
    if value is None:
        return []
    if not isinstance(value, list):
        raise Reject("wrong_type", f"field {name!r} is {describe(value)}, wanted a list (list_field is true)")
    return value
