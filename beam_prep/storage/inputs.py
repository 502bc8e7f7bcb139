"""Inputs: splits and blocks of records; are they those of an output, and what if they are no JSONL?"""

import hashlib
import json
import logging
import pickle
import time
import zlib
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from typing import Any

import numpy as np

from beam_prep.data.block import InputFile, Ledger, Origin, Split, drawn
from beam_prep.data.hashing import Node, tree_digest, tree_nodes
from beam_prep.errors import InputError, StorageError, TokenCacheError
from beam_prep.formats.manifest import MANIFEST
from beam_prep.hints import some
from beam_prep.reading.records import MAX_LINE_BYTES, RawBlock, Records, read_up_to
from beam_prep.reading.sources import GUESS_BYTES, HEAD_BYTES, guess, source_of
from beam_prep.storage import files
from beam_prep.storage.files import input_at, open_input
from beam_prep.storage.stores import is_local
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

    Each notes how long it took.

    Raises:
        InputError: the file changed, is damaged, or cannot be read.
    """
    started = time.perf_counter()
    for raw, origin in blocks_of(split, block_bytes, max_line_bytes):
        block = _block(raw, origin, token_cache)
        block.spent("ReadJSONL", time.perf_counter() - started)
        yield block
        started = time.perf_counter()


FIRST_BYTES = 1024 * 1024
"""Bytes of a file that are read to show its first records."""


def first_records(split: Split, block_bytes: int = FIRST_BYTES) -> Records | None:
    """The records of the first block of a split; None if the file is empty.

    Raises:
        InputError: the file cannot be read.
    """
    with closing(blocks_of(split, block_bytes, digests=False)) as blocks:
        raw, origin = next(blocks)
    return _block(raw, origin) if raw.size else None


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
    with closing(blocks_of(Split(file, source, 0, -1), size, digests=False)) as blocks:
        for raw, origin in blocks:
            place = seen if seen < count else int(chance.integers(seen + 1))
            if place < count and raw.size:
                kept[place] = raw, origin
            seen, end = seen + 1, end + origin.bytes
            if end >= most:
                break
        complete = next(blocks, None) is None
    found = sorted(kept.values(), key=lambda block: block[1].start)
    return [_block(raw, origin) for raw, origin in found], end, complete


def _block(raw: RawBlock, origin: Origin, token_cache: TokenCache | None = None) -> Records:
    made = {}
    if token_cache is not None:
        try:
            receipt = token_cache.find(token_cache.digest(origin))
            if receipt is not None and token_cache.trust.holds(receipt.counts("made")):
                nothing = np.zeros(0, np.int64)
                return Records(origin, Ledger(b"", nothing, nothing), nothing.astype(np.int32), receipt)
            made = {} if receipt is None else {"blocks_replaced": 1}
        except TokenCacheError as error:
            log.warning("%s; the block is made again", error)
            made = {"blocks_damaged": 1}
    records = source_of(origin.source.path).parse(raw, origin)
    records.made = {**records.made, **made}
    return records


_COMPARED_BYTES = 64 * 1024 * 1024
"""Most bytes of an input that are read to find one of its lines."""


def stores_checksum(inputs: Sequence[InputFile]) -> str | None:
    """A digest of the checksums that stores keep of the files; None if a file is local, or has no checksum."""
    if any(file.checksum is None for file in inputs):
        return None
    checksums = [(file.path, file.size, file.checksum) for file in inputs]
    return hashlib.sha256(json.dumps(checksums).encode()).hexdigest()


def digest_of_input(source: InputFile) -> str:
    """The digest of a file's content, as in a manifest."""
    nodes, start = list[Node](), 0
    with open_input(source) as stream:
        while part := read_up_to(stream, BLOCK_BYTES):
            nodes += tree_nodes(part, start)
            start += len(part)
    return tree_digest(nodes)


def difference(file: InputFile, entry: Mapping[str, Any], most: float = float("inf")) -> str | None:
    """How an input differs from its entry in a manifest; None if it is the same.

    Args:
        file: the input.
        entry: the entry of the input in the manifest.
        most: of an input with more bytes only the size is compared, as a digest needs the whole file.
    """
    if file.size != entry["size"]:
        return f"found {file.size} bytes, {MANIFEST} says {entry['size']}"
    if file.size > most or (digest := digest_of_input(file)) == entry["digest"]:
        return None
    return f"found digest {digest}, {MANIFEST} says {entry['digest']}"


def first_changed(
    inputs: Sequence[InputFile], listed: Sequence[Mapping[str, Any]], run_of: Callable[[], Mapping[str, Any]]
) -> InputFile | None:
    """The first input that differs from the manifest of an output; None if all are the same.

    Args:
        inputs: the inputs.
        listed: their entries in the manifest.
        run_of: reads the output's `run.json`. If the stores' checksums are the same as there, no file is read.
    """
    checksum = stores_checksum(inputs)
    if checksum is not None and run_of().get("inputs_checksum") == checksum:
        return None
    return next((file for file, entry in zip(inputs, listed, strict=True) if difference(file, entry)), None)


