"""Tracers replace the values of a conversation while a template runs once; a trace records what it does with them.

The danger is code that asks for the type of a tracer instead of operating on it. A tracer is therefore no subclass of
anything, every protocol method and `__class__` itself refuse by default, and only arguments of known types go into
filters, tests and calls.
"""

import math
import operator
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from types import MappingProxyType
from typing import Any, NoReturn

import jinja2

from beam_prep.core.chat.growth import expect_operator
from beam_prep.core.chat.limits import ITEM, MAX_BITS, MAX_CHARACTERS, MAX_PLANNED, STEP, charge
from beam_prep.core.chat.recorded.layout import NO_SOURCES, Source

Outcomes = tuple[bool, ...]
"""Outcomes of tests, in their order."""


class Refusal(BaseException):
    """The template does something that is not modelled. No Exception: jinja swallows TypeError and LookupError."""


def _refuse(*_: Any, **__: Any) -> NoReturn:
    raise Refusal


def names_in(text: str) -> frozenset[str]:
    return frozenset(text.split())


class View:
    """Kind of a tracer of the keys, values or items of a dict: good for loops only."""


class SingleUseView(View):
    """The same, and used up by the first loop."""


SIZED_KINDS = {str, list, dict}
VALUE_KINDS = {str, int, float, bool, list, dict}
SCALAR_KINDS = {str, int, float, bool, type(None)}


