"""Runs nightly refreshes of a small data set and kills a third of them. Each output must equal a run from scratch.

    python benchmarks/soak.py --markdown docs/soak.md
    python benchmarks/soak.py --keep_versions 3 --markdown docs/soak.md

Each night some input files grow, change, are removed or added. Then the job runs with the token cache of earlier
nights, over the output of the night before. In a third of the nights all its processes are killed at a random change of
a file (with `tests/faults/harness.py`, which needs a C compiler), and it runs again. A reader reads the output all the
time. The exit code is 1 if there was a problem.
"""

import argparse
import contextlib
import json
import os
import random
import re
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from _measure import ROOT
from _page import machine, shown, table, write_markdown

sys.path.insert(0, str(ROOT))

from tests.faults.harness import Jobs, contents

CONFIG = {
    "input": {"sections": [{"field": "messages", "action": "$role", "template": True}]},
    "mask": {"assistant": "train"},
    "output": {"storage_format": ["bin", "tfrecord"], "domain_key": "topic", "max_tokens_per_shard": 20_000},
}
FILES = 20
WORDS = [
    "how",
    "far",
    "is",
    "it",
    "from",
    "here",
    "to",
    "there",
    "and",
    "back",
    "again",
    "if",
    "one",
    "takes",
    "the",
    "long",
    "way",
    "round",
    "by",
    "night",
]
BLOCK = re.compile(r"[0-9a-f]{2}/[0-9a-f]{30}-[0-9a-f]{16}(\.[a-z]+)+|uses/[0-9a-f]{12}-[0-9a-f]{12}\.blocks")
BESIDE = re.compile(r"\.beam_prep(/out-[0-9a-f]{12}(/(lock|lock\.name|claim\.json\.lock))?)?")
"""Files that may stay beside the output when no job runs."""


class Inputs:
    """The input files, and their changes in a night."""

    def __init__(self, folder: Path, drawn: random.Random) -> None:
        self.folder, self._drawn = folder, drawn
        folder.mkdir()
        self._made = 0
        for _ in range(FILES):
            self._come()

    @property
    def files(self) -> list[Path]:
        return sorted(self.folder.iterdir())

    def change(self) -> list[str]:
        """Changes one to four files. Returns the kinds of changes."""
        done = []
        for _ in range(self._drawn.randint(1, 4)):
            ways = ["grow", "grow", "grow", "edit", "edit", "come", "go"]
            if len(self.files) <= FILES // 2:
                ways.remove("go")
            way = self._drawn.choice(ways)
            if way == "come":
                self._come()
            else:
                file = self._drawn.choice(self.files)
                if way == "go":
                    file.unlink()
                else:
                    (self._grow if way == "grow" else self._edit)(file)
            done.append(way)
        return done

    def _come(self) -> None:
        self._made += 1
        # A new file may be at any place in input order.
        path = self.folder / f"{self._drawn.randrange(1000):03d}-{self._made}.jsonl"
        path.write_text("".join(self._lines(self._drawn.randint(1, 300))))

    def _grow(self, file: Path) -> None:
        with file.open("a") as end:
            end.writelines(self._lines(self._drawn.randint(1, 100)))

    def _edit(self, file: Path) -> None:
        lines = file.read_text().splitlines(keepends=True) or [""]
        for _ in range(self._drawn.randint(1, 3)):
            lines[self._drawn.randrange(len(lines))] = "".join(self._lines(self._drawn.randint(0, 2)))
        file.write_text("".join(lines))

    def _lines(self, count: int) -> Iterator[str]:
        for _ in range(count):
            kind = self._drawn.random()
            if kind < 0.02:
                yield self._drawn.choice(["\n", '{"cut": \n', "[1]\n"])
                continue
            roles = ["user"] if kind < 0.04 else ["user", "assistant"] * self._drawn.randint(1, 3)
            talk = [{"role": role, "content": self._text()} for role in roles]
            yield json.dumps({"topic": self._drawn.choice(["near", "far", "Not here"]), "messages": talk}) + "\n"

    def _text(self) -> str:
        return " ".join(self._drawn.choices(WORDS, k=self._drawn.randint(1, 60)))


