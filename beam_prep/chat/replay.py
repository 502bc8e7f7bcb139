"""Renders chats of a known kind without the template, by joining constants and values of the chat.

A kind is given by the roles, the keys of messages, calls and tools, and the variables. When a kind has come often, a
stand-in is rendered: a chat of the kind whose texts, and whose arguments and parameters, are known nowhere else. Where
they stand in the rendering, as they are or as JSON, other chats of the kind have theirs. The chat at hand must give the
text and the turns of its own rendering. Only plain texts are replayed: of two characters or more, without blanks around
them, without the first characters of a special token, and without the constants that the template compares texts with
or searches for. If it asks more of a text (`origins.ASKED`), or looks into an object, the kind is not replayed.
`ChatTemplate.render` without replay gives the same result; a sample of each block is compared with it.
"""

import bisect
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from jinja2 import nodes

from beam_prep.chat.environment import RAISED_BY_TEMPLATES, json_of
from beam_prep.chat.messages import Message, are_plain
from beam_prep.chat.origins import ASKED, RAW, NotReplayable, Sealed
from beam_prep.chat.renderer import Renderer, Tokens
from beam_prep.chat.turns import Facts, Ranges, RenderedChat, Turn, rendered_chat
from beam_prep.data.block import Reject

Variables = Mapping[str, Any]

_MOST = 1000
"""Most kinds that are kept."""
_OFTEN = 5
"""How often a kind comes before it is learned. Many conversations of agents come twice; a plan costs two renderings."""
_AGAIN = -50
"""The count of a kind that was learned from a chat that is not replayed itself: a later chat may be plain."""
_LONGEST = 1 << 16
"""Most characters of the texts that are joined. Longer ones may exceed a limit of a rendering."""
_LEVELS, _LEVELS_OF_TOOL = 3, 2
"""Levels of objects whose keys are a part of the kind: message, call and function; tool and function."""
_NUMBER = re.compile("[0-9]{4}")

_MARK = "Qz"
"""A word that neither templates nor chats hold."""

Value = tuple[int, bool]
"""(number of a text or an object of a chat, see `_kind`; whether its JSON is meant)"""

Places = list[tuple[int, int, int, int]]
"""Spans: for begin and end of each, the characters of constants and the number of texts before it."""


