"""Messages in the form that a template takes, and the parts of them that a template does not write."""

import itertools
import json
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from beam_prep.chat.origins import CONTENT, RAW, REASONING_FIELDS, TOOLS, is_thought
from beam_prep.chat.trace import Trace
from beam_prep.data.block import Reject
from beam_prep.reading.records import are_bare, parse_json

Message = dict[str, Any]
ToolArguments = Literal["auto", "object", "string", "as_is"]
Shown = Callable[[list[Message]], str]
"""Messages -> the template's text for them; "" if it raises."""

_REASONING = frozenset(REASONING_FIELDS)
OTHER_CONTENTS = ("refusal", "tool_plan")
"""Texts in place of a content: of OpenAI's API, and of Cohere's, beside calls."""
_BESIDE_CONTENT = _REASONING | {"tool_calls", *OTHER_CONTENTS}


def for_template(message: Message) -> Message:
    """A message as transformers gives it to a template: without null keys, reasoning under each of its names.

    An empty list of calls is left out, too: vLLM and LangChain write it, and templates take it for calls.
    """
    if None in message.values() or message.get("tool_calls") == []:
        message = {key: value for key, value in message.items() if value is not None and (value or key != "tool_calls")}
    if _REASONING.isdisjoint(message):
        return message
    reasoning = next(message[key] for key in REASONING_FIELDS if key in message)
    return {"thinking": reasoning, "reasoning": reasoning, **message, "reasoning_content": reasoning}


def are_plain(messages: Sequence[Any]) -> bool:
    """True if all messages are a role, not `function` (see `is_legacy`), and a text."""
    return are_bare(messages) and "function" not in [message["role"] for message in messages]


def call(name: str, arguments: Any, place: int = 0) -> dict[str, Any]:
    """A tool call, for probes."""
    function = {"name": name, "arguments": arguments}
    return {"id": f"call0000{place + 1}", "type": "function", "function": function}


def result(name: str, content: str, place: int = 0) -> Message:
    """The result of a `call`, for probes."""
    return {"role": "tool", "content": content, "name": name, "tool_call_id": call(name, {}, place)["id"]}


def is_legacy(message: Message) -> bool:
    """True for a call or a result in the form that OpenAI's API had before `tool_calls`, the role `tool` and ids."""
    without_id = any(not each.get("id") for each in message.get("tool_calls") or ())
    without_id |= message["role"] == "tool" and not message.get("tool_call_id")
    return message["role"] == "function" or bool(message.get("function_call")) or without_id


def _function_of(given: dict[str, Any]) -> dict[str, Any]:
    """The object with name and arguments of a call, which may be the call itself."""
    function = given.get("function")
    return function if isinstance(function, dict) else {"name": function, **given}


class _Ids(NamedTuple):
    """A form of the ids of calls that a template takes.

    Attributes:
        make: (function, number of earlier calls) -> the id of a call without one; None: it stays without.
        fits: (function, id) -> whether the id has the form; None: every id has.
    """

    make: Callable[[str, int], str | None]
    fits: Callable[[str, str], bool] | None


_VALUE = {"sentinelkey": "sentinelvalue"}
_IDS = (
    _Ids(lambda name, place: None, None),
    # Without nine letters and digits Mistral's templates raise.
    _Ids(lambda name, place: f"call{place + 1:05}", lambda name, own: len(own) == 9 and own.isalnum()),
    # Kimi's templates write the function only in the id.
    _Ids(lambda name, place: f"functions.{name}:{place}", lambda name, own: own.startswith(f"functions.{name}:")),
)


