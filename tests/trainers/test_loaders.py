"""Loaders of other libraries over datasets and views: torch's, torchdata's, grain's. What is resumed is exact."""

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="no torch here: make test-trainers")

import beam_prep as bp  # noqa: E402
from tests.readers.conftest import IDS, LABELS, MASK, documents, write  # noqa: E402
from tests.trainers.conftest import Outputs  # noqa: E402

LENGTHS = np.random.default_rng(3).integers(1, 30, 90).tolist()


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> bp.Dataset:
    rows = documents(LENGTHS)
    shards = {"a": [rows[:40], rows[40:60]], "b": [rows[60:]]}
    return bp.open(write(tmp_path_factory.mktemp("loaders") / "out", [IDS, MASK, LABELS], shards))


def views(dataset: bp.Dataset) -> dict[str, Any]:
    return {
        "dataset": dataset,
        "slice": dataset[::-2],
        "packed": dataset.packed(48, seed=1, rank=1, world_size=2),
        "mixture": dataset.mixture({"a": 1, "b": 2}, seed=1),
    }


def ids(batches: Any) -> list[list[int]]:
    return [batch["input_ids"].tolist()[0] for batch in batches]


def tokens_of(rows: Any) -> list[int]:
    return sorted(token for row in rows for token in row["input_ids"].tolist())


@pytest.mark.parametrize(
    ("name", "workers", "shuffle"),
    [("dataset", 2, True), ("slice", 0, True), ("packed", 2, False), ("mixture", 0, False), ("mixture", 2, True)],
)
def test_a_stateful_loader_goes_on_where_it_was(name: str, workers: int, shuffle: bool, dataset: bp.Dataset) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader")
    rows = views(dataset)[name]

    def loader() -> Any:
        torch.manual_seed(5)
        make = bp.collate(rows, packed=True, arrays="torch")
        return stateful.StatefulDataLoader(rows, batch_size=3, num_workers=workers, shuffle=shuffle, collate_fn=make)

    every = ids(loader())
    assert len(every) == -(-len(rows) // 3)
    assert sorted(token for batch in every for token in batch) == tokens_of(rows)
    for stop in (1, 4):
        first = loader()
        batches = iter(first)
        seen = ids(next(batches) for _ in range(stop))
        state = first.state_dict()
        second = loader()
        second.load_state_dict(state)
        assert seen + ids(second) == every


def test_rows_as_tensors(dataset: bp.Dataset) -> None:
    for rows in views(dataset).values():
        tensors = rows.torch()
        assert len(tensors) == len(rows)
        for found, wanted in zip(tensors.__getitems__(range(len(rows))), rows, strict=True):
            assert {name: value.tolist() for name, value in found.items()} == {
                name: value.tolist() for name, value in wanted.items()
            }
        assert {name: value.dtype for name, value in tensors[0].items() if name != "loss_mask"} == {
            name: torch.int64 for name in rows.columns if name != "loss_mask"
        }
        assert tensors[-1]["loss_mask"].dtype == torch.bool
    loader = torch.utils.data.DataLoader(dataset.torch(), batch_size=1)
    assert [batch["input_ids"].shape[1] for batch in loader] == LENGTHS


@pytest.mark.parametrize("name", ["slice", "mixture"])
def test_datasets_and_views_are_sources_of_grain(name: str, dataset: bp.Dataset) -> None:
    grain = pytest.importorskip("grain")
    rows = views(dataset)[name]
    wanted = [row["input_ids"].tolist() for row in rows]
    source = grain.MapDataset.source(rows)
    assert len(source) == len(rows)
    assert [source[index]["input_ids"].tolist() for index in range(len(rows))] == wanted
    shuffled = source.shuffle(seed=1)

    def made() -> Any:
        return iter(shuffled.to_iter_dataset().map(lambda row: row["input_ids"].tolist()))  # by 16 threads

    every = list(made())
    assert sorted(every) == sorted(wanted)
    first = made()
    seen = [next(first) for _ in range(7)]
    second = made()
    second.set_state(first.get_state())
    assert seen + list(second) == every


# `bp.collate` beside transformers' collator for flash attention, field by field


def documents_of(rows: list[Any]) -> list[dict[str, Any]]:
    """The documents of packed rows, each a row of its own."""
    found = []
    for row in rows:
        cuts = np.cumsum(row["seq_lengths"])[:-1]
        parts = zip(np.split(row["input_ids"], cuts), np.split(row["labels"], cuts), strict=True)
        found += [{"input_ids": ids.tolist(), "labels": labels.tolist()} for ids, labels in parts]
    return found


def assert_same(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        if isinstance(value, int):
            assert found[name] == value, name
        else:
            assert found[name].dtype == value.dtype, name
            assert found[name].tolist() == value.tolist(), name


@pytest.mark.parametrize(("arrays", "tensors"), [("torch", "pt"), ("numpy", "np")])
def test_a_packed_batch_has_the_fields_of_transformers_collator(
    arrays: Any, tensors: str, packed: Outputs, outputs: Outputs
) -> None:
    from transformers import DataCollatorWithFlattening

    theirs = DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_tensors=tensors)
    dataset = bp.open(packed())
    rows = list(dataset[:3])
    assert sum(len(row["seq_lengths"]) for row in rows) > 3
    assert_same(bp.collate(dataset, arrays=arrays)(rows), theirs(documents_of(rows)))

    dataset = bp.open(outputs("sft_conversation"))
    plain = [{name: values.tolist() for name, values in row.items()} for row in dataset[:5]]
    assert_same(bp.collate(dataset, packed=True, arrays=arrays)(list(dataset[:5])), theirs(plain))
