"""Receipts on their way to the plan, in small elements. That their order is none: tests/shards/test_plan.py."""

from beam_prep.data.block import InputFile, Origin
from beam_prep.data.hashing import Node
from beam_prep.data.schema import Column
from beam_prep.shards.receipts import BlockReceipt, counts_list, placed
from beam_prep.transforms.shard import RECEIPTS, packed


def receipt(number: int, count: int) -> BlockReceipt:
    """Block `number` of a file of so many; its last domain is a new one in every block."""
    origin = Origin(0, InputFile("in.jsonl", 10 * count, 0.0), 10 * number, 0, 10, (Node(number, 0, bytes(32)),), "")
    counts = {"blank": {"": 1}, "rejected": {"bad_json": 1}, "counter": {"doubles": number}}
    domains = [{"domain": name, "rows": 2, "tokens": 25} for name in ("web", f"part {number}")]
    values = {"lines": 6 + number, "counts": counts_list(counts), "domains": domains}
    block = BlockReceipt.of(values, (Column("sequence", "int32", 1, "ids"),))
    return placed(block, origin, f"block-{number}", False, {"encoded_by_gigatoken": 4})


def test_no_element_on_the_way_to_the_plan_is_large() -> None:
    """A bundle of Flink is all that a slot does: one element of all its receipts was more than it could send."""
    _, blob = packed([receipt(number, RECEIPTS) for number in range(RECEIPTS)])
    assert len(blob) < 200 * RECEIPTS
