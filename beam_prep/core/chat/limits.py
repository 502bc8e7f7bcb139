"""What one rendering may cost: characters and work, both counted and never timed, so they are the same everywhere.

Every step of a template (a call, a filter, an operator, a round of a loop) costs `STEP` units of work, and one more for
each character that it gives. What could give much from little (`'a' * 10**10`, `'%999999999d' % 1`) is computed only
after its size is known: see `growth`. So a rendering holds no more than it has paid for.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import jinja2
import jinja2.utils

MAX_CHARACTERS = 1 << 24
"""Characters of a rendering, and of any value in it. An item of a list counts as `ITEM` characters."""

MAX_WORK = 1 << 27
"""Units of work of a rendering."""

MAX_CALLS = 64
"""Calls within one another: of macros, and of loops that call themselves."""

MAX_DEPTH = 600
"""Levels of a value that becomes text: more than a line of the input may have."""

MAX_INDENTED_DEPTH = 100
"""The same where Python needs several frames a level: JSON with an indent, `pprint`."""

MAX_BITS = 4096
"""Bits of an integer."""

MAX_FOLDED = 1 << 16
"""Characters of a value that jinja computes when it compiles a template."""

MAX_TRACED = 1 << 21
"""Units of work of a rendering that is traced: see `recorded`. jinja renders what costs more."""

MAX_PLANNED = 1 << 20
"""Characters of a text that a plan computes. jinja renders what has longer ones."""

STEP, ITEM, NODE = 64, 16, 4


class TemplateLimit(jinja2.TemplateError):
    """A rendering costs more than it may."""


class Budget:
    """The cost of one rendering so far."""

    __slots__ = ("calls", "limit", "work")

    def __init__(self, limit: int = MAX_WORK) -> None:
        self.limit, self.work, self.calls = limit, 0, 0

    def charge(self, work: int) -> None:
        """Counts work.

        Raises:
            TemplateLimit: it is too much.
        """
        self.work += work
        if self.work > self.limit:
            raise TemplateLimit(
                f"it takes more than {self.limit} units of work (a step is {STEP}, a character that it gives is 1)"
            )

    def enter(self) -> None:
        """Counts a call. It ends when `calls` is one less."""
        self.calls += 1
        if self.calls > MAX_CALLS:
            raise TemplateLimit(f"more than {MAX_CALLS} calls within one another")


class _Active(threading.local):
    budget: Budget | None = None


_ACTIVE = _Active()


@contextmanager
def limited(work: int = MAX_WORK) -> Iterator[Budget]:
    """Limits what runs within, in this thread."""
    before = _ACTIVE.budget
    budget = _ACTIVE.budget = Budget(work)
    try:
        yield budget
    finally:
        _ACTIVE.budget = before


def active_budget() -> Budget | None:
    """The budget of the present rendering; None while a template is compiled."""
    return _ACTIVE.budget


def expect(size: int) -> None:
    """Takes note that a value of this size is about to be made.

    Raises:
        TemplateLimit: it is too large.
    """
    most = MAX_FOLDED if _ACTIVE.budget is None else MAX_CHARACTERS
    if size > most:
        raise TemplateLimit(f"a text or list in it has more than {most} characters (an item of a list is {ITEM})")


def charge(work: int) -> None:
    """Counts work in the present rendering."""
    budget = _ACTIVE.budget
    if budget is not None:
        budget.work += work
        if budget.work > budget.limit:
            budget.charge(0)


def made(value: Any) -> Any:
    """Counts a value that a step gave, and the step; gives the value."""
    size = len(value) if type(value) is str else size_of(value)
    budget = _ACTIVE.budget
    if budget is None or size > MAX_CHARACTERS:
        expect(size)
    else:
        budget.work += STEP + size
        if budget.work > budget.limit:
            budget.charge(0)
    return value


def size_of(value: Any) -> int:
    """Characters of a value, without what its items hold.

    Raises:
        TemplateLimit: it is an integer that is too large.
    """
    kind = type(value)  # `isinstance` would ask a tracer, which refuses
    if kind is int:
        if value.bit_length() > MAX_BITS:
            raise TemplateLimit(f"an integer in it has more than {MAX_BITS} bits")
        return 0
    if issubclass(kind, str | bytes):
        return len(value)
    return ITEM * (len(value) + 4) if issubclass(kind, list | tuple | dict) else 0


_LISTS: tuple[type, ...] = (list, tuple, type({}.keys()), type({}.values()), type({}.items()))


def _inside(value: Any) -> Iterable[Any] | None:
    """What a container holds, None for other values."""
    kind = type(value)
    if issubclass(kind, dict):
        return (part for pair in value.items() for part in pair)
    if issubclass(kind, jinja2.utils.Namespace):
        return _inside(value._Namespace__attrs)
    return value if issubclass(kind, _LISTS) else None


def weigh(value: Any, most_levels: int = MAX_DEPTH) -> int:
    """Characters of a value as text, roughly: with all that its items hold, each time that they are in it.

    Raises:
        TemplateLimit: it is too large, or nested too deeply.
    """
    inside = None if type(value) is str else _inside(value)
    if inside is None:
        size = size_of(value)
        expect(size)
        return size
    total, levels = ITEM, [iter(inside)]
    while levels:
        for item in levels[-1]:
            total += ITEM
            inside = None if type(item) is str else _inside(item)
            if inside is not None:
                if len(levels) == most_levels:
                    raise TemplateLimit(f"a value in it has more than {most_levels} levels")
                levels.append(iter(inside))
                break
            total += size_of(item)
            expect(total)
        else:
            levels.pop()
    expect(total)
    return total


def weighed(value: Any) -> Any:
    """A value that is about to be compared, which takes as long as it is large."""
    if _inside(value) is not None:
        charge(weigh(value))
    return value


def counted(items: Iterator[Any]) -> Iterator[Any]:
    """An iterator whose items are paid for when they are taken."""
    for item in items:
        yield made(item)


def as_text(value: Any) -> str:
    """`str`, of templates."""
    if type(value) is str:
        return value
    weigh(value)
    text = str(value)
    made(text)
    return text


def concatenated(parts: Iterable[str]) -> str:
    """`"".join`, of templates."""
    found, total = [], 0
    for part in parts:
        total += len(part)
        expect(total)
        found.append(part)
    charge(STEP + total)
    return "".join(found)


def joining(join: Callable[[Iterable[Any]], str]) -> Callable[[Iterable[Any]], str]:
    """`str_join` and `markup_join` (`~`), of templates."""

    def run(parts: Iterable[Any]) -> str:
        given = tuple(parts)
        if {*map(type, given)} == {str}:
            expect(sum(map(len, given)))
        else:
            expect(sum(map(weigh, given)))
        text = join(given)
        made(text)
        return text

    return run
