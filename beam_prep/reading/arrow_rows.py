"""Rows of Arrow's tables -> lines of JSON, as a file of JSONL would have them.

Types that JSON has are what they are: numbers, booleans, texts, lists; structs and maps are objects. The others:

* Timestamps (in UTC), dates and times become texts: `2026-11-22 18:07:38Z`, `2026-11-22`, `18:07:38`.
* Decimals become numbers, with all their digits.
* Bytes become an object, `{"binary": 1234}`, with how many they are. A config that reads them as text rejects the
  record.
* A null member of a struct, and a null column, is left out, as tables fill in the members that other records have. Only
  `content`, which chat templates look for in every message, stays null. Nulls in lists and maps stay.
* What JSON cannot say (a number that is not finite, bytes in a text that are no UTF-8, a timestamp out of range, a key
  twice in a map) makes a line that `parse` rejects.

The other types (durations, unions ...) are problems of the file: see `type_problem`.
"""

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

MAX_DEPTH = 200
"""Levels of nesting of a column: orjson writes 254."""

_KEPT_NULL = "content"
_ESCAPES = {byte: f"\\u{byte:04x}".encode() for byte in range(32)} | {34: b'\\"', 92: b"\\\\"}


def schema_problem(schema: pa.Schema) -> str | None:
    """What of a table cannot be lines of JSON; None: all can.

    >>> schema_problem(pa.schema([("took", pa.duration("s"))]))
    "column 'took' is of type duration[s], which JSON does not have"
    """
    if twice := _twice(schema.names):
        return f"two columns have the name {twice!r}"
    for field in schema:
        if (problem := _problem(field.type, f"column {field.name!r}", 1)) is not None:
            return problem
    return None


def _problem(kind: pa.DataType, where: str, depth: int) -> str | None:
    kind = _plain(kind)
    if depth > MAX_DEPTH:
        return f"{where} is nested deeper than {MAX_DEPTH} levels"
    if types.is_dictionary(kind) or types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _problem(kind.value_type, where, depth + 1)
    if types.is_struct(kind):
        members = [kind.field(place) for place in range(kind.num_fields)]
        if twice := _twice([member.name for member in members]):
            return f"{where} has two members of the name {twice!r}"
        found = (_problem(member.type, where, depth + 1) for member in members)
        return next((problem for problem in found if problem is not None), None)
    if types.is_map(kind):
        if _writer(kind.key_type) is not _texts:
            return f"{where} is a map with keys of type {kind.key_type}, wanted texts"
        return _problem(kind.item_type, where, depth + 1)
    return None if _writer(kind) is not None else f"{where} is of type {kind}, which JSON does not have"


def _twice(names: Sequence[str]) -> str | None:
    return next((name for place, name in enumerate(names) if name in names[:place]), None)


def lines_of(rows: pa.RecordBatch) -> Iterator[bytes]:
    """A line of JSON for each row, without its line end.

    Args:
        rows: whose schema has no `schema_problem`.

    >>> rows = pa.record_batch({"messages": [[{"role": "user", "content": "Hi"}]], "score": [0.5], "note": [None]})
    >>> list(lines_of(rows))
    [b'{"messages":[{"role":"user","content":"Hi"}],"score":0.5}']
    """
    columns = [values(column) for column in rows.columns]
    return map(orjson.dumps, _objects(rows.schema.names, columns, rows.num_rows))


def values(array: pa.Array) -> list[Any]:
    """The values of an array, as `orjson.dumps` takes them."""
    if isinstance(array, pa.ExtensionArray):
        return values(array.storage)
    if types.is_dictionary(array.type):
        found = values(array.dictionary)
        return _with_nulls([found[index] for index in _numbers(array.indices.fill_null(0))] if found else [], array)
    write = _writer(array.type)
    assert write is not None, array.type
    return _with_nulls(write(array), array)


def _with_nulls(found: list[Any], array: pa.Array) -> list[Any]:
    if array.null_count:
        found = found or [None] * len(array)  # of a dictionary without entries
        for place in np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False)).tolist():
            found[place] = None
    return found


def _objects(names: Sequence[str], members: Sequence[list[Any]], count: int) -> list[dict[str, Any]]:
    if not names:
        return [{} for _ in range(count)]
    rows = [dict(zip(names, row, strict=True)) for row in zip(*members, strict=True)]
    for name, member in zip(names, members, strict=True):
        if name != _KEPT_NULL and None in member:
            for row, value in zip(rows, member, strict=True):
                if value is None:
                    del row[name]
    return rows


def _structs(array: pa.StructArray) -> list[Any]:
    names = [array.type.field(place).name for place in range(array.type.num_fields)]
    return _objects(names, [values(array.field(place)) for place in range(len(names))], len(array))


