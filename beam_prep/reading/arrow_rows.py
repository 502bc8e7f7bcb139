"""Rows of Arrow's tables -> lines of JSON, as in a JSONL file.

Types that JSON has stay: numbers, booleans, texts, lists; structs and maps become objects; JSON (`arrow.json`, which is
also Parquet's JSON) becomes its value. The other types:

* Timestamps (in UTC), dates, times and durations become texts: `2026-11-22 18:07:38Z`, `2026-11-22`, `18:07:38`,
  `1 day, 0:00:05`. So do UUIDs.
* Decimals become numbers, with all their digits.
* Tensors of a fixed shape become lists of lists.
* Numbers that are not finite stay: `NaN`, `Infinity`. Bytes become an object with their number, `{"binary": 1234}`. A
  record is rejected if the run reads such a value: see `json_line.check_values`.
* A null member of a struct and a null column are left out, because tables add the members that other records have.
  Only the `content` of a message stays null, because chat templates look for it. Nulls in lists, maps and JSON stay.
* Values that JSON cannot hold reject the record, see `Unfit`: bytes in a text that are no UTF-8, wrong JSON in a JSON
  column, a timestamp out of range, a key twice in a map.

For all other types (intervals, unions ...) the file is refused: see `schema_problem`.
"""

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from beam_prep.data.block import Reject
from beam_prep.data.reasons import Reason
from beam_prep.reading.json_line import BINARY, parse_json

MAX_DEPTH = 200
"""Most levels of nesting of a column: orjson writes 254."""

_KEPT_NULL = "content"


class Unfit(Reject):
    """Stands for a value that JSON cannot hold: its record is rejected.

    Attributes:
        shown: the text that the reject quotes.
    """

    def __init__(self, reason: Reason, message: str, shown: Any) -> None:
        super().__init__(reason, message)
        self.shown = shown


