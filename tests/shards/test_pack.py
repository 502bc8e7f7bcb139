"""Packing, beside a plain packer, TRL's outputs and those of the reference of the JSON-config format."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import beam_prep as bp
from beam_prep.config import PipelineConfig
from beam_prep.data.ragged import Array, Ragged
from beam_prep.data.schema import Strategy
from beam_prep.pipeline import Pipeline
from beam_prep.shards.pack import STRATEGIES, PackPlan, PackStats, pack_columns, plan_packs
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
    arrays = (plan.piece_row, plan.piece_start, plan.piece_stop)
    pieces = list(zip(*(array.tolist() for array in arrays), strict=True))
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


def plain_best_fit(pieces: list[Piece], capacity: int, oldest: bool = False) -> list[list[Piece]]:
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
        best = min(fits, key=lambda pack: (room[pack], pack if oldest else touched[pack]))
        packs[best].append(piece)
        room[best] -= size
        touched[best] = time
    return packs


lengths_of_groups = st.one_of(
    st.lists(st.integers(0, 12), max_size=60),  # many ties
    st.lists(st.integers(0, 300), max_size=60),
)
capacities = st.one_of(st.integers(1, 20), st.integers(1, 400))


def test_a_config_knows_every_strategy() -> None:
    assert set(STRATEGIES) == set(NAMES)


class TestPlan:
    @given(lengths_of_groups, st.sampled_from(NAMES), capacities)
    def test_equals_a_plain_packer(self, lengths: list[int], strategy: Strategy, capacity: int) -> None:
        assert packs_of(plan_packs(np.array(lengths), strategy, capacity)) == plain(lengths, strategy, capacity)

    @pytest.mark.parametrize("strategy", NAMES)
    @pytest.mark.parametrize("capacity", [64, 1000, 2048])
    def test_equals_a_plain_packer_on_whole_groups(self, strategy: Strategy, capacity: int) -> None:
        lengths = np.random.default_rng(1).lognormal(5, 1, 1500).astype(int)
        assert packs_of(plan_packs(lengths, strategy, capacity)) == plain(lengths.tolist(), strategy, capacity)

    @given(lengths_of_groups, st.sampled_from(NAMES), capacities)
    def test_no_token_is_lost_but_those_counted(self, lengths: list[int], strategy: Strategy, capacity: int) -> None:
        plan = plan_packs(np.array(lengths), strategy, capacity)
        found = [(row, place) for pack in packs_of(plan) for row, a, b in pack for place in range(a, b)]
        assert len(found) == len(set(found))
        limit = capacity if strategy in ("simple", "bfd") else max(lengths, default=0)
        wanted = [(row, place) for row, length in enumerate(lengths) for place in range(min(length, limit))]
        assert sorted(found) == wanted
        stats = plan.stats
        assert stats.tokens == len(found)
        assert stats.tokens_cut == sum(lengths) - len(found)
        assert stats.rows_cut == sum(length > limit for length in lengths)
        assert stats.rows_empty == lengths.count(0)
        packs_with = Counter(row for pack in packs_of(plan) for row in {piece[0] for piece in pack})
        assert stats.rows_split == sum(packs > 1 for packs in packs_with.values())
        assert (stats.rows, stats.packs) == (len(lengths), len(plan))

    @given(lengths_of_groups, st.sampled_from(NAMES), capacities)
    def test_capacity_is_never_exceeded_and_nothing_is_empty(
        self, lengths: list[int], strategy: Strategy, capacity: int
    ) -> None:
        for pack in packs_of(plan_packs(np.array(lengths), strategy, capacity)):
            sizes = [stop - start for _, start, stop in pack]
            assert sizes
            assert min(sizes) > 0
            assert sum(sizes) <= capacity

    def test_of_packs_with_equal_room_the_first_to_come_to_it_is_taken(self) -> None:
        lengths = [6, 4, 4, 2, 1]  # 2 goes to the first pack, which then has the room that the second had before
        pieces = [(row, 0, length) for row, length in enumerate(lengths)]
        wanted = [[(0, 0, 6), (3, 0, 2)], [(1, 0, 4), (2, 0, 4), (4, 0, 1)]]
        assert packs_of(plan_packs(np.array(lengths), "bfd", 9)) == wanted
        assert plain_best_fit(pieces, 9, oldest=True) != wanted

    def test_bfd_sorts_by_length_as_rows_come(self) -> None:
        lengths = np.array([8, 30, 9])
        assert plan_packs(lengths, "bfd", 8).piece_row.tolist() == [1, 2, 0]
        assert plan_packs(np.minimum(lengths, 8), "bfd", 8).piece_row.tolist() == [0, 1, 2]

    @pytest.mark.parametrize("strategy", NAMES)
    @pytest.mark.parametrize("lengths", [[], [0], [0, 0, 0]])
    def test_without_tokens_there_are_no_packs(self, strategy: Strategy, lengths: list[int]) -> None:
        plan = plan_packs(np.array(lengths), strategy, 8)
        assert len(plan) == 0
        assert plan.stats == PackStats(rows=len(lengths), rows_empty=len(lengths))
        packed = pack_columns({"ids": rows_of(lengths)}, plan, "doc_reset")
        assert {name: len(rows) for name, rows in packed.items()} == {"ids": 0, "seq_lens": 0, "position_ids": 0}

    @pytest.mark.parametrize("strategy", NAMES)
    def test_a_huge_capacity_costs_nothing(self, strategy: Strategy) -> None:
        plan = plan_packs(np.full(2000, 3), strategy, 2**31 - 1)
        assert len(plan) == (2000 if strategy == "simple" else 1)

    @pytest.mark.parametrize("capacity", [0, -1, 2**31])
    def test_capacities_that_are_none(self, capacity: int) -> None:
        with pytest.raises(ValueError, match=f"capacity is {capacity}"):
            plan_packs(np.array([1]), "bfd", capacity)

    def test_an_unknown_strategy_is_named(self) -> None:
        with pytest.raises(ValueError, match="'ffd', wanted one of simple, bfd, bfd_split, wrapped"):
            plan_packs(np.array([1]), "ffd", 8)  # type: ignore[arg-type]


def array(rows: Ragged, row: int) -> Array:
    found = rows[row]
    assert not isinstance(found, Ragged)
    return found


class TestColumns:
    @given(lengths_of_groups, st.sampled_from(NAMES), capacities)
    def test_documents_are_never_mixed(self, lengths: list[int], strategy: Strategy, capacity: int) -> None:
        row = np.repeat(np.arange(len(lengths)), lengths)
        place = rows_of([1] * sum(lengths)).flat - np.repeat(rows_of(lengths).offsets[:-1], lengths)
        columns = {"row": rows_of(lengths).with_flat(row), "place": rows_of(lengths).with_flat(place)}
        packed = pack_columns(columns, plan_packs(np.array(lengths), strategy, capacity), "doc_reset")
        for pack in range(len(packed["row"])):
            at = 0
            documents = []
            for length in array(packed["seq_lens"], pack).tolist():
                piece = slice(at, at + length)
                rows, places = array(packed["row"], pack)[piece], array(packed["place"], pack)[piece]
                assert len(set(rows.tolist())) == 1
                assert (np.diff(places) == 1).all()
                assert array(packed["position_ids"], pack)[piece].tolist() == list(range(length))
                documents.append(int(rows[0]))
                at += length
            assert at == len(packed["row"][pack])
            assert len(documents) == len(set(documents))

    @given(lengths_of_groups, st.sampled_from(NAMES), capacities)
    def test_columns_stay_with_each_other(self, lengths: list[int], strategy: Strategy, capacity: int) -> None:
        ids = rows_of(lengths)
        mask = ids.with_flat((ids.flat % 3 == 0).astype(np.uint8))
        packed = pack_columns({"ids": ids, "mask": mask}, plan_packs(np.array(lengths), strategy, capacity))
        assert list(packed) == ["ids", "mask", "seq_lens"]
        assert packed["mask"].flat.dtype == np.uint8
        assert packed["mask"].flat.tolist() == (packed["ids"].flat % 3 == 0).tolist()
        assert packed["mask"].lengths.tolist() == packed["ids"].lengths.tolist()

    def test_an_example(self) -> None:
        plan = plan_packs(np.array([3, 0, 5, 2]), "bfd", 6)
        packed = {name: rows.to_lists() for name, rows in pack_columns({"ids": rows_of([3, 0, 5, 2])}, plan).items()}
        assert packed == {"ids": [[3, 4, 5, 6, 7], [0, 1, 2, 8, 9]], "seq_lens": [[5], [3, 2]]}

    def test_positions(self) -> None:
        plan = plan_packs(np.array([3, 5, 2]), "bfd", 6)
        reset = pack_columns({}, plan, "doc_reset")
        assert reset["position_ids"].to_lists() == [[0, 1, 2, 3, 4], [0, 1, 2, 0, 1]]
        assert reset["position_ids"].flat.dtype == reset["seq_lens"].flat.dtype == np.int32
        continuous = pack_columns({}, plan, "continuous")
        assert continuous["position_ids"].to_lists() == [[0, 1, 2, 3, 4], [0, 1, 2, 3, 4]]
        assert list(pack_columns({}, plan)) == ["seq_lens"]

    def test_positions_begin_at_0_in_the_second_piece_of_a_row(self) -> None:
        packed = pack_columns({}, plan_packs(np.array([5]), "bfd_split", 3), "doc_reset")
        assert packed["position_ids"].to_lists() == [[0, 1, 2], [0, 1]]

    def test_rows_of_a_slice(self) -> None:
        rows = rows_of([4, 3, 5, 2])[1:3]
        plan = plan_packs(rows.lengths, "bfd", 8)
        assert pack_columns({"ids": rows}, plan)["ids"].to_lists() == [[7, 8, 9, 10, 11, 4, 5, 6]]

    @pytest.mark.parametrize(
        ("name", "rows", "message"),
        [
            ("ids", rows_of([3, 3]), "other lengths"),
            ("ids", rows_of([3, 2, 1]), "other lengths"),
            ("ids", Ragged.from_lists([[[1], [2], [3]], [[4], [5]]], depth=2), "list of lists"),
            ("seq_lens", rows_of([3, 2]), "adds a column of that name"),
            ("position_ids", rows_of([3, 2]), "adds a column of that name"),
        ],
    )
    def test_columns_that_cannot_be_packed(self, name: str, rows: Ragged, message: str) -> None:
        with pytest.raises(ValueError, match=f"column '{name}': .*{message}"):
            pack_columns({name: rows}, plan_packs(np.array([3, 2]), "bfd", 8))


class TestStats:
    def test_groups_add_up(self) -> None:
        groups = [np.array([3, 0, 9]), np.array([], np.int64), np.array([8, 1])]
        total = sum((plan_packs(group, "bfd", 8).stats for group in groups), PackStats())
        assert total == PackStats(rows=5, rows_empty=1, rows_cut=1, rows_split=0, packs=4, tokens=20, tokens_cut=1)


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


@pytest.fixture(scope="module")
def sections_rows(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Ragged]]:
    """The rows of a case before packing."""

    def _rows(case: str) -> dict[str, Ragged]:
        folder = shared("goldens", "sections", case)
        config = json.loads((folder / "config.json").read_text())
        del config["output"]
        config["preprocessing"] = {"max_seq_len": config["preprocessing"]["max_seq_len"], "rows_without_loss": "keep"}
        output = tmp_path_factory.mktemp(case) / "out"
        Pipeline(
            PipelineConfig.from_dict(config),
            [str(folder / "input.jsonl")],
            output_dir=output,
            tokenizer_path=shared("tokenizers", "mm_chatml"),
        ).run(["--runner=FnApiRunner"])
        dataset = bp.open(output)
        rows = [dataset[index] for index in range(len(dataset))]
        assert [len(row["sequence"]) for row in rows] == [
            record["len"]["sequence"] for record in lines(folder / "records_later.jsonl")
        ]
        return {name: Ragged.from_lists([row[name].tolist() for row in rows]) for name in ("sequence", "loss_mask")}

    return _rows


def wanted_sections(case: str) -> dict[str, list[int]]:
    folder = shared("goldens", "sections", case, "expected_later", "__default__", "shard_0000")
    meta = json.loads((folder / "meta.json").read_text())
    return {name: np.fromfile(folder / f"{name}.bin", entry["dtype"]).tolist() for name, entry in meta.items()}


def test_bfd_equals_the_reference(sections_rows: Callable[[str], dict[str, Ragged]]) -> None:
    columns = sections_rows("31_head_bfd")
    plan = plan_packs(columns["sequence"].lengths, "bfd", 512)
    packed = pack_columns(columns, plan, "doc_reset")
    assert plan.stats.rows_cut == 17
    for name, values in wanted_sections("31_head_bfd").items():
        assert packed[name].flat.tolist() == values, name
    # Cut before it comes, as TRL has it, a long row has no place in front of others.
    cut = {name: column.cut(0, np.minimum(column.lengths, 512)) for name, column in columns.items()}
    other = pack_columns(cut, plan_packs(cut["sequence"].lengths, "bfd", 512))
    assert other["sequence"].flat.tolist() != packed["sequence"].flat.tolist()


def test_bfd_split_equals_the_reference_but_for_positions(
    sections_rows: Callable[[str], dict[str, Ragged]],
) -> None:
    columns = sections_rows("32_head_bfd_split")
    plan = plan_packs(columns["sequence"].lengths, "bfd_split", 256)
    packed = pack_columns(columns, plan, "doc_reset")
    wanted = wanted_sections("32_head_bfd_split")
    assert packed["sequence"].flat.tolist() == wanted["sequence"]
    assert packed["loss_mask"].flat.tolist() == wanted["loss_mask"]
    # Its positions run on from piece to piece of a row; a reader that cuts at 0 would join such a piece to another row.
    run_on = packed["position_ids"].flat + np.repeat(plan.piece_start, plan.piece_lengths)
    assert run_on.tolist() == wanted["position_ids"]
    assert plan.stats.rows_split == 24
