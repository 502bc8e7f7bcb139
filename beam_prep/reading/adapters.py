"""Adapters: convert records of other forms to the fields that sections read: ShareGPT, Alpaca, tools, tokenised rows.

    adapt = adapter("sharegpt", roles={"bing": "assistant"})
    adapt({"conversations": [{"from": "human", "value": "Hi"}]})  # {'messages': [{'role': 'user', 'content': 'Hi'}]}

An adapter takes one parsed record and returns a new one, or raises `Reject`. A record whose fields for the adapter are
absent or null passes unchanged; ApplyTemplate reports what is missing.
"""

import dataclasses
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from beam_prep.data.block import Reject, step
from beam_prep.data.reasons import Reason
from beam_prep.data.rendered import DEFAULT_DOMAIN
from beam_prep.errors import ConfigError
from beam_prep.hints import unknown_name
from beam_prep.reading.filters import work_on_each
from beam_prep.reading.json_line import describe, parse_json
from beam_prep.reading.records import Record, Records

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
    if isinstance(found, str):
        return found
    if found is None or isinstance(found, int | float):
        return DEFAULT_DOMAIN
    wanted = "wanted a text: it names the record's domain (output.domain_key)"
    raise Reject("wrong_type", f"field {key!r} is {describe(found)}, {wanted}")


def check_loss_weight(weight: Any, where: str) -> None:
    """Raises Reject (`wrong_type` or `bad_weight`) if the value is no loss weight."""
    if type(weight) not in (int, float):
        raise Reject("wrong_type", f"'{where}' is {describe(weight)}, {WANTED}")
    if weight != 0 and not SMALLEST <= weight <= LARGEST:
        raise Reject("bad_weight", f"'{where}' is {describe(weight)}, {WANTED}")


Adapter = Callable[[Record], Record]

ROLES: Mapping[str, str] = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "chatgpt": "assistant",
    "bot": "assistant",
    "model": "assistant",
    "function_call": "assistant",
    "system": "system",
    "tool": "tool",
    "observation": "tool",
    "function_response": "tool",
}
"""Names of roles in ShareGPT files -> roles of chat templates."""

_SIDES = ("prompt", "completion", "chosen", "rejected")


@dataclass(frozen=True, slots=True)
class ShareGPT:
    """`conversations` of `from` / `value` items -> `messages` of `role` / `content`; keeps other fields.

    Items with a `role` pass unchanged. A string field `system` becomes the first message if there is no system message.
    A `function_call` that is JSON with `name` and `arguments` (or a list of such objects) becomes `tool_calls`. Such
    items in `prompt`, `completion`, `chosen` and `rejected` are converted in place, too.

    Attributes:
        field: the field that holds the items.
        roles: names of roles that extend or override `ROLES`; `{}` or "keep": all names stay (as in TRL), and nothing
            becomes `tool_calls`.
    """

    field: str = "conversations"
    roles: Mapping[str, str] | Literal["keep"] | None = None

    def __post_init__(self) -> None:
        _check_names(self, "field")
        if self.roles is None or self.roles == "keep":
            return
        if not isinstance(self.roles, Mapping) or not all(
            isinstance(text, str) and text for pair in self.roles.items() for text in pair
        ):
            raise ConfigError(f"'roles' of adapter 'sharegpt' is {self.roles!r}, wanted names to names, or 'keep'")

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
        if not isinstance(items, list):
            raise Reject("wrong_type", f"field {self.field!r} is {describe(items)}, wanted a list of messages")
        result = {name: value for name, value in record.items() if name != self.field} | sides
        _check_free(result, "messages", self.field)
        messages = [_message(item, f"{self.field}[{turn}]", roles) for turn, item in enumerate(items)]
        result["messages"] = _with_system(result, messages)
        return result

    def _mapping(self) -> Mapping[str, str] | None:
        if self.roles is None:
            return ROLES
        if self.roles == "keep" or not self.roles:
            return None
        return {**ROLES, **self.roles}


def _listed(value: Any) -> Any:
    """A list; a side may be a single item."""
    return [value] if isinstance(value, dict) else value


