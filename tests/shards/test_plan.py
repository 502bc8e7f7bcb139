"""The plan = what a program would do that reads record by record, and knows nothing of blocks."""

import dataclasses
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given

from beam_prep.data.block import ALIVE, InputFile, Ledger, Origin
from beam_prep.data.hashing import Node
from beam_prep.data.ragged import Ragged
from beam_prep.data.receipts import BlockReceipt, histogram
from beam_prep.data.schema import Column
from beam_prep.errors import EngineError
from beam_prep.formats.cached_block import ROW_INDEX, ROWS, encode_block, read_receipt, read_row_index
from beam_prep.shards import plan as plan_module
from beam_prep.shards import row_index, slices
from beam_prep.shards.plan import Plan, make_plan
from beam_prep.shards.receipts import Receipts, pack_receipts, placed
from beam_prep.shards.row_index import RowIndex
from beam_prep.tokens.batch import Batch

COLUMN = Column("sequence", "int32", 1, "ids")
LINE_BYTES = 10
DROPS = 3


@dataclass(frozen=True)
class Line:
    """What became of a line of the input.

    Attributes:
        kind: kept, blank, dropped or rejected.
        reason: of what is dropped or rejected; the domain of what is kept.
        tokens, doubles: of what is kept; as many tokens as `doubles` says were cut off.
    """

    kind: str
    reason: str = ""
    tokens: int = 0
    doubles: int = 0


@dataclass
class Made:
    """Blocks as they lie in the token cache."""

    receipts: list[BlockReceipt] = field(default_factory=list)
    row_indexes: dict[str, RowIndex] = field(default_factory=dict)
    fetched: list[list[str]] = field(default_factory=list)

    def fetch(self, names: list[str]) -> list[RowIndex]:
        self.fetched.append(names)
        return [self.row_indexes[name] for name in names]

    def plan(self, max_tokens: int, max_items: int | None = None, blobs: int = 1) -> Plan:
        parts = [self.receipts[part::blobs] for part in range(blobs)]
        packed = Receipts([pack_receipts(part[::-1]) for part in parts], lengths_by_block=max_items is not None)
        plan = make_plan(packed, self.fetch, max_tokens, max_items)
        return dataclasses.replace(plan, shards=[*plan.shards], rejects=[*plan.rejects])


def cached(files: list[list[list[Line]]], reused: Callable[[str], bool] = lambda name: False) -> Made:
    """Blocks of files, through the very bytes of the token cache. Blocks of equal content have one name."""
    made = Made()
    names: dict[tuple[Line, ...], str] = {}
    for file, blocks in enumerate(files):
        source = InputFile(f"in/{file}.jsonl", sum(map(len, blocks)) * LINE_BYTES, 0.0)
        start = 0
        for number, lines in enumerate(blocks):
            name = names.setdefault(tuple(lines), f"block-{len(names)}")
            size = len(lines) * LINE_BYTES
            node = Node(number, 0, bytes(32))
            origin = Origin(file, source, start, min(3, size), size, (node,), name)
            batch = batch_of(lines, origin)
            receipt, files_of_block = encode_block(batch, batch.tokens, 100, name)
            assert read_receipt(pa.BufferReader(b"".join(files_of_block[ROWS])), name) == receipt
            made.row_indexes[name] = read_row_index(pa.BufferReader(b"".join(files_of_block[ROW_INDEX])), name)
            made.receipts.append(placed(receipt, origin, name, reused(name)))
            start += size
    return made


def batch_of(lines: list[Line], origin: Origin) -> Batch:
    starts = np.arange(len(lines), dtype=np.int64) * LINE_BYTES
    ledger = Ledger(b"x" * LINE_BYTES * len(lines), starts, starts + LINE_BYTES - 1)
    for place, line in enumerate(lines):
        if line.kind == "blank":
            ledger.blank(np.array([place]))
        elif line.kind == "dropped":
            ledger.drop(place, line.reason)
        elif line.kind == "rejected":
            ledger.reject(place, line.reason, "message")
    alive = np.flatnonzero(ledger.status == ALIVE).astype(np.int32)
    kept = [lines[place] for place in alive.tolist()]
    batch = Batch(origin, ledger, alive, domain=[line.reason for line in kept])
    batch.columns["sequence"] = Ragged.from_lists([[7] * line.tokens for line in kept])
    batch.schema["sequence"] = COLUMN
    for counter in ("doubles", "truncated_tokens"):
        batch.count(counter, np.array([line.doubles for line in kept], np.int64))
    return batch


