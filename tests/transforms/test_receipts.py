"""Receipts on their way to the plan: whatever bundles a runner makes, all arrive, in small elements."""

import dataclasses
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

import beam_prep as bp
from beam_prep.data.block import InputFile, Origin
from beam_prep.data.hashing import Node
from beam_prep.data.ragged import Ragged
from beam_prep.data.receipts import BlockReceipt, counts_list
from beam_prep.data.schema import Column
from beam_prep.shards.plan import Plan
from beam_prep.shards.receipts import placed
from beam_prep.shards.row_index import RowIndex
from beam_prep.storage.arrange import Arranger, Scratch
from beam_prep.storage.token_cache import TokenCache
from beam_prep.transforms.shard import PARTS, MakePlan, PackReceipts

COLUMNS = (Column("sequence", "int32", 1, "ids"),)


def receipt(number: int, count: int) -> BlockReceipt:
    """Block `number` of a file of so many; its last domain is a new one in every block."""
    origin = Origin(0, InputFile("in.jsonl", 10 * count, 0.0), 10 * number, 0, 10, (Node(number, 0, bytes(32)),), "")
    counts = {
        "blank": {"": 1},
        "dropped": {"empty": number},
        "rejected": {"bad_json": 1},
        "counter": {"doubles": number},
    }
    domains = [("web", 2, 20), (f"part {number}", 2, 30)]
    values = {"lines": 6 + number, "counts": counts_list(counts), "domains": domains, "kept": (), "uncut": ()}
    block = BlockReceipt.of(values, COLUMNS)
    return placed(block, origin, f"block-{number}", number % 2 == 0, {"encoded_by_gigatoken": 4})


def sent(bundles: Iterable[list[BlockReceipt]]) -> dict[int, list[list[bytes]]]:
    """What a runner has of them for the plan, by part."""
    parts: dict[int, list[list[bytes]]] = {part: [] for part in range(PARTS)}
    fn = PackReceipts()
    for bundle in bundles:
        fn.start_bundle()
        packed = [blob for each in bundle for blob in fn.process(each)]
        packed += [windowed.value for windowed in fn.finish_bundle()]
        for part, blob in packed:
            parts[part] = [[*parts[part][0], blob]] if parts[part] else [[blob]]
    return parts


class _NoBlocks(TokenCache):
    """A token cache of which a report quotes nothing."""

    def row_indexes(self, names: Sequence[str]) -> list[RowIndex]:
        nothing = np.zeros(0, np.int64)
        return [RowIndex(nothing, nothing, nothing, nothing, [], {})] * len(names)

    def rows(self, name: str, domain: int, start: int, stop: int, last: bool = False) -> dict[str, Ragged]:
        return {"sequence": Ragged.from_lists([[1]])}

    def rejects(self, names: Sequence[str]) -> Iterator[list[dict[str, Any]]]:
        return iter([[{"offset": 0, "line": 0, "reason": "bad_json", "message": "", "text": ""}]] * len(names))


def planned(parts: dict[int, list[list[bytes]]]) -> tuple[list[Any], Plan, list[list[int]]]:
    """(work, what Publish gets, and of that `of_files`: an array has no truth value)."""
    arranger = Arranger(_NoBlocks("none", "x"), Scratch("none"))
    with tempfile.TemporaryDirectory() as folder:  # each chain claims its output
        publisher = bp.Shard(f"{folder}/out", max_reject_rate=1.0, max_no_loss_rate=1.0).publisher
        make = MakePlan(arranger=arranger, max_tokens=10**9, max_items=None, publisher=publisher)
        *work, last = make.process(b"", parts)
    of_files = np.asarray(last.value.of_files).tolist()
    return work, dataclasses.replace(last.value, of_files=()), of_files


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=8).filter(any),
    st.permutations(range(40)),
    st.integers(1, 4),
)
@pytest.mark.long
def test_the_plan_does_not_depend_on_bundles(sizes: list[int], order: list[int], most: int) -> None:
    count = sum(sizes)
    mixed = iter([number for number in order if number < count])
    bundles = [[receipt(next(mixed), count) for _ in range(size)] for size in sizes]
    work, plan, of_files = planned(sent([[receipt(number, count) for number in range(count)]]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PackReceipts, "MOST", most)
        assert planned(sent(bundles)) == (work, plan, of_files)
    assert (plan.blocks, plan.reused, plan.ledger.kept) == (count, (count + 1) // 2, 4 * count)
    assert plan.made == {"encoded_by_gigatoken": 4 * count}


def test_no_element_on_the_way_to_the_plan_is_large() -> None:
    """A bundle of Flink is all that a slot does: one element of all its receipts was more than it could send."""
    fn = PackReceipts()
    fn.start_bundle()
    count = 3 * PackReceipts.MOST + 1
    blobs = [blob for number in range(count) for _, blob in fn.process(receipt(number, count))]
    blobs += [windowed.value[1] for windowed in fn.finish_bundle()]
    assert len(blobs) == 4
    assert max(map(len, blobs)) < 200 * PackReceipts.MOST
