"""Runs that end early, come again, or meet what others left: nothing is done twice, nothing is lost or mixed up;
a cached block of which a bit is wrong is made again or refused, and never becomes data."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given

from beam_prep.errors import ConfigError, FormatError, OutputError, RunError, TokenCacheError
from beam_prep.formats import cached_block as files
from beam_prep.formats.cached_block import ROW_INDEX, ROWS
from beam_prep.shards.receipts import BlockReceipt
from beam_prep.storage import stores
from beam_prep.storage.stores import ANY
from beam_prep.storage.token_cache import TokenCache
from tests.conftest import (
    ROOT,
    TOKENIZER_PATH,
    Command,
    Folders,
    chat_config,
    flip,
    run_job,
    run_of,
    says,
    tree,
    words_of,
)
from tests.storage.conftest import store as store
from tests.storage.memory import MemoryStore

pytestmark = pytest.mark.long

KB = 1 << 10
OUTPUT = {"storage_format": ["bin", "tfrecord"], "domain_key": "topic", "max_tokens_per_shard": 20_000}
CONFIG = chat_config(True, output=OUTPUT)


def changed(**changes: Any) -> dict[str, Any]:
    """CONFIG with other values: `output__domain_key="x"`."""
    config = chat_config(True, output=OUTPUT)
    for path, value in changes.items():
        part, _, key = path.partition("__")
        config[part] = config.get(part, {}) | {key: value} if key else value
    return config


def chat(count: int, topic: str = "one", first: int = 0) -> bytes:
    """About 1 KB a record; every tenth line is broken."""
    lines = []
    for number in range(first, first + count):
        question, answer = "how far is it? " * 20, "it is not far. " * 30
        talk = says(user=f"Question {number}: {question}", assistant=f"Answer {number}: {answer}")
        lines.append(json.dumps({"topic": topic, "messages": talk}).encode())
        if number % 10 == 0:
            lines.append(b'{"number": %d, ' % number)
    return b"\n".join(lines) + b"\n"


class Jobs:
    """Runs jobs in one folder, in this process; small blocks, so that 64 KB of input is a block."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cache_dir = str(folder / "token_cache")

    def write(self, name: str, data: bytes) -> Path:
        path = self.folder / name
        path.write_bytes(data)
        return path

    def run(self, *names: str, output: str = "out", config: dict[str, Any] = CONFIG, **options: Any) -> Any:
        tokenizer = options.pop("tokenizer_path", TOKENIZER_PATH)
        given = {"block_bytes": 64 * KB, "max_reject_rate": 0.2, **options}
        return run_job(config, [self.folder / name for name in names], self.folder / output, tokenizer, **given)

    def tree(self, output: str = "out") -> dict[str, bytes]:
        return tree(self.folder / output)

    def told(self) -> dict[str, Any]:
        """What `run.json` says of the last run."""
        return run_of(self.folder / "out")


@pytest.fixture
def jobs(tmp_path: Path) -> Jobs:
    return Jobs(tmp_path)


def cached(folder: Path) -> list[Path]:
    """The blocks that are whole: their rows are written last."""
    return [path for path in folder.rglob("*.arrow") if path.name.count(".") == 1]


# The token cache


def test_blocks_of_a_failed_launch_go_although_the_next_has_a_cache(jobs: Jobs) -> None:
    jobs.write("a.jsonl", chat(20))
    with pytest.raises(RunError):
        jobs.run("a.jsonl", max_reject_rate=0.0)
    beside = jobs.folder / ".beam_prep"
    assert cached(beside)
    jobs.run("a.jsonl", cache_dir=jobs.cache_dir)
    assert not cached(beside)
    assert cached(Path(jobs.cache_dir))


def test_of_a_file_that_grew_only_the_end_is_new(jobs: Jobs) -> None:
    data = chat(150)
    jobs.write("a.jsonl", data)
    jobs.run("a.jsonl", cache_dir=jobs.cache_dir)
    jobs.write("a.jsonl", data + chat(60, "more", first=500))
    jobs.run("a.jsonl", cache_dir=jobs.cache_dir, overwrite=True)
    assert jobs.told()["blocks_reused"] == len(data) // (64 * KB)
    jobs.run("a.jsonl", output="scratch")
    assert jobs.tree() == jobs.tree("scratch")


