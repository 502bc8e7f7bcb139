"""A job on a local disk that is killed, or meets an error, at any change that it makes to a file.

Whatever the change is: a reader sees the output of before or the new one, entire; the next run gives the bytes of a run
that nothing disturbed, and leaves nothing else behind. `make faults` tries every change; without `FAULTS=all`, some are
drawn, others for each commit.
"""

import json
import os
import random
import subprocess
from collections.abc import Iterator

import pytest

from tests.conftest import ROOT
from tests.faults.harness import Fault, Jobs, contents, names, restore

DRAWN = 4
"""Changes of each case that are tried where not all are."""
CONFIG = {
    "input": {"sections": [{"field": "messages", "action": "$role", "template": True}]},
    "mask": {"assistant": "train"},
    "output": {"storage_format": ["bin", "tfrecord"], "domain_key": "topic", "max_tokens_per_shard": 8000},
}
RUNNERS = {"in-process": (), "two workers": ("--direct_num_workers=2",)}


def commit() -> str:
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip()


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
    (folder / "old.jsonl").write_text(chats(60, "old"))
    (folder / "new.jsonl").write_text(chats(150, "new"))
    (folder / "config.json").write_text(json.dumps(CONFIG))
    with Jobs(root, work) as found:
        yield found


class Case:
    """A job, from a folder in which an older output is, or none."""

    def __init__(self, jobs: Jobs, runner: str, replaces: bool) -> None:
        self.jobs, self.root = jobs, jobs.root
        folder = self.root.parent
        tokenizer = str(ROOT / "examples" / "tokenizer")
        common = ["-o", str(self.root / "out"), "-c", str(folder / "config.json"), "--tokenizer_path", tokenizer]
        common += ["--block_bytes", "65536", "--max_reject_rate", "1"]
        self.arguments = ["run", str(folder / "new.jsonl"), *common, *RUNNERS[runner]]
        if replaces:
            self.arguments += ["--overwrite"]
        self.saved = folder / f"before-{replaces}"
        if not self.saved.exists():
            (folder / "nothing").mkdir(exist_ok=True)
            restore(self.root, folder / "nothing")
            if replaces:
                assert jobs.run("run", str(folder / "old.jsonl"), *common).code == 0
            restore(self.saved, self.root)
        restore(self.root, self.saved)
        self.old = contents(self.root / "out") if replaces else None
        ended = jobs.run(*self.arguments)
        assert ended.code == 0, ended.words
        self.changes, self.new, self.left = ended.changes, contents(self.root / "out"), names(self.root)

    def is_as_a_reader_may_see_it(self) -> bool:
        """The output of before, or the new one."""
        out = self.root / "out"
        return (contents(out) if out.exists() else None) in (self.old, self.new)

    def try_at(self, change: int, fault: Fault) -> None:
        restore(self.root, self.saved)
        ended = self.jobs.run(*self.arguments, fault=fault, at=change)
        where = f"{fault} at change {change} of {self.changes}"
        assert self.is_as_a_reader_may_see_it(), f"{where}: a reader sees a part"
        if fault in ("disk full", "input/output error"):
            assert ended.code >= 0, where
            assert "Traceback" not in ended.words, f"{where}: {ended.words}"
        again = self.jobs.run(*self.arguments)
        assert again.code == 0, f"{where}, and then: {again.words}"
        assert contents(self.root / "out") == self.new, f"{where}: the next run gives other bytes"
        assert names(self.root) == self.left, f"{where}: left after the next run: {names(self.root) ^ self.left}"


@pytest.mark.parametrize("fault", ["kill all", "kill one", "disk full", "input/output error"])
@pytest.mark.parametrize("replaces", [False, True], ids=["new", "overwrite"])
@pytest.mark.parametrize("runner", RUNNERS)
def test_no_fault_loses_or_shows_a_part(jobs: Jobs, runner: str, replaces: bool, fault: Fault) -> None:
    case = Case(jobs, runner, replaces)
    every = range(1, case.changes + 1)
    drawn = random.Random(f"{commit()} {runner} {replaces} {fault}").sample(every, min(DRAWN, len(every)))
    for change in every if os.environ.get("FAULTS") == "all" else drawn:
        case.try_at(change, fault)