@dataclass
class Night:
    """The measurements of a refresh. Numbers of files are files of shards; megabytes are on the disk."""

    number: int
    did: list[str]
    kills: int = 0
    blocks: int = 0
    reused: int = 0
    shard_files: int = 0
    same_bytes: int = 0
    linked: int = 0
    input_mb: float = 0
    output_mb: float = 0
    cache_mb: float = 0
    memory_mb: float = 0
    wrong: list[str] = field(default_factory=list)


class Soak:
    """The job, night by night.

    Args:
        work: a folder for the inputs.
        jobs: runs the job; its root has output and token cache.
        seed: the seed of all random choices.
        keep_versions: `--keep_versions` of the job; 0: `--overwrite`.
    """

    def __init__(self, work: Path, jobs: Jobs, seed: int, keep_versions: int) -> None:
        self._jobs, self._versions = jobs, keep_versions
        self._drawn = random.Random(seed)
        self._inputs = Inputs(work / "in", self._drawn)
        self._work, self._root = work, jobs.root
        self._out, self._cache = jobs.root / "out", jobs.root / "token_cache"
        (work / "config.json").write_text(json.dumps(CONFIG))
        self._changes = 0
        self.looks = 0

    def night(self, number: int, kills: int) -> Night:
        """Runs a refresh, and compares it with a run from scratch."""
        night = Night(number, self._inputs.change() if number else ["start"])
        before = self._state()
        scratch = self._work / "scratch"
        wanted = self._from_scratch(scratch)
        if before is not None and before[0] == wanted:
            night.did.append("nothing that changes the output")
        with self._reader(night):
            for _ in range(kills if before is not None else 0):
                ended = self._refresh(self._drawn.randint(1, self._changes), night)
                night.kills += ended < 0
                seen = self._state()
                if before is None or seen is None or seen[0] not in (before[0], wanted):
                    night.wrong.append("after a kill a reader sees neither the old output nor the new one")
            if code := self._refresh(0, night):
                night.wrong.append(f"exit code {code}: {(self._work / 'stderr').read_text()[-300:]!r}")
        after = self._state()
        if after is None or after[0] != wanted:
            night.wrong.append(f"not as from scratch: {_differences({} if after is None else after[0], wanted)}")
        night.wrong += self._left()
        self._measure(night, before, after)
        return night

    def _job(self, output: Path, *options: str) -> list[str]:
        return [
            *("run", str(self._inputs.folder / "*.jsonl"), "-o", str(output), "-c", str(self._work / "config.json")),
            *("--tokenizer_path", str(ROOT / "examples" / "tokenizer"), "--block_bytes", "65536"),
            *("--max_reject_rate", "1", "--max_no_loss_rate", "1", *options),
        ]

    def _from_scratch(self, output: Path) -> dict[str, str]:
        ended = self._jobs.run(*self._job(output, "--overwrite"))
        if ended.code:
            raise SystemExit(f"the run from scratch failed: {ended.words}")
        return contents(output)

    def _refresh(self, kill_at: int, night: Night) -> int:
        keeps = ["--keep_versions", str(self._versions)] if self._versions else ["--overwrite"]
        workers = ["--direct_num_workers=2"] if self._drawn.random() < 0.25 else []
        arguments = self._job(self._out, "--cache_dir", str(self._cache), *keeps, *workers)
        ended = self._jobs.run(*arguments, fault="kill all" if kill_at else "none", at=kill_at)
        if not kill_at:
            self._changes = ended.changes
        night.memory_mb = max(night.memory_mb, ended.memory / 1e6)
        return ended.code

    @property
    def _current(self) -> Path:
        return self._out / "latest" if self._versions else self._out

    def _state(self) -> tuple[dict[str, str], dict[str, tuple[int, int]]] | None:
        """(path -> digest, path -> inode and time) of the files of the output; None without an output."""
        folder = Path(os.path.realpath(self._current))
        if not (folder / "manifest.json").exists():
            return None
        files = contents(folder)
        found = {name: (folder / name).stat() for name in files}
        return files, {name: (stat.st_ino, stat.st_mtime_ns) for name, stat in found.items()}

    @contextmanager
    def _reader(self, night: Night) -> Iterator[None]:
        """Reads the output until the context ends. Problems are added to `night`."""
        if self._state() is None:
            yield
            return
        ended, gaps = threading.Event(), Counter[str]()

        def look() -> None:
            while not ended.wait(0.005):
                self.looks += 1
                if problem := self._look():
                    gaps[problem] += 1

        thread = threading.Thread(target=look)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            night.wrong += [f"a reader {count} times: {problem}" for problem, count in gaps.items()]

    def _look(self) -> str:
        folder = Path(os.path.realpath(self._current))
        try:
            manifest = json.loads((folder / "manifest.json").read_bytes())
            # Without versions the files of a replaced output may be removed during a look.
            if self._versions and (incomplete := _incomplete(folder, manifest)):
                return f"{incomplete} is not there"
        except (OSError, ValueError) as error:
            return f"found no manifest ({type(error).__name__})"
        return ""

    def _left(self) -> Iterator[str]:
        """Problems of files that should not be left."""
        beside = [path.relative_to(self._root).as_posix() for path in self._root.rglob("*")]
        of_cache = [
            name.removeprefix("token_cache/")
            for name in beside
            if name.startswith("token_cache/") and (self._root / name).is_file()
        ]
        others = [name for name in beside if name.split("/")[0] not in ("out", "token_cache")]
        for what, left in (
            ("beside the output", [name for name in others if not BESIDE.fullmatch(name)]),
            ("in the token cache", [name for name in of_cache if not BLOCK.fullmatch(name)]),
        ):
            if left:
                yield f"left {what}: {len(left)}, as {left[0]}"
        if self._versions:
            hidden = [path.name for path in self._out.iterdir() if path.name.startswith(".")]
            if hidden:
                yield f"left in the output: {hidden}"
            kept = [
                path for path in self._out.iterdir() if path.is_dir() and path.name[0] != "." and path.name != "latest"
            ]
            if len(kept) > self._versions:
                yield f"{len(kept)} versions, wanted at most {self._versions}"
            for path in kept:
                if _incomplete(path, json.loads((path / "manifest.json").read_bytes())):
                    yield f"the version {path.name} is not complete"

    def _measure(self, night: Night, before: Any, after: Any) -> None:
        if after is not None:
            run = json.loads((self._current / "run.json").read_bytes())
            manifest = json.loads((self._current / "manifest.json").read_bytes())
            shards = [file["path"] for shard in manifest["shards"] for file in shard["files"]]
            night.blocks, night.reused = run["blocks"], run["blocks_reused"]
            night.shard_files = len(shards)
            if before is not None:
                night.same_bytes = sum(before[0].get(name) == after[0][name] for name in shards)
                night.linked = sum(before[1].get(name) == after[1][name] for name in shards)
        night.input_mb, night.output_mb, night.cache_mb = map(_disk, (self._inputs.folder, self._out, self._cache))