def test_the_same_bytes_in_two_files_are_tokenised_once_and_counted_twice(jobs: Jobs) -> None:
    for name in ("a.jsonl", "b.jsonl"):
        jobs.write(name, chat(150))
    ledger = jobs.run("a.jsonl", "b.jsonl").manifest["ledger"]
    assert jobs.told()["blocks_reused"] == jobs.told()["blocks"] / 2
    assert (ledger["kept"], ledger["rejected"]) == (300, {"bad_json": 30})
    rejects = [json.loads(line) for line in jobs.tree()["rejects/rejects-00000.jsonl"].splitlines()]
    assert [Path(entry["file"]).name for entry in rejects] == ["a.jsonl"] * 15 + ["b.jsonl"] * 15
    assert [entry["line"] for entry in rejects[:15]] == [entry["line"] for entry in rejects[15:]]


# An output that is there already


def state(folder: Path) -> dict[str, tuple[int, int, int]]:
    """inode, change time and size of everything below a folder, and of itself."""
    paths = [folder, *folder.rglob("*")]
    return {str(path): (path.stat().st_ino, path.stat().st_ctime_ns, path.stat().st_size) for path in paths}


def test_the_same_job_again_does_nothing_and_says_so(jobs: Jobs, command: Command) -> None:
    source = jobs.write("a.jsonl", chat(20))
    jobs.run("a.jsonl")
    before = state(jobs.folder / "out")
    words = ["run", source, "-o", jobs.folder / "out", *words_of(CONFIG, jobs.folder)]
    for options in ([], ["--overwrite"], ["--block_bytes", "131072"]):
        said = command(*words, "--max_reject_rate", "0.2", *options)
        assert said == f"{jobs.folder}/out is up to date: nothing to do\n"
    assert state(jobs.folder / "out") == before


def test_the_output_of_another_job_is_refused_and_left_alone(jobs: Jobs) -> None:
    data = chat(20)
    path = jobs.write("a.jsonl", data)
    jobs.run("a.jsonl")
    before, stamp = state(jobs.folder / "out"), path.stat().st_mtime
    job_of: dict[str, tuple[bytes, dict[str, Any]]] = {
        "a longer input": (data + chat(1), {}),
        "an input of the same size and time": (data.replace(b"Question 7", b"Question 8"), {}),
        "a config": (data, {"config": changed(preprocessing__max_items=5)}),
        "a tokenizer": (data, {"tokenizer_path": ROOT / "tests/material/tokenizers/byte_bpe"}),
    }
    for about, (content, options) in job_of.items():
        jobs.write("a.jsonl", content)
        os.utime(path, (stamp, stamp))
        with pytest.raises(
            OutputError, match="holds an output of other inputs or settings, or a damaged one: choose another -o"
        ):
            jobs.run("a.jsonl", **options)
        assert state(jobs.folder / "out") == before, about


def test_an_output_that_lost_a_file_is_mended_by_overwriting(jobs: Jobs) -> None:
    """The same job again: what is there has the right manifest, and is not whole."""
    jobs.write("a.jsonl", chat(20))
    jobs.run("a.jsonl")
    whole = jobs.tree()
    next((jobs.folder / "out").rglob("*.bin")).unlink()
    with pytest.raises(OutputError, match="--overwrite"):
        jobs.run("a.jsonl")
    assert not jobs.run("a.jsonl", overwrite=True).up_to_date
    assert jobs.tree() == whole


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("out/notes.txt", "mine"),
        ("out/manifest.json", '{"manifest_version": 3, "name": "x"}'),  # of a browser's extension
        ("out/manifest.json", '{"manifest_version": 1, "inputs": [], "ledger": {}, "shards": [], "rejects": []}'),
        ("out/manifest.json/x", ""),
        ("out/.git/config", ""),
        ("out", "a file"),
    ],
)
def test_what_is_foreign_is_refused_even_with_overwrite(name: str, text: str, jobs: Jobs) -> None:
    jobs.write("a.jsonl", chat(5))
    path = jobs.folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    before = state(jobs.folder / "out")
    with pytest.raises(OutputError, match=r"is no output of beam_prep|is damaged, or is another program"):
        jobs.run("a.jsonl", overwrite=True)
    assert state(jobs.folder / "out") == before