def _lists(array: pa.ListArray) -> list[Any]:
    if types.is_fixed_size_list(array.type):
        width = array.type.list_size
        inner = values(array.values.slice(array.offset * width, len(array) * width))
        return (
            [inner[start : start + width] for start in range(0, len(array) * width, width)]
            if width
            else ([[] for _ in range(len(array))])
        )
    offsets = array.offsets.to_numpy()
    inner = values(array.values.slice(offsets[0], offsets[-1] - offsets[0]))
    ends = (offsets - offsets[0]).tolist()
    return [inner[start:stop] for start, stop in itertools.pairwise(ends)]


def _maps(array: pa.MapArray) -> list[Any]:
    offsets = array.offsets.to_numpy()
    first, count = offsets[0], offsets[-1] - offsets[0]
    keys, items = values(array.keys.slice(first, count)), values(array.items.slice(first, count))
    ends = (offsets - first).tolist()
    return [_map(keys[start:stop], items[start:stop]) for start, stop in itertools.pairwise(ends)]


def _map(keys: list[Any], items: list[Any]) -> Any:
    texts = [key for key in keys if type(key) is str]
    if len(set(texts)) == len(keys):
        return dict(zip(texts, items, strict=True))
    pairs = (b"%b:%b" % (orjson.dumps(key), orjson.dumps(item)) for key, item in zip(keys, items, strict=True))
    return orjson.Fragment(b"{%b}" % b",".join(pairs))


def _numbers(array: pa.Array) -> list[Any]:
    found: list[Any] = array.fill_null(0).to_numpy(zero_copy_only=False).tolist()
    return found


def _booleans(array: pa.Array) -> list[Any]:
    found: list[Any] = array.fill_null(False).to_numpy(zero_copy_only=False).tolist()
    return found


def _floats(array: pa.Array) -> list[Any]:
    # The nulls of floats are no numbers either, and are replaced later.
    numbers = array.to_numpy(zero_copy_only=False).astype(np.float64)
    found: list[Any] = numbers.tolist()
    for place in np.flatnonzero(~np.isfinite(numbers)).tolist():
        found[place] = orjson.Fragment(json.dumps(found[place]))
    return found


def _decimals(array: pa.Array) -> list[Any]:
    return [text and orjson.Fragment(text) for text in _texts(array.cast(pa.string()))]


def _texts(array: pa.Array) -> list[Any]:
    try:
        found: list[Any] = array.to_numpy(zero_copy_only=False).tolist()
    except (pa.ArrowException, UnicodeDecodeError):  # which of them depends on the version
        found = list(map(_text, array.cast(pa.large_binary()).to_numpy(zero_copy_only=False).tolist()))
    return found


def _text(data: bytes | None) -> Any:
    """A text; a quoted string that no parser takes, of bytes that are no UTF-8."""
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError:
        return orjson.Fragment(b'"%b"' % b"".join(_ESCAPES.get(byte, bytes([byte])) for byte in data or b""))


def _views(array: pa.Array) -> list[Any]:
    return _texts(array.cast(pa.large_string()))


def _times(array: pa.Array) -> list[Any]:
    if types.is_timestamp(array.type) and array.type.tz is not None:
        array = array.cast(pa.timestamp(array.type.unit, "UTC"))  # in others, a machine's own table of zones is used
    found = _texts(array.cast(pa.string()))
    return [orjson.Fragment(text) if text is not None and text.startswith("<") else text for text in found]


def _bytes(array: pa.Array) -> list[Any]:
    if types.is_fixed_size_binary(array.type):
        return [{"binary": array.type.byte_width} for _ in range(len(array))]
    return [{"binary": size} for size in _numbers(pc.binary_length(array))]


def _nulls(array: pa.Array) -> list[Any]:
    return [None] * len(array)


_WRITERS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[Any], list[Any]]], ...] = (
    (types.is_struct, _structs),
    (types.is_list, _lists),
    (types.is_large_list, _lists),
    (types.is_fixed_size_list, _lists),
    (types.is_map, _maps),
    (types.is_string, _texts),
    (types.is_large_string, _texts),
    (types.is_string_view, _views),
    (types.is_integer, _numbers),
    (types.is_floating, _floats),
    (types.is_boolean, _booleans),
    (types.is_decimal, _decimals),
    (types.is_timestamp, _times),
    (types.is_date, _times),
    (types.is_time, _times),
    (types.is_binary, _bytes),
    (types.is_large_binary, _bytes),
    (types.is_fixed_size_binary, _bytes),
    (types.is_null, _nulls),
)


def _writer(kind: pa.DataType) -> Callable[[Any], list[Any]] | None:
    return next((write for test, write in _WRITERS if test(kind)), None)


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
