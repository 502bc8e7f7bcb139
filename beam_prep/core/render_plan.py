"""Chat templates rendered from recorded plans: the same text as jinja's, several times cheaper.

Conversations come in few patterns: roles, keys and types in order. For each pattern the template runs once with
tracers in place of the contents. What it does with them is written down and compiled to a straight-line function,
which renders further conversations of the pattern. A tracer stands for a real value: every operation also runs on that,
and where the template decides by it (a truth test, a length, a type), the function gets a guard: another outcome, and
it gives up. Whatever is not modelled here refuses, and jinja renders. So jinja stays the reference: it also renders
the first conversations of every plan, and one difference switches the plans of the template off.

The danger is code that asks for the type of a tracer instead of operating on it. A tracer is therefore no subclass of
anything, every protocol method and `__class__` itself refuse by default, and only arguments of known types go into
filters, tests and calls.
"""

import dis
import functools
import marshal
import math
import operator
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate, chain, islice
from types import BuiltinMethodType, CodeType, GeneratorType, MappingProxyType, MethodType
from typing import Any, NamedTuple, NoReturn, Protocol

import jinja2
import jinja2.sandbox
from jinja2 import nodes
from jinja2.runtime import LoopContext, Macro
from jinja2.utils import _PassArg

Message = dict[str, Any]

Source = tuple[int, str]
"""A message's index and its key; the key is "" for what is computed from a message and is no text of it (a length)."""

_Way = tuple[bool, ...]
"""Outcomes of tests, in their order."""

_NONE_OF_THEM: frozenset[Source] = frozenset()
_COMPARED = 4  # first uses of a plan that jinja renders as well
_SIGHTINGS = 4  # of a pattern, before it is traced: a trace costs what ten renderings cost
_PATTERNS = 4096
_PLANS = 8  # of one pattern, for different outcomes of its guards
_OTHERWISE = 64  # ways in which the tests of one message may come out
_LONGEST = 256  # messages: the same roles again are rare in longer conversations, and their plans are large
_UNPAID, _PAY = 64, 8  # traces without condition; after them, each must have been worth so many renderings
_OFF: set[str] = set()
"""Templates whose plans gave another text than jinja, in this process."""


class Refusal(BaseException):
    """The template does something that is not modelled. No Exception: jinja swallows TypeError and LookupError."""


def _refuse(*_: Any, **__: Any) -> NoReturn:
    raise Refusal


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """What is the same for all conversations of a plan: one object for each, compared by identity.

    Attributes:
        constants: per piece its text where it is constant, else None.
        sources: per piece the messages and keys that it is computed from: none for constants and tools.
        mixed: per piece whether text of the template itself is in a piece that is computed from messages.
        plain_content: per piece the message whose content it is, as it is or stripped of white space; else -1.
        marks: (pieces written, message) whenever a loop comes to a message or ends: then -1, or the message of the
            loop around it.
        generations: ranges of the `{% generation %}` blocks in pieces; None where they could not be told.
        blind: a loop whose text is captured came to a message: `marks` do not tell what is written for which.
        asked: messages by whose words the template decides: the plan fits some contents only.
        decided: messages in whose turn the template decides by what another message says.
        messages: how many there are.
        simple: the text is constants and contents, and nothing else is looked at.
        stripped: messages whose content is stripped of white space, where the layout is simple.
        assumed: only contents are known for what they are. All else counts as constant, and may not be.
    """

    constants: tuple[str | None, ...]
    sources: tuple[frozenset[Source], ...]
    mixed: tuple[bool, ...]
    plain_content: tuple[int, ...]
    marks: tuple[tuple[int, int], ...]
    generations: tuple[tuple[int, int], ...] | None
    blind: bool
    asked: frozenset[int]
    decided: frozenset[int]
    messages: int
    simple: bool
    stripped: frozenset[int]
    assumed: bool = False


class Planned(NamedTuple):
    """A conversation rendered by a plan: its text is `"".join(pieces)`."""

    pieces: tuple[str, ...]
    layout: Layout


class Rendered(NamedTuple):
    """What jinja gives: text, and marks, generation blocks and blindness in characters."""

    text: str
    marks: list[tuple[int, int]]
    generations: list[tuple[int, int]] | None
    blind: bool


def in_characters(planned: Planned) -> Rendered:
    """A planned conversation as jinja's own rendering would report it."""
    pieces, layout = planned
    at = [0, *accumulate(map(len, pieces))]
    blocks = layout.generations
    return Rendered(
        "".join(pieces),
        [(at[written], place) for written, place in layout.marks],
        None if blocks is None else [(at[start], at[stop]) for start, stop in blocks],
        layout.blind,
    )


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Tracers


class _View:
    """Kind of a tracer of the keys, values or items of a dict: good for loops only."""


class _Once(_View):
    """The same, and used up by the first loop."""


_SIZED = {str, list, dict}
_KINDS = {str, int, float, bool, list, dict}
_SCALARS = {str, int, float, bool, type(None)}


