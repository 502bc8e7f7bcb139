"""Strings that know from which message, and which key of it, each of their characters comes.

A template gets a `Text` for every string of a message. The results of `+`, `~`, slices, `strip`, `split`, `replace`,
`join` ... keep the origins of their parts. The result of any other operation is one part that comes from all its
inputs. Characters without an origin are the template's own.
"""

import functools
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import markupsafe

from beam_prep.chat.limits import bounded, expect

# Indices that stand for no message.
TOOLS, MIXED, GENERATION_BEGINS, GENERATION_ENDS = -1, -2, -3, -4
CONTENT, NAME = ("content",), ("name",)
REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")


class Origin(NamedTuple):
    """Where characters come from.

    Attributes:
        index: of the message; or TOOLS; or MIXED: several messages.
        keys: of the message ("content", "reasoning", "tool_calls[0].name" ...); None: a mark, which has no characters.
    """

    index: int  # type: ignore[assignment]
    keys: tuple[str, ...] | None


Part = tuple[str, Origin | None]
_new = str.__new__


class _Asked(threading.local):
    """What this thread's current rendering asks of texts, for `replay`.

    Attributes:
        texts: the constants that texts are compared with, or searched for; "", which every text holds, stands for
            anything else.
    """

    def __init__(self) -> None:
        self.texts: set[str] = set()

    def constants(self, *given: Any) -> None:
        """Notes constants, and those of tuples. Another text is no constant, and objects and lists may hold some."""
        for each in given:
            if isinstance(each, tuple):
                self.constants(*each)
            elif type(each) is Text or (each and isinstance(each, dict | list)):
                self.anything()
            elif isinstance(each, str) and each:
                self.texts.add(each)

    def anything(self) -> None:
        """Notes that more is asked than what constants a text holds."""
        self.texts.add("")


ASKED = _Asked()


def asking(function: Any) -> Any:
    """The function, of which the result depends on more than what constants a text holds."""

    @functools.wraps(function)
    def asked(*args: Any) -> Any:
        ASKED.anything()
        return function(*args)

    return asked


def _comparing(compare: Callable[[Any, Any], Any]) -> Any:
    """The comparison, which notes what a text, or the texts in an object or a list, are compared with."""

    def noting(self: Any, other: Any) -> Any:
        ASKED.constants(other)
        return compare(self, other)

    return noting


class Constant(str):
    """A role, which counts as the template's own text. Not `str`, because a `str` is wrapped when it is read."""

    __slots__ = ()

    def __str__(self) -> str:
        return self


class Text(Constant):
    """A string with an origin for each part. A `Constant`, so that comparisons with roles are the text's own."""

    __slots__ = ("_parts",)
    _parts: tuple[Part, ...]

    def __str__(self) -> "Text":  # the same object, because jinja writes `str(value)`
        return self

    def __add__(self, other: Any) -> Any:
        if not isinstance(other, str) or isinstance(other, markupsafe.Markup):
            return NotImplemented
        return text_of(bounded(str.__add__(self, other)), self._parts + parts_of(other))

    def __radd__(self, other: Any) -> Any:
        if not isinstance(other, str):
            return NotImplemented
        return text_of(bounded(str.__add__(other, self)), ((other, None), *self._parts))

    __contains__ = _comparing(str.__contains__)
    __eq__ = _comparing(str.__eq__)
    __ne__ = _comparing(str.__ne__)
    __hash__ = asking(str.__hash__)
    __lt__, __le__ = asking(str.__lt__), asking(str.__le__)
    __gt__, __ge__ = asking(str.__gt__), asking(str.__ge__)

    def __getitem__(self, key: Any) -> Any:
        found = str.__getitem__(self, key)
        taken = key if isinstance(key, slice) else slice(key, key + 1 or None)
        begin, _, step = taken.indices(len(self))
        return _cut(self, begin, begin + len(found)) if step == 1 else derived(found, (self,))

    def __iter__(self) -> Iterator[Any]:
        ASKED.anything()
        return (_cut(self, at, at + 1) for at in range(len(self)))

    def strip(self, chars: str | None = None) -> Any:
        return _trimmed(self, str.lstrip(self, chars), str.strip(self, chars), chars)

    def lstrip(self, chars: str | None = None) -> Any:
        stripped = str.lstrip(self, chars)
        return _trimmed(self, stripped, stripped, chars)

    def rstrip(self, chars: str | None = None) -> Any:
        return _trimmed(self, self, str.rstrip(self, chars), chars)

    def replace(self, old: str, new: str, count: int = -1) -> Any:  # type: ignore[override]
        if old not in self or not count:
            return self
        if len(self._parts) < 2 or not old:
            return derived(str.replace(self, old, new, count), (self, new))
        return joined(new, self.split(old, count))

    def split(self, sep: str | None = None, maxsplit: Any = -1) -> Any:
        return _located(self, str.split(self, sep, maxsplit), len(sep or ""))


