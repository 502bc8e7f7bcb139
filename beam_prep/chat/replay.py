"""Renders chats of a known kind without the template, by joining constants and values of the chat.

A kind is given by the roles, the keys of messages, calls and tools, and the variables. When a kind has come often, one
chat is rendered while every operation on its texts is watched. An operation that returns a bool or an int becomes a
guard, and so does one that returns the text itself (`strip` of a text without blanks around it). Of arguments of calls
and parameters of tools, a template may only write the JSON. If the template does anything else with a value, the kind
is not replayed. Only plain texts are replayed: of two characters or more, without blanks around them, without the first
characters of a special token. Then the spans of `turns` are constant, too. `ChatTemplate.render` without replay gives
the same result; a sample of each block is compared with it.
"""

import bisect
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import jinja2
from jinja2 import nodes

from beam_prep.chat.environment import RAISED_BY_TEMPLATES, json_of
from beam_prep.chat.messages import Message, are_plain, not_rendered, text_of_part
from beam_prep.chat.origins import RAW, Constant, Node, Nodes, NotReplayable, Sealed, Text, one, parts_of, refuse
from beam_prep.chat.renderer import RENDERING, Renderer, Tokens
from beam_prep.chat.trace import trace
from beam_prep.chat.turns import Facts, Ranges, Turn, Turns, accounted
from beam_prep.data.block import Reject

Variables = Mapping[str, Any]

_MOST = 1000
"""Most kinds that are kept."""
_OFTEN = 5
"""How often a kind comes before it is learned. Many conversations of agents come twice; a plan costs a rendering."""
_LONGEST = 1 << 16
"""Most characters of the texts that are joined. Longer ones may exceed a limit of a rendering."""
_LEVELS, _LEVELS_OF_TOOL = 3, 2
"""Levels of objects whose keys are a part of the kind: message, call and function; tool and function."""
_UNSEEN_FILTERS = "int float filesizeformat wordcount safe escape e forceescape xmlattr urlize batch slice".split()
_UNSEEN_TESTS = "in sameas escaped lower upper".split()
"""Filters and tests that read a text without calling a method of it, make markup, or have limits by texts' sizes."""
_FIXED = frozenset((str, int, bool, type(None), Constant))
"""Types of arguments that hold no text of the chat."""
_WATCHED = [name for name in dir(str) if not name.startswith("_") and name not in ("join", "format", "format_map")]
_WATCHED += "__eq__ __ne__ __lt__ __le__ __gt__ __ge__ __contains__ __len__ __getitem__ __iter__ __hash__".split()
_WATCHED += "__mul__ __rmul__ __mod__ __rmod__ __format__".split()
_SAME = object()
"""Stands for the text that an operation was called on."""


Value = tuple[int, bool]
"""(number of a text or an object of a chat, see `_kind`; whether its JSON is meant)"""

Guard = tuple[int, str, tuple[Any, ...], Any]
"""(number of a text, operation, arguments, encoded result: see `_encoded`)"""


Places = list[tuple[int, int, int, int]]
"""Spans: for begin and end of each, the characters of constants and the number of texts before it."""


class Plan(NamedTuple):
    """The rendering of a kind of chats.

    Attributes:
        parts: constants and values, alternating; the first and the last are constants.
        order: the values, in the order of the rendering.
        turns: (message, its spans, its spans by the rule) of each turn, see `Turn`.
        marked, reasoned: see `RenderedChat`.
        guards: conditions on the texts.
        rests: first characters of what history leaves out of prompts: a text that begins so may be taken for it.
    """

    parts: list[str]
    order: list[Value]
    turns: list[tuple[int, Places, Places]]
    marked: bool
    reasoned: int
    guards: list[Guard]
    rests: tuple[str, ...]


