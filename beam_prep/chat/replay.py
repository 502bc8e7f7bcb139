"""Plain chats of a kind that comes again, without the template: constants and contents are joined.

When chats of some roles come for the second time, one is rendered with every operation on its texts watched. An
operation that gives a bool or an int becomes a guard, as does one that gives the text itself (`strip` of a text without
blanks around it). Anything else that a template makes of a text makes the kind one that is not replayed. Only plain
texts are replayed: of two characters or more, without blanks around them, without the beginning of a special token.
Then what the rule (`turns`) finds is constant, too. `ChatTemplate.render` gives the same; a sample of each block is
compared with it.
"""

import functools
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

from jinja2 import nodes

from beam_prep.chat.messages import Lost, Message, for_template, not_rendered
from beam_prep.chat.origins import Text
from beam_prep.chat.trace import trace
from beam_prep.chat.turns import Facts, Ranges, Renderer, Turn, Turns
from beam_prep.core.data.block import Reject

RENDERING = threading.RLock()
"""Held while a template runs: methods of `Text` are watched for one rendering, and no other may be seen by that."""

_MOST = 500
"""Kinds that are kept."""
_FILTERS = {
    *(
        "items",
        "dictsort",
        "sort",
        "unique",
        "title",
        "indent",
        "escape",
        "e",
        "trim",
        "length",
        "count",
        "first",
        "last",
    ),
    *("list", "default", "d", "join", "replace", "lower", "upper", "capitalize", "string", "tojson", "map", "select"),
    *("selectattr", "reject", "rejectattr", "safe", "_beam_prep_at_work"),
}
_TESTS = {
    *("defined", "undefined", "none", "string", "mapping", "iterable", "sequence", "boolean", "true", "false", "eq"),
    *("equalto", "ne", "number", "integer", "odd", "even", "callable"),
}
_GIVE_TEXTS = {
    *("strip", "lstrip", "rstrip", "removeprefix", "removesuffix", "replace", "split", "rsplit", "splitlines"),
}
_WATCHED = (
    *(name for name in dir(str) if not name.startswith("_") and name not in ("join", "format", "format_map")),
    *("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__contains__", "__len__", "__getitem__"),
)
_REFUSED = ("__iter__", "__hash__", "__mul__", "__rmul__", "__mod__", "__rmod__", "__format__")
_SAME = object()
"""The text that an operation was called on."""


class _NotReplayable(Exception):
    """Something is made of a text that is not followed."""


Guard = tuple[int, Callable[..., Any], tuple[Any, ...], Any]
"""(text, operation, arguments, what it gives)"""


class Plan(NamedTuple):
    """The rendering of a kind of chats.

    Attributes:
        parts: constants and contents, by turns; a constant first and last.
        order: which of the texts are said, in order.
        turns: of one such chat.
        moved: of that chat, see `Replayed`.
        guards: what has to hold of the texts.
        lost: what the template does not write.
    """

    parts: list[str]
    order: list[int]
    turns: list[Turn]
    moved: list[int]
    guards: list[Guard]
    lost: list[Lost]


class Replayed(NamedTuple):
    """A chat that was replayed.

    Attributes:
        plan: of its kind.
        text: as the template writes it.
        moved: characters of all texts before each said one, and of all.
    """

    plan: Plan
    text: str
    moved: list[int]

    def turns(self) -> list[Turn]:
        """As `ChatTemplate.render` finds them."""
        return [turn._replace(spans=self._here(turn.spans), rule=self._here(turn.rule)) for turn in self.plan.turns]

    def _here(self, spans: Ranges) -> Ranges:
        return tuple((self._at(*self.relative(begin)), self._at(*self.relative(end))) for begin, end in spans)

    def _at(self, constants: int, texts: int) -> int:
        return constants + self.moved[texts]

    def relative(self, at: int, moved: Sequence[int] | None = None) -> tuple[int, int]:
        """(characters of constants, texts) before a place of the plan's own chat, or of that whose `moved` is given.

        Raises:
            ValueError: it is within a text.
        """
        moved, constants = self.plan.moved if moved is None else moved, 0
        for texts in range(len(moved)):
            constants += len(self.plan.parts[2 * texts])
            if at <= constants + moved[texts]:
                if at < constants + moved[texts] - len(self.plan.parts[2 * texts]):
                    break
                return at - moved[texts], texts
        raise ValueError(f"character {at} is within a text")