def text_of(value: str, parts: tuple[Part, ...]) -> Text:
    """A string with these parts."""
    made = _new(Text, value)
    made._parts = parts
    return made


def one(value: str, origin: Origin) -> Text:
    """A string with a single origin."""
    return text_of(value, ((value, origin),))


def parts_of(value: str) -> tuple[Part, ...]:
    """The parts of any string."""
    return value._parts if type(value) is Text else ((value, None),)


def concat(pieces: Iterable[Any]) -> str:
    """jinja's `"".join`, for `{% set %}` blocks, macros and calls."""
    pieces = tuple(pieces)
    expect(sum(map(str.__len__, pieces)))
    value = bounded("".join(pieces))
    if Text not in map(type, pieces):
        return value
    parts: list[Part] = []
    for piece in pieces:
        if type(piece) is Text:
            parts += piece._parts
        elif piece:
            parts.append((piece, None))
    return text_of(value, tuple(parts))


def joined(separator: str, values: Iterable[Any]) -> str:
    """`separator.join(values)`."""
    pieces: list[Any] = []
    for value in values:
        pieces += (separator, value)
    return concat(pieces[1:])


class Safe(markupsafe.Markup):
    """Markup of a string. Results of its own methods come from MIXED."""

    _text: str | None = None

    def __str__(self) -> str:
        return one("".join((self,)), Origin(MIXED, ())) if self._text is None else self._text


def _cut(text: Text, begin: int, end: int, keep_marks: bool = False) -> Text:
    """A slice. Marks at its borders stay; those outside move to the border if `keep_marks`, otherwise they are lost."""
    if begin == 0 and end >= len(text):
        return text
    value = str.__getitem__(text, slice(begin, end))
    if len(text._parts) == 1:
        return text_of(value, ((value, text._parts[0][1]),))
    parts, at = [], 0
    for piece, origin in text._parts:
        stop = at + len(piece)
        if (at < end and stop > begin) if piece else keep_marks or begin <= at <= end:
            parts.append((piece[max(begin - at, 0) : max(end - at, 0)], origin))
        at = stop
    return text_of(value, tuple(parts))


def _trimmed(text: Text, from_left: str, stripped: str, chars: str | None) -> Text:
    if chars is not None and chars.strip():  # a replayed text has only no blanks around it
        ASKED.anything()
    begin = len(text) - len(from_left)
    return text if len(stripped) == len(text) else _cut(text, begin, begin + len(stripped), keep_marks=True)


def _located(text: Text, pieces: Iterable[str], separator: int) -> list[Text]:
    """The pieces of a text, in order, with `separator` characters, or white space, between them."""
    found, at = [], 0
    for piece in pieces:
        begin = text.find(piece, at)
        end = begin + len(piece)
        found.append(_cut(text, begin, end))
        at = end + separator
    return found