def schema_problem(schema: pa.Schema) -> str | None:
    """Why a table cannot become lines of JSON; None if it can.

    >>> schema_problem(pa.schema([("took", pa.month_day_nano_interval())]))
    "column 'took' is of type month_day_nano_interval, which JSON does not have"
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
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind) or any(is_kind(kind) for is_kind in _LISTS):
        return _problem(kind.value_type, where, depth + 1)
    if types.is_struct(kind):
        members = [kind.field(place) for place in range(kind.num_fields)]
        if twice := _twice([member.name for member in members]):
            return f"{where} has two members of the name {twice!r}"
        found = (_problem(member.type, where, depth + 1) for member in members)
        return next((problem for problem in found if problem is not None), None)
    if types.is_map(kind):
        if not any(is_kind(kind.key_type) for is_kind in _TEXTS):
            return f"{where} is a map with keys of type {kind.key_type}, wanted texts"
        return _problem(kind.item_type, where, depth + 1)
    return None if _writer(kind) is not None else f"{where} is of type {kind}, which JSON does not have"


def _twice(names: Sequence[str]) -> str | None:
    return next((name for place, name in enumerate(names) if name in names[:place]), None)


Line = tuple[bytes, tuple[str, str] | None]
"""A line of JSON without its line end; and (reason, message) if the row is rejected."""


def lines_of(rows: pa.RecordBatch) -> Iterator[Line]:
    """A line of JSON for each row.

    Args:
        rows: a batch without `schema_problem`.

    >>> rows = pa.record_batch({"messages": [[{"role": "user", "content": "Hi"}]], "score": [0.5], "note": [None]})
    >>> list(lines_of(rows))
    [(b'{"messages":[{"role":"user","content":"Hi"}],"score":0.5}', None)]
    """
    columns = [values(column) for column in rows.columns]
    found: list[Unfit] = []

    def shown(value: Unfit) -> Any:
        found.append(value)
        return value.shown

    for row in _objects(rows.schema.names, columns, rows.num_rows, top=True):
        line = orjson.dumps(row, default=shown)
        if not found:
            yield line, None
            continue
        found.clear()
        column = next(name for name, value in row.items() if orjson.dumps(value, default=shown) and found)
        yield line, (found[0].reason, f"column {column!r}: {found[0].message}")
        found.clear()


def values(array: pa.Array) -> list[Any]:
    """The values of an array for `orjson.dumps`; an `Unfit` for each value that JSON cannot hold."""
    if isinstance(array, pa.ExtensionArray):
        extension = _EXTENSIONS.get(array.type.extension_name)
        return values(array.storage) if extension is None else extension(array)
    if types.is_dictionary(array.type):
        return values(array.dictionary.take(array.indices))
    if types.is_run_end_encoded(array.type):
        return values(pc.run_end_decode(array))
    write = _writer(array.type)
    assert write is not None, array.type
    found = write(array)
    if array.null_count:
        for place in np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False)).tolist():
            found[place] = None
    return found


def _objects(names: Sequence[str], members: Sequence[list[Any]], count: int, top: bool = False) -> list[dict[str, Any]]:
    if not names:
        return [{} for _ in range(count)]
    rows = [dict(zip(names, row, strict=True)) for row in zip(*members, strict=True)]
    for name, member in zip(names, members, strict=True):
        if None in member:
            for row, value in zip(rows, member, strict=True):
                # In tools and calls, `content` may be the name of an argument.
                if value is None and not (name == _KEPT_NULL and (top or row.get("role") is not None)):
                    del row[name]
    return rows


def _structs(array: pa.StructArray) -> list[Any]:
    names = [array.type.field(place).name for place in range(array.type.num_fields)]
    return _objects(names, [values(array.field(place)) for place in range(len(names))], len(array))


def _lists(array: pa.Array) -> list[Any]:
    if types.is_fixed_size_list(array.type):
        array = array.cast(pa.large_list(array.type.value_type))
    offsets = array.offsets.to_numpy()
    inner = values(array.values.slice(offsets[0], offsets[-1] - offsets[0]))
    ends = (offsets - offsets[0]).tolist()
    return [inner[start:stop] for start, stop in itertools.pairwise(ends)]


def _list_views(array: pa.ListViewArray) -> list[Any]:
    inner, starts, sizes = values(array.values), array.offsets.to_pylist(), array.sizes.to_pylist()
    return [inner[start : start + size] for start, size in zip(starts, sizes, strict=True)]


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
    unfit = next((key for key in keys if type(key) is not str), None)
    twice = Unfit(
        "duplicate_key", f"the key {_twice(texts)!r} is twice in a map", [*map(list, zip(keys, items, strict=True))]
    )
    return twice if unfit is None else unfit


def _numbers(array: pa.Array) -> list[Any]:
    found: list[Any] = array.fill_null(0).to_numpy().tolist()
    return found


def _booleans(array: pa.Array) -> list[Any]:
    found: list[Any] = array.fill_null(False).to_numpy(zero_copy_only=False).tolist()
    return found


def _floats(array: pa.Array) -> list[Any]:
    # Nulls of floats are NaN here, and are replaced later.
    numbers = array.to_numpy(zero_copy_only=False).astype(np.float64)
    found: list[Any] = numbers.tolist()
    for place in np.flatnonzero(~np.isfinite(numbers)).tolist():
        found[place] = orjson.Fragment(json.dumps(found[place]))
    return found


def _decimals(array: pa.Array) -> list[Any]:
    return [text and orjson.Fragment(text) for text in _texts(array)]


def _texts(array: pa.Array) -> list[Any]:
    try:
        found: list[Any] = array.cast(pa.large_string()).to_numpy(zero_copy_only=False).tolist()
    except (pa.ArrowException, UnicodeDecodeError):  # depends on the version
        found = list(map(_text, array.cast(pa.large_binary()).to_numpy(zero_copy_only=False).tolist()))
    return found


def _text(data: bytes | None) -> Any:
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError as bad:
        message = f"byte {bad.start} of the text is no UTF-8 ({bad.reason})"
        return Unfit("invalid_utf8", message, bad.object.decode(errors="replace"))


def _times(array: pa.Array) -> list[Any]:
    if types.is_timestamp(array.type) and array.type.tz is not None:
        array = array.cast(pa.timestamp(array.type.unit, "UTC"))  # other zones would need the machine's own tables
    return [_in_range(text) for text in _texts(array)]


def _in_range(text: str | None) -> Any:
    return Unfit("not_json", text.strip("<>"), text) if text is not None and text.startswith("<") else text


_UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def _durations(array: pa.DurationArray) -> list[Any]:
    return [_duration(count, _UNITS[array.type.unit]) for count in _numbers(array.cast(pa.int64()))]


def _duration(count: int, in_a_second: int) -> Any:
    """In Python's form: `1 day, 0:00:05.000001`; with nine digits if there are nanoseconds."""
    seconds, rest = divmod(count, in_a_second)
    nanoseconds = rest * 10**9 // in_a_second
    digits = f".{nanoseconds:09}" if nanoseconds % 1000 else f".{nanoseconds // 1000:06}" if nanoseconds else ""
    try:
        return f"{timedelta(seconds=seconds)}{digits}"
    except OverflowError:
        return Unfit("not_json", f"value out of range: {seconds} seconds", seconds)


