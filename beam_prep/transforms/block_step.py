"""The base of most PTransforms here: a pure function on each block."""

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from time import perf_counter
from typing import Any, ClassVar

import apache_beam as beam


@dataclass(frozen=True, slots=True)
class _Timed:
    """A step that notes how long it takes.

    Attributes:
        step, name: the step.
        releases: it is the only one that gets the blocks. Beam holds them until all steps behind it have ended, and a
            text or a table takes as much memory as the block's lines.
    """

    step: Callable[[Any], Any]
    name: str
    releases: bool

    def __call__(self, block: Any) -> Any:
        started = perf_counter()
        made = self.step(block)
        if made is block:
            # Others may get this block, too, and the next step may give up what it is given.
            made = block if self.releases else copy(block)
        elif self.releases:
            block.release()
        if made.receipt is None:  # otherwise it did nothing
            made.spent(self.name, perf_counter() - started)
        return made


def timed(transform: "BlockStep") -> Callable[[Any], Any]:
    """The function of a step, which notes how long it takes."""
    return _Timed(transform.step(), type(transform).__name__, transform.releases)


class BlockStep(beam.PTransform):
    """A PTransform that makes one block of each block.

    It does nothing but `step()`, so the same step runs without Beam: `transform.step()(block)`.

    Attributes:
        gives: the type of the blocks that it makes. Beam chooses their coder by this type.
        releases: no other step gets its blocks, so what they hold is given up when it has ended.
    """

    gives: ClassVar[type]
    releases = False

    def step(self) -> Callable[[Any], Any]:
        """The pure function (block) -> block. It can be pickled."""
        raise NotImplementedError

    def expand(self, blocks: beam.PCollection[Any]) -> beam.PCollection[Any]:
        # With a label: Beam's own would be the text of all arguments.
        return blocks | "Blocks" >> beam.Map(timed(self)).with_output_types(self.gives)