class Replay:
    """The known kinds of chats of a template.

    Args:
        environment, tree: the template's environment and syntax tree.
        tokens: the special tokens.
        renderer_of, facts_of: see `ChatTemplate`; by variables.
    """

    def __init__(
        self,
        environment: jinja2.Environment,
        tree: nodes.Template,
        tokens: Tokens,
        renderer_of: Callable[[Variables], Renderer],
        facts_of: Callable[[Variables], Facts],
    ) -> None:
        self._environment, self._tokens = environment, tokens
        self._renderer_of, self._facts_of = renderer_of, facts_of
        self._plans = dict[Any, Plan | int | None]()
        self._possible = _is_readable(tree)
        # The first two characters of each special token.
        self._beginnings = tuple(sorted({token[:2] for token in tokens.texts if len(token) > 1}))

    def find(self, messages: Sequence[Message], variables: Variables) -> tuple[str, list[Turn], bool, int] | None:
        """(text, turns, whether they are marked, messages with reasoning); None: the chat has to be rendered.

        Args:
            messages: in the form that the template takes.
            variables: of the template.
        """
        try:
            return self._find(messages, variables)
        except RAISED_BY_TEMPLATES:
            return None  # a guard raises, or the chat is nested too deep: the rendering shows what that means

    def _find(self, messages: Sequence[Message], variables: Variables) -> tuple[str, list[Turn], bool, int] | None:
        roles: Any = tuple([message["role"] for message in messages])
        if not self._possible or self._seen(roles) == 1:
            return None
        leaves: list[Any] = []
        kind = _kinds(messages, leaves)
        said = len(leaves)
        for name in sorted(variables):
            value = variables[name]
            kind.append((name, _kind(value, leaves, _LEVELS_OF_TOOL) if name == "tools" else repr(value)))
        key = tuple(kind)
        plan = self._seen(key)
        if plan == _OFTEN:
            texts = [text for text in leaves[:said] if type(text) is str]
            # Otherwise the rendering would not show that a template leaves out contents or arguments.
            if self._are_plain(texts) and "{}" not in texts:
                try:
                    self._plans[key] = self._plan(messages, variables, leaves)
                except (NotReplayable, Reject):
                    self._plans[key] = None
        return self._joined(plan, leaves) if isinstance(plan, Plan) else None

    def _joined(self, plan: Plan, leaves: list[Any]) -> tuple[str, list[Turn], bool, int] | None:
        written = [json_of(leaves[number]) if as_json else leaves[number] for number, as_json in plan.order]
        if not self._are_plain(written) or (plan.rests and any(text.startswith(plan.rests) for text in written)):
            return None
        for number, name, arguments, wanted in plan.guards:
            if _encoded(getattr(str, name)(leaves[number], *arguments), leaves[number]) != wanted:
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
        return text, turns, plan.marked, plan.reasoned

    def _are_plain(self, texts: list[str]) -> bool:
        if [text.strip() for text in texts] != texts or min(map(len, texts), default=2) < 2:
            return False
        together = "\n".join(texts)
        return len(together) < _LONGEST and not any(beginning in together for beginning in self._beginnings)

    def _seen(self, key: Any) -> Plan | int | None:
        """The plan of a kind, or how often it, or its roles, came, at most `_OFTEN`; None: it is not replayed."""
        known = self._plans.get(key, 0)
        if isinstance(known, int) and known < _OFTEN:
            if not known and len(self._plans) >= _MOST:
                self._plans.pop(next(iter([*self._plans])), None)  # other threads may do so, too
            self._plans[key] = known = known + 1
        return known

    def _plan(self, messages: Sequence[Message], variables: Variables, leaves: list[Any]) -> Plan:
        if any(type(leaf) is str and (len(leaf) < 2 or "\ue000" in leaf) for leaf in leaves):
            raise NotReplayable  # one object for all texts of this character; a mark of `origins.formatted`
        # Copies, so that each value is a separate object, by whose id it is found in the rendering.
        watched = _Watched(leaves)
        copies = [_copied(message, _LEVELS) for message in messages]
        tools = _copied(variables.get("tools"), _LEVELS_OF_TOOL)
        _kinds(copies, watched.copies)
        _kind(tools, watched.copies, _LEVELS_OF_TOOL)
        watched.numbers = {id(copy): (number, False) for number, copy in enumerate(watched.copies)}
        renderer = self._renderer_of(variables if tools is None else {**variables, "tools": tools})
        with watched.watching(self._environment):
            pieces = renderer.pieces(copies)
        parts, order = [""], list[Value]()
        for value, origin in itertools.chain.from_iterable(map(parts_of, pieces)):
            if origin is None:
                parts[-1] += value
            elif value:
                order.append(watched.number(value))
                parts += (value, "")
        self._check_borders(parts)
        rendering, facts = trace(pieces), self._facts_of(variables)
        found = Turns(self._renderer_of(variables), facts, rendering, messages)
        # Whether an id holds the name of its function, or a text has several words, is no part of the kind.
        if not all("content" in message or message.get("tool_calls") for message in messages):
            raise NotReplayable
        lost, reasoned = not_rendered(rendering, [*map(_without_ids, messages)], variables.get("tools"))
        turns = accounted(found.all(), messages, {index for index, _ in lost})
        if not found.by_facts or any(turn.reason for turn in turns) or lost:
            raise NotReplayable
        for index, place in found.places.items():
            if messages[index]["role"] != "assistant" and place.owner <= index:
                continue
            for piece in place.pieces:
                if any(piece.after <= each.begin < piece.begin for each in rendering.segments):
                    raise NotReplayable  # a name in the header, by which the turn is found
        placed = [(turn.message, _places(turn.spans, parts), _places(turn.rule, parts)) for turn in turns]
        left_out = itertools.chain.from_iterable(lacking for _, lacking in facts.gaps.values())
        rests = tuple({rest.strip()[:2] for rest in left_out if rest.strip()})
        guards = [(*asked, gives) for asked, gives in watched.guards.items()]
        for message in copies:
            content = message.get("content")
            for part in content if type(content) is list else [content]:
                text = text_of_part(part)
                if text and (text_value := watched.numbers[id(text)]) not in order:
                    # Whether a message has words, which are written only as a part of some JSON.
                    number, _ = text_value
                    guards.append((number, "isspace", (), False))
        plan = Plan(parts, order, placed, bool(rendering.generation), reasoned, guards, rests)
        if self._joined(plan, leaves) != (rendering.text, turns, plan.marked, reasoned):
            raise NotReplayable
        return plan

    def _check_borders(self, parts: list[str]) -> None:
        """Raises NotReplayable if a special token may lie across the border of a text."""
        before, behind = parts[:-1:2], parts[2::2]
        if "" in behind[:-1]:
            raise NotReplayable  # between two texts
        begun = tuple({token[:size] for token in self._tokens.texts for size in range(1, len(token))})
        if any(constant.endswith(begun) for constant in before if constant):
            raise NotReplayable  # from a constant to a text
        for end in (token[1:] for token in self._tokens.texts if len(token) > 1):
            for constant in filter(None, behind):
                if end.startswith(constant) or constant.startswith(end):
                    raise NotReplayable  # from the last character of a text to a constant


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


