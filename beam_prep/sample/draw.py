"""Draws records from all files. The same files always give the same records."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from beam_prep.data.block import ALIVE, InputFile, drawn
from beam_prep.data.hashing import CHUNK
from beam_prep.reading.records import Records
from beam_prep.reading.sources import source_of
from beam_prep.storage.splits import blocks_drawn, is_stream, records_at

_FILES = 256  # most files that are read: each is a request to a store
_PLACES = 128  # least number of places, if there are so many: neighbouring records are alike
_PLACES_BYTES = 2  # at places, at most this many times the sample's bytes are read: few long records begin at a place
_STREAM_BYTES = 8  # of all compressed files, at most this many times the sample's bytes are read
SAMPLE_BYTES = 1 << 25
"""Most bytes of records: to encode 32 MB takes about 20 seconds."""
_CELLS = 2048
_UNPACKED = 4  # bytes of content for each byte of a compressed file, about


@dataclass(frozen=True, slots=True)
class Drawn:
    """Records of a sample.

    Attributes:
        blocks: the blocks that hold the records; their other lines are blank.
        count: number of drawn lines, without blank ones.
        about: number of lines of the input, about.
        all: True if these are all lines.
        files: number of files that were read.
        unread: files of which only the beginning was read, because they are large, and compressed or tables.
    """

    blocks: tuple[Records, ...]
    count: int
    about: int
    all: bool
    files: int
    unread: tuple[str, ...]

    @property
    def looked_at(self) -> str:
        """A text: `2,000 records looked at (of about 12,000), in 3 files`."""
        what = "all of it" if self.all else f"of about {float(f'{self.about:.1e}'):,.0f}"
        return f"{self.count:,} records looked at ({what}), in {self.files:,} file{'s' * (self.files != 1)}"


def draw(files: Sequence[InputFile], count: int, size: int = SAMPLE_BYTES) -> Drawn:
    """Draws `count` records of all files, in order; fewer if they exceed `size` bytes. Includes the first record.

    Plain files are read at random places; compressed files, tables, and lists in `.json` files from their beginning.

    Raises:
        InputError: a file cannot be read.
    """
    chosen = drawn(len(files), _FILES, first=True).tolist()
    streams = [index for index in chosen if is_stream(files[index])]
    plain = [index for index in chosen if index not in set(streams)]
    weight = {index: files[index].size * (_UNPACKED if _is_packed(files[index]) else 1) for index in chosen}
    total = max(1, sum(weight.values()))
    most_places = max(1, _PLACES_BYTES * size // CHUNK)
    strata, unread = [], []
    complete = len(chosen) == len(files)
    for index in streams:
        places = max(1, round(most_places * weight[index] / total))
        most = max(CHUNK, _STREAM_BYTES * size // len(streams))
        found, end, whole = blocks_drawn(files[index], index, CHUNK, places, most)
        strata.append(_Stratum(found, end if whole else max(end, weight[index])))
        complete &= whole and strata[-1].read == end
        if not whole:
            unread.append(files[index].path)
    lines, held = sum(part.lines for part in strata), sum(part.held for part in strata)
    beside = _Stratum([], sum(files[index].size for index in plain))
    for number, (index, start) in enumerate(_cells([(index, files[index].size) for index in plain])):
        enough = lines >= count or held >= size
        if number >= most_places or (enough and number >= max(_PLACES, len(plain))) or held >= _STREAM_BYTES * size:
            complete = False
            break
        beside.read += min(CHUNK, files[index].size - start)
        block = records_at(files[index], index, start, CHUNK)
        if block is not None:
            beside.add(block)
            lines += _lines(block)
            held += len(block.ledger.raw)
    strata.append(beside)
    if held > size:
        count = min(count, max(1, lines * size // held))
    taken = [block for part, quota in zip(strata, _quotas(strata, count), strict=True) for block in part.take(quota)]
    taken.sort(key=lambda block: (block.origin.file, block.origin.start))
    about = lines if complete else round(sum(part.about for part in strata) * len(files) / max(1, len(chosen)))
    return Drawn(tuple(taken), min(lines, count), about, complete and lines <= count, len(chosen), tuple(unread))


@dataclass(slots=True)
class _Stratum:
    """A part of the input from which blocks were drawn evenly: a stream, or all plain files together.

    Attributes:
        blocks: the blocks that were read.
        size: bytes of its content, about.
        read: bytes that were read.
        lines: number of lines of the blocks that are not blank.
        held: bytes of the blocks.
    """

    blocks: list[Records]
    size: int
    read: int = 0
    lines: int = 0
    held: int = 0

    def __post_init__(self) -> None:
        self.read = sum(block.origin.bytes for block in self.blocks)
        self.lines = sum(map(_lines, self.blocks))
        self.held = sum(len(block.ledger.raw) for block in self.blocks)

    def add(self, block: Records) -> None:
        """Adds a block. The caller updates `read`, which also counts places without records."""
        self.blocks.append(block)
        self.lines += _lines(block)
        self.held += len(block.ledger.raw)

    @property
    def about(self) -> float:
        """Number of its lines, about."""
        return self.lines * self.size / self.read if self.read else 0.0

    def take(self, count: int) -> Iterator[Records]:
        """The blocks, with only `count` of their lines."""
        self.blocks.sort(key=lambda block: (block.origin.file, block.origin.start))
        return _take(self.blocks, self.lines, count)


def _is_packed(file: InputFile) -> bool:
    return file.compression is not None or source_of(file.path).is_packed


def _quotas(strata: Sequence[_Stratum], count: int) -> list[int]:
    """Number of lines that each stratum gives: by its share of the input, as far as it has lines."""
    total = sum(part.about for part in strata) or 1.0
    quotas = [min(part.lines, int(count * part.about / total)) for part in strata]
    for place in sorted(range(len(strata)), key=lambda place: -strata[place].about):
        more = min(strata[place].lines - quotas[place], count - sum(quotas))
        quotas[place] += max(0, more)
    return quotas


def _cells(files: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """(file, offset) of all parts of plain files, in the order in which they are read: first a part of each file."""
    sizes = np.array([-(-size // CHUNK) for _, size in files], np.int64)
    if not sizes.sum():
        return
    chance = np.random.default_rng(0)
    first = {place: int(chance.integers(cells)) for place, cells in enumerate(sizes.tolist()) if cells}
    first[min(first)] = 0
    for place, cell in first.items():
        yield files[place][0], cell * CHUNK
    ends = np.cumsum(sizes)
    # More parts than are ever read; a permutation of all parts of a terabyte would take memory.
    for number in chance.permutation(drawn(int(ends[-1]), _CELLS)).tolist():
        place = int(np.searchsorted(ends, number, side="right"))
        cell = number - int(ends[place] - sizes[place])
        if first[place] != cell:
            yield files[place][0], cell * CHUNK


def _lines(block: Records) -> int:
    """Number of lines that are not blank."""
    return len(block.ledger.starts) - sum(
        int((block.ledger.status == code).sum())
        for code, (kind, _) in enumerate(block.ledger.outcomes, start=1)
        if kind == "blank"
    )


def _take(blocks: Sequence[Records], lines: int, count: int) -> Iterator[Records]:
    """The blocks, with only `count` of their lines."""
    picked = np.zeros(lines, bool)
    picked[drawn(lines, count, first=True)] = True
    start = 0
    for block in blocks:
        blank = [code for code, (kind, _) in enumerate(block.ledger.outcomes, start=1) if kind == "blank"]
        filled = np.flatnonzero(~np.isin(block.ledger.status, blank))
        left_out = filled[~picked[start : start + len(filled)]]
        start += len(filled)
        if not len(left_out):
            yield block
            continue
        ledger = block.ledger.copy()
        ledger.blank(left_out)
        for line in left_out.tolist():
            ledger.messages.pop(line, None)
        rows = np.flatnonzero(ledger.status[block.line] == ALIVE)
        yield block.keep(rows, ledger)
