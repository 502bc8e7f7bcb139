"""How the methods, filters and tests that templates may use behave on tracers."""

import functools
import marshal
from collections.abc import Callable
from typing import Any

import jinja2

from beam_prep.core.chat.growth import expect_method, replaced_size, unmeasured
from beam_prep.core.chat.limits import MAX_PLANNED
from beam_prep.core.chat.recorded.tracer import (
    SCALAR_KINDS,
    SIZED_KINDS,
    VALUE_KINDS,
    Refusal,
    Trace,
    Tracer,
    View,
    element_of,
    expression_of,
    holds_tracers,
    is_mixed,
    keys_of,
    kind_of,
    names_in,
    real_value,
    sources_of,
)

TEXT_METHODS: dict[str, type] = {
    **dict.fromkeys(("strip", "lstrip", "rstrip", "lower", "upper", "title", "capitalize", "replace"), str),
    **dict.fromkeys(("removeprefix", "removesuffix", "casefold", "join"), str),
    **dict.fromkeys(("find", "rfind", "index", "count"), int),
    **dict.fromkeys(("startswith", "endswith", "isdigit", "isalpha", "isalnum", "isspace", "isupper", "islower"), bool),
    **dict.fromkeys(("split", "rsplit", "splitlines"), list),
}
DICT_METHODS = ("get", "items", "keys", "values")
LOOP_METHODS = ("cycle", "changed")


