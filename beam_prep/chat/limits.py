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
_LARGE = 1 << 10
_MAX_BITS = 4096
_ITEM = 16
"""Characters that an item counts as: see `weigh`."""

METHODS = frozenset(
    ("center", "ljust", "rjust", "zfill", "format", "format_map", "expandtabs", "join", "replace", "translate")
)
"""Methods of texts that may give much more than they are given."""
FILTERS = frozenset(("batch", "slice", "center", "truncate", "wordwrap", "format", "indent", "replace"))
"""Filters that may."""
_FORMATS = ("format", "format_map", "%")
_WIDTHS = re.compile(r"[%:][^a-zA-Z%{}]*")
_FROM_ARGUMENTS = re.compile(r"\*|[:.][^{}]*\{")

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


def weigh(value: Any) -> None:
    """Raises TemplateLimit if the text of a list or an object is too large: a list may be in another many times."""
    if not isinstance(value, list | tuple | dict):
        return
    size, inside = 0, [value]
    while inside:
        item = inside.pop()
        if isinstance(item, dict):
            item = [*dict.keys(item), *dict.values(item)]
        if isinstance(item, list | tuple):
            inside += item
        size += _ITEM + len(item) if isinstance(item, str) else _ITEM
        expect(size)


def expect_operator(operator: str, left: Any, right: Any) -> None:
    """Checks what `*`, `**` and `%` would make."""
    if operator == "%":
        expect_growth("%", left, right if isinstance(right, tuple) else (right,))
    elif isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
        if bits > _MAX_BITS:
            raise TemplateLimit(f"an integer in it has more than {_MAX_BITS} bits")
    elif operator == "*":
        many, times = (right, left) if isinstance(left, int) else (left, right)
        if isinstance(many, str | list | tuple) and isinstance(times, int):
            expect(len(many) * times)


def expect_growth(name: str, subject: Any, arguments: Any) -> None:
    """Checks what a method or filter would make of a text or list and its arguments."""
    # Methods of `str`, since those of a text may be watched: see `replay`.
    size = (
        str.__len__(subject) if isinstance(subject, str) else len(subject) if isinstance(subject, list | tuple) else 1
    )
    texts = [each for each in arguments if isinstance(each, str | list | tuple | dict)]
    numbers = [each for each in arguments if isinstance(each, int)]
    if name in _FORMATS:
        widths = [int(digits) for each in _WIDTHS.findall(str(subject)) for digits in re.findall("[0-9]+", each)]
        expect(max([*widths, *(numbers if _FROM_ARGUMENTS.search(str(subject)) else [])], default=0))
    elif name == "replace" and isinstance(subject, str) and len(texts) == 2:
        expect(size + str.count(subject, str(texts[0])) * len(texts[1]))
    else:
        expect((size + 1) * max([1, *numbers, *map(len, texts)]), MAX_MADE)