@dataclass
class Simulation:
    """A sequential program: one record after the other, a bucket a domain, flushed together.

    A record is known by the name of its block and its number among the block's records of its domain, as the slices of
    a plan name it; a reject by the name of its block and its number among the block's rejects.
    """

    max_tokens: int
    max_items: int | None
    rejects_per_file: int
    shards: list[tuple[str, int, list[tuple[str, int]]]] = field(default_factory=list)
    rejects: list[list[tuple[str, int, str, int, int]]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    doubles: int = 0
    lengths: list[tuple[int, int]] = field(default_factory=list)
    drops: list[tuple[str, str, int, int]] = field(default_factory=list)
    rejected: dict[str, list[tuple[str, str, int]]] = field(default_factory=dict)
    _buckets: dict[str, list[tuple[str, int]]] = field(default_factory=dict)
    _tokens: int = 0
    _pending_rejects: list[tuple[str, int, str, int, int]] = field(default_factory=list)

    def run(self, files: list[list[list[Line]]], made: Made) -> "Simulation":
        receipts = iter(made.receipts)
        for blocks in files:
            lines_before = 0
            for lines in blocks:
                receipt = next(receipts)
                seen: Counter[str] = Counter()
                for place, line in enumerate(lines):
                    self._line(line, receipt, lines_before, place, seen)
                lines_before += len(lines)
        self._flush()
        return self

    def _line(self, line: Line, receipt: BlockReceipt, lines_before: int, number: int, seen: Counter[str]) -> None:
        self.counts["lines"] += 1
        if self.max_items is not None and self.counts["kept"] == self.max_items:
            self.counts["not_read"] += 1
            return
        self.counts[line.kind if line.kind in ("kept", "blank") else f"{line.kind} {line.reason}"] += 1
        if line.kind == "rejected":
            if not self.rejects or len(self.rejects[-1]) == self.rejects_per_file:
                self.rejects.append([])
            place = (receipt["name"], seen["rejected"], receipt["path"].decode(), receipt["first_byte"], lines_before)
            self.rejects[-1].append(place)
            self.rejected.setdefault(line.reason, []).append((place[0], *place[2:4]))
            seen["rejected"] += 1
        if line.kind == "dropped" and self.counts[f"dropped {line.reason}"] <= DROPS:
            offset = receipt["first_byte"] + number * LINE_BYTES
            self.drops.append((line.reason, receipt["path"].decode(), offset, lines_before + number + 1))
        if line.kind != "kept":
            return
        self.lengths.append((line.tokens, line.tokens + line.doubles))
        self._buckets.setdefault(line.reason, []).append((receipt["name"], seen[f"kept {line.reason}"]))
        seen[f"kept {line.reason}"] += 1
        self.doubles += line.doubles
        self._tokens += line.tokens
        if self._tokens >= self.max_tokens:
            self._flush()

    def _flush(self) -> None:
        for domain in sorted(self._buckets):
            number = sum(1 for name, _, _ in self.shards if name == domain)
            self.shards.append((domain, number, self._buckets[domain]))
        self._buckets, self._tokens = {}, 0


def rows_of(plan: Plan, made: Made) -> list[tuple[str, int, list[tuple[str, int]]]]:
    """(domain, number, rows) of each shard, its slices unrolled; and each slice is of the domain that it says."""
    domains = {receipt["name"]: [name for name, _, _ in receipt.domains] for receipt in made.receipts}
    found = []
    for shard in plan.shards:
        assert all(domains[piece.name][piece.domain] == shard.domain for piece in shard.slices)
        rows = [(piece.name, row) for piece in shard.slices for row in range(piece.start, piece.stop)]
        found.append((shard.domain, shard.shard, rows))
    return found


def rejects_of(plan: Plan) -> list[list[tuple[str, int, str, int, int]]]:
    return [
        [
            (piece.name, place, piece.path, piece.first_byte, piece.first_line)
            for piece in file.slices
            for place in range(piece.start, piece.stop)
        ]
        for file in plan.rejects
    ]


domains = st.sampled_from(["wiki", "code", "A", "a/b", "日本"])
kept_lines = st.builds(Line, st.just("kept"), domains, st.integers(0, 9), st.integers(0, 2))
lines_of = st.one_of(
    kept_lines,
    kept_lines,
    st.just(Line("blank")),
    st.builds(Line, st.just("dropped"), st.sampled_from(["empty", "rows_without_loss"])),
    st.builds(Line, st.just("rejected"), st.sampled_from(["bad_json", "wrong_type"])),
)
blocks_of = st.lists(lines_of, min_size=1, max_size=12)


@st.composite
def inputs(draw: st.DrawFn) -> list[list[list[Line]]]:
    """Files of blocks of lines. Blocks come back from a pool: equal content has one name. A file may be empty."""
    pool = draw(st.lists(blocks_of, min_size=1, max_size=5))
    blocks = st.one_of(blocks_of, st.sampled_from(pool))
    files: st.SearchStrategy[list[list[Line]]] = st.one_of(st.lists(blocks, min_size=1, max_size=6), st.just([[]]))
    return draw(st.lists(files, min_size=1, max_size=3))


ONE_DOMAIN = [[[Line("kept", "a", 2)], [Line("kept", "a", 2), Line("kept", "a", 0)]], [[Line("kept", "a", 2)]]]
REJECTS = [[[Line("rejected", "bad_json")] * 5, [Line("kept", "a", 1), Line("rejected", "bad_json")]]]
_JSON, _TYPE = Line("rejected", "bad_json"), Line("rejected", "wrong_type")
REASON_BEHIND_THE_END = [[[_JSON], [_JSON], [_JSON], [_TYPE], [_JSON, Line("kept", "a", 1), _TYPE]]]


@given(
    inputs(),
    st.one_of(st.integers(1, 20), st.just(10**6)),
    st.one_of(st.none(), st.integers(1, 30)),
    st.integers(1, 5),
    st.integers(1, 3),
    st.sampled_from([(1, 0), (2, 10**6), (3, 30), (512, 10**6)]),
)
@example(ONE_DOMAIN, 4, None, 1, 1, (32, 10**6))
@example(ONE_DOMAIN, 2, 2, 1, 1, (32, 10**6))
@example(ONE_DOMAIN, 2, 4, 1, 1, (32, 10**6))
@example(ONE_DOMAIN, 1, 3, 1, 2, (1, 10**6))
@example(REJECTS, 1, 1, 2, 1, (32, 10**6))
@example(REASON_BEHIND_THE_END, 1, 1, 2, 1, (32, 10**6))
def test_the_plan_is_what_a_sequential_program_does(
    files: list[list[list[Line]]],
    max_tokens: int,
    max_items: int | None,
    rejects_per_file: int,
    blobs: int,
    prefetch: tuple[int, int],
) -> None:
    """However many row indexes are fetched ahead, and however few fit into memory."""
    made = cached(files)
    wanted = Simulation(max_tokens, max_items, rejects_per_file).run(files, made)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slices, "REJECTS_PER_FILE", rejects_per_file)
        patch.setattr(slices, "PREFETCH", prefetch[0])
        patch.setattr(row_index, "PREFETCH_ROWS", prefetch[1])
        patch.setattr(plan_module, "SHOWN", DROPS)
        plan = made.plan(max_tokens, max_items, blobs)

    assert rows_of(plan, made) == wanted.shards
    assert rejects_of(plan) == wanted.rejects
    assert [file.index for file in plan.rejects] == list(range(len(wanted.rejects)))

    counts, ledger = wanted.counts, plan.ledger
    named = {kind: {name.split(" ")[1]: n for name, n in counts.items() if name.startswith(kind)} for kind in
             ("dropped", "rejected")}  # fmt: skip
    assert ledger.as_dict() == {
        "lines": counts["lines"],
        "blank": counts["blank"],
        "read": counts["kept"] + sum(named["dropped"].values()) + sum(named["rejected"].values()),
        "kept": counts["kept"],
        **{kind: dict(sorted(reasons.items())) for kind, reasons in named.items()},
        "not_read": counts["not_read"],
    }
    assert ledger.lines == ledger.blank + ledger.read + ledger.not_read
    names = ("doubles", "truncated_tokens")
    assert plan.counters == (dict.fromkeys(names, wanted.doubles) if wanted.doubles else {})

    kept, uncut = zip(*wanted.lengths, strict=True) if wanted.lengths else ((), ())
    assert plan.lengths == (histogram(np.array(kept, np.int64)), histogram(np.array(uncut, np.int64)))
    assert [(drop.found.reason, *drop[:3]) for drop in plan.drops] == wanted.drops
    rows = [(domain, *row) for domain, _, rows in wanted.shards for row in rows]
    drawn = [(domain, piece.name, piece.start) for domain, piece in plan.drawn]
    assert len(drawn) == min(len(rows), plan_module.SAMPLES)
    assert not Counter(drawn) - Counter(rows)
    first = {(piece.name, piece.path, piece.first_byte) for piece in plan.first_rejected}
    assert first == {
        (name, path, byte)
        for reason in named["rejected"]
        for name, path, byte in list(dict.fromkeys(place for place in wanted.rejected[reason]))[
            : plan_module.REJECTS_SHOWN
        ]
    }

    total = Counter(domain for domain, _, _ in wanted.shards)
    assert {(shard.domain, shard.shards) for shard in plan.shards} == set(total.items())
    assert [shard.folder for shard in plan.shards] == [plan.domains[shard.domain] for shard in plan.shards]
    assert list(plan.domains) == sorted(total)
    assert [entry["path"] for entry in plan.inputs] == [f"in/{file}.jsonl" for file in range(len(files))]
    assert plan.columns == (COLUMN,)
    assert (plan.blocks, plan.reused) == (len(made.receipts), 0)


