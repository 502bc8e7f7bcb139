"""Rows of every kind, and shards of them, for the tests of formats."""

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from hypothesis import strategies as st

from beam_prep.data.ragged import Ragged
from beam_prep.data.schema import Column
from beam_prep.formats import FORMATS, Format, ShardReader
from tests.conftest import tree

files = partial(tree, leave_out=())
Slices = Sequence[dict[str, Ragged]]

SEQUENCE = Column("sequence", "int32", 1, "ids")
MASK = Column("loss_mask", "bool", 1, "mask", of="sequence")
RESPONSES = Column("responses", "uint16", 2, "ids")
MASKS_OF = Column("responses_mask", "bool", 2, "mask", of="responses")
REWARDS = Column("rewards", "float32", 1, "value")
ALL = [SEQUENCE, MASK, RESPONSES, MASKS_OF, REWARDS]

DTYPES = ["bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"]
DTYPES += ["float16", "float32", "float64"]

SEQUENCES = [[5, 6, 7], [], [-1, 2**31 - 1]]
MASKS = [[False, True, True], [], [True, False]]


def sft() -> dict[str, Ragged]:
    """Rows of `SEQUENCE` and `MASK`."""
    return {"sequence": Ragged.from_lists(SEQUENCES), "loss_mask": Ragged.from_lists(MASKS, bool)}


def random_rows(rows: int, seed: int = 0) -> dict[str, Ragged]:
    """Rows of `ALL`."""
    rng = np.random.default_rng(seed)
    lengths, lists = rng.integers(0, 9, rows), rng.integers(0, 4, rows)
    inner = rng.integers(0, 5, lists.sum())
    ids = rng.integers(-(2**31), 2**31, lengths.sum()).astype(np.int32)
    responses = rng.integers(0, 2**16, inner.sum()).astype(np.uint16)
    return {
        "sequence": Ragged.from_lengths(ids, lengths),
        "loss_mask": Ragged.from_lengths(rng.random(len(ids)) < 0.5, lengths),
        "responses": Ragged.from_lengths(Ragged.from_lengths(responses, inner), lists),
        "responses_mask": Ragged.from_lengths(Ragged.from_lengths(rng.random(len(responses)) < 0.5, inner), lists),
        "rewards": Ragged.from_lengths(rng.random(lists.sum(), np.float32), lists),
    }


@st.composite
def rows_of(draw: st.DrawFn, dtypes: Sequence[str] = DTYPES) -> tuple[list[Column], dict[str, Ragged], Slices]:
    """A column of lists and one of lists of lists; their rows; and the same rows in slices."""
    dtype = draw(st.sampled_from(dtypes))
    lengths = draw(st.lists(st.integers(0, 5) | st.sampled_from([255, 256]), max_size=10))
    inner = draw(st.lists(st.lists(st.integers(0, 3), max_size=3), min_size=len(lengths), max_size=len(lengths)))
    random = np.random.default_rng(draw(st.integers(0, 100)))

    def values(size: int) -> Any:
        if dtype == "bool":
            return random.random(size) < 0.5
        return np.frombuffer(random.bytes(size * np.dtype(dtype).itemsize), dtype)

    lists = Ragged.from_lengths(values(sum(map(sum, inner))), [size for row in inner for size in row])
    rows = {
        "sequence": Ragged.from_lengths(values(sum(lengths)), lengths),
        "responses": Ragged.from_lengths(lists, [len(row) for row in inner]),
    }
    columns = [Column("sequence", dtype, 1, "ids"), Column("responses", dtype, 2, "ids")]
    borders = sorted(draw(st.lists(st.integers(0, len(lengths)), max_size=4)))
    return columns, rows, cut(rows, [0, *borders, len(lengths)])


def cut(rows: dict[str, Ragged], borders: Sequence[int]) -> list[dict[str, Ragged]]:
    return [{name: ragged[a:b] for name, ragged in rows.items()} for a, b in pairwise(borders)]


def joined(parts: Slices) -> dict[str, list[Any]]:
    return {name: [row for part in parts for row in part[name].to_lists()] for name in parts[0]}


def limited(name: str, **limits: int) -> Format:
    """A format with limits of its own, as a subclass of a user has: `piece=1`, `batch_rows=2` ..."""
    assert all(hasattr(FORMATS[name], limit) for limit in limits)
    format: Format = type("Limited", (type(FORMATS[name]),), limits)()
    return format


def write_as(
    name: str, folder: Path, columns: Sequence[Column], slices: Slices, shard: int = 0, shards: int = 1, **limits: int
) -> Path:
    """Writes a shard; gives the path of its first file. `limits`: see `limited`."""
    return written_as(name, folder, columns, slices, shard, shards, **limits)[0]


def written_as(
    name: str, folder: Path, columns: Sequence[Column], slices: Slices, shard: int, shards: int, **limits: int
) -> list[Path]:
    """Writes a shard; gives the paths of its files. `limits`: see `limited`."""
    paths: list[Path] = []
    with ExitStack() as opened:

        def open_file(path: str) -> BinaryIO:
            paths.append(folder / path)
            paths[-1].parent.mkdir(parents=True, exist_ok=True)
            return opened.enter_context(open(paths[-1], "xb"))

        writer = limited(name, **limits).writer(open_file, columns, shard, shards)
        for rows in slices:
            writer.write(rows)
        writer.close()
    return paths


def read_as(name: str, folder: Path, columns: Sequence[Column], shard: int = 0, shards: int = 1) -> Any:
    """Its `ShardReader`: each format has its own."""
    return FORMATS[name].read(folder, columns, shard, shards)


def rows_in(reader: ShardReader) -> list[dict[str, Any]]:
    return [plain(reader.row(index)) for index in range(len(reader))]


def rows_from(rows: dict[str, Ragged]) -> list[dict[str, Any]]:
    lists = {name: ragged.to_lists() for name, ragged in rows.items()}
    return [dict(zip(lists, values, strict=True)) for values in zip(*lists.values(), strict=True)]


def plain(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value.to_lists() if isinstance(value, Ragged) else value.tolist() for name, value in row.items()}