def _find_origins(value: Any, found: dict[Origin, None]) -> None:
    kind = type(value)
    if kind is Text:
        for _, origin in value._parts:
            if origin is not None and origin[1] is not None:
                found[origin] = None
    elif kind is Node or kind is Nodes:
        found[value._origin] = None
    elif kind is Safe:
        _find_origins(str(value), found)
    elif kind is dict:
        _find_origins([*value, *value.values()], found)
    elif kind is list or kind is tuple:
        for each in value:
            _find_origins(each, found)


def derived(result: Any, sources: tuple[Any, ...]) -> Any:
    """A string result, as one part that comes from all its sources; any other value unchanged."""
    if not isinstance(result, str):
        return result
    found = dict[Origin, None]()
    _find_origins(sources, found)
    text = bounded("".join((result,)))
    if len(found) == 1:
        text = one(text, *found)
    elif found:
        keys = dict.fromkeys(key for origin in found for key in origin.keys or ())
        indices = {origin.index for origin in found}
        text = one(text, Origin(indices.pop(), tuple(keys)) if len(indices) == 1 else Origin(MIXED, ()))
    return _safe(text) if isinstance(result, markupsafe.Markup) else text


def formatted(form: Any, args: tuple[Any, ...], kwargs: dict[str, Any], make: Callable[..., Any]) -> Any:
    """`make(*args, **kwargs)`, which formats the template's text `form`. Texts put in as they are keep origins."""
    ASKED.anything()
    made = make(*args, **kwargs)
    texts = dict[str, Text]()

    def mark(value: Any) -> Any:
        if type(value) is not Text:
            return value
        texts[name := _LONG + f"{len(texts)}\ue001"] = value
        return name

    marked = tuple(map(mark, args)), {key: mark(value) for key, value in kwargs.items()}
    if type(form) is str and texts and type(made) is str:
        pieces = _MARK.split(make(*marked[0], **marked[1]))
        followed = concat([texts.get(piece, piece) for piece in pieces])
        if followed == made:
            return followed
    return derived(made, (form, args, kwargs))


_LONG = "\ue000" * 40
"""A width to which a text is filled up should not fill this up."""
_MARK = re.compile(f"({_LONG}[0-9]+\ue001)")


def _safe(text: str) -> Safe:
    made = Safe(text)
    made._text = text
    return made


def sum_of_markup(*summands: str) -> Safe:
    """A sum with markup: the other summands are escaped."""
    escaped = (each if type(each) is Safe else derived(markupsafe.escape(each), (each,)) for each in summands)
    return _safe(concat(map(str, escaped)))


Field = Callable[[Origin, str, Any], Any]


class Node(dict):  # type: ignore[type-arg]
    """An object of a record. Its values are wrapped when they are read, because most are never read.

    Args:
        raw: the object.
        origin: of the whole object.
        field: (origin, key, value) -> the wrapped value; then the keys are names of fields, and have no origin.
    """

    __slots__ = ("_field", "_origin", "_raw")

    def __init__(self, raw: dict[str, Any], origin: Origin, field: Field | None = None) -> None:
        dict.__init__(self, raw)
        self._raw, self._origin, self._field = raw, origin, field

    __eq__ = _comparing(dict.__eq__)
    __ne__ = _comparing(dict.__ne__)

    def __getitem__(self, key: Any) -> Any:
        value = dict.__getitem__(self, key)
        return read(self, key, value) if type(value) in RAW else value

    def get(self, key: Any, default: Any = None) -> Any:
        return self[key] if dict.__contains__(self, key) else default

    def __iter__(self) -> Iterator[Any]:
        return iter(self.keys())

    def keys(self) -> Any:
        return dict.keys(self) if self._field else [wrap(key, self._origin) for key in dict.keys(self)]

    def values(self) -> Any:
        return [self[key] for key in dict.keys(self)]

    def items(self) -> Any:
        return list(zip(self.keys(), self.values(), strict=True))