class Forms:
    """The forms of contents, arguments and calls that a template takes, found by rendering each form.

    Args:
        shown: renders messages.
        tool_arguments: `auto`, or the form that all arguments get.

    Attributes:
        parts: role, or `calls` -> True: contents must be lists of parts; False: they must be strings; None: unchanged.
            Any other role has the form of `user`.
        objects: True: arguments of calls must be objects; False: strings; None: unchanged.
        fills: what calls without content get: a content that is null, as in OpenAI's API, or empty; {}: nothing.
        thinks: True: reasoning must be a part of the content (Ministral 3), and no field.
    """

    def __init__(self, shown: Shown, tool_arguments: ToolArguments = "auto") -> None:
        self._shown = shown
        self.parts: dict[str, bool | None] = {}
        self.objects: bool | None = None
        self._changes_arguments = tool_arguments != "as_is"
        for role in ("system", "developer", "user", "assistant"):
            self.parts[role] = self._takes_parts(role)
        self.parts["calls"] = self.parts["assistant"]
        if tool_arguments == "auto":
            self.objects = self._takes_objects()
        elif tool_arguments != "as_is":
            self.objects = tool_arguments == "object"
        for role in ("calls", "tool"):
            self.parts[role] = self._takes_parts(role)
        self.fills = self._filling()
        self.thinks = self._needs_thoughts()
        self._plain = True not in self.parts.values()
        self._takes_calls, self._takes_results, self._ids = self._legacy_forms()

    @property
    def _arguments(self) -> Any:
        return json.dumps(_VALUE) if self.objects is False else _VALUE

    def _takes_parts(self, role: str) -> bool | None:
        def probed(as_parts: bool) -> str:
            def says(speaker: str) -> Message:
                content: Any = f"sentinel{speaker}"
                if as_parts if speaker == role else self.parts.get(speaker):
                    content = [{"type": "text", "text": content}]
                return {"role": speaker, "content": content}

            calls = {**says("calls"), "role": "assistant", "tool_calls": [call("find", self._arguments)]}
            result = {**says("tool"), "name": "find", "tool_call_id": "call00001"}
            messages = {
                "user": [says("user")],
                "assistant": [says("user"), says("assistant")],
                "calls": [says("user"), calls],
                "tool": [says("user"), calls, result],
            }
            return self._shown(messages.get(role, [says(role), says("user")]))

        as_text, as_parts = probed(False), probed(True)
        takes_parts = _shows_part(f"sentinel{role}", as_parts)
        if f"sentinel{role}" in as_text:
            return None if takes_parts else False
        return True if takes_parts else self.parts.get(role)

    def _shown_call(self, arguments: Any, behind: Sequence[Message] = (), **content: Any) -> str:
        bare: Message = {"role": "assistant", **content, "tool_calls": [call("find", arguments)]}
        asked = [{"role": "user", "content": "sentinel"}, bare, *behind]
        return self._shown([self._with_content(message) for message in asked])

    def _takes_objects(self) -> bool | None:
        as_object, as_string = (
            self._shown_call(value, content="") + self._shown_call(value, content=None)  # DeepSeek-R1 takes null alone
            for value in (_VALUE, json.dumps(_VALUE))
        )
        objects = "sentinelvalue" in as_object and "'sentinelkey'" not in as_object
        strings = "sentinelvalue" in as_string and '\\"sentinelkey' not in as_string
        if objects and as_object != as_string:
            return True  # Gemma 4 takes strings, too, and writes them as they are in its own braces
        return None if objects == strings else objects

    def _filling(self) -> dict[str, Any]:
        answered = result("find", "r"), {"role": "assistant", "content": "sentinel"}
        behind: tuple[Sequence[Message], ...] = ((), answered)  # QwQ reads it before an answer

        def shown(content: dict[str, Any]) -> tuple[int, int]:
            texts = [self._shown_call(self._arguments, each, **content) for each in behind]
            taken = [text for text in texts if text and "None" not in text]
            # A null may stand elsewhere in each of them.
            return sum("sentinelvalue" in text for text in taken), sum("null" not in text for text in taken)

        # Null comes before empty: behind an empty content, DeepSeek's templates write an empty answer.
        return max(({}, {"content": None}, {"content": ""}), key=shown)

    def _needs_thoughts(self) -> bool:
        def shows(answer: Message) -> bool:
            question = self._with_content({"role": "user", "content": "sentinel"})
            return _shows_part("sentinelthought", self._shown([question, answer]))

        answer = {"role": "assistant", "content": "sentinel", "reasoning_content": "sentinelthought"}
        thinking = for_template(answer)
        return not shows(self._with_content(thinking)) and shows(_with_thought(thinking))

    def apply(self, messages: Sequence[Message]) -> tuple[Sequence[Message], dict[str, int]]:
        """(the messages in the forms that the template takes, name -> number of changed arguments and ids).

        Raises:
            Reject: `bad_arguments`: arguments are no JSON object, and the template takes objects.
        """
        changed: dict[str, int] = {}
        if self._plain and are_plain(messages):
            return messages, changed  # the most frequent case
        messages = [for_template(message) for message in messages]
        if self._ids.fits or any(map(is_legacy, messages)):
            messages, ids = self._without_legacy(messages)
            changed = {"tool_ids_changed": ids}
        made, arguments = [], 0
        for place, message in enumerate(messages):
            calls = message.get("tool_calls")
            if calls and self.fills and message.get("content") is None:
                message = {**self.fills, **message}
            message = self._with_content(message)
            if self.thinks and has_words(message.get("reasoning_content")):
                message = _with_thought(message)
            if calls and self._changes_arguments and isinstance(calls, list):
                done = [self._with_arguments(each, f"[{place}].tool_calls[{k}]") for k, each in enumerate(calls)]
                changed_here = sum(map(operator.is_not, done, calls))
                if changed_here:
                    arguments += changed_here
                    message = {**message, "tool_calls": done}
            made.append(message)
        return made, {**changed, "tool_arguments_changed": arguments}

    def _without_legacy(self, messages: Sequence[Message]) -> tuple[list[Message], int]:
        """The messages with each `function_call` as `tool_calls`, each `function` result as a `tool` result, and ids.

        A message stays in the old form if the template reads only that form. A call whose id the template refuses, or
        misses, gets another. A result gets the id of its call: that of the same id, else the next of the same name, or
        of any, and not one of an earlier question if it can be another. Also returns the number of changed calls.
        """
        # Results, and the message before them, have the same step. Later calls may have the same ids.
        steps = [*itertools.accumulate(message["role"] not in ("tool", "function") for message in messages)]
        named = {(at, str(message.get("tool_call_id") or "")) for at, message in zip(steps, messages, strict=True)}
        made, waiting = [], list[tuple[int, Any, str, str]]()  # without a result: (-question, its id, function, new id)
        count, changed, questions = 0, 0, 0
        for step, message in zip(steps, map(self._with_calls, messages), strict=True):
            questions += message["role"] == "user"
            if calls := message.get("tool_calls"):
                done = [self._with_id(each, place) for place, each in enumerate(calls, count)]
                count += len(calls)
                changed += sum(map(operator.is_not, done, calls))
                for each, new in zip(calls, done, strict=True):
                    if new.get("id"):
                        name = str(_function_of(each).get("name"))
                        waiting.append((-questions, each.get("id") or None, name, new["id"]))
                message = {**message, "tool_calls": done}
            elif waiting and message["role"] == "tool":
                given = message.get("tool_call_id") or None
                mine = [each for each in waiting if given in (None, each[1])]
                # Those of the last question first, and those that another result names last.
                mine.sort(key=lambda each: (each[0], (step, str(each[1])) in named))
                if mine:
                    found = next((each for each in mine if each[2] == message.get("name")), mine[0])
                    waiting.remove(found)
                    message = {**message, "tool_call_id": found[3]}
            made.append(message)
        return made, changed

    def _with_calls(self, message: Message) -> Message:
        """A message in the form of today's API, if the template reads it."""
        if self._takes_calls and message.get("function_call"):
            rest = {key: value for key, value in message.items() if key != "function_call"}
            return {"content": "", **rest, "tool_calls": [{"type": "function", "function": message["function_call"]}]}
        if self._takes_results and message["role"] == "function":
            return {**message, "role": "tool"}
        return message

    def _with_id(self, given: Any, place: int) -> Any:
        """A call with an id that the template takes. `place`: the number of earlier calls."""
        make, fits = self._ids
        name, own = str(_function_of(given).get("name")), given.get("id") or None
        if own and (not fits or fits(name, str(own))):
            return given
        fitting = make(name, place)
        # The id comes first, as OpenAI's API writes it, and in place of a null.
        return given if fitting is None or fitting == own else {"id": fitting, **given} | {"id": fitting}

    def _legacy_forms(self) -> tuple[bool, bool, _Ids]:
        """(calls become `tool_calls`, results get the role `tool`, the form of ids)."""

        def shows(asked: list[Message], *wanted: str) -> bool:
            shown = self._shown([self._with_content(message) for message in asked])
            return all(word in shown for word in wanted)

        user: Message = {"role": "user", "content": "sentinel"}
        calling: Message = {"role": "assistant", "content": ""}
        function = {"name": "sentinelname", "arguments": self._arguments}
        old = {**calling, "function_call": {**function, "arguments": json.dumps(_VALUE)}}
        words = ("sentinelname", "sentinelvalue")

        def called(own: str | None) -> tuple[Message, Message]:
            made, result = {"type": "function", "function": function}, {"role": "tool", "name": "sentinelname"}
            if own is not None:
                made, result = {"id": own, **made}, {**result, "tool_call_id": own}
            return {**calling, "tool_calls": [made]}, {**result, "content": "sentinelresult"}

        def taken(own: str | None) -> bool:
            called_by, result = called(own)
            return shows([user, called_by], *words) and shows([user, called_by, result], *words)

        ids = next((ids for ids in _IDS if taken(ids.make("sentinelname", 0))), _IDS[0])
        if taken("call_of_another_form"):
            ids = ids._replace(fits=None)
        result = {"role": "function", "name": "sentinelname", "content": "sentinelresult"}
        new_call, new_result = called(ids.make("sentinelname", 0))
        calls = shows([user, new_call], *words) or not shows([user, old], *words)
        new = shows([user, new_call, new_result], "sentinelresult")
        return calls, new or not shows([user, new_call if calls else old, result], "sentinelresult"), ids

    def _with_content(self, message: Message) -> Message:
        role = "calls" if message.get("tool_calls") else message["role"]
        content, wanted = message.get("content"), self.parts.get(role, self.parts["user"])
        if wanted is True and isinstance(content, str):
            return {**message, "content": [{"type": "text", "text": content}]}
        if wanted is False and isinstance(content, list):
            return {**message, "content": "".join(map(text_of_part, content))}
        return message

    def _with_arguments(self, given: Any, where: str) -> Any:
        holder: Any = given.get("function", given) if isinstance(given, dict) else None
        arguments = holder.get("arguments") if isinstance(holder, dict) else None
        made: Any = None
        if isinstance(holder, dict) and _lacks_arguments(holder):
            made = {} if self.objects else "{}"
        elif self.objects and isinstance(arguments, str):
            made = _object(arguments, where)
        elif self.objects is False and isinstance(arguments, dict):
            made = json.dumps(arguments, ensure_ascii=False)
        if made is None:
            return given
        holder = {**holder, "arguments": made}
        return {**given, "function": holder} if "function" in given else holder


