"""A block: the records of one split of the input, and its ledger: the outcome of every line, with its reason."""

import functools
import gc
import os
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar

import numpy as np

from beam_prep.data.hashing import Node
from beam_prep.data.ragged import Array
from beam_prep.data.schema import Metadata
from beam_prep.errors import RunError, UserFunctionError

AnyPath = str | os.PathLike[str]
AnyPaths = Sequence[AnyPath] | AnyPath
"""One path or glob, or several."""

Reason = str
"""A key of `REASONS`; or, of a filter or map of a user, anything."""

REASONS = tomllib.loads(Path(__file__).with_name("reasons.toml").read_text(encoding="utf-8"))
"""`rejected` and `dropped` -> reason -> what is wrong with the record, and what to do: see the file."""

DROPPED = {reason: found["record"] for reason, found in REASONS["dropped"].items()}
"""Reason -> why the config or a filter leaves the record out."""

ADVICE = {reason: found["advice"] for of in REASONS.values() for reason, found in of.items() if "advice" in found}
"""Reason -> what a user can do, if there is more to say than the message of the reject."""


def sample(digest: str, count: int, limit: int) -> Array:
    """Indexes of at most `limit` of `count` rows, drawn by the digest of the block: the same on every worker."""
    return np.random.default_rng(int(digest[:16], 16)).permutation(count)[:limit]


def drawn(of: int, count: int, first: bool = False, seed: int = 0) -> Array:
    """int64, ascending: `count` numbers below `of`, the same for the same seed; with `first`, 0 is one of them."""
    found = np.random.default_rng(seed).choice(of, min(of, count), replace=False)
    if first and count and 0 not in found:
        found[0] = 0
    return np.sort(found)


