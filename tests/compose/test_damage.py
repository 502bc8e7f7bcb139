"""Files between the token cache and the shards that are damaged, cut or gone are refused."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from beam_prep.errors import TokenCacheError
from beam_prep.shards.compose import RunSizes
from tests.compose.jobs import Blocks, Made, made
from tests.compose.naive import Job, Row

SIZES = RunSizes(run=60, bin=20, batches=12)
JOB = Job(150, 7, {"train": 0.6, "test": 0.4}, deduplicate=True)
FLIPS = 12


def rows(file: int) -> list[Row | None]:
    source = random.Random(file)

    def row(number: int) -> Row:
        digest = source.randrange(2**60)
        return Row(100 * file + number + 1, "ab"[number % 2], source.randint(1, 9), digest, (file, number % 52))

    return [row(number) for number in range(60)]


@pytest.fixture
def job(tmp_path: Path) -> tuple[Made, Path]:
    """A job whose shards are to be read."""
    blocks = Blocks([rows(0), rows(1), rows(2)], tmp_path, [[20, 20], [50], []])
    return made(blocks, JOB, SIZES), tmp_path


def read(found: Made) -> list[Any]:
    """What an output would have."""
    return [row for shard in found.shards for row in found.rows(shard)]


def damaged(file: Path, change: Callable[[bytes], bytes]) -> Iterator[None]:
    """Changes a file, and makes all of its folder what it was: a damaged block is set aside."""
    before = {each: each.read_bytes() for each in file.parent.iterdir() if each.is_file()}
    file.unlink()  # it is mapped
    file.write_bytes(change(before[file]))
    yield
    for each in file.parent.iterdir():
        if each.is_file() and (each not in before or each == file):
            each.unlink()
    for each, data in before.items():
        if not each.exists():
            each.write_bytes(data)


def flipped(source: random.Random) -> Callable[[bytes], bytes]:
    def change(data: bytes) -> bytes:
        place = source.randrange(len(data))
        return data[:place] + bytes([data[place] ^ (1 << source.randrange(8))]) + data[place + 1 :]

    return change


CHANGES: list[Callable[[random.Random], Callable[[bytes], bytes]]] = [
    flipped,
    lambda source: lambda data: data[: source.randrange(len(data))],
    lambda source: lambda data: data + b"\0",
    lambda source: lambda data: b"",
]


@pytest.mark.parametrize("kind", ["merged", "runs", "copies", "token_cache"])
def test_a_damaged_file_is_refused(kind: str, job: tuple[Made, Path]) -> None:
    """Shards are read of merged runs, the second level reads runs, views copies, and runs the token cache."""
    found, folder = job
    runs, wanted = found.runs, read(found)
    assert runs is not None
    assert runs.levels == 2
    source = random.Random(1)
    files = sorted((folder if kind == "token_cache" else folder / "scratch").glob(f"{kind}/**/*.arrow"))
    files = [file for file in files if not file.name.endswith((".rows.arrow", ".rejects.arrow"))]
    assert len(files) > 1
    for number in range(FLIPS):
        refused = 0
        for _ in damaged(source.choice(files), CHANGES[number % len(CHANGES)](source)):
            try:
                if kind == "merged":
                    read(found)
                elif kind == "runs":
                    for task in runs.tasks():
                        found.arranger.merge_runs(runs, *task)
                else:
                    for group in found.groups:
                        found.arranger.write_run(group, {})
            except TokenCacheError as error:
                refused += "run again" in str(error)
        assert refused
    for group in found.groups:
        found.arranger.write_run(group, {})
    assert read(found) == wanted


def test_files_that_are_gone_or_lie_in_the_place_of_another_are_refused(job: tuple[Made, Path]) -> None:
    found, folder = job
    one, other, *_ = sorted((folder / "scratch" / "merged").glob("*.arrow"))
    for _ in damaged(one, lambda data: other.read_bytes()):
        with pytest.raises(TokenCacheError, match="copy of another file"):
            read(found)
    for _ in damaged(one, lambda data: data):
        one.unlink()
        with pytest.raises(TokenCacheError, match=r"is gone: run again; blocks that are done are kept"):
            read(found)
