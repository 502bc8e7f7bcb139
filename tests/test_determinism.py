"""The same bytes, whatever the block size, the workers and the number of tries; and blocks that stay where they are."""

import gzip
import hashlib
import json
from collections.abc import Callable
from typing import Any

import pytest

from beam_prep.config import FORMAT_NAMES, PipelineConfig
from beam_prep.data.block import Block
from beam_prep.pipeline import Pipeline
from beam_prep.transforms.block_step import BlockCoder
from tests.conftest import shared, tree

pytestmark = pytest.mark.long

CONFIG = {
    "input": {"sections": [{"field": "messages", "action": "$role", "template": True}]},
    "mask": {"assistant": "train"},
    "preprocessing": {"max_seq_len": 400},
    "output": {"storage_format": list(FORMAT_NAMES), "domain_key": "topic", "max_tokens_per_shard": 60_000},
}
TWO_PROCESSES = ("--direct_running_mode=multi_processing", "--direct_num_workers=2")
KB, MB = 1 << 10, 1 << 20

# Every so many lines one of these: rejects, drops, blanks, and what moves borders of blocks.
ODD_LINES = [
    b'{"messages": [',
    b"",
    b"[1, 2]",
    b'{"messages": null}',
    b'{"messages": [{"role": "user", "content": "nothing to train"}]}',
    b'{"messages": [{"role": "user"}]}',
    b"\xff\xfe",
    b'{"messages": "text"}',
    b" \t ",
    b'{"messages": [{"role": "user", "content": "' + b"a long line " * 12_000 + b'"}]}',
]


@pytest.fixture(scope="module")
def lines() -> list[bytes]:
    """About 4 MB of chat with domains, a line in 40 of another kind."""
    packed = shared("data", "chat_messages_sgd.jsonl.gz")
    with gzip.open(packed) as file:
        rows = [json.loads(line) for line in file.read(4 * MB).splitlines()[:-1]]
    made = []
    for number, row in enumerate(rows):
        topic = ["travel", "a/b", "Travel", None, 7][number // 3 % 5]
        made.append(json.dumps({"topic": topic, **row} if topic else row).encode())
        if number % 40 == 0:
            made.append(ODD_LINES[number // 40 % len(ODD_LINES)])
    return made


@pytest.fixture(scope="module")
def job(
    lines: list[bytes], tmp_path_factory: pytest.TempPathFactory, tokenizer_path: str
) -> Callable[..., tuple[dict[str, str], dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("determinism")
    whole = folder / "whole.jsonl"
    whole.write_bytes(b"\n".join(lines))  # no newline at the end

    def run(*options: str, block_bytes: int) -> tuple[dict[str, str], dict[str, Any]]:
        """(digest of every file but run.json, the manifest) of a run from scratch."""
        output = folder / f"out-{len(list(folder.iterdir()))}"
        limits: dict[str, Any] = {"max_reject_rate": 0.1, "max_no_loss_rate": 0.1, "block_bytes": block_bytes}
        job = Pipeline(PipelineConfig.from_dict(CONFIG), whole, output, tokenizer_path, **limits)
        result = job.run(["--runner=FnApiRunner", *options])
        told = json.loads((output / "run.json").read_text())
        assert told["blocks"] == -(-whole.stat().st_size // block_bytes)
        assert told["blocks_reused"] < told["blocks"] / 10  # ranges of the long lines are equal now and then
        assert ("2 worker processes" in told["how"]) == bool(options)
        assert result.manifest is not None
        return {name: hashlib.sha256(data).hexdigest() for name, data in tree(output).items()}, result.manifest

    return run


@pytest.fixture(scope="module")
def reference(job: Callable[..., Any]) -> dict[str, str]:
    digests, manifest = job(block_bytes=MB)
    ledger = manifest["ledger"]
    # All that could depend on blocks is there.
    assert set(manifest["domains"]) == {"travel", "a/b", "Travel", "__default__"}
    assert {shard["shard"] for shard in manifest["shards"]} >= {0, 1, 2, 3}
    assert ledger["rejected"].keys() >= {"bad_json", "invalid_utf8", "not_an_object", "wrong_type", "template_error"}
    assert ledger["dropped"].keys() >= {"empty", "rows_without_loss"}
    assert min(ledger["blank"], manifest["counters"]["truncated_rows"]) > 0
    return dict(digests)


@pytest.mark.parametrize(("options", "block_bytes"), [((), 64 * KB), (TWO_PROCESSES, 8 * MB)])
def test_the_bytes_do_not_depend_on_blocks_workers_or_the_run(
    options: tuple[str, ...], block_bytes: int, job: Callable[..., Any], reference: dict[str, str]
) -> None:
    assert job(*options, block_bytes=block_bytes)[0] == reference


# Blocks are not serialised in phase 1


@pytest.fixture
def serialised(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Notes whenever a block is encoded by its coder, or pickled by anybody."""
    seen: list[str] = []
    encode, reduce = BlockCoder.encode, Block.__reduce_ex__

    def encodes(self: BlockCoder, value: Block) -> bytes:
        seen.append(f"encode {type(value).__name__}")
        return encode(self, value)

    def reduces(self: Block, protocol: Any) -> Any:
        seen.append(f"pickle {type(self).__name__}")
        return reduce(self, protocol)

    monkeypatch.setattr(BlockCoder, "encode", encodes)
    monkeypatch.setattr(Block, "__reduce_ex__", reduces)
    return seen


ROWS = [{"messages": [{"role": "user", "content": "a?"}, {"role": "assistant", "content": "b!"}]}] * 30


def test_no_block_is_serialised_in_a_whole_run(
    serialised: list[str], run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beam's size counter looks at elements between fused steps, at the first ones for certain: 100 ms a look."""
    sizes: list[str] = []
    estimate = BlockCoder.estimate_size

    def size(self: BlockCoder, value: Block) -> int:
        sizes.append(type(value).__name__)
        return int(estimate(self, value))

    monkeypatch.setattr(BlockCoder, "estimate_size", size)
    result = run(
        CONFIG, b"".join(json.dumps(row).encode() + b" " * 10_000 + b"\n" for row in ROWS), block_bytes=64 * KB
    )
    assert result.manifest["totals"]["rows"] == 30
    assert serialised == []
    assert set(sizes) == {"Records", "Rendered", "Batch"}  # it did look, and at elements of every zone
