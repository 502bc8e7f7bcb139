"""`beam-prep run --dry_run`: says what a run would do, does nothing, and is right; what lacks room is said."""

import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from beam_prep.dry_run import DAMAGED, NEW, UNTRUSTED, dry_run
from beam_prep.storage.claims import Claim
from tests.conftest import Command, Patch, Run, flip, run_of, text_config, tree, words_of
from tests.test_refresh import CONFIG, Jobs, texts
from tests.test_refresh import jobs as jobs

REFUSED = "the run would be refused: "


def asked(jobs: Jobs, **options: Any) -> list[str]:
    """What a dry run says; nothing may change."""
    before, names = tree(jobs.folder, ()), sorted(jobs.folder.rglob("*"))
    found = dry_run(jobs.job(**options))
    assert (tree(jobs.folder, ()), sorted(jobs.folder.rglob("*"))) == (before, names)
    return found


def blocks(said: list[str]) -> list[int]:
    """The numbers of all blocks, of reused ones, and of those to tokenise."""
    (line,) = (line for line in said if line.startswith("blocks: "))
    return [int(number) for number in re.findall(r"\d+", line)]


def to_do(said: list[str]) -> dict[str, int]:
    """Reason -> blocks."""
    found = (re.fullmatch(r"  (\d+): (.+)", line) for line in said)
    return {each[2]: int(each[1]) for each in found if each is not None}


def sizes(said: list[str]) -> list[float]:
    """kB in the token cache, and in the output."""
    found = (re.search(r": at most about ([\d.]+) kB would be written", line) for line in said)
    return [float(each[1]) for each in found if each is not None]


def test_a_new_output(jobs: Jobs) -> None:
    assert asked(jobs, keep_versions=2)[0] == f"a new version of {jobs.folder}/out would be made"
    said = asked(jobs)
    told = jobs.run()
    count = told["blocks"]
    assert (said[0], blocks(said), to_do(said)) == (f"{jobs.folder}/out would be made", [count, 0, count], {NEW: count})
    written = sum(path.stat().st_size for path in (jobs.folder / "out" / "__default__").rglob("*") if path.is_file())
    cache_size, output_size = sizes(said)
    assert 0.8 * written < 1000 * output_size < 1.25 * written
    cached = sum(path.stat().st_size for path in (jobs.folder / "token_cache").rglob("*") if path.is_file())
    assert 0.7 * cached < 1000 * cache_size < 1.3 * cached
    assert asked(jobs) == [f"{jobs.folder}/out is up to date: nothing would be done"]


def test_what_cache_and_output_need_on_one_disk_is_added(jobs: Jobs, monkeypatch: Patch) -> None:
    cache_size, output_size = (1000 * size for size in sizes(asked(jobs)))
    for free in (max(cache_size, output_size) + 100, cache_size + output_size + 1000):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free: SimpleNamespace(free=int(free)))
        said = [line for line in asked(jobs) if "are needed" in line]
        assert said == (asked(jobs)[-1:] if free < cache_size + output_size else [])
        for line in said:
            assert re.match(r"token cache in .*/token_cache and output in .*: about .* are needed, by the ", line)
            assert "kB are free: make room" in line


def test_an_added_file(jobs: Jobs) -> None:
    jobs.run()
    (jobs.inputs / "b.jsonl").write_text(texts("second", 900))
    said = asked(jobs)
    assert said[0] == f"{jobs.folder}/out would be replaced"
    told = jobs.run()
    new = told["blocks"] - told["blocks_reused"]
    assert (blocks(said), to_do(said)) == ([told["blocks"], told["blocks_reused"], new], {NEW: new})
    assert [line for line in said if " of " in line] == [f"  {new} of {jobs.inputs / 'b.jsonl'}"]


