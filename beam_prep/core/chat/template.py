"""Chat templates, rendered as transformers renders them: same sandbox, same extensions, same filters.

Our own environment instead of `apply_chat_template`, so that a worker needs jinja2 alone (transformers takes more
than a second to import) and a template is compiled once. `tests/core/chat/test_template.py` holds both against each
other on every template at hand.
"""

import functools
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date as Date
from types import BuiltinMethodType, CodeType, FunctionType, MethodType
from typing import Any

import jinja2
import jinja2.ext
import jinja2.parser
import jinja2.sandbox
import jinja2.utils
from jinja2 import nodes
from jinja2.runtime import BlockReference

from beam_prep.core.chat.recorded import plans as render_plan
from beam_prep.core.chat.recorded.plans import Layout, Planned, Plans, Rendered
from beam_prep.core.data.block import Reject
from beam_prep.errors import TokenizerError

Message = dict[str, Any]

# What data can make a template's own code raise. Anything else is a defect of ours and ends the run.
_RAISED_BY_TEMPLATES = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)
_REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")


_MARK, _ENTER, _LEAVE, _SPAN = (f"_beam_prep_{name}" for name in ("mark", "enter", "leave", "generation"))
FENCES = "\ufdd0", "\ufdd1"
"""What stands for the places of contents and generation blocks in a rendering that is asked for them."""
_NUMBERED = re.compile("([\ufdd0\ufdd1])(.)", re.DOTALL)  # a fence, and a character that stands for a message
_NUMBERS = 0xF0000
_CAPTURES = (nodes.AssignBlock, nodes.Macro, nodes.FilterBlock, nodes.CallBlock)
_NOBODY = -1


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` blocks give their content, and report where it lies."""

    tags = {"generation"}  # noqa: RUF012  (as Extension declares it)

    def parse(self, parser: jinja2.parser.Parser) -> nodes.Node:
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        call = nodes.Call(nodes.Name(_SPAN, "load"), [], [], None, None)
        return nodes.CallBlock(call, [], [], body).set_lineno(lineno)


@dataclass(slots=True)
class _Tracker:
    """What one rendering reports while it runs.

    Attributes:
        places: id of a message -> its index.
        fenced: generation blocks are put between fences, since their text is captured before it is written.
        written: characters written so far.
        blind: a loop whose text is captured came to a message: what is written for which is not known.
        marks: (characters written, message) whenever a loop comes to a message, or ends (then `_NOBODY`, or the
            message of the loop around it).
        outer: the messages of the loops around the present one.
        generations: (first character, one past the last) of each generation block.
    """

    places: dict[int, int]
    fenced: bool = False
    written: int = 0
    blind: bool = False
    marks: list[tuple[int, int]] = field(default_factory=list)
    outer: list[int] = field(default_factory=list)
    generations: list[tuple[int, int]] = field(default_factory=list)

    @property
    def place(self) -> int:
        return self.marks[-1][1] if self.marks else _NOBODY

    def mark(self, item: Any, captured: bool) -> None:
        place = self.places.get(id(item))
        if place is not None:
            self.marks.append((self.written, place))
            self.blind |= captured

    def enter(self) -> None:
        self.outer.append(self.place)

    def leave(self) -> None:
        place = self.outer.pop()
        if place != self.place:
            self.marks.append((self.written, place))

    def generation(self, caller: Any) -> str:
        text = str(caller())
        self.generations.append((self.written, self.written + len(text)))
        return FENCES[0] + text + FENCES[1] if self.fenced else text


def _ignore(*_: Any) -> None:
    """A loop begins, ends, or comes to an item, and nobody asks."""


def _say(caller: Any) -> Any:
    return caller()


@dataclass(frozen=True, slots=True)
class RenderedChat:
    """A conversation as text, and where its parts lie (in characters).

    Attributes:
        text: the whole rendering.
        regions: per message, the range that the template wrote for it, header and end marker included; None where
            that is not known for certain.
        generations: ranges of the `{% generation %}` blocks; None where they could not be told for certain.
        guessed: the first region is what was written before all others, in no message's turn.
        planned: the same in pieces, where a plan rendered it.
    """

    text: str
    regions: list[tuple[int, int] | None]
    generations: list[tuple[int, int]] | None
    guessed: bool = False
    planned: Planned | None = field(default=None, compare=False)


class _Namespace(jinja2.utils.Namespace):
    """Refuses names that begin with an underscore, as transformers does: they are ways out of the sandbox."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, attributes = args[0], dict(*args[1:], **kwargs)
        for name in attributes:
            _Namespace._check(name)  # `self._check` would look among the attributes
        jinja2.utils.Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _Namespace._check(name)
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


class _Unwritten:
    """What templates use and cannot write."""

    __slots__ = ()
    __str__ = __repr__ = __format__ = _refuse_text


class _Callable(_Unwritten):
    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)


class _Stream(_Unwritten):
    __slots__ = ("_items",)

    def __init__(self, items: Iterator[Any]) -> None:
        self._items = items

    def __iter__(self) -> Iterator[Any]:
        return self._items


class _Cycler(_Unwritten, jinja2.utils.Cycler):
    pass


class _Joiner(_Unwritten, jinja2.utils.Joiner):
    pass


_ADDRESSED = {BuiltinMethodType, MethodType, FunctionType, BlockReference}
_LAZY = ("map", "select", "reject", "selectattr", "rejectattr", "unique", "batch", "slice", "items", "reverse")
"""Filters that give iterators."""


def _sealed(function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter whose iterators cannot be written. `unsealed` is the filter itself."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        found = function(*args, **kwargs)
        return _Stream(found) if isinstance(found, Iterator) else found

    run.unsealed = function  # type: ignore[attr-defined]
    return run


class _Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """The sandbox, without what gives another text in another run: addresses, and the order of sets."""

    intercepted_binops = frozenset("-")

    def getattr(self, obj: Any, attribute: str) -> Any:
        found = super().getattr(obj, attribute)
        return _Callable(found) if type(found) in _ADDRESSED else found

    def getitem(self, obj: Any, argument: Any) -> Any:
        found = super().getitem(obj, argument)
        return _Callable(found) if type(found) in _ADDRESSED else found

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        found = super().call_binop(context, operator, left, right)
        if isinstance(found, set | frozenset):
            raise jinja2.exceptions.SecurityError("a template makes a set, whose order is another one in every run")
        return found


class _Dict(_Unwritten):
    """`dict(...)` in templates, without the type's own attributes."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args, **kwargs)


def _raise_exception(message: str) -> None:
    raise jinja2.exceptions.TemplateError(str(message))


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip
_COMPOUND = {
    "c": "%a %b %e %H:%M:%S %Y", "D": "%m/%d/%y", "F": "%Y-%m-%d", "h": "%b", "r": "%I:%M:%S %p", "R": "%H:%M",
    "T": "%H:%M:%S", "x": "%m/%d/%y", "X": "%H:%M:%S",
}  # fmt: skip
_DIRECTIVE = re.compile("%([-_0^]?)(.)", re.DOTALL)


class _Clock(_Unwritten):
    """`strftime_now` that stands at the midnight of one day.

    As `strftime` in English, but by no locale, time zone or C library: on every machine the same.
    """

    def __init__(self, day: str) -> None:
        self._day = Date.fromisoformat(day)

    def __call__(self, form: str) -> str:
        return _DIRECTIVE.sub(self._written, form)

    def _written(self, found: re.Match[str]) -> str:
        flag, letter = found.groups()
        if letter in _COMPOUND:
            text = self(_COMPOUND[letter])
        elif letter in (numbers := self._numbers()):
            number, width = numbers[letter]
            fill = {"-": "", "_": " ", "0": "0"}.get(flag, " " if letter in "ekl" else "0")
            text = str(number).rjust(width, fill) if fill else str(number)
        else:
            texts = self._texts()
            if letter not in texts:
                raise ValueError(f"strftime_now: {found[0]!r} is not the same on every machine, or nothing")
            text = texts[letter]
        return text.upper() if flag == "^" else text

    def _numbers(self) -> dict[str, tuple[int, int]]:
        """Directives that are numbers: (number, width)."""
        day = self._day
        year, week, weekday = day.isocalendar()
        of_year = day.timetuple().tm_yday
        return {
            "C": (day.year // 100, 2), "d": (day.day, 2), "e": (day.day, 2), "f": (0, 6), "g": (year % 100, 2),
            "G": (year, 4), "H": (0, 2), "I": (12, 2), "j": (of_year, 3), "k": (0, 2), "l": (12, 2), "M": (0, 2),
            "m": (day.month, 2), "S": (0, 2), "u": (weekday, 1), "U": ((of_year + 6 - weekday % 7) // 7, 2),
            "V": (week, 2), "w": (weekday % 7, 1), "W": ((of_year + 7 - weekday) // 7, 2), "y": (day.year % 100, 2),
            "Y": (day.year, 4),
        }  # fmt: skip

    def _texts(self) -> dict[str, str]:
        day, month = _DAYS[self._day.weekday()], _MONTHS[self._day.month - 1]
        names = {"a": day[:3], "A": day, "b": month[:3], "B": month, "p": "AM", "P": "am"}
        return {**names, "n": "\n", "t": "\t", "z": "", "Z": "", "%": "%"}


@dataclass(frozen=True, slots=True)
class _Compiled:
    """A compiled template: `generation` = it has generation blocks, `captured` = some are inside a capture or macro."""

    tree: nodes.Template
    code: CodeType
    template: jinja2.Template
    generation: bool
    captured: bool


@functools.lru_cache(maxsize=16)
def _compile(source: str, date: str | None) -> _Compiled:
    environment = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols])
    del environment.filters["random"]
    environment.filters.update({name: _sealed(environment.filters[name]) for name in _LAZY}, tojson=_tojson)
    environment.globals = {
        "range": _Callable(jinja2.sandbox.safe_range),
        "cycler": _Cycler,
        "joiner": _Joiner,
        "dict": _Dict(),
        "namespace": _Namespace,
        "raise_exception": _Callable(_raise_exception),
        "strftime_now": _Callable(_no_date) if date is None else _Clock(date),
    }
    try:
        tree = environment.parse(source)
        _check_steady(tree, date)
        _mark_loops(tree)
        tree.set_environment(environment)
        code = environment.compile(tree)
    except jinja2.TemplateSyntaxError as error:
        raise TokenizerError(f"the chat template does not compile: {error.message} (line {error.lineno})") from None
    except jinja2.exceptions.SecurityError as error:  # raised by what jinja computes when it compiles
        raise TokenizerError(f"the chat template does not compile: {error}") from None
    # A plain dict: every rendering copies it, and jinja's own chain of maps takes ten times as long.
    template = jinja2.Template.from_code(environment, code, dict(environment.globals))
    blocks = list(_generation_blocks(tree))
    captured = {
        id(block) for outer in tree.find_all(_CAPTURES) for block in _generation_blocks(outer) if block is not outer
    }
    return _Compiled(tree, code, template, bool(blocks), any(id(block) in captured for block in blocks))


def _no_date(*_: Any) -> Any:
    raise jinja2.exceptions.SecurityError("strftime_now without a date")


def _check_steady(tree: nodes.Template, date: str | None) -> None:
    """Refuses what gives another text in another run."""
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


def _mark_loops(tree: nodes.Template) -> None:
    """Every loop tells the tracker what it comes to, first thing in its body, and when it begins and ends.

    Nothing that is written changes.
    """
    captured = {id(loop) for outer in tree.find_all(_CAPTURES) for loop in outer.find_all(nodes.For)}
    for parent in [tree, *tree.find_all(nodes.Node)]:  # a list: what is put in is not visited
        for _, statements in parent.iter_fields():
            if isinstance(statements, list) and any(isinstance(node, nodes.For) for node in statements):
                statements[:] = [node for statement in statements for node in _fenced_loop(statement)]
    for loop in tree.find_all(nodes.For):
        if isinstance(loop.target, nodes.Name):
            item = nodes.Name(loop.target.name, "load")
            loop.body.insert(0, _call(_MARK, loop.lineno, item, nodes.Const(id(loop) in captured)))


def _fenced_loop(statement: nodes.Node) -> list[nodes.Node]:
    if not isinstance(statement, nodes.For):
        return [statement]
    return [_call(_ENTER, statement.lineno), statement, _call(_LEAVE, statement.lineno)]


def _call(name: str, lineno: int, *args: nodes.Expr) -> nodes.Node:
    return nodes.ExprStmt(nodes.Call(nodes.Name(name, "load"), list(args), [], None, None)).set_lineno(lineno)


def _generation_blocks(tree: nodes.Node) -> Iterator[nodes.CallBlock]:
    for block in tree.find_all(nodes.CallBlock):
        if isinstance(block.call.node, nodes.Name) and block.call.node.name == _SPAN:
            yield block


class ChatTemplate:
    """A compiled chat template with the tokenizer's named special tokens.

    Args:
        source: the template.
        special_tokens: by their names in templates.
        plans: render conversations of known patterns by recorded plans: the same texts, faster (`core.chat.recorded`).
        date: the day that `strftime_now` tells, as "2026-11-22".

    Attributes:
        rendered_by_plan, rendered_by_jinja: how many conversations came from which.
        frames: what `conversation` knows of the template, by its variables.

    Raises:
        TokenizerError: the template has a syntax error, or what it writes would differ from run to run: it calls
            `strftime_now`, and no date is given; or it draws lots.
    """

    def __init__(
        self, source: str, special_tokens: Mapping[str, str], plans: bool = False, date: str | None = None
    ) -> None:
        self._compiled = _compile(source, date)
        self._tokens = dict(special_tokens)
        self._prompts: dict[str, str] = {}
        self._tracer = self._new_plans(source)
        self._plans = self._tracer if plans else None
        self.frames: dict[str, Any] = {}
        self._ways: dict[Any, dict[int, list[Planned]]] = {}
        self.rendered_by_plan = self.rendered_by_jinja = 0

    @property
    def has_generation(self) -> bool:
        """Whether the template marks what the assistant says with `{% generation %}` blocks."""
        return self._compiled.generation

    @functools.cached_property
    def words(self) -> list[str]:
        """Short texts of its source that are no markup: what it may ask contents for."""
        found = {node.value for node in self._compiled.tree.find_all(nodes.Const) if isinstance(node.value, str)}
        return sorted(
            word for word in found if 0 < len(word) <= 20 and word.strip() and not set(word) & set("<>[]{}|%")
        )

    @property
    def tokens(self) -> Mapping[str, str]:
        """The special tokens that it is given: name -> text."""
        return self._tokens

    # Variables may come from data: `/` leaves all names to them.

    def render(self, messages: list[Message], /, add_generation_prompt: bool = False, **variables: Any) -> str:
        """The conversation as text.

        Args:
            messages: role, content and whatever else the template reads.
            add_generation_prompt: end with what comes before an answer.
            variables: `tools`, and whatever the template takes besides.

        Raises:
            Reject: `template_error`: the template refuses the messages, or fails on them.
        """
        variables = {**variables, "add_generation_prompt": add_generation_prompt}
        planned = self._plans.render(messages, variables) if self._plans is not None else None
        if planned is not None:
            self.rendered_by_plan += 1
            return "".join(planned.pieces)
        self.rendered_by_jinja += 1
        return self._run([plain(message) for message in messages], None, variables)

    def planned(
        self, messages: list[Message], /, add_generation_prompt: bool = False, **variables: Any
    ) -> Planned | None:
        """The conversation in pieces, where there is a plan for it.

        Returns:
            None where plans are switched off, or none fits: then `render` and `render_chat` ask jinja. `generations`
            of its layout are None where the template's generation blocks cannot be told from a plan.
        """
        if self._plans is None:
            return None
        planned = self._plans.render(messages, {**variables, "add_generation_prompt": add_generation_prompt})
        self.rendered_by_plan += planned is not None
        return planned

    def settled(self, messages: list[Message], uses: int) -> Layout | None:
        """The layout of all conversations with the roles and keys of this one: see `Plans.settled`."""
        return None if self._plans is None else self._plans.settled(messages, uses)

    def render_chat(self, messages: list[Message], /, **variables: Any) -> RenderedChat:
        """The conversation as text, in one rendering, with the places of its messages and generation blocks.

        Raises:
            Reject: `template_error`.
        """
        variables = {**variables, "add_generation_prompt": False}
        planned = self._plans.render(messages, variables) if self._plans is not None else None
        chat = self.chat_of(planned) if planned is not None else None
        if chat is not None:
            self.rendered_by_plan += 1
            return chat
        self.rendered_by_jinja += 1
        given = [plain(message) for message in messages]
        rendered = self._marked(given, variables)
        if self._compiled.captured:
            fenced = self._run(given, _Tracker({}, fenced=True), variables)
            rendered = rendered._replace(generations=_unfence(fenced, rendered.text))
        return self._chat(rendered, len(messages))

    def chat_of(self, planned: Planned) -> RenderedChat | None:
        """A planned conversation as `render_chat` gives it; None where its generation blocks cannot be told."""
        if planned.layout.generations is None:
            return None
        return self._chat(render_plan.in_characters(planned), planned.layout.messages, planned)

    def _chat(self, rendered: Rendered, messages: int, planned: Planned | None = None) -> RenderedChat:
        text, marks, generations, blind = rendered
        if blind:
            return RenderedChat(text, [None] * messages, generations, planned=planned)
        regions = _regions(marks, messages, text, self._tokens.values())
        guess = _guess(regions, len(text))
        if guess is None:
            return RenderedChat(text, regions, generations, planned=planned)
        return RenderedChat(text, [guess, *regions[1:]], generations, guessed=True, planned=planned)

    def provenance(self, messages: list[Message], text: str | None, /, **variables: Any) -> Planned | None:
        """The rendering in pieces, each with what it is computed from.

        Args:
            messages: the messages.
            text: what jinja gives for them, where it is known.
            variables: see `render`.

        Returns:
            None where the template does something that is not modelled, or the pieces are not this text.
        """
        planned = self._tracer.provenance(messages, {**variables, "add_generation_prompt": False})
        return planned if planned is not None and text in (None, "".join(planned.pieces)) else None

    def otherwise(
        self, messages: list[Message], about: frozenset[int], planned: Planned | None, /, **variables: Any
    ) -> dict[int, list[Planned]]:
        """The rendering as it is when tests of what messages say come out otherwise: see `Plans.otherwise`.

        Args:
            messages: the messages.
            about: which ones.
            planned: their rendering by a plan: what is found is kept for others of that plan.
            variables: see `render`.
        """
        key = None if planned is None else (planned.layout, about)
        if key in self._ways:
            return self._ways[key]
        found = self._tracer.otherwise(messages, {**variables, "add_generation_prompt": False}, about)
        if key is not None:
            if len(self._ways) > 1024:
                self._ways.clear()
            self._ways[key] = found
        return found

    def turns(self, messages: list[Message], /, **variables: Any) -> list[str | None]:
        """What the template writes for each message; None where that is not known, or the template refuses them."""
        try:
            given = [plain(message) for message in messages]
            chat = self._chat(self._marked(given, {**variables, "add_generation_prompt": False}), len(messages))
        except Reject:
            return [None] * len(messages)
        return [None if region is None else chat.text[region[0] : region[1]] for region in chat.regions]

    def contents(self, messages: list[Message], text: str, /, **variables: Any) -> list[list[tuple[int, int]]] | None:
        """Where each message's content is written in the rendering `text`: by rendering once more, with marks in it.

        Up to three renderings, however many messages: a template may trim contents, or ask whether there is any.

        Returns:
            Per message its ranges: none where its content is not written, an empty one where only its end is (or it
            is blank). None where the template gives another text for contents with marks in them.
        """
        if len(messages) > 0xFFFF or any(fence in text for fence in FENCES):
            return None
        given = [plain(message) for message in messages]
        variables = {**variables, "add_generation_prompt": False}
        for trimmed, blanks in ((False, True), (True, True), (True, False)):
            marked = [_between_fences(message, place, trimmed, blanks) for place, message in enumerate(given)]
            try:
                fenced = self._run(marked, None, variables)
            except Reject:
                continue
            if _NUMBERED.sub("", fenced) == text:
                return _numbered(fenced, len(messages))
        return None

    def generation_prompt(self, /, **variables: Any) -> str:
        """What the template writes before an answer.

        Raises:
            Reject: `template_error`: the template renders no lone user message.
        """
        variables = {name: value for name, value in variables.items() if name != "add_generation_prompt"}
        key = repr(sorted(variables.items()))
        if key not in self._prompts:
            if len(self._prompts) > 256:
                self._prompts.clear()
            probe = [{"role": "user", "content": "x"}]
            without, with_prompt = (self.render(probe, add, **variables) for add in (False, True))
            self._prompts[key] = with_prompt[len(without) :] if with_prompt.startswith(without) else ""
        return self._prompts[key]

    def _new_plans(self, source: str) -> Plans:
        compiled = self._compiled
        template = render_plan.Template(
            source=source,
            tree=compiled.tree,
            code=compiled.code,
            environment=compiled.template.environment,
            captured=compiled.captured,
            hooks=(_MARK, _ENTER, _LEAVE, _SPAN),
            tracker=_Tracker,
            plain=plain,
        )
        return Plans(template, self._tokens, self._marked)

    def _marked(self, given: list[Message], variables: Mapping[str, Any]) -> Rendered:
        given = [dict(message) for message in given]  # copies: one and the same may stand there twice
        tracker = _Tracker({id(message): place for place, message in enumerate(given)})
        text = self._run(given, tracker, variables)
        return Rendered(text, tracker.marks, tracker.generations, tracker.blind)

    def _run(self, messages: list[Message], tracker: _Tracker | None, variables: Mapping[str, Any]) -> str:
        given = {
            "tools": None,
            "documents": None,
            **self._tokens,
            **variables,
            "messages": messages,
            _MARK: _ignore if tracker is None else tracker.mark,
            _ENTER: _ignore if tracker is None else tracker.enter,
            _LEAVE: _ignore if tracker is None else tracker.leave,
            _SPAN: _say if tracker is None else tracker.generation,
        }
        parts = []
        try:
            if tracker is None:
                return self._compiled.template.render(given)
            for part in self._compiled.template.generate(given):
                parts.append(part)
                tracker.written += len(part)
        except _RAISED_BY_TEMPLATES as error:
            kind = "" if isinstance(error, jinja2.TemplateError) else f"{type(error).__name__}: "
            raise Reject("template_error", f"the chat template raised: {kind}{error}") from None
        return "".join(parts)


def _regions(
    marks: list[tuple[int, int]], messages: int, text: str, tokens: Collection[str]
) -> list[tuple[int, int] | None]:
    """What was written from one mark to the next belongs to the message of the first. Text in two places: unknown."""
    regions: list[tuple[int, int] | None] = [None] * messages
    twice = set()
    stops = [start for start, _ in marks[1:]] + [len(text)]
    for (start, place), stop in zip(marks, stops, strict=False):
        if start == stop or place == _NOBODY:
            continue
        before = regions[place]
        if before is not None and before[1] == start:
            start = before[0]
        elif before is not None:
            twice.add(place)
        regions[place] = (start, stop)
    if marks and text[marks[-1][0] :].strip() in ("", *tokens):  # an EOS behind the loop ends the last message
        regions = [(r[0], len(text)) if r is not None and r[1] == marks[-1][0] else r for r in regions]
    return [None if place in twice else region for place, region in enumerate(regions)]


def _guess(regions: list[tuple[int, int] | None], end: int) -> tuple[int, int] | None:
    """What was written before all messages may be the first one's: a system message often is, before the loop."""
    first = min((region[0] for region in regions if region is not None), default=end if len(regions) == 1 else 0)
    return (0, first) if regions and regions[0] is None and first > 0 else None


def _between_fences(message: Message, place: int, trimmed: bool, blanks: bool) -> Message:
    """A message whose content stands between numbered fences; `trimmed`: white space at its edges outside of them."""
    content = message.get("content")
    if not isinstance(content, str) or not (content.strip() or (blanks and not message.get("tool_calls"))):
        return message
    core = content.strip() if trimmed else content
    head, _, tail = content.partition(core) if core else ("", "", "")
    opening, closing = (fence + chr(_NUMBERS + place) for fence in FENCES)
    return {**message, "content": head + opening + core + closing + tail}


def _numbered(fenced: str, messages: int) -> list[list[tuple[int, int]]]:
    """Ranges between numbered fences, in the text without them."""
    ranges: list[list[tuple[int, int]]] = [[] for _ in range(messages)]
    opened: dict[int, int] = {}
    for seen, found in enumerate(_NUMBERED.finditer(fenced)):
        at, place = found.start() - 2 * seen, ord(found[2]) - _NUMBERS
        if found[1] == FENCES[0]:
            opened[place] = at
        else:
            ranges[place].append((opened.pop(place, at), at))
    return ranges


def _unfence(fenced: str, text: str) -> list[tuple[int, int]] | None:
    """Ranges between fences, in the text without them; None where the template did not just pass them on."""
    opening, closing = FENCES
    if fenced.replace(opening, "").replace(closing, "") != text or opening in text or closing in text:
        return None
    ranges, start, seen = [], -1, 0
    for place, character in enumerate(fenced):
        if character in FENCES and (character == opening) != (start < 0):
            return None
        if character == opening:
            start, seen = place - seen, seen + 1
        elif character == closing:
            ranges.append((start, place - seen))
            start, seen = -1, seen + 1
    return ranges


def plain(message: Message) -> Message:
    """A message as transformers hands it to a template: no null keys, reasoning under both of its names."""
    if None in message.values():
        message = {key: value for key, value in message.items() if value is not None}
    reasoning = next((message[key] for key in _REASONING_FIELDS if key in message), None)
    if reasoning is not None:
        message = {"thinking": reasoning, **message, "reasoning_content": reasoning}
    return message