def test_an_output_in_which_another_lies_is_not_replaced(jobs: Jobs) -> None:
    jobs.write("a.jsonl", chat(5))
    jobs.run("a.jsonl")
    shutil.copytree(jobs.folder / "out", jobs.folder / "within")
    (jobs.folder / "within").rename(jobs.folder / "out" / "within")
    before = state(jobs.folder / "out")
    jobs.write("a.jsonl", chat(6))
    with pytest.raises(OutputError, match=r"and .*/out/within/.* is not of it: move it"):
        jobs.run("a.jsonl", overwrite=True)
    assert state(jobs.folder / "out") == before
    shutil.rmtree(jobs.folder / "out" / "within")
    for name in ("notes.txt", ".git"):
        mine = jobs.folder / "out" / name / "mine" if name == ".git" else jobs.folder / "out" / name
        mine.parent.mkdir(exist_ok=True)
        mine.write_text("Mine.")
        with pytest.raises(OutputError, match=rf"and {mine} is not of it: move it"):
            jobs.run("a.jsonl", overwrite=True)
        assert mine.read_text() == "Mine."
        mine.unlink()


@pytest.mark.parametrize("name", ["cache_dir", "staging"])
def test_folders_of_a_run_do_not_lie_in_its_output(name: str, jobs: Jobs) -> None:
    jobs.write("a.jsonl", chat(5))
    given: dict[str, Any] = {name: str(jobs.folder / "out" / "inside")}
    with pytest.raises(ConfigError, match=f"--{name} .*/out/inside lies in the output"):
        jobs.run("a.jsonl", **given)
    assert not (jobs.folder / "out").exists()


# A bit that is wrong in a cached block


ENDINGS = (ROWS, ROW_INDEX)
LABELS = changed(output__columns="labels")


