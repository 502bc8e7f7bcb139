"""Tables as blocks of JSON lines: Parquet files, and the Arrow files of a `datasets` folder.

Every row becomes a line in memory, and is then processed like JSONL. A block takes rows until their lines have
`block_bytes`. The digest of its lines names the block, so the same rows in a differently compressed file are the same
block.

A Parquet file is split by byte ranges: a split has the row groups that begin in its range, about. They are read page by
page, so that a row group of any size needs the memory of a few pages of each column. The manifest has the digest of the
stored bytes, so every split has digests of its range.

An Arrow file is read from beginning to end, like a compressed file. Both kinds are read a second time for their
digests.
"""

import hashlib
import math
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from beam_prep.data.block import InputFile, Origin, Split
from beam_prep.data.hashing import CHUNK, Node, tree_nodes
from beam_prep.data.ragged import Array
from beam_prep.errors import InputError
from beam_prep.reading.arrow_rows import Line, lines_of, schema_problem
from beam_prep.reading.blocks import RawBlock, read_up_to
from beam_prep.reading.records import Records, parse
from beam_prep.reading.source import Files, Position, Source, ranges

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

    A table that is read from its beginning overrides `_lines`, `record_at` and `columns`; one of Arrow's tables
    overrides `_lines`, `_from` and `_schema`.
    """

    unit = "row"
    by_row = True
    compressible = False
    is_seekable = False

    def blocks(
        self, split: Split, files: Files, block_bytes: int, max_line_bytes: int, digests: bool
    ) -> Generator[tuple[RawBlock, Origin]]:
        """The blocks of a split. Without `digests`, only the first rows of a file may be read."""
        part = self._part(split, files)
        if part is None:
            return
        position, before = Position(), 0
        cut = _cut(self._lines(split.source, files, part, position), block_bytes)
        last: _Cut | None = next(cut, (0, b"", ()))
        start = part.rows_before
        while last is not None:
            rows, data, refused = last
            last = next(cut, None)
            if last is None and part.groups and start + rows != part.rows_before + part.rows:
                raise InputError(
                    f"{split.source.path!r} has {start + rows - part.rows_before} rows where its footer says "
                    f"{part.rows}: it is damaged, make it again or leave it out"
                )
            # The last block has the digests, because only then everything was read.
            nodes = _nodes(split.source, files, part) if last is None and digests else ()
            stored = position.stored if last is not None else part.stop - part.start
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
                stored=stored - before,
                text_bytes=len(data),
            )
            yield RawBlock(start, rows, 0, data, b""), origin
            start, before = start + rows, stored

    def parse(self, raw: RawBlock, origin: Origin) -> Records:
        return parse(raw, origin, by_row=True)

    def record_at(self, file: InputFile, files: Files, offset: int) -> bytes:
        with files.open_table(file) as stream:
            left, batches = self._from(file, stream, offset)
            for rows in batches:
                if left < rows.num_rows:
                    row = rows.slice(left, 1)
                    row.validate(full=True)  # as in `_lines`
                    return next(lines_of(row))[0]
                left -= rows.num_rows
        raise InputError(f"it has no row {offset + 1:,}: the file changed since the output was made")

    def columns(self, file: InputFile, files: Files) -> Sequence[str]:
        with files.open_table(file) as stream:
            return list(self._schema(file, stream).names)

    def _part(self, split: Split, files: Files) -> "Part | None":
        """The part of a file that a split reads; None if other splits have all of it."""
        return Part(0, split.source.size, rows_before=0)

    def _lines(self, file: InputFile, files: Files, part: "Part", position: Position) -> Iterator[Line]:
        """The rows of a part: (JSON, None or (reason, message) of a row that is rejected). Updates `position`."""
        raise NotImplementedError

    def _from(self, file: InputFile, stream: Any, row: int) -> tuple[int, Iterable[pa.RecordBatch]]:
        """(number of rows before the wanted row, batches that begin there and hold it)."""
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
        full = np.flatnonzero(rows)
        begins = _begins(content[full], source.size)
        stop = source.size if split.stop < 0 else split.stop
        mine = (begins >= split.start) & (begins < stop)
        if not len(full) and split.start == 0:
            return Part(0, source.size, 0)
        if not mine.any():
            return None
        first, last = np.flatnonzero(mine)[[0, -1]].tolist()
        width = stop - split.start if stop < source.size else 0
        before = split.start if first else 0
        # Up to the next split with a row group.
        after = source.size if last + 1 == len(full) or not width else int(begins[last + 1]) // width * width
        numbers = full[first : last + 1]
        return Part(before, after, int(rows[full[:first]].sum()), int(rows[numbers].sum()), tuple(numbers.tolist()))

    def _lines(self, file: InputFile, files: Files, part: "Part", position: Position) -> Iterator[Line]:
        with files.open_table(file) as stream:
            done = 0
            for rows in _batches(_parquet(file, stream), part.groups):
                done += rows.num_rows
                position.stored = (part.stop - part.start) * done // part.rows
                yield from lines_of(rows)

    def _from(self, file: InputFile, stream: Any, row: int) -> tuple[int, Iterable[pa.RecordBatch]]:
        opened, group = _parquet(file, stream), 0
        while group < opened.num_row_groups and row >= opened.metadata.row_group(group).num_rows:
            row -= opened.metadata.row_group(group).num_rows
            group += 1
        return row, _batches(opened, range(opened.num_row_groups)[group : group + 1])

    def _schema(self, file: InputFile, stream: Any) -> pa.Schema:
        return _parquet(file, stream).schema_arrow


class ArrowStream(Table):
    """Arrow streams: the files of a folder that `datasets` saved."""

    name = "an Arrow stream"
    endings = (".arrow",)
    magic = b"\xff\xff\xff\xff"

    def _lines(self, file: InputFile, files: Files, part: "Part", position: Position) -> Iterator[Line]:
        with files.open_table(file) as stream:
            for rows in _reader(file, stream):
                position.stored = stream.tell()
                rows.validate(full=True)  # Arrow has no checksums, and could read beyond its buffers
                yield from lines_of(rows)
            _check_end(file, stream)

    def _from(self, file: InputFile, stream: Any, row: int) -> tuple[int, Iterable[pa.RecordBatch]]:
        return row, _reader(file, stream)

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


def _batches(file: "pq.ParquetFile", groups: Sequence[int]) -> Iterator[pa.RecordBatch]:
    """Rows of some row groups, in batches of about `_BATCH_BYTES`."""
    about = [file.metadata.row_group(group) for group in groups]
    size = sum(group.total_byte_size for group in about)
    at_once = _BATCH_BYTES * sum(group.num_rows for group in about) // max(1, size)
    batches: Iterator[pa.RecordBatch] = file.iter_batches(
        min(_BATCH_ROWS, max(1, at_once)), row_groups=list(groups), use_threads=False
    )
    return batches


_Cut = tuple[int, bytes, tuple[tuple[int, str, str], ...]]


def _cut(lines: Iterator[Line], block_bytes: int) -> Iterator[_Cut]:
    """(number of lines, joined lines, `Origin.refused`) of groups of lines that just reach `block_bytes`."""
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
        raise InputError(f"{source.path!r} is empty: even a Parquet file without rows has a schema")
    file = pq.ParquetFile(_native(stream), buffer_size=_PAGES, pre_buffer=False, page_checksum_verification=True)
    _check_schema(source, file.schema_arrow)
    return file


def _reader(source: InputFile, stream: Any) -> pa.RecordBatchReader:
    if not source.size:
        raise InputError(f"{source.path!r} is empty: even an Arrow file without rows has a schema")
    reader = pa.ipc.open_stream(_native(stream))
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


def _native(stream: Any) -> pa.NativeFile:
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
