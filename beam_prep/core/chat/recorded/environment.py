"""The jinja environment in which a template's compiled code runs on tracers, and what a template may consist of."""

import dis
from collections.abc import Callable, Iterator
from types import BuiltinMethodType, CodeType, GeneratorType, MethodType
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.runtime import LoopContext, Macro
from jinja2.utils import _PassArg

from beam_prep.core.chat.compilation import WEIGHED
from beam_prep.core.chat.growth import unmeasured
from beam_prep.core.chat.limits import weighed
from beam_prep.core.chat.recorded.models import (
    DICT_METHODS,
    FILTER_MODELS,
    LOOP_METHODS,
    OPERATING_TESTS,
    STREAM_CONSUMERS,
    STREAM_FILTERS,
    TEST_MODELS,
    TEXT_METHODS,
    as_text,
    dict_method,
    divisible_by,
    looked_up,
    text_method,
    view_of,
)
from beam_prep.core.chat.recorded.tracer import (
    SCALAR_KINDS,
    Refusal,
    SingleUseView,
    Trace,
    Tracer,
    UncalledMethod,
    element_of,
    expression_of,
    holds_tracers,
    names_in,
)
from beam_prep.core.chat.sandbox import LimitedEnvironment

_ALLOWED_GLOBALS = {"range", "namespace", "dict", "raise_exception", "strftime_now"}
_ALLOWED_NODES = names_in(
    "Add And Assign AssignBlock Break Call CallBlock Compare Concat CondExpr Const Continue Dict Div ExprStmt Filter "
    "FilterBlock FloorDiv For Getattr Getitem If Keyword List Macro Mod Mul NSRef Name Neg Not Operand Or Output Pair "
    "Pos Slice Sub Template TemplateData Test Tuple With"
)
# Names of the module that jinja's compiled code may use: all are wrapped, or do not look at values.
CODE_GLOBALS = names_in(
    "str str_join LoopContext Macro Markup identity Namespace TemplateRuntimeError Undefined "
    "KeyError internalcode isinstance missing environment"
)


def is_allowed(tree: nodes.Template, environment: jinja2.Environment) -> bool:
    """True if a template consists of what is modelled here: its statements, filters, tests, globals and methods."""
    for node in [tree, *tree.find_all(nodes.Node)]:
        known = type(node).__name__ in _ALLOWED_NODES
        if isinstance(node, nodes.Filter) and node.name == WEIGHED:
            continue
        if isinstance(node, nodes.Filter):
            known = node.name in FILTER_MODELS and node.dyn_args is None and node.dyn_kwargs is None
        elif isinstance(node, nodes.Test):
            known = (node.name in TEST_MODELS or node.name in OPERATING_TESTS) and node.dyn_args is None
            known &= node.dyn_kwargs is None and not node.kwargs
        elif isinstance(node, nodes.Name):
            known = node.name in _ALLOWED_GLOBALS or (node.name not in environment.globals and node.name != "self")
        elif isinstance(node, nodes.Call):
            known = node.dyn_args is None and node.dyn_kwargs is None
            if isinstance(node.node, nodes.Getattr):
                known &= node.node.attr in {*TEXT_METHODS, *DICT_METHODS, *LOOP_METHODS}
            else:
                known &= isinstance(node.node, nodes.Name)
        elif isinstance(node, nodes.Mod):
            # As in `divisible_by`.
            known = isinstance(node.right, nodes.Const) and type(node.right.value) is int
        if not known:
            return False
    return True