def _incomplete(folder: Path, manifest: dict[str, Any]) -> str | None:
    """The first file of the manifest that is missing or has another size."""
    of_shards = [file for shard in manifest["shards"] for file in shard["files"]]
    for file in [*of_shards, *manifest["rejects"], *manifest["files"]]:
        path = folder / file["path"]
        if not path.is_file() or path.stat().st_size != file["bytes"]:
            return str(file["path"])
    return None


def _differences(found: dict[str, str], wanted: dict[str, str]) -> str:
    names = sorted(name for name in {*found, *wanted} if found.get(name) != wanted.get(name))
    return f"{len(names)} files, as {', '.join(names[:3])}"


def _disk(folder: Path) -> float:
    """MB of a folder on the disk. A file with several links counts once."""
    found = {stat.st_ino: stat.st_blocks * 512 for path in folder.rglob("*") for stat in [path.lstat()]}
    return sum(found.values()) / 1e6


def report(nights: Sequence[Night], asked: int, looks: int, seed: int, keep_versions: int, seconds: float) -> str:
    """The report, as Markdown."""
    refreshes = nights[1:]
    did = Counter(way for night in refreshes for way in night.did)
    wrong = [f"night {night.number}: {problem}" for night in nights for problem in night.wrong]
    files, same, linked = (sum(getattr(night, name) for night in refreshes) for name in _SUMS)
    command = f"python benchmarks/soak.py --refreshes {asked} --seed {seed}"
    command += f" --keep_versions {keep_versions}" if keep_versions else ""
    lines = [
        machine(),
        f"    {shown(command)} --markdown docs/soak.md",
        table(
            ["seen", "count"],
            [
                ["refreshes", f"{len(refreshes)}" + (f" of {asked}: interrupted" if len(refreshes) < asked else "")],
                ["input files: " + ", ".join(f"{way} {count}" for way, count in sorted(did.items())), ""],
                ["refreshes that were killed", f"{sum(night.kills > 0 for night in refreshes)}"],
                ["kills, all processes of the job", f"{sum(night.kills for night in refreshes)}"],
                ["refreshes that differ from a run from scratch", f"{_count(refreshes, 'not as')}"],
                ["looks of a reader", f"{looks:,}"],
                ["refreshes in which a reader saw no complete output", f"{_count(refreshes, 'a reader', 'after a')}"],
                [
                    "refreshes after which something was left beside the output, or hidden in it",
                    f"{_count(refreshes, 'left beside', 'left in the output')}",
                ],
                [
                    "refreshes after which something was left in the token cache",
                    f"{_count(refreshes, 'left in the token cache')}",
                ],
                ["files of shards", f"{files:,}"],
                ["of these, with the bytes of the night before", f"{same:,}"],
                ["of these, hard links to the file of the night before", f"{linked:,}"],
                ["of these, written again", f"{files - linked:,}"],
                ["seconds", f"{seconds:,.0f}"],
            ],
            left=(0,),
        ),
        table(
            [
                "night",
                "input MB",
                "blocks",
                "reused",
                "shard files",
                "same bytes",
                "linked",
                "output MB",
                "token cache MB",
                "largest process MB",
            ],
            [_row(night) for night in nights if night.number % max(1, len(refreshes) // 10) == 0],
            left=(),
        ),
        "\n".join(["Wrong:", "", *(f"* {line}" for line in wrong[:20])]) if wrong else "Nothing was wrong.",
    ]
    if len(wrong) > 20:
        lines.append(f"And {len(wrong) - 20} more.")
    return "\n\n".join(lines)


_SUMS = ("shard_files", "same_bytes", "linked")


def _count(nights: Sequence[Night], *begins: str) -> int:
    return sum(any(problem.startswith(begins) for problem in night.wrong) for night in nights)


def _row(night: Night) -> list[str]:
    counts = [f"{getattr(night, name):,}" for name in ("blocks", "reused", *_SUMS)]
    return [
        f"{night.number}",
        f"{night.input_mb:.1f}",
        *counts,
        *(f"{getattr(night, name):.1f}" for name in ("output_mb", "cache_mb")),
        f"{night.memory_mb:.0f}",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--refreshes", type=int, default=200)
    parser.add_argument("--seed", type=int, default=16)
    parser.add_argument("--keep_versions", type=int, default=0, help="run with --keep_versions N; default: --overwrite")
    parser.add_argument("--markdown", type=Path, help="write the report into this page")
    given = parser.parse_args()
    began = time.monotonic()
    nights = []
    with tempfile.TemporaryDirectory(prefix="soak-", ignore_cleanup_errors=True) as folder:
        work = Path(folder)
        (work / "root").mkdir()
        with Jobs(work / "root", work) as jobs:
            soak = Soak(work, jobs, given.seed, given.keep_versions)
            drawn = random.Random(given.seed)
            killed = set(drawn.sample(range(1, given.refreshes + 1), -(-given.refreshes // 3)))
            with contextlib.suppress(KeyboardInterrupt):  # then the report covers the nights so far
                for number in range(given.refreshes + 1):
                    night = soak.night(number, drawn.choice([1, 1, 1, 2]) if number in killed else 0)
                    nights.append(night)
                    print(f"{time.monotonic() - began:.0f} s: {night}", file=sys.stderr, flush=True)
    text = report(nights, given.refreshes, soak.looks, given.seed, given.keep_versions, time.monotonic() - began)
    print(text)
    if given.markdown is not None:
        write_markdown(given.markdown, "versions" if given.keep_versions else "overwrite", text)
    return int(any(night.wrong for night in nights))


if __name__ == "__main__":
    sys.exit(main())