def text_method(trace: Trace, owner: Any, name: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    kind = TEXT_METHODS.get(name)
    if kind is None or not all(type(value) is Tracer or _plain_constant(value) for value in options.values()):
        raise Refusal
    given = [expression_of(argument) for argument in arguments]
    given += [f"{key}={expression_of(value)}" for key, value in options.items()]
    method = getattr(real_value(owner), name)
    values = tuple(map(real_value, arguments))
    expect_method(real_value(owner), name, values, {})
    real = method(*values, **{k: real_value(v) for k, v in options.items()})
    sources = sources_of(owner, *arguments, *options.values())
    stripped = name == "strip" and not arguments and type(owner) is Tracer
    content = owner.content if stripped else -1
    # Only these write what they are given.
    mixed = is_mixed(owner, *((*arguments, *options.values()) if name in ("replace", "join") else ()))
    growing = name in ("replace", "join")
    called = f"{name}_text({', '.join((expression_of(owner), *given))})"
    expression = called if growing else f"{expression_of(owner)}.{name}({', '.join(given)})"
    within = owner if name in ("strip", "lstrip", "rstrip") else None
    found = trace.computed(expression, real, kind, sources, content, mixed=mixed, growing=growing, within=within)
    if stripped:
        trace.stripped.add(found.name)
    return found


def _plain_constant(value: Any) -> bool:
    return type(value) in SCALAR_KINDS


def dict_method(owner: Tracer, name: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    if options:
        raise Refusal
    if name == "get" and 1 <= len(arguments) <= 2 and type(arguments[0]) is str:
        found = looked_up(owner, arguments[0])
        return found[0] if found else arguments[1] if len(arguments) == 2 else None
    if name not in DICT_METHODS[1:] or arguments:
        raise Refusal
    return view_of(owner, name)


def view_of(owner: Tracer, name: str) -> Tracer:
    keys = keys_of(owner)
    parts = tuple(
        key if name == "keys" else element_of(owner, key) if name == "values" else (key, element_of(owner, key))
        for key in keys
    )
    return owner.trace.tracer("", None, View, owner.sources, parts=parts)


def looked_up(owner: Tracer, key: str) -> tuple[Any] | None:
    """The value in a traced dict at a key; None where it has no such key."""
    if owner.message < 0:
        owner.trace.guard(owner, f"{key!r} in {expression_of(owner)}", key in owner.real)
    return (element_of(owner, key),) if key in owner.real else None


def _model_length(trace: Trace, value: Any) -> Any:
    if type(value) is not Tracer:
        return len(value)
    if value.kind not in SIZED_KINDS:
        raise Refusal
    if value.message >= 0:
        return len(value.real)
    return trace.computed(f"len({expression_of(value)})", len(value.real), int, value.sources)


def _model_trim(trace: Trace, value: Any, *chars: Any) -> Any:
    if kind_of(value) is not str or len(chars) > 1 or any(type(given) not in (str, type(None)) for given in chars):
        raise Refusal
    return text_method(trace, value, "strip", () if chars in ((), (None,)) else chars, {})


def _model_replace(trace: Trace, value: Any, old: Any, new: Any) -> Any:
    if not kind_of(value) is kind_of(old) is kind_of(new) is str:
        raise Refusal
    return text_method(trace, value, "replace", (old, new), {})


def _model_default(trace: Trace, value: Any, default_value: Any = "", boolean: Any = False) -> Any:
    if type(boolean) is not bool:
        raise Refusal
    missing = type(value) is jinja2.Undefined or (boolean and not value)
    return default_value if missing else value


def _model_join(trace: Trace, value: Any, d: Any = "") -> Any:
    if type(d) is not str:
        raise Refusal
    if type(value) is Tracer:
        if value.kind is not list:
            raise Refusal
        value = list(value)
    if type(value) not in (list, tuple):
        raise Refusal
    texts = [as_text(trace, item) for item in value]
    return trace.joined(tuple(part for text in texts for part in (d, text))[1:])


def _model_list(trace: Trace, value: Any) -> Any:
    if type(value) is Tracer and value.kind is str:
        raise Refusal
    return list(value)


def as_text(trace: Trace, value: Any) -> Any:
    """`str(...)` of the templates."""
    kind = type(value)
    if kind is str:
        return value
    if kind is Tracer and value.kind is str:
        return value
    if not holds_tracers(value):
        return str(value)
    return trace.computed(
        f"str({expression_of(value)})",
        str(real_value(value)),
        str,
        sources_of(value),
        mixed=is_mixed(value),
        growing=True,
    )


def _model_text_filter(name: str) -> Callable[..., Any]:
    def model(trace: Trace, value: Any, *arguments: Any, **options: Any) -> Any:
        if kind_of(value) is not str or not all(map(_plain_constant, [*arguments, *options.values()])):
            raise Refusal
        return trace.called(f"filter_{name}", (value, *arguments), str, **options)

    return model


def _model_tojson(trace: Trace, value: Any, *arguments: Any, **options: Any) -> Any:
    tools = not options and kind_of(value) in (list, dict) and not sources_of(value)
    return trace.called("tool_json" if tools else "tojson", (value, *arguments), str, **options)


# What filters do with tracers. Others of the allow-list see none.
FILTER_MODELS: dict[str, Callable[..., Any] | None] = {
    "length": _model_length,
    "count": _model_length,
    "trim": _model_trim,
    "replace": _model_replace,
    "default": _model_default,
    "d": _model_default,
    "join": _model_join,
    "list": _model_list,
    "string": as_text,
    "tojson": _model_tojson,
    **{name: _model_text_filter(name) for name in ("upper", "lower", "capitalize", "title", "indent")},
    **dict.fromkeys(("items", "first", "last", "int", "float", "abs", "round", "wordcount"), None),
    **dict.fromkeys(("map", "select", "reject", "selectattr", "rejectattr"), None),
}
# Jinja's own code for these operates on items through the environment, and gives a generator.
STREAM_FILTERS = ("map", "select", "reject", "selectattr", "rejectattr")
# What may use a generator up; for all others it is a type in which tracers could hide.
STREAM_CONSUMERS = ("list", "first", "join")


def _has_kind(*wanted: type) -> Callable[[Any], bool]:
    def model(value: Any) -> bool:
        if value.kind not in VALUE_KINDS:
            raise Refusal
        return value.kind in wanted

    return model


def divisible_by(value: Any, number: Any) -> Any:
    if type(number) is not int:  # `"a" % tracer` looks at no tracer: Python takes it for a mapping
        raise Refusal
    return value % number == 0


def _is_bool(wanted: bool) -> Callable[[Any], bool]:
    def model(value: Any) -> bool:
        if value.kind not in VALUE_KINDS:
            raise Refusal
        return value.kind is bool and bool(value) is wanted

    return model


# Tests of tracers: the first ones operate on them, the others only look at types.
OPERATING_TESTS = names_in("odd even divisibleby in == eq equalto != ne > gt greaterthan >= ge < lt lessthan <= le")
TEST_MODELS: dict[str, Callable[[Any], bool]] = {
    "defined": _has_kind(*VALUE_KINDS),
    "undefined": _has_kind(),
    "none": _has_kind(),
    "string": _has_kind(str),
    "mapping": _has_kind(dict),
    "sequence": _has_kind(*SIZED_KINDS),
    "iterable": _has_kind(*SIZED_KINDS),
    "number": _has_kind(int, float, bool),
    "integer": _has_kind(int),
    "float": _has_kind(float),
    "boolean": _has_kind(bool),
    "true": _is_bool(True),
    "false": _is_bool(False),
}


def replace_text(text: str, *given: Any) -> str:
    """`text.replace`; an OverflowError where the result is too long for a plan."""
    if replaced_size(text, *given) > MAX_PLANNED:
        raise OverflowError
    return text.replace(*given)


def join_text(text: str, items: Any) -> str:
    """`text.join`; an OverflowError where the result is too long for a plan."""
    if len(text) * len(items) + sum(map(len, items)) > MAX_PLANNED:
        raise OverflowError
    return text.join(items)


def repeat_text(text: str, times: int) -> str:
    """`text * times`; an OverflowError where the result is too long for a plan."""
    if len(text) * times > MAX_PLANNED:
        raise OverflowError
    return text * times


def plan_functions(environment: jinja2.Environment) -> dict[str, Any]:
    """The functions that plans call, by name."""
    filters: dict[str, Any] = {name: unmeasured(made) for name, made in environment.filters.items()}
    functions = {f"filter_{name}": filters[name] for name in ("upper", "lower", "capitalize", "title")}
    tojson = filters["tojson"]

    @functools.lru_cache(maxsize=1024)
    def unpacked(packed: bytes) -> str:
        return str(tojson(*marshal.loads(packed)))

    def tool_json(*values: Any) -> str:
        """Caches the JSON of tools, which repeat. Marshal distinguishes all JSON values, and accepts no subclasses."""
        try:
            packed = marshal.dumps(values, 2)
        except ValueError:
            return str(tojson(*values))
        return unpacked(packed) if len(packed) < 1 << 14 else str(tojson(*values))

    return {
        **functions,
        "filter_indent": filters["indent"],
        "replace_text": replace_text,
        "join_text": join_text,
        "repeat_text": repeat_text,
        "tojson": tojson,
        "tool_json": tool_json,
    }