class Replayable(Renderer, Protocol):
    """What a replay needs of a `ChatTemplate`."""

    def facts(self, tools: Any, variables: dict[str, Any]) -> Facts: ...

    def pieces(
        self, messages: Sequence[Message], tools: Any, variables: dict[str, Any], prompt: bool = False
    ) -> list[str]: ...


class Replay:
    """The kinds of chats that a template was given.

    Args:
        template: renders them.
    """

    def __init__(self, template: Replayable, tree: nodes.Template) -> None:
        self._template, self._plans, self._seen = template, dict[Any, Plan | None](), set[Any]()
        self._possible = _is_readable(tree)

    @functools.cached_property
    def _beginnings(self) -> tuple[str, ...]:
        """With what special tokens begin, as far as texts are looked through for it."""
        return tuple(sorted({token[:2] for token in self._template.tokens.texts if len(token) > 1}))

    @functools.cached_property
    def _cut_off(self) -> tuple[str, ...]:
        tokens = self._template.tokens.texts
        return tuple({token[:size] for token in tokens for size in range(1, len(token))})

    def find(self, messages: Sequence[Message], variables: dict[str, Any], prompt: bool = False) -> Replayed | None:
        """A chat of messages of a role and a content, both text; None: it is not replayed.

        Args:
            messages, variables: the chat.
            prompt: with a generation prompt; then there are no turns.
        """
        if not self._possible or "tools" in variables:
            return None
        kind: Any = tuple([message["role"] for message in messages])
        if variables or prompt:
            kind = kind, prompt, repr(sorted(variables.items()))
        plan = self._plans.get(kind)
        if plan is None:
            if kind not in self._plans:
                self._learn(kind, messages, variables, prompt)
            return None
        texts = [message["content"] for message in messages]
        if not self._are_plain(texts):
            return None
        for number, operation, arguments, wanted in plan.guards:
            if operation(texts[number], *arguments) != wanted:
                return None
        said = [texts[number] for number in plan.order]
        parts = plan.parts.copy()
        parts[1::2] = said
        return Replayed(plan, "".join(parts), [0, *itertools.accumulate(map(len, said))])

    def _are_plain(self, texts: list[str]) -> bool:
        if [text.strip() for text in texts] != texts or min(map(len, texts), default=0) < 2:
            return False
        together = "\n".join(texts)
        return not any(beginning in together for beginning in self._beginnings)

    def _learn(self, kind: Any, messages: Sequence[Message], variables: dict[str, Any], prompt: bool) -> None:
        """Makes the plan of a kind that was seen before."""
        if kind not in self._seen:
            if len(self._seen) >= 2 * _MOST:
                self._seen.clear()
            self._seen.add(kind)
            return
        if not self._are_plain([message["content"] for message in messages]):
            return
        while len(self._plans) >= _MOST:
            del self._plans[next(iter(self._plans))]
        try:
            self._plans[kind] = self._plan(messages, variables, prompt)
        except (_NotReplayable, Reject):
            self._plans[kind] = None

    def _plan(self, messages: Sequence[Message], variables: dict[str, Any], prompt: bool) -> Plan:
        template = self._template
        # Copies, so that each text is an object of its own: by that it is known in what is rendered.
        messages = [{**message, "content": (message["content"] + " ")[:-1]} for message in messages]
        numbers = {id(message["content"]): number for number, message in enumerate(messages)}
        formed, _ = template.forms.apply([for_template(message) for message in messages])
        with _watched(numbers) as guards:
            pieces = template.pieces(formed, None, variables, prompt)
        rendering = trace(pieces)
        parts, order = [""], list[int]()
        for piece in pieces:
            for value, origin in piece._parts if type(piece) is Text else ((piece, None),):
                if origin is None:
                    parts[-1] += value
                elif value:
                    order.append(_number(numbers, value))
                    parts += (value, "")
        if any(constant and constant.endswith(self._cut_off) for constant in parts[:-1:2]):
            raise _NotReplayable  # a special token may begin in it, and end in what is said
        turns: list[Turn] = []
        lost: list[Lost] = []
        if not prompt:
            found = Turns(template, template.facts(None, variables), rendering, formed, None, variables)
            turns, (lost, _) = found.all(), not_rendered(rendering, formed, None)
            if not found.by_facts or any(turn.reason for turn in turns) or lost:
                raise _NotReplayable
        checks = [(number, _operation(name), given, gives) for (number, name, given), gives in guards.items()]
        said = [messages[number]["content"] for number in order]
        plan = Plan(parts, order, turns, [0, *itertools.accumulate(map(len, said))], checks, lost)
        replayed = Replayed(plan, rendering.text, plan.moved)
        try:
            if replayed.turns() != turns:
                raise _NotReplayable
        except ValueError:
            raise _NotReplayable from None
        return plan