class _Traced:
    """Stands for a value of the conversation, or for what the template computed from some.

    Attributes:
        trace: the recording it belongs to.
        kind: the exact type of the value.
        real: the value in the conversation that is traced.
        name: its variable in the plan; "" for a text that was only put together so far, from `parts`.
        parts: of such a text: constants and tracers.
        sources: the messages and keys it is computed from.
        mixed: text of the template itself went into it.
        content: the message whose content it is (or that, stripped); -1 otherwise.
        message: the message that it is; -1 otherwise.
    """

    __slots__ = ("content", "kind", "message", "mixed", "name", "parts", "real", "sources", "trace")

    trace: "_Trace"
    kind: type
    real: Any
    name: str
    parts: "tuple[Any, ...]"
    sources: frozenset[Source]
    mixed: bool
    content: int
    message: int

    # `isinstance(tracer, str)` asks for it, and must not get a silent no.
    __class__ = property(_refuse)

    def __getattr__(self, name: str) -> NoReturn:
        raise Refusal

    def __bool__(self) -> bool:
        if self.kind not in _KINDS:
            raise Refusal
        return self.trace.truth(self)

    def __len__(self) -> int:
        if self.kind is _View:
            return len(self.parts)
        if self.kind is not list and self.kind is not dict:
            raise Refusal
        if self.message < 0:
            self.trace.guard(self, f"len({_source(self)}) == {len(self.real)}", True)
        return len(self.real)

    def __iter__(self) -> Iterator[Any]:
        if self.kind is _View:
            return iter(self.parts)
        if self.kind is _Once:
            return self.parts[0]  # type: ignore[no-any-return]
        if self.kind is dict:
            return iter(_keys(self))
        if self.kind is not list:
            raise Refusal
        return iter([_element(self, place) for place in range(len(self))])

    def __getitem__(self, index: Any) -> Any:
        # Only slices come here, the rest through the environment.
        if type(index) is not slice or self.kind not in (str, list):
            raise Refusal
        bounds = (index.start, index.stop, index.step)
        if not all(bound is None or type(bound) is int for bound in bounds):
            raise Refusal
        written = ":".join("" if bound is None else repr(bound) for bound in bounds)
        source = f"{_source(self)}[{written}]"
        return self.trace.computed(source, self.real[index], self.kind, self.sources, mixed=_mixed(self))

    def __contains__(self, item: Any) -> Any:
        if self.kind is dict and type(item) is str and self.message >= 0:
            return item in self.real  # the keys of a message are part of the pattern
        if not (_kind(item) is str if self.kind in (str, dict) else self.kind is list and _kind(item) is not float):
            raise Refusal
        source = f"{_source(item)} in {_source(self)}"
        if self.kind is dict and type(item) is str:
            self.trace.guard(self, source, item in self.real)
            return item in self.real
        return self.trace.computed(source, _real(item) in self.real, bool, _sources(item, self))


def _kind(value: Any) -> Any:
    return value.kind if type(value) is _Traced else type(value)


def _arithmetic(sign: str, left: Any, right: Any) -> Any:
    trace: _Trace = left.trace if type(left) is _Traced else right.trace
    kinds = _kind(left), _kind(right)
    if sign == "+" and kinds == (str, str):
        return trace.joined((left, right))
    if kinds == (int, int) or (sign == "*" and kinds in ((str, int), (int, str))):
        real = _OPERATORS[sign](_real(left), _real(right))
        kind = str if str in kinds else int
        source = f"{_source(left)} {sign} {_source(right)}"
        return trace.computed(source, real, kind, _sources(left, right), mixed=_mixed(left, right))
    raise Refusal


def _comparison(sign: str, left: Any, right: Any) -> _Traced:
    kinds = _kind(left), _kind(right)
    if sign in ("==", "!="):
        # Floats: containers look at identity first, which a NaN shows.
        known = not any(kind in (float, _View, _Once) for kind in kinds)
    else:
        known = kinds in ((str, str), (int, int))
    if not known:
        raise Refusal
    real = _OPERATORS[sign](_real(left), _real(right))
    trace: _Trace = left.trace if type(left) is _Traced else right.trace
    return trace.computed(f"{_source(left)} {sign} {_source(right)}", real, bool, _sources(left, right))


_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_MODELLED = {"__bool__", "__len__", "__iter__", "__getitem__", "__contains__", "__getattr__"}
# What Python itself needs to make and hold an object; none is asked for by an operation on it.
_OF_PYTHON = _words("__class__ __doc__ __getattribute__ __init__ __init_subclass__ __new__ __slots__ __subclasshook__")


def _close() -> None:
    """Gives the tracer its operators, and refuses every other protocol of JSON values.

    Those that no value has (`__html__`, `__call__`) are not defined: asking for them comes to `__getattr__`.
    """
    for name, sign in (("add", "+"), ("sub", "-"), ("mul", "*"), ("floordiv", "//"), ("mod", "%")):
        setattr(_Traced, f"__{name}__", lambda self, other, sign=sign: _arithmetic(sign, self, other))
        setattr(_Traced, f"__r{name}__", lambda self, other, sign=sign: _arithmetic(sign, other, self))
        _MODELLED.update((f"__{name}__", f"__r{name}__"))
    for name in ("eq", "ne", "lt", "le", "gt", "ge"):
        sign = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}[name]
        setattr(_Traced, f"__{name}__", lambda self, other, sign=sign: _comparison(sign, self, other))
        _MODELLED.add(f"__{name}__")
    protocols = {name for kind in (str, bytes, int, float, list, dict, tuple, set, object) for name in dir(kind)}
    for name in protocols - _MODELLED - _OF_PYTHON:
        if name.startswith("__"):
            setattr(_Traced, name, _refuse)


class _Method:
    """A method of a traced string or dict, looked up and not yet called."""

    __slots__ = ("name", "owner")

    __eq__ = __ne__ = __hash__ = _refuse

    def __init__(self, owner: _Traced, name: str) -> None:
        self.owner, self.name = owner, name


def _source(value: Any) -> str:
    """The expression that gives a value in the plan; constants literally."""
    kind = type(value)
    if kind is _Traced:
        if value.kind not in _KINDS:
            raise Refusal
        if not value.name:
            object.__setattr__(value, "name", value.trace.written(value.parts))
        return str(value.name)
    if kind in (str, int, bool, type(None)) or (kind is float and math.isfinite(value)):
        return repr(value)
    if kind is list or kind is tuple:
        inside = "".join(f"{_source(item)}, " for item in value)
        return f"[{inside}]" if kind is list else f"({inside})"
    if kind is dict:
        return "{" + ", ".join(f"{_source(key)}: {_source(item)}" for key, item in value.items()) + "}"
    raise Refusal


