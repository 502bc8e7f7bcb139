"""Chat templates, rendered as transformers renders them: same sandbox, same extensions, same filters.

Our own environment instead of `apply_chat_template`, so that a worker needs jinja2 alone (transformers takes more
than a second to import) and a template is compiled once. `tests/core/test_chat_template.py` holds both against each
other on every template at hand.
"""

import functools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.parser
import jinja2.sandbox
import jinja2.utils
from jinja2 import nodes

from beam_prep.core.block import Reject
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


_MARK, _SPAN = "_beam_prep_mark", "_beam_prep_generation"
_FENCES = "\ufdd0", "\ufdd1"


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
        marks: (characters written, message) whenever a loop comes to a message.
        generations: (first character, one past the last, message) of each generation block.
    """

    places: dict[int, int]
    fenced: bool = False
    written: int = 0
    marks: list[tuple[int, int]] = field(default_factory=list)
    generations: list[tuple[int, int]] = field(default_factory=list)

    def mark(self, item: Any) -> None:
        place = self.places.get(id(item))
        if place is not None:
            self.marks.append((self.written, place))

    def generation(self, caller: Any) -> str:
        text = str(caller())
        self.generations.append((self.written, self.written + len(text)))
        return _FENCES[0] + text + _FENCES[1] if self.fenced else text


def _ignore(item: Any) -> None:
    """A loop comes to an item, and nobody asks."""


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
    """

    text: str
    regions: list[tuple[int, int] | None]
    generations: list[tuple[int, int]] | None


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


class _Dict:
    """`dict(...)` in templates, without the type's own attributes."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args, **kwargs)


def _raise_exception(message: str) -> None:
    raise jinja2.exceptions.TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


@dataclass(frozen=True, slots=True)
class _Compiled:
    """A compiled template: `generation` = it has generation blocks, `captured` = some are inside a capture or macro."""

    template: jinja2.Template
    generation: bool
    captured: bool


@functools.lru_cache(maxsize=16)
def _compile(source: str) -> _Compiled:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals.update(
        raise_exception=_raise_exception, strftime_now=_strftime_now, dict=_Dict(), namespace=_Namespace
    )
    try:
        tree = environment.parse(source)
        _mark_loops(tree)
        tree.set_environment(environment)
        code = environment.compile(tree)
    except jinja2.TemplateSyntaxError as error:
        raise TokenizerError(f"the chat template does not compile: {error.message} (line {error.lineno})") from None
    # A plain dict: every rendering copies it, and jinja's own chain of maps takes ten times as long.
    template = jinja2.Template.from_code(environment, code, dict(environment.globals))
    blocks = list(_generation_blocks(tree))
    inside = (nodes.AssignBlock, nodes.Macro, nodes.FilterBlock, nodes.CallBlock)
    captured = {
        id(block) for outer in tree.find_all(inside) for block in _generation_blocks(outer) if block is not outer
    }
    return _Compiled(template, bool(blocks), any(id(block) in captured for block in blocks))


def _mark_loops(tree: nodes.Template) -> None:
    """Every loop tells the tracker what it comes to, first thing in its body. Nothing that is written changes."""
    for loop in tree.find_all(nodes.For):
        if isinstance(loop.target, nodes.Name):
            item = nodes.Name(loop.target.name, "load")
            call = nodes.Call(nodes.Name(_MARK, "load"), [item], [], None, None)
            loop.body.insert(0, nodes.ExprStmt(call).set_lineno(loop.lineno))


def _generation_blocks(tree: nodes.Node) -> Iterator[nodes.CallBlock]:
    for block in tree.find_all(nodes.CallBlock):
        if isinstance(block.call.node, nodes.Name) and block.call.node.name == _SPAN:
            yield block


class ChatTemplate:
    """A compiled chat template with the tokenizer's named special tokens.

    Raises:
        TokenizerError: the template has a syntax error.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        self._compiled = _compile(source)
        self._tokens = dict(special_tokens)
        self._prompts: dict[str, str] = {}

    @property
    def has_generation(self) -> bool:
        """Whether the template marks what the assistant says with `{% generation %}` blocks."""
        return self._compiled.generation

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
        plain = [_plain(message) for message in messages]
        return self._run(plain, None, {**variables, "add_generation_prompt": add_generation_prompt})

    def render_chat(self, messages: list[Message], /, **variables: Any) -> RenderedChat:
        """The conversation as text, in one rendering, with the places of its messages and generation blocks.

        Raises:
            Reject: `template_error`.
        """
        plain = [_plain(message) for message in messages]
        tracker = _Tracker({id(message): place for place, message in enumerate(plain)})
        variables = {**variables, "add_generation_prompt": False}
        text = self._run(plain, tracker, variables)
        generations: list[tuple[int, int]] | None = tracker.generations
        if self._compiled.captured:
            fenced = self._run(plain, _Tracker({}, fenced=True), variables)
            generations = _unfence(fenced, text)
        return RenderedChat(text, _regions(tracker.marks, len(messages), len(text)), generations)

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

    def _run(self, plain: list[Message], tracker: _Tracker | None, variables: Mapping[str, Any]) -> str:
        given = {
            "tools": None,
            "documents": None,
            **self._tokens,
            **variables,
            "messages": plain,
            _MARK: _ignore if tracker is None else tracker.mark,
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


def _regions(marks: list[tuple[int, int]], messages: int, end: int) -> list[tuple[int, int] | None]:
    """What was written from one mark to the next belongs to the message of the first. Text in two places: unknown."""
    regions: list[tuple[int, int] | None] = [None] * messages
    twice = set()
    first = end
    stops = [start for start, _ in marks[1:]] + [end]
    for (start, place), stop in zip(marks, stops, strict=False):
        if start == stop:
            continue
        first = min(first, start)
        if regions[place] is not None:
            twice.add(place)
        regions[place] = (start, stop)
    for place in twice:
        regions[place] = None
    if marks and regions[0] is None and 0 not in twice and first:
        regions[0] = (0, first)  # a system message is often written before the loop
    return regions


def _unfence(fenced: str, text: str) -> list[tuple[int, int]] | None:
    """Ranges between fences, in the text without them; None where the template did not just pass them on."""
    opening, closing = _FENCES
    if fenced.replace(opening, "").replace(closing, "") != text or opening in text or closing in text:
        return None
    ranges, start, seen = [], -1, 0
    for place, character in enumerate(fenced):
        if character == opening:
            start, seen = place - seen, seen + 1
        elif character == closing:
            ranges.append((start, place - seen))
            seen += 1
    return ranges


def _plain(message: Message) -> Message:
    """A message as transformers hands it to a template: no null keys, reasoning under both of its names."""
    if None in message.values():
        message = {key: value for key, value in message.items() if value is not None}
    reasoning = next((message[key] for key in _REASONING_FIELDS if key in message), None)
    if reasoning is not None:
        message = {"thinking": reasoning, **message, "reasoning_content": reasoning}
    return message
