"""`bp.collate` beside transformers' collator for flash attention, field by field."""

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="no torch here: make test-trainers")

from transformers import DataCollatorWithFlattening  # noqa: E402

import beam_prep as bp  # noqa: E402
from tests.trainers.conftest import Outputs  # noqa: E402


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
    theirs = DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_tensors=tensors)
    dataset = bp.open(packed())
    rows = list(dataset[:3])
    assert sum(len(row["seq_lengths"]) for row in rows) > 3
    assert_same(bp.collate(dataset, arrays=arrays)(rows), theirs(documents_of(rows)))

    dataset = bp.open(outputs("sft_conversation"))
    plain = [{name: values.tolist() for name, values in row.items()} for row in dataset[:5]]
    assert_same(bp.collate(dataset, packed=True, arrays=arrays)(list(dataset[:5])), theirs(plain))
