"""One job makes an output: the claim that says which, on a disk and in a store that lies in memory."""

import json
import platform
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest

import beam_prep as bp
from beam_prep.errors import LockedError
from beam_prep.storage import stores
from beam_prep.storage.claims import Claim, Claims
from beam_prep.storage.output import Staging, StoredOutput
from beam_prep.storage.stores import read_bytes
from tests.conftest import ROOT, Patch
from tests.storage.memory import MemoryStore

TOKENIZER = bp.Tokenizer.load(ROOT / "examples" / "tokenizer")
OUTPUT = "mem://bucket/out"


def launch() -> StoredOutput:
    return StoredOutput(OUTPUT, Staging.beside(OUTPUT), f"{OUTPUT}.failed")


def claim(output: StoredOutput, **changes: Any) -> Claim | None:
    """Claims an output as a launch of another machine would."""
    fields = {"host": "another", "pid": 1, **changes}
    return output.claims.take(Claim(output.staging.launch, **fields))


def claimed_by() -> str:
    (path,) = claims()
    return str(json.loads(read_bytes(path))["launch"])


def names(prefix: str = "mem://bucket/") -> list[str]:
    return [found.path for found in stores.listed(prefix)]


def claims() -> list[str]:
    return [path for path in names() if path.endswith("/claim.json")]


def test_a_chain_claims_its_output_when_it_runs_and_releases_it(store: MemoryStore, monkeypatch: Patch) -> None:
    seen: list[list[str]] = []
    files = StoredOutput.files

    def watched(self: StoredOutput) -> Any:
        seen.append(claims())
        return files(self)

    monkeypatch.setattr(StoredOutput, "files", watched)
    with beam.Pipeline("FnApiRunner") as pipeline:
        output = bp.Output("sequence", "ids", (bp.Section("text", "train"),))
        records = pipeline | bp.testing.create([{"text": "one"}, {"text": "two"}])
        tokens = records | bp.ApplyTemplate([output], TOKENIZER) | bp.Tokenize(TOKENIZER, "transformers")
        _ = tokens | bp.Shard(OUTPUT, tokenizer=TOKENIZER)
        assert names() == []  # what is built writes nothing
    assert [len(each) for each in seen] == [1, 1]  # the shard, and what belongs to none
    assert claims() == []
    assert f"{OUTPUT}/manifest.json" in names()


def test_of_two_launches_at_the_same_moment_the_first_claim_wins(store: MemoryStore, monkeypatch: Patch) -> None:
    first, second = launch(), launch()
    put = store.put

    def beaten(*given: Any) -> None:
        monkeypatch.setattr(store, "put", put)
        claim(first)
        put(*given)

    monkeypatch.setattr(store, "put", beaten)
    with pytest.raises(LockedError, match=f"another job is writing {OUTPUT}: pid 1 on another, since .* UTC"):
        claim(second)
    assert claimed_by() == first.staging.launch


def test_a_claim_lasts_as_long_as_its_lease_and_is_then_taken_over(store: MemoryStore) -> None:
    earlier, later = launch(), launch()
    assert claim(earlier, version_name="one") is None
    assert claim(earlier) is None  # as a step that runs again
    with pytest.raises(LockedError, match=r"its claim ends (600|599) s from now, or type: rm mem://.*claim.json"):
        claim(later)
    earlier.claims.update(renewed=time.time() - 601)
    taken = claim(later)
    assert taken is not None
    assert (taken.launch, taken.version_name) == (earlier.staging.launch, "one")
    with pytest.raises(LockedError, match="another job has claimed"):
        earlier.claims.check()
    with pytest.raises(LockedError):
        claim(earlier)
    earlier.claims.release()
    earlier.claims.end()
    assert claimed_by() == later.staging.launch
    later.claims.check()


def age(output: StoredOutput) -> float:
    """Seconds since its claim was renewed."""
    holder = output.claims.holder()
    assert holder is not None
    return time.time() - holder.renewed


def test_a_step_renews_a_claim_of_which_a_third_has_passed(store: MemoryStore) -> None:
    mine = launch()
    claim(mine, renewed=time.time() - 199)
    mine.claims.check()
    assert age(mine) > 150
    mine.claims.update(renewed=time.time() - 201)
    mine.claims.check()
    assert age(mine) < 150


def test_a_launcher_renews_its_claim_as_long_as_it_waits(store: MemoryStore) -> None:
    mine = launch()
    claim(mine, renewed=0.0)
    renewed, update = threading.Event(), Claims.update

    def seen(self: Claims, **changes: Any) -> None:
        update(self, **changes)
        renewed.set()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Claims, "update", seen)
        with mine.claims.renewed(0.03):
            assert renewed.wait(30)
    assert age(mine) < 60


LOCKED = """
import sys, time
from beam_prep.storage.claims import Claim
from beam_prep.storage.output import Staging

output = sys.argv[1]
launch = Staging.beside(output)
claims = launch.claims(output)
with claims.locked():
    claims.take(Claim(launch.launch, lock=claims.lock), is_locked=True)
    print("locked", flush=True)
    time.sleep(60)
"""


def test_nobody_waits_for_a_launcher_of_this_machine_that_is_gone(tmp_path: Path) -> None:
    output = str(tmp_path / "out")
    launch = Staging.beside(output)
    with subprocess.Popen([sys.executable, "-c", LOCKED, output], stdout=subprocess.PIPE) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == b"locked\n"
        claims = launch.claims(output)
        with (
            pytest.raises(LockedError, match=r"another job is writing .*: pid \d+ on .*, since .*type on .*: kill \d+"),
            claims.locked(),
        ):
            pass
        first.kill()
        first.wait()
    with pytest.raises(LockedError, match="its claim ends"):
        claims.take(Claim(launch.launch))
    with claims.locked():
        assert claims.take(Claim(launch.launch), is_locked=True) is not None


def test_nobody_is_told_to_kill_a_launcher_that_was_killed_before(tmp_path: Path) -> None:
    """The next launcher has the lock, and looks at its inputs before it takes the claim over."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    first, second, third = (Claims(str(tmp_path), "out", name) for name in "abc")
    first.take(Claim("a", pid=ended.pid))
    with second.locked(), pytest.raises(LockedError, match=r"is writing out\. Wait for it, or choose another output$"):
        third.locked().__enter__()


@pytest.mark.parametrize(
    "claimed",
    [{"lock": None}, {"lock": "of another"}],
    ids=["a_job_on_a_runner", "a_launcher_of_another_machine_of_this_name"],
)
def test_a_job_whose_lock_is_not_here_is_not_gone(store: MemoryStore, claimed: dict[str, Any]) -> None:
    claim(launch(), host=platform.node(), **claimed)
    mine = launch()
    with mine.claims.locked(), pytest.raises(LockedError, match="its claim ends"):
        mine.claims.take(Claim(mine.staging.launch), is_locked=True)


@pytest.mark.parametrize("text", [b"", b"{}"])
def test_what_is_no_claim_is_said(store: MemoryStore, text: bytes) -> None:
    mine = launch()
    stores.put(mine.claims.path, text)
    with pytest.raises(LockedError, match=r"is not a claim of this version of beam_prep: type: rm mem://"):
        claim(mine)


def test_of_many_launches_on_a_disk_one_wins(tmp_path: Path) -> None:
    output = str(tmp_path / "out")
    launches = [Staging.beside(output) for _ in range(16)]

    def take(mine: Staging) -> bool:
        try:
            mine.claims(output).take(Claim(mine.launch))
        except LockedError:
            return False
        return True

    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(take, launches)).count(True) == 1
