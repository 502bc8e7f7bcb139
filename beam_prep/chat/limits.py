"""Limits of one rendering: characters, items and rounds are counted and never timed, so all machines agree.

Operations that make much from little (`'a' * 10**10`, `'%999999999d' % 1`, `center`) are refused before they run.
"""

import re
import threading
from collections.abc import Iterable
from typing import Any, TypeVar

import jinja2

MAX_CHARACTERS = 1 << 24
"""Most characters of a rendering and of a value in it; most items of a list."""
MAX_MADE = 1 << 28
"""Most characters and items of all large values together that a rendering makes."""
MAX_ROUNDS = 1 << 20
"""Most rounds of loops and calls of macros in a rendering."""
_MAX_GROWTH = 1 << 26
"""Most that `expect_growth` lets pass: its estimates are larger than the results."""
MAX_BITS = 4096
"""Most bits of a whole number."""
_LARGE = 1 << 10
_ITEM = 16
"""Characters that an item of a list counts as: see `weigh`."""

GROWING = frozenset("batch slice center wordwrap format indent replace round ljust rjust zfill".split())
"""Filters, and methods of texts, whose result may be much larger than their input."""
REFUSED = frozenset(("encode", "expandtabs", "translate"))
"""Methods of texts that templates may not call: no template needs them."""
_NUMBER = re.compile("[0-9]+")
_FROM_ARGUMENTS = re.compile(r"\*|\{[^{}]+\{")
"""A format width that is an argument: `%*d`, `{:{}}`."""

T = TypeVar("T")


class TemplateLimit(jinja2.TemplateError):
    """A rendering exceeds a limit."""


class _Spent(threading.local):
    """What this thread's current rendering has made so far."""

    made = 0
    rounds = 0

    def __init__(self) -> None:
        self.weights: dict[int, int] = {}  # id of an object or a list of the record -> its weight; 0: not known yet


_SPENT = _Spent()


def begin(messages: Iterable[Any]) -> None:
    """Begins a rendering of these messages."""
    _SPENT.made = _SPENT.rounds = 0
    _SPENT.weights = dict.fromkeys(map(id, messages), 0)


def bounded(value: T) -> T:
    """Counts the size of a text or list, and returns the value.

    Raises:
        TemplateLimit: this value, or all values together, are too large.
    """
    size = len(value)  # type: ignore[arg-type]
    if size > _LARGE:
        expect(size)
        _SPENT.made += size
        expect(_SPENT.made, MAX_MADE)
    return value


def expect(size: int, most: int = MAX_CHARACTERS) -> None:
    """Raises TemplateLimit if a size is too large."""
    if size > most:
        raise TemplateLimit(f"it makes more than {most} characters or items")


def count_round() -> None:
    """Counts a round of a loop, or a call of a macro.

    Raises:
        TemplateLimit: there are too many.
    """
    _SPENT.rounds += 1
    if _SPENT.rounds > MAX_ROUNDS:
        raise TemplateLimit(f"it takes more than {MAX_ROUNDS} rounds of loops and calls of macros")


def weigh(value: Any) -> int:
    """The characters of a text, or of the text of a list or an object; 1 for other values.

    Raises:
        TemplateLimit: the value is too large: a list may hold another list many times.
    """
    if isinstance(value, str):
        return len(value)
    if not isinstance(value, list | tuple | dict):
        return 1
    size, inside = 0, [value]
    while inside:
        item = inside.pop()
        _SPENT.made += _ITEM  # a list that grows by a level in each round is weighed in each round
        size += _ITEM
        if isinstance(item, str):
            size += len(item)
        elif isinstance(item, list | tuple | dict):
            raw = getattr(item, "_raw", item)
            weight = _SPENT.weights.get(id(raw))
            if weight is None and raw is item:
                inside += _inside(item)
            else:  # of the record: a template may give it to a macro in each round, but cannot change it
                weight = _SPENT.weights[id(raw)] = weight or weigh(_inside(raw))
                size += weight
        expect(size)
    expect(_SPENT.made, MAX_MADE)
    return size


def _inside(item: Any) -> list[Any]:
    return [*item, *item.values()] if isinstance(item, dict) else [*item]


def expect_growth(name: str, *given: Any) -> None:
    """Estimates the result of a method, filter or operator from its arguments, before it runs.

    Raises:
        TemplateLimit: the result could be too large.
    """
    if name in ("**", "round"):
        expect(max([abs(each) for each in given[1:] if isinstance(each, int)], default=0), MAX_BITS)
        return
    subject: Any = next((each for each in given if isinstance(each, str | list | tuple | dict)), "")
    others = [each for each in given if each is not subject]
    sizes = [each if isinstance(each, int) else weigh(each) for each in others]
    if name in ("%", "format"):
        if not _FROM_ARGUMENTS.search(subject):
            sizes = [weigh(each) for each in others]
        sizes += map(int, _NUMBER.findall(subject))
        times = str.count(subject, "%") + str.count(subject, "{")
    elif name == "replace":
        texts = [each for each in others if isinstance(each, str)]
        times = sum(str.count(subject, each) for each in texts[:1])
    else:
        times = 1 + weigh(subject)
    expect(weigh(subject) + times * max(sizes, default=0), _MAX_GROWTH)
