"""One job makes an output: the claim that says which, in a store that lies in memory."""

import json
import time
from typing import Any

import apache_beam as beam
import pytest

import beam_prep as bp
from beam_prep.errors import OutputError
from beam_prep.storage.output import StoredOutput
from beam_prep.storage.staging import Staging
from beam_prep.storage.stores import objects
from beam_prep.storage.stores.client import StoreUnavailable
from beam_prep.storage.stores.reader import read_bytes
from beam_prep.transforms.shard import Publish
from tests.conftest import ROOT
from tests.storage.memory import MemoryStore

TOKENIZER = bp.Tokenizer.load(ROOT / "examples" / "tokenizer")
OUTPUT = "mem://bucket/out"


def launch() -> StoredOutput:
    return StoredOutput(OUTPUT, Staging.beside(OUTPUT))


def claimed_by() -> str:
    (path,) = claims()
    return str(json.loads(read_bytes(path))["launch"])


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


def test_a_plan_that_is_made_again_after_the_last_step_claims_nothing(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish = Publish.process
    calls: list[int] = []

    def again(self: Publish, written: Any, plan: Any) -> Any:
        yield from publish(self, written, plan)
        calls.append(self.publisher.prepare(plan))

    monkeypatch.setattr(Publish, "process", again)
    run(store, bp.Shard(OUTPUT, tokenizer=TOKENIZER))
    assert (calls, claims()) == ([True], [])


def test_of_two_chains_written_by_hand_the_one_that_loses_its_claim_gives_way(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = StoredOutput._check_claim

    def meanwhile(self: StoredOutput) -> None:
        monkeypatch.setattr(StoredOutput, "_check_claim", check)
        launch().claim(time.time())
        check(self)

    monkeypatch.setattr(StoredOutput, "_check_claim", meanwhile)
    with pytest.raises(Exception, match=f"another job has claimed {OUTPUT}"):
        run(store, bp.Shard(OUTPUT, tokenizer=TOKENIZER))
    assert names(f"{OUTPUT}/") == []


@pytest.mark.parametrize("claimed", [False, True], ids=["first", "after_a_crash"])
def test_of_two_launches_at_the_same_moment_the_first_claim_wins(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch, claimed: bool
) -> None:
    if claimed:
        launch().claim(1.0)
    first, second = launch(), launch()
    put_if = store.put_if

    def beaten(*given: Any) -> None:
        monkeypatch.setattr(store, "put_if", put_if)
        first.claim(2.0)
        put_if(*given)

    monkeypatch.setattr(store, "put_if", beaten)
    with pytest.raises(OutputError, match=f"another job has claimed {OUTPUT}"):
        second.claim(2.0)
    assert claimed_by() == first.staging.launch


def test_a_later_launch_takes_the_claim_over_and_an_earlier_one_never_takes_it_back(
    store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    earlier, later = launch(), launch()
    earlier.claim(1.0)
    earlier.claim(1.0)  # as a step that runs again
    assert caplog.messages == []
    later.claim(2.0)
    (warning,) = caplog.messages
    assert f"claimed by another launch ({earlier.staging.launch})" in warning
    with pytest.raises(OutputError, match="another job has claimed"):
        earlier.claim(1.0)
    assert claimed_by() == later.staging.launch


def test_a_claim_whose_answer_was_lost_is_this_launchs_own(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    put_if = store.put_if

    def lost(*given: Any) -> None:
        monkeypatch.setattr(store, "put_if", put_if)
        put_if(*given)
        raise StoreUnavailable("the connection was closed")

    monkeypatch.setattr(store, "put_if", lost)
    mine = launch()
    mine.claim(1.0)
    assert claimed_by() == mine.staging.launch
