"""The size of a value before it is made, for every method, operator and filter that gives much from little.

Arguments that Python refuses are of no size here: the call itself then raises what it always raises.
"""

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from string import Formatter
from typing import Any

from jinja2.sandbox import SandboxedEscapeFormatter, SandboxedFormatter
from jinja2.utils import _PassArg
from markupsafe import Markup

from beam_prep.core.chat.limits import (
    ITEM,
    MAX_BITS,
    MAX_INDENTED_DEPTH,
    TemplateLimit,
    charge,
    counted,
    expect,
    made,
    size_of,
    weigh,
    weighed,
)

_SHORT = 1 << 20
"""Texts up to this size are within the limit in whatever way they are split."""
_LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
_CONVERSION = re.compile(
    r"%(?:\((?P<key>(?:[^()]|\([^()]*\))*)\))?[#0\- +]*(?P<width>\*|[0-9]+)?(?:\.(?P<precision>\*|[0-9]*))?[hlL]?.",
    re.DOTALL,
)


def _number(value: Any) -> int:
    return max(value, 0) if isinstance(value, int) else 0


def _largest(values: Any) -> int:
    return max(map(_number, values), default=0)


def _lines(text: Any) -> int:
    ends: Any = _LINE_ENDS if isinstance(text, str) else (b"\n", b"\r")
    return sum(map(text.count, ends))


def _is_text(value: Any) -> bool:
    return isinstance(value, str | bytes)


# Methods of texts and integers.


def _padded(text: Any, width: Any = 0, *_: Any, **__: Any) -> int:
    return max(len(text), _number(width))


def _expanded(text: Any, tabsize: Any = 8, *_: Any, **__: Any) -> int:
    return len(text) + int(text.count("\t" if isinstance(text, str) else b"\t")) * _number(tabsize)


def replaced_size(text: Any, old: Any = None, new: Any = None, count: Any = -1, *_: Any, **__: Any) -> int:
    """The length of `text.replace(old, new, count)`."""
    if not (
        _is_text(old) and _is_text(new) and isinstance(old, bytes) == isinstance(new, bytes) == isinstance(text, bytes)
    ):
        return len(text)
    places: int = text.count(old)
    if isinstance(count, int) and count >= 0:
        places = min(places, count)
    return len(text) + places * max(len(new) - len(old), 0)


def _split(text: Any, sep: Any = None, maxsplit: Any = -1, *_: Any, **__: Any) -> int:
    if len(text) <= _SHORT:
        return 0
    if isinstance(maxsplit, int) and 0 <= maxsplit < _SHORT:
        return ITEM * (maxsplit + 1)
    if _is_text(sep) and sep and isinstance(sep, bytes) == isinstance(text, bytes):
        return ITEM * (int(text.count(sep)) + 1)
    words: Any = re.finditer(r"\S+" if isinstance(text, str) else rb"\S+", text)
    return ITEM * sum(1 for _ in words)


def _split_lines(text: Any, *_: Any, **__: Any) -> int:
    return 0 if len(text) <= _SHORT else ITEM * (_lines(text) + 1)


def _translated(text: Any, table: Any = None, *_: Any, **__: Any) -> int:
    found = table.values() if isinstance(table, Mapping) else table if isinstance(table, list | tuple) else ()
    return len(text) * max((len(each) for each in found if _is_text(each)), default=1)


def _coded(text: Any, encoding: Any = "utf-8", *_: Any, **__: Any) -> int:
    plain = isinstance(encoding, str) and encoding.lower().replace("_", "-") in ("utf-8", "utf8", "ascii", "latin-1")
    return len(text) if plain else ITEM * ITEM * len(text)  # some take time that grows with the square


def _as_bytes(_: int, length: Any = 1, *__: Any, **___: Any) -> int:
    return _number(length)


_METHODS: dict[str, Callable[..., int]] = {
    **dict.fromkeys(("center", "ljust", "rjust", "zfill"), _padded),
    "expandtabs": _expanded,
    "replace": replaced_size,
    **dict.fromkeys(("split", "rsplit"), _split),
    "splitlines": _split_lines,
    "translate": _translated,
    **dict.fromkeys(("encode", "decode"), _coded),
    "to_bytes": _as_bytes,
}


