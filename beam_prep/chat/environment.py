"""The environment of chat templates: transformers' sandbox, with limits, and with the same result in every run.

Texts of messages keep their origins; other values are plain jinja values. The template also shows which message it is
rendering: it writes marks, of no characters, at the head of each loop, and behind each loop within that loop.
"""

import functools
import json
import re
from collections.abc import Callable, Iterable
from datetime import date as Date
from datetime import datetime
from types import BuiltinMethodType, MethodType
from typing import Any

import jinja2
import jinja2.ext
import jinja2.filters
import jinja2.parser
import jinja2.runtime
import jinja2.sandbox
import jinja2.utils
import jinja2.visitor
from jinja2 import nodes

from beam_prep.chat import limits, origins
from beam_prep.chat.origins import ASKED, GENERATION_BEGINS, GENERATION_ENDS, Node, Nodes, Origin, Text, asking
from beam_prep.errors import TokenizerError

_RAISED_BY_COMPILER = (SyntaxError, ValueError, RecursionError, OverflowError, jinja2.exceptions.SecurityError)
_MARK_FILTER, _SUM_FILTER = "_beam_prep_at_work", "_beam_prep_sum"
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
"""Errors that a template's own code can raise, through jinja and its filters. A MemoryError is not one of them."""


def compile_template(source: str, date: str | None) -> jinja2.Template:
    """A template as transformers renders it.

    Args:
        source: the template.
        date: the day for `strftime_now`, such as "2026-11-22".

    Raises:
        TokenizerError: the template does not compile, or calls `strftime_now` without a date.
    """
    environment = _Environment(date)
    try:
        if date is None and "strftime_now" in _loaded(environment.parse(source)):
            today = json.dumps(Date.today().isoformat())
            raise TokenizerError(
                "the chat template writes today's date (strftime_now), so another day would give other bytes: add "
                f'"date": {today} to "input" in the config (in a chain written by hand: TextRules(date={today}))'
            )
        # With a plain dict: every rendering copies it, and jinja's own chain of maps takes ten times as long.
        template = jinja2.Template.from_code(environment, environment.compile(source), dict(environment.globals))
    except jinja2.TemplateSyntaxError as error:
        raise TokenizerError(f"the chat template does not compile: {error.message} (line {error.lineno})") from None
    except _RAISED_BY_COMPILER as error:  # jinja's constant folding, or Python (a NUL, `{% break %}` outside a loop)
        text = error.msg if isinstance(error, SyntaxError) else str(error) or type(error).__name__
        raise TokenizerError(f"the chat template does not compile: {text}") from None
    template.root_render_func.__globals__.update(str=written, str_join=_tilde)
    return template


def _loaded(tree: nodes.Template) -> set[str]:
    """The names that a template reads."""
    return {name.name for name in tree.find_all(nodes.Name) if name.ctx == "load"}


def asks_for_date(source: str) -> bool:
    """True if a template calls `strftime_now`, so that it needs a date.

    >>> asks_for_date("{{ strftime_now('%Y') }}"), asks_for_date("{# strftime_now #}")
    (True, False)

    Raises:
        TokenizerError: the template does not compile.
    """
    return "strftime_now" in _loaded(compile_template(source, "2026-01-01").environment.parse(source))


# Functions that templates call


def written(value: Any) -> str:
    """`str` for templates."""
    if type(value) is Text or type(value) is str:
        return value
    if isinstance(value, MethodType | BuiltinMethodType):
        raise jinja2.exceptions.SecurityError(_ADDRESS_WRITTEN)
    limits.weigh(value)
    text = str(value)
    return text if type(text) is Text else origins.derived(text, (value,))


def _tilde(values: Iterable[Any]) -> str:
    """The operator `~`."""
    return origins.concat(map(written, values))


_ADDRESS = re.compile(" at 0x[0-9a-f]+", re.IGNORECASE)


def without_addresses(text: str) -> str:
    """A message without memory addresses, which differ in every run, and without names of our own classes."""
    for kind, known in ((Node, "dict"), (Nodes, "list"), (Text, "str")):
        text = text.replace(f"{kind.__module__}.{kind.__name__} ", f"{known} ")
        text = text.replace(f"'{kind.__name__}' object", f"'{known}' object")
        text = text.replace(f'(not "{kind.__name__}")', f'(not "{known}")')
    return _ADDRESS.sub("", text)


