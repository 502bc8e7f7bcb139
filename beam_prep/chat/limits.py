"""What one rendering may make: characters, items and rounds are counted and never timed, so all machines agree.

What makes much from little (`'a' * 10**10`, `'%999999999d' % 1`, `center`) is refused before it is made.
"""

import re
import threading
from typing import Any, TypeVar

import jinja2

MAX_CHARACTERS = 1 << 24
"""Characters of a rendering and of a value in it; items of a list."""
MAX_MADE = 1 << 28
"""Characters and items of all large values that a rendering makes, together."""
MAX_ROUNDS = 1 << 20
"""Rounds of loops and calls of macros of a rendering."""
_MAX_GROWTH = 1 << 26
"""What `expect_growth` lets pass: it reckons with more than is made."""
MAX_BITS = 4096
"""Of a whole number."""
_LARGE = 1 << 10
_ITEM = 16
"""Characters that an item counts as: see `weigh`."""

GROWING = frozenset("batch slice center wordwrap format indent replace round ljust rjust zfill".split())
"""Filters, and methods of texts, that may give much more than they are given."""
REFUSED = frozenset(("encode", "expandtabs", "translate"))
"""Methods of texts that no template needs."""
_NUMBER = re.compile("[0-9]+")
_FROM_ARGUMENTS = re.compile(r"\*|\{[^{}]+\{")
"""A width that is an argument: `%*d`, `{:{}}`."""

T = TypeVar("T")


class TemplateLimit(jinja2.TemplateError):
    """A rendering makes more than it may."""


class _Spent(threading.local):
    """What the present rendering of this thread has made."""

    made = 0
    rounds = 0


_SPENT = _Spent()


def begin() -> None:
    """Begins a rendering."""
    _SPENT.made = _SPENT.rounds = 0


def bounded(value: T) -> T:
    """A text or a list that was made.

    Raises:
        TemplateLimit: it is too large, or all of them together are.
    """
    size = len(value)  # type: ignore[arg-type]
    if size > _LARGE:
        expect(size)
        _SPENT.made += size
        expect(_SPENT.made, MAX_MADE)
    return value


def expect(size: int, most: int = MAX_CHARACTERS) -> None:
    """Raises TemplateLimit if something of this size is too large."""
    if size > most:
        raise TemplateLimit(f"what it makes has more than {most} characters or items")


def count_round() -> None:
    """Counts a round of a loop, or a call of a macro."""
    _SPENT.rounds += 1
    if _SPENT.rounds > MAX_ROUNDS:
        raise TemplateLimit(f"it takes more than {MAX_ROUNDS} rounds of loops and calls of macros")


def weigh(value: Any) -> int:
    """The characters of a text, or of the text of a list or an object; 1 of others.

    Raises:
        TemplateLimit: it is too large: a list may be in another many times.
    """
    if isinstance(value, str):
        return str.__len__(value)  # of `str`, since methods of a text may be watched: see `replay`
    if not isinstance(value, list | tuple | dict):
        return 1
    size, inside = 0, [value]
    while inside:
        item = inside.pop()
        _SPENT.made += _ITEM  # a list that grows by a level in each round is looked at in each
        if isinstance(item, dict):
            item = [*dict.keys(item), *dict.values(item)]
        if isinstance(item, list | tuple):
            inside += item
        size += _ITEM + len(item) if isinstance(item, str) else _ITEM
        expect(size)
    expect(_SPENT.made, MAX_MADE)
    return size


def expect_growth(name: str, *given: Any) -> None:
    """Checks what a method, a filter or an operator would make of a text or list, and of what else it is given."""
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
        times = str.count(subject, texts[0]) if texts else 0
    else:
        times = 1 + weigh(subject)
    expect(weigh(subject) + times * max(sizes, default=0), _MAX_GROWTH)
