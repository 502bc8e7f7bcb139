"""Blocks stay where they are: between the steps of a process none is serialised."""

import json
from typing import Any

import pytest

from beam_prep.config import FORMAT_NAMES
from beam_prep.data.block import Block
from beam_prep.transforms.steps import BlockCoder
from tests.conftest import Patch, Run, chat_config, says

pytestmark = pytest.mark.long

CONFIG = chat_config(True, output={"storage_format": list(FORMAT_NAMES)})


@pytest.fixture
def serialised(monkeypatch: Patch) -> list[str]:
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


ROWS = [{"messages": says(user="a?", assistant="b!")}] * 30


def test_no_block_is_serialised_in_a_whole_run(serialised: list[str], run: Run, monkeypatch: Patch) -> None:
    """Beam's size counter looks at elements between fused steps, at the first ones for certain: 100 ms a look."""
    sizes: list[str] = []
    estimate = BlockCoder.estimate_size

    def size(self: BlockCoder, value: Block) -> int:
        sizes.append(type(value).__name__)
        return int(estimate(self, value))

    monkeypatch.setattr(BlockCoder, "estimate_size", size)
    result = run(CONFIG, b"".join(json.dumps(row).encode() + b" " * 10_000 + b"\n" for row in ROWS), block_bytes=65536)
    assert result.manifest["totals"]["rows"] == 30
    assert serialised == []
    assert set(sizes) == {"Records", "Rendered", "Batch"}  # it did look, and at elements of every zone