def _real(value: Any) -> Any:
    """A value with the real ones in place of tracers."""
    kind = type(value)
    if kind is _Traced:
        return value.real
    if kind is list or kind is tuple:
        return kind(_real(item) for item in value)
    if kind is dict:
        return {key: _real(item) for key, item in value.items()}
    return value


def _inside(value: Any) -> Iterator[_Traced]:
    """The tracers in a value. Refuses where it, or something in it, is of a type in which they could hide."""
    kind = type(value)
    if kind is _Traced:
        yield value
    elif kind is list or kind is tuple:
        for item in value:
            yield from _inside(item)
    elif kind is dict:
        for key, item in value.items():
            if type(key) not in _SCALARS:
                raise Refusal
            yield from _inside(item)
    elif kind not in _SCALARS and kind is not jinja2.Undefined:
        raise Refusal


def _sources(*values: Any) -> frozenset[Source]:
    return frozenset[Source]().union(*(traced.sources for value in values for traced in _inside(value)))


def _mixed(*values: Any) -> bool:
    """Whether text of the template, more than white space, goes into what is made of these."""
    return any(map(_has_constant, values))


def _has_constant(value: Any) -> bool:
    kind = type(value)
    if kind is _Traced:
        return value.mixed or (value.kind is str and _mixed(*value.parts))
    if kind is str:
        return bool(value.strip())
    return _mixed(*chain(value, value.values())) if kind is dict else kind in (list, tuple) and _mixed(*value)


def _holds(*values: Any) -> bool:
    found = [traced for value in values for traced in _inside(value)]  # a list: all are to be looked at
    return bool(found)


def _keys(owner: _Traced) -> tuple[str, ...]:
    keys = tuple(owner.real)
    if not all(type(key) is str for key in keys):
        raise Refusal
    if owner.message < 0:
        owner.trace.guard(owner, f"tuple({_source(owner)}) == {_source(keys)}", True)
        owner.trace.guard(owner, f"{{*map(type, {_source(owner)})}} <= {{str}}", True)
    return keys


def _element(owner: _Traced, key: Any) -> Any:
    """What stands in a traced dict or list at a key or index that is known to be there."""
    trace, real = owner.trace, owner.real[key]
    source = f"{_source(owner)}[{key!r}]"
    if owner.message >= 0 and key == "role" and type(real) is str:
        return real  # it is part of the pattern
    if real is None or real is True or real is False:
        trace.guard(owner, f"{source} is {real}", True)
        return real
    kind = type(real)
    if kind not in _KINDS:
        raise Refusal
    content = owner.message if key == "content" and kind is str else -1
    sources = owner.sources if owner.message < 0 else frozenset(((owner.message, key),))
    found = trace.computed(source, real, kind, sources, content, element=True, mixed=owner.mixed)
    if owner.message < 0:  # the types in a message are part of the pattern
        trace.guard(owner, f"type({_source(found)}) is {kind.__name__}", True)
    return found


class _Trace:
    """The recording of one rendering.

    Args:
        functions: what plans call.
        outcomes: for messages whose tests may be told to come out otherwise, the outcomes of the first ones.
    """

    def __init__(self, functions: dict[str, Any], outcomes: Mapping[int, _Way] = MappingProxyType({})) -> None:
        self.lines: list[str] = []
        self.functions = functions
        self._outcomes = outcomes
        self.tests: dict[int, dict[str, bool]] = {message: {} for message in outcomes}  # expression -> outcome
        self.asked: set[int] = set()
        self.decided: set[int] = set()
        self.turn: Callable[[], int] = lambda: -1  # the message that a loop came to
        self.simple = True
        self.stripped: set[str] = set()  # variables
        self._known: dict[str, _Traced] = {}
        self._guarded: set[str] = set()
        self._names = 0

    def tracer(
        self,
        name: str,
        real: Any,
        kind: type,
        sources: frozenset[Source],
        content: int = -1,
        message: int = -1,
        parts: tuple[Any, ...] = (),
        mixed: bool = False,
    ) -> _Traced:
        traced = object.__new__(_Traced)
        given = (self, name, real, kind, sources, content, message, parts, mixed)
        for slot, value in zip(
            ("trace", "name", "real", "kind", "sources", "content", "message", "parts", "mixed"), given, strict=True
        ):
            object.__setattr__(traced, slot, value)
        return traced

    def computed(
        self,
        source: str,
        real: Any,
        kind: type,
        sources: frozenset[Source],
        content: int = -1,
        element: bool = False,
        mixed: bool = False,
    ) -> _Traced:
        """A line that computes something; once for each expression.

        Args:
            source: the expression.
            real, kind: what it gives, and its type.
            sources: what it is computed from.
            content: see `_Traced`.
            element: it is a value of the data, not computed from one. (A computed number is no text of a message.)
            mixed: see `_Traced`.
        """
        self.simple &= content >= 0
        if kind in (int, float, bool) and not element:
            sources = frozenset((message, "") for message, _ in sources)
        if type(real) is not kind:
            raise Refusal
        if source not in self._known:
            self._known[source] = self.tracer(self._line(source), real, kind, sources, content, mixed=mixed)
        return self._known[source]

    def _line(self, source: str) -> str:
        self._names += 1
        self.lines.append(f"v{self._names} = {source}")
        return f"v{self._names}"

    def truth(self, traced: _Traced) -> bool:
        """How a test comes out: as the value says, or as it is told to."""
        name, real = _source(traced), bool(traced.real)
        about = max((message for message, _ in traced.sources if message in self.tests), default=None)
        if about is None or traced.kind in (list, dict):  # whether there are parts or calls is asked of no words
            self.guard(traced, name, real)
            return real
        tests, outcomes = self.tests[about], self._outcomes[about]
        return tests.setdefault(name, outcomes[len(tests)] if len(tests) < len(outcomes) else real)

    def guard(self, traced: _Traced, source: str, wanted: bool) -> None:
        """Another outcome ends the plan."""
        self.simple = False
        self.asked.update(message for message, _ in traced.sources)
        turn = self.turn()
        if turn >= 0 and any(message != turn for message, _ in traced.sources):
            self.decided.add(turn)
        line = f"if {'not ' if wanted else ''}({source}): return None"
        if line not in self._guarded:
            self._guarded.add(line)
            self.lines.append(line)

    def joined(self, values: tuple[Any, ...]) -> Any:
        """Texts, one behind the other; each is a constant or a tracer of a text."""
        parts = tuple(part for value in values for part in _parts(value))
        if not any(type(part) is _Traced for part in parts):
            return "".join(parts)
        if len(parts) == 1:
            return parts[0]
        return self.tracer("", "".join(map(_real, parts)), str, _sources(*parts), parts=parts)

    def written(self, parts: tuple[Any, ...]) -> str:
        """The variable of a text that was put together."""
        inside = ", ".join(map(_source, parts))
        real = "".join(map(_real, parts))
        return self.computed(f"''.join(({inside}))", real, str, _sources(*parts), mixed=_mixed(*parts)).name

    def called(self, function: str, arguments: tuple[Any, ...], kind: type, **options: Any) -> _Traced:
        """A call of a pure function, of those the plan is given."""
        given = [_source(argument) for argument in arguments]
        given += [f"{name}={_source(value)}" for name, value in options.items()]
        real = self.functions[function](*map(_real, arguments), **{k: _real(v) for k, v in options.items()})
        sources = _sources(*arguments, *options.values())
        written = (*arguments, *options.values()) if function == "filter_indent" else arguments[:1]
        return self.computed(f"{function}({', '.join(given)})", real, kind, sources, mixed=_mixed(*written))


