"""The plan counts what a program would that reads line by line. Which rows a shard has: tests/compose/test_naive.py."""

import dataclasses
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import example, given

from beam_prep.data.block import InputFile, Origin
from beam_prep.data.schema import Column
from beam_prep.errors import EngineError
from beam_prep.reading.records import REJECTS_SHOWN
from beam_prep.shards import plan as plan_module
from beam_prep.shards import slices
from beam_prep.shards.compose import Compose
from beam_prep.shards.plan import Plan, make_plan
from beam_prep.shards.receipts import BlockReceipt, Copies, Receipts, RowIndexes, histogram, pack_receipts, placed
from tests.compose.jobs import COLUMNS, CUT, LINE_BYTES, Blocks, Files, outcome_of
from tests.compose.naive import Row
from tests.compose.test_naive import CUTS, inputs
from tests.conftest import Patch

DROPS = 3


def plan_of(blocks: Blocks, max_tokens: int, max_items: int | None = None, fetched: Any = None) -> Plan:
    """The plan of a job; `fetched` gets the names of each fetch."""

    def fetch(names: list[str]) -> Any:
        if fetched is not None:
            fetched.append(names)
        return blocks.token_cache.row_indexes(names)

    plan = make_plan(
        Receipts.of([pack_receipts(blocks.receipts[::-1])]),
        fetch,
        max_tokens,
        max_items,
        Compose(),
        lambda name: Copies(),
    )
    return dataclasses.replace(plan, shards=[*plan.shards], rejects=[*plan.rejects])


class Counts:
    """A sequential program: one line after the other.

    Attributes:
        kept: the kept rows.
        counts: what became of how many lines.
        rejects: where they are: (reason, (block, number in it, path, first byte, first line)).
        drops, shown: (reason, path, offset, line) of drops, and of rejects.
    """

    def __init__(self, blocks: Blocks, max_items: int | None) -> None:
        self.kept: list[Row] = []
        self.counts: Counter[str] = Counter()
        self.rejects: list[tuple[str, tuple[Any, ...]]] = []
        self.drops: list[tuple[str, str, int, int]] = []
        self.shown: list[tuple[str, str, int, int]] = []
        for receipt in blocks.receipts:
            first, path = receipt["start"] // LINE_BYTES, receipt["path"].decode()
            rejects = 0
            for place, row in enumerate(blocks.files[receipt["file"]][first : first + receipt["lines"]]):
                self.counts["lines"] += 1
                if len(self.kept) == max_items:
                    self.counts["not_read"] += 1
                    continue
                kind, reason = ("kept", "") if row is not None else outcome_of(place)
                self.counts[f"{kind} {reason}".strip()] += 1
                if row is not None:
                    self.kept.append(row)
                if kind == "rejected":
                    where = (receipt["name"], rejects, path, receipt["first_byte"], first)
                    self.rejects.append((reason, where))
                    rejects += 1
                listed = {"dropped": self.drops, "rejected": self.shown}.get(kind, [])
                listed.append((reason, path, (first + place) * LINE_BYTES, first + place + 1))


BEHIND_THE_END = [[None] * 5 + [None, None, Row(1), None, None, None, None]]
"""A reason of which one reject is there, behind the last row that is read."""


