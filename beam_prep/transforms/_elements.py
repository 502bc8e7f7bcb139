"""The coder of the blocks that go from step to step."""

import pickle
from typing import Any

from apache_beam import coders

from beam_prep.core.data.block import Block
from beam_prep.core.data.rendered import Rendered
from beam_prep.core.reading.records import Records
from beam_prep.core.tokens.batch import Batch


class BlockCoder(coders.Coder):
    """Pickle, with a cheap estimate of the size.

    Nothing is encoded between fused steps, but Beam's size counter wants sizes there, and a coder without
    `estimate_size` encodes the block for that (105 ms each time).
    """

    def encode(self, value: Block) -> bytes:
        return pickle.dumps(value, protocol=5)

    def decode(self, encoded: bytes) -> Any:
        return pickle.loads(encoded)

    def estimate_size(self, value: Block) -> int:
        return value.origin.bytes

    def is_deterministic(self) -> bool:
        return False

    def to_type_hint(self) -> Any:
        return Block

    @classmethod
    def from_type_hint(cls, typehint: Any, registry: Any) -> "BlockCoder":
        return cls()


for _element in (Records, Rendered, Batch):
    coders.registry.register_coder(_element, BlockCoder)
