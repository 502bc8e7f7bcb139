"""What one rendering may make: characters, items and rounds are counted and never timed, so all machines agree.

What makes much from little (`'a' * 10**10`, `'%999999999d' % 1`, `center`) is refused before it is made.
"""

import re
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import jinja2

MAX_CHARACTERS = 1 << 24
"""Characters of a rendering and of a value in it; items of a list."""
MAX_MADE = 1 << 28
"""Characters and items of all large values that a rendering makes, together."""
MAX_ROUNDS = 1 << 21
"""Rounds of loops and calls of macros of a rendering."""
_LARGE = 1 << 10
_MAX_BITS = 4096
_MAX_INDENT = 100

T = TypeVar("T")


class TemplateLimit(jinja2.TemplateError):
    """A rendering makes more than it may."""


class Unwritable:
    """Base of what templates may use but not write: its text would be an address in memory."""

    __slots__ = ()


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
        if _SPENT.made > MAX_MADE:
            raise TemplateLimit(f"the values that it makes have more than {MAX_MADE} characters and items")
    return value


def expect(size: int) -> None:
    """Raises TemplateLimit if something of this size is too large."""
    if size > MAX_CHARACTERS:
        raise TemplateLimit(f"a text or a list in it has more than {MAX_CHARACTERS} characters or items")


def count_round() -> None:
    """Counts a round of a loop, or a call of a macro."""
    _SPENT.rounds += 1
    if _SPENT.rounds > MAX_ROUNDS:
        raise TemplateLimit(f"it takes more than {MAX_ROUNDS} rounds of loops and calls of macros")


def weigh(value: Any) -> None:
    """Raises TemplateLimit if the text of a list or an object is too large: a list may be in another many times."""
    if not isinstance(value, list | tuple | dict):
        return
    total, levels = 0, [iter((value,))]
    while levels:
        for item in levels[-1]:
            if isinstance(item, list | tuple | dict):
                total += len(item)
                levels.append(_inside(item))
                break
            total += len(item) if isinstance(item, str) else 1
        else:
            levels.pop()
        expect(total)


def _inside(value: Any) -> Iterator[Any]:
    return (part for pair in dict.items(value) for part in pair) if isinstance(value, dict) else list.__iter__([*value])


def expect_operator(operator: str, left: Any, right: Any) -> None:
    """Checks what `*`, `**` and `%` would make."""
    if operator == "%":
        if isinstance(left, str):
            _expect_widths(re.findall(r"%[^a-zA-Z%]*", left), "*", right if isinstance(right, tuple) else (right,))
    elif isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
        if bits > _MAX_BITS:
            raise TemplateLimit(f"an integer in it has more than {_MAX_BITS} bits")
    elif operator == "*":
        for many, times in ((left, right), (right, left)):
            if isinstance(many, str | list | tuple) and isinstance(times, int):
                expect(len(many) * times)


def _expect_widths(specifications: list[str], from_arguments: str, arguments: Any) -> None:
    numbers = [int(digits) for each in specifications for digits in re.findall("[0-9]+", each)]
    if any(from_arguments in each for each in specifications):
        numbers += [number for number in arguments if isinstance(number, int)]
    expect(max(numbers, default=0))


def _replaced(text: Any, old: Any = "", new: Any = "", *_: Any, **__: Any) -> int:
    # Methods of `str`, since those of a text may be watched: see `replay`.
    return str.__len__(text) + str.count(text, str(old)) * len(str(new)) if isinstance(text, str) else 0


def _padded(_: Any, width: Any = 0, *__: Any, **___: Any) -> int:
    return width if isinstance(width, int) else 0


def _by_lines(text: Any, width: Any = 4, *_: Any, **__: Any) -> int:
    return (str(text).count("\n") + str(text).count("\t") + 1) * (width if isinstance(width, int) else len(str(width)))


def _translated(text: Any, table: Any = None, *_: Any, **__: Any) -> int:
    values = table.values() if isinstance(table, dict) else ()
    return len(text) * max((len(value) for value in values if isinstance(value, str)), default=1)


def _listed(_: Any, count: Any = 0, *__: Any, **___: Any) -> int:
    return count if isinstance(count, int) else 0


def _joined(separator: str, values: Any = (), *_: Any, **__: Any) -> int:
    return len(separator) * len(values) if isinstance(values, list | tuple | dict | str) else 0


def _formatted(text: Any, *arguments: Any, **named: Any) -> int:
    _expect_widths(re.findall(r"[:%][^{}a-zA-Z]*\{?", str(text)), "{", (*arguments, *named.values()))
    _expect_widths(re.findall(r"%[^a-zA-Z%]*", str(text)), "*", arguments)
    return 0


_OF_METHODS: dict[str, Callable[..., int]] = {
    **dict.fromkeys(("center", "ljust", "rjust", "zfill"), _padded),
    **dict.fromkeys(("format", "format_map"), _formatted),
    "expandtabs": _by_lines,
    "join": _joined,
    "replace": _replaced,
    "translate": _translated,
}
OF_FILTERS: dict[str, Callable[..., int]] = {
    **dict.fromkeys(("batch", "slice"), _listed),
    **dict.fromkeys(("center", "truncate", "wordwrap"), _padded),
    "format": _formatted,
    "indent": _by_lines,
    "replace": _replaced,
}
"""Filter -> the size of what it would make of its arguments."""


def expect_method(owner: str, name: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Checks what a method of a text would make."""
    size = _OF_METHODS.get(name)
    if size is not None:
        expect(size(owner, *arguments, **named))


def expect_indent(indent: Any) -> None:
    """Checks the indent of JSON."""
    if isinstance(indent, int) and indent > _MAX_INDENT:
        raise TemplateLimit(f"an indent is {indent}, at most {_MAX_INDENT} are written")