def test_reused_blocks_are_counted() -> None:
    assert cached(ONE_DOMAIN, lambda name: name == "block-0").plan(10).reused == 2


def test_blocks_without_borders_are_never_looked_into() -> None:
    """At 10 TB there are 1.2 million blocks: only those in which a shard ends may be fetched."""
    made = cached([[[Line("kept", "a", 1)] * size for size in range(1, 41)]])
    plan = made.plan(100)
    assert len([*plan.shards]) == 9
    asked = [name for names in made.fetched for name in names]
    assert len(asked) <= 16
    assert len(made.fetched) <= 4


def test_borders_are_fetched_many_at_a_time() -> None:
    """Each border depends on the one before: one round of reads a border would take hours on an object store."""
    made = cached([[[Line("kept", "a", size)] for size in range(1000, 1400)]])
    assert len([*made.plan(1000).shards]) == 400
    assert len(made.fetched) <= 400 / 10


def test_row_indexes_are_fetched_ahead_only_as_far_as_memory_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block may hold a million short lines."""
    made = cached([[[Line("kept", "a", 10), Line("blank")] * 5 for _ in range(100)]])
    monkeypatch.setattr(row_index, "PREFETCH_ROWS", 60)
    assert len([*made.plan(60).shards]) == 84
    assert {len(names) for names in made.fetched[:-1]} <= {3, 4}


def test_a_job_without_blocks_has_an_empty_plan() -> None:
    plan = make_plan(Receipts([]), lambda names: [], 10)
    assert (list(plan.shards), list(plan.rejects), plan.inputs, plan.columns, plan.domains) == ([], [], [], (), {})
    assert plan.ledger.as_dict()["lines"] == 0
    assert make_plan(Receipts([]), lambda names: [], 10, max_items=5).blocks == 0


# What a runner must not do


def three_files() -> Made:
    lines = [[Line("kept", "a", count)] * count for count in range(1, 4)]
    return cached([lines, lines[::-1], [[]]])


@pytest.mark.parametrize("twice", [0, 3, 6])
def test_a_block_that_comes_twice_is_noticed(twice: int) -> None:
    made = three_files()
    made.receipts.insert(3, made.receipts[twice])
    with pytest.raises(EngineError, match="the runner lost or doubled a block, run again"):
        made.plan(10)


@pytest.mark.parametrize(
    ("lost", "message"),
    [
        ([0], "the first block of in/0.jsonl is missing"),
        ([1], "after byte 10 of in/0.jsonl the next block begins at byte 30"),
        ([2], "the blocks after byte 30 of in/0.jsonl are missing"),
        ([3, 4, 5], "all blocks of input file 2 are missing"),
        ([5], "the runner lost or doubled a block, run again"),
        ([0, 1, 2], "the runner lost or doubled a block, run again"),
    ],
)
def test_a_block_that_is_missing_is_named(lost: list[int], message: str) -> None:
    made = three_files()
    made.receipts = [receipt for place, receipt in enumerate(made.receipts) if place not in lost]
    with pytest.raises(EngineError, match=message):
        made.plan(10)


def test_a_compressed_file_may_hold_less_than_its_size() -> None:
    """Its blocks lie in the content, its size is that of the file: ten bytes may take thirty as gzip."""
    made = cached([[[Line("kept", "a", 1)]]])
    (receipt,) = made.receipts
    origin = Origin(0, InputFile("x.gz", 30, 0.0, "gzip"), receipt["start"], 0, receipt["size"], (), "")
    made.receipts = [placed(receipt, origin, receipt["name"], False)]
    assert made.plan(10).inputs[0]["size"] == 30


def test_blocks_that_differ_in_columns_are_refused() -> None:
    made = three_files()
    columns = BlockReceipt.of({}, (Column("x", "int8", 1, "ids"),))["columns"]
    made.receipts[-1] = made.receipts[-1].updated(columns=columns)
    with pytest.raises(ValueError, match="blocks differ in their columns"):
        made.plan(10)


def test_receipts_are_small_when_packed() -> None:
    """1.2 million receipts must fit a worker of 2 GB."""
    made = cached([[[Line("kept", "a", count % 7)] * 3 for count in range(500)]])
    assert len(pack_receipts(made.receipts)) / 500 < 100
