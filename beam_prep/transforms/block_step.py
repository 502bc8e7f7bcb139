"""The base of PTransforms that make one block from each block: a function, its settings and its coder."""

import dataclasses
import pickle
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any, ClassVar, dataclass_transform

import apache_beam as beam
from apache_beam import coders

from beam_prep.data.block import Block
from beam_prep.data.rendered import Rendered
from beam_prep.reading.records import Records
from beam_prep.tokens.batch import Batch


class BlockCoder(coders.Coder):
    """Pickle, with a cheap estimate of the size.

    Beam encodes nothing between fused steps, but its size counter needs sizes there. For a coder without
    `estimate_size`, it encodes the block to get the size (105 ms each time).
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


def timed(transform: "BlockStep") -> Callable[[Any], Any]:
    """The function of a step, which also notes its time."""
    return partial(_timed, transform.step(), type(transform).__name__)


def _timed(step: Callable[[Any], Any], name: str, block: Any) -> Any:
    started = perf_counter()
    made = step(block)
    if made is block:
        made = dataclasses.replace(block)  # other steps may get this block, too
    if made.receipt is None:  # with a receipt, the step did nothing
        made.spent(name, perf_counter() - started)
    return made


@dataclass_transform(eq_default=False)
class BlockStep(beam.PTransform):
    """A PTransform that makes one block from each block, with a function of the block and of settings.

    A subclass is a dataclass of its settings; `check` may check or change them. The transform only applies `step()`, so
    the same step runs without Beam:

    >>> from beam_prep.tokens.rows import pad
    >>> from beam_prep.transforms.block_step import BlockStep
    >>> class PadToEight(BlockStep):
    ...     multiple: int = 8
    ...     pad_id: int = 0
    ...     work, gives = pad, bp.Batch
    >>> batch = bp.FromTokens(bp.Output("ids", "ids", (), "mask"), bp.Tokenizer.load("examples/tokenizer")).step()(
    ...     bp.testing.records([{"ids": [7, 9], "mask": [0, 1]}])
    ... )
    >>> bp.testing.to_rows(PadToEight().step()(batch))[0]["ids"]
    [7, 9, 0, 0, 0, 0, 0, 0]

    Attributes:
        work: the function (block, settings by name) -> block.
        gives: the type of the resulting blocks, by which Beam chooses their coder.
    """

    work: ClassVar[Callable[..., Any]]
    gives: ClassVar[type]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        dataclasses.dataclass(eq=False)(cls)

    def __post_init__(self) -> None:
        super().__init__()
        self.check()

    def check(self) -> None:
        """Raises ValueError if a setting is wrong."""

    def settings(self) -> dict[str, Any]:
        """The arguments of the function, apart from the block."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def step(self) -> Callable[[Any], Any]:
        """The pure function (block) -> block. It can be pickled."""
        return partial(type(self).work, **self.settings())

    def expand(self, blocks: beam.PCollection[Any]) -> beam.PCollection[Any]:
        # With a label: Beam's default would be the text of all arguments.
        return blocks | "Blocks" >> beam.Map(timed(self)).with_output_types(self.gives)
