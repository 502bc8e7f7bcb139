"""Rows of flat columns, which are cut straight from the mapped files, against the same rows read one by one."""

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
from tests.readers.conftest import IDS, LABELS, MASK, documents, write

WEIGHTS = Column("loss_weights", "float32", 1, "weights", of="input_ids")
LENGTHS = Column("seq_lens", "int64", 1, "lengths")
TITLE, SCORE = Column("title", "uint8", 0, "string"), Column("score", "float64", 0, "number")
RESPONSES = Column("responses", "uint16", 2, "ids")

FLAT = [IDS, MASK, LABELS, WEIGHTS, LENGTHS]
SCHEMAS = {"flat": FLAT, "carried": [*FLAT, TITLE, SCORE], "nested": [*FLAT, RESPONSES]}
SHARDS = {"a": ([3, 0, 7], [1], [], [40, 2]), "b": ([5],), "c": ([0, 0], [9, 1])}
"""domain -> of each shard the lengths of its rows."""


@pytest.fixture(scope="module", params=SCHEMAS)
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Dataset, Dataset]:
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
