"""Tables as blocks of JSON lines: Parquet files, and the Arrow files of a `datasets` folder.

Every row becomes a line, in memory, and goes the way of JSONL from there. A block takes rows until their lines have
`block_bytes`; it is named by the digest of its lines, so the same rows in a file that was compressed in another way are
the same block.

A Parquet file is split by ranges of its bytes: the row groups that begin in a range, about, are its split. They are
read page by page, so that a row group of any size takes the memory of a few pages of each column. The manifest has the
digest of the bytes as they are stored, so every split has digests of its range.

An Arrow file is read from its beginning to its end, as a compressed file is.
"""

import hashlib
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from beam_prep.data.block import InputFile, Origin, Split
from beam_prep.data.hashing import CHUNK, Node, tree_nodes
from beam_prep.data.ragged import Array
from beam_prep.errors import InputError
from beam_prep.reading.arrow_rows import Line, lines_of, schema_problem
from beam_prep.reading.blocks import RawBlock, Readable, read_up_to
from beam_prep.reading.foreign import HEAD_BYTES, refusal
from beam_prep.storage.files import open_input, open_table

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_BATCH_BYTES, _BATCH_ROWS = 1 << 20, 1024
"""Of a Parquet file, read at once: as far as its footer tells, and at most."""

_PAGES = 1 << 20
"""Bytes of a column that are read at once."""

_HASHED = 128 * CHUNK


def is_parquet(path: str) -> bool:
    """True if a file is read as Parquet, by its ending."""
    return path.lower().endswith(".parquet")


def table_columns(source: InputFile) -> list[str]:
    """The names of a table's columns.

    Raises:
        InputError: it cannot be read, or has a column that JSON does not have.
    """
    with _errors(source), open_table(source) as stream:
        schema = _parquet(source, stream).schema_arrow if is_parquet(source.path) else _rows(source, stream)[0]
        return list(schema.names)


def table_row(source: InputFile, number: int) -> bytes:
    """A row of a table, as a line of JSON without its end.

    Args:
        source: the table.
        number: of the row, from 0.

    Raises:
        InputError: there is no such row; or it is damaged, or cannot be read.
    """
    left = number
    with _errors(source), open_table(source) as stream:
        batches: Iterable[pa.RecordBatch]
        if is_parquet(source.path):
            file = _parquet(source, stream)
            groups = [file.metadata.row_group(group) for group in range(file.num_row_groups)]
            ends = np.cumsum([group.num_rows for group in groups], dtype=np.int64)
            batches, place = (), int(np.searchsorted(ends, number, side="right"))
            if place < len(groups):
                count = groups[place].num_rows
                left -= int(ends[place]) - count
                at_once = _batch_rows(groups[place].total_byte_size // count)
                batches = file.iter_batches(at_once, row_groups=[place], use_threads=False)
        else:
            _, batches = _rows(source, stream)
        for rows in batches:
            if left < rows.num_rows:
                row = rows.slice(left, 1)
                row.validate(full=True)  # as in `_lines`
                return next(lines_of(row))[0]
            left -= rows.num_rows
    raise InputError(f"it has no row {number + 1:,}: the file is not what it was when the output was made")


def table_blocks(
    split: Split, block_bytes: int, max_line_bytes: int, digests: bool = True
) -> Iterator[tuple[RawBlock, Origin]]:
    """The blocks of a split of a table.

    Args:
        split: of it.
        block_bytes: of lines, after which a block ends.
        max_line_bytes: a longer line is rejected.
        digests: the blocks have the digests of the file's bytes. Without, a part of a file is read for its first rows.

    Raises:
        InputError: the file changed, is damaged, or cannot be read.
    """
    part = _parquet_part(split) if is_parquet(split.source.path) else _Part(0, split.source.size, rows_before=0)
    if part is None:
        return
    hashed = _Hashed() if digests else None
    cut = _cut(_lines(split, part, hashed), block_bytes)
    last: _Cut | None = next(cut, (0, b"", ()))
    start, stored = part.rows_before, 0
    while last is not None:
        rows, data, refused = last
        last = next(cut, None)
        if last is None and part.groups and start + rows != part.rows_before + part.rows:
            raise InputError(
                f"{split.source.path!r} has {start + rows - part.rows_before} rows where its footer says {part.rows}: "
                "it is damaged, make it again or leave it out"
            )
        # The digests come with the last block: only then all was read.
        nodes = hashed.nodes() if last is None and hashed is not None else ()
        if last is None:
            read = part.size
        elif part.groups:
            read = part.size * (start + rows - part.rows_before) // part.rows
        else:
            read = 0 if hashed is None else hashed.size
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
            stored=read - stored,
            text_bytes=len(data),
        )
        yield RawBlock(start, rows, 0, data, b""), origin
        start, stored = start + rows, read