_ADDRESS_WRITTEN = (
    "a template writes a function, a method without its brackets, or a filter that is not iterated yet: "
    "its text is a memory address, which differs in every run"
)


def check_addresses(text: str, given: Any) -> None:
    """Raises SecurityError if a text holds a memory address that the template's input does not hold."""
    if (" at 0x" in text or " AT 0X" in text) and _ADDRESS.search(text) and not _ADDRESS.search(str(given)):
        raise jinja2.exceptions.SecurityError(_ADDRESS_WRITTEN)


class _Namespace(jinja2.utils.Namespace):
    """Refuses names that begin with an underscore, as transformers does: they would leave the sandbox."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, attributes = args[0], dict(*args[1:], **kwargs)
        for name in attributes:
            _Namespace._check(name)  # `self._check` would be looked up among the attributes
        jinja2.utils.Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _Namespace._check(name)
        limits.weigh(value)  # a nested list may double in each round
        jinja2.utils.Namespace.__setitem__(self, name, value)

    @staticmethod
    def _check(name: Any) -> None:
        if isinstance(name, str) and name.startswith("_"):
            raise jinja2.exceptions.SecurityError(f"a template cannot set {name!r} on a namespace")


class _DictMaker:
    """`dict(...)` for templates, without the type's own attributes."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args, **kwargs)


def _raise_exception(message: str) -> None:
    raise jinja2.exceptions.TemplateError(without_addresses(written(message)))


# json.dumps would make a new encoder each time. Templates cannot make circular values.
json_of = json.JSONEncoder(ensure_ascii=False, check_circular=False).encode
"""The JSON of a value, as `tojson` without arguments writes it."""


