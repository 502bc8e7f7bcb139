"""The steps of inputs that have fields of their own: see `input.groups` of a config."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import apache_beam as beam

from beam_prep.core.reading.records import Records
from beam_prep.core.tokens.batch import Batch
from beam_prep.errors import ConfigError
from beam_prep.transforms.block_step import BlockStep, timed

Step = Callable[[Any], Any]


class ByGroup(BlockStep):
    """`Records` -> `Batch`: each block goes through the steps of the group that its file belongs to.

    One step for all groups: to part the blocks and to join them again would cost Beam several times their memory.

    Attributes:
        steps: of each group, in order; the last one of each makes a `Batch`.
    """

    steps: Sequence[Sequence[BlockStep]]

    gives = Batch

    def step(self) -> Callable[[Records], Batch]:
        for first, *_ in self.steps:
            first.releases = self.releases  # what the others are given is held by nobody else
        return partial(_by_group, groups=tuple(tuple(map(timed, each)) for each in self.steps))

    def expand(self, blocks: beam.PCollection[Any]) -> beam.PCollection[Any]:
        return blocks | "Blocks" >> beam.Map(self.step()).with_output_types(Batch)  # the steps note their times


def _by_group(records: Records, groups: tuple[tuple[Step, ...], ...]) -> Batch:
    source = records.origin.source
    if source.group is None or source.group >= len(groups):
        raise ConfigError(
            f"{source.path!r} is of no group: the config has input.groups, which names its files itself, for beam-prep "
            "run and Pipeline; in a chain of your own, write one Prepare for each group"
        )
    block: Any = records
    for step in groups[source.group]:
        block = step(block)
    made: Batch = block
    return made