class Plan(NamedTuple):
    """The rendering of a kind of chats.

    Attributes:
        parts: constants and values, alternating; the first and the last are constants.
        order: the values, in the order of the rendering.
        turns: (message, its spans, its spans by the rule) of each turn, see `Turn`.
        chat: what else a rendering of the kind gives; its text and turns are empty.
        asked: constants that the template compares texts with, or searches for, and beginnings of special tokens.
        rests: first characters of what history leaves out of prompts: a text that begins so may be taken for it.
    """

    parts: list[str]
    order: list[Value]
    turns: list[tuple[int, Places, Places]]
    chat: RenderedChat
    asked: frozenset[str]
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
        self._plans = dict[Any, Plan | int | None]()
        self._possible = _is_readable(tree)
        # The first two characters of each special token.
        self._beginnings = {token[:2] for token in tokens.texts if len(token) > 1}

    def find(self, messages: Sequence[Message], variables: Variables) -> RenderedChat | None:
        """The rendering; None: the chat has to be rendered.

        Args:
            messages: in the form that the template takes.
            variables: of the template.
        """
        roles: Any = tuple([message["role"] for message in messages])
        if not self._possible or self._seen(roles) == 1:
            return None
        leaves: list[Any] = []
        try:
            kind = _kinds(messages, leaves)
            for name in sorted(variables):
                value = variables[name]
                kind.append((name, _kind(value, leaves, _LEVELS_OF_TOOL) if name == "tools" else repr(value)))
            key = tuple(kind)
            plan = self._seen(key)
            if plan == _OFTEN:
                try:
                    self._plans[key] = self._plan(messages, variables, leaves)
                except (NotReplayable, Reject):
                    self._plans[key] = None
            return self._joined(plan, leaves) if isinstance(plan, Plan) else None
        except RAISED_BY_TEMPLATES:
            return None  # the chat is nested too deep: the rendering shows what that means

    def _joined(self, plan: Plan, leaves: list[Any]) -> RenderedChat | None:
        texts = [leaves[number] for number, as_json in plan.order if not as_json]
        if [text.strip() for text in texts] != texts or min(map(len, texts), default=2) < 2:
            return None
        if plan.rests and any(text.startswith(plan.rests) for text in texts):
            return None
        given = [leaf for leaf in leaves if type(leaf) is str]
        written = [_json(leaves[number]) if as_json else leaves[number] for number, as_json in plan.order]
        together = "\0".join([*given, *written])  # templates search texts for line ends
        if len(together) >= _LONGEST or any(map(str.isspace, given)) or any(map(together.__contains__, plan.asked)):
            return None
        parts = plan.parts.copy()
        parts[1::2] = written
        text = "".join(parts)
        if " at 0x" in text or " AT 0X" in text:
            return None  # see `check_addresses`
        before = [0, *itertools.accumulate(map(len, written))]
        turns = []
        for message, spans, rule in plan.turns:
            moved = _moved(spans, before)
            turns.append(Turn(message, moved, None, moved if rule == spans else _moved(rule, before)))
        return plan.chat._replace(text=text, turns=turns)

    def _seen(self, key: Any) -> Plan | int | None:
        """The plan of a kind, or how often it, or its roles, came, at most `_OFTEN`; None: it is not replayed."""
        known = self._plans.get(key, 0)
        if isinstance(known, int) and known < _OFTEN:
            if not known and len(self._plans) >= _MOST:
                self._plans.pop(next(iter([*self._plans])), None)  # other threads may do so, too
            self._plans[key] = known = known + 1
        return known

    def _plan(self, messages: Sequence[Message], variables: Variables, leaves: list[Any]) -> Plan | int:
        numbers = itertools.count()
        copies = [_stand_in(message, numbers, _LEVELS) for message in messages]
        tools = _stand_in(variables.get("tools"), numbers, _LEVELS_OF_TOOL)
        chat, asked = self._rendered(copies, variables, tools)
        stand_ins = list[Any]()
        _kinds(copies, stand_ins)
        _kind(tools, stand_ins, _LEVELS_OF_TOOL)
        known = {found[0]: at for at, each in enumerate(stand_ins) if (found := _NUMBER.search(json_of(each)))}
        parts, order, at = list[str](), list[Value](), 0
        for found in _WRITTEN.finditer(chat.text):
            parts += (chat.text[at : found.start()], found[0])
            order.append((known[_NUMBER.findall(found[0])[0]], found[0] not in stand_ins))
            at = found.end()
        parts.append(chat.text[at:])
        if any(_MARK in constant for constant in parts[::2]):
            raise NotReplayable  # a value in another form
        self._check_borders(parts)
        placed = [(turn.message, _places(turn.spans, parts), _places(turn.rule, parts)) for turn in chat.turns]
        left_out = itertools.chain.from_iterable(lacking for _, lacking in self._facts_of(variables).gaps.values())
        rests = tuple({rest.strip()[:2] for rest in left_out if rest.strip()})
        rendered, also_asked = self._rendered(messages, variables, variables.get("tools"))
        chat = chat._replace(text="", turns=[], said=(), replayed=True)
        plan = Plan(parts, order, placed, chat, asked | also_asked | self._beginnings, rests)
        joined = self._joined(plan, leaves)
        if joined is None and "" not in plan.asked:
            return _AGAIN
        if joined != rendered._replace(said=(), replayed=True):
            raise NotReplayable
        return plan

    def _check_borders(self, parts: list[str]) -> None:
        """Raises NotReplayable if a special token may lie across the border of a text."""
        before, behind = parts[:-1:2], parts[2::2]
        if "" in behind[:-1]:
            raise NotReplayable  # between two texts
        begun = tuple({token[:size] for token in self._tokens.texts for size in range(1, len(token))})
        ends = [token[1:] for token in self._tokens.texts if len(token) > 1]  # of a text, only the last character
        if any(constant.endswith(begun) for constant in before) or any(
            end.startswith(constant) or constant.startswith(end)
            for end, constant in itertools.product(ends, filter(None, behind))
        ):
            raise NotReplayable

    def _rendered(
        self, messages: Sequence[Message], variables: Variables, tools: Any
    ) -> tuple[RenderedChat, frozenset[str]]:
        """A rendering with all texts written, and all turns found by facts; and what it searches texts for."""
        renderer = self._renderer_of(variables if tools is None else {**variables, "tools": tools})
        chat, by_facts = rendered_chat(renderer, self._facts_of(variables), messages)
        if not by_facts or any(turn.reason for turn in chat.turns) or chat.not_rendered:
            raise NotReplayable
        return chat, frozenset(ASKED.texts)