class Block:
    """A block of two domains with rejects, and what its readers give."""

    def __init__(self, jobs: Jobs, config: dict[str, Any]) -> None:
        # The last lines are long, so that the rows take several chunks of checksums.
        long = b"".join(chat(1, "two", number).replace(b"not far. ", b"not far. " * 12) for number in range(1, 31))
        jobs.write("a.jsonl", chat(21) + long)
        jobs.run("a.jsonl", cache_dir=jobs.cache_dir, config=config, block_bytes=8 << 20)
        (rows,) = cached(Path(jobs.cache_dir))
        stem = rows.name.removesuffix(ROWS)
        self.token_cache = TokenCache(jobs.cache_dir, stem.partition("-")[2])
        self.digest = rows.parent.name + stem.partition("-")[0]
        self.name = self.token_cache.name(self.digest)
        self.paths = {ending: rows.with_name(stem + ending) for ending in ENDINGS}
        self.whole = {ending: path.read_bytes() for ending, path in self.paths.items()}
        found = self.token_cache.find(self.digest)
        assert found is not None
        self.receipt: BlockReceipt = found
        assert len(self.whole[ROWS]) > 2 * 64 * 1024
        self.seen = self.read()

    def restore(self) -> None:
        for ending, path in self.paths.items():
            path.write_bytes(self.whole[ending])

    def read(self, token_cache: TokenCache | None = None) -> list[str]:
        """All that a job reads of it."""
        token_cache = token_cache or self.token_cache
        found = list[str]()
        for domain, (_, rows, _) in enumerate(self.receipt.domains):
            for start, stop in ((0, rows), (rows // 3, rows // 2)):
                part = token_cache.rows(self.name, domain, slice(start, stop))
                found.append(json.dumps({name: column.to_lists() for name, column in part.items()}))
        (row_index,) = token_cache.row_indexes([self.name])
        arrays = {**row_index.rows, "status": row_index.status}
        found += [repr({name: each.tolist() for name, each in arrays.items()}), repr(row_index.outcomes)]
        return [*found, repr(list(token_cache.rejects([self.name])))]


@pytest.fixture(scope="module")
def block(tmp_path_factory: Folders) -> Block:
    return Block(Jobs(tmp_path_factory.mktemp("block")), LABELS)


@given(ending=st.sampled_from(ENDINGS), place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_a_flipped_bit_of_a_block_is_found_or_read_by_nobody(block: Block, ending: str, place: float, bit: int) -> None:
    try:
        flip(block.paths[ending], 8 * int(place * len(block.whole[ending])) + bit)
        with pytest.raises(TokenCacheError, match="damaged"):
            block.token_cache.find(block.digest)
        try:
            assert block.read() == block.seen
        except TokenCacheError:
            assert not block.paths[ROWS].exists()
            assert block.token_cache.find(block.digest) is None
            with pytest.raises(TokenCacheError, match=r"is gone, or was set aside, in .+: run again"):
                block.read()
    finally:
        block.restore()


@given(ending=st.sampled_from(ENDINGS), share=st.floats(0, 1, exclude_max=True), more=st.binary(max_size=40))
def test_a_file_that_is_cut_or_goes_on_is_found(block: Block, ending: str, share: float, more: bytes) -> None:
    data = block.whole[ending]
    try:
        for other in (data[: int(share * len(data))], data + more):
            block.paths[ending].write_bytes(other)
            if other != data:
                with pytest.raises(TokenCacheError, match="damaged"):
                    block.token_cache.find(block.digest)
        block.paths[ending].unlink()
        if ending == ROWS:  # they are written last
            assert block.token_cache.find(block.digest) is None
        else:
            with pytest.raises(TokenCacheError):
                block.token_cache.find(block.digest)
    finally:
        block.restore()


def test_rows_of_another_block_are_not_those_that_the_plan_knows(block: Block) -> None:
    rows = block.receipt.domains[0][1]
    with pytest.raises(FormatError, match="does not have the rows"):
        files.read_rows(pa.memory_map(str(block.paths[ROWS])), block.name, 0, slice(0, rows + 1))
    with pytest.raises(FormatError, match="does not have the rows"):
        files.read_rows(pa.memory_map(str(block.paths[ROWS])), block.name, len(block.receipt.domains), slice(0, 1))


def test_a_sound_file_of_another_block_is_made_again(jobs: Jobs) -> None:
    """A copy that went wrong passes every checksum of its bytes."""
    jobs.write("a.jsonl", chat(10))
    jobs.write("b.jsonl", chat(10, first=20))
    jobs.run("a.jsonl", "b.jsonl", cache_dir=jobs.cache_dir)
    wanted = jobs.tree()
    for ending in ENDINGS:
        first, second = (path.with_name(path.name.removesuffix(ROWS) + ending) for path in cached(Path(jobs.cache_dir)))
        assert first.read_bytes() != second.read_bytes()
        shutil.copy(second, first)
        shutil.rmtree(jobs.folder / "out")
        jobs.run("a.jsonl", "b.jsonl", cache_dir=jobs.cache_dir)
        assert jobs.tree() == wanted
        assert (jobs.told()["blocks_reused"], jobs.told()["blocks_damaged"]) == (1, 1)


def test_a_damaged_block_in_a_store_is_found_and_set_aside(block: Block, store: MemoryStore) -> None:
    token_cache = replace(block.token_cache, folder="mem://bucket/token_cache")
    path = f"{token_cache.folder}/{block.name}"
    for ending, whole in block.whole.items():
        stores.put(path + ending, whole)
    assert block.read(token_cache) == block.seen
    data = bytearray(block.whole[ROWS])
    data[len(data) // 2] ^= 8
    store.put(path + ROWS, bytes(data), ANY, None)
    with pytest.raises(TokenCacheError, match="damaged"):
        token_cache.find(block.digest)
    with pytest.raises(TokenCacheError, match="set aside"):
        block.read(token_cache)
    assert {found.path for found in store.listed(path)} == {f"{path}{each}.damaged" for each in ENDINGS}
    assert store.get(f"{path}{ROWS}.damaged", 0, len(data), None) == data
    assert token_cache.find(block.digest) is None
