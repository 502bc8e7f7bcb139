"""Tables as blocks of JSON lines: Parquet files, and the Arrow files of a `datasets` folder.

Every row becomes a line in memory, and is then processed like JSONL. A block takes rows until their lines have
`block_bytes`. The digest of its lines names the block, so the same rows in a differently compressed file are the same
block.

A Parquet file is split by byte ranges: a split has the row groups that begin in its range, about. They are read page by
page, so that a row group of any size needs the memory of a few pages of each column. The manifest has the digest of the
stored bytes, so every split has digests of its range.

An Arrow file is read from beginning to end, like a compressed file. Both kinds are read a second time for their
digests.

Types that JSON has stay: numbers, booleans, texts, lists; structs and maps become objects; JSON (`arrow.json`, which is
also Parquet's JSON) becomes its value. The other types:

* Timestamps (in UTC), dates, times and durations become texts: `2026-11-22 18:07:38Z`, `2026-11-22`, `18:07:38`,
  `1 day, 0:00:05`. So do UUIDs.
* Decimals become numbers, with all their digits.
* Numbers that are not finite stay: `NaN`, `Infinity`. Bytes become an object with their number, `{"binary": 1234}`. A
  record is rejected if the run reads such a value: see `records.check_values`.
* A null member of a struct and a null column are left out, because tables add the members that other records have.
  Only the `content` of a message stays null, because chat templates look for it. Nulls in lists, maps and JSON stay.
* Values that JSON cannot hold reject the record, see `Unfit`: bytes in a text that are no UTF-8, wrong JSON in a JSON
  column, a timestamp out of range, a key twice in a map.

For all other types (intervals, unions, runs, views of lists ...) the file is refused: see `schema_problem`.
"""

import hashlib
import itertools
import json
import math
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.types as types

from beam_prep.data.block import InputFile, Origin, Reason, Reject, Split
from beam_prep.data.hashing import CHUNK, Node, tree_nodes
from beam_prep.data.ragged import Array
from beam_prep.errors import InputError
from beam_prep.reading.records import BINARY, RawBlock, parse_json, read_up_to, twice
from beam_prep.reading.source import Files, Line, Position, Source, cut_lines, ranges

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_BATCH_BYTES, _BATCH_ROWS = 1 << 20, 1024
"""Bytes (estimated from the footer) and most rows of a batch of a Parquet file."""

_PAGES = 1 << 20
"""Bytes of a column that are read at once."""

_HASHED = 128 * CHUNK
"""Bytes of a file that are hashed at once."""


class Table(Source):
    """Tables: their records are rows, which are read in batches and become lines of JSON.

    One of Arrow's tables overrides `_batches` and `_schema`; another table that is read from its beginning `_lines`
    and `columns`.
    """

    unit = "row"
    by_row = True
    is_seekable = False

    def blocks(
        self, split: Split, files: Files, block_bytes: int, max_line_bytes: int, digests: bool
    ) -> Generator[tuple[RawBlock, Origin]]:
        """The blocks of a split. Without `digests`, only the first rows of a file may be read."""
        part = self._part(split, files)
        if part is None:
            return
        position, before, start = Position(), 0, part.rows_before
        nodes = _nodes(split.source, files, part) if digests else ()
        cut = cut_lines(self._lines(split.source, files, part, position), block_bytes)
        first = next(cut, (0, b"", ()))
        for rows, data, refused in itertools.chain([first], cut):
            said = repr(refused).encode("utf-8", "backslashreplace") + b"\n" if refused else b""
            digest = hashlib.sha256(b"rows of a table\n" + said + data).hexdigest()
            origin = Origin(
                split.file,
                split.source,
                start,
                skip=0,
                size=rows,
                nodes=nodes,
                digest=digest,
                max_line_bytes=max_line_bytes,
                refused=refused,
                stored=position.stored - before,
                text_bytes=len(data),
            )
            yield RawBlock(start, rows, 0, data, b""), origin
            start, before, nodes = start + rows, position.stored, ()
        if part.groups and start != part.rows_before + part.rows:
            raise InputError(
                f"{split.source.path!r} has {start - part.rows_before} rows where its footer says {part.rows}: it is "
                "damaged, make it again or leave it out"
            )

    def columns(self, file: InputFile, files: Files) -> Sequence[str]:
        with files.open_table(file) as stream:
            return list(self._schema(file, stream).names)

    def _part(self, split: Split, files: Files) -> "Part | None":
        """The part of a file that a split reads; None if other splits have all of it."""
        return Part(0, split.source.size, rows_before=0)

    def _lines(self, file: InputFile, files: Files, part: "Part", position: Position) -> Iterator[Line]:
        """The rows of a part: (JSON, None or (reason, message) of a row that is rejected). Updates `position`."""
        with files.open_table(file) as stream:
            done = 0
            for rows in self._batches(file, stream, part):
                done += rows.num_rows
                position.stored = (part.stop - part.start) * done // part.rows if part.rows else stream.tell()
                yield from lines_of(rows)

    def _batches(self, file: InputFile, stream: Any, part: "Part") -> Iterator[pa.RecordBatch]:
        """The rows of a part."""
        raise NotImplementedError

    def _schema(self, file: InputFile, stream: Any) -> pa.Schema:
        raise NotImplementedError


