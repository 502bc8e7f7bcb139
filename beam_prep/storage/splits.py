"""Splits of input files, and the blocks of records in them."""

import logging
import pickle
import zlib
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing

import numpy as np

from beam_prep.data.block import InputFile, Ledger, Origin, Split
from beam_prep.errors import TokenCacheError
from beam_prep.reading.records import MAX_LINE_BYTES, RawBlock, Records, read_blocks
from beam_prep.reading.sources import source_of
from beam_prep.storage import files
from beam_prep.storage.files import open_input
from beam_prep.storage.token_cache import TokenCache

log = logging.getLogger("beam_prep")

BLOCK_BYTES = 8 * 1024 * 1024


def pack_files(inputs: Sequence[InputFile]) -> bytes:
    """Packs the list of a job's files, with a few bytes each.

    The pipeline graph holds the list, and Dataflow limits the graph to 10 MB; `Create` of 100,000 files needs more.
    """
    return zlib.compress(pickle.dumps(inputs, protocol=5))


def split_files(_: bytes, packed: bytes, block_bytes: int, workers: int = 1) -> Iterable[Split]:
    """The splits of packed files, in order. For `workers` see `split_file`."""
    inputs = pickle.loads(zlib.decompress(packed))
    streams = sum(map(is_stream, inputs))
    for place in enumerate(inputs):
        yield from split_file(place, block_bytes, workers // max(1, streams))


def split_file(place: tuple[int, InputFile], block_bytes: int, workers: int = 1) -> list[Split]:
    """The parts of a file that are read independently, see `Source.splits`; `place`: (number of the file, file)."""
    return source_of(place[1].path).splits(*place, block_bytes, workers)


def is_stream(source: InputFile) -> bool:
    """True if a file must be read from its beginning: it is compressed, a `.json` file, or a table."""
    return source_of(source.path).is_stream(source)


def blocks_of(
    split: Split, block_bytes: int, max_line_bytes: int = MAX_LINE_BYTES, digests: bool = True
) -> Generator[tuple[RawBlock, Origin]]:
    """The raw blocks of a split, see `Source.blocks`.

    Raises:
        InputError: the file changed, is damaged, or cannot be read.
    """
    return source_of(split.source.path).blocks(split, files, block_bytes, max_line_bytes, digests)


def read_split(
    split: Split, block_bytes: int, token_cache: TokenCache | None = None, max_line_bytes: int = MAX_LINE_BYTES
) -> Iterable[Records]:
    """The blocks of a split. A block that is already in the token cache comes with its block statistics and no rows.

    Raises:
        InputError: the file changed, is damaged, or cannot be read.
    """
    for raw, origin in blocks_of(split, block_bytes, max_line_bytes):
        yield _block(raw, origin, token_cache)


FIRST_BYTES = 1024 * 1024
"""Bytes of a file that are read to show its first records."""


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
        start, size: the range in bytes, multiples of `CHUNK`.

    Raises:
        InputError: the file cannot be read.
    """
    with open_input(source, start, size) as stream:
        raw = next(read_blocks(stream, start, min(start + size, source.size), size), None)
    return None if raw is None else _block(raw, raw.origin(file, source, size))


def blocks_drawn(source: InputFile, file: int, size: int, count: int, most: int) -> tuple[list[Records], int, bool]:
    """Blocks drawn from a file that must be read from its beginning (`is_stream`).

    The file is read once, and only the drawn blocks are kept and parsed. Each call draws the same blocks.

    Args:
        source: the file.
        file: its number.
        size: bytes of a block.
        count: most blocks.
        most: most bytes of content that are read.

    Returns:
        (records of the blocks in order, bytes of content that were read, True if that is the entire file).

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
        records = source_of(origin.source.path).parse(raw, origin)
        records.made = {**records.made, **made}
        return records
    nothing = np.zeros(0, np.int64)
    return Records(origin, Ledger(b"", nothing, nothing), nothing.astype(np.int32), receipt)
