"""Several rows at once, outputs of more shards than they may map, and `ds.tf()`."""

import gc
import itertools
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import beam_prep as bp
from beam_prep.config.strict import FORMAT_NAMES
from beam_prep.readers import dataset as datasets
from tests.conftest import Folders, Patch
from tests.readers.conftest import IDS, MASK, Make, documents

LENGTHS = [3, 0, 5, 1, 7, 2, 2, 9, 4, 6, 1, 8]


def in_shards(rows: list[Any], sizes: list[int]) -> list[list[Any]]:
    borders = np.cumsum([0, *sizes]).tolist()
    return [rows[a:b] for a, b in itertools.pairwise(borders)]


@pytest.fixture(scope="module", params=FORMAT_NAMES)
def dataset(request: pytest.FixtureRequest, tmp_path_factory: Folders) -> bp.Dataset:
    """Twelve rows in five shards of two domains, one shard without rows."""
    from tests.readers.conftest import write

    rows = documents(LENGTHS)
    parts = {"a": in_shards(rows[:8], [3, 0, 5]), "b": in_shards(rows[8:], [1, 3])}
    folder = tmp_path_factory.mktemp("batches") / request.param
    return bp.open(write(folder, [IDS, MASK], parts, request.param))


@given(
    st.lists(st.integers(-12, 11), max_size=30), st.sampled_from([slice(None), slice(None, None, -1), slice(2, 9, 3)])
)
def test_a_list_gives_the_rows_that_indexing_gives(dataset: bp.Dataset, indices: list[int], part: slice) -> None:
    view = dataset[part]
    indices = [index % len(view) - (len(view) if index < 0 else 0) for index in indices]
    batch = view[indices]
    assert list(batch) == ["input_ids", "loss_mask"]
    for name, rows in batch.items():
        assert rows.to_lists() == [view[index][name].tolist() for index in indices]
        assert rows.flat.dtype == view[0][name].dtype
        assert rows.flat.flags.writeable
    for row, index in zip(view.__getitems__(indices), indices, strict=True):
        assert {name: values.tolist() for name, values in row.items()} == {
            name: values.tolist() for name, values in view[index].items()
        }


def test_a_batch_of_many_rows(output: Make) -> None:
    dataset = bp.open(output([IDS], {"a": in_shards(documents(LENGTHS), [8, 4])}))
    indices = np.random.default_rng(0).integers(0, 12, 9_000)
    batch = dataset[indices]["input_ids"]
    assert batch.lengths.tolist() == [LENGTHS[index] for index in indices]
    assert batch[8_999].tolist() == dataset[int(indices[-1])]["input_ids"].tolist()


def maps_of(folder: Path) -> int:
    """Files of a folder that this process maps."""
    return Path("/proc/self/maps").read_text().count(str(folder))


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="Linux only")
@pytest.mark.parametrize("formats", ["bin", "h5", "array_record"])
def test_more_shards_than_an_output_may_map(formats: str, output: Make, monkeypatch: Patch) -> None:
    monkeypatch.setattr(datasets, "MAPS", 8)
    rows = documents([2] * 50)
    parts = {"a": [[row] for row in rows[:40]], "b": [[row] for row in rows[40:]]}
    folders = [output([IDS, MASK], parts, formats) for _ in range(2)]
    opened = [bp.open(folder) for folder in folders]
    wanted = [row["input_ids"] for row in rows]
    for dataset in opened:
        assert [row["input_ids"].tolist() for row in dataset] == wanted
        order = np.random.default_rng(0).permutation(50).tolist()
        for index in order:
            assert dataset[index]["input_ids"].tolist() == wanted[index]
        assert dataset[order]["input_ids"].to_lists() == [wanted[index] for index in order]
        gc.collect()
        assert max(map(maps_of, folders)) <= 8


def test_threads_share_a_dataset(output: Make, monkeypatch: Patch) -> None:
    monkeypatch.setattr(datasets, "MAPS", 8)
    dataset = bp.open(output([IDS], {"a": [[row] for row in documents([3] * 40)]}))
    wrong: list[Any] = []

    def read(seed: int) -> None:
        for index in np.random.default_rng(seed).integers(0, 40, 300).tolist():
            if dataset[index]["input_ids"].tolist() != [3 * index, 3 * index + 1, 3 * index + 2]:
                wrong.append(index)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_lengths_are_those_of_the_rows(dataset: bp.Dataset) -> None:
    for rows in (dataset, dataset[::-2], dataset.domain("b")):
        assert rows.lengths(rows.columns[0]).tolist() == [len(row[rows.columns[0]]) for row in rows]


def test_tensorflow_gets_the_rows_with_the_signature_of_their_columns(output: Make) -> None:
    tf = pytest.importorskip("tensorflow")  # not at the top: its import takes seconds, in each process of the tests
    dataset = bp.open(output([IDS, MASK], {"a": [documents([3, 0, 2]), documents([4])]}))
    every: list[Any] = [dataset, dataset[::-1], dataset.packed(8)]
    for rows in every:
        made = rows.tf()
        assert made.cardinality() == len(rows)
        assert made.element_spec["input_ids"] == tf.TensorSpec([None], tf.int32)
        assert made.element_spec["loss_mask"] == tf.TensorSpec([None], tf.bool)
        for found, wanted in zip(made.as_numpy_iterator(), rows, strict=True):
            for name, values in wanted.items():
                np.testing.assert_array_equal(found[name], values, strict=True)
    batch: Any = next(iter(dataset.tf().padded_batch(4)))
    assert batch["input_ids"].shape == (4, 4)
    assert len(list(dataset.tf().repeat(2))) == 8