@contextmanager
def without_collector() -> Iterator[None]:
    """Turns the garbage collector off around code that makes many objects which the block keeps.

    The collector would scan all objects of a block again and again: half of the time of parsing, and a third of the
    time of rendering.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


COLLECTION = "records"
"""The path of records that come from a collection and not from a file, in the order of their digests."""


def at_offset(path: str, offset: int, by_row: bool) -> str:
    """A file, and where a record begins in the file, for messages.

    >>> at_offset("a.jsonl", 1200, by_row=False), at_offset("a.parquet", 3, by_row=True)
    ('a.jsonl (byte offset 1200)', 'a.parquet (row 4)')

    Args:
        path: of the file.
        offset: bytes of content before the record; `by_row`: records before it.
        by_row: offsets count records, see `Ledger`.
    """
    return f"{path} (row {offset + 1})" if by_row else f"{path} (byte offset {offset})"


OutcomeKind = Literal["blank", "dropped", "rejected"]

ALIVE = 0
MICROSECONDS = "microseconds: "
"""Prefix of the entries of `Block.made` that hold the time of a step."""
_OF_THIS_RUN = ("blocks_damaged", "blocks_replaced")
TEXT_LIMIT = 1000
"""Most characters of a rejected record's text, and of its message, that the rejects keep."""


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file of the job's input. The launcher lists it once.

    Attributes:
        path: as given, or as a glob gave it.
        size: bytes in the store (compressed files: of the compressed form).
        updated: modification time, as the store gives it; only compared with itself, to notice a change during the run.
        compression: "gzip", "bzip2", "zstd" or None, by the file's ending.
        version: generation or etag of an object in a store.
        checksum: of an object's content, as its store gives it.
        place: absolute path of a local file: `path` may be relative, and workers have another current folder.
        group: number of its group in a config with `input.groups`; None: there are no groups.
    """

    path: str
    size: int
    updated: float
    compression: str | None = None
    version: str | None = None
    checksum: str | None = None
    place: str = ""
    group: int | None = None


@dataclass(frozen=True, slots=True)
class Split:
    """A unit of work for ReadJSONL: a byte range of a plain file, or the blocks of a compressed file.

    Attributes:
        file: index of the file in the job's input.
        start, stop: the byte range of a plain file. Of a Parquet file: the range in which the row groups begin. A
            compressed file has no ranges, and its `stop` is -1.
        part, parts: of a compressed file, every `parts`-th block from block `part` on.
    """

    file: int
    source: InputFile
    start: int
    stop: int
    part: int = 0
    parts: int = 1


@dataclass(slots=True)
class Ledger:
    """The outcome of every line of a block.

    Attributes:
        raw: the block's bytes; rejects quote them.
        starts: int64 [lines], where each line begins in `raw`.
        ends: int64 [lines], one past each line's last byte (without the line end).
        status: uint8 [lines]: ALIVE, or 1 + index into `outcomes`.
        outcomes: (kind, reason), in order of first use.
        messages: line -> message, for rejected lines.
        digests: what `key_records` computed for each line: `split` uint64 [lines], `duplicate` uint64 [lines, 2].
        notes: line -> a note on a line that a step dropped, or kept and marked.
        by_row: the lines are rows of a table: offsets count rows, from 0, instead of bytes.
        metadata: fields of the records that become metadata columns; None: there are none.
    """

    raw: bytes
    starts: Array
    ends: Array
    status: Array = field(default_factory=lambda: np.zeros(0, np.uint8))
    outcomes: list[tuple[OutcomeKind, str]] = field(default_factory=list)
    messages: dict[int, str] = field(default_factory=dict)
    digests: dict[str, Array] = field(default_factory=dict)
    notes: dict[int, str] = field(default_factory=dict)
    by_row: bool = False
    metadata: Metadata | None = None

    def __post_init__(self) -> None:
        if len(self.status) != len(self.starts):
            self.status = np.zeros(len(self.starts), np.uint8)

    def copy(self) -> "Ledger":
        """A copy, for a step that marks lines: another step may use the same block."""
        return replace(
            self,
            status=self.status.copy(),
            outcomes=list(self.outcomes),
            messages=dict(self.messages),
            notes=dict(self.notes),
        )

    def _code(self, kind: OutcomeKind, reason: str) -> int:
        outcome = (kind, reason)
        if outcome not in self.outcomes:
            if len(self.outcomes) == 255:
                raise UserFunctionError(
                    f"more than 255 different reasons in one block, the last is {reason[:100]!r}: "
                    "give few reasons, without what differs from record to record"
                )
            self.outcomes.append(outcome)
        return self.outcomes.index(outcome) + 1

    def blank(self, lines: Array) -> None:
        """Marks blank lines."""
        if len(lines):
            self.status[lines] = self._code("blank", "blank")

    def drop(self, lines: Array | int, reason: str) -> None:
        """Marks lines that a rule of the config leaves out. They are counted, but are not rejects."""
        if np.ndim(lines) == 0 or len(lines):  # type: ignore[arg-type]
            self.status[lines] = self._code("dropped", reason)

    def reject(self, line: int, reason: str, message: str) -> None:
        """Marks a line that cannot be used. It is written to the rejects with `reason` (a short word) and `message`."""
        self.status[line] = self._code("rejected", reason)
        self.messages[line] = sys.intern(message[:TEXT_LIMIT])  # a broken block may have millions of equal messages

    def offsets(self, lines: Sequence[int] | Array) -> Array:
        """int64: offsets of lines from the block's first line: bytes, or rows of a table."""
        return np.asarray(lines, np.int64) if self.by_row else self.starts[lines].astype(np.int64)

    def text(self, line: int, limit: int = TEXT_LIMIT) -> str:
        """The first `limit` characters of a line; bytes that are no UTF-8 become U+FFFD."""
        start, end = int(self.starts[line]), int(self.ends[line])
        return self.raw[start : min(end, start + 4 * limit)].decode("utf-8", "replace")[:limit]


def of_this_run(name: str) -> bool:
    """True for the entries of `Block.made` that describe the run rather than the block.

    They are: the cached block was damaged, or was made in a way that this run does not trust; the times of steps.
    """
    return name in _OF_THIS_RUN or name.startswith(MICROSECONDS)