def _tojson(
    x: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    raw = x._raw if isinstance(x, Node | Nodes) else x
    if (ensure_ascii, indent, separators, sort_keys) == (False, None, None, False):
        if raw is x:
            limits.weigh(x)
        made = json_of(raw)
    else:
        limits.expect_growth("tojson", raw, indent, separators)
        made = json.dumps(raw, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    return origins.one(made, x._origin) if raw is not x else origins.derived(made, (x,))


def _strftime(day: str) -> Callable[[str], str]:
    midnight = datetime.fromisoformat(day)

    def strftime_now(form: str) -> str:
        limits.expect(256 * len(form))  # the most that Python may make of it
        return midnight.strftime(form)

    return strftime_now


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` blocks: writes marks at their borders, which stay in place through macros and blocks."""

    tags = {"generation"}  # noqa: RUF012  (as Extension declares it)

    def parse(self, parser: jinja2.parser.Parser) -> nodes.Node:
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_marked"), [], [], body).set_lineno(lineno)

    def _marked(self, caller: Callable[[], str]) -> str:
        return origins.concat((_BEGINS, caller(), _ENDS))


_ABSENT = object()
_OF_NODE = frozenset(dir(Node))
_OF_LOOP = frozenset(("first", "last", "index", "index0"))
"""What templates read most is found without jinja's search for an attribute, which takes a fifth of a rendering."""
_MOST_ATTRIBUTES = 1000
"""Attributes for which the sandbox's answer is kept."""


class _Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """The environment that transformers makes, with limits on a rendering, and with strings that keep their origins."""

    intercepted_binops = frozenset(("+", "-", "*", "**", "%"))

    def __init__(self, date: str | None) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols])
        self._safe = dict[tuple[type, str], bool]()
        del self.filters["random"], self.globals["lipsum"]  # they differ in every run
        self.filters = {name: _bounded(name, each) for name, each in self.filters.items()}
        self.filters |= {"tojson": _tojson, "string": written, "join": _join}
        self.filters |= {_MARK_FILTER: _mark_message, _SUM_FILTER: _sum}
        self.tests = {name: each if name in _TESTS else asking(each) for name, each in self.tests.items()}
        self.globals |= {"dict": _DictMaker(), "namespace": _Namespace, "raise_exception": _raise_exception}
        self.globals["strftime_now"] = None if date is None else _strftime(date)

    def concat(self, pieces: Iterable[str]) -> str:
        return origins.concat(pieces)

    def getitem(self, obj: Any, argument: Any) -> Any:
        if type(obj) is Node and type(argument) is str:
            value = dict.get(obj, argument, _ABSENT)
            if value is not _ABSENT:
                return origins.read(obj, argument, value) if type(value) in origins.RAW else value
            if argument not in _OF_NODE:
                return self.undefined(obj=obj, name=argument)
        if Text in (type(obj), type(argument)):
            ASKED.anything()
        return super().getitem(obj, argument)

    def getattr(self, obj: Any, attribute: str) -> Any:
        if type(obj) is Node and attribute not in _OF_NODE:
            return self.getitem(obj, attribute)
        if type(obj) is jinja2.runtime.LoopContext and attribute in _OF_LOOP:
            return getattr(obj, attribute)
        return super().getattr(obj, attribute)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        return _Marks().visit(super()._parse(source, name, filename))  # type: ignore[no-any-return]

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        asked = type(obj), attr  # jinja looks at nothing else, and takes a tenth of a rendering for it
        if asked not in self._safe:
            # Methods of numbers can make large results from small input; no template needs them.
            known = attr not in limits.REFUSED and not _is_number(obj)
            if len(self._safe) >= _MOST_ATTRIBUTES:
                self._safe.clear()  # names of attributes come from records, so there may be many
            self._safe[asked] = known and super().is_safe_attribute(obj, attr, value)
        return self._safe[asked]

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        made = super().wrap_str_format(value)
        if made is None:
            return None
        text = value.__self__

        def format_(*args: Any, **kwargs: Any) -> Any:
            limits.expect_growth("%", text, *args, *kwargs.values())
            return origins.formatted(text, args, kwargs, made)

        return format_

    def call(self, context: Any, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        if isinstance(obj, jinja2.runtime.Macro | jinja2.runtime.LoopContext):
            limits.count_round()
            for value in args:
                limits.weigh(value)
            return super().call(context, obj, *args, **kwargs)
        owner = getattr(obj, "__self__", None)
        if isinstance(owner, str):
            if obj.__name__ == "join" and len(args) == 1 and not isinstance(owner, origins.Safe):
                return origins.joined(owner, args[0])
            if obj.__name__ in limits.GROWING:
                limits.expect_growth(obj.__name__, owner, *args)
            _note_call(owner, obj.__name__, args)
        made = super().call(context, obj, *args, **kwargs)
        if type(owner) is Text and isinstance(made, list | tuple):
            return type(made)([each if type(each) is Text else origins.derived(each, (owner,)) for each in made])
        return made if type(made) is Text or type(owner) is Node else origins.derived(made, (owner, args))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "+":
            made = left + right
        else:
            if Text in (type(left), type(right)):
                ASKED.anything()
            if operator == "**" or not (_is_number(left) and _is_number(right)):
                limits.expect_growth(operator, left, *(right if isinstance(right, tuple) else (right,)))
            if operator == "%" and isinstance(left, str) and not isinstance(left, origins.Safe):
                given = right if isinstance(right, tuple) else (right,)
                return origins.formatted(left, given, {}, lambda *args: left % (args if given is right else args[0]))
            made = self.binop_table[operator](left, right)
        kind = type(made)
        if kind is Text:  # its size was checked when it was made
            return made
        if kind is int:
            limits.expect(made.bit_length(), limits.MAX_BITS)
        elif kind is list or kind is tuple or (kind is str and operator == "+"):
            limits.bounded(made)
        elif kind is set:
            raise jinja2.exceptions.SecurityError("a template makes a set, whose order differs in every run")
        elif isinstance(made, str):
            return origins.sum_of_markup(left, right) if operator == "+" else origins.derived(made, (left, right))
        return made


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


_OF_MANY = frozenset("items join list length count first last map select reject selectattr rejectattr".split())
"""Filters that ask nothing of texts within a list or an object."""
_ASKS_NOTHING = frozenset(("default", "d", "string", "tojson", "trim", _MARK_FILTER, _SUM_FILTER))
_TESTS = frozenset(
    "defined undefined none string mapping sequence iterable boolean true false number integer float callable "
    "eq equalto == ne != odd even".split()
)
"""Tests that ask nothing of a text, or compare it, which the text notes itself."""


def _note_call(owner: str, name: str, args: tuple[Any, ...]) -> None:
    """Notes what a method of a text, or a constant's method of a text, asks."""
    if type(owner) is not Text:
        if not {*map(type, args)} <= {str, int, origins.Constant}:
            ASKED.anything()
    elif name not in ("strip", "lstrip", "rstrip"):
        if args and isinstance(args[0], str | tuple):
            ASKED.constants(*args)
        else:
            ASKED.anything()


def _bounded(name: str, filter_: Any) -> Any:
    """The filter, with a check of the size of its result before it is applied.

    A string result comes from all arguments, unless it has origins of its own. A default is the template's own text.
    """

    @functools.wraps(filter_)
    def applied(*args: Any, **kwargs: Any) -> Any:
        if Text in map(type, args[:2]) if name in _OF_MANY else name not in _ASKS_NOTHING:
            ASKED.anything()
        if name in limits.GROWING:
            limits.expect_growth(name, *args, *kwargs.values())
        if name == "format":
            return origins.formatted(args[0], args[1:], kwargs, functools.partial(filter_, args[0]))
        result = filter_(*args, **kwargs)
        is_known = type(result) is Text or name in ("default", "d")
        return result if is_known else origins.derived(result, (args, kwargs))

    return applied


@jinja2.pass_environment
def _join(environment: Any, value: Any, d: str = "", attribute: Any = None) -> str:
    if attribute is not None:
        value = map(jinja2.filters.make_attrgetter(environment, attribute), value)
    return origins.joined(written(d), map(written, value))


@jinja2.pass_environment
def _sum(environment: Any, *summands: Any) -> Any:
    """The operator `+` between two or more values."""
    parts: list[origins.Part] = []
    constant = True
    for each in summands:
        kind = type(each)
        if kind is Text:
            parts += each._parts
            constant = False
        elif kind is str or kind is origins.Constant:
            parts.append((each, None))
        else:
            return functools.reduce(functools.partial(environment.call_binop, None, "+"), summands)
    text = limits.bounded("".join(summands))
    return text if constant else origins.text_of(text, tuple(parts))


# Marks and sums in the syntax tree


@functools.cache
def _mark_of(index: int) -> Text:
    return origins.one("", Origin(index, None))


@jinja2.pass_context  # otherwise jinja would compute the result once, at compile time
def _mark_message(_: jinja2.runtime.Context, value: Any) -> str:
    """Counts a round of a loop. Returns a mark of the message if the loop's variable is one, otherwise ""."""
    limits.count_round()
    return _mark_of(value._origin.index) if origins.is_message(value) else ""


class _Marks(jinja2.visitor.NodeTransformer):
    """Inserts the marks: at the head of each loop's body, and again behind each loop within that body."""

    _around = ""

    def visit_For(self, loop: nodes.For) -> list[nodes.Node]:
        around = self._around
        self._around = loop.target.name if isinstance(loop.target, nodes.Name) else around
        self.generic_visit(loop)
        loop.body.insert(0, _mark(self._around, loop.lineno))
        self._around = around
        return [loop, _mark(around, loop.lineno)] if around else [loop]

    def visit_Add(self, add: nodes.Add) -> nodes.Filter:
        """All summands of a sum at once: a sum of texts would otherwise be copied for each summand."""
        self.generic_visit(add)
        left = add.left
        first, summands = (
            (left.node, left.args) if isinstance(left, nodes.Filter) and left.name == _SUM_FILTER else (left, [])
        )
        return nodes.Filter(first, _SUM_FILTER, [*summands, add.right], [], None, None, lineno=add.lineno)


def _mark(name: str, line: int) -> nodes.Output:
    variable = nodes.Name(name, "load", lineno=line) if name else nodes.Const("", lineno=line)
    return nodes.Output([nodes.Filter(variable, _MARK_FILTER, [], [], None, None, lineno=line)], lineno=line)