def test_which_fact_changed(jobs: Jobs) -> None:
    jobs.run()
    config = {**CONFIG, "preprocessing": {"max_seq_len": 40}}
    said = asked(jobs, config=config)
    assert said[1] == "  config.preprocessing.max_seq_len: 2048 -> 40"
    assert said[2].startswith("blocks: ")
    assert to_do(said) == {NEW: blocks(said)[0]}
    layout = asked(jobs, config={**CONFIG, "output": {**CONFIG["output"], "storage_format": ["bin"]}})
    assert layout[1].startswith("  config.output.storage_format: ['bin', ")
    assert blocks(layout)[0] == blocks(layout)[1] > 0


def test_blocks_that_may_not_be_used(jobs: Jobs) -> None:
    jobs.run()
    flip(max((jobs.folder / "token_cache").rglob("*.arrow"), key=lambda path: path.stat().st_size))
    (jobs.inputs / "b.jsonl").write_text(texts("second", 10))
    assert to_do(asked(jobs)) == {DAMAGED: 1, NEW: 1}
    assert to_do(asked(jobs, check="full"))[UNTRUSTED] > 1


def test_the_output_of_another_job(jobs: Jobs) -> None:
    jobs.run()
    (jobs.inputs / "b.jsonl").write_text(texts("second", 10))
    assert "pass --overwrite" in asked(jobs, overwrite=False)[0]
    assert asked(jobs)[0] == f"{jobs.folder}/out would be replaced"
    (jobs.folder / "out" / "mine").mkdir()
    (jobs.folder / "out" / "mine" / "manifest.json").write_text("{}")
    assert f"{jobs.folder}/out/mine/manifest.json is not of it: move it" in asked(jobs)[0]
    shutil.rmtree(jobs.folder / "out")
    (jobs.folder / "out" / "mine").mkdir(parents=True)
    assert asked(jobs)[0].startswith(REFUSED)


def test_the_command(jobs: Jobs, tmp_path: Path, command: Command) -> None:
    words = [jobs.inputs / "a.jsonl", "-o", tmp_path / "made", *words_of(CONFIG, tmp_path)]
    before = sorted(tmp_path.rglob("*"))
    said = command("run", *words, "--dry_run").splitlines()
    assert said[0] == f"{tmp_path}/made would be made"
    assert said[1] == "blocks: 1; 0 are in the token cache, 1 would be tokenised"
    assert re.match(r"output: at most about [\d.]+ kB would be written \([\d.]+ [GT]B are free\)", said[-1])
    assert sorted(tmp_path.rglob("*")) == before


def test_a_dry_run_finds_what_a_run_would_not_start_with(jobs: Jobs, command: Command) -> None:
    jobs.run()
    (jobs.inputs / "b.jsonl").write_text(texts("second", 900))
    with jobs.job().claim().claims.locked():
        assert "another job is writing" in asked(jobs)[0]
    elsewhere = Claim("other", host="elsewhere")
    claims = jobs.job().claim().claims
    claims.take(elsewhere)
    claims.update(launch="other")
    assert "pid " in asked(jobs)[0]
    claims.update(launch="other")
    Path(claims.path).unlink()
    manifest = jobs.folder / "out" / "manifest.json"
    manifest.write_text(manifest.read_text()[:100])
    problem = asked(jobs)[0].removeprefix(REFUSED)
    assert problem.startswith(f"{manifest} is damaged, or is another program's file: if an output of beam_prep")
    assert problem in command("verify", manifest.parent, code=1)


@pytest.mark.long
def test_a_run_says_before_it_begins_what_it_lacks_room_for(run: Run, tmp_path: Path, monkeypatch: Patch) -> None:
    config = text_config(output={"storage_format": ["bin", "tfrecord", "arrow", "h5"], "shuffle": {"seed": 17}})
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    rows = [{"text": f"{row} " + "the cat sat on the mat " * 20} for row in range(300)]
    assert run(config, rows, cache_dir=tmp_path / "cache").manifest is not None
    (line,) = (each for each in run_of(tmp_path / "out")["warnings"] if "are needed" in each)
    whats = [part.partition(" in ")[0] for part in line.partition(": about ")[0].split(" and ")]
    assert " and ".join(whats) == "the token cache and sorted runs and the output"