def expect_method(owner: Any, name: str, args: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, ...]:
    """Takes note that a method of a value is about to be called; gives its arguments.

    Raises:
        TemplateLimit: it would give too much.
    """
    if name == "join" and _is_text(owner) and len(args) == 1:
        items = _listed(args[0])
        expect(weigh(items) + len(owner) * (len(items) if isinstance(items, list | tuple | str | dict) else 0))
        return (items,)
    if name in _METHODS and (_is_text(owner) or name == "to_bytes"):
        expect(_METHODS[name](owner, *args, **options))
    if _is_text(owner):
        charge(len(owner))
    else:  # what is looked for is compared, or has a hash: both take as long as it is large
        for value in args:
            weighed(value)
        if name in ("index", "count"):
            weighed(owner)
    return args


def _listed(value: Any) -> Any:
    """A value that can be iterated more than once. An iterator's items are paid for when they are taken."""
    if isinstance(value, str | bytes):
        expect(ITEM * len(value))
        return value
    if isinstance(value, list | tuple | dict) or value is None or not hasattr(value, "__iter__"):
        return value
    return list(value)


# Operators.


def expect_operator(operator: str, left: Any, right: Any) -> None:
    """Takes note that an operator is about to be used.

    Raises:
        TemplateLimit: it would give too much.
    """
    if operator == "+":
        expect(size_of(left) + size_of(right))
    elif operator == "*":
        for many, times in ((left, right), (right, left)):
            if isinstance(times, int) and not isinstance(many, int):
                size = len(many) if _is_text(many) else ITEM * len(many) if isinstance(many, list | tuple) else 0
                expect(size * _number(times))
    elif operator == "**":
        if isinstance(left, int) and isinstance(right, int) and (abs(left).bit_length() - 1) * right > MAX_BITS:
            raise TemplateLimit(f"an integer in it has more than {MAX_BITS} bits")
    elif operator == "%" and _is_text(left):
        expect(_formatted(left, right))


def _formatted(form: Any, values: Any) -> int:
    text = form if isinstance(form, str) else form.decode("latin-1")
    total, given = len(text), values if isinstance(values, tuple) else (values,)
    keyed = False
    for found in _CONVERSION.finditer(text):
        for number in (found["width"], found["precision"]):
            if number:
                total += (
                    _largest(map(abs, filter(lambda each: isinstance(each, int), given)))
                    if number == "*"
                    else int(number)
                )
        if found["key"] is not None and isinstance(values, Mapping):
            keyed = True
            total += weigh(values.get(found["key"]))
        expect(total)
    return total if keyed else total + weigh(values)


# `str.format`.


class _Measured(Formatter):
    """Counts what the fields of a format give."""

    _total = 0

    def format_field(self, value: Any, format_spec: str) -> Any:
        expect(self._total + weigh(value) + sum(map(int, re.findall("[0-9]+", format_spec))))
        text = super().format_field(value, format_spec)
        self._total += len(text)
        return made(text)

    def convert_field(self, value: Any, conversion: Any) -> Any:
        weigh(value)
        return made(super().convert_field(value, conversion))


class _MeasuredFormatter(_Measured, SandboxedFormatter):
    pass


class _MeasuredEscapeFormatter(_Measured, SandboxedEscapeFormatter):
    pass


def measured_format(environment: Any, method: Any) -> Callable[..., str]:
    """`format` and `format_map` of a text, as jinja's sandbox wraps them."""
    text, mapped = method.__self__, method.__name__ == "format_map"

    @functools.wraps(method)
    def run(*args: Any, **options: Any) -> str:
        if mapped:
            if options:
                raise TypeError("format_map() takes no keyword arguments")
            if len(args) != 1:
                raise TypeError(f"format_map() takes exactly one argument ({len(args)} given)")
            options, args = args[0], ()
        formatter: Any = (
            _MeasuredEscapeFormatter(environment, escape=text.escape)
            if isinstance(text, Markup)
            else _MeasuredFormatter(environment)
        )
        found: str = type(text)(formatter.vformat(text, args, options))
        return found

    return run


# Filters. Each function takes the filter's arguments, and gives the first of them, which it may have listed.


def _text(value: Any, *_: Any, **__: Any) -> Any:
    weigh(value)
    return value


def _words(value: Any, *_: Any, **__: Any) -> Any:
    expect(ITEM * weigh(value))
    return value


def _items(value: Any, *_: Any, **__: Any) -> Any:
    return _listed(value)


def _weighed_items(value: Any, *_: Any, **__: Any) -> Any:
    value = _listed(value)
    weigh(value)
    return value


def _centered(value: Any, width: Any = 80, *_: Any, **__: Any) -> Any:
    expect(max(weigh(value), _number(width)))
    return value


def _indented(value: Any, width: Any = 4, *_: Any, **__: Any) -> Any:
    by = len(width) if isinstance(width, str) else _number(width)
    size = weigh(value)
    expect(size + by * ((_lines(value) if isinstance(value, str) else 0) + 2))
    return value


