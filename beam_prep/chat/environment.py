"""The environment of chat templates: transformers' sandbox, bounded, and the same in every run.

A template is compiled twice: as transformers does it, and so that texts keep their origins. Both give the same text.
The second says where each message is at work, too: by marks of no characters that it writes at the head of each loop,
and behind each loop within it.
"""

import functools
import json
import re
from collections.abc import Callable, Iterable
from datetime import date as Date
from types import BuiltinMethodType, MethodType
from typing import Any

import jinja2
import jinja2.ext
import jinja2.filters
import jinja2.parser
import jinja2.runtime
import jinja2.sandbox
import jinja2.utils
import markupsafe
from jinja2 import nodes

from beam_prep.chat import limits, origins
from beam_prep.chat.clock import Clock
from beam_prep.chat.origins import GENERATION_BEGINS, GENERATION_ENDS, RAW, Node, Nodes, Origin, Text
from beam_prep.errors import TokenizerError

_RAISED_BY_COMPILER = (SyntaxError, ValueError, RecursionError, OverflowError, jinja2.exceptions.SecurityError)
_AT_WORK = "_beam_prep_at_work"
_BEGINS = origins.one("", Origin(GENERATION_BEGINS, None))
_ENDS = origins.one("", Origin(GENERATION_ENDS, None))

RAISED_BY_TEMPLATES = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    AssertionError,
    RuntimeError,
    NameError,
    BufferError,
    StopIteration,
)
"""What a template's own code can raise, by jinja and by its filters. A MemoryError is none of it."""


def compile_template(source: str, date: str | None, traced: bool) -> jinja2.Template:
    """A template as transformers renders it.

    Args:
        source: the template.
        date: the day that `strftime_now` gives, as "2026-11-22".
        traced: its strings keep their origins.

    Raises:
        TokenizerError: it does not compile, or would give another text in another run: it calls `strftime_now`, and
            no date is given, or it uses chance.
    """
    environment = _Traced(date) if traced else _Environment(date)
    try:
        _check_steady(environment.parse(source), date)
        # With a plain dict: every rendering copies it, and jinja's own chain of maps takes ten times as long.
        template = jinja2.Template.from_code(environment, environment.compile(source), dict(environment.globals))
    except jinja2.TemplateSyntaxError as error:
        raise TokenizerError(f"the chat template does not compile: {error.message} (line {error.lineno})") from None
    except _RAISED_BY_COMPILER as error:  # of what jinja computes, and of Python (a NUL, `{% break %}` outside a loop)
        text = error.msg if isinstance(error, SyntaxError) else str(error) or type(error).__name__
        raise TokenizerError(f"the chat template does not compile: {text}") from None
    compiled = template.root_render_func.__globals__
    compiled["str"] = written
    if traced:
        compiled["str_join"] = origins.str_join  # `~`
    return template


def _check_steady(tree: nodes.Template, date: str | None) -> None:
    """Refuses templates that give another text in another run."""
    loaded = {name.name for name in tree.find_all(nodes.Name) if name.ctx == "load"}
    if "strftime_now" in loaded and date is None:
        today = json.dumps(Date.today().isoformat())
        raise TokenizerError(
            "the chat template writes today's date (strftime_now), so another day would give other bytes: add "
            f'"date": {today} to "input" in the config (in a chain written by hand: TextRules(date={today}))'
        )
    chance = ["lipsum"] if "lipsum" in loaded else []
    for node in tree.find_all(nodes.Filter):
        named = [each.value for each in node.args[:1] if node.name == "map" and isinstance(each, nodes.Const)]
        chance += [name for name in (node.name, *named) if name == "random"]
    if chance:
        raise TokenizerError(
            f"the chat template uses {chance[0]}, which gives another text in every run: take it out, or give another "
            "template (input.chat_template)"
        )


def asks_for_date(source: str) -> bool:
    """True if a template calls `strftime_now`, without which it does not say which day it is.

    >>> asks_for_date("{{ strftime_now('%Y') }}"), asks_for_date("{# strftime_now #}")
    (True, False)

    Raises:
        TokenizerError: it does not compile.
    """
    if "strftime_now" not in source:
        return False
    compile_template(source, "2026-01-01", False)
    names = _Environment("2026-01-01").parse(source).find_all(nodes.Name)
    return any(name.name == "strftime_now" and name.ctx == "load" for name in names)


