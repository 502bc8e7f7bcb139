"""Packing, beside a plain packer, TRL's outputs and those of the reference of the JSON-config format."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_prep.data.ragged import Array, Ragged
from beam_prep.shards.pack import PackPlan, Strategy, pack_columns, plan_packs
from tests.conftest import shared

NAMES = get_args(Strategy)
CONVERSATIONS = ("goldens", "conversations")
TRL_GROUP = 1000

Piece = tuple[int, int, int]


def lines(path: Path) -> list[Any]:
    with open(path, encoding="utf-8", newline="\n") as file:
        return [json.loads(line) for line in file]


def packs_of(plan: PackPlan) -> list[list[Piece]]:
    """Per pack: (row, start, stop) of each piece."""
    pieces = list(zip(*(array.tolist() for array in plan.pieces), strict=True))
    return [pieces[a:b] for a, b in zip(plan.packs[:-1], plan.packs[1:], strict=True)]


def rows_of(lengths: Sequence[int], start: int = 0) -> Ragged:
    """Rows of distinct tokens."""
    return Ragged.from_lengths(np.arange(start, start + sum(lengths), dtype=np.int32), lengths)


# A plain packer, to compare with: lists, and a look at every pack for every piece


def plain(lengths: Sequence[int], strategy: str, capacity: int) -> list[list[Piece]]:
    if strategy == "wrapped":
        tokens = [(row, place) for row, length in enumerate(lengths) for place in range(length)]
        return [plain_pieces(tokens[at : at + capacity]) for at in range(0, len(tokens), capacity)]
    if strategy == "bfd_split":
        pieces = [(r, a, min(a + capacity, n)) for r, n in enumerate(lengths) for a in range(0, n, capacity)]
        return plain_best_fit(sorted(pieces, key=lambda piece: piece[1] - piece[2]), capacity)
    pieces = [(row, 0, min(capacity, length)) for row, length in enumerate(lengths) if length]
    if strategy == "simple":
        return [[piece] for piece in pieces]
    return plain_best_fit(sorted(pieces, key=lambda piece: -lengths[piece[0]]), capacity)


def plain_pieces(tokens: list[tuple[int, int]]) -> list[Piece]:
    places: dict[int, list[int]] = {}
    for row, place in tokens:
        places.setdefault(row, []).append(place)
    return [(row, found[0], found[-1] + 1) for row, found in places.items()]


def plain_best_fit(pieces: list[Piece], capacity: int) -> list[list[Piece]]:
    packs: list[list[Piece]] = []
    room: list[int] = []
    touched: list[int] = []
    for time, piece in enumerate(pieces):
        size = piece[2] - piece[1]
        fits = [pack for pack in range(len(packs)) if room[pack] >= size]
        if not fits:
            packs.append([])
            room.append(capacity)
            touched.append(time)
            fits = [len(packs) - 1]
        best = min(fits, key=lambda pack: (room[pack], touched[pack]))
        packs[best].append(piece)
        room[best] -= size
        touched[best] = time
    return packs


lengths_of_groups = st.one_of(
    st.lists(st.integers(0, 12), max_size=60),  # many ties
    st.lists(st.integers(0, 300), max_size=60),
)
capacities = st.one_of(st.integers(1, 20), st.integers(1, 400))


class TestPlan:
    @given(lengths_of_groups, st.sampled_from(NAMES), capacities)
    def test_equals_a_plain_packer(self, lengths: list[int], strategy: Strategy, capacity: int) -> None:
        assert packs_of(plan_packs(np.array(lengths), strategy, capacity)) == plain(lengths, strategy, capacity)

    @given(lengths_of_groups, st.sampled_from(NAMES), capacities)
    def test_what_is_cut_and_split_is_counted(self, lengths: list[int], strategy: Strategy, capacity: int) -> None:
        plan = plan_packs(np.array(lengths), strategy, capacity)
        packs = packs_of(plan)
        limit = capacity if strategy in ("simple", "bfd") else max(lengths, default=0)
        tokens = sum(min(length, limit) for length in lengths)
        packs_with = Counter(row for pack in packs for row in {piece[0] for piece in pack})
        assert plan.stats == {
            "rows": len(lengths),
            "rows_empty": lengths.count(0),
            "rows_cut": sum(length > limit for length in lengths),
            "rows_split": sum(count > 1 for count in packs_with.values()),
            "packs": len(packs),
            "packs_untrained": 0,
            "tokens": tokens,
            "tokens_cut": sum(lengths) - tokens,
        }

    def test_a_huge_capacity_costs_nothing(self) -> None:
        assert len(plan_packs(np.full(2000, 3), "bfd", 2**31 - 1)) == 1


def array(rows: Ragged, row: int) -> Array:
    found = rows[row]
    assert not isinstance(found, Ragged)
    return found


class TestColumns:
    @given(lengths_of_groups, st.sampled_from(NAMES), capacities)
    def test_documents_are_never_mixed(self, lengths: list[int], strategy: Strategy, capacity: int) -> None:
        row = np.repeat(np.arange(len(lengths)), lengths)
        place = rows_of([1] * sum(lengths)).flat - np.repeat(rows_of(lengths).offsets[:-1], lengths)
        columns = {"row": rows_of(lengths).with_flat(row), "place": rows_of(lengths).with_flat(place.astype(np.uint16))}
        packed = pack_columns(columns, plan_packs(np.array(lengths), strategy, capacity), "doc_reset")
        assert packed["place"].flat.dtype == np.uint16
        for pack in range(len(packed["row"])):
            at = 0
            documents = []
            for length in array(packed["seq_lens"], pack).tolist():
                piece = slice(at, at + length)
                rows, places = array(packed["row"], pack)[piece], array(packed["place"], pack)[piece]
                assert len(set(rows.tolist())) == 1
                assert (np.diff(places.astype(int)) == 1).all()
                assert array(packed["position_ids"], pack)[piece].tolist() == list(range(length))
                documents.append(int(rows[0]))
                at += length
            assert at == len(packed["row"][pack])
            assert len(documents) == len(set(documents))

    def test_positions(self) -> None:
        plan = plan_packs(np.array([3, 5, 2]), "bfd", 6)
        reset = pack_columns({}, plan, "doc_reset")
        assert reset["position_ids"].to_lists() == [[0, 1, 2, 3, 4], [0, 1, 2, 0, 1]]
        assert reset["position_ids"].flat.dtype == reset["seq_lens"].flat.dtype == np.int32
        continuous = pack_columns({}, plan, "continuous")
        assert continuous["position_ids"].to_lists() == [[0, 1, 2, 3, 4], [0, 1, 2, 3, 4]]
        assert list(pack_columns({}, plan)) == ["seq_lens"]

    def test_rows_of_a_slice(self) -> None:
        rows = rows_of([4, 3, 5, 2])[1:3]
        plan = plan_packs(rows.lengths, "bfd", 8)
        assert pack_columns({"ids": rows}, plan)["ids"].to_lists() == [[7, 8, 9, 10, 11, 4, 5, 6]]

    @pytest.mark.parametrize(
        "rows", [rows_of([3, 3]), rows_of([3, 2, 1]), Ragged.from_lists([[[1], [2], [3]], [[4], [5]]], depth=2)]
    )
    def test_columns_that_cannot_be_packed(self, rows: Ragged) -> None:
        with pytest.raises(ValueError, match="column 'ids' does not have one value a token"):
            pack_columns({"ids": rows}, plan_packs(np.array([3, 2]), "bfd", 8))


# Outputs of others

# The `num_proc` runs count their groups within each process's share of the rows, which we have no match for.
PACK_BATCHES = ("bfd_64", "bfd_100", "bfd_split_100", "wrapped_64")


@pytest.mark.parametrize("run", PACK_BATCHES)
def test_equals_trl_pack_dataset(run: str) -> None:
    folder = shared(*CONVERSATIONS, "pack_batches")
    config = next(r["config"] for r in json.loads((folder / "case.json").read_text())["runs"] if r["run"] == run)
    capacity = config["seq_length"]
    lengths = np.array([row["n"] for row in lines(folder / "input.jsonl")])
    if config["strategy"] == "bfd":
        lengths = np.minimum(lengths, capacity)  # TRL sorts after the cut
    found = []
    for first in range(0, len(lengths), TRL_GROUP):
        plan = plan_packs(lengths[first : first + TRL_GROUP], config["strategy"], capacity)
        found += [[[first + row, stop - start] for row, start, stop in pack] for pack in packs_of(plan)]
    assert found == lines(folder / f"expected.{run}.jsonl")


TRL_RUNS = [
    (f"sft_{kind}__{tokenizer}", run)
    for tokenizer in ("chatml-12k", "mistral-v1")
    for kind in ("conv_lm", "conv_pc", "std_lm", "std_pc")
    for run in ("bfd_512", "wrapped_512")
] + [
    ("sft_conv_lm__chatml-12k", "bfd_300"),
    ("sft_conv_lm__chatml-12k", "bfd_split_100"),
    ("sft_conv_lm__chatml-12k", "bfd_512_assistant_only"),
    ("sft_conv_pc__chatml-12k", "bfd_512_assistant_only"),
    ("sft_std_pc__chatml-12k", "bfd_300"),
    ("sft_std_pc__chatml-12k", "bfd_split_100"),
    ("sft_tricky_conv__chatml-12k", "bfd_256"),
]


@pytest.mark.parametrize(("case", "run"), TRL_RUNS)
def test_equals_trl_on_its_own_rows(case: str, run: str) -> None:
    """Rows as TRL tokenises them go in, its packed rows come out: ids, labels, lengths."""
    folder = shared(*CONVERSATIONS, case)
    rows = lines(folder / "expected.jsonl")
    labels = lines(folder / "expected.assistant_only.jsonl") if run.endswith("assistant_only") else rows
    strategy, capacity = run.removesuffix("_assistant_only").rsplit("_", 1)
    columns = {
        "input_ids": Ragged.from_lists([row["input_ids"] for row in rows]),
        "labels": Ragged.from_lists(
            [with_labels.get("labels", row["input_ids"]) for row, with_labels in zip(rows, labels, strict=True)]
        ),
    }
    if strategy == "bfd":
        columns = {name: column.cut(0, np.minimum(column.lengths, int(capacity))) for name, column in columns.items()}
    plan = plan_packs(columns["input_ids"].lengths, strategy, int(capacity))  # type: ignore[arg-type]
    found = {name: column.to_lists() for name, column in pack_columns(columns, plan).items()}
    wanted = lines(folder / f"expected.{run}.jsonl")
    assert len(found["input_ids"]) == len(wanted)
    for index, want in enumerate(wanted):
        row = {"input_ids": found["input_ids"][index], "labels": found["labels"][index]}
        row["seq_lengths"] = found["seq_lens"][index]
        assert {name: row[name] for name in want} == want
        assert row["labels"] == want.get("labels", row["input_ids"])