class Parquet(Table):
    """Parquet files."""

    name = "a Parquet file"
    endings = (".parquet",)
    magic = b"PAR1"
    is_packed = True

    def splits(self, number: int, file: InputFile, block_bytes: int, workers: int = 1) -> list[Split]:
        return ranges(number, file, block_bytes)

    def _part(self, split: Split, files: Files) -> "Part | None":
        source = split.source
        with files.open_table(source) as stream:
            metadata = _parquet(source, stream).metadata
            groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
            rows = np.array([group.num_rows for group in groups], np.int64)
            content = np.array([group.total_byte_size for group in groups], np.int64)
        if (rows < 0).any() or rows.sum() != metadata.num_rows:
            raise InputError(
                f"{source.path!r} has {metadata.num_rows} rows, and its row groups have {rows.sum()}: it is damaged, "
                "make it again or leave it out"
            )
        if not len(rows) and split.start == 0:
            return Part(0, source.size, 0)
        begins = _begins(content, source.size)
        stop = source.size if split.stop < 0 else split.stop
        mine = np.flatnonzero((begins >= split.start) & (begins < stop)).tolist()
        if not mine:
            return None
        first, last = mine[0], mine[-1]
        width = stop - split.start if stop < source.size else 0
        before = split.start if first else 0
        # Up to the next split with a row group.
        after = source.size if last + 1 == len(rows) or not width else int(begins[last + 1]) // width * width
        earlier, own = int(rows[:first].sum()), int(rows[mine].sum())
        return Part(before, after, earlier, own, tuple(mine))

    def _batches(self, file: InputFile, stream: Any, part: "Part") -> Iterator[pa.RecordBatch]:
        opened = _parquet(file, stream)
        about = [opened.metadata.row_group(group) for group in part.groups]
        size = sum(group.total_byte_size for group in about)
        at_once = _BATCH_BYTES * sum(group.num_rows for group in about) // max(1, size)
        yield from opened.iter_batches(
            min(_BATCH_ROWS, max(1, at_once)), row_groups=list(part.groups), use_threads=False
        )

    def _schema(self, file: InputFile, stream: Any) -> pa.Schema:
        return _parquet(file, stream).schema_arrow


class ArrowStream(Table):
    """Arrow streams: the files of a folder that `datasets` saved."""

    name = "an Arrow stream"
    endings = (".arrow",)
    magic = b"\xff\xff\xff\xff"

    def _batches(self, file: InputFile, stream: Any, part: "Part") -> Iterator[pa.RecordBatch]:
        for rows in _reader(file, stream):
            rows.validate(full=True)  # Arrow has no checksums, and could read beyond its buffers
            yield rows
        _check_end(file, stream)

    def _schema(self, file: InputFile, stream: Any) -> pa.Schema:
        return _reader(file, stream).schema


@dataclass(frozen=True, slots=True)
class Part:
    """The part of a table that a split reads.

    Attributes:
        start, stop: the bytes of the file whose digests the split gives.
        rows_before: number of rows of the file before the part.
        rows: number of its rows, if known.
        groups: numbers of its row groups.
    """

    start: int
    stop: int
    rows_before: int
    rows: int = 0
    groups: tuple[int, ...] = ()


