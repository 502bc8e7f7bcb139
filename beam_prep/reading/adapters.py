"""Functions of one record: filters, functions of the user, and adapters.

Adapters convert records of other forms to the fields that sections read: ShareGPT, Alpaca, tools, tokenised rows.

    adapt = adapter("sharegpt", roles={"bing": "assistant"})
    adapt({"conversations": [{"from": "human", "value": "Hi"}]})  # {'messages': [{'role': 'user', 'content': 'Hi'}]}

An adapter takes one parsed record and returns a new one, or raises `Reject`. A record whose fields for the adapter are
absent or null passes unchanged; ApplyTemplate reports what is missing.
"""

import ast
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass

from beam_prep.data.block import Reason, Reject, step
from beam_prep.data.rendered import DEFAULT_DOMAIN
from beam_prep.errors import ConfigError, UserFunctionError
from beam_prep.hints import nearest, unknown_name
from beam_prep.reading.records import Record, Records, check_type, describe, parse_json


@step
def filter_by_chars(records: Records, min_chars: int, max_chars: int, fields: tuple[str, ...]) -> Records:
    """Removes text fields with fewer than `min_chars` or more than `max_chars` code points.

    A record that loses all its text `fields` is dropped (`too_short` / `too_long`). Fields that are no strings stay:
    ApplyTemplate rejects them.
    """

    def work(row: Record) -> Record | str | bool:
        texts = {name: row[name] for name in fields if isinstance(row.get(name), str)}
        outside = {name for name, text in texts.items() if not min_chars <= len(text) <= max_chars}
        if not outside:
            return row
        if len(outside) == len(texts) and all(row.get(name) is None for name in fields if name not in texts):
            raise LeftOut(_why([*texts.values()], min_chars))
        return {name: value for name, value in row.items() if name not in outside}

    return work_on_each(records, work)


def _why(texts: list[str], min_chars: int) -> str:
    """The reason to drop a record whose texts are all too short or too long."""
    filled = [text for text in texts if text.strip()]
    if not filled:
        return "empty"
    return "too_short" if any(len(text) < min_chars for text in filled) else "too_long"


class LeftOut(Exception):
    """A rule drops the record."""


@step
def filter_records(records: Records, function: Callable[[Record], bool | str]) -> Records:
    """Keeps records for which `function` returns True; False drops (`filtered`), a string rejects with this reason.

    Raises:
        UserFunctionError: the function raised, or returned something else.
    """

    def work(row: Record) -> Record:
        if not _call(function, row, (bool, np.bool_), "FilterRecords wants True, False"):
            raise LeftOut("filtered")
        return row

    return work_on_each(records, work)


@step
def map_records(records: Records, function: Callable[[Record], Record | str]) -> Records:
    """Replaces each record by `function(record)`; a string rejects the record, and is the reason.

    Raises:
        UserFunctionError: the function raised, or returned neither an object nor a string.
    """

    return work_on_each(records, lambda row: _call(function, row, dict, "MapRecords wants a dict"))


def work_on_each(records: Records, work: Callable[[Record], Any]) -> Records:
    """Applies `work` to every row. If it raises Reject or LeftOut, the row leaves the block."""
    rows, kept, ledger = [], [], records.ledger.copy()
    for index, (line, row) in enumerate(zip(records.line.tolist(), records.rows, strict=True)):
        try:
            row = work(row)
        except Reject as reject:
            ledger.reject(line, reject.reason, reject.message)
        except LeftOut as drop:
            ledger.drop(line, drop.args[0])
        except UserFunctionError as error:
            raise UserFunctionError(f"{error}, at {records.where(index)}") from error.__cause__
        else:
            rows.append(row)
            kept.append(index)
    line = records.line[np.asarray(kept, dtype=np.int64)]
    return Records(records.origin, ledger, line, records.receipt, rows, made=records.made)


def _call(function: Callable[[Record], Any], row: Record, kinds: Any, wanted: str) -> Any:
    """What the function gives for a record. A text rejects the record, and is the reason."""
    name = getattr(function, "__qualname__", repr(function))
    # The run ends here and names the record: an error in a user's code must not be skipped.
    try:
        answer = function(row)
    except Exception as error:
        message = " ".join(str(error).split())  # one line, so that logs do not separate the text behind it
        raise UserFunctionError(f"{name} raised {type(error).__name__}: {message}") from error
    if isinstance(answer, str) and answer:
        raise Reject(answer, f"{name} refused the record")
    if not isinstance(answer, kinds):
        raise UserFunctionError(f"{name} gave {describe(answer)}; {wanted} or a reason (a string)")
    return answer