def _replacing(value: Any, old: Any = "", new: Any = "", count: Any = None, *_: Any, **__: Any) -> Any:
    weigh(value)
    weigh(old)
    weigh(new)
    expect(replaced_size(str(value), str(old), str(new), -1 if count is None else count))
    return value


def _joining(value: Any, d: Any = "", *_: Any, **__: Any) -> Any:
    value = _listed(value)
    count = len(value) if isinstance(value, list | tuple | str | dict) else 0
    expect(weigh(value) + weigh(d) * count)
    return value


def _formatting(value: Any, *args: Any, **options: Any) -> Any:
    weigh(value)
    expect(_formatted(str(value), options or args))
    return value


def _summing(value: Any, attribute: Any = None, start: Any = 0, *_: Any, **__: Any) -> Any:
    value = _listed(value)
    size = weigh(value)
    if isinstance(value, list | tuple | dict) and not isinstance(start, int | float):
        charge(size * len(value))  # each sum is a copy of the one before
    return value


def _batched(value: Any, linecount: Any = 0, fill_with: Any = None, *_: Any, **__: Any) -> Any:
    value = _listed(value)
    if fill_with is not None:
        expect(ITEM * _number(linecount))
    return value


def _wrapped(
    value: Any, width: Any = 79, break_long_words: Any = True, wrapstring: Any = None, *_: Any, **__: Any
) -> Any:
    size = weigh(value)
    expect(size * (ITEM + (len(wrapstring) if isinstance(wrapstring, str) else 0)))
    return value


def _linked(value: Any, *args: Any, **options: Any) -> Any:
    added = sum(weigh(each) for each in (*args, *options.values()) if each is not None)
    expect(weigh(value) * (ITEM + added))
    return value


def _json(value: Any, ensure_ascii: Any = False, indent: Any = None, separators: Any = None, *_: Any, **__: Any) -> Any:
    added = len(indent) if isinstance(indent, str) else _number(indent)
    size = weigh(value) if indent is None else weigh(value, MAX_INDENTED_DEPTH)
    if separators is not None:
        size += size // ITEM * weigh(separators)
    if added:
        # Before it looks at the value, Python makes a text of the indent.
        size += added + size // ITEM * (added * levels_of(value) + 2)
    expect(size)
    return value


def levels_of(value: Any) -> int:
    """Levels of lists and objects, of a value that `weigh` accepts."""
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else None
    return 0 if inside is None else 1 + max(map(levels_of, inside), default=0)


def _printed(value: Any, *_: Any, **__: Any) -> Any:
    weigh(value, MAX_INDENTED_DEPTH)
    return value


def _rounded(value: Any, precision: Any = 0, *_: Any, **__: Any) -> Any:
    if isinstance(precision, int) and precision > MAX_BITS:
        raise TemplateLimit(f"a precision of more than {MAX_BITS} digits")
    return value


_FILTERS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("upper", "lower", "capitalize", "trim", "string", "truncate", "safe", "xmlattr"), _text),
    **dict.fromkeys(("escape", "e", "forceescape", "urlencode"), _text),
    **dict.fromkeys(("title", "striptags", "wordcount"), _words),
    **dict.fromkeys(("list", "slice", "reverse"), _items),
    **dict.fromkeys(("sort", "unique", "groupby", "min", "max", "dictsort"), _weighed_items),
    "center": _centered,
    "indent": _indented,
    "replace": _replacing,
    "join": _joining,
    "format": _formatting,
    "sum": _summing,
    "batch": _batched,
    "wordwrap": _wrapped,
    "urlize": _linked,
    "tojson": _json,
    "pprint": _printed,
    "round": _rounded,
}


def measured_filter(name: str, function: Callable[..., Any], stream: Callable[[Iterator[Any]], Any]) -> Any:
    """A filter that is measured.

    Args:
        name: its name.
        function: the filter.
        stream: makes of an iterator what templates get.
    """
    passed = 0 if _PassArg.from_obj(function) is None else 1
    prepare = _FILTERS.get(name)

    @functools.wraps(function)
    def run(*args: Any, **options: Any) -> Any:
        if prepare is not None and len(args) > passed:
            args = (*args[:passed], prepare(*args[passed:], **options), *args[passed + 1 :])
        found = function(*args, **options)
        return stream(counted(found)) if isinstance(found, Iterator) else made(found)

    run.unmeasured = function  # type: ignore[attr-defined]
    return run


def unmeasured(function: Any) -> Any:
    """The filter itself, of one that is measured."""
    return getattr(function, "unmeasured", function)
