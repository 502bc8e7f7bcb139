"""What travels between the steps, and how Beam may encode it."""

import pickle
from typing import Any

from apache_beam import coders

from beam_prep.core.data.block import Block
from beam_prep.core.pieces.rendered import Rendered
from beam_prep.core.reading.records import Records
from beam_prep.core.tokens.batch import Batch


class BlockCoder(coders.Coder):
    """Pickle, with a size that costs nothing to tell.

    Between fused steps nothing is encoded, but Beam's size counter asks for sizes there, and a coder without
    `estimate_size` answers by encoding the block (105 ms a time).
    """

    def encode(self, value: Block) -> bytes:
        return pickle.dumps(value, protocol=5)

    def decode(self, encoded: bytes) -> Any:
        return pickle.loads(encoded)

    def estimate_size(self, value: Block) -> int:
        return value.origin.size

    def is_deterministic(self) -> bool:
        return False

    def to_type_hint(self) -> Any:
        return Block

    @classmethod
    def from_type_hint(cls, typehint: Any, registry: Any) -> "BlockCoder":
        return cls()

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(type(self))


for _element in (Records, Rendered, Batch):
    coders.registry.register_coder(_element, BlockCoder)