def _bytes(array: pa.Array) -> list[Any]:
    sizes = _numbers(pc.binary_length(array.cast(pa.large_binary())))
    return [orjson.Fragment(BINARY % size) for size in sizes]


# Extension types


def _json(array: pa.ExtensionArray) -> list[Any]:
    return [_embedded(text) if type(text) is str else text for text in values(array.storage)]


def _embedded(text: str) -> Any:
    line = text.encode()
    try:
        value = parse_json(line, constants=float)
    except Reject as reject:
        return Unfit(reject.reason, f"its JSON is refused, {reject.message}", text)
    # As written, so that numbers keep their digits; line ends stand only between values.
    return None if value is None else orjson.Fragment(line.replace(b"\n", b" "))


def _tensors(array: pa.ExtensionArray) -> list[Any]:
    shape = array.type.shape
    order = array.type.permutation or range(len(shape))
    return [
        None if row is None else np.array(row, object).reshape(shape).transpose(order).tolist()
        for row in values(array.storage)
    ]


_EXTENSIONS: dict[str, Callable[[Any], list[Any]]] = {
    "arrow.json": _json,
    "arrow.bool8": lambda array: values(array.storage.cast(pa.bool_())),
    "arrow.uuid": lambda array: [None if data is None else str(UUID(bytes=data)) for data in array.storage.to_pylist()],
    "arrow.fixed_shape_tensor": _tensors,
}
"""By name, because the classes depend on the version of pyarrow. Other extension types are read from their storage."""

_WRITERS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[Any], list[Any]]], ...] = (
    (types.is_struct, _structs),
    (types.is_list, _lists),
    (types.is_large_list, _lists),
    (types.is_fixed_size_list, _lists),
    (types.is_list_view, _list_views),
    (types.is_large_list_view, _list_views),
    (types.is_map, _maps),
    (types.is_string, _texts),
    (types.is_large_string, _texts),
    (types.is_string_view, _texts),
    (types.is_integer, _numbers),
    (types.is_floating, _floats),
    (types.is_boolean, _booleans),
    (types.is_decimal, _decimals),
    (types.is_timestamp, _times),
    (types.is_date, _times),
    (types.is_time, _times),
    (types.is_duration, _durations),
    (types.is_binary, _bytes),
    (types.is_large_binary, _bytes),
    (types.is_binary_view, _bytes),
    (types.is_fixed_size_binary, _bytes),
    (types.is_null, pa.Array.to_pylist),
)


_LISTS = [is_kind for is_kind, write in _WRITERS if write in (_lists, _list_views)]
_TEXTS = [is_kind for is_kind, write in _WRITERS if write is _texts]


def _writer(kind: pa.DataType) -> Callable[[Any], list[Any]] | None:
    return next((write for test, write in _WRITERS if test(kind)), None)


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