@dataclass(frozen=True, slots=True)
class _Part:
    """What a split of a table reads.

    Attributes:
        start, stop: the bytes of the file whose digests it gives.
        rows_before: rows of the file before it.
        rows: that it has, if known.
        groups: the numbers of its row groups.
        row_bytes: of a row, about, decompressed.
    """

    start: int
    stop: int
    rows_before: int
    rows: int = 0
    groups: tuple[int, ...] = ()
    row_bytes: int = 1

    @property
    def size(self) -> int:
        return self.stop - self.start


def _parquet_part(split: Split) -> _Part | None:
    """The part of a Parquet file that a split reads; None: of another split, as no row group begins in this one."""
    source = split.source
    with _errors(source), open_table(source) as stream:
        metadata = _parquet(source, stream).metadata
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        rows = np.array([group.num_rows for group in groups], np.int64)
        content = np.array([group.total_byte_size for group in groups], np.int64)
    if (rows < 0).any() or rows.sum() != metadata.num_rows:
        raise InputError(
            f"{source.path!r} has {metadata.num_rows} rows, and its row groups have {rows.sum()}: it is damaged, make "
            "it again or leave it out"
        )
    full = np.flatnonzero(rows)
    begins = _begins(content[full], source.size)
    stop = source.size if split.stop < 0 else split.stop
    mine = (begins >= split.start) & (begins < stop)
    if not len(full) and split.start == 0:
        return _Part(0, source.size, 0)
    if not mine.any():
        return None
    first, last = np.flatnonzero(mine)[[0, -1]].tolist()
    width = stop - split.start if stop < source.size else 0
    before = split.start if first else 0
    # Up to the next split that has a row group.
    after = source.size if last + 1 == len(full) or not width else int(begins[last + 1]) // width * width
    some = full[first : last + 1]
    count = int(rows[some].sum())
    return _Part(
        before,
        after,
        int(rows[full[:first]].sum()),
        count,
        tuple(some.tolist()),
        int(content[some].sum()) // count,
    )


def _begins(content: Array, size: int) -> Array:
    """int64 [row groups]: the byte at which each begins, about; it decides only which split reads the group.

    The places of columns are not looked at: where a footer is damaged, Arrow ends the process. What decompressed row
    groups have before this one is scaled by a power of two, so that the splits stay when row groups are added.

    Args:
        content: int64 [row groups], decompressed bytes of each.
        size: of the file.
    """
    before = np.cumsum(np.maximum(content, 0), dtype=np.float64)
    if not len(before) or not before[-1]:
        return np.zeros(len(before), np.int64)
    scale = 2.0 ** math.floor(math.log2(size / before[-1]))
    return np.minimum(np.append(0, before[:-1] * scale).astype(np.int64), size - 1)


def _lines(split: Split, part: _Part, hashed: "_Hashed | None") -> Iterator[Line]:
    source = split.source
    with _errors(source), open_table(source) as stream:
        if not is_parquet(source.path):
            read: Readable = stream if hashed is None else _Tee(stream, hashed)
            _, batches = _rows(source, read)
            for rows in batches:
                rows.validate(full=True)  # Arrow has no checksums, and would read what is not there
                yield from lines_of(rows)
            _check_end(source, stream)
            return
        if part.groups:
            file = _parquet(source, stream)
            for rows in file.iter_batches(_batch_rows(part.row_bytes), row_groups=list(part.groups), use_threads=False):
                yield from lines_of(rows)
        if hashed is not None:
            hashed.begin(part.start)
            stream.seek(part.start)
            for start in range(part.start, part.stop, _HASHED):
                hashed.add(stream.read(min(_HASHED, part.stop - start)))