# What templates are given


def written(value: Any) -> str:
    """`str`, of templates."""
    if type(value) is Text or type(value) is str:
        return value
    if type(value) is Node or type(value) is Nodes:
        return origins.one(str(value._raw), value._origin)
    limits.weigh(value)
    text = str(value)
    return text if type(text) is Text else origins.derived(text, (value,))


_ADDRESS = re.compile(" at 0x[0-9a-f]+", re.IGNORECASE)


def without_addresses(text: str) -> str:
    """A message without addresses in memory, which are others in every run, and without names of our own classes."""
    return _ADDRESS.sub(
        "", text.replace(f"{Node.__module__}.Node ", "dict ").replace(f"{Node.__module__}.Text ", "str ")
    )


def check_addresses(text: str, given: Any) -> None:
    """Raises SecurityError if a text holds an address in memory, and what the template was given does not."""
    if (" at 0x" in text or " AT 0X" in text) and _ADDRESS.search(text) and not _ADDRESS.search(str(given)):
        raise jinja2.exceptions.SecurityError(
            "a template writes a function, a method without its brackets, or what a filter has not yet gone through: "
            "its text is an address in memory, another one in every run"
        )


class _Namespace(jinja2.utils.Namespace):
    """Refuses names that begin with an underscore, as transformers does: they are ways out of the sandbox."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, attributes = args[0], dict(*args[1:], **kwargs)
        for name in attributes:
            _Namespace._check(name)  # `self._check` would look among the attributes
        jinja2.utils.Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _Namespace._check(name)
        limits.weigh(value)  # a list in a list in a list doubles with each round
        jinja2.utils.Namespace.__setitem__(self, name, value)

    @staticmethod
    def _check(name: Any) -> None:
        if isinstance(name, str) and name.startswith("_"):
            raise jinja2.exceptions.SecurityError(f"a template cannot set {name!r} on a namespace")


class _DictMaker:
    """`dict(...)` in templates, without the type's own attributes."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args, **kwargs)


def _raise_exception(message: str) -> None:
    raise jinja2.exceptions.TemplateError(without_addresses(written(message)))


_AS_IT_IS = json.JSONEncoder(ensure_ascii=False)


