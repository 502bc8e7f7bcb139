"""A store that lies in memory, under `mem://`."""

from collections.abc import Iterator

import pytest

from beam_prep.storage.stores import objects
from tests.storage.memory import MemoryStore


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryStore]:
    made = MemoryStore()
    monkeypatch.setitem(objects.CLIENTS, "mem", (lambda options: made, ""))
    objects.client_for.cache_clear()
    yield made
    objects.client_for.cache_clear()