def _copied(value: Any, levels: int) -> Any:
    """A copy with other texts, lists and objects, and with sealed objects where `_kind` does not look into them."""
    kind = type(value)
    if kind is str:
        return "".join([*value])
    if kind is list:
        return [_copied(each, levels) for each in value]
    if kind is not dict:
        return value
    if value and not levels:
        return Sealed(value)
    return {
        key: each if key == "role" and levels == _LEVELS else _copied(each, levels - 1) for key, each in value.items()
    }


def _without_ids(message: Message) -> Message:
    calls = message.get("tool_calls")
    if not calls:
        return message
    bare = [{key: value for key, value in call.items() if key != "id"} for call in calls]
    return {**message, "tool_calls": bare}


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


def _is_readable(tree: nodes.Template) -> bool:
    """Whether all operations of a template on texts can be watched."""
    for compare in tree.find_all(nodes.Compare):
        whole = (compare.expr, *(operand.expr for operand in compare.ops))
        for left, operand in zip(whole, compare.ops, strict=False):
            fixed = isinstance(left, nodes.Const) or isinstance(operand.expr, nodes.List | nodes.Tuple)
            if operand.op in ("in", "notin") and not fixed:
                return False  # a search for a text in a constant calls the constant's method
    return tree.find(nodes.EvalContextModifier) is None  # markup compares texts itself


def _encoded(result: Any, text: str) -> Any:
    """The result of an operation, as a guard compares it; None: the result cannot be replayed."""
    if isinstance(result, bool | int):
        return result
    if isinstance(result, list):
        made = [_encoded(each, text) for each in result]
        return None if None in made else made
    return _SAME if isinstance(result, str) and str.__eq__(result, text) else None


