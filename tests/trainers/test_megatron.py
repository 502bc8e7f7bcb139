"""The format `megatron` in Megatron's own library: the bytes of its builder, its reader, what `GPTDataset` reads."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="no torch here: make test-trainers")
pytest.importorskip("megatron.core", reason="no Megatron here: make test-trainers")

from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder  # noqa: E402
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig  # noqa: E402
from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder  # noqa: E402

from beam_prep.data.ragged import Array, Ragged  # noqa: E402
from beam_prep.data.schema import Column  # noqa: E402
from beam_prep.formats.megatron import CODES  # noqa: E402
from tests.formats.shards import cut, write_as  # noqa: E402
from tests.test_docs import texts  # noqa: E402
from tests.trainers.conftest import Outputs  # noqa: E402

LENGTH = 64


def theirs(folder: Path, rows: Ragged) -> tuple[bytes, bytes]:
    """What Megatron's builder writes for a column: the .bin and the .idx."""
    dtype = np.uint8 if rows.flat.dtype == bool else rows.flat.dtype.type
    prefix = folder / "theirs"
    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=dtype)
    for row in rows:
        lengths = [len(row)] if not isinstance(row, Ragged) else row.lengths.tolist()
        builder.add_document(row.flat, lengths)
    builder.finalize(f"{prefix}.idx")
    return Path(f"{prefix}.bin").read_bytes(), Path(f"{prefix}.idx").read_bytes()


@pytest.mark.parametrize("dtype", CODES)
@pytest.mark.parametrize("seed", [0, 2])
def test_the_bytes_are_those_of_the_builder(dtype: str, seed: int, tmp_path: Path) -> None:
    random = np.random.default_rng(seed)

    def drawn(lengths: Array) -> Ragged:
        values = random.integers(0, 2 if dtype == "bool" else 128, lengths.sum())
        return Ragged.from_lengths(values.astype(dtype), lengths)

    lists = random.integers(0, 4, 50 * seed)
    rows = {
        "sequence": drawn(random.integers(0, 30, len(lists))),
        "responses": Ragged.from_lengths(drawn(random.integers(0, 9, lists.sum())), lists),
    }
    columns = [Column("sequence", dtype, 1, "ids"), Column("responses", dtype, 2, "ids")]
    write_as("megatron", tmp_path, columns, cut(rows, [0, min(7, len(lists)), min(7, len(lists)), len(lists)]))
    for name, each in rows.items():
        ours = tuple((tmp_path / f"shard_0000-{name}{ending}").read_bytes() for ending in (".bin", ".idx"))
        assert ours == theirs(tmp_path, each)


@pytest.fixture(scope="module")
def output(outputs: Outputs) -> Path:
    """Masked chats of several domains, in several shards each."""
    return outputs(
        "sft_chat",
        items=120,
        output={"storage_format": ["bin", "megatron"], "domain_key": "domain", "max_tokens_per_shard": 6000},
    )


def built(kind: type, cache: Path, blend: Sequence[str]) -> Any:
    """A tokenizer of Megatron is more than `GPTDataset` needs: this one has ids that no row has."""
    tokenizer = SimpleNamespace(eod=60_000, pad=60_001, vocab_size=60_002, unique_identifiers={"class": "none"})
    config = GPTDatasetConfig(
        random_seed=1,
        sequence_length=LENGTH,
        blend=(list(blend), None),
        split="1,0,0",
        path_to_cache=str(cache),
        tokenizer=tokenizer,
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
    )
    return BlendedMegatronDatasetBuilder(kind, [None, None, None], lambda: True, config).build()[0]


def stream(dataset: GPTDataset, column: str) -> Array:
    """The values of all rows of a pair in the order in which `GPTDataset` joins them."""
    pair = IndexedDataset(dataset.dataset.path_prefix.replace("-sequence", f"-{column}"))
    return np.concatenate([pair[int(row)] for row in dataset.document_index])


def test_the_class_of_the_page_takes_the_loss_where_the_mask_says(output: Path, tmp_path: Path) -> None:
    names: dict[str, Any] = {"__name__": "page"}
    (code,) = [text for text in texts("python", "docs/formats.md") if "class MaskedGPTDataset" in text]
    exec(compile(code, "docs/formats.md", "exec"), names)
    first = min(output.glob("*/shard_*-sequence.idx"))
    dataset = built(names["MaskedGPTDataset"], tmp_path, [str(first.with_suffix(""))])
    mask = stream(dataset, "loss_mask")
    counted = 0
    for index in range(len(dataset)):
        start = LENGTH * int(dataset.shuffle_index[index])
        found = dataset[index]["loss_mask"]
        assert found.tolist() == mask[start + 1 : start + LENGTH + 1].tolist()
        counted += int(found.sum())
    assert 0 < counted == int(mask[1 : LENGTH * len(dataset) + 1].sum()) < LENGTH * len(dataset)
    assert dataset[None]["loss_mask"].sum() == 0