def _parts(value: Any) -> tuple[Any, ...]:
    if type(value) is str:
        return (value,) if value else ()
    if type(value) is not _Traced or value.kind is not str:
        raise Refusal
    return value.parts or (value,)


# What templates may call

_TEXT_METHODS: dict[str, type] = {
    **dict.fromkeys(("strip", "lstrip", "rstrip", "lower", "upper", "title", "capitalize", "replace"), str),
    **dict.fromkeys(("removeprefix", "removesuffix", "casefold", "join"), str),
    **dict.fromkeys(("find", "rfind", "index", "count"), int),
    **dict.fromkeys(("startswith", "endswith", "isdigit", "isalpha", "isalnum", "isspace", "isupper", "islower"), bool),
    **dict.fromkeys(("split", "rsplit", "splitlines"), list),
}
_DICT_METHODS = ("get", "items", "keys", "values")
_LOOP_METHODS = ("cycle", "changed")
_GLOBALS = {"range", "namespace", "dict", "raise_exception", "strftime_now"}


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

_NODES = _words(
    "Add And Assign AssignBlock Break Call CallBlock Compare Concat CondExpr Const Continue Dict Div ExprStmt Filter "
    "FilterBlock FloorDiv For Getattr Getitem If Keyword List Macro Mod Mul NSRef Name Neg Not Operand Or Output Pair "
    "Pos Slice Sub Template TemplateData Test Tuple With"
)
# Names of the module that jinja's compiled code may use: all are wrapped, or do not look at values.
_CODE_GLOBALS = _words(
    "str str_join LoopContext Macro Markup identity Namespace TemplateRuntimeError Undefined "
    "KeyError internalcode isinstance missing environment"
)


def _allowed(tree: nodes.Template, environment: jinja2.Environment) -> bool:
    """Whether a template consists of what is modelled here: its statements, filters, tests, globals and methods."""
    for node in [tree, *tree.find_all(nodes.Node)]:
        known = type(node).__name__ in _NODES
        if isinstance(node, nodes.Filter):
            known = node.name in _FILTERS and node.dyn_args is None and node.dyn_kwargs is None
        elif isinstance(node, nodes.Test):
            known = (node.name in _TESTS or node.name in _OPERATING) and node.dyn_args is None
            known &= node.dyn_kwargs is None and not node.kwargs
        elif isinstance(node, nodes.Name):
            known = node.name in _GLOBALS or (node.name not in environment.globals and node.name != "self")
        elif isinstance(node, nodes.Call):
            known = node.dyn_args is None and node.dyn_kwargs is None
            if isinstance(node.node, nodes.Getattr):
                known &= node.node.attr in {*_TEXT_METHODS, *_DICT_METHODS, *_LOOP_METHODS}
            else:
                known &= isinstance(node.node, nodes.Name)
        elif isinstance(node, nodes.Mod):
            # As in `_divisible_by`.
            known = isinstance(node.right, nodes.Const) and type(node.right.value) is int
        if not known:
            return False
    return True


