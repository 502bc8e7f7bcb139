"""Limits of one rendering: characters, items and rounds are counted and never timed, so all machines agree.

Operations that make much from little (`'a' * 10**10`, `'%999999999d' % 1`, `center`) are refused before they run.
"""

import re
import threading
from typing import Any, TypeVar

import jinja2

MAX_CHARACTERS = 1 << 24
"""Most characters of a rendering and of a value in it; most items of a list."""
MAX_ROUNDS = 1 << 20
"""Most rounds of loops and calls of macros in a rendering."""
_MAX_GROWTH = 1 << 26
"""Most that `expect_growth` lets pass: its estimates are larger than the results."""
MAX_BITS = 4096
"""Most bits of a whole number."""

GROWING = frozenset("batch slice center wordwrap format indent replace round ljust rjust zfill".split())
"""Filters, and methods of texts, whose result may be much larger than their input."""
REFUSED = frozenset(("encode", "expandtabs", "translate"))
"""Methods of texts that templates may not call: no template needs them."""
_NUMBER = re.compile("[0-9]+")

T = TypeVar("T")


class TemplateLimit(jinja2.TemplateError):
    """A rendering exceeds a limit."""


class _Spent(threading.local):
    """What this thread's current rendering has taken so far."""

    rounds = 0


_SPENT = _Spent()


def begin() -> None:
    """Begins a rendering."""
    _SPENT.rounds = 0


def bounded(value: T) -> T:
    """The text or list, if it is not too large. For errors see `expect`."""
    expect(len(value))  # type: ignore[arg-type]
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


def expect_growth(name: str, *given: Any) -> None:
    """Estimates the result of a method, filter or operator from its arguments, before it runs.

    Raises:
        TemplateLimit: the result could be too large.
    """
    numbers = [abs(each) for each in given if isinstance(each, int)]
    if name in ("**", "round"):
        expect(max(numbers, default=0), MAX_BITS)
        return
    values = [each for each in given if isinstance(each, str | list | tuple | dict)]
    sizes = [*map(len, values)]
    if name in ("%", "format"):
        times = [*map(int, _NUMBER.findall(str(values[0])))]
    elif name == "replace":
        times = sizes[2:]
    else:
        times = numbers + sizes[1:]
    expect((1 + sum(sizes)) * max(times, default=1), _MAX_GROWTH)