@given(
    inputs(),
    CUTS,
    st.one_of(st.integers(1, 20), st.just(10**6)),
    st.one_of(st.none(), st.integers(1, 30)),
    st.integers(1, 5),
    st.sampled_from([(1, 0), (2, 10**6), (3, 30), (512, 10**6)]),
)
@example(BEHIND_THE_END, [[5]], 1, 1, 2, (32, 10**6))
def test_the_plan_is_what_a_sequential_program_does(
    files: Files,
    cuts: list[list[int]],
    max_tokens: int,
    max_items: int | None,
    rejects_per_file: int,
    prefetch: tuple[int, int],
) -> None:
    """However many row indexes are fetched ahead, and however few fit into memory."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(RowIndexes, "borders_ahead", prefetch[0])
        patch.setattr(RowIndexes, "most_rows", prefetch[1])
        patch.setattr(slices, "REJECTS", rejects_per_file)
        patch.setattr(plan_module, "SHOWN", DROPS)
        blocks = Blocks(files, Path(folder), cuts)
        plan = plan_of(blocks, max_tokens, max_items)
    wanted = Counts(blocks, max_items)
    counts, ledger = wanted.counts, plan.ledger
    named = {
        kind: {name.split(" ")[1]: count for name, count in sorted(counts.items()) if name.startswith(kind)}
        for kind in ("dropped", "rejected")
    }
    read = len(wanted.kept) + len(wanted.rejects) + len(wanted.drops)
    assert ledger.as_dict() == {
        "lines": counts["lines"],
        "blank": counts["blank"],
        "read": read,
        "kept": len(wanted.kept),
        **named,
        "not_read": counts["not_read"],
    }
    cut_off = sum(row.id % CUT for row in wanted.kept)
    odd = sum(row.id % 2 for row in wanted.kept)
    found = {name: count for name, count in (("odd", odd), ("truncated_tokens", cut_off)) if count}
    assert plan.counters == found
    kept = np.array([row.tokens + sum(range(row.id % 4)) for row in wanted.kept], np.int64)  # of both columns of ids
    uncut = kept + np.array([row.id % CUT for row in wanted.kept], np.int64)
    assert plan.lengths == (histogram(kept), histogram(uncut))

    rejects = [
        [
            (piece.name, place, piece.path, piece.first_byte, piece.first_line)
            for piece in file.slices
            for place in range(piece.start, piece.stop)
        ]
        for file in plan.rejects
    ]
    assert [file.index for file in plan.rejects] == list(range(len(rejects)))
    assert {len(file) for file in rejects[:-1]} <= {rejects_per_file}
    assert [place for file in rejects for place in file] == [where for _, where in wanted.rejects]
    for kind, records, most in (("rejected", wanted.shown, REJECTS_SHOWN), ("dropped", wanted.drops, DROPS)):
        first = [
            record for place, record in enumerate(records) if [r[0] for r in records[:place]].count(record[0]) < most
        ]
        assert [(drop.found.reason, *drop[:3]) for drop in plan.shown_as(kind)] == first

    rows = {(receipt["name"], domain[0]): domain[1] for receipt in blocks.receipts for domain in receipt.domains}
    assert len(plan.drawn) == min(len(wanted.kept), plan_module.SAMPLES)
    assert all(piece.start < rows[piece.name, domain] for domain, piece in plan.drawn)
    total = Counter(shard.domain for shard in plan.shards)
    assert {(shard.domain, shard.shards) for shard in plan.shards} == set(total.items())
    assert [shard.folder for shard in plan.shards] == [plan.domains[shard.domain] for shard in plan.shards]
    assert list(plan.domains) == sorted({row.domain for row in wanted.kept})
    assert [entry["path"] for entry in plan.inputs] == [f"in/{file}.jsonl" for file in range(len(files))]
    assert plan.columns == COLUMNS
    assert (plan.blocks, plan.reused) == (len(blocks.receipts), 0)


def test_blocks_without_borders_are_never_looked_into(tmp_path: Path) -> None:
    """At 10 TB there are 1.2 million blocks: only those in which a shard ends may be fetched."""
    fetched: list[list[str]] = []
    plan = plan_of(Blocks([[Row(1)] * 820], tmp_path, [range(1, 40)]), 100, fetched=fetched)
    assert len([*plan.shards]) == 9
    assert sum(map(len, fetched)) <= 16
    assert len(fetched) <= 4


def test_borders_are_fetched_many_at_a_time(tmp_path: Path) -> None:
    """Each border depends on the one before: one round of reads a border would take hours on an object store."""
    fetched: list[list[str]] = []
    rows = [Row(1, tokens=size) for size in range(100, 300)]
    assert len([*plan_of(Blocks([rows], tmp_path, [[1] * 200]), 100, fetched=fetched).shards]) == 200
    assert len(fetched) <= 200 / 10


def test_row_indexes_are_fetched_ahead_only_as_far_as_memory_allows(tmp_path: Path, monkeypatch: Patch) -> None:
    """A block may hold a million short lines."""
    fetched: list[list[str]] = []
    blocks = Blocks([[Row(1, tokens=10), None] * 500], tmp_path, [[10] * 100])
    monkeypatch.setattr(RowIndexes, "most_rows", 60)
    assert len([*plan_of(blocks, 60, fetched=fetched).shards]) == 84
    assert {len(names) for names in fetched[:-1]} <= {2, 3}


def test_a_job_without_blocks_has_an_empty_plan() -> None:
    plan = make_plan(Receipts.of([]), lambda names: [], 10, 5, Compose(), lambda name: Copies())
    assert (list(plan.shards), list(plan.rejects), plan.inputs, plan.columns, plan.domains) == ([], [], [], (), {})
    assert (plan.ledger.lines, plan.blocks) == (0, 0)


# What a runner must not do


@pytest.fixture
def three_files(tmp_path: Path) -> Blocks:
    """Of three blocks, of three, and an empty one."""
    return Blocks([[Row(1)] * 6, [Row(1)] * 6, []], tmp_path, [[1, 2], [3, 2]])


@pytest.mark.parametrize("twice", [0, 3, 6])
def test_a_block_that_comes_twice_is_noticed(twice: int, three_files: Blocks) -> None:
    three_files.receipts.insert(3, three_files.receipts[twice])
    with pytest.raises(EngineError, match="the runner lost or doubled a block, run again"):
        plan_of(three_files, 10)


@pytest.mark.parametrize(
    ("lost", "message"),
    [
        ([0], "the blocks of in/0.jsonl, .* at the bytes from 10 to 30"),
        ([1], "the blocks of in/0.jsonl, .* at the bytes from 30 to 60"),
        ([2], "the blocks of in/0.jsonl, .* at the bytes from 10 to 30"),
        ([3, 4, 5], "the blocks of in/2.jsonl, or of the file before, do not follow each other"),
        ([5], "the runner lost or doubled a block, run again"),
        ([0, 1, 2], "the runner lost or doubled a block, run again"),
    ],
)
def test_a_block_that_is_missing_is_named(lost: list[int], message: str, three_files: Blocks) -> None:
    for place in reversed(lost):
        three_files.receipts.pop(place)
    with pytest.raises(EngineError, match=message):
        plan_of(three_files, 10)


def test_a_compressed_file_may_hold_less_than_its_size(tmp_path: Path) -> None:
    """Its blocks lie in the content, its size is that of the file: ten bytes may take thirty as gzip."""
    blocks = Blocks([[Row(1)]], tmp_path)
    (receipt,) = blocks.receipts
    origin = Origin(0, InputFile("x.gz", 30, 0.0, "gzip"), receipt["start"], 0, receipt["size"], (), "")
    blocks.receipts = [placed(receipt, origin, receipt["name"], True)]
    plan = plan_of(blocks, 10)
    assert (plan.inputs[0]["size"], plan.reused) == (30, 1)


def test_blocks_that_differ_in_columns_are_refused(three_files: Blocks) -> None:
    columns = BlockReceipt.of({}, (Column("x", "int8", 1, "ids"),))["columns"]
    three_files.receipts[-1] = three_files.receipts[-1].updated(columns=columns)
    with pytest.raises(ValueError, match="blocks differ in their columns"):
        plan_of(three_files, 10)


@pytest.mark.parametrize(("domains", "most"), [(1, 100), (100, 200)])
def test_receipts_are_small_when_packed(domains: int, most: int, tmp_path: Path) -> None:
    """1.2 million receipts must fit a worker of 2 GB, and `RECEIPTS` of them an element that Flink can send."""
    rows = [Row(1, f"part {count // 3 % domains}", tokens=1 + count // 3 % 7) for count in range(300)]
    assert len(pack_receipts(Blocks([rows], tmp_path, [[3] * 100]).receipts)) / 100 < most
