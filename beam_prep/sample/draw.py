"""Draws records from all files. The same files always give the same records."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from beam_prep.data.block import ALIVE, InputFile, Ledger, drawn
from beam_prep.data.hashing import CHUNK
from beam_prep.data.ragged import Array
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
    most_places = max(1, _PLACES_BYTES * size // CHUNK)
    chosen = drawn(len(files), min(_FILES, most_places), first=True).tolist()
    streams = [index for index in chosen if is_stream(files[index])]
    plain = [(index, files[index].size) for index in chosen if not is_stream(files[index])]
    weight = {index: files[index].size * (_UNPACKED if _is_packed(files[index]) else 1) for index in chosen}
    found, unread, lines, held = list[tuple[Records, float]](), [], 0, 0
    complete = len(chosen) == len(files)
    for index in streams:
        places = max(1, round(most_places * weight[index] / max(1, sum(weight.values()))))
        most = max(CHUNK, _STREAM_BYTES * size // len(streams))
        blocks, end, whole = blocks_drawn(files[index], index, CHUNK, places, most)
        read = sum(block.origin.bytes for block in blocks)
        found += [(block, (end if whole else max(end, weight[index])) / max(1, read)) for block in blocks]
        lines += sum(len(filled(block.ledger)) for block in blocks)
        held += sum(len(block.ledger.raw) for block in blocks)
        complete &= whole and read == end
        if not whole:
            unread.append(files[index].path)
    beside, read = list[Records](), 0
    for number, (index, start) in enumerate(_cells(plain)):
        enough = lines >= count or held >= size
        if number >= most_places or (enough and number >= max(_PLACES, len(plain))) or held >= _STREAM_BYTES * size:
            complete = False
            break
        read += min(CHUNK, files[index].size - start)
        if (block := records_at(files[index], index, start, CHUNK)) is not None:
            beside.append(block)
            lines += len(filled(block.ledger))
            held += len(block.ledger.raw)
    found += [(block, sum(size for _, size in plain) / max(1, read)) for block in beside]
    if held > size:
        count = min(count, max(1, lines * size // held))
    found.sort(key=lambda each: (each[0].origin.file, each[0].origin.start))
    stands_for = np.repeat([each for _, each in found], [len(filled(block.ledger)) for block, _ in found])
    about = lines if complete else round(stands_for.sum() * len(files) / max(1, len(chosen)))
    taken = tuple(_taken([block for block, _ in found], stands_for, count))
    return Drawn(taken, min(lines, count), about, complete and lines <= count, len(chosen), tuple(unread))


def _taken(blocks: Sequence[Records], stands_for: Array, count: int) -> Iterator[Records]:
    """The blocks, with only `count` of their lines, the first among them.

    Args:
        blocks: in order.
        stands_for: float64 [lines], how many lines of the input each of their lines stands for.
        count: how many lines are kept.
    """
    picked = np.ones(len(stands_for), bool)
    if count < len(picked):
        chance, others = np.random.default_rng(0), stands_for[1:]
        picked[1:] = False
        picked[1 + chance.choice(len(others), count - 1, replace=False, p=others / others.sum())] = True
    start = 0
    for block in blocks:
        there = filled(block.ledger)
        left_out = there[~picked[start : start + len(there)]]
        start += len(there)
        if not len(left_out):
            yield block
            continue
        ledger = block.ledger.copy()
        ledger.blank(left_out)
        for line in left_out.tolist():
            ledger.messages.pop(line, None)
        yield block.keep(np.flatnonzero(ledger.status[block.line] == ALIVE), ledger)


def _is_packed(file: InputFile) -> bool:
    return file.compression is not None or source_of(file.path).is_packed


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


def filled(ledger: Ledger) -> Array:
    """int64: the lines of a block that are not blank."""
    blank = [code for code, (kind, _) in enumerate(ledger.outcomes, start=1) if kind == "blank"]
    return np.flatnonzero(~np.isin(ledger.status, blank))