class _Watched:
    """One rendering of copies of a chat's values, in which operations on them are watched.

    Args:
        leaves: the chat's values, see `_kind`.

    Attributes:
        copies: the copies of these values.
        numbers: the id of each copy, and of each JSON -> what it is.
        guards: (number of a text, operation, arguments) -> encoded result.
    """

    def __init__(self, leaves: list[Any]) -> None:
        self.leaves = leaves
        self.copies: list[Any] = []
        self.numbers: dict[int, Value] = {}
        self.guards: dict[tuple[int, str, tuple[Any, ...]], Any] = {}
        self._busy = False

    def number(self, value: Any) -> Value:
        """What a value is.

        Raises:
            NotReplayable: it is no value of the chat, and no JSON of one.
        """
        if id(value) not in self.numbers:
            raise NotReplayable
        return self.numbers[id(value)]

    @contextmanager
    def watching(self, environment: Any) -> Iterator[None]:
        """Watches operations on values."""
        methods = {name: self._method(name, getattr(Text, name)) for name in _WATCHED}
        changed: dict[type, dict[str, Any]] = {
            Text: {**methods, "__bool__": lambda text: self._truth(text), "__html__": refuse},
            type(environment): {"call": self._call(type(environment).call)},
            # What is compared or copied here is not watched.
            **{kind: {"__eq__": refuse, "__ne__": refuse, "copy": refuse} for kind in (Node, Nodes)},
        }
        with RENDERING:
            before = {(kind, name): kind.__dict__.get(name) for kind, names in changed.items() for name in names}
            filters, tests = {**environment.filters}, {**environment.tests}
            try:
                for kind, name in before:
                    setattr(kind, name, changed[kind][name])
                environment.filters.update(
                    dict.fromkeys(_UNSEEN_FILTERS, refuse), tojson=self._tojson(filters["tojson"])
                )
                environment.tests.update(dict.fromkeys(_UNSEEN_TESTS, refuse))
                yield
            finally:
                environment.filters.update(filters)
                environment.tests.update(tests)
                for (kind, name), method in before.items():
                    if method is None:
                        delattr(kind, name)
                    else:
                        setattr(kind, name, method)

    def _method(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def method(text: Text, *arguments: Any) -> Any:
            if self._busy:
                return original(text, *arguments)
            self._busy = True
            try:
                result = original(text, *arguments)
                if result is not NotImplemented:
                    value = _encoded(result, text)
                    if value is None or len(text._parts) != 1 or not _FIXED.issuperset(map(type, arguments)):
                        raise NotReplayable
                    number, is_json = self.number(text._parts[0][0])
                    if is_json:
                        raise NotReplayable
                    self.guards[number, name, arguments] = value
                    # What is asked of a result that is the text is asked of the text.
                    if value is _SAME:
                        return text
                    if isinstance(value, list):
                        return [text if kind is _SAME else part for kind, part in zip(value, result, strict=True)]
                return result
            except LookupError:  # jinja takes it for an attribute that is not there
                raise NotReplayable from None
            finally:
                self._busy = False

        method.__name__ = name
        return method

    def _call(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(environment: Any, context: Any, obj: Any, /, *arguments: Any, **named: Any) -> Any:
            owner = getattr(obj, "__self__", None)
            is_constants = isinstance(owner, str) and type(owner) is not Text and obj.__name__ != "join"
            if is_constants and not _FIXED.issuperset(map(type, (*arguments, *named.values()))):
                raise NotReplayable  # the method may read a text
            return original(environment, context, obj, *arguments, **named)

        return call

    def _truth(self, text: Text) -> bool:
        for value, origin in text._parts:
            if value and origin is not None:
                self.number(value)
        return str.__len__(text) > 0

    def _tojson(self, original: Callable[..., str]) -> Callable[..., str]:
        def tojson(value: Any, *arguments: Any, **named: Any) -> str:
            if type(value) in (str, int, float, bool, Constant) or value is None:
                return original(value, *arguments, **named)
            raw, origin = value._parts[0] if type(value) is Text else (value._raw, value._origin)
            number, is_json = self.number(raw)
            whole = type(value) is not Text or len(value._parts) == 1
            if arguments or named or is_json or not whole or origin is None:
                raise NotReplayable
            made = json_of(self.leaves[number])
            self.copies.append(made)  # its id must not become another value's
            self.numbers[id(made)] = number, True
            return one(made, origin)

        return tojson