class Tracer:
    """Replaces a value of the conversation, or a value that the template computed from others.

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

    trace: "Trace"
    kind: type
    real: Any
    name: str
    parts: "tuple[Any, ...]"
    sources: frozenset[Source]
    mixed: bool
    content: int
    message: int

    # `isinstance(tracer, str)` reads it, and must not silently get a wrong answer.
    __class__ = property(_refuse)

    def __getattr__(self, name: str) -> NoReturn:
        raise Refusal

    def __bool__(self) -> bool:
        if self.kind not in VALUE_KINDS:
            raise Refusal
        return self.trace.truth(self)

    def __len__(self) -> int:
        if self.kind is View:
            return len(self.parts)
        if self.kind is not list and self.kind is not dict:
            raise Refusal
        if self.message < 0:
            self.trace.guard(self, f"len({expression_of(self)}) == {len(self.real)}", True)
        return len(self.real)

    def __iter__(self) -> Iterator[Any]:
        if self.kind is View:
            return iter(self.parts)
        if self.kind is SingleUseView:
            return self.parts[0]  # type: ignore[no-any-return]
        if self.kind is dict:
            return iter(keys_of(self))
        if self.kind is not list:
            raise Refusal
        return iter([element_of(self, place) for place in range(len(self))])

    def __getitem__(self, index: Any) -> Any:
        # Only slices come here, the rest through the environment.
        if type(index) is not slice or self.kind not in (str, list):
            raise Refusal
        bounds = (index.start, index.stop, index.step)
        if not all(bound is None or type(bound) is int for bound in bounds):
            raise Refusal
        written = ":".join("" if bound is None else repr(bound) for bound in bounds)
        expression = f"{expression_of(self)}[{written}]"
        return self.trace.computed(expression, self.real[index], self.kind, self.sources, mixed=is_mixed(self))

    def __contains__(self, item: Any) -> Any:
        if self.kind is dict and type(item) is str and self.message >= 0:
            return item in self.real  # the keys of a message are part of the pattern
        if not (kind_of(item) is str if self.kind in (str, dict) else self.kind is list and kind_of(item) is not float):
            raise Refusal
        expression = f"{expression_of(item)} in {expression_of(self)}"
        if self.kind is dict and type(item) is str:
            self.trace.guard(self, expression, item in self.real)
            return item in self.real
        return self.trace.computed(expression, real_value(item) in self.real, bool, sources_of(item, self))


def kind_of(value: Any) -> Any:
    return value.kind if type(value) is Tracer else type(value)


def _arithmetic(sign: str, left: Any, right: Any) -> Any:
    trace: Trace = left.trace if type(left) is Tracer else right.trace
    kinds = kind_of(left), kind_of(right)
    if sign == "+" and kinds == (str, str):
        return trace.joined((left, right))
    if kinds == (int, int):
        real = _OPERATORS[sign](real_value(left), real_value(right))
        expression = f"{expression_of(left)} {sign} {expression_of(right)}"
        found = trace.computed(expression, real, int, sources_of(left, right), mixed=is_mixed(left, right))
        trace.measured.add(f"({found.name}.bit_length() >> {MAX_BITS.bit_length() - 1} << 40)")
        return found
    if sign == "*" and kinds in ((str, int), (int, str)):
        text, times = (left, right) if kinds[0] is str else (right, left)
        expect_operator(sign, real_value(text), real_value(times))
        real = real_value(text) * real_value(times)
        expression = f"repeat_text({expression_of(text)}, {expression_of(times)})"
        return trace.computed(expression, real, str, sources_of(left, right), mixed=is_mixed(left, right), growing=True)
    raise Refusal


def _comparison(sign: str, left: Any, right: Any) -> Tracer:
    kinds = kind_of(left), kind_of(right)
    if sign in ("==", "!="):
        # Floats: containers look at identity first, which a NaN shows.
        known = not any(kind in (float, View, SingleUseView) for kind in kinds)
    else:
        known = kinds in ((str, str), (int, int))
    if not known:
        raise Refusal
    real = _OPERATORS[sign](real_value(left), real_value(right))
    trace: Trace = left.trace if type(left) is Tracer else right.trace
    return trace.computed(f"{expression_of(left)} {sign} {expression_of(right)}", real, bool, sources_of(left, right))


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
MODELLED_PROTOCOLS = {"__bool__", "__len__", "__iter__", "__getitem__", "__contains__", "__getattr__"}
# What Python itself needs to make and hold an object; operations on it use none of these.
PYTHON_PROTOCOLS = names_in(
    "__class__ __doc__ __getattribute__ __init__ __init_subclass__ __new__ __slots__ __subclasshook__"
)


def _define_protocols() -> None:
    """Gives the tracer its operators, and refuses every other protocol of JSON values.

    Those that no value has (`__html__`, `__call__`) are not defined: asking for them comes to `__getattr__`.
    """
    for name, sign in (("add", "+"), ("sub", "-"), ("mul", "*"), ("floordiv", "//"), ("mod", "%")):
        setattr(Tracer, f"__{name}__", lambda self, other, sign=sign: _arithmetic(sign, self, other))
        setattr(Tracer, f"__r{name}__", lambda self, other, sign=sign: _arithmetic(sign, other, self))
        MODELLED_PROTOCOLS.update((f"__{name}__", f"__r{name}__"))
    for name in ("eq", "ne", "lt", "le", "gt", "ge"):
        sign = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}[name]
        setattr(Tracer, f"__{name}__", lambda self, other, sign=sign: _comparison(sign, self, other))
        MODELLED_PROTOCOLS.add(f"__{name}__")
    protocols = {name for kind in (str, bytes, int, float, list, dict, tuple, set, object) for name in dir(kind)}
    for name in protocols - MODELLED_PROTOCOLS - PYTHON_PROTOCOLS:
        if name.startswith("__"):
            setattr(Tracer, name, _refuse)


class UncalledMethod:
    """A method of a traced string or dict, looked up and not yet called."""

    __slots__ = ("name", "owner")

    __eq__ = __ne__ = __hash__ = _refuse

    def __init__(self, owner: Tracer, name: str) -> None:
        self.owner, self.name = owner, name


def expression_of(value: Any) -> str:
    """The expression that gives a value in the plan; constants literally."""
    kind = type(value)
    if kind is Tracer:
        if value.kind not in VALUE_KINDS:
            raise Refusal
        if not value.name:
            object.__setattr__(value, "name", value.trace.written(value.parts))
        return str(value.name)
    if kind in (str, int, bool, type(None)) or (kind is float and math.isfinite(value)):
        return repr(value)
    charge(ITEM)
    if kind is list or kind is tuple:
        inside = "".join(f"{expression_of(item)}, " for item in value)
        return f"[{inside}]" if kind is list else f"({inside})"
    if kind is dict:
        return "{" + ", ".join(f"{expression_of(key)}: {expression_of(item)}" for key, item in value.items()) + "}"
    raise Refusal


def real_value(value: Any) -> Any:
    """A value with the real ones in place of tracers."""
    kind = type(value)
    if kind is Tracer:
        return value.real
    charge(ITEM)
    if kind is list or kind is tuple:
        return kind(real_value(item) for item in value)
    if kind is dict:
        return {key: real_value(item) for key, item in value.items()}
    return value


def _tracers_in(value: Any) -> Iterator[Tracer]:
    """The tracers in a value. Refuses where it, or something in it, is of a type in which they could hide."""
    kind = type(value)
    if kind is Tracer:
        yield value
    elif kind is list or kind is tuple:
        charge(ITEM)
        for item in value:
            yield from _tracers_in(item)
    elif kind is dict:
        charge(ITEM)
        for key, item in value.items():
            if type(key) not in SCALAR_KINDS:
                raise Refusal
            yield from _tracers_in(item)
    elif kind not in SCALAR_KINDS and kind is not jinja2.Undefined:
        raise Refusal


def sources_of(*values: Any) -> frozenset[Source]:
    if len(values) == 1 and type(values[0]) is Tracer:
        return values[0].sources
    found: list[frozenset[Source]] = []
    for value in values:
        if type(value) is Tracer:
            found.append(value.sources)
        elif type(value) is not str:
            found += [traced.sources for traced in _tracers_in(value)]
    return NO_SOURCES.union(*found)


def is_mixed(*values: Any) -> bool:
    """True if text of the template, other than white space, becomes part of what is made of these."""
    return any(map(_has_constant, values))


def _has_constant(value: Any) -> bool:
    kind = type(value)
    if kind is Tracer:
        return value.mixed or (value.kind is str and is_mixed(*value.parts))
    if kind is str:
        return bool(value.strip())
    charge(ITEM)
    return is_mixed(*chain(value, value.values())) if kind is dict else kind in (list, tuple) and is_mixed(*value)


def holds_tracers(*values: Any) -> bool:
    found = [traced for value in values for traced in _tracers_in(value)]  # a list: all are to be looked at
    return bool(found)


def keys_of(owner: Tracer) -> tuple[str, ...]:
    keys = tuple(owner.real)
    if not all(type(key) is str for key in keys):
        raise Refusal
    if owner.message < 0:
        owner.trace.guard(owner, f"tuple({expression_of(owner)}) == {expression_of(keys)}", True)
        owner.trace.guard(owner, f"{{*map(type, {expression_of(owner)})}} <= {{str}}", True)
    return keys


def element_of(owner: Tracer, key: Any) -> Any:
    """The value in a traced dict or list at a key or index that is known to be there."""
    trace, real = owner.trace, owner.real[key]
    expression = f"{expression_of(owner)}[{key!r}]"
    if owner.message >= 0 and key == "role" and type(real) is str:
        return real  # it is part of the pattern
    if real is None or real is True or real is False:
        trace.guard(owner, f"{expression} is {real}", True)
        return real
    kind = type(real)
    if kind not in VALUE_KINDS:
        raise Refusal
    content = owner.message if key == "content" and kind is str else -1
    sources = owner.sources if owner.message < 0 else frozenset(((owner.message, key),))
    found = trace.computed(expression, real, kind, sources, content, element=True, mixed=owner.mixed)
    if owner.message < 0:  # the types in a message are part of the pattern
        trace.guard(owner, f"type({expression_of(found)}) is {kind.__name__}", True)
    return found


MAX_GROWING = 1024  # texts of a plan that may be much longer than what they are made of
MIN_LARGEST = 4096  # characters that a plan is worth while for


class Trace:
    """The recording of one rendering.

    Args:
        functions: what plans call.
        outcomes: for messages whose tests may be given other outcomes: the outcomes of the first tests.
    """

    def __init__(self, functions: dict[str, Any], outcomes: Mapping[int, Outcomes] = MappingProxyType({})) -> None:
        self.lines: list[str] = []
        self.functions = functions
        self._outcomes = outcomes
        self.tests: dict[int, dict[str, bool]] = {message: {} for message in outcomes}  # expression -> outcome
        self.tested: set[int] = set()
        self.dependent: set[int] = set()
        self.turn: Callable[[], int] = lambda: -1  # the message that a loop came to
        self.simple = True
        self.stripped: set[str] = set()  # variables
        self._known: dict[str, Tracer] = {}
        self._guarded: set[str] = set()
        self._names = 0
        self.texts: list[str] = []  # variables whose lengths count
        self.measured: set[str] = set()  # expressions that count besides
        self._weights: defaultdict[str, int] = defaultdict(int)  # variable -> how often something is made of it
        self._within: dict[str, str] = {}  # variable -> the one that it is a part of
        self._growing = 0

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
    ) -> Tracer:
        traced = object.__new__(Tracer)
        put = object.__setattr__  # a tracer refuses its own
        put(traced, "trace", self)
        put(traced, "name", name)
        put(traced, "real", real)
        put(traced, "kind", kind)
        put(traced, "sources", sources)
        put(traced, "content", content)
        put(traced, "message", message)
        put(traced, "parts", parts)
        put(traced, "mixed", mixed)
        return traced

    def computed(
        self,
        expression: str,
        real: Any,
        kind: type,
        sources: frozenset[Source],
        content: int = -1,
        element: bool = False,
        mixed: bool = False,
        growing: bool = False,
        within: Any = None,
    ) -> Tracer:
        """A line that computes something; once for each expression.

        Args:
            expression: of the plan, over its variables.
            real, kind: what it gives, and its type.
            sources: what it is computed from.
            content: see `Tracer`.
            element: it is a value of the data, not computed from one. (A computed number is no text of a message.)
            mixed: see `Tracer`.
            growing: it may be much longer than what it is made of.
            within: a text that it is a part of.
        """
        self.simple &= content >= 0
        if kind in (int, float, bool) and not element:
            sources = frozenset((message, "") for message, _ in sources)
        if type(real) is not kind:
            raise Refusal
        if expression not in self._known:
            name = self._line(expression)
            self._known[expression] = self.tracer(name, real, kind, sources, content, mixed=mixed)
            if type(within) is Tracer and within.name:
                self._within[name] = self._within.get(within.name, within.name)
            elif kind is str:
                self.texts.append(name)
            elif kind in SIZED_KINDS:
                self.measured.add(f"{ITEM + 1} * len({name})")
            if growing:
                self._grows(name, real)
        return self._known[expression]

    def _grows(self, name: str, real: Any) -> None:
        self._growing += 1
        if self._growing > MAX_GROWING or len(real) > MAX_PLANNED:
            raise Refusal
        self.lines.append(f"if len({name}) > {MAX_PLANNED}: raise OverflowError")

    def pay(self, *values: Any) -> None:
        """Counts a step of the template, and the values that it takes and gives."""
        work, weights, within = STEP, self._weights, self._within
        for value in values:
            kind = type(value)
            if kind is str:
                work += len(value)
            elif kind is Tracer and not value.parts:
                if name := value.name:
                    weights[within.get(name, name)] += 1
            elif kind is Tracer:
                # Most parts are texts and variables; the others may hold more than is to be looked at for nothing.
                work += ITEM * len(value.parts)
                for part in value.parts:
                    if type(part) is str:
                        work += len(part)
                    elif type(part) is Tracer and not part.parts and (name := part.name):
                        weights[within.get(name, name)] += 1
                    else:
                        self._pay(part)
            else:
                self._pay(value)
        charge(work)

    def _pay(self, value: Any) -> None:
        kind = type(value)
        if kind is Tracer:
            charge(ITEM * len(value.parts))
            for part in value.parts:
                self._pay(part)
            if not value.parts and value.name:
                self._weights[self._within.get(value.name, value.name)] += 1
        elif kind is str:
            charge(len(value))
        elif kind in (list, tuple, dict):
            # At once, and not with the rest: it may be in itself so often that the limit has to end this.
            charge(ITEM * (len(value) + 4))
            for item in value if kind is not dict else chain(value, value.values()):
                self._pay(item)

    def largest(self, work: int) -> int:
        """The characters that a plan may read and compute: with no more, jinja is certain to be within its limits.

        Args:
            work: what the traced rendering cost, without what it computes of the conversation.

        Raises:
            Refusal: there are next to none.
        """
        # A step is paid for what it takes and gives, so an item of a list, and JSON as an object, are in this, too.
        found = (MAX_CHARACTERS - work) // ((ITEM + 4) * max(self._weights.values(), default=1))
        if found < MIN_LARGEST:
            raise Refusal
        return found

    def _line(self, expression: str) -> str:
        self._names += 1
        self.lines.append(f"v{self._names} = {expression}")
        return f"v{self._names}"

    def truth(self, traced: Tracer) -> bool:
        """The outcome of a test: the given one, or that of the value."""
        name, real = expression_of(traced), bool(traced.real)
        about = max((message for message, _ in traced.sources if message in self.tests), default=None)
        if about is None or traced.kind in (list, dict):  # tests for parts or calls do not test a text
            self.guard(traced, name, real)
            return real
        tests, outcomes = self.tests[about], self._outcomes[about]
        return tests.setdefault(name, outcomes[len(tests)] if len(tests) < len(outcomes) else real)

    def guard(self, traced: Tracer, expression: str, wanted: bool) -> None:
        """Adds a line that ends the plan at another outcome."""
        self.simple = False
        self.tested.update(message for message, _ in traced.sources)
        turn = self.turn()
        if turn >= 0 and any(message != turn for message, _ in traced.sources):
            self.dependent.add(turn)
        line = f"if {'not ' if wanted else ''}({expression}): return None"
        if line not in self._guarded:
            self._guarded.add(line)
            self.lines.append(line)

    def joined(self, values: tuple[Any, ...]) -> Any:
        """Texts, one after the other; each is a constant or a tracer of a text."""
        parts = (*chain.from_iterable(map(parts_of, values)),)
        self.pay(*parts)
        traced = [part for part in parts if type(part) is Tracer]
        if not traced:
            return "".join(parts)
        if len(parts) == 1:
            return parts[0]
        charge(ITEM * (len(parts) - len(traced)))
        real = "".join([part.real if type(part) is Tracer else part for part in parts])
        return self.tracer("", real, str, sources_of(*traced), parts=parts)

    def written(self, parts: tuple[Any, ...]) -> str:
        """The variable of a text that is computed from parts."""
        inside = ", ".join(map(expression_of, parts))
        real = "".join(map(real_value, parts))
        return self.computed(
            f"''.join(({inside}))", real, str, sources_of(*parts), mixed=is_mixed(*parts), growing=True
        ).name

    def called(self, function: str, arguments: tuple[Any, ...], kind: type, **options: Any) -> Tracer:
        """A call of one of the pure functions that the plan is given."""
        if not all(map(_is_small, (*arguments[1:], *options.values()))):
            raise Refusal  # an indent, say: jinja knows the size before it is made
        given = [expression_of(argument) for argument in arguments]
        given += [f"{name}={expression_of(value)}" for name, value in options.items()]
        real = self.functions[function](*map(real_value, arguments), **{k: real_value(v) for k, v in options.items()})
        sources = sources_of(*arguments, *options.values())
        written = (*arguments, *options.values()) if function == "filter_indent" else arguments[:1]
        return self.computed(
            f"{function}({', '.join(given)})", real, kind, sources, mixed=is_mixed(*written), growing=True
        )


def _is_small(value: Any) -> bool:
    """True if a constant that says how something is written does not make it long."""
    if type(value) in (list, tuple):
        return all(map(_is_small, value))
    return type(value) is not Tracer and (value is None or (len(value) if type(value) is str else value) <= 64)


def parts_of(value: Any) -> tuple[Any, ...]:
    if type(value) is str:
        return (value,) if value else ()
    if type(value) is not Tracer or value.kind is not str:
        raise Refusal
    return value.parts or (value,)


_define_protocols()