def globals_of(code: CodeType) -> Iterator[str]:
    """Names that functions in compiled code take from their module."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from (str(found.argval) for found in dis.get_instructions(constant) if found.opname == "LOAD_GLOBAL")
            yield from globals_of(constant)


class TracingEnvironment(LimitedEnvironment):
    """Runs a template's compiled code on tracers: the hooks that it calls, with tracers modelled."""

    trace: Trace
    hooks: tuple[Any, ...] = ()
    clock: Any

    def adopt(self, other: jinja2.Environment) -> None:
        """Takes filters, tests and globals of the environment that compiled the template."""
        self.globals = other.globals
        filters = {name: other.filters[name] for name in FILTER_MODELS if name in other.filters}
        self.filters = {name: self._filter(name, found) for name, found in filters.items()}
        self.filters[WEIGHED] = weighed
        tests: dict[str, Any] = dict(other.tests)
        self.tests = {name: self._test(name, tests[name]) for name in TEST_MODELS}
        self.tests.update((name, tests[name]) for name in OPERATING_TESTS)
        self.tests["divisibleby"] = divisible_by
        self.callables = tuple(other.globals[name] for name in ("range", "namespace", "dict", "raise_exception"))
        self.clock = other.globals["strftime_now"]
        self.namespace = other.globals["namespace"]

    def _filter(self, name: str, measured: Callable[..., Any]) -> Callable[..., Any]:
        model, passed, function = FILTER_MODELS[name], _PassArg.from_obj(measured), unmeasured(measured)

        def paid(*arguments: Any, **options: Any) -> Any:
            found = run(*arguments, **options)
            self.trace.pay(*(arguments if passed is None else arguments[1:]), *options.values(), found)
            return found

        def run(*arguments: Any, **options: Any) -> Any:
            values = arguments if passed is None else arguments[1:]
            kind, others = type(values[0]), (*values[1:], *options.values())
            if kind is GeneratorType and name in STREAM_CONSUMERS:
                if name == "first" and not others:
                    return function(*arguments)
                values = (list(values[0]), *values[1:])
                arguments = values if passed is None else (arguments[0], *values)
            if name in STREAM_FILTERS:
                if holds_tracers(*others) or kind not in (list, tuple, GeneratorType, type(None), jinja2.Undefined):
                    raise Refusal
                return function(*arguments, **options)
            if not holds_tracers(*values, *others):
                if name == "items":
                    return function(*arguments, **options)
                result = measured(*arguments, **options)
                holds_tracers(result)
                return result
            if name == "items" and len(arguments) == 1 and kind is Tracer and values[0].kind is dict:
                view = view_of(values[0], "items")
                return self.trace.tracer("", None, SingleUseView, view.sources, parts=(iter(view.parts),))
            if name in ("first", "last") and kind in (list, tuple):
                return function(*arguments, **options)
            if model is None:
                raise Refusal
            return model(self.trace, *values, **options)

        if passed is not None:  # `map` looks for it
            paid.jinja_pass_arg = passed  # type: ignore[attr-defined]
        return paid

    def _test(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        model = TEST_MODELS[name]

        def run(value: Any, *arguments: Any) -> Any:
            if type(value) is Tracer and not arguments:
                return model(value)
            if arguments:
                raise Refusal
            if type(value) not in (list, tuple, dict) and name not in ("defined", "undefined", "none"):
                holds_tracers(value)
            return function(value)

        return run

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        return None if type(value) is Tracer else super().wrap_str_format(value)

    def getitem(self, obj: Any, argument: Any) -> Any:
        if type(obj) is not Tracer:
            self._known_owner(obj)
            return super().getitem(obj, argument)
        if obj.kind is dict and type(argument) is str:
            found = looked_up(obj, argument)
            if found:
                return found[0]
            if hasattr(dict, argument):
                raise Refusal
            return self.undefined(obj=obj.real, name=argument)
        if obj.kind in (str, list) and type(argument) is int:
            return self._indexed(obj, argument)
        raise Refusal

    def _indexed(self, owner: Tracer, index: Any) -> Any:
        size = len(owner.real)
        there = -size <= index < size
        bound = f"len({expression_of(owner)}) > {index}" if index >= 0 else f"len({expression_of(owner)}) >= {-index}"
        owner.trace.guard(owner, bound, there)
        return element_of(owner, index) if there else self.undefined(obj=owner.real, name=index)

    def getattr(self, obj: Any, attribute: str) -> Any:
        if type(obj) is not Tracer:
            self._known_owner(obj)
            return super().getattr(obj, attribute)
        if attribute.startswith("_") or obj.kind not in (str, dict):
            raise Refusal
        if hasattr(obj.kind, attribute):
            return UncalledMethod(obj, attribute)
        if obj.kind is str:
            return self.undefined(obj=obj.real, name=attribute)
        found = looked_up(obj, attribute)
        return found[0] if found else self.undefined(obj=obj.real, name=attribute)

    def _known_owner(self, owner: Any) -> None:
        kind = type(owner)
        if kind not in SCALAR_KINDS and kind not in (list, dict, tuple, jinja2.Undefined, LoopContext, self.namespace):
            raise Refusal

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        traced = type(left) is Tracer or type(right) is Tracer
        found = (
            self.binop_table[operator](left, right) if traced else super().call_binop(context, operator, left, right)
        )
        self.trace.pay(left, right, found)
        return found

    def call(self, context: Any, function: Any, /, *arguments: Any, **options: Any) -> Any:
        found = self._called(context, function, *arguments, **options)
        self.trace.pay(*arguments, *options.values(), found)
        return found

    def _called(self, context: Any, function: Any, /, *arguments: Any, **options: Any) -> Any:
        if any(function is hook for hook in self.hooks):
            options.pop("_loop_vars", None)
            options.pop("_block_vars", None)
            return function(*arguments, **options)
        kind = type(function)
        if kind is Macro or kind is LoopContext or kind is jinja2.Undefined:
            return super().call(context, function, *arguments, **options)
        given = {name: value for name, value in options.items() if name not in ("_loop_vars", "_block_vars")}
        if any(function is known for known in self.callables):
            holds_tracers(*arguments, *given.values())
            return super().call(context, function, *arguments, **options)
        if function is self.clock:
            return self._now(arguments, given)
        if kind is UncalledMethod:
            owner = function.owner
            self.trace.pay(owner)
            if owner.kind is str:
                return text_method(self.trace, owner, function.name, arguments, given)
            return dict_method(owner, function.name, arguments, given)
        if kind is MethodType and type(function.__self__) is LoopContext and function.__name__ in LOOP_METHODS:
            holds_tracers(*arguments)
            return super().call(context, function, *arguments, **options)
        if kind is BuiltinMethodType:
            owner = function.__self__
            if type(owner) is str and function.__name__ in TEXT_METHODS:
                if holds_tracers(*arguments, *given.values()):
                    return text_method(self.trace, owner, function.__name__, arguments, given)
                return super().call(context, function, *arguments, **options)
            if type(owner) is dict and function.__name__ in DICT_METHODS:
                return super().call(context, function, *arguments, **options)
        raise Refusal

    def _now(self, arguments: tuple[Any, ...], options: dict[str, Any]) -> str:
        if len(arguments) != 1 or type(arguments[0]) is not str or options:
            raise Refusal
        return str(self.clock(arguments[0]))  # the date is part of the template

    def concat(self, parts: Any) -> Any:
        return self.trace.joined(tuple(parts))

    def text(self, value: Any) -> Any:
        found = as_text(self.trace, value)
        self.trace.pay(found)
        return found

    def joined(self, values: Any) -> Any:
        return self.trace.joined(tuple(as_text(self.trace, value) for value in values))