def _begins(content: Array, size: int) -> Array:
    """int64 [row groups]: the byte where each begins, about; only decides which split reads the group.

    The places of columns are not read: Arrow ends the process if a footer is damaged. The decompressed bytes of earlier
    row groups are scaled by a power of two, so that splits stay when row groups are added.

    Args:
        content: int64 [row groups], decompressed bytes of each.
        size: bytes of the file.
    """
    before = np.cumsum(np.maximum(content, 0), dtype=np.float64)
    if not len(before) or not before[-1]:
        return np.zeros(len(before), np.int64)
    scale = 2.0 ** math.floor(math.log2(size / before[-1]))
    return np.minimum(np.append(0, before[:-1] * scale).astype(np.int64), size - 1)


def _parquet(source: InputFile, stream: Any) -> "pq.ParquetFile":
    import pyarrow.parquet as pq

    file = pq.ParquetFile(
        _native(source, stream), buffer_size=_PAGES, pre_buffer=False, page_checksum_verification=True
    )
    _check_schema(source, file.schema_arrow)
    return file


def _reader(source: InputFile, stream: Any) -> pa.RecordBatchReader:
    reader = pa.ipc.open_stream(_native(source, stream))
    _check_schema(source, reader.schema)
    return reader


_END_MARK = b"\xff\xff\xff\xff\0\0\0\0"


def _check_end(source: InputFile, stream: Any) -> None:
    """Checks the end of an Arrow stream. Arrow accepts a stream that was cut between two batches."""
    end = stream.tell()
    stream.seek(max(0, end - len(_END_MARK)))
    if stream.read(len(_END_MARK)) != _END_MARK:
        raise InputError(f"{source.path!r} has no end: it is cut; make it again, or leave it out")
    if end < source.size:
        raise InputError(
            f"{source.path!r} has {source.size - end} bytes after its end: give each table a file of its own"
        )


def _native(source: InputFile, stream: Any) -> pa.NativeFile:
    if not source.size:
        raise InputError(f"{source.path!r} is empty: even a table without rows has a schema")
    return stream if isinstance(stream, pa.NativeFile) else pa.PythonFile(stream, mode="r")


def _check_schema(source: InputFile, schema: pa.Schema) -> None:
    if (problem := schema_problem(schema)) is not None:
        raise InputError(f"{source.path!r}: {problem}: write the file without it, or as text")


def _nodes(source: InputFile, files: Files, part: Part) -> tuple[Node, ...]:
    """The digests of a part of a file, of the stored bytes."""
    found: list[Node] = []
    with files.open_table(source) as stream:
        stream.seek(part.start)
        for start in range(part.start, part.stop, _HASHED):
            found += tree_nodes(read_up_to(stream, min(_HASHED, part.stop - start)), start)
    return tuple(found)


# Rows as JSON

_KEPT_NULL = "content"


class Unfit(Reject):
    """Stands for a value that JSON cannot hold: its record is rejected.

    Attributes:
        shown: the text that the reject quotes.
    """

    def __init__(self, reason: Reason, message: str, shown: Any) -> None:
        super().__init__(reason, message)
        self.shown = shown


class NoJSON(Exception):
    """JSON cannot hold the values of a type; the message says why, without the column."""


