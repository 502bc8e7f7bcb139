"""Rows of a block by their sequence of roles."""

import json
from typing import Any

import hypothesis.strategies as st
import numpy as np
from hypothesis import given

from beam_prep.core.data.block import InputFile
from beam_prep.core.data.columns import Wanted
from beam_prep.core.reading.blocks import RawBlock
from beam_prep.core.reading.records import parse

ROLES = st.lists(st.sampled_from(["user", "assistant", "system", ""]), max_size=4)


@given(st.lists(ROLES, min_size=1, max_size=12), st.data())
def test_rows_with_the_same_roles_and_counts_are_together_in_the_order_of_the_first_ones(
    chats: list[list[str]], data: st.DataObject
) -> None:
    rows: list[Any] = [{"messages": [{"role": role, "content": "x"} for role in chat]} for chat in chats]
    rows.append({"messages": [{"role": "user", "content": "x"}]})  # without a message there are no columns
    text = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    raw = RawBlock(0, len(text), 0, text, b"")
    columns = parse(raw, raw.origin(0, InputFile("x", len(text), 0.0), 65536), Wanted("chats", "messages")).columns
    assert columns is not None
    some = data.draw(st.none() | st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
    width = data.draw(st.integers(0, 2))
    numbers = st.lists(st.integers(0, 2), min_size=width, max_size=width)
    counts = data.draw(st.lists(numbers, min_size=len(rows), max_size=len(rows)))
    wanted: dict[Any, list[int]] = {}
    for row, record in enumerate(rows):
        roles = tuple(message["role"] for message in record["messages"])
        if roles and (some is None or some[row]):
            wanted.setdefault((roles, tuple(counts[row])), []).append(row)
    found = columns.patterns(None if some is None else np.array(some), np.array(counts) if width else None)
    assert [each.tolist() for each in found] == list(wanted.values())
