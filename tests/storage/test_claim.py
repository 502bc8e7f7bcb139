"""One job makes an output: the claim that says which, in a store that lies in memory."""

from collections.abc import Iterator
from typing import Any

import apache_beam as beam
import pytest

import beam_prep as bp
from beam_prep.storage.output import StoredOutput
from beam_prep.storage.staging import Staging
from beam_prep.storage.stores import objects
from tests.conftest import ROOT
from tests.storage.memory import MemoryStore

TOKENIZER = bp.Tokenizer.load(ROOT / "examples" / "tokenizer")
OUTPUT = "mem://bucket/out"


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryStore]:
    made = MemoryStore()
    monkeypatch.setitem(objects._CLIENTS, "mem", (lambda options: made, ""))
    objects.client_for.cache_clear()
    yield made
    objects.client_for.cache_clear()


def names(prefix: str = "mem://bucket/") -> list[str]:
    return [found.path for found in objects.listed(prefix)]


def claims() -> list[str]:
    return [path for path in names() if path.endswith("/claim.json")]


def chain(store: MemoryStore, pipeline: beam.Pipeline, shard: bp.Shard) -> None:
    """A chain as a user writes it."""
    (
        pipeline
        | bp.testing.create([{"text": "one"}, {"text": "two"}])
        | bp.ApplyTemplate([bp.Output("sequence", "ids", (bp.Section("text", "train"),))], TOKENIZER)
        | bp.Tokenize(TOKENIZER, "transformers")
        | shard
    )


def run(store: MemoryStore, shard: bp.Shard) -> None:
    with beam.Pipeline("FnApiRunner") as pipeline:
        chain(store, pipeline, shard)


def test_a_chain_that_is_built_writes_nothing_to_the_store(store: MemoryStore) -> None:
    chain(store, beam.Pipeline("FnApiRunner"), bp.Shard(OUTPUT, tokenizer=TOKENIZER))
    assert names() == []


def test_a_chain_written_by_hand_claims_its_output_and_releases_it(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[str]] = []
    upload = StoredOutput._upload

    def watched(self: StoredOutput, *given: Any) -> None:
        seen.append(claims())
        upload(self, *given)

    monkeypatch.setattr(StoredOutput, "_upload", watched)
    run(store, bp.Shard(OUTPUT, tokenizer=TOKENIZER))
    assert [len(each) for each in seen] == [1]
    assert claims() == []
    assert f"{OUTPUT}/manifest.json" in names()


def test_of_two_chains_written_by_hand_the_one_that_loses_its_claim_gives_way(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = StoredOutput._check_claim

    def meanwhile(self: StoredOutput) -> None:
        monkeypatch.setattr(StoredOutput, "_check_claim", check)
        StoredOutput(OUTPUT, Staging.beside(OUTPUT)).claim()
        check(self)

    monkeypatch.setattr(StoredOutput, "_check_claim", meanwhile)
    with pytest.raises(Exception, match=f"another job has claimed {OUTPUT}"):
        run(store, bp.Shard(OUTPUT, tokenizer=TOKENIZER))
    assert names(f"{OUTPUT}/") == []