def compare_inputs(inputs: Iterable[Mapping[str, Any]]) -> tuple[int, list[str], list[str]]:
    """Reads the inputs of a manifest that are found from here, and compares size and digest.

    Args:
        inputs: the entries of the manifest. Relative paths are looked up in the current folder.

    Returns:
        (how many inputs were found, a line for each that was not found, a line for each that has changed).
    """
    compared, not_found, problems = 0, [], []
    for entry in inputs:
        path = str(entry["path"])
        try:
            file = input_at(path)
        except (InputError, StorageError) as error:
            not_found.append(str(error))
            continue
        compared += 1
        try:
            problem = difference(file, entry)
        except (InputError, StorageError) as error:
            problem = str(error)
        if problem is not None:
            problems.append(f"input {path}: {problem}")
    return compared, not_found, problems


def unchanged_input(entry: Mapping[str, Any]) -> InputFile:
    """The file of an input in a manifest, if it has not changed.

    Args:
        entry: the manifest's entry. A relative path is looked up in the current folder.

    Raises:
        InputError: the file is not there, or has changed.
        StorageError: the store does not answer, or refuses.
    """
    file = input_at(entry["path"])
    problem = difference(file, entry, _COMPARED_BYTES)
    if problem is not None:
        raise InputError(f"the file has changed since the output was made: {problem}")
    return file


def line_at(file: InputFile, offset: int) -> str:
    """The line of a file that begins at an offset, without its end; for a table the row as JSON.

    Args:
        file: the file.
        offset: bytes before the line, in the content; for a table the rows before this row.

    Raises:
        InputError: no line begins there, or the file cannot be read.
    """
    kind = source_of(file.path)
    splits = kind.splits(0, file, max(BLOCK_BYTES, file.size // 64 if kind.by_row else 0))
    for split in reversed(splits):
        if not kind.by_row and not (split.stop < 0 or split.start <= offset < split.stop):
            continue
        with closing(blocks_of(split, BLOCK_BYTES, digests=False)) as blocks:
            for raw, origin in blocks:
                if origin.start > offset:
                    break
                if offset < origin.start + origin.size:
                    ledger = kind.parse(raw, origin).ledger
                    offsets = origin.first_byte + ledger.offsets(range(len(ledger.starts)))
                    for line in np.flatnonzero(offsets == offset).tolist():
                        return ledger.raw[ledger.starts[line] : ledger.ends[line]].decode(errors="replace")
    raise InputError("no record begins there: the file changed since the output was made")


_FILES = 8  # most files that `advice_on` reads, up to a megabyte each
_NAMED = 12  # most fields in a message
_HEADS = 256  # most files that `check_heads` reads, within some milliseconds


def check_heads(inputs: Sequence[InputFile], fields: Collection[str] = ()) -> None:
    """Checks the first bytes of local inputs, and the columns of tables, before a run. Of many files it draws some.

    Without this check a run would refuse such a file only when it reads the file, perhaps hours later.

    Args:
        inputs: the inputs.
        fields: the fields that the config reads.

    Raises:
        InputError: a file is certainly not JSONL, or cannot be read; or a table has none of the fields.
    """
    local = [source for source in inputs if is_local(source.path)]
    for place in drawn(len(local), _HEADS).tolist():
        source = local[place]
        columns = source_of(source.path).columns(source, files)
        if columns is not None:
            if fields and not set(columns) & set(fields):
                read, there = (some(map(repr, names), _NAMED) for names in (fields, columns))
                found = (
                    f"{source.path!r} has none of the fields that the config reads ({read}): its columns are {there}"
                )
                raise InputError(found)
            continue
        with open_input(source, size=HEAD_BYTES) as stream:
            read_up_to(stream, HEAD_BYTES)  # raises InputError


def advice_on(inputs: Sequence[InputFile], problem: str, fields: Collection[str]) -> str | None:
    """Says what an input is that is not JSONL, and what to do; None if all seem to be JSONL.

    Args:
        inputs: the inputs of a run; only a few are read.
        problem: why the run failed. The files that it names are read first.
        fields: the fields that the config reads.
    """
    for source in sorted(inputs, key=lambda source: source.path not in problem)[:_FILES]:
        if source_of(source.path).by_row:
            continue
        try:
            with open_input(source, size=GUESS_BYTES) as stream:
                head = read_up_to(stream, GUESS_BYTES)
        except (InputError, StorageError):
            continue  # the problem says more
        found = guess(head, source.path, fields)
        if found is not None:
            return found
    return None