@dataclass(frozen=True, slots=True)
class Origin:
    """The source of a block: its byte range in the input (rows of a table), and the digests of these bytes.

    Attributes:
        file: index of the file in the job's input.
        source: the file, as listed.
        start: offset of the block's first byte of content (after decompression). Of a table, `start` and `size` count
            rows.
        skip: bytes between `start` and the block's first line (the rest of a line of the previous block).
        size: bytes of content covered from `start` on, without the part of the last line beyond the range.
        nodes: the hash-tree nodes of that range, see `hashing`. Of a table: nodes of any part of the file; those of all
            blocks cover the file.
        digest: hex digest of all bytes of the block's lines; names the block in the token cache.
        max_line_bytes: a longer line is rejected.
        cut: the last line is longer than `max_line_bytes`, and was not read to its end.
        refused: (line, reason, message) of lines that are rejected before they are parsed.
        stored: bytes of the file, as stored, that were read for the block; only for progress.
        text_bytes: of a table: bytes of its rows as JSON; for progress and estimates.
    """

    file: int
    source: InputFile
    start: int
    skip: int
    size: int
    nodes: tuple[Node, ...]
    digest: str
    max_line_bytes: int = 1 << 31
    cut: bool = False
    refused: tuple[tuple[int, str, str], ...] = ()
    stored: int = field(default=0, compare=False)
    text_bytes: int | None = field(default=None, compare=False)

    @property
    def first_byte(self) -> int:
        """Offset of the block's first line in the file's content."""
        return self.start + self.skip

    @property
    def bytes(self) -> int:
        """Bytes of content covered."""
        return self.size if self.text_bytes is None else self.text_bytes


@dataclass(slots=True)
class Block:
    """The base of `Records`, `Rendered` and `Batch`.

    Attributes:
        origin: its source.
        ledger: the outcome of each line.
        line: int32 [rows], the line of each row that is still alive.
        row: int32 [rows], the number of each row in its record; None: every record has one row.
        receipt: its `BlockReceipt`, if the token cache already has it: then there are no rows, and steps do nothing.
        made: counts of records by how they were made ("encoded_by_gigatoken" ...), and of those compared with the
            reference. `run.json` sums them, and cached blocks keep them, except the entries that are `of_this_run`.
    """

    origin: Origin
    ledger: Ledger
    line: Array
    receipt: Any = None
    made: dict[str, int] = field(default_factory=dict, kw_only=True)
    row: Array | None = field(default=None, kw_only=True)

    def where(self, row: int) -> str:
        """`file (byte offset N)` of a row, for messages."""
        return self.place(int(self.line[row]))

    def offset(self, line: int) -> int:
        """Offset of a line in the file's content: bytes, or rows of a table."""
        return self.origin.first_byte + int(self.ledger.offsets([line])[0])

    def place(self, line: int) -> str:
        """`file (byte offset N)` of a line, for messages."""
        return at_offset(self.origin.source.path, self.offset(line), self.ledger.by_row)

    def spent(self, step: str, seconds: float) -> None:
        """Adds the time of a step, for `run.json`."""
        name = MICROSECONDS + step
        self.made = {**self.made, name: self.made.get(name, 0) + int(seconds * 1e6)}

    def check(self, step: str) -> None:
        """Checks that each line without an outcome is one row, in order, and that every column has all rows.

        Args:
            step: the step, for the message.

        Raises:
            RunError: rows were lost or duplicated, and the ledger does not say so.
        """
        living = np.flatnonzero(self.ledger.status == ALIVE)
        found = self.line
        if self.row is not None and (np.diff(found) >= 0).all():
            found = np.unique(found)
        if not np.array_equal(living, found):
            differ = np.setxor1d(living, self.line)
            where = f", the first at {self.place(int(differ[0]))}" if len(differ) else ", in another order or twice"
            raise RunError(
                f"{step} a block of {len(self)} rows whose ledger has {len(living)} lines without an outcome{where}: "
                "a step lost or duplicated rows; take rows out with FilterRecords, Batch.drop or Batch.reject"
            )
        for name, count in self._lengths():
            if count != len(self):
                raise RunError(f"{step} a block of {len(self)} rows with {count} of {name}: wanted one for each row")

    def _lengths(self) -> Iterator[tuple[str, int]]:
        """(name, length) of each column with one entry a row."""
        return iter(())

    def __len__(self) -> int:
        return len(self.line)


class Reject(Exception):
    """Raised by a step for a record that cannot be used. It does not end the run. Reasons: docs/formats.md."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(reason, message)
        self.reason = reason
        self.message = message


B = TypeVar("B", bound=Block)
C = TypeVar("C", bound=Block)
P = ParamSpec("P")


def step(work: Callable[Concatenate[B, P], C]) -> Callable[Concatenate[B, P], C]:
    """Decorates a step of the chain: checks the block that it takes (maybe from a user's step), and its result."""

    @functools.wraps(work)
    def checked(block: B, /, *args: P.args, **options: P.kwargs) -> C:
        block.check(f"{work.__name__} was given")
        made = work(block, *args, **options)
        made.check(f"{work.__name__} made")
        return made

    return checked