SMALLEST, LARGEST = 1e-12, 1e12
"""The smallest weight above 0, and the largest. A product of three weights is a normal float32."""

WANTED = f"wanted 0, or a number from {SMALLEST:g} to {LARGEST:g}"


def record_weight(record: Record) -> float:
    """The `weight` of a record; 1 if absent or null.

    Raises:
        Reject: `wrong_type` or `bad_weight`.
    """
    weight = record.get("weight")
    if weight is None:
        return 1.0
    check_loss_weight(weight, "weight")
    return float(weight)


def record_domain(record: Record, key: str | None) -> str:
    """The domain of a record. `__default__` if it is absent, a number or a boolean; then the run warns.

    >>> record_domain({"year": "2024"}, "year"), record_domain({"year": 2024}, "year")
    ('2024', '__default__')

    Args:
        record: the record.
        key: the field that names the domain; None: no field does.

    Raises:
        Reject: `wrong_type`: the domain is a list or an object.
    """
    found = None if key is None else record.get(key)
    if found is None or isinstance(found, int | float):
        return DEFAULT_DOMAIN
    check_type(found, str, f"field {key!r}", "a text: it names the record's domain (output.domain_key)")
    return str(found)


def check_loss_weight(weight: Any, where: str) -> None:
    """Raises Reject (`wrong_type` or `bad_weight`) if the value is no loss weight."""
    if type(weight) not in (int, float):
        raise Reject("wrong_type", f"'{where}' is {describe(weight)}, {WANTED}")
    if weight != 0 and not SMALLEST <= weight <= LARGEST:
        raise Reject("bad_weight", f"'{where}' is {describe(weight)}, {WANTED}")


Adapter = Callable[[Record], Record]

CALLS = ("function_call", "tool_call")
ROLES: Mapping[str, str] = {
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "assistant", "chatgpt", "bot", "model", *CALLS), "assistant"),
    "system": "system",
    **dict.fromkeys(("tool", "observation", "function_response", "tool_response", "function", "ipython"), "tool"),
}
"""Names of roles in ShareGPT files -> roles of chat templates."""

_SIDES = ("prompt", "completion", "chosen", "rejected")
_Name = Annotated[str, Field(min_length=1)]
_STRICT = ConfigDict(strict=True, extra="forbid")


@dataclass(frozen=True, slots=True, config=_STRICT)
class ShareGPT:
    """`conversations` of `from` / `value` items -> `messages` of `role` / `content`; keeps other fields.

    Items with a `role` only get the new name of it. A field `system`, a text or text parts, becomes the first message
    if there is none.
    A `function_call` or `tool_call` that is JSON, or a Python dict, with `name` and `arguments` (or a list of these)
    becomes `tool_calls`. Such items in `prompt`, `completion`, `chosen` and `rejected` are converted in place, too.

    Attributes:
        field: the field that holds the items.
        roles: names of roles that extend or override `ROLES`; `{}` or "keep": all names stay (as in TRL), and nothing
            becomes `tool_calls`.
    """

    field: _Name = "conversations"
    roles: dict[_Name, _Name] | Literal["keep"] | None = None

    @property
    def reads(self) -> tuple[str, ...]:
        """The fields that a record needs."""
        return (self.field,)

    def __call__(self, record: Record) -> Record:
        roles = self._mapping()
        sides = {
            name: [_message(item, f"{name}[{turn}]", roles) for turn, item in enumerate(_listed(record[name]))]
            for name in _SIDES
            if name != self.field and _is_sharegpt(_listed(record.get(name)))
        }
        items = record.get(self.field)
        items = message_list(items, self.field) or items
        if items is None:
            return {**record, **sides} if sides else record
        check_type(items, list, f"field {self.field!r}", "a list of messages")
        result = {name: value for name, value in record.items() if name != self.field} | sides
        _check_free(result, "messages", self.field)
        messages = [_message(item, f"{self.field}[{turn}]", roles) for turn, item in enumerate(items)]
        result["messages"] = _with_system(result, messages)
        return result

    def _mapping(self) -> Mapping[str, str] | None:
        if self.roles == "keep" or self.roles == {}:
            return None
        return {**ROLES, **(self.roles or {})}


def _listed(value: Any) -> Any:
    """A list; a side may be a single item."""
    return [value] if isinstance(value, dict) else value


def _is_sharegpt(value: Any) -> bool:
    first = value[0] if isinstance(value, list) and value else None
    return isinstance(first, dict) and first.get("from") is not None


