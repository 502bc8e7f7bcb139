"""The environment of chat templates: transformers' sandbox, without what gives another text in another run."""

import functools
import json
from collections.abc import Callable, Iterable, Iterator
from types import BuiltinMethodType, FunctionType, MethodType
from typing import Any

import jinja2
import jinja2.sandbox
import jinja2.utils
from jinja2.runtime import BlockReference, LoopContext, Macro

from beam_prep.core.chat.growth import expect_method, expect_operator, measured_filter, measured_format
from beam_prep.core.chat.limits import active_budget, concatenated, made, weigh, weighed
from beam_prep.core.chat.tracker import Tracker, ignore, pay


class Namespace(jinja2.utils.Namespace):
    """Refuses names that begin with an underscore, as transformers does: they are ways out of the sandbox."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, attributes = args[0], dict(*args[1:], **kwargs)
        for name in attributes:
            Namespace._check(name)  # `self._check` would look among the attributes
        jinja2.utils.Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        Namespace._check(name)
        jinja2.utils.Namespace.__setitem__(self, name, value)

    @staticmethod
    def _check(name: Any) -> None:
        if isinstance(name, str) and name.startswith("_"):
            raise jinja2.exceptions.SecurityError(f"a template cannot set {name!r} on a namespace")


def _refuse_text(_: Any, *__: Any) -> Any:
    raise jinja2.exceptions.SecurityError(
        "a template writes a function, a method without its brackets, or what a filter has not yet gone through: "
        "its text is an address in memory, another one in every run"
    )


class Unwritable:
    """Base of values that templates may use, but not write."""

    __slots__ = ()
    __str__ = __repr__ = __format__ = _refuse_text


class UnwritableCallable(Unwritable):
    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)


class _Stream(Unwritable):
    __slots__ = ("_items",)

    def __init__(self, items: Iterator[Any]) -> None:
        self._items = items

    def __iter__(self) -> Iterator[Any]:
        return self._items


class UnwritableCycler(Unwritable, jinja2.utils.Cycler):
    pass


class UnwritableJoiner(Unwritable, jinja2.utils.Joiner):
    pass


_ADDRESSED = {BuiltinMethodType, MethodType, FunctionType, BlockReference}


def limited_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that is measured, and whose iterators cannot be written."""
    measured: Callable[..., Any] = measured_filter(name, function, _Stream)
    return measured


_OF_JINJA = ("_loop_vars", "_block_vars")
_REPORTS = (Tracker.mark, Tracker.enter, Tracker.leave)


class LimitedEnvironment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """The sandbox, with limits on what a rendering costs: see `limits`."""

    intercepted_binops = frozenset(("+", "-", "*", "**", "%"))

    def concat(self, parts: Iterable[str]) -> str:
        return concatenated(parts)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        return None if super().wrap_str_format(value) is None else measured_format(self, value)

    def call(self, context: Any, function: Any, /, *args: Any, **options: Any) -> Any:
        called: Any = function._function if type(function) is UnwritableCallable else function
        kind = type(called)
        if called is pay or called is ignore or (kind is MethodType and called.__func__ in _REPORTS):
            return called(*args)
        if kind is BuiltinMethodType or kind is MethodType:
            own = {name: value for name, value in options.items() if name not in _OF_JINJA}
            args = expect_method(called.__self__, called.__name__, args, own)
        elif kind is not Macro and kind is not LoopContext:
            for value in args:
                weighed(value)  # which may be written, or compared
        budget = active_budget()
        if budget is None:  # jinja computes constants
            return made(super().call(context, function, *args, **options))
        budget.enter()
        try:
            return made(super().call(context, function, *args, **options))
        finally:
            budget.calls -= 1

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "+" and type(left) is str and type(right) is str:
            return made(left + right)
        expect_operator(operator, left, right)
        found = made(self.binop_table[operator](left, right))
        if operator == "-" and isinstance(found, set | frozenset):
            raise jinja2.exceptions.SecurityError("a template makes a set, whose order is another one in every run")
        return found


class Sandbox(LimitedEnvironment):
    """The sandbox, without what gives another text in another run: addresses, and the order of sets."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        found = super().getattr(obj, attribute)
        return UnwritableCallable(found) if type(found) in _ADDRESSED else found

    def getitem(self, obj: Any, argument: Any) -> Any:
        if type(argument) is tuple:
            weigh(argument)  # its hash takes as long
        found = super().getitem(obj, argument)
        return UnwritableCallable(found) if type(found) in _ADDRESSED else found


def limited_test(test: Callable[..., Any]) -> Callable[..., Any]:
    """A test that compares: what it compares is measured, since comparing it takes as long."""

    @functools.wraps(test)
    def run(*values: Any) -> Any:
        return test(*map(weighed, values))

    return run


class DictMaker(Unwritable):
    """`dict(...)` in templates, without the type's own attributes."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args, **kwargs)


def raise_exception(message: str) -> None:
    raise jinja2.exceptions.TemplateError(str(message))


_AS_IT_IS = json.JSONEncoder(ensure_ascii=False)


def tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    if ensure_ascii is False and indent is None and separators is None and sort_keys is False:
        return _AS_IT_IS.encode(value)  # what json.dumps would make anew each time
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