def schema_problem(schema: pa.Schema) -> str | None:
    """Why a table cannot become lines of JSON; None if it can.

    >>> schema_problem(pa.schema([("took", pa.month_day_nano_interval())]))
    "column 'took' is of type month_day_nano_interval, which JSON does not have"
    """
    if (name := twice(schema.names)) is not None:
        return f"two columns have the name {name!r}"
    for field in schema:
        try:
            values(pa.nulls(0, field.type))
        except NoJSON as problem:
            return f"column {field.name!r} {problem}"
    return None


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
    """The values of an array for `orjson.dumps`; an `Unfit` for each value that JSON cannot hold.

    Raises:
        NoJSON: JSON cannot hold values of this type.
    """
    if isinstance(array, pa.ExtensionArray):
        extension = _EXTENSIONS.get(array.type.extension_name)
        return values(array.storage) if extension is None else extension(array)
    if types.is_dictionary(array.type):
        words = array.dictionary
        if types.is_string_view(words.type):  # as polars writes categories; Arrow takes no items of it
            words = words.cast(pa.large_string())
        return values(words.take(array.indices))
    write = next((write for write, tests in _WRITERS.items() if any(test(array.type) for test in tests)), None)
    if write is None:
        raise NoJSON(f"is of type {array.type}, which JSON does not have")
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
    if (name := twice(names)) is not None:
        raise NoJSON(f"has two members of the name {name!r}")
    return _objects(names, [values(array.field(place)) for place in range(len(names))], len(array))


def _lists(array: pa.Array) -> list[Any]:
    if types.is_fixed_size_list(array.type):
        array = array.cast(pa.large_list(array.type.value_type))
    offsets = array.offsets.to_numpy()
    inner = values(array.values.slice(offsets[0], offsets[-1] - offsets[0]))
    ends = (offsets - offsets[0]).tolist()
    return [inner[start:stop] for start, stop in itertools.pairwise(ends)]


def _maps(array: pa.MapArray) -> list[Any]:
    if not any(is_text(array.type.key_type) for is_text in _WRITERS[_texts]):
        raise NoJSON(f"is a map with keys of type {array.type.key_type}, wanted texts")
    keys, items = (_lists(pa.ListArray.from_arrays(array.offsets, each)) for each in (array.keys, array.items))
    return [_map(*each) for each in zip(keys, items, strict=True)]


def _map(keys: list[Any], items: list[Any]) -> Any:
    made = dict(zip(keys, items, strict=True))
    unfit = next((key for key in keys if type(key) is not str), None)
    if unfit is None and len(made) < len(keys):
        pairs = [*map(list, zip(keys, items, strict=True))]
        return Unfit("duplicate_key", f"the key {twice(keys)!r} is twice in a map", pairs)
    return made if unfit is None else unfit


def _floats(array: pa.Array) -> list[Any]:
    return [_float(number) for number in array.to_pylist()]


def _float(number: float | None) -> Any:
    return number if number is None or math.isfinite(number) else orjson.Fragment(json.dumps(number))


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
    # Arrow writes `<value out of range: ...>`.
    return [Unfit("not_json", text.strip("<>"), text) if text and text[0] == "<" else text for text in _texts(array)]


def _durations(array: pa.DurationArray) -> list[Any]:
    """In Python's form: `1 day, 0:00:05.000001`. Nanoseconds are cut off; what is beyond 290,000 years is an error."""
    found = array.cast(pa.duration("us"), safe=array.type.unit != "ns").to_pylist()
    return [None if each is None else str(each) for each in found]


def _bytes(array: pa.Array) -> list[Any]:
    return [None if data is None else orjson.Fragment(BINARY % len(data)) for data in array.to_pylist()]


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


_EXTENSIONS: dict[str, Callable[[Any], list[Any]]] = {
    "arrow.json": _json,
    "arrow.bool8": lambda array: values(array.storage.cast(pa.bool_())),
    "arrow.uuid": pa.Array.to_pylist,  # orjson writes UUIDs
}
"""By name, because the classes depend on the version of pyarrow. Other extension types are read from their storage."""

_WRITERS: dict[Callable[[Any], list[Any]], tuple[Callable[[pa.DataType], bool], ...]] = {
    _structs: (types.is_struct,),
    _lists: (types.is_list, types.is_large_list, types.is_fixed_size_list),
    _maps: (types.is_map,),
    _texts: (types.is_string, types.is_large_string, types.is_string_view),
    _floats: (types.is_floating,),
    _decimals: (types.is_decimal,),
    _times: (types.is_timestamp, types.is_date, types.is_time),
    _durations: (types.is_duration,),
    _bytes: (types.is_binary, types.is_large_binary, types.is_binary_view, types.is_fixed_size_binary),
    pa.Array.to_pylist: (types.is_integer, types.is_boolean, types.is_null),
}
"""Function -> the types whose values it writes."""