def _message(item: Any, where: str, roles: Mapping[str, str] | None) -> dict[str, Any]:
    check_type(item, dict, f"'{where}'", "an object with 'from' and 'value'")
    name, role = item.get("from"), item.get("role")
    if name is None and roles and isinstance(role, str) and roles.get(role, role) != role:
        name, item = role, {**item, "value": item.get("content")}
    if name is None:
        if role is None:
            keys = ", ".join(map(repr, item)) or "nothing"
            raise Reject("bad_message", f"'{where}' has {keys}, wanted 'from' and 'value' (or 'role' and 'content')")
        return dict(item)
    check_type(name, str, f"'{where}.from'", "a string", "bad_message")
    if "value" not in item:
        raise Reject("bad_message", f"'{where}' has 'from' but no 'value', wanted both")
    value = item["value"]
    check_type(value, str | list | None, f"'{where}.value'", "a string")
    rest = {key: value for key, value in item.items() if key not in ("from", "value", "role", "content")}
    if roles is None:
        return {"role": name, "content": value, **rest}
    if name not in roles:
        near = nearest(name, roles)
        example = json.dumps({name[:40]: "assistant" if near is None else roles[near]}, ensure_ascii=False)
        raise Reject(
            "unknown_role",
            f"'{where}.from' is {name[:40]!r}, wanted one of {', '.join(roles)}: "
            f'map it with "roles": {example}, or keep all names with "roles": "keep"',
        )
    message = {"role": roles[name], "content": value, **rest}
    if name in CALLS and roles[name] == "assistant" and isinstance(value, str) and (calls := _calls(value)):
        message |= {"content": "", "tool_calls": calls}
    return message


def _calls(text: str) -> list[dict[str, Any]] | None:
    """A function call written as JSON, or as Python does (Toucan) -> `tool_calls`; None if it is plain text."""
    try:
        found = _parsed(json.dumps(ast.literal_eval(text)) if text.startswith(("{'", "[{'")) else text)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):  # of `literal_eval`, says its page
        return None
    except Reject as reject:
        if reject.reason == "bad_text":  # no tokenizer takes it as plain text either
            raise
        return None
    calls = found if isinstance(found, list) else [found]
    if not all(isinstance(call, dict) and isinstance(call.get("name"), str) and "arguments" in call for call in calls):
        return None
    return [{"type": "function", "function": call} for call in calls]