class Nodes(list):  # type: ignore[type-arg]
    """A list of a record, with its origin."""

    __slots__ = ("_origin", "_raw")

    def __init__(self, raw: list[Any], origin: Origin, values: Iterable[Any]) -> None:
        list.__init__(self, values)
        self._raw, self._origin = raw, origin

    __eq__ = _comparing(list.__eq__)
    __ne__ = _comparing(list.__ne__)


class NotReplayable(BaseException):
    """An operation on a value cannot be replayed, see `replay`. Not an Exception, which some of jinja's tests catch."""


def _refuse(*_: Any, **__: Any) -> Any:
    raise NotReplayable


class Sealed(dict):  # type: ignore[type-arg]
    """An object of which a template may only write the JSON, for `replay`."""


class SealedNode(Node):
    """The node of a sealed object."""

    __slots__ = ()

    def __bool__(self) -> bool:
        return True


for _name in {*dir(dict)} - {*dir(object)} | {"__eq__", "__ne__", "__repr__", "__str__", "__format__"}:
    setattr(SealedNode, _name, _refuse)


RAW = frozenset((str, dict, list, Sealed))
"""Types of values that are wrapped when they are read."""


def read(node: Node, key: Any, value: Any) -> Any:
    """Wraps a value of an object, and keeps it there."""
    made = node._field(node._origin, key, value) if node._field else wrap(value, node._origin)
    dict.__setitem__(node, key, made)
    return made


def wrap(value: Any, origin: Origin) -> Any:
    """A value with a single origin."""
    kind = type(value)
    if kind is str:
        return one(value, origin)
    if kind is dict:
        return Node(value, origin)
    if kind is list:
        return Nodes(value, origin, [wrap(each, origin) for each in value])
    return SealedNode(value, origin) if kind is Sealed else value


@functools.lru_cache(1 << 14)
def _origin(index: int, *keys: str) -> Origin:
    return Origin(index, keys)


def message_node(message: dict[str, Any], index: int) -> Node:
    """A message, wrapped for a template."""
    return Node(message, _origin(index, "*"), _of_message)


def is_message(value: Any) -> bool:
    """True for results of `message_node`."""
    return type(value) is Node and value._field is _of_message


def _of_message(origin: Origin, key: str, value: Any) -> Any:
    index = origin.index
    if key == "role" and type(value) is str:
        return _constant(value)
    if key == "tool_calls" and type(value) is list:
        calls = [
            _call(f"{key}[{place}].", _origin(index, f"{key}[{place}].name", f"{key}[{place}].arguments"), call)
            for place, call in enumerate(value)
        ]
        keys = tuple(key for call in calls if type(call) is Node for key in call._origin.keys or ())
        return Nodes(value, Origin(index, keys), calls)
    if key == "content" and type(value) is list and (len(value) > 1 or any(map(is_thought, value))):
        keys = tuple("reasoning" if is_thought(part) else f"content[{place}]" for place, part in enumerate(value))
        origins = [Origin(index, (own,) if own == "reasoning" else (key, own)) for own in keys]
        parts = [*map(wrap, value, origins)]
        return Nodes(value, Origin(index, (key, *keys)), parts)
    return wrap(value, _origin(index, "reasoning" if key in REASONING_FIELDS else key))


def is_thought(part: Any) -> bool:
    """True for a part of a content that is reasoning."""
    return type(part) is dict and part.get("type") == "thinking"


_constant = functools.lru_cache(1000)(Constant)


def _call(place: str, origin: Origin, call: Any) -> Any:
    return Node(call, origin, functools.partial(_of_call, place)) if type(call) is dict else wrap(call, origin)


def _of_call(place: str, origin: Origin, key: str, value: Any) -> Any:
    if key == "function" and type(value) is dict:
        return _call(place, origin, value)
    key = "name" if key == "function" else key  # a function that is a text is its name
    return wrap(value, _origin(origin.index, place + key))
