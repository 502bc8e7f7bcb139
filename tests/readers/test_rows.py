"""Rows cut straight from the mapped files against the same rows read one by one; views of splits and domains."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import beam_prep as bp
from beam_prep.data.ragged import Ragged
from beam_prep.data.schema import Column
from beam_prep.formats import Row
from beam_prep.readers.dataset import Dataset
from tests.conftest import Folders
from tests.readers.conftest import IDS, LABELS, MASK, Rows, documents, split_up, write

WEIGHTS = Column("loss_weights", "float32", 1, "weights", of="input_ids")
LENGTHS = Column("seq_lens", "int64", 1, "lengths")
TITLE, SCORE = Column("title", "uint8", 0, "string"), Column("score", "float64", 0, "number")
RESPONSES = Column("responses", "uint16", 2, "ids")

FLAT = [IDS, MASK, LABELS, WEIGHTS, LENGTHS]
SCHEMAS = {"flat": FLAT, "carried": [*FLAT, TITLE, SCORE], "nested": [*FLAT, RESPONSES]}
SHARDS = {"a": ([3, 0, 7], [1], [], [40, 2]), "b": ([5],), "c": ([0, 0], [9, 1])}
"""domain -> of each shard the lengths of its rows."""


@pytest.fixture(scope="module", params=SCHEMAS)
def both(request: pytest.FixtureRequest, tmp_path_factory: Folders) -> tuple[Dataset, Dataset]:
    """An output, and the same rows in a format whose files are read row by row."""
    folder, schema = tmp_path_factory.mktemp("rows"), SCHEMAS[request.param]
    count = 0
    shards: dict[str, list[list[dict[str, Any]]]] = {}
    for domain, parts in SHARDS.items():
        shards[domain] = []
        for lengths in parts:
            rows = documents(lengths, first=100 * count)
            for row in rows:
                row |= {"loss_weights": [0.5 for _ in row["input_ids"]], "seq_lens": list(range(count % 4))}
                row |= {"title": list(f"Nr. {count} \N{SNOWMAN}".encode()), "score": [count / 7]}
                row |= {"responses": [[count] * size for size in range(count % 3)]}
                count += 1
            shards[domain].append(rows)
    by_row = write(tmp_path_factory.mktemp("mds"), schema, shards, "mds")
    return bp.open(write(folder, schema, shards)), bp.open(by_row)


def exact(row: Row) -> list[Any]:
    """All that can be told of a row."""
    return [(name, type(value), _exact(value)) for name, value in row.items()]


def _exact(value: Any) -> Any:
    if isinstance(value, Ragged):
        return _exact(value.flat), value.offsets.tolist()
    if isinstance(value, np.ndarray):
        flags = (value.flags.writeable, value.flags.c_contiguous, value.flags.aligned)
        return value.dtype.str, value.dtype.isnative, value.shape, flags, value.tobytes()
    return value


COUNT = sum(len(lengths) for parts in SHARDS.values() for lengths in parts)
INDICES = st.integers(-COUNT, COUNT - 1)


@given(INDICES, st.sampled_from([int, np.int64, np.int8, np.int32]))
def test_a_row_is_the_same(both: tuple[Dataset, Dataset], index: int, kind: type) -> None:
    fast, general = both
    assert exact(fast[kind(index)]) == exact(general[index])


@given(st.lists(INDICES, max_size=30), st.booleans())
def test_the_rows_of_a_list_are_the_same(both: tuple[Dataset, Dataset], indices: list[int], as_array: bool) -> None:
    fast, general = both
    wanted = [exact(general[index]) for index in indices]
    asked = np.array(indices, np.int64) if as_array else indices
    for dataset in both:
        assert [*map(exact, dataset.__getitems__(asked))] == wanted
        columns = dataset[asked]
        assert {name: len(values) for name, values in columns.items()} == dict.fromkeys(fast.columns, len(indices))


@given(st.slices(COUNT), st.sampled_from([None, *SHARDS]))
def test_a_loop_over_a_view_gives_the_same_rows(both: tuple[Dataset, Dataset], part: slice, domain: str | None) -> None:
    fast, general = (dataset[part] if domain is None else dataset.domain(domain)[part] for dataset in both)
    wanted = [exact(general[index]) for index in range(len(general))]
    assert [*map(exact, fast)] == wanted
    assert [*map(exact, general)] == wanted


@given(st.integers(-3 * COUNT, 3 * COUNT).filter(lambda index: not -COUNT <= index < COUNT), st.lists(INDICES))
def test_a_row_that_is_not_there_is_named(both: tuple[Dataset, Dataset], index: int, others: list[int]) -> None:
    for dataset in both:
        for wrong in (index, np.int64(index)):
            with pytest.raises(IndexError, match=f"^row {index} of {COUNT}$"):
                dataset[wrong]
            with pytest.raises(IndexError, match=f"^row {index} of {COUNT}$"):
                dataset.__getitems__([*others, int(wrong)])


def test_no_row_is_a_view_of_another(both: tuple[Dataset, Dataset]) -> None:
    for dataset in both:
        before = exact(dataset[0])
        first, again = dataset.__getitems__([0, 0])
        first["input_ids"][:] = -1
        assert exact(again) == exact(dataset[0]) == exact(next(iter(dataset))) == before


# Views of splits and domains against plain lists, for any shards and any slice

SPLITS, DOMAINS = ("train", "test", "other"), ("a", "b", "train")


@st.composite
def outputs(draw: st.DrawFn) -> dict[tuple[str, str], list[int]]:
    """(split, domain) -> rows of each of its shards, in the order of a manifest."""
    parts = [(split, domain) for split in SPLITS for domain in DOMAINS]
    here = draw(st.lists(st.sampled_from(parts), min_size=1, unique=True))
    return {part: draw(st.lists(st.integers(1, 3), min_size=1, max_size=2)) for part in parts if part in here}


def firsts(rows: Dataset) -> list[int]:
    return [int(row["input_ids"][0]) for row in rows]


@given(outputs(), st.slices(40))
def test_views_have_the_rows_that_a_list_has(shards: dict[tuple[str, str], list[int]], part: slice) -> None:
    model: list[tuple[str, str, int]] = []
    written: dict[str, list[Rows]] = {}
    for (split, domain), counts in shards.items():
        written[f"{split}/{domain}"] = []
        for count in counts:
            numbers = range(len(model), len(model) + count)
            model += [(split, domain, number) for number in numbers]
            written[f"{split}/{domain}"].append([{"input_ids": [number]} for number in numbers])
    with tempfile.TemporaryDirectory() as folder:
        split_up(write(Path(folder) / "out", [IDS], written))
        path = Path(folder) / "out"
        every = bp.open(path, split="all")
        view, wanted = every[part], model[part]
        assert firsts(view) == [number for _, _, number in wanted]
        places = [(view.split_of(place), view.domain_of(place)) for place in range(len(view))]
        assert places == [(split, domain) for split, domain, _ in wanted]
        assert view.splits == tuple(dict.fromkeys(split for split, _, _ in wanted))
        assert view.domains == tuple(dict.fromkeys(domain for _, domain, _ in wanted))
        for split in dict.fromkeys(split for split, _ in shards):
            mine = view.split(split)
            assert firsts(mine) == [number for name, _, number in wanted if name == split]
            opened = bp.open(path, split=split)
            assert firsts(opened) == firsts(every.split(split))
            for domain in opened.domains:
                of_domain = [number for name, its, number in wanted if (name, its) == (split, domain)]
                assert firsts(mine.domain(domain)) == of_domain
                assert firsts(bp.open(path, [domain], split=split)) == firsts(opened.domain(domain))