def _globals_of(code: CodeType) -> Iterator[str]:
    """Names that functions in compiled code take from their module."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from (str(found.argval) for found in dis.get_instructions(constant) if found.opname == "LOAD_GLOBAL")
            yield from _globals_of(constant)


class _Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Runs a template's compiled code on tracers: the hooks that it calls, with tracers modelled."""

    trace: _Trace
    hooks: tuple[Any, ...] = ()
    clock: Any

    def adopt(self, other: jinja2.Environment) -> None:
        """Takes filters, tests and globals of the environment that compiled the template."""
        self.globals = other.globals
        filters = {name: other.filters[name] for name in _FILTERS if name in other.filters}
        filters = {name: getattr(found, "unsealed", found) for name, found in filters.items()}
        self.filters = {name: self._filter(name, found) for name, found in filters.items()}
        tests: dict[str, Any] = dict(other.tests)
        self.tests = {name: self._test(name, tests[name]) for name in _TESTS}
        self.tests.update((name, tests[name]) for name in _OPERATING)
        self.tests["divisibleby"] = _divisible_by
        self.callables = tuple(other.globals[name] for name in ("range", "namespace", "dict", "raise_exception"))
        self.clock = other.globals["strftime_now"]
        self.namespace = other.globals["namespace"]

    def _filter(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        model, passed = _FILTERS[name], _PassArg.from_obj(function)

        def run(*arguments: Any, **options: Any) -> Any:
            values = arguments if passed is None else arguments[1:]
            kind, others = type(values[0]), (*values[1:], *options.values())
            if kind is GeneratorType and name in _OF_STREAMS:
                if name == "first" and not others:
                    return function(*arguments)
                values = (list(values[0]), *values[1:])
                arguments = values if passed is None else (arguments[0], *values)
            if name in _STREAMS:
                if _holds(*others) or kind not in (list, tuple, GeneratorType, type(None), jinja2.Undefined):
                    raise Refusal
                return function(*arguments, **options)
            if not _holds(*values, *others):
                result = function(*arguments, **options)
                if type(result) is not GeneratorType or name != "items":
                    _holds(result)
                return result
            if name == "items" and len(arguments) == 1 and kind is _Traced and values[0].kind is dict:
                view = _view(values[0], "items")
                return self.trace.tracer("", None, _Once, view.sources, parts=(iter(view.parts),))
            if name in ("first", "last") and kind in (list, tuple):
                return function(*arguments, **options)
            if model is None:
                raise Refusal
            return model(self.trace, *values, **options)

        if passed is not None:  # `map` looks for it
            run.jinja_pass_arg = passed  # type: ignore[attr-defined]
        return run

    def _test(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        model = _TESTS[name]

        def run(value: Any, *arguments: Any) -> Any:
            if type(value) is _Traced and not arguments:
                return model(value)
            if arguments:
                raise Refusal
            if type(value) not in (list, tuple, dict) and name not in ("defined", "undefined", "none"):
                _holds(value)
            return function(value)

        return run

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        return None if type(value) is _Traced else super().wrap_str_format(value)

    def getitem(self, obj: Any, argument: Any) -> Any:
        if type(obj) is not _Traced:
            self._known_owner(obj)
            return super().getitem(obj, argument)
        if obj.kind is dict and type(argument) is str:
            found = _looked_up(obj, argument)
            if found:
                return found[0]
            if hasattr(dict, argument):
                raise Refusal
            return self.undefined(obj=obj.real, name=argument)
        if obj.kind in (str, list) and type(argument) is int:
            return self._indexed(obj, argument)
        raise Refusal

    def _indexed(self, owner: _Traced, index: Any) -> Any:
        size = len(owner.real)
        there = -size <= index < size
        bound = f"len({_source(owner)}) > {index}" if index >= 0 else f"len({_source(owner)}) >= {-index}"
        owner.trace.guard(owner, bound, there)
        return _element(owner, index) if there else self.undefined(obj=owner.real, name=index)

    def getattr(self, obj: Any, attribute: str) -> Any:
        if type(obj) is not _Traced:
            self._known_owner(obj)
            return super().getattr(obj, attribute)
        if attribute.startswith("_") or obj.kind not in (str, dict):
            raise Refusal
        if hasattr(obj.kind, attribute):
            return _Method(obj, attribute)
        if obj.kind is str:
            return self.undefined(obj=obj.real, name=attribute)
        found = _looked_up(obj, attribute)
        return found[0] if found else self.undefined(obj=obj.real, name=attribute)

    def _known_owner(self, owner: Any) -> None:
        kind = type(owner)
        if kind not in _SCALARS and kind not in (list, dict, tuple, jinja2.Undefined, LoopContext, self.namespace):
            raise Refusal

    def call(self, context: Any, function: Any, /, *arguments: Any, **options: Any) -> Any:
        if any(function is hook for hook in self.hooks):
            options.pop("_loop_vars", None)
            options.pop("_block_vars", None)
            return function(*arguments, **options)
        kind = type(function)
        if kind is Macro or kind is LoopContext or kind is jinja2.Undefined:
            return super().call(context, function, *arguments, **options)
        given = {name: value for name, value in options.items() if name not in ("_loop_vars", "_block_vars")}
        if any(function is known for known in self.callables):
            _holds(*arguments, *given.values())
            return super().call(context, function, *arguments, **options)
        if function is self.clock:
            return self._now(arguments, given)
        if kind is _Method:
            owner = function.owner
            if owner.kind is str:
                return _text_method(self.trace, owner, function.name, arguments, given)
            return _dict_method(owner, function.name, arguments, given)
        if kind is MethodType and type(function.__self__) is LoopContext and function.__name__ in _LOOP_METHODS:
            _holds(*arguments)
            return super().call(context, function, *arguments, **options)
        if kind is BuiltinMethodType:
            owner = function.__self__
            if type(owner) is str and function.__name__ in _TEXT_METHODS:
                if _holds(*arguments, *given.values()):
                    return _text_method(self.trace, owner, function.__name__, arguments, given)
                return super().call(context, function, *arguments, **options)
            if type(owner) is dict and function.__name__ in _DICT_METHODS:
                return super().call(context, function, *arguments, **options)
        raise Refusal

    def _now(self, arguments: tuple[Any, ...], options: dict[str, Any]) -> str:
        if len(arguments) != 1 or type(arguments[0]) is not str or options:
            raise Refusal
        return str(self.clock(arguments[0]))  # the date is part of the template

    def concat(self, parts: Any) -> Any:
        return self.trace.joined(tuple(parts))

    def text(self, value: Any) -> Any:
        return _text(self.trace, value)

    def joined(self, values: Any) -> Any:
        return self.trace.joined(tuple(_text(self.trace, value) for value in values))


_close()


# Plans


class Tracker(Protocol):
    """What a rendering reports to: `chat_template._Tracker`, which counts pieces here."""

    written: int
    blind: bool
    marks: list[tuple[int, int]]
    generations: list[tuple[int, int]]

    @property
    def place(self) -> int: ...

    def mark(self, item: Any, captured: bool) -> None: ...

    def enter(self) -> None: ...

    def leave(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Template:
    """What plans need to know of a compiled template.

    Attributes:
        source: its text.
        tree: its syntax tree.
        code: what jinja compiled it to.
        environment: the one that compiled it.
        captured: some of its generation blocks are inside a capture: where they lie cannot be told.
        hooks: names of the variables by which it reports: marks, loops that begin, loops that end, generation blocks.
        tracker: makes what it reports to, from {id of a message: its index}.
        plain: a message as the template is to see it.
    """

    source: str
    tree: nodes.Template
    code: CodeType
    environment: jinja2.Environment
    captured: bool
    hooks: tuple[str, str, str, str]
    tracker: Callable[[dict[int, int]], Tracker]
    plain: Callable[[Message], Message]


@dataclass(slots=True)
class _Plan:
    run: Callable[[list[Message], Any], tuple[str, ...] | None]
    layout: Layout
    compared: int = 0


@dataclass(slots=True)
class _Pattern:
    """The plans of a pattern; `used` since the last look, `tries` at tracing it."""

    plans: tuple[_Plan, ...] = ()
    tries: int = 0
    used: bool = True


_DICTS, _TEXTS = {dict}, {str}
_VALUES = dict.values
_PLAIN_KEYS = [["role", "content"] * messages for messages in range(65)]
_JSON = frozenset((str, int, float, bool, list, dict, type(None)))


class Plans:
    """The plans of a template with its special tokens.

    Args:
        template: the compiled template.
        tokens: variables that every rendering gets.
        reference: how jinja renders messages with variables.
    """

    def __init__(
        self,
        template: Template,
        tokens: Mapping[str, Any],
        reference: Callable[[list[Message], Mapping[str, Any]], Rendered],
    ) -> None:
        self._template = template
        self._tokens = dict(tokens)
        self._reference = reference
        self._patterns: dict[Any, _Pattern] = {}
        self._seen: dict[int, int] = {}
        self._traces = self._hits = 0
        self._lock = threading.Lock()
        self._possible: bool | None = None  # not known before the first trace
        self._environment = _Environment()
        self._compiled: jinja2.Template | None = None
        self._functions = _functions(template.environment)

    def render(self, messages: list[Message], variables: Mapping[str, Any]) -> Planned | None:
        """A conversation by its plan.

        Args:
            messages: as the data has them, or as the template is to see them.
            variables: `add_generation_prompt`, `tools`, and constants of the template.

        Returns:
            None where jinja has to render: no plan fits, or none yet, or the template raises.
        """
        options = _options(variables)
        if options is None or type(messages) is not list or len(messages) > _LONGEST:
            return None
        if self._possible is False or self._template.source in _OFF:
            return None
        shape, plain = self._shape(messages)
        if shape is None:
            return None
        tools = variables.get("tools")
        key = options, shape
        pattern = self._patterns.get(key)
        if pattern is None:
            if not self._often(key):
                return None
            pattern = self._pattern(key)
        pattern.used = True
        for plan in pattern.plans:
            try:
                pieces = plan.run(plain, tools)
            except Exception:  # whatever the template's own code raises: jinja raises it again, as it is to be
                return None
            if pieces is not None:
                if plan.compared < _COMPARED and not self._agrees(plan, pieces, plain, variables):
                    return None
                self._hits += 1
                return Planned(pieces, plan.layout)
        return self._recorded(pattern, plain, variables)

    def settled(self, messages: list[Message], uses: int) -> Layout | None:
        """The layout that all conversations of the pattern of these messages have, without variables.

        Args:
            messages: one of them.
            uses: how many others will be rendered by the layout, if there is one.

        Returns:
            None where a rendering depends on more than roles and contents, or jinja has not rendered enough of them.
        """
        if self._possible is False or self._template.source in _OFF or len(messages) > _LONGEST:
            return None
        shape, _ = self._shape(messages)
        pattern = self._patterns.get((False, shape))
        # Without a guard, the first plan fits all.
        if shape is None or pattern is None or not pattern.plans:
            return None
        plan = pattern.plans[0]
        if not plan.layout.simple or plan.compared < _COMPARED:
            return None
        pattern.used = True
        self._hits += uses
        return plan.layout

    def _shape(self, messages: list[Message]) -> tuple[Any, list[Message]]:
        """What a plan may rely on: keys and types of all messages, and their roles. None: not plain data.

        What lies deeper in them is guarded where the template looks at it.
        """
        count = len(messages)
        if {*map(type, messages)} == _DICTS and count < len(_PLAIN_KEYS):
            keys = [*chain.from_iterable(messages)]
            if keys == _PLAIN_KEYS[count]:
                values = [*chain.from_iterable(map(_VALUES, messages))]
                if {*map(type, keys), *map(type, values)} == _TEXTS:
                    return tuple(values[::2]), messages
        shape = []
        plain = []
        for message in messages:
            if type(message) is not dict or {*map(type, message)} - _TEXTS:
                return None, messages
            message = self._template.plain(message)
            kinds = tuple(map(type, message.values()))
            if not _JSON.issuperset(kinds):
                return None, messages
            role = message.get("role")
            sizes = tuple(len(value) for value in message.values() if type(value) is list)
            shape.append((tuple(message), kinds, role if type(role) is str else None, sizes))
            plain.append(message)
        return tuple(shape), plain

    def _often(self, key: Any) -> bool:
        """Counts sightings of patterns, roughly: two may share a count."""
        seen = self._seen
        name = hash(key)
        if len(seen) > 4 * _PATTERNS:
            seen.clear()
        seen[name] = seen.get(name, 0) + 1
        return seen[name] >= _SIGHTINGS

    def _pattern(self, key: Any) -> _Pattern:
        """A new entry; patterns that were not used for long make room."""
        with self._lock:
            if len(self._patterns) >= _PATTERNS:
                kept = {name: pattern for name, pattern in self._patterns.items() if pattern.used}
                for pattern in kept.values():
                    pattern.used = False
                # All were used: the older half goes.
                self._patterns = kept if len(kept) < _PATTERNS else dict(islice(kept.items(), len(kept) // 2, None))
            return self._patterns.setdefault(key, _Pattern())

    def _agrees(self, plan: _Plan, pieces: tuple[str, ...], plain: list[Message], variables: Mapping[str, Any]) -> bool:
        """Renders with jinja as well; a difference ends all plans of the template."""
        try:
            rendered = self._reference(plain, variables)
            if self._template.captured:
                rendered = rendered._replace(generations=None)
            if in_characters(Planned(pieces, plan.layout)) == rendered:
                plan.compared += 1
                return True
        except Exception:  # jinja refuses what the plan renders: that is a difference
            pass
        _OFF.add(self._template.source)
        return False

    def _recorded(self, pattern: _Pattern, plain: list[Message], variables: Mapping[str, Any]) -> Planned | None:
        """Traces a conversation that no plan fits."""
        if pattern.tries >= _PLANS or self._traces >= max(_UNPAID, self._hits // _PAY):
            return None
        with self._lock:
            pattern.tries += 1
            self._traces += 1
            if self._possible is None:
                self._possible = self._prepared()
            plan = None
            if self._possible:
                try:
                    plan = self._traced(plain, variables)[1]()
                except Refusal:
                    pattern.tries = _PLANS
                except Exception:  # the template refuses this conversation, perhaps not all of the pattern
                    pattern.tries += 1
            if plan is not None:
                pattern.plans = (*pattern.plans, plan)
        if plan is None:
            return None
        try:
            pieces = plan.run(plain, variables.get("tools"))
        except Exception:
            pieces = None
        if pieces is None:  # it does not even fit its own conversation
            pattern.plans = tuple(other for other in pattern.plans if other is not plan)
            return None
        return Planned(pieces, plan.layout) if self._agrees(plan, pieces, plain, variables) else None

    def _prepared(self) -> bool:
        """Runs the compiled code in a module of its own, with the hooks of the tracing environment."""
        template = self._template
        if not jinja2.__version__.startswith("3.1.") or not _allowed(template.tree, template.environment):
            return False
        if not set(_globals_of(template.code)) <= _CODE_GLOBALS:
            return False
        environment = self._environment
        environment.adopt(template.environment)
        self._compiled = jinja2.Template.from_code(environment, template.code, dict(template.environment.globals))
        module = self._compiled.root_render_func.__globals__
        module["str"], module["str_join"] = environment.text, environment.joined
        return True

    def provenance(self, messages: list[Message], variables: Mapping[str, Any]) -> Planned | None:
        """One conversation traced, for what each piece of its text is computed from. No plan is kept.

        Returns:
            None where the template does something with it that is not modelled, or raises.
        """
        plain = [self._template.plain(message) for message in messages]
        with self._lock:
            if self._possible is None:
                self._possible = self._prepared()
            if not self._possible:
                return None
            try:
                return self._traced(plain, variables)[0]
            except Refusal:
                return None
            except Exception:  # whatever the template's own code raises: jinja raises it, too
                return None

    def otherwise(
        self, messages: list[Message], variables: Mapping[str, Any], about: Collection[int]
    ) -> dict[int, list[Planned]]:
        """A conversation as it is written when tests of what messages say come out in any other way.

        Each test is taken both ways, whatever the words are (as in concolic testing: Sen, Marinov, Agha: CUTE, 2005).
        What all ways have in common depends on no word of the message. A way in which the template refuses the
        conversation is none. One rendering takes a way of each message, so it takes no more of them for more messages.
        The messages say something else meanwhile, always the same: so what is found is found for every conversation
        of a plan.

        Args:
            messages: a conversation for which `provenance` is known, or a plan.
            variables: see `render`.
            about: indices of the messages.

        Returns:
            For each message its ways; none for those that have too many, or one that is not modelled, fails, or asks
            in the message's turn what another one says.
        """
        given = [self._template.plain(each) for each in messages]
        plain = [_other_words(each) if place in about else each for place, each in enumerate(given)]
        found: dict[int, list[Planned]] = {message: [] for message in about}
        ways: dict[int, list[_Way]] = {message: [()] for message in about}
        with self._lock:
            if self._compiled is None:
                return {}
            for step in range(_OTHERWISE):
                taken = {message: every[step] for message, every in ways.items() if step < len(every)}
                if not taken:
                    break
                others: dict[int, _Way] = dict.fromkeys(ways, ())
                if not self._written({**others, **taken}, taken, plain, variables, found, ways):
                    # Which of them cannot be taken? The others keep their words, as these are not refused.
                    for message, way in taken.items():
                        alone, said = {message: way}, [*given]
                        said[message] = plain[message]
                        if not self._written(alone, alone, said, variables, found, ways):
                            found.pop(message, None)
                            ways.pop(message, None)
        # Without any way there is nothing that all have in common.
        return {message: each for message, each in found.items() if each and len(ways[message]) <= _OTHERWISE}

    def _written(
        self,
        outcomes: Mapping[int, _Way],
        taken: Mapping[int, _Way],
        plain: list[Message],
        variables: Mapping[str, Any],
        found: dict[int, list[Planned]],
        ways: dict[int, list[_Way]],
    ) -> bool:
        """Adds a conversation that is written with given outcomes, and the ways that branch off; False: it fails."""
        trace = _Trace(self._functions, outcomes)
        planned = None
        try:
            planned = self._traced(plain, variables, trace)[0]
        except Refusal:
            return False
        except Exception as error:
            # Where the template refuses the conversation (`raise_exception`), there is nothing to compare.
            if type(error) is not jinja2.TemplateError or len(taken) > 1:
                return False
        if planned is not None and not planned.layout.decided.isdisjoint(taken):
            return False
        for message, way in taken.items():
            if planned is not None:
                found[message].append(planned)
            tests = (*trace.tests[message].values(),)
            ways[message] += [(*tests[:at], not tests[at]) for at in range(len(way), len(tests))]
        return True

    def _traced(
        self, plain: list[Message], variables: Mapping[str, Any], trace: _Trace | None = None
    ) -> "tuple[Planned, Callable[[], _Plan]]":
        """A conversation in pieces, and what compiles its plan."""
        environment, compiled = self._environment, self._compiled
        assert compiled is not None
        trace = environment.trace = trace or _Trace(self._functions)
        messages = [
            trace.tracer(f"messages[{place}]", message, dict, frozenset(((place, ""),)), message=place)
            for place, message in enumerate(plain)
        ]
        tools = variables.get("tools")
        if tools is not None:
            tools = [trace.tracer(f"tools[{at}]", tool, dict, _NONE_OF_THEM) for at, tool in enumerate(tools)]
        recording = _Recording(trace, self._template.tracker({id(m): at for at, m in enumerate(messages)}))
        mark, enter, leave, generation = self._template.hooks
        tracker = recording.tracker
        trace.turn = lambda: tracker.place
        environment.hooks = (tracker.mark, tracker.enter, tracker.leave, recording.generation)
        given = {
            "tools": None,
            "documents": None,
            **self._tokens,
            **variables,
            **({} if tools is None else {"tools": tools}),
            "messages": messages,
            **dict(zip((mark, enter, leave, generation), environment.hooks, strict=True)),
        }
        try:
            for part in compiled.root_render_func(compiled.new_context(given)):
                recording.write(part)
            return recording.planned(len(messages), self._template.captured)
        finally:
            environment.trace, environment.hooks = _Trace({}), ()  # they hold the conversation


def _other_words(message: Message) -> Message:
    """The same message with other texts."""
    return {key: value if key == "role" else _reworded(value) for key, value in message.items()}


def _reworded(value: Any) -> Any:
    if type(value) is str:
        return "vxzw"
    if type(value) is list:
        return [_reworded(item) for item in value]
    return {key: _reworded(item) for key, item in value.items()} if type(value) is dict else value


def _options(variables: Mapping[str, Any]) -> Any:
    """The part of a pattern that variables are; None where they are more than constants and tools."""
    if len(variables) == 1:
        prompt = variables.get("add_generation_prompt")
        if prompt is False or prompt is True:
            return prompt
    options: list[Any] = []
    for name, value in variables.items():
        kind = type(value)
        if name == "tools" and kind is list and {*map(type, value)} == _DICTS:
            options.append((name, len(value)))
        elif value is None or (kind in _CONSTANTS and name not in ("tools", "documents")):
            options.append((name, kind, value))
        else:
            return None
    return tuple(options)


_CONSTANTS = {str, bool, int}


class _Recording:
    """What a traced rendering writes."""

    def __init__(self, trace: _Trace, tracker: Tracker) -> None:
        self.trace = trace
        self.tracker = tracker
        self._pieces: list[Any] = []
        self._awaited: Any = None

    def generation(self, caller: Any) -> Any:
        text = _text(self.trace, caller())
        if self._awaited is not None:
            raise Refusal
        written = self.tracker.written
        self.tracker.generations.append((written, written + len(_parts(text))))
        self._awaited = text
        return text

    def write(self, part: Any) -> None:
        if self._awaited is not None and part is not self._awaited:
            raise Refusal  # a generation block is not written where it was rendered
        self._awaited = None
        self._pieces += _parts(part)
        self.tracker.written = len(self._pieces)

    def planned(self, messages: int, captured: bool) -> tuple[Planned, Callable[[], _Plan]]:
        """How its pieces lie (constants side by side are one, but for marks between them), and what compiles them."""
        tracker = self.tracker
        if self._awaited is not None:
            raise Refusal
        blocks = [] if captured else tracker.generations
        borders = {written for written, _ in tracker.marks} | {at for block in blocks for at in block}
        at: dict[int, int] = {}  # pieces written -> pieces of the plan
        pieces: list[Any] = []
        for place, piece in enumerate(self._pieces):
            if type(piece) is str and pieces and type(pieces[-1]) is str and place not in borders:
                pieces[-1] += piece
            else:
                at[place] = len(pieces)
                pieces.append(piece)
        at[len(self._pieces)] = len(pieces)
        contents = tuple(piece.content if type(piece) is _Traced else -1 for piece in pieces)
        stripped = [type(piece) is _Traced and piece.name in self.trace.stripped for piece in pieces]
        layout = Layout(
            tuple(piece if type(piece) is str else None for piece in pieces),
            tuple(_sources(piece) for piece in pieces),
            tuple(type(piece) is _Traced and _mixed(piece) for piece in pieces),
            contents,
            tuple((at[written], place) for written, place in tracker.marks),
            None if captured else tuple((at[start], at[stop]) for start, stop in blocks),
            tracker.blind,
            frozenset(self.trace.asked),
            frozenset(self.trace.decided),
            messages,
            self.trace.simple,
            frozenset(content for content, cut in zip(contents, stripped, strict=True) if cut),
        )
        trace = self.trace

        def compiled() -> _Plan:
            written = f"return ({''.join(_source(piece) + ', ' for piece in pieces)})"
            names = dict(trace.functions)
            exec("def plan(messages, tools):\n " + "\n ".join([*trace.lines, written]), names)
            return _Plan(names["plan"], layout)

        return Planned(tuple(map(_real, pieces)), layout), compiled


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