def _operation(name: str) -> Callable[..., Any]:
    """The operation of a guard."""
    return functools.partial(_applied, name) if name in _GIVE_TEXTS else getattr(str, name)


def _is_readable(tree: nodes.Template) -> bool:
    """Whether all that a template does with texts can be watched."""
    if any(node.name not in _FILTERS for node in tree.find_all(nodes.Filter)):
        return False
    if any(node.name not in _TESTS for node in tree.find_all(nodes.Test)):
        return False
    for call in tree.find_all(nodes.Call):
        method = call.node.attr if isinstance(call.node, nodes.Getattr) else ""
        if hasattr(str, method) and method != "join" and not all(isinstance(each, nodes.Const) for each in call.args):
            return False  # a constant's method may ask about a text
    for compare in tree.find_all(nodes.Compare):
        whole = (compare.expr, *(operand.expr for operand in compare.ops))
        for left, operand in zip(whole, compare.ops, strict=False):
            fixed = isinstance(left, nodes.Const) or isinstance(operand.expr, nodes.List | nodes.Tuple)
            if operand.op in ("in", "notin") and not fixed and _attribute(left) != "role":
                return False  # a text may be looked for in a constant, which asks the constant
    return True


def _attribute(node: nodes.Expr) -> Any:
    return getattr(node, "attr", getattr(getattr(node, "arg", None), "value", None))


def _number(numbers: dict[int, int], value: str) -> int:
    if id(value) not in numbers:
        raise _NotReplayable
    return numbers[id(value)]


def _applied(name: str, text: str, *arguments: Any) -> Any:
    return _encoded(getattr(str, name)(text, *arguments), text)


def _encoded(result: Any, text: str) -> Any:
    """What a guard compares."""
    if isinstance(result, bool | int):
        return result
    if isinstance(result, str):
        return _SAME if str.__eq__(result, text) else None
    return [_encoded(each, text) for each in result] if isinstance(result, list) else None


@contextmanager
def _watched(numbers: dict[int, int]) -> Iterator[dict[Any, Any]]:
    """Watches what is made of texts: gives (text, operation, arguments) -> what it gives."""
    guards: dict[Any, Any] = {}
    busy = False

    def watched(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def method(self: Text, *arguments: Any) -> Any:
            nonlocal busy
            if busy:
                return original(self, *arguments)
            busy = True
            try:
                result = original(self, *arguments)
                if result is NotImplemented:
                    return result
                value = _encoded(result, self)
                flat = value if isinstance(value, list) else [value]
                if name in _REFUSED or len(self._parts) != 1 or None in flat or Text in map(type, arguments):
                    raise _NotReplayable
                if _SAME in flat and name not in _GIVE_TEXTS:
                    raise _NotReplayable
                guards[_number(numbers, self._parts[0][0]), name, arguments] = value
            finally:
                busy = False
            return result

        method.__name__ = name
        return method

    def truth(self: Text) -> bool:
        said = [origin and _number(numbers, value) >= 0 for value, origin in self._parts if value]
        return any(said) or any(value for value, _ in self._parts)

    with RENDERING:
        before = {name: Text.__dict__.get(name) for name in (*_WATCHED, *_REFUSED, "__bool__")}
        try:
            for name in (*_WATCHED, *_REFUSED):
                setattr(Text, name, watched(name, getattr(Text, name)))
            Text.__bool__ = truth  # type: ignore[attr-defined]
            yield guards
        finally:
            for name, method in before.items():
                if method is None:
                    delattr(Text, name)
                else:
                    setattr(Text, name, method)