def _with_system(record: Record, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages, behind the record's `system` if they have no system message. Removes `system` if used."""
    system = record.get("system")
    if not isinstance(system, str | list) or not messages or any(each.get("role") == "system" for each in messages):
        return messages
    del record["system"]
    parts = [system] if isinstance(system, str) else system
    texts = [part.get("text") if isinstance(part, dict) else part for part in parts]
    if all(isinstance(text, str) and not text.strip() for text in texts):
        return messages
    return [{"role": "system", "content": system}, *messages]


@dataclass(frozen=True, slots=True, config=_STRICT)
class Alpaca:
    r"""`instruction`, `input` and `output` -> `messages`, or `prompt` and `completion`; keeps other fields.

    Of preference pairs (`instruction`, `input`, `chosen`, `rejected`), only the `prompt` is made, as messages.

    The user's text is the instruction, the separator (one line end) and the input. If one of them is absent, null or
    blank, it is the other one alone. `system` (a text) and `history` (a list of [question, answer]) become messages
    before it. A prompt that is a text has no place for them, so such records are rejected.
    Beside `tools`, an answer that is JSON with `name` and `arguments` (or a list of such objects) becomes `tool_calls`.

    Attributes:
        to: "messages", "prompt_completion" or "preference".
        separator: the text between instruction and input.
        instruction, input, output, system, history: names of the fields.
    """

    to: Literal["messages", "prompt_completion", "preference"] = "messages"
    separator: str = "\n"
    instruction: _Name = "instruction"
    input: _Name = "input"
    output: _Name = "output"
    system: _Name = "system"
    history: _Name = "history"

    @property
    def reads(self) -> tuple[str, ...]:
        """The fields that a record needs."""
        return (self.instruction, *(("chosen", "rejected") if self.to == "preference" else (self.output,)))

    def __call__(self, record: Record) -> Record:
        if all(record.get(name) is None for name in (self.instruction, self.input, self.output)):
            return record
        question, system, turns = self._question(record), _text(record, self.system) or "", self._turns(record)
        asked = [*([_says("system", system)] if system.strip() else []), *turns, _says("user", question)]
        fields = {self.instruction, self.input, self.output, self.system, self.history}
        made: dict[str, Any]
        if self.to == "preference":
            fields.remove(self.output)
            made = {"prompt": asked}
        elif (answer := _text(record, self.output)) is None:
            raise Reject("missing_field", f"field {self.output!r} is absent, wanted the answer (a string)")
        elif self.to == "messages":
            calls = _calls(answer) if record.get("tools") else None  # xLAM, APIGen
            answered = _says("assistant", "") | {"tool_calls": calls} if calls else _says("assistant", answer)
            made = {"messages": [*asked, answered]}
        elif len(asked) > 1:
            extra = self.history if turns else self.system
            raise Reject("no_place", f"field {extra!r} has no place in a prompt, wanted none of it: use to: 'messages'")
        else:
            made = {"prompt": question, "completion": answer}
        result = {name: value for name, value in record.items() if name not in fields}
        for name in made:
            _check_free(result, name, self.instruction)
        return {**result, **made}

    def _question(self, record: Record) -> str:
        parts = [_text(record, self.instruction), _text(record, self.input)]
        found = [part for part in parts if part and part.strip()]
        if not found:
            names = f"{self.instruction!r} and {self.input!r}"
            raise Reject("missing_field", f"fields {names} are absent or blank, wanted a text in one of them")
        return self.separator.join(found)

    def _turns(self, record: Record) -> list[dict[str, Any]]:
        pairs = record.get(self.history)
        if pairs is None:
            return []
        check_type(pairs, list, f"field {self.history!r}", "a list of pairs")
        messages = []
        for place, pair in enumerate(pairs):
            if not isinstance(pair, list) or [*map(type, pair)] != [str, str]:
                found = f"'{self.history}[{place}]' is {describe(pair)}"
                raise Reject("wrong_type", f"{found}, wanted [question, answer] (two strings)")
            messages += [_says("user", pair[0]), _says("assistant", pair[1])]
        return messages


def _says(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


def _text(record: Record, name: str) -> str | None:
    value = record.get(name)
    check_type(value, str | None, f"field {name!r}", "a string")
    return value


def _check_free(record: Record, name: str, source: str) -> None:
    if record.get(name) is not None:
        raise Reject("field_taken", f"the record has {name!r} beside {source!r}, wanted one of them: which is meant?")


ADAPTERS: dict[str, type[ShareGPT] | type[Alpaca]] = {"sharegpt": ShareGPT, "alpaca": Alpaca}

AdapterName = Literal["sharegpt", "alpaca", "tokenized"]
"""The adapters that a config can name: the keys of `ADAPTERS`, and `tokenized`, which is `rollouts.tokenized`."""


def fields_read(name: str, **options: Any) -> tuple[str, ...]:
    """The fields that a record needs for an adapter of a config. For arguments and errors see `adapter`."""
    return ("input_ids",) if name == "tokenized" else adapter(name, **options).reads


def adapter(name: str, **options: Any) -> ShareGPT | Alpaca:
    """The adapter of a name: a picklable function that takes a record and returns a new one, or raises Reject.

    Args:
        name: a key of `ADAPTERS`.
        options: see `ShareGPT` and `Alpaca`.

    Raises:
        ConfigError: the adapter or an option is unknown, or a value is wrong.
    """
    if name not in ADAPTERS:
        raise ConfigError(unknown_name("adapter", name, ADAPTERS))
    try:
        return ADAPTERS[name](**options)
    except ValidationError as error:
        first, *_ = problems = error.errors()
        found = f"{first['loc'][0]!r} is {first['input']!r}: " if first["loc"] else ""
        wanted = "; or ".join(problem["msg"] for problem in problems)
        known = ", ".join(field.name for field in fields(ADAPTERS[name]))
        raise ConfigError(f"adapter {name!r}: {found}{wanted}; its options: {known}") from None


@step
def adapt_records(records: Records, adapter: Adapter) -> Records:
    """Replaces each record by `adapter(record)`; rejects it if the adapter raises Reject."""
    return work_on_each(records, adapter)


def tools(record: Record) -> list[dict[str, Any]] | None:
    """The record's `tools`: a list of schemas, or JSON strings of it or of each; None if absent, null or blank.

    `functions`, the older field of OpenAI's API, holds tools, too: a list of schemas with names, or one schema, or
    either as a JSON string.

    Raises:
        Reject: `bad_tools`: a field holds something else, or `tools` and `functions` differ.
    """
    found, given = _schemas(record, "tools"), record.get("functions")
    if isinstance(given, str):
        has_functions = _OBJECTS.match(given) is not None and '"name"' in given
    else:  # lists of names, or code, are no tools
        has_functions = any(map(_has_name, given if isinstance(given, list) else [given]))
    if not has_functions:
        return found
    functions = [each.get("function", each) for each in _schemas(record, "functions") or ()]
    for place, function in enumerate(functions):
        if not _has_name(function):
            raise Reject("bad_tools", f"'functions[{place}]' is an object without a name, wanted a schema")
    if found and [tool.get("function", tool) for tool in found] != functions:
        raise Reject("bad_tools", "fields 'tools' and 'functions' hold different schemas, wanted one of them")
    return found or [{"type": "function", "function": function} for function in functions]


def _schemas(record: Record, name: str) -> list[dict[str, Any]] | None:
    found = record.get(name)
    if isinstance(found, str):
        found = parsed_field(found, name, "a list of schemas", "bad_tools")
    if isinstance(found, dict) and name == "functions":
        found = [found]
    if found is not None:
        check_type(found, list, f"field {name!r}", "a list of schemas (objects)", "bad_tools")
        for place, each in enumerate(found := [*found]):
            if isinstance(each, str) and each.lstrip().startswith("{"):  # of tables, whose schemas differ
                found[place] = each = parsed_field(each, f"{name}[{place}]", "a schema", "bad_tools")
            check_type(each, dict, f"'{name}[{place}]'", "a schema (an object)", "bad_tools")
    return found


def _has_name(function: Any) -> bool:
    """True for a schema, also in the form of an element of `tools`."""
    if not isinstance(function, dict):
        return False
    inner = function.get("function", function)
    return isinstance(inner, dict) and isinstance(inner.get("name"), str)


_OBJECTS = re.compile(r"\s*\[?\s*\{")


def parsed_field(text: str, where: str, wanted: str, reason: Reason = "bad_json") -> Any:
    """The value of a field that is JSON in a string; None if the string is blank.

    Raises:
        Reject: with this reason: the string is no JSON; the message says what is wanted.
    """
    try:
        return _parsed(text) if text.strip() else None
    except Reject as reject:
        message = f"field {where!r} is a string that is no JSON ({reject.message}), wanted {wanted}"
        raise Reject("bad_text" if reject.reason == "bad_text" else reason, message) from None


def template_kwargs(record: Record) -> dict[str, Any]:
    """The record's `chat_template_kwargs`, variables for the template; {} if absent or null."""
    found: Any = record.get("chat_template_kwargs")
    if isinstance(found, str):  # of tables, whose records have different keys
        found = parsed_field(found, "chat_template_kwargs", "an object", "bad_kwargs")
    if found is None:
        return {}
    check_type(found, dict, "field 'chat_template_kwargs'", "an object", "bad_kwargs")
    for name in ("messages", "add_generation_prompt"):
        if name in found:
            raise Reject("bad_kwargs", f"field 'chat_template_kwargs' sets {name!r}, which a record cannot set")
    return dict(found)


_MESSAGES = re.compile(
    r"""\s*(\[\s*(\]\s*\Z|\{.*["'](role|from)["'])|\{\s*(?="role"|"content").*"role"\s*:\s*"(assistant|user)")""",
    re.DOTALL,
)
"""JSON of messages, or of one. Those of Python have other quotes, and are rejected."""


def message_list(value: Any, where: str) -> list[Any] | None:
    """Messages in another form than a list of messages; None if the value has no such form, as other texts.

    The forms are: the list, or one message, as JSON in a string; or lists of equal length in an object (`{"role":
    [...], "content": [...]}`), as `datasets` stores a `Sequence` of a dict.

    Raises:
        Reject: `bad_json`: a string begins like JSON of messages, but is no JSON.
    """
    if isinstance(value, str) and _MESSAGES.match(value):
        messages: list[Any] = _listed(parsed_field(value, where, "a list of messages"))
        # Other JSON is a text, as of calls that an answer consists of.
        return messages if all(isinstance(each, dict) and {"role", "from"} & {*each} for each in messages[:1]) else None
    if not isinstance(value, dict) or not {"role", "from"} & {*value}:
        return None
    if {*map(type, value.values())} != {list}:
        return None
    if len({*map(len, value.values())}) > 1:
        return None
    return [
        {name: each for name, each in zip(value, message, strict=True) if each is not None or name == "content"}
        for message in zip(*value.values(), strict=True)
    ]


def _parsed(text: str) -> Any:
    """Parses a JSON string within a record, as strictly as the record itself."""
    return parse_json(text.encode("utf-8", "surrogatepass"))
