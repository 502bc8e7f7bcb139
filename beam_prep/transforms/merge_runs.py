"""A shuffle: the steps between the plan of the runs and the plan of the shards."""

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


def sample_counts(counts: Iterable[SampleCounts]) -> SampleCounts:
    """The sum of the counts."""
    return sum(counts, SampleCounts())


def run_counts(counts: Iterable[RunCounts]) -> RunCounts:
    """The sum of the counts."""
    return sum(counts, RunCounts())


def survey(group: RunGroup, arranger: Arranger) -> Iterable[SampleCounts]:
    """The blocks of a run -> number of tokens for each sample key, if there is a mix."""
    arranger.token_cache.options.activate()
    if group.runs.parts.wanted:
        yield arranger.survey(group)


def make_run(group: RunGroup, counts: SampleCounts, arranger: Arranger) -> RunCounts:
    """The blocks of a run -> a file with their rows, sorted; returns its counts."""
    arranger.token_cache.options.activate()
    return arranger.write_run(group, counts.limits(group.runs.parts))


def second_level(plan: Plan, counts: RunCounts) -> Iterable[tuple[Runs, int, int]]:
    """The plan -> the merges of the second level, when all runs are written."""
    assert plan.runs is not None
    if counts.runs != plan.runs.runs:
        raise EngineError(f"the runner gave {counts.runs} runs of {plan.runs.runs} that were planned: run again")
    for group, wide in plan.runs.tasks():
        yield plan.runs, group, wide


def merge_runs(task: tuple[Runs, int, int], arranger: Arranger) -> int:
    """Merges a wide range of keys of some runs."""
    arranger.token_cache.options.activate()
    arranger.merge_runs(*task)
    return 1


def plan_shards(
    plan: Plan, samples: SampleCounts, counts: RunCounts, merged: int, arranger: Arranger, publisher: Publisher
) -> Iterable[Any]:
    """The plan -> the shards to write, and (tagged `plan`) the plan with these shards, for `publish`."""
    arranger.token_cache.options.activate()
    runs = plan.runs
    assert runs is not None
    tasks = sum(1 for _ in runs.tasks())
    if merged != tasks:
        raise EngineError(f"the runner merged {merged} ranges of runs of {tasks} that were planned: run again")
    shards = MergedShards.of(runs, counts, samples.limits(runs.parts))
    keys = ShardKeys.of_job(arranger, publisher.formats, publisher.layout, plan.columns)
    if publisher.problem(plan) is None:
        plans = (dataclasses.replace(shard, cut=plan.cut) for shard in shards.plans())
        yield from keyed(plans, keys, publisher.earlier())
    plan = with_mix(plan, shards.mixed)
    yield beam.pvalue.TaggedOutput("plan", plan.with_shards(shards.shards_of, runs.compose.splits))


def merge_shards(
    plans: beam.PCollection[Plan], groups: beam.PCollection[RunGroup], arranger: Arranger, publisher: Publisher
) -> Any:
    """The plans of a job, and the blocks of its runs -> the shards to write, and the plans with these shards.

    Args:
        plans: the plan, which does not know its shards yet.
        groups: a `RunGroup` for each run.
        arranger: see `Arranger`.
        publisher: of the output.
    """
    groups = groups | "SpreadRuns" >> beam.Reshuffle()
    samples = beam.pvalue.AsSingleton(
        groups | "Survey" >> beam.FlatMap(survey, arranger) | "Samples" >> beam.CombineGlobally(sample_counts)
    )
    counts = beam.pvalue.AsSingleton(
        groups | "Runs" >> beam.Map(make_run, samples, arranger) | "Counts" >> beam.CombineGlobally(run_counts)
    )
    merged = beam.pvalue.AsSingleton(
        plans
        | "SecondLevel" >> beam.FlatMap(second_level, counts)
        | "SpreadMerges" >> beam.Reshuffle()
        | "Merge" >> beam.Map(merge_runs, arranger)
        | "Merged" >> beam.CombineGlobally(sum)
    )
    shards = beam.FlatMap(plan_shards, samples, counts, merged, arranger, publisher)
    return plans | "Shards" >> shards.with_outputs("plan", main="work")
