"""A job on a local disk that is killed, stopped, or meets an error, at any change that it makes to a file.

Whatever the change is: a reader sees the output of before or the new one, entire; the next run gives the bytes of a run
that nothing disturbed, and leaves nothing else. `make faults` tries every change; without `FAULTS=all`, some are
drawn, others for each commit.
"""

import functools
import json
import os
import random
import signal
from collections.abc import Iterator
from typing import get_args

import pytest

from tests.conftest import ROOT, commit
from tests.faults.harness import Fault, Jobs, contents, names, restore

CASES_DRAWN, CHANGES_DRAWN = 24, 1
"""Cases that are tried where not all are, and changes of each."""
EVERY = os.environ.get("FAULTS") == "all"
pytestmark = pytest.mark.timeout(7200 if EVERY else 900)
CONFIG = {
    "input": {"sections": [{"field": "messages", "action": "$role", "template": True}]},
    "mask": {"assistant": "train"},
    "preprocessing": {"deduplicate": {"by": ["messages"]}},
    "output": {
        "storage_format": ["bin", "tfrecord"],
        "domain_key": "topic",
        "max_tokens_per_shard": 12_000,
        "shuffle": {"seed": 1},
        "splits": {"train": 0.9, "test": 0.1},
    },
}
RUNNERS = {"in-process": (), "two workers": ("--direct_num_workers=2",)}


def chats(count: int, word: str) -> str:
    lines = []
    for number in range(count):
        talk = [
            {"role": "user", "content": f"Question {number}: " + "how far is it? " * 20},
            {"role": "assistant", "content": f"Answer {number}: {word} " + "it is not far. " * 20},
        ]
        lines.append(json.dumps({"topic": ("one", "two")[number % 2], "messages": talk}))
        if number % 50 == 0:
            lines.append('{"cut": ')
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    folder = tmp_path_factory.mktemp("faults")
    root, work = folder / "root", folder / "work"
    root.mkdir()
    work.mkdir()
    (folder / "old.jsonl").write_text(chats(40, "old"))
    (folder / "new.jsonl").write_text(chats(70, "new"))
    (folder / "config.json").write_text(json.dumps(CONFIG))
    with Jobs(root, work) as found:
        yield found


OUTPUTS = ("new", "overwrite", "cache_dir", "keep_versions")


class Case:
    """A job, from a folder in which an older output is, or none."""

    def __init__(self, jobs: Jobs, runner: str, output: str) -> None:
        self.jobs, self.root = jobs, jobs.root
        folder = self.root.parent
        tokenizer = str(ROOT / "examples" / "tokenizer")
        common = ["-o", str(self.root / "out"), "-c", str(folder / "config.json"), "--tokenizer_path", tokenizer]
        # The backend makes no files, and this one needs no gate: half of a job's time.
        common += ["--block_bytes", "65536", "--max_reject_rate", "1", "--tokenizer_backend", "transformers"]
        of_versions = output == "keep_versions"
        # With one that is kept the old one is removed, too.
        options = {
            "new": [],
            "overwrite": ["--overwrite"],
            "cache_dir": ["--overwrite", "--cache_dir", str(self.root / "token_cache")],
            "keep_versions": ["--keep_versions=1", "--version_name=new"],
        }
        self.arguments = ["run", str(folder / "new.jsonl"), *common, *RUNNERS[runner], *options[output]]
        self.seen = self.root / "out" / "latest" if of_versions else self.root / "out"
        self.saved = folder / f"before-{output}"
        if not self.saved.exists():
            (folder / "nothing").mkdir(exist_ok=True)
            restore(self.root, folder / "nothing")
            before = ["--keep_versions=1", "--version_name=a"] if of_versions else options[output]
            if output != "new":
                assert jobs.run("run", str(folder / "old.jsonl"), *common, *before).code == 0
            restore(self.saved, self.root)
        restore(self.root, self.saved)
        self.old = contents(self.seen) if output != "new" else None
        ended = jobs.run(*self.arguments)
        assert ended.code == 0, ended.words
        self.changes, self.new, self.left = ended.changes, contents(self.seen), names(self.root)

    def is_as_a_reader_may_see_it(self) -> bool:
        """The output of before, or the new one."""
        return (contents(self.seen) if self.seen.exists() else None) in (self.old, self.new)

    def try_at(self, change: int, fault: Fault) -> None:
        restore(self.root, self.saved)
        ended = self.jobs.run(*self.arguments, fault=fault, at=change)
        where = f"{fault} at change {change} of {self.changes}"
        assert self.is_as_a_reader_may_see_it(), f"{where}: a reader sees a part"
        if fault in ("disk full", "input/output error"):
            assert ended.code in (0, 4, 5), where
            assert "Traceback" not in ended.words, f"{where}: {ended.words}"
        if fault in ("SIGINT", "SIGTERM") and ended.code != 0:  # it may have been done
            assert ended.code == 128 + getattr(signal, fault), f"{where}: {ended}"
            assert ended.words.splitlines()[-1].startswith(f"beam-prep: stopped by {fault}"), f"{where}: {ended.words}"
            assert "Traceback" not in ended.words, f"{where}: {ended.words}"
            folders = [path for path in self.root.glob(".beam_prep/*/*") if path.is_dir()]
            assert {path.name for path in folders} <= {"token_cache"}, f"{where}: {folders}"
        again = self.jobs.run(*self.arguments)
        assert again.code == 0, f"{where}, and then: {again.words}"
        assert contents(self.seen) == self.new, f"{where}: the next run gives other bytes"
        assert names(self.root) == self.left, f"{where}: left after the next run: {names(self.root) ^ self.left}"


CASES = [
    pytest.param(runner, output, fault, marks=pytest.mark.xdist_group(f"{runner}, {output}"))  # they share a Case
    for runner in RUNNERS
    for output in OUTPUTS
    for fault in get_args(Fault)
    if fault != "none" and (runner, fault) != ("in-process", "kill one")  # which are all
]
if not EVERY:
    CASES = sorted(random.Random(commit()).sample(CASES, CASES_DRAWN), key=CASES.index)


@functools.cache
def case_of(jobs: Jobs, runner: str, output: str) -> Case:
    return Case(jobs, runner, output)


@pytest.mark.parametrize(("runner", "output", "fault"), CASES)
def test_no_fault_loses_or_shows_a_part(jobs: Jobs, runner: str, output: str, fault: Fault) -> None:
    case = case_of(jobs, runner, output)
    every = range(1, case.changes + 1)
    drawn = random.Random(f"{commit()} {runner} {output} {fault}").sample(every, min(CHANGES_DRAWN, len(every)))
    for change in every if EVERY else drawn:
        case.try_at(change, fault)
    print(f"{fault}: tried at {len(every if EVERY else drawn)} of {case.changes} changes")
