"""A shuffle: the steps between the plan of the runs and that of the shards."""

import dataclasses
from collections.abc import Iterable
from typing import Any

import apache_beam as beam

from beam_prep.errors import EngineError
from beam_prep.shards.plan import Plan, with_mix
from beam_prep.shards.runs import MergedShards, RunCounts, RunGroup, Runs, SampleCounts
from beam_prep.storage.arrange import Arranger
from beam_prep.storage.publish import Publisher
from beam_prep.storage.reuse import ShardKeys, keyed


class _Sum(beam.CombineFn):
    """Adds up counts; of none it gives those of nothing."""

    def __init__(self, kind: type[Any]) -> None:
        self._kind = kind

    def create_accumulator(self) -> Any:
        return self._kind()

    def add_input(self, accumulator: Any, element: Any) -> Any:
        return accumulator + element

    def merge_accumulators(self, accumulators: Iterable[Any]) -> Any:
        return sum(accumulators, self._kind())

    def extract_output(self, accumulator: Any) -> Any:
        return accumulator


@dataclasses.dataclass(eq=False)
class _ArrangeFn(beam.DoFn):
    arranger: Arranger

    def setup(self) -> None:
        self.arranger.token_cache.options.activate()


class Survey(_ArrangeFn):
    """The blocks of a run -> how many tokens of a mix have which sample key."""

    def process(self, group: RunGroup) -> Iterable[SampleCounts]:
        if group.runs.parts.wanted:
            yield self.arranger.survey(group)


class MakeRun(_ArrangeFn):
    """The blocks of a run -> a file with their rows, sorted; and what it has."""

    def process(self, group: RunGroup, counts: SampleCounts) -> Iterable[RunCounts]:
        yield self.arranger.write_run(group, counts.limits(group.runs.parts))


class SecondLevel(beam.DoFn):
    """The plan -> what the second level merges, when all runs are there."""

    def process(self, plan: Plan, counts: RunCounts) -> Iterable[tuple[Runs, int, int]]:
        assert plan.runs is not None
        if counts.runs != plan.runs.runs:
            raise EngineError(f"the runner gave {counts.runs} runs of {plan.runs.runs} that were planned: run again")
        for group, wide in plan.runs.tasks():
            yield plan.runs, group, wide


class MergeRuns(_ArrangeFn):
    """Merges a wide range of keys of some runs."""

    def process(self, task: tuple[Runs, int, int]) -> Iterable[int]:
        self.arranger.merge_runs(*task)
        yield 1


@dataclasses.dataclass(eq=False)
class PlanShards(_ArrangeFn):
    """The plan -> the shards to write, and (tagged `plan`) the plan that has them, for Publish."""

    publisher: Publisher

    def process(self, plan: Plan, samples: SampleCounts, counts: RunCounts, merged: int) -> Iterable[Any]:
        runs = plan.runs
        assert runs is not None
        tasks = sum(1 for _ in runs.tasks())
        if merged != tasks:
            raise EngineError(f"the runner merged {merged} ranges of runs of {tasks} that were planned: run again")
        shards = MergedShards.of(runs, counts, samples.limits(runs.parts))
        publisher = self.publisher
        keys = ShardKeys.of_job(self.arranger, publisher.formats, publisher.layout, plan.columns)
        if publisher.problem(plan) is None:
            plans = (dataclasses.replace(shard, cut=plan.cut) for shard in shards.plans())
            yield from keyed(plans, keys, publisher.earlier())
        plan = with_mix(plan, shards.mixed)
        of_parts = shards.shards_of
        yield beam.pvalue.TaggedOutput("plan", plan.with_shards(of_parts, runs.compose.splits))


@dataclasses.dataclass(eq=False)
class MergeShards(beam.PTransform):
    """The plans of a job, and the blocks of its runs -> the shards to write, and the plans that have them.

    Attributes:
        groups: `RunGroup`, of a job with runs.
        arranger: see there.
        publisher: of the output.
    """

    groups: beam.PCollection[RunGroup]
    arranger: Arranger
    publisher: Publisher

    def __post_init__(self) -> None:
        super().__init__()

    def expand(self, plans: beam.PCollection[Plan]) -> Any:
        groups = self.groups | "Spread" >> beam.Reshuffle()
        samples = beam.pvalue.AsSingleton(
            groups
            | "Survey" >> beam.ParDo(Survey(self.arranger))
            | "Samples" >> beam.CombineGlobally(_Sum(SampleCounts))
        )
        counts = beam.pvalue.AsSingleton(
            groups
            | "Runs" >> beam.ParDo(MakeRun(self.arranger), samples)
            | "Counts" >> beam.CombineGlobally(_Sum(RunCounts))
        )
        merged = beam.pvalue.AsSingleton(
            plans
            | "SecondLevel" >> beam.ParDo(SecondLevel(), counts)
            | "SpreadMerges" >> beam.Reshuffle()
            | "Merge" >> beam.ParDo(MergeRuns(self.arranger))
            | "Merged" >> beam.CombineGlobally(sum)
        )
        shards = PlanShards(self.arranger, self.publisher)
        return plans | "Shards" >> beam.ParDo(shards, samples, counts, merged).with_outputs("plan", main="work")