def _shows_part(word: str, shown: str) -> bool:
    """True if the text of a part is written, and not the whole part."""
    return word in shown and "'type'" not in shown and '"type"' not in shown


def _with_thought(message: Message) -> Message:
    """The message with its reasoning as a part at the head of its content."""
    content, thought = message.get("content") or [], {"type": "thinking", "thinking": message["reasoning_content"]}
    behind = [{"type": "text", "text": content}] if isinstance(content, str) else content
    rest = {key: value for key, value in message.items() if key not in _REASONING}
    return {**rest, "content": [thought, *behind]}


def _lacks_arguments(function: dict[str, Any]) -> bool:
    """True for empty arguments, and for a call that is only a name. Others may have them under other keys."""
    arguments = function.get("arguments")
    if arguments is None:
        given = {key for key, value in function.items() if value is not None}
        return "name" in given and given <= {"name", "id", "type"}
    return isinstance(arguments, str) and not arguments.strip()


def _object(arguments: str, where: str) -> dict[str, Any]:
    """Arguments of a call, parsed from a string."""
    found, why = None, ""
    try:
        found = parse_json(arguments.encode(errors="surrogatepass"), float)
    except Reject as reject:
        why = f" ({reject.message})"
    if not isinstance(found, dict):
        message = (
            f"the arguments of '{where}' are the string {arguments[:60]!r}{why}, wanted a JSON object, because this "
            'chat template takes objects ("tool_arguments": "as_is" in "input" leaves them unchanged)'
        )
        raise Reject("bad_arguments", message)
    return found


