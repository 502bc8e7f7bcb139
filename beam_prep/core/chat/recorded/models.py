"""How the methods, filters and tests that templates may use behave on tracers."""

import functools
import marshal
from collections.abc import Callable
from typing import Any

import jinja2

from beam_prep.core.chat.recorded.tracer import (
    _KINDS,
    _SCALARS,
    _SIZED,
    Refusal,
    _element,
    _holds,
    _keys,
    _kind,
    _mixed,
    _real,
    _source,
    _sources,
    _Trace,
    _Traced,
    _View,
    _words,
)

_TEXT_METHODS: dict[str, type] = {
    **dict.fromkeys(("strip", "lstrip", "rstrip", "lower", "upper", "title", "capitalize", "replace"), str),
    **dict.fromkeys(("removeprefix", "removesuffix", "casefold", "join"), str),
    **dict.fromkeys(("find", "rfind", "index", "count"), int),
    **dict.fromkeys(("startswith", "endswith", "isdigit", "isalpha", "isalnum", "isspace", "isupper", "islower"), bool),
    **dict.fromkeys(("split", "rsplit", "splitlines"), list),
}
_DICT_METHODS = ("get", "items", "keys", "values")
_LOOP_METHODS = ("cycle", "changed")


def _text_method(trace: _Trace, owner: Any, name: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    kind = _TEXT_METHODS.get(name)
    if kind is None or not all(type(value) is _Traced or _plain_constant(value) for value in options.values()):
        raise Refusal
    given = [_source(argument) for argument in arguments]
    given += [f"{key}={_source(value)}" for key, value in options.items()]
    real = getattr(_real(owner), name)(*map(_real, arguments), **{k: _real(v) for k, v in options.items()})
    sources = _sources(owner, *arguments, *options.values())
    stripped = name == "strip" and not arguments and type(owner) is _Traced
    content = owner.content if stripped else -1
    # Only these write what they are given.
    mixed = _mixed(owner, *((*arguments, *options.values()) if name in ("replace", "join") else ()))
    found = trace.computed(f"{_source(owner)}.{name}({', '.join(given)})", real, kind, sources, content, mixed=mixed)
    if stripped:
        trace.stripped.add(found.name)
    return found


def _plain_constant(value: Any) -> bool:
    return type(value) in _SCALARS


def _dict_method(owner: _Traced, name: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    if options:
        raise Refusal
    if name == "get" and 1 <= len(arguments) <= 2 and type(arguments[0]) is str:
        found = _looked_up(owner, arguments[0])
        return found[0] if found else arguments[1] if len(arguments) == 2 else None
    if name not in _DICT_METHODS[1:] or arguments:
        raise Refusal
    return _view(owner, name)


def _view(owner: _Traced, name: str) -> _Traced:
    keys = _keys(owner)
    parts = tuple(
        key if name == "keys" else _element(owner, key) if name == "values" else (key, _element(owner, key))
        for key in keys
    )
    return owner.trace.tracer("", None, _View, owner.sources, parts=parts)


def _looked_up(owner: _Traced, key: str) -> tuple[Any] | None:
    """What stands in a traced dict at a key; None where it has no such key."""
    if owner.message < 0:
        owner.trace.guard(owner, f"{key!r} in {_source(owner)}", key in owner.real)
    return (_element(owner, key),) if key in owner.real else None


def _model_length(trace: _Trace, value: Any) -> Any:
    if type(value) is not _Traced:
        return len(value)
    if value.kind not in _SIZED:
        raise Refusal
    if value.message >= 0:
        return len(value.real)
    return trace.computed(f"len({_source(value)})", len(value.real), int, value.sources)


def _model_trim(trace: _Trace, value: Any, *chars: Any) -> Any:
    if _kind(value) is not str or len(chars) > 1 or any(type(given) not in (str, type(None)) for given in chars):
        raise Refusal
    return _text_method(trace, value, "strip", () if chars in ((), (None,)) else chars, {})


def _model_replace(trace: _Trace, value: Any, old: Any, new: Any) -> Any:
    if not _kind(value) is _kind(old) is _kind(new) is str:
        raise Refusal
    return _text_method(trace, value, "replace", (old, new), {})


def _model_default(trace: _Trace, value: Any, default_value: Any = "", boolean: Any = False) -> Any:
    if type(boolean) is not bool:
        raise Refusal
    missing = type(value) is jinja2.Undefined or (boolean and not value)
    return default_value if missing else value


def _model_join(trace: _Trace, value: Any, d: Any = "") -> Any:
    if type(d) is not str:
        raise Refusal
    if type(value) is _Traced:
        if value.kind is not list:
            raise Refusal
        value = list(value)
    if type(value) not in (list, tuple):
        raise Refusal
    texts = [_text(trace, item) for item in value]
    return trace.joined(tuple(part for text in texts for part in (d, text))[1:])


def _model_list(trace: _Trace, value: Any) -> Any:
    if type(value) is _Traced and value.kind is str:
        raise Refusal
    return list(value)


def _text(trace: _Trace, value: Any) -> Any:
    """`str(...)` of the templates."""
    kind = type(value)
    if kind is str:
        return value
    if kind is _Traced and value.kind is str:
        return value
    if not _holds(value):
        return str(value)
    return trace.computed(f"str({_source(value)})", str(_real(value)), str, _sources(value), mixed=_mixed(value))


def _same_text(name: str) -> Callable[..., Any]:
    def model(trace: _Trace, value: Any, *arguments: Any, **options: Any) -> Any:
        if _kind(value) is not str or not all(map(_plain_constant, [*arguments, *options.values()])):
            raise Refusal
        return trace.called(f"filter_{name}", (value, *arguments), str, **options)

    return model


def _model_tojson(trace: _Trace, value: Any, *arguments: Any, **options: Any) -> Any:
    tools = not options and _kind(value) in (list, dict) and not _sources(value)
    return trace.called("tool_json" if tools else "tojson", (value, *arguments), str, **options)


# What filters do with tracers. Others of the allow-list see none.
_FILTERS: dict[str, Callable[..., Any] | None] = {
    "length": _model_length,
    "count": _model_length,
    "trim": _model_trim,
    "replace": _model_replace,
    "default": _model_default,
    "d": _model_default,
    "join": _model_join,
    "list": _model_list,
    "string": _text,
    "tojson": _model_tojson,
    **{name: _same_text(name) for name in ("upper", "lower", "capitalize", "title", "indent")},
    **dict.fromkeys(("items", "first", "last", "int", "float", "abs", "round", "wordcount"), None),
    **dict.fromkeys(("map", "select", "reject", "selectattr", "rejectattr"), None),
}
# Jinja's own code for these operates on items through the environment, and gives a generator.
_STREAMS = ("map", "select", "reject", "selectattr", "rejectattr")
# What may use a generator up; for all others it is a type in which tracers could hide.
_OF_STREAMS = ("list", "first", "join")


def _kinds(*wanted: type) -> Callable[[Any], bool]:
    def model(value: Any) -> bool:
        if value.kind not in _KINDS:
            raise Refusal
        return value.kind in wanted

    return model


def _divisible_by(value: Any, number: Any) -> Any:
    if type(number) is not int:  # `"a" % tracer` looks at no tracer: Python takes it for a mapping
        raise Refusal
    return value % number == 0


def _is(wanted: bool) -> Callable[[Any], bool]:
    def model(value: Any) -> bool:
        if value.kind not in _KINDS:
            raise Refusal
        return value.kind is bool and bool(value) is wanted

    return model


# What tests say of tracers: these operate on them, and the others only ask for types.
_OPERATING = _words("odd even divisibleby in == eq equalto != ne > gt greaterthan >= ge < lt lessthan <= le")
_TESTS: dict[str, Callable[[Any], bool]] = {
    "defined": _kinds(*_KINDS),
    "undefined": _kinds(),
    "none": _kinds(),
    "string": _kinds(str),
    "mapping": _kinds(dict),
    "sequence": _kinds(*_SIZED),
    "iterable": _kinds(*_SIZED),
    "number": _kinds(int, float, bool),
    "integer": _kinds(int),
    "float": _kinds(float),
    "boolean": _kinds(bool),
    "true": _is(True),
    "false": _is(False),
}


def _functions(environment: jinja2.Environment) -> dict[str, Any]:
    """What plans call."""
    functions = {f"filter_{name}": environment.filters[name] for name in ("upper", "lower", "capitalize", "title")}
    tojson = environment.filters["tojson"]

    @functools.lru_cache(maxsize=1024)
    def unpacked(packed: bytes) -> str:
        return str(tojson(*marshal.loads(packed)))

    def tool_json(*values: Any) -> str:
        """Tools repeat from record to record. Marshal tells all JSON values apart, and takes no subclasses."""
        try:
            packed = marshal.dumps(values, 2)
        except ValueError:
            return str(tojson(*values))
        return unpacked(packed) if len(packed) < 1 << 14 else str(tojson(*values))

    return {
        **functions,
        "filter_indent": environment.filters["indent"],
        "tojson": tojson,
        "tool_json": tool_json,
    }
