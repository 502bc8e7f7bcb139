"""Splits of input files, and the blocks of records that are read from them."""

import logging
import pickle
import zlib
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import replace

import numpy as np

from beam_prep.data.block import REPLAYED, InputFile, Ledger, Origin, Split, is_table
from beam_prep.errors import InputError, TokenCacheError
from beam_prep.reading.blocks import MAX_LINE_BYTES, RawBlock, read_blocks
from beam_prep.reading.json_list import is_json_file, parse_list
from beam_prep.reading.records import Records, parse
from beam_prep.storage.files import Position, open_input
from beam_prep.storage.tables import is_parquet, table_blocks
from beam_prep.storage.token_cache import TokenCache

log = logging.getLogger("beam_prep")

BLOCK_BYTES = 8 * 1024 * 1024


def pack_files(files: Sequence[InputFile]) -> bytes:
    """Packs the files of a job, in a few bytes each.

    The graph of a pipeline holds them, and Dataflow limits its size to 10 MB: `Create` of 100,000 files has more.
    """
    return zlib.compress(pickle.dumps(files, protocol=5))


def split_files(_: bytes, packed: bytes, block_bytes: int, workers: int = 1) -> Iterable[Split]:
    """The splits of packed files, in order. For `workers` see `split_file`."""
    files = pickle.loads(zlib.decompress(packed))
    streams = sum(map(is_stream, files))
    for place in enumerate(files):
        yield from split_file(place, block_bytes, workers // max(1, streams))


_SHARED_BYTES = 4 * 1024 * 1024
"""Bytes of a compressed file from which on several workers read it."""


def split_file(place: tuple[int, InputFile], block_bytes: int, workers: int = 1) -> Iterable[Split]:
    """The byte ranges of a plain file, or of a Parquet file. An empty file is one split, as a stream is.

    Several workers can share a large file that is compressed with gzip or Zstandard: each decompresses all of it, which
    takes little beside its records, and makes only its part of the blocks.

    Args:
        place: the file's number, and the file.
        block_bytes: of a block.
        workers: that may share a compressed file.
    """
    index, source = place
    if is_stream(source) and not is_parquet(source.path):
        fast = source.compression in ("gzip", "zstd") and not is_json_file(source.path) and not is_table(source.path)
        parts = max(1, workers) if fast and source.size >= _SHARED_BYTES else 1
        return [Split(index, source, 0, -1, part, parts) for part in range(parts)]
    ranges = range(0, max(source.size, 1), block_bytes)
    return [Split(index, source, start, min(start + block_bytes, source.size)) for start in ranges]


def is_stream(source: InputFile) -> bool:
    """True if records are found from the file's beginning on: it is compressed, a `.json` file, or a table."""
    return source.compression is not None or is_json_file(source.path) or is_table(source.path)


def blocks_of(
    split: Split, block_bytes: int, max_line_bytes: int = MAX_LINE_BYTES, digests: bool = True
) -> Generator[tuple[RawBlock, Origin]]:
    """The blocks of a split, as they are read. An empty file has one, too: the manifest lists it.

    Args:
        split: of a file.
        block_bytes: of a block.
        max_line_bytes: a longer line is rejected.
        digests: the blocks of a table have those of the file, see `table_blocks`.

    Raises:
        InputError: the file changed, is damaged, or cannot be read.
    """
    source = split.source
    if is_table(source.path):
        yield from table_blocks(split, block_bytes, max_line_bytes, digests)
        return
    end = split.start
    size = None if split.stop < 0 else split.stop - split.start
    position, before = Position(), 0
    with open_input(source, split.start, size, position) as stream:
        for number, raw in enumerate(read_blocks(stream, split.start, split.stop, block_bytes, max_line_bytes)):
            end = raw.start + raw.size
            stored = raw.size if source.compression is None else position.stored - before
            before = position.stored
            if number % split.parts == split.part:
                yield raw, replace(raw.origin(split.file, source, block_bytes, max_line_bytes), stored=stored)
    if end < split.stop:
        raise InputError(f"{source.path!r} became shorter while the job ran: run again when nobody writes to it")
    if end == 0 and split.part == 0:
        raw = RawBlock(0, 0, 0, b"", b"")
        yield raw, raw.origin(split.file, source, block_bytes, max_line_bytes)


def read_split(
    split: Split, block_bytes: int, token_cache: TokenCache | None = None, max_line_bytes: int = MAX_LINE_BYTES
) -> Iterable[Records]:
    """The blocks of a split. A block that is in the token cache already has its receipt and no rows.

    Raises:
        InputError: the file changed, is damaged, or cannot be read.
    """
    for raw, origin in blocks_of(split, block_bytes, max_line_bytes):
        yield _block(raw, origin, token_cache)


FIRST_BYTES = 1024 * 1024
"""Bytes that are read of a file to show its first records."""


def first_records(source: InputFile, file: int = 0, block_bytes: int = FIRST_BYTES) -> Records | None:
    """The records of a file's first block; None if the file is empty.

    Raises:
        InputError: the file cannot be read.
    """
    with closing(blocks_of(Split(file, source, 0, -1), block_bytes, digests=False)) as blocks:
        raw, origin = next(blocks)
    return _block(raw, origin) if raw.size else None


def records_at(source: InputFile, file: int, start: int, size: int) -> Records | None:
    """The records that begin in a range of bytes of a plain file; None if there are none.

    Args:
        source: the file.
        file: its number.
        start, size: the range, multiples of `CHUNK`.

    Raises:
        InputError: the file cannot be read.
    """
    with open_input(source, start, size) as stream:
        raw = next(read_blocks(stream, start, min(start + size, source.size), size), None)
    return None if raw is None else _block(raw, raw.origin(file, source, size))


def blocks_drawn(source: InputFile, file: int, size: int, count: int, most: int) -> tuple[list[Records], int, bool]:
    """Blocks of a file that has no places to read from: see `is_stream`.

    It is read once, from its beginning, and only the blocks that are drawn are kept and parsed: always the same ones.

    Args:
        source: the file.
        file: its number.
        size: bytes of a block.
        count: of blocks, at most.
        most: bytes of content that are read, at most.

    Returns:
        the records of the blocks, in order; the bytes of content that were read; whether that is the entire file.

    Raises:
        InputError: the file cannot be read.
    """
    chance, kept, seen, end = np.random.default_rng(0), dict[int, tuple[RawBlock, Origin]](), 0, 0
    complete = True
    with closing(blocks_of(Split(file, source, 0, -1), size, digests=False)) as blocks:
        for raw, origin in blocks:
            if end >= most:
                complete = False
                break
            place = seen if seen < count else int(chance.integers(seen + 1))
            if place < count and raw.size:
                kept[place] = raw, origin
            seen, end = seen + 1, end + origin.bytes
    found = sorted(kept.values(), key=lambda block: block[1].start)
    return [_block(raw, origin) for raw, origin in found], end, complete


def _block(raw: RawBlock, origin: Origin, token_cache: TokenCache | None = None) -> Records:
    receipt, made = None, dict[str, int]()
    try:
        receipt = token_cache.find(token_cache.digest(origin)) if token_cache is not None else None
    except TokenCacheError as error:
        log.warning("%s; the block is made again", error)
        made = {"blocks_damaged": 1}
    if receipt is not None and token_cache is not None and not token_cache.trust.holds(receipt.counts("made")):
        receipt, made = None, {"blocks_replaced": 1}
    if receipt is None:
        part = (
            token_cache.earlier.part(raw, origin)
            if token_cache is not None and token_cache.earlier is not None
            else None
        )
        read = parse_list if is_json_file(origin.source.path) else parse
        records = read(raw if part is None else part, origin)
        if part is not None:
            records.ledger.raw = raw.data
            made[REPLAYED] = 1
        records.made = {**records.made, **made}
        return records
    if token_cache is not None and token_cache.earlier is not None:
        token_cache.earlier.check_reused(token_cache, raw, origin)
    nothing = np.zeros(0, np.int64)
    return Records(origin, Ledger(b"", nothing, nothing), nothing.astype(np.int32), receipt)
