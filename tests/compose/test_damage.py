"""Files between the token cache and the shards that are damaged, cut, gone or another's are refused."""

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from beam_prep.errors import TokenCacheError
from beam_prep.shards.compose import RunSizes
from tests.compose.jobs import Blocks, made
from tests.compose.naive import Job, Row

SIZES = RunSizes(run=60, bin=20, batches=12)
JOB = Job(150, 7, {"train": 0.6, "test": 0.4}, deduplicate=True)


def rows(file: int) -> list[Row | None]:
    source = random.Random(file)

    def row(number: int) -> Row:
        digest = source.randrange(2**60)
        return Row(100 * file + number + 1, "ab"[number % 2], source.randint(1, 9), digest, (file, number % 52))

    return [row(number) for number in range(60)]


CHANGES: dict[str, Callable[[bytes, bytes], bytes]] = {
    "flipped": lambda data, other: data[:-300] + bytes([data[-300] ^ 1]) + data[-299:],
    "cut": lambda data, other: data[:-1],
    "longer": lambda data, other: data + b"\0",
    "empty": lambda data, other: b"",
    "another": lambda data, other: other,
}


@pytest.mark.parametrize("change", [*CHANGES, "gone"])
@pytest.mark.parametrize("kind", ["merged", "runs", "copies", "token_cache"])
def test_a_file_that_is_not_as_it_was_written_is_refused(kind: str, change: str, tmp_path: Path) -> None:
    """Shards are read of merged runs, the second level reads runs, views copies, and runs the token cache."""
    found = made(Blocks([rows(0), rows(1), rows(2)], tmp_path, [[20, 20], [50], []]), JOB, SIZES)
    runs = found.runs
    assert runs is not None
    assert runs.levels == 2
    files = sorted((tmp_path if kind == "token_cache" else tmp_path / "scratch").glob(f"{kind}/**/*.arrow"))
    files = [file for file in files if not file.name.endswith(".rows.arrow")]
    contents = [file.read_bytes() for file in files]
    assert len(files) > 1
    for file, data, other in zip(files, contents, [*contents[1:], contents[0]], strict=True):
        file.unlink()  # it is mapped
        if change != "gone":
            file.write_bytes(CHANGES[change](data, other))
    steps: list[Callable[[], object]] = [partial(found.arranger.write_run, group, {}) for group in found.groups]
    if kind == "merged":
        steps = [partial(found.rows, shard) for shard in found.shards]
    if kind == "runs":
        steps = [partial(found.arranger.merge_runs, runs, *task) for task in runs.tasks()]
    with pytest.raises(TokenCacheError, match="run again"):
        _ = [step() for step in steps]