def _is_sharegpt(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict) and value[0].get("from") is not None


def _message(item: Any, where: str, roles: Mapping[str, str] | None) -> dict[str, Any]:
    if not isinstance(item, dict):
        raise Reject("wrong_type", f"'{where}' is {describe(item)}, wanted an object with 'from' and 'value'")
    name = item.get("from")
    if name is None:
        if item.get("role") is None:
            keys = ", ".join(map(repr, item)) or "nothing"
            raise Reject("bad_message", f"'{where}' has {keys}, wanted 'from' and 'value' (or 'role' and 'content')")
        return dict(item)
    if not isinstance(name, str):
        raise Reject("bad_message", f"'{where}.from' is {describe(name)}, wanted a string")
    if "value" not in item:
        raise Reject("bad_message", f"'{where}' has 'from' but no 'value', wanted both")
    value = item["value"]
    if not isinstance(value, str | list | None):
        raise Reject("wrong_type", f"'{where}.value' is {describe(value)}, wanted a string")
    rest = {key: value for key, value in item.items() if key not in ("from", "value", "role", "content")}
    if roles is None:
        return {"role": name, "content": value, **rest}
    if name not in roles:
        example = json.dumps({name[:40]: "assistant"}, ensure_ascii=False)
        raise Reject(
            "unknown_role",
            f"'{where}.from' is {name[:40]!r}, wanted one of {', '.join(roles)}: "
            f'map it with "roles": {example}, or keep all names with "roles": "keep"',
        )
    message = {"role": roles[name], "content": value, **rest}
    if name == "function_call" and roles[name] == "assistant" and isinstance(value, str) and (calls := _calls(value)):
        message |= {"content": "", "tool_calls": calls}
    return message


def _calls(text: str) -> list[dict[str, Any]] | None:
    """A function call written as JSON -> `tool_calls` for chat templates; None if it is plain text."""
    try:
        found = _parsed(text)
    except Reject as reject:
        if reject.reason == "bad_text":  # no tokenizer takes it as plain text either
            raise
        return None
    calls = found if isinstance(found, list) else [found]
    if not all(isinstance(call, dict) and isinstance(call.get("name"), str) and "arguments" in call for call in calls):
        return None
    return [{"type": "function", "function": call} for call in calls]


