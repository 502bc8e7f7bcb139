"""Outputs of any rows, without a run: what a reader gets to see."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from beam_prep.data.ragged import Ragged
from beam_prep.data.schema import Column
from tests.formats.shards import written_as

IDS = Column("input_ids", "int32", 1, "ids")
MASK = Column("loss_mask", "bool", 1, "mask", of="input_ids")
LABELS = Column("labels", "int32", 1, "labels", of="input_ids")

Rows = Sequence[Mapping[str, Any]]
Make = Callable[..., Path]


def write(folder: Path, columns: Sequence[Column], shards: Mapping[str, Sequence[Rows]], formats: str = "bin") -> Path:
    """Writes an output.

    Args:
        folder: of the output.
        columns: what the rows have.
        shards: domain -> the rows of each of its shards.
        formats: one.
    """
    entries = []
    for domain, parts in shards.items():
        for number, rows in enumerate(parts):
            made = {c.name: Ragged.from_lists([row[c.name] for row in rows], c.dtype, c.levels) for c in columns}
            paths = written_as(formats, folder / domain, columns, [made], number, len(parts))
            files = [_entry(path, folder) for path in paths]
            entries.append({"domain": domain, "shard": number, "rows": len(rows), "tokens": {}, "trained": {}})
            entries[-1] |= {"packing": None, "files": files}
    manifest = {"manifest_version": 1, "formats": [formats], "columns": [asdict(column) for column in columns]}
    manifest |= {"domains": {domain: domain for domain in shards}, "shards": entries, "files": []}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def _entry(path: Path, folder: Path) -> dict[str, Any]:
    digest = sha256(path.read_bytes()).hexdigest()
    return {"path": str(path.relative_to(folder)), "bytes": path.stat().st_size, "sha256": digest}


def split_up(folder: Path) -> None:
    """Makes the domains `train/a` and `test/a` of an output the domain `a` of two splits."""
    manifest = json.loads((folder / "manifest.json").read_text())
    for shard in manifest["shards"]:
        shard["split"], shard["domain"] = shard["domain"].split("/")
    manifest["splits"] = {shard["split"]: {"rows": 0} for shard in manifest["shards"]}
    for shard in manifest["shards"]:
        manifest["splits"][shard["split"]]["rows"] += shard["rows"]
    manifest["domains"] = {shard["domain"]: shard["domain"] for shard in manifest["shards"]}
    (folder / "manifest.json").write_text(json.dumps(manifest))


def documents(lengths: Sequence[int], first: int = 0) -> list[dict[str, list[Any]]]:
    """Rows of these lengths. Their ids count on from `first`, so each token tells its row and place."""
    rows: list[dict[str, list[Any]]] = []
    for length in lengths:
        ids = list(range(first, first + length))
        rows.append({"input_ids": ids, "loss_mask": [token % 2 == 0 for token in ids], "labels": ids})
        first += length
    return rows


@pytest.fixture
def output(tmp_path: Path) -> Make:
    """Makes outputs, in folders of their own."""
    made: list[Path] = []

    def _output(columns: Sequence[Column], shards: Mapping[str, Sequence[Rows]], formats: str = "bin") -> Path:
        made.append(write(tmp_path / f"out{len(made)}", columns, shards, formats))
        return made[-1]

    return _output