def text_of_part(part: Any) -> str:
    """The text of a content part, which is an object with a `text`, or a string."""
    text = part.get("text") if isinstance(part, dict) else part
    return text if isinstance(text, str) else ""


_INLINE = re.compile(r"\s*(?:<think>.*?|(?:(?!<think>).)*?)</think>\n*", re.DOTALL)
"""Reasoning at the beginning of a content. The generation prompt may hold its first tag (DeepSeek-R1)."""


def inline_reasoning(message: Mapping[str, Any]) -> tuple[str, str]:
    """(the reasoning at the beginning of an answer's content, "" without one; the rest of the content's text).

    >>> inline_reasoning({"role": "assistant", "content": [{"type": "text", "text": "<think>So</think>Yes."}]})
    ('<think>So</think>', 'Yes.')
    >>> inline_reasoning({"role": "assistant", "content": "Yes. <think>So</think>"})
    ('', 'Yes. <think>So</think>')
    """
    content = message.get("content") or ""
    text = content if isinstance(content, str) else "".join(map(text_of_part, content))
    found = _INLINE.match(text) if message["role"] == "assistant" and "</think>" in text else None
    return (found[0], text[found.end() :]) if found else ("", text)


# What a template does not write

Lost = tuple[int, str]
"""A message (or TOOLS), and its key that the template does not write."""


def is_optional(lost: Lost) -> bool:
    """True for tools and reasoning, which templates leave out on purpose. Anything else rejects the record."""
    return lost[0] == TOOLS or lost[1] == "reasoning"


