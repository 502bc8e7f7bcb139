"""Renders plain chats of a known kind without the template, by joining constants and contents.

A kind is given by roles and variables. When a kind comes for the second time, one chat is rendered while every
operation on its texts is watched. An operation that returns a bool or an int becomes a guard, and so does one that
returns the text itself (`strip` of a text without blanks around it). If the template does anything else with a text,
the kind is not replayed. Only plain texts are replayed: of two characters or more, without blanks around them, without
the first characters of a special token. Then the spans of `turns` are constant, too. `ChatTemplate.render` gives the
same result; a sample of each block is compared with it.
"""

import bisect
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from jinja2 import nodes

from beam_prep.chat.messages import Message, not_rendered
from beam_prep.chat.origins import Text, parts_of
from beam_prep.chat.renderer import RENDERING, Renderer, Tokens
from beam_prep.chat.trace import trace
from beam_prep.chat.turns import Facts, Ranges, Turn, Turns
from beam_prep.data.block import Reject

Variables = Mapping[str, Any]

_MOST = 1000
"""Most kinds that are kept."""
_UNSEEN = frozenset("int float filesizeformat wordcount in sameas escaped".split())
"""Filters and tests that read a text without calling a method of it."""
_WATCHED = [name for name in dir(str) if not name.startswith("_") and name not in ("join", "format", "format_map")]
_WATCHED += "__eq__ __ne__ __lt__ __le__ __gt__ __ge__ __contains__ __len__ __getitem__ __iter__ __hash__".split()
_WATCHED += "__mul__ __rmul__ __mod__ __rmod__ __format__".split()
_SAME = object()
"""Stands for the text that an operation was called on."""


class _NotReplayable(Exception):
    """An operation on a text cannot be replayed."""


Guard = tuple[int, str, tuple[Any, ...], Any]
"""(text, operation, arguments, encoded result: see `_encoded`)"""


Places = list[tuple[int, int, int, int]]
"""Spans: for begin and end of each, the characters of constants and the number of texts before it."""


class Plan(NamedTuple):
    """The rendering of a kind of chats.

    Attributes:
        parts: constants and contents, alternating; the first and the last are constants.
        order: the numbers of the texts, in the order of the rendering.
        turns: (message, its spans, its spans by the rule) of each turn, see `Turn`.
        marked: see `RenderedChat`.
        guards: conditions on the texts.
        rests: first characters of what history leaves out of prompts: a text that begins so may be taken for it.
    """

    parts: list[str]
    order: list[int]
    turns: list[tuple[int, Places, Places]]
    marked: bool
    guards: list[Guard]
    rests: tuple[str, ...]


class Replay:
    """The known kinds of chats of a template.

    Args:
        tree: the template's syntax tree.
        tokens: the special tokens.
        renderer_of, facts_of: see `ChatTemplate`; by variables.
    """

    def __init__(
        self,
        tree: nodes.Template,
        tokens: Tokens,
        renderer_of: Callable[[Variables], Renderer],
        facts_of: Callable[[Variables], Facts],
    ) -> None:
        self._tokens, self._renderer_of, self._facts_of = tokens, renderer_of, facts_of
        self._plans = dict[Any, Plan | None]()
        self._possible = _is_readable(tree)
        # The first two characters of each special token.
        self._beginnings = tuple(sorted({token[:2] for token in tokens.texts if len(token) > 1}))

    def find(self, messages: Sequence[Message], variables: Variables) -> tuple[str, list[Turn], bool] | None:
        """(text, turns, whether they are marked) of a chat whose messages have a role and a content, both strings.

        None: the chat has to be rendered.
        """
        if not self._possible or "tools" in variables:
            return None
        kind: Any = tuple([message["role"] for message in messages])
        if variables:
            kind = kind, repr(sorted(variables.items()))
        plan, texts = self._plans.get(kind, _NEW), [message["content"] for message in messages]
        if plan is None or not self._are_plain(texts):
            return None
        if not plan.parts:
            self._learn(kind, plan, messages, variables)
            return None
        if any(text.startswith(plan.rests) for text in texts):
            return None
        for number, name, arguments, wanted in plan.guards:
            if _encoded(getattr(str, name)(texts[number], *arguments), texts[number]) != wanted:
                return None
        parts = plan.parts.copy()
        parts[1::2] = said = [texts[number] for number in plan.order]
        before = [0, *itertools.accumulate(map(len, said))]
        turns = []
        for message, spans, rule in plan.turns:
            moved = _moved(spans, before)
            turns.append(Turn(message, moved, None, moved if rule == spans else _moved(rule, before)))
        return "".join(parts), turns, plan.marked

    def _are_plain(self, texts: list[str]) -> bool:
        if [text.strip() for text in texts] != texts or min(map(len, texts), default=0) < 2:
            return False
        together = "\n".join(texts)
        return not any(beginning in together for beginning in self._beginnings)

    def _learn(self, kind: Any, known: Plan, messages: Sequence[Message], variables: Variables) -> None:
        """Makes the plan of a kind when it comes for the second time."""
        while len(self._plans) >= _MOST:
            del self._plans[next(iter(self._plans))]
        try:
            self._plans[kind] = _SEEN if known is _NEW else self._plan(messages, variables)
        except (_NotReplayable, Reject):
            self._plans[kind] = None

    def _plan(self, messages: Sequence[Message], variables: Variables) -> Plan:
        renderer = self._renderer_of(variables)
        # Copies, so that each text is a separate object, by whose id it is found in the rendering.
        messages = [{**message, "content": "".join([*message["content"]])} for message in messages]
        numbers = {id(message["content"]): number for number, message in enumerate(messages)}
        formed, _ = renderer.formed(messages)
        with _watched(numbers) as guards:
            pieces = renderer.pieces(formed)
        parts, order = [""], list[int]()
        for value, origin in itertools.chain.from_iterable(map(parts_of, pieces)):
            if origin is None:
                parts[-1] += value
            elif value:
                order.append(_number(numbers, value))
                parts += (value, "")
        if "" in parts[2:-1:2]:
            raise _NotReplayable  # a control token may begin in one text and end in the next
        begun = tuple({token[:size] for token in self._tokens.texts for size in range(1, len(token))})
        if any(constant.endswith(begun) for constant in parts[:-1:2] if constant):
            raise _NotReplayable  # a special token may begin in a constant and end in a text
        rendering = trace(pieces)
        facts = self._facts_of(variables)
        found = Turns(renderer, facts, rendering, formed)
        turns, (lost, _) = found.all(), not_rendered(rendering, formed, None)
        if not found.by_facts or any(turn.reason for turn in turns) or lost:
            raise _NotReplayable
        placed = [(turn.message, _places(turn.spans, parts), _places(turn.rule, parts)) for turn in turns]
        checks = [(*asked, gives) for asked, gives in guards.items()]
        rests = tuple({rest.strip()[:2] for _, lacking in facts.gaps.values() for rest in lacking if rest.strip()})
        return Plan(parts, order, placed, bool(rendering.generation), checks, rests)


