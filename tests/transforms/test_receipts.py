"""Receipts on their way to the plan: whatever a runner does with accumulators, all arrive, in little memory."""

import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from beam_prep.core.block import BlockReceipt, InputFile, Origin
from beam_prep.core.hashing import Node
from beam_prep.core.plan import Plan, Receipts, SpoolReceipt, make_plan
from beam_prep.core.schema import Column
from beam_prep.transforms import shard as module
from beam_prep.transforms.shard import CollectReceipts

COLUMNS = (Column("sequence", "int32", 1, "ids"),)


def receipt(number: int, count: int) -> SpoolReceipt:
    """Block `number` of a file of so many; its last domain is a new one in every block."""
    origin = Origin(0, InputFile("in.jsonl", 10 * count, 0.0), 10 * number, 0, 10, (Node(number, 0, bytes(32)),), "")
    block = BlockReceipt(
        lines=6 + number,
        counts={"blank": 1, "dropped": {"empty": number}, "rejected": {"bad_json": 1}},
        domains=[("web", 2, 20), (f"part {number}", 2, 30)],
        counters={"doubles": number},
        columns=COLUMNS,
    )
    return SpoolReceipt(origin, f"block-{number}", number % 2 == 0, block, {"encoded_by_gigatoken": 4})


def combined(bundles: list[list[SpoolReceipt]], merges: int, compacts: bool) -> list[bytes]:
    """As a runner does it: an accumulator a bundle, through its coder, merged in several rounds."""
    fn = CollectReceipts()
    coder = fn.get_accumulator_coder()

    def sent(accumulator: Any) -> Any:
        return coder.decode(coder.encode(fn.compact(accumulator) if compacts else accumulator))

    accumulators = []
    for bundle in bundles:
        accumulator = fn.create_accumulator()
        for each in bundle:
            accumulator = fn.add_input(accumulator, each)
        accumulators.append(sent(accumulator))
    while len(accumulators) > merges:
        accumulators = [sent(fn.merge_accumulators(iter(accumulators[:merges]))), *accumulators[merges:]]
    return fn.extract_output(fn.merge_accumulators(iter(accumulators)))


def planned(blobs: Iterable[bytes]) -> Plan:
    return make_plan(Receipts(blobs), list, 10**9)


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=8),
    st.permutations(range(40)),
    st.integers(2, 9),
    st.booleans(),
    st.integers(1, 4),
    st.sampled_from([1, 5_000, 10**6]),
)
@settings(max_examples=100, deadline=None)
def test_the_plan_does_not_depend_on_bundles_and_merges(
    sizes: list[int], order: list[int], merges: int, compacts: bool, pending: int, small: int
) -> None:
    count = max(1, sum(sizes))
    mixed = iter([number for number in order if number < count])
    bundles = (
        [[receipt(next(mixed), count) for _ in range(size)] for size in sizes] if sum(sizes) else [[receipt(0, 1)]]
    )
    one = planned(combined([[receipt(number, count) for number in range(count)]], 2, False))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CollectReceipts, "PENDING", pending)
        patch.setattr(CollectReceipts, "SMALL", small)
        other = planned(combined(bundles, merges, compacts))
    assert [list(plan.shards) for plan in (one, other)] == [list(one.shards)] * 2
    assert [list(plan.rejects) for plan in (one, other)] == [list(one.rejects)] * 2
    assert [module._without_work(plan) for plan in (one, other)] == [module._without_work(one)] * 2
    assert (one.blocks, one.reused, one.ledger.kept) == (count, (count + 1) // 2, 4 * count)
    assert one.made == {"encoded_by_gigatoken": 4 * count}


class Tracked(SpoolReceipt):
    """A receipt that can be seen to be gone."""

    __slots__ = ("__weakref__",)


def test_merging_never_holds_the_receipts_of_many_bundles() -> None:
    """At 10 TB a runner may merge ten thousand accumulators of a hundred receipts: as objects, they are gigabytes."""
    made: list[weakref.ref[SpoolReceipt]] = []
    held = []

    def accumulators() -> Iterator[Any]:
        for number in range(100):
            each = receipt(number, 100)
            pending = [Tracked(each.origin, each.name, each.reused, each.block, each.made)]
            held.append(sum(ref() is not None for ref in made))
            made.append(weakref.ref(pending[0]))
            yield [], pending

    merged = CollectReceipts().merge_accumulators(accumulators())
    assert len(Receipts(CollectReceipts().extract_output(merged))) == 100
    assert max(held) <= 2