def not_rendered(rendering: Trace, messages: Sequence[Message], tools: Any) -> tuple[list[Lost], int]:
    """Finds what the template did not write: contents, reasoning, names and arguments of calls, tools.

    Returns:
        these, and the number of messages whose reasoning it wrote.
    """
    reasoned, squeezed = 0, ""
    written = {(index, key) for begin, end, index, keys, _ in rendering.segments if end > begin for key in keys}
    found = [] if not tools or (TOOLS, "tools") in written else [(TOOLS, "tools")]
    for index, message in enumerate(messages):
        content = message.get("content")
        is_alone = (index, "content") in written and _BESIDE_CONTENT.isdisjoint(message)
        if is_alone and type(content) is str and "</think>" not in content:
            continue  # the most frequent case
        reasoned += (index, "reasoning") in written
        if (index, "*") not in written:
            found += [
                (index, keys[0]) for keys in _to_write(message) if written.isdisjoint((index, key) for key in keys)
            ]
        # Of a second one, templates that take the content apart leave out what stands before it, or behind it.
        rest = inline_reasoning(message)[1]
        if "</think>" in rest:
            squeezed = squeezed or "".join(rendering.text.split())
            if "".join(rest.split()) not in squeezed:
                found.append((index, "content around a second '</think>'"))
    return found, reasoned


def _to_write(message: Message) -> Iterator[tuple[str, ...]]:
    """The texts of a message, as tuples of keys: the template has to write one key of each tuple."""
    content = message.get("content")
    texts = (
        [place for place, part in enumerate(content) if has_words(text_of_part(part))] if type(content) is list else []
    )
    said = {key: message[key] for key in (*CONTENT, *OTHER_CONTENTS) if has_words(message.get(key))}
    if len(texts) > 1:
        said.pop("content")
        yield from ((f"content[{place}]",) for place in texts)
    for key, text in said.items():  # the same text may stand under several keys
        yield key, *(other for other in said if said[other] == text)
    thoughts = [*map(message.get, REASONING_FIELDS), *(filter(is_thought, content) if type(content) is list else ())]
    if any(is_thought(each) or has_words(each) for each in thoughts):
        yield ("reasoning",)
    if message.get("function_call"):  # the template reads the old form
        yield ("function_call",)
    if not has_words(content) and not any(map(message.get, (*_BESIDE_CONTENT, "function_call"))):
        # Of another API: `parts` of Gemini, `toolInvocations` of Vercel's AI SDK. Single words are states.
        rest = {key: value for key, value in message.items() if key not in ("content", *_NAMES)}
        if "content" not in message:
            yield from ((key,) for key, value in rest.items() if len(str(value).split()) > 1)
        elif message["role"] == "assistant":
            yield from ((key,) for key, value in rest.items() if holds_objects(value))
    for place, each in enumerate(message.get("tool_calls") or ()):
        key, function = f"tool_calls[{place}].", _function_of(each)
        name, arguments = function.get("name"), function.get("arguments")
        if name:  # Kimi writes ids, which hold the name
            yield (f"{key}name", f"{key}id") if str(name) in str(each.get("id")) else (f"{key}name",)
        if arguments and arguments != "{}":
            yield (f"{key}arguments",)
        if not name or arguments is None:
            # Of another API: `args` of LangChain, `tool_name` of Llama Stack, `custom` of OpenAI. A template that
            # writes the whole call writes, by its origin, the key that is not there, too.
            absent = f"{key}arguments" if name else f"{key}name"
            others = [own for own, value in (each | function).items() if type(value) in RAW and value]
            yield from ((f"{key}{own}", absent) for own in others if own not in _NAMES and not own.endswith("id"))


_NAMES = {"role", "name", "type", "function", "arguments", "annotations", "logprobs"}
"""Keys that say nothing of their own. OpenAI's API puts annotations and logprobs beside empty answers, too."""


def has_words(content: Any) -> bool:
    """True if a content is more than blanks. An image counts, too."""
    if isinstance(content, list):
        return any(has_words(text_of_part(part)) or _is_media(part) for part in content)
    return isinstance(content, str) and bool(content) and not content.isspace()


def holds_objects(value: Any) -> bool:
    """True for a list of objects, and for an object that has one."""
    values = value.values() if type(value) is dict else (value,)
    return any(type(each) is list and dict in map(type, each) for each in values)


def _is_media(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") not in (None, "text") and not is_thought(part)


def is_said(message: Message) -> bool:
    """True if a message has words or calls."""
    return bool(message.get("tool_calls")) or has_words(message.get("content"))