def _json(value: Any, ensure_ascii: bool, indent: Any, separators: Any, sort_keys: bool) -> str:
    if (ensure_ascii, indent, separators, sort_keys) == (False, None, None, False):
        return _AS_IT_IS.encode(value)  # what json.dumps would make anew each time
    limits.expect_growth("indent", "", (indent,))
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _plain_tojson(
    x: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    limits.weigh(x)
    return _json(x, ensure_ascii, indent, separators, sort_keys)


def _tojson(
    x: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    if type(x) is Node or type(x) is Nodes:
        return origins.one(_json(x._raw, ensure_ascii, indent, separators, sort_keys), x._origin)
    limits.weigh(x)
    made = _json(x, ensure_ascii, indent, separators, sort_keys)
    return origins.derived(made, (x,))  # type: ignore[no-any-return]


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` blocks: marks at their borders, which stay in place through macros and blocks."""

    tags = {"generation"}  # noqa: RUF012  (as Extension declares it)

    def parse(self, parser: jinja2.parser.Parser) -> nodes.Node:
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_marked"), [], [], body).set_lineno(lineno)

    def _marked(self, caller: Callable[[], str]) -> str:
        return origins.concat((_BEGINS, caller(), _ENDS))


class _Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """As transformers makes it, with bounds on what a rendering makes."""

    intercepted_binops = frozenset(("+", "-", "*", "**", "%"))

    def __init__(self, date: str | None) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols])
        del self.filters["random"], self.globals["lipsum"]
        for name in limits.FILTERS:
            self.filters[name] = _expecting(name, self.filters[name])
        self.filters |= {"tojson": _plain_tojson, _AT_WORK: _at_work, "string": written}
        self.globals |= {"dict": _DictMaker(), "namespace": _Namespace, "raise_exception": _raise_exception}
        self.globals["strftime_now"] = None if date is None else Clock(date)

    def concat(self, pieces: Iterable[str]) -> str:
        return origins.concat(pieces)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        _mark_loops(tree)
        return tree

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        # Bytes and numbers have methods that make much from little; no template needs them.
        return attr != "encode" and not isinstance(obj, int | float) and super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        made = super().wrap_str_format(value)
        if made is None:
            return None
        text, name = value.__self__, value.__name__

        def format_(*args: Any, **kwargs: Any) -> Any:
            limits.expect_growth(name, text, (*args, *kwargs.values()))
            return made(*args, **kwargs)

        return format_

    def call(self, context: Any, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        kind = type(obj)
        if kind is jinja2.runtime.Macro or kind is jinja2.runtime.LoopContext:
            limits.count_round()
            for value in args:
                limits.weigh(value)
        elif kind is BuiltinMethodType and obj.__name__ in limits.METHODS and isinstance(obj.__self__, str):
            limits.expect_growth(obj.__name__, obj.__self__, (*args, *kwargs.values()))
        return super().call(context, obj, *args, **kwargs)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "+":
            made = left + right
            # A `Text` was bounded when it was made.
            return made if type(made) is Text or type(made) is int else _sum(made)
        limits.expect_operator(operator, left, right)
        made = self._applied(context, operator, left, right)
        if isinstance(made, set | frozenset):
            raise jinja2.exceptions.SecurityError("a template makes a set, whose order is another one in every run")
        return made

    def _applied(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        return super().call_binop(context, operator, left, right)


def _sum(made: Any) -> Any:
    return limits.bounded(made) if isinstance(made, str | list | tuple) else made


_OF_DICT = frozenset(dir(dict))
_OF_TEXT = frozenset(name for name in dir(str) if not name.startswith("_")) - {"format", "format_map"}
_OF_LOOP = {"index", "index0", "first", "last", "length", "previtem", "nextitem", "revindex", "revindex0"}
_FOLLOWED = {
    *(
        "attr",
        "batch",
        "count",
        "d",
        "default",
        "dictsort",
        "first",
        "float",
        "groupby",
        "int",
        "items",
        "last",
        "length",
    ),
    *(
        "list",
        "lower",
        "map",
        "max",
        "min",
        "reject",
        "rejectattr",
        "replace",
        "reverse",
        "round",
        "select",
        "selectattr",
    ),
    *("slice", "sort", "string", "sum", "tojson", "trim", "unique", "upper", "capitalize", "abs", _AT_WORK),
}
"""Filters that take and give single strings by methods of these, or that give no string."""
_MISSING = object()


class _Traced(_Environment):
    """Strings keep their origins. What is read of messages and called on their texts takes a short way."""

    def __init__(self, date: str | None) -> None:
        super().__init__(date)
        self.filters |= {name: _opaque(each) for name, each in self.filters.items() if name not in _FOLLOWED}
        self.filters |= {"join": _join, "tojson": _tojson}

    def getattr(self, obj: Any, attribute: str) -> Any:
        kind = type(obj)
        if kind is Node and attribute not in _OF_DICT:
            value = dict.get(obj, attribute, _MISSING)
            if value is _MISSING:
                return self.undefined(obj=obj, name=attribute)
            return origins.read(obj, attribute, value) if type(value) in RAW else value
        if (kind is Text and attribute in _OF_TEXT) or (kind is jinja2.runtime.LoopContext and attribute in _OF_LOOP):
            return getattr(obj, attribute)
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        if type(obj) is Node and type(argument) is str:
            value = dict.get(obj, argument, _MISSING)
            if value is not _MISSING:
                return origins.read(obj, argument, value) if type(value) in RAW else value
        elif type(obj) is list and type(argument) is int and -len(obj) <= argument < len(obj):
            return obj[argument]
        return super().getitem(obj, argument)

    def wrap_str_format(self, value: Any) -> Callable[..., Any] | None:
        made = super().wrap_str_format(value)
        if made is None or type(value.__self__) is not Text:
            return made
        text = value.__self__
        return lambda *args, **kwargs: origins.derived("".join((made(*args, **kwargs),)), (text, *args, kwargs))

    def call(self, context: Any, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        kind = type(obj)
        if kind is MethodType or kind is BuiltinMethodType:
            owner = obj.__self__
            if type(owner) is Node:
                return obj(*args, **_own(kwargs))
            if type(owner) is Text:
                if obj.__name__ in limits.METHODS:
                    limits.expect_growth(obj.__name__, owner, args)
                return origins.derived(obj(*args, **_own(kwargs)), (owner,))
            if type(owner) is str and obj.__name__ == "join" and len(args) == 1:
                return _joined(owner, args[0])
        result = super().call(context, obj, *args, **kwargs)
        if type(result) is not str or kind is jinja2.runtime.Macro:
            return result
        return origins.derived(result, (getattr(obj, "__self__", None), args, _own(kwargs)))

    def _applied(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        return origins.derived(super()._applied(context, operator, left, right), (left, right))


def _own(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Without what jinja adds."""
    return {key: value for key, value in kwargs.items() if key not in ("_loop_vars", "_block_vars")} if kwargs else {}


def _expecting(name: str, filter_: Any) -> Any:
    """A filter that is not applied where it would make too much."""

    @functools.wraps(filter_)
    def applied(*args: Any, **kwargs: Any) -> Any:
        subject = next((each for each in args if isinstance(each, str | list | tuple)), "")
        limits.expect_growth(name, subject, [each for each in (*args, *kwargs.values()) if each is not subject])
        return filter_(*args, **kwargs)

    return applied


def _opaque(filter_: Any) -> Any:
    """A filter that is not followed: a string that it gives comes from all that it was given."""

    @functools.wraps(filter_)
    def applied(*args: Any, **kwargs: Any) -> Any:
        result = filter_(*args, **kwargs)
        if not isinstance(result, str):
            return result
        derived = origins.derived("".join((result,)), (*args, kwargs))
        return origins.safe(derived) if isinstance(result, markupsafe.Markup) else derived

    return applied


def _joined(separator: str, values: Iterable[Any]) -> str:
    values = list(values)
    limits.expect_growth("join", separator, (values,))
    return origins.joined(separator, values) if Text in map(type, values) else separator.join(values)


@jinja2.pass_environment
def _join(environment: Any, value: Any, d: str = "", attribute: Any = None) -> str:
    if attribute is not None:
        value = map(jinja2.filters.make_attrgetter(environment, attribute), value)
    return _joined(written(d), map(written, value))


# Marks in the syntax tree


@functools.cache
def _mark_of(index: int) -> Text:
    return origins.one("", Origin(index, None))


@jinja2.pass_context  # else jinja would compute it once, when it compiles
def _at_work(_: jinja2.runtime.Context, value: Any) -> str:
    """Counts a round of a loop; where its variable is a message, a mark of that."""
    limits.count_round()
    return _mark_of(value._origin.index) if origins.is_message(value) else ""


def _mark_loops(node: nodes.Node, around: str = "") -> None:
    """Marks which message is at work: at the head of each loop's body, and again behind each loop within it."""
    for _, value in node.iter_fields():
        if isinstance(value, list):
            marked: list[Any] = []
            for child in value:
                marked.append(child)
                if not isinstance(child, nodes.Node):
                    continue
                if not isinstance(child, nodes.For):
                    _mark_loops(child, around)
                    continue
                inner = child.target.name if isinstance(child.target, nodes.Name) else around
                _mark_loops(child, inner)
                child.body.insert(0, _mark(inner, child.lineno))
                if around:
                    marked.append(_mark(around, child.lineno))
            value[:] = marked
        elif isinstance(value, nodes.Node):
            _mark_loops(value, around)


def _mark(name: str, line: int) -> nodes.Output:
    variable = nodes.Name(name, "load", lineno=line) if name else nodes.Const("", lineno=line)
    return nodes.Output([nodes.Filter(variable, _AT_WORK, [], [], None, None, lineno=line)], lineno=line)