def _batch_rows(row_bytes: int) -> int:
    """How many rows of a Parquet file are read at once, by the bytes of one."""
    return min(_BATCH_ROWS, max(1, _BATCH_BYTES // max(1, row_bytes)))


_Cut = tuple[int, bytes, tuple[tuple[int, str, str], ...]]


def _cut(lines: Iterator[Line], block_bytes: int) -> Iterator[_Cut]:
    """(how many, joined, `Origin.refused`) of lines that together have `block_bytes`, or more by a part of the last."""
    held: list[bytes] = []
    refused: list[tuple[int, str, str]] = []
    size = 0
    for line, problem in lines:
        if problem is not None:
            refused.append((len(held), *problem))
        held.append(line)
        size += len(line) + 1
        if size >= block_bytes:
            yield len(held), b"\n".join([*held, b""]), tuple(refused)
            held, refused, size = [], [], 0
    if held:
        yield len(held), b"\n".join([*held, b""]), tuple(refused)


def _parquet(source: InputFile, stream: Any) -> "pq.ParquetFile":
    import pyarrow.parquet as pq

    if not source.size:
        raise InputError(f"{source.path!r} is empty: a Parquet file without rows has its columns at least")
    file = pq.ParquetFile(_native(stream), buffer_size=_PAGES, pre_buffer=False, page_checksum_verification=True)
    _check_schema(source, file.schema_arrow)
    return file


def _rows(source: InputFile, stream: Any) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """(schema, batches) of an Arrow stream."""
    if not source.size:
        raise InputError(f"{source.path!r} is empty: an Arrow file without rows has its columns at least")
    reader = pa.ipc.open_stream(_native(stream))
    _check_schema(source, reader.schema)
    return reader.schema, iter(reader)


_END_MARK = b"\xff\xff\xff\xff\0\0\0\0"


def _check_end(source: InputFile, stream: Any) -> None:
    """Looks for the end of an Arrow stream. Arrow takes a stream that was cut between two batches for an entire one."""
    end = stream.tell()
    stream.seek(max(0, end - len(_END_MARK)))
    if stream.read(len(_END_MARK)) != _END_MARK:
        raise InputError(f"{source.path!r} has no end: it is cut; make it again, or leave it out")
    if end < source.size:
        raise InputError(
            f"{source.path!r} has {source.size - end} bytes after its end: give each table a file of its own"
        )


def _native(stream: Any) -> pa.NativeFile:
    return stream if isinstance(stream, pa.NativeFile) else pa.PythonFile(stream, mode="r")


def _check_schema(source: InputFile, schema: pa.Schema) -> None:
    if (problem := schema_problem(schema)) is not None:
        raise InputError(f"{source.path!r}: {problem}: write the file without it, or as text")


@contextmanager
def _errors(source: InputFile) -> Iterator[None]:
    """Names the file in errors of Arrow.

    Raises:
        InputError: it is damaged, or no such file.
    """
    try:
        yield
    # Names of columns that are no UTF-8, and sizes beyond the memory, are not Arrow's errors.
    except (pa.ArrowException, OSError, UnicodeDecodeError, MemoryError) as error:
        with open_input(source, size=HEAD_BYTES) as stream:
            other = refusal(read_up_to(stream, HEAD_BYTES), source.path)
        if other is not None:
            raise InputError(other) from None
        kind = "Parquet" if is_parquet(source.path) else "an Arrow stream"
        text = " ".join(str(error).split()) or type(error).__name__
        raise InputError(
            f"{source.path!r} cannot be read as {kind} ({text[:300]}): it is cut, damaged, or another kind of file; "
            "make it again, rename it, or leave it out"
        ) from None


class _Hashed:
    """The digests of bytes that come one after another, from a multiple of `CHUNK` on."""

    def __init__(self) -> None:
        self._nodes: list[Node] = []
        self._start, self._rest = 0, bytearray()

    @property
    def size(self) -> int:
        return self._start + len(self._rest)

    def begin(self, start: int) -> None:
        self._start = start

    def add(self, data: bytes) -> None:
        self._rest += data
        while len(self._rest) >= _HASHED:
            self._nodes += tree_nodes(memoryview(self._rest)[:_HASHED].toreadonly(), self._start)
            self._start += _HASHED
            self._rest = self._rest[_HASHED:]

    def nodes(self) -> tuple[Node, ...]:
        """Of all bytes; no more come."""
        return (*self._nodes, *tree_nodes(bytes(self._rest), self._start))


class _Tee:
    """A stream whose bytes are hashed as they are read."""

    closed = False

    def __init__(self, stream: Readable, hashed: _Hashed) -> None:
        self._stream, self._hashed = stream, hashed

    def read(self, size: int, /) -> bytes:
        data = self._stream.read(size)
        self._hashed.add(data)
        return data
