"""A cached block of which a bit is wrong is made again or refused, wherever the bit lies; it never becomes data."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given

from beam_prep import errors
from beam_prep.data.receipts import BlockReceipt
from beam_prep.formats import cached_block as files
from beam_prep.formats.cached_block import REJECTS, ROW_INDEX, ROWS
from beam_prep.storage.stores import objects
from beam_prep.storage.stores.client import ANY
from beam_prep.storage.token_cache import TokenCache
from tests.storage.conftest import store as store
from tests.storage.memory import MemoryStore
from tests.test_resume import Jobs, cached, changed, chat

pytestmark = pytest.mark.long

ENDINGS = (ROWS, ROW_INDEX, REJECTS)
LABELS = changed(output__columns="labels", output__domain_key="topic")


def flip(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


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
        found = [repr(token_cache.receipt(self.name))]
        for domain, (_, rows, _) in enumerate(self.receipt.domains):
            for start, stop in ((0, rows), (rows // 3, rows // 2)):
                part = token_cache.rows(self.name, domain, start, stop)
                found.append(json.dumps({name: column.to_lists() for name, column in part.items()}))
        (row_index,) = token_cache.row_indexes([self.name])
        arrays = (row_index.line, row_index.domain, row_index.tokens, row_index.status)
        found += [repr([each.tolist() for each in arrays]), repr((row_index.outcomes, row_index.counters))]
        return [*found, repr(list(token_cache.rejects([self.name])))]


@pytest.fixture(scope="module")
def block(tmp_path_factory: pytest.TempPathFactory, tokenizer_path: str) -> Block:
    return Block(Jobs(tmp_path_factory.mktemp("block"), tokenizer_path), LABELS)


@given(ending=st.sampled_from(ENDINGS), place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_a_flipped_bit_of_a_block_is_found_or_read_by_nobody(block: Block, ending: str, place: float, bit: int) -> None:
    try:
        flip(block.paths[ending], 8 * int(place * len(block.whole[ending])) + bit)
        with pytest.raises(errors.TokenCacheError, match="damaged"):
            block.token_cache.find(block.digest)
        try:
            assert block.read() == block.seen
        except errors.TokenCacheError:
            assert not block.paths[ROWS].exists()
            assert block.token_cache.find(block.digest) is None
            with pytest.raises(errors.TokenCacheError, match=r"is gone, or was set aside, in .+: run again"):
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
                with pytest.raises(errors.TokenCacheError, match="damaged"):
                    block.token_cache.find(block.digest)
        block.paths[ending].unlink()
        if ending == ROWS:  # they are written last
            assert block.token_cache.find(block.digest) is None
        else:
            with pytest.raises(errors.TokenCacheError):
                block.token_cache.find(block.digest)
    finally:
        block.restore()


def test_rows_of_another_block_are_not_those_that_the_plan_knows(block: Block) -> None:
    rows = block.receipt.domains[0][1]
    with pytest.raises(errors.FormatError, match="does not have the rows"):
        files.read_rows(pa.memory_map(str(block.paths[ROWS])), block.name, 0, 0, rows + 1)
    with pytest.raises(errors.FormatError, match="does not have the rows"):
        files.read_rows(pa.memory_map(str(block.paths[ROWS])), block.name, len(block.receipt.domains), 0, 1)


def test_a_sound_file_of_another_block_is_made_again(tmp_path: Path, tokenizer_path: str) -> None:
    """A copy that went wrong passes every checksum of its bytes."""
    jobs = Jobs(tmp_path, tokenizer_path)
    jobs.write("a.jsonl", chat(10))
    jobs.write("b.jsonl", chat(10, first=20))
    jobs.run("a.jsonl", "b.jsonl", cache_dir=jobs.cache_dir)
    wanted = jobs.tree()
    for ending in ENDINGS:
        first, second = (path.with_name(path.name.removesuffix(ROWS) + ending) for path in cached(Path(jobs.cache_dir)))
        assert first.read_bytes() != second.read_bytes()
        shutil.copy(second, first)
        shutil.rmtree(tmp_path / "out")
        jobs.run("a.jsonl", "b.jsonl", cache_dir=jobs.cache_dir)
        assert jobs.tree() == wanted
        told = json.loads((tmp_path / "out" / "run.json").read_bytes())
        assert (told["blocks_reused"], told["blocks_damaged"]) == (1, 1)


def test_a_damaged_block_in_a_store_is_found_and_set_aside(block: Block, store: MemoryStore) -> None:
    token_cache = replace(block.token_cache, folder="mem://bucket/token_cache")
    path = f"{token_cache.folder}/{block.name}"
    for ending, whole in block.whole.items():
        objects.put(path + ending, whole)
    assert block.read(token_cache) == block.seen
    data = bytearray(block.whole[ROWS])
    data[len(data) // 2] ^= 8
    store.put(path + ROWS, bytes(data), ANY, None)
    with pytest.raises(errors.TokenCacheError, match="damaged"):
        token_cache.find(block.digest)
    with pytest.raises(errors.TokenCacheError, match="set aside"):
        block.read(token_cache)
    assert {found.path for found in store.listed(path)} == {f"{path}{each}.damaged" for each in ENDINGS}
    assert store.get(f"{path}{ROWS}.damaged", 0, len(data), None) == data
    assert token_cache.find(block.digest) is None


# Whole runs


@pytest.fixture
def jobs(tmp_path: Path, tokenizer_path: str) -> Jobs:
    return Jobs(tmp_path, tokenizer_path)