def _with_system(record: Record, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages, behind the record's `system` text if they have no system message. Removes `system` if used."""
    system = record.get("system")
    if not isinstance(system, str) or not messages or any(message.get("role") == "system" for message in messages):
        return messages
    del record["system"]
    return [{"role": "system", "content": system}, *messages] if system.strip() else messages


@dataclass(frozen=True, slots=True)
class Alpaca:
    r"""`instruction`, `input` and `output` -> `messages`, or `prompt` and `completion`; keeps other fields.

    Of preference pairs (`instruction`, `input`, `chosen`, `rejected`), only the `prompt` is made, as messages.

    The user's text is the instruction, the separator (one line end) and the input. If one of them is absent, null or
    blank, it is the other one alone. `system` (a text) and `history` (a list of [question, answer]) become messages
    before it. A prompt that is a text has no place for them, so such records are rejected.

    Attributes:
        to: "messages", "prompt_completion" or "preference".
        separator: the text between instruction and input.
        instruction, input, output, system, history: names of the fields.
    """

    to: Literal["messages", "prompt_completion", "preference"] = "messages"
    separator: str = "\n"
    instruction: str = "instruction"
    input: str = "input"
    output: str = "output"
    system: str = "system"
    history: str = "history"

    def __post_init__(self) -> None:
        if self.to not in ("messages", "prompt_completion", "preference"):
            wanted = "'messages', 'prompt_completion', 'preference'"
            raise ConfigError(f"'to' of adapter 'alpaca' is {self.to!r}, wanted one of {wanted}")
        if not isinstance(self.separator, str):
            raise ConfigError(f"'separator' of adapter 'alpaca' is {self.separator!r}, wanted a string")
        _check_names(self, *self._fields())
        if len(set(self._fields().values())) < 5:
            raise ConfigError("adapter 'alpaca' has one field under two names, wanted a field of its own for each")

    @property
    def reads(self) -> tuple[str, ...]:
        """The fields that a record needs."""
        return (self.instruction, *(("chosen", "rejected") if self.to == "preference" else (self.output,)))

    def _fields(self) -> dict[str, str]:
        return {name: getattr(self, name) for name in ("instruction", "input", "output", "system", "history")}

    def __call__(self, record: Record) -> Record:
        if all(record.get(name) is None for name in (self.instruction, self.input, self.output)):
            return record
        question = self._question(record)
        system, turns = _text(record, self.system), self._turns(record)
        head = [_says("system", system)] if system and system.strip() else []
        fields = set(self._fields().values())
        if self.to == "preference":
            result = {name: value for name, value in record.items() if name not in fields - {self.output}}
            _check_free(result, "prompt", self.instruction)
            return {**result, "prompt": [*head, *turns, _says("user", question)]}
        answer = _text(record, self.output)
        if answer is None:
            raise Reject("missing_field", f"field {self.output!r} is absent, wanted the answer (a string)")
        result = {name: value for name, value in record.items() if name not in fields}
        if self.to == "messages":
            _check_free(result, "messages", self.instruction)
            result["messages"] = [*head, *turns, _says("user", question), _says("assistant", answer)]
            return result
        if turns or (system and system.strip()):
            extra = self.history if turns else self.system
            raise Reject("no_place", f"field {extra!r} has no place in a prompt, wanted none of it: use to: 'messages'")
        for name in ("prompt", "completion"):
            _check_free(result, name, self.instruction)
        return {**result, "prompt": question, "completion": answer}

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
        if not isinstance(pairs, list):
            raise Reject("wrong_type", f"field {self.history!r} is {describe(pairs)}, wanted a list of pairs")
        messages = []
        for place, pair in enumerate(pairs):
            where = f"{self.history}[{place}]"
            if not isinstance(pair, list) or len(pair) != 2:
                found = f"a list of {len(pair)}" if isinstance(pair, list) else describe(pair)
                raise Reject("wrong_type", f"'{where}' is {found}, wanted [question, answer] (two strings)")
            for side, text in enumerate(pair):
                if not isinstance(text, str):
                    raise Reject("wrong_type", f"'{where}[{side}]' is {describe(text)}, wanted a string")
            messages += [_says("user", pair[0]), _says("assistant", pair[1])]
        return messages


def _says(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


def _text(record: Record, name: str) -> str | None:
    value = record.get(name)
    if not isinstance(value, str | None):
        raise Reject("wrong_type", f"field {name!r} is {describe(value)}, wanted a string")
    return value


def _check_free(record: Record, name: str, source: str) -> None:
    if record.get(name) is not None:
        raise Reject("field_taken", f"the record has {name!r} beside {source!r}, wanted one of them: which is meant?")


ADAPTERS: dict[str, type[ShareGPT] | type[Alpaca]] = {"sharegpt": ShareGPT, "alpaca": Alpaca}

AdapterName = Literal["sharegpt", "alpaca", "tokenized"]
"""The adapters that a config can name: the keys of `ADAPTERS`, and `tokenized`, which is `ids.tokenized`."""


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
    kind = ADAPTERS[name]
    known = [field.name for field in dataclasses.fields(kind)]
    for option in options:
        if option not in known:
            raise ConfigError(f"adapter {name!r}: {unknown_name('option', option, known)}")
    return kind(**options)


@step
def adapt_records(records: Records, adapter: Adapter) -> Records:
    """Replaces each record by `adapter(record)`; rejects it if the adapter raises Reject."""
    return work_on_each(records, adapter)


def _check_names(options: ShareGPT | Alpaca, *names: str) -> None:
    for name in names:
        value = getattr(options, name)
        if not isinstance(value, str) or not value:
            kind = next(kind for kind, known in ADAPTERS.items() if isinstance(options, known))
            raise ConfigError(f"{name!r} of adapter {kind!r} is {value!r}, wanted the name of a field")


def tools(record: Record) -> list[dict[str, Any]] | None:
    """The record's `tools`: a list of schemas, or that list as a JSON string; None if absent, null or blank.

    `functions`, the older field of OpenAI's API, holds tools, too: a list of schemas with names, or one schema, or
    either as a JSON string.

    Raises:
        Reject: `bad_tools`: a field holds something else, or `tools` and `functions` differ.
    """
    given = record.get("tools")
    found = parsed_field(given, "tools", _SCHEMAS, "bad_tools") if isinstance(given, str) else given
    if found is not None:
        if not isinstance(found, list):
            kind = f"a string that holds {describe(found)}" if isinstance(given, str) else describe(found)
            raise Reject("bad_tools", f"field 'tools' is {kind}, wanted a list of schemas (objects)")
        for place, tool in enumerate(found):
            if not isinstance(tool, dict):
                raise Reject("bad_tools", f"'tools[{place}]' is {describe(tool)}, wanted a schema (an object)")
    functions = _functions(record)
    if not functions:
        return found
    if found and [tool.get("function", tool) for tool in found] != functions:
        raise Reject("bad_tools", "fields 'tools' and 'functions' hold different schemas, wanted one of them")
    return found or [{"type": "function", "function": function} for function in functions]


def has_functions(record: Mapping[str, Any]) -> bool:
    """True if the record's `functions` holds tools: an object with a name. Lists of names, or code, are no tools."""
    given = record.get("functions")
    if isinstance(given, str):
        return _OBJECTS.match(given) is not None and '"name"' in given
    return any(map(_has_name, given if isinstance(given, list) else [given]))


def _has_name(function: Any) -> bool:
    """True for a schema, also in the form of an element of `tools`."""
    if not isinstance(function, dict):
        return False
    inner = function.get("function", function)
    return isinstance(inner, dict) and isinstance(inner.get("name"), str)


_OBJECTS = re.compile(r"\s*\[?\s*\{")
_SCHEMAS = "a list of schemas"


def _functions(record: Record) -> list[dict[str, Any]]:
    if not has_functions(record):
        return []
    given = record["functions"]
    found = parsed_field(given, "functions", _SCHEMAS, "bad_tools") if isinstance(given, str) else given
    functions = []
    for place, each in enumerate([found] if isinstance(found, dict) else found):
        if not _has_name(each):
            kind = "an object without a name" if isinstance(each, dict) else describe(each)
            raise Reject("bad_tools", f"'functions[{place}]' is {kind}, wanted a schema (an object with a 'name')")
        functions.append(each.get("function", each))
    return functions


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
    found = record.get("chat_template_kwargs")
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise Reject("bad_kwargs", f"field 'chat_template_kwargs' is {describe(found)}, wanted an object")
    for name in ("messages", "add_generation_prompt"):
        if name in found:
            raise Reject("bad_kwargs", f"field 'chat_template_kwargs' sets {name!r}, which a record cannot set")
    return found


def message_list(value: Any, where: str) -> list[Any] | None:
    """Messages in another form than a list of messages; None if the value has no such form.

    The forms are: the list as JSON in a string; or lists of equal length in an object (`{"role": [...], "content":
    [...]}`), as `datasets` stores a `Sequence` of a dict.

    Raises:
        Reject: `bad_json`: a string begins like a JSON list, but is no JSON.
    """
    if isinstance(value, str) and value.lstrip().startswith("["):
        found = parsed_field(value, where, "a list of messages")
        return found if isinstance(found, list) else None
    if not isinstance(value, dict) or not {"role", "from"} & {*value} or not all(map(_is_list, value.values())):
        return None
    if len({*map(len, value.values())}) > 1:
        return None
    return [
        {name: each for name, each in zip(value, message, strict=True) if each is not None or name == "content"}
        for message in zip(*value.values(), strict=True)
    ]


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _parsed(text: str) -> Any:
    """Parses a JSON string within a record, as strictly as the record itself."""
    return parse_json(text.encode("utf-8", "surrogatepass"))
