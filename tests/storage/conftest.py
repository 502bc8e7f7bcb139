"""A store that lies in memory, under `mem://`."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from beam_prep.storage import stores
from tests.conftest import Patch
from tests.storage.memory import MemoryStore


@pytest.fixture
def store(monkeypatch: Patch, tmp_path: Path) -> Iterator[MemoryStore]:
    made = MemoryStore()
    # Locks of stored outputs lie among temporary files: other processes test outputs of the same names.
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setitem(stores.CLIENTS, "mem", (lambda options: made, ""))
    stores.client_for.cache_clear()
    yield made
    stores.client_for.cache_clear()