_NEW, _SEEN = (Plan([], [], [], False, [], ()) for _ in range(2))
"""Placeholders for plans, of kinds that came never, or once."""


def _moved(places: Places, before: Sequence[int]) -> Ranges:
    """The spans in a chat. `before`: characters of all texts before each text."""
    return tuple([(begin + before[first], end + before[last]) for begin, first, end, last in places])


def _places(spans: Ranges, parts: Sequence[str]) -> Places:
    return [(*_place(begin, parts), *_place(end, parts)) for begin, end in spans]


def _place(at: int, parts: Sequence[str]) -> tuple[int, int]:
    """A place in a chat: (characters of constants, texts) before it."""
    borders = [*itertools.accumulate(map(len, parts))]
    part = bisect.bisect_left(borders, at)
    if part % 2 and at < borders[part]:
        raise _NotReplayable  # within a text
    texts = (part + 1) // 2
    return at - sum(map(len, parts[1 : 2 * texts : 2])), texts


def _is_readable(tree: nodes.Template) -> bool:
    """Whether all operations of a template on texts can be watched."""
    for asked in (*tree.find_all(nodes.Filter), *tree.find_all(nodes.Test)):
        if not _UNSEEN.isdisjoint({asked.name, *(each.value for each in asked.args if isinstance(each, nodes.Const))}):
            return False  # used directly, or through `map`
    for call in tree.find_all(nodes.Call):
        method = call.node.attr if isinstance(call.node, nodes.Getattr) else ""
        if hasattr(str, method) and method != "join" and not all(isinstance(each, nodes.Const) for each in call.args):
            return False  # a constant's method may read a text
    for compare in tree.find_all(nodes.Compare):
        whole = (compare.expr, *(operand.expr for operand in compare.ops))
        for left, operand in zip(whole, compare.ops, strict=False):
            fixed = isinstance(left, nodes.Const) or isinstance(operand.expr, nodes.List | nodes.Tuple)
            if operand.op in ("in", "notin") and not fixed:
                return False  # a search for a text in a constant calls the constant's method
    return True


def _number(numbers: dict[int, int], value: str) -> int:
    if id(value) not in numbers:
        raise _NotReplayable
    return numbers[id(value)]


def _encoded(result: Any, text: str) -> Any:
    """The result of an operation, as a guard compares it; None: the result cannot be replayed."""
    if isinstance(result, bool | int):
        return result
    if isinstance(result, list):
        made = [_encoded(each, text) for each in result]
        return None if None in made else made
    return _SAME if isinstance(result, str) and str.__eq__(result, text) else None


@contextmanager
def _watched(numbers: dict[int, int]) -> Iterator[dict[Any, Any]]:
    """Watches operations on texts. Yields (text, operation, arguments) -> encoded result."""
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
                if result is not NotImplemented:
                    value = _encoded(result, self)
                    if value is None or len(self._parts) != 1 or Text in map(type, arguments):
                        raise _NotReplayable
                    guards[_number(numbers, self._parts[0][0]), name, arguments] = value
                    # What is asked of a result that is the text is asked of the text.
                    if value is _SAME:
                        return self
                    if isinstance(value, list):
                        return [self if kind is _SAME else part for kind, part in zip(value, result, strict=True)]
                return result
            finally:
                busy = False

        method.__name__ = name
        return method

    def html(self: Text) -> str:
        raise _NotReplayable  # what `safe` and `escape` make has methods of its own

    def truth(self: Text) -> bool:
        for value, origin in self._parts:
            if value and origin is not None:
                _number(numbers, value)
        return str.__len__(self) > 0

    with RENDERING:
        before = {name: Text.__dict__.get(name) for name in (*_WATCHED, "__bool__", "__html__")}
        try:
            for name in _WATCHED:
                setattr(Text, name, watched(name, getattr(Text, name)))
            Text.__bool__, Text.__html__ = truth, html  # type: ignore[attr-defined]
            yield guards
        finally:
            for name, method in before.items():
                if method is None:
                    delattr(Text, name)
                else:
                    setattr(Text, name, method)