def _kinds(messages: Sequence[Message], found: list[Any]) -> list[Any]:
    """The kind of each message. For `found` see `_kind`."""
    if are_plain(messages) and all(contents := [message["content"] for message in messages]):
        found += contents
        return [message["role"] for message in messages]
    return [_kind(message, found, _LEVELS) for message in messages]


def _kind(value: Any, found: list[Any], levels: int) -> Any:
    """What a chat has in common with others of its kind: everything but non-empty texts and deep objects.

    Args:
        value: a part of a chat.
        found: gets all non-empty texts, lists and objects, in order.
        levels: levels of objects whose keys are a part of the kind.
    """
    kind = type(value)
    if kind not in RAW or not value:
        return repr(value)
    found.append(value)
    if kind is list:
        if len(value) > _MOST:
            return object()  # ids of tokens: no other chat is of this kind
        return kind, *[_kind(each, found, levels) for each in value]
    if kind is str or not levels:
        return kind
    made: list[Any] = [dict]
    for key, each in value.items():
        if key == "role" and levels == _LEVELS:
            made += key, each
        elif type(each) is str and each:  # the most frequent case
            found.append(each)
            made += key, str
        else:
            made += key, _kind(each, found, levels - 1)
    return tuple(made)


def _stand_in(value: Any, numbers: Iterator[int], levels: int) -> Any:
    """The value in a stand-in, see `_kind`.

    A text in it has two quotes, which look otherwise where the text is written in another form: as JSON, as Python
    shows it, or escaped. It has several words, and nine characters, as Mistral's templates want of an id.
    """
    kind = type(value)
    if kind not in RAW or not value:
        return value
    if kind is list:
        return [_stand_in(each, numbers, levels) for each in value]
    number = f"{next(numbers):04}"
    if kind is str:
        return _text(number)
    if not levels:
        return Sealed(_object(number))
    return {
        key: each if key == "role" and levels == _LEVELS else _stand_in(each, numbers, levels - 1)
        for key, each in value.items()
    }


def _text(number: str) -> str:
    return f"{_MARK} \"'{number}"


def _object(number: str) -> dict[str, Any]:
    return {_MARK: number}


def _json(value: Any) -> str:
    """The JSON of a value; of a text without the quotes around it."""
    return json_of(value)[1:-1] if type(value) is str else json_of(value)


_FORMS = (_text("NNNN"), _json(_text("NNNN")), _json(_object("NNNN")))
_WRITTEN = re.compile("|".join(map(re.escape, _FORMS)).replace("NNNN", _NUMBER.pattern))
"""A text, its JSON, the JSON of an object."""


def _is_readable(tree: nodes.Template) -> bool:
    """Whether a template never searches a constant for a text: the constant's own method would see the text."""
    for compare in tree.find_all(nodes.Compare):
        whole = (compare.expr, *(operand.expr for operand in compare.ops))
        for left, operand in zip(whole, compare.ops, strict=False):
            fixed = isinstance(left, nodes.Const) or isinstance(operand.expr, nodes.List | nodes.Tuple)
            if operand.op in ("in", "notin") and not fixed:
                return False
    return tree.find(nodes.EvalContextModifier) is None  # markup compares texts itself


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
        raise NotReplayable  # within a text
    texts = (part + 1) // 2
    return at - sum(map(len, parts[1 : 2 * texts : 2])), texts
