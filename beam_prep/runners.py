"""Chooses the runner of a job, and sets the options of each runner that the user has not set."""

import argparse
import contextlib
import json
import logging
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from apache_beam.options.pipeline_options import (
    DebugOptions,
    DirectOptions,
    FlinkRunnerOptions,
    PipelineOptions,
    PortableOptions,
    PrismRunnerOptions,
    SetupOptions,
    SparkRunnerOptions,
    StandardOptions,
    WorkerOptions,
)
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.version import __version__ as BEAM

from beam_prep import patches, processes, worker
from beam_prep.core.data.block import InputFile
from beam_prep.errors import ConfigError
from beam_prep.options import OPTIONS
from beam_prep.running import flink_page

log = logging.getLogger("beam_prep")

_COMPRESSED = 4
"""Bytes of content of a byte of a compressed file, about."""


def plain_size(inputs: Iterable[InputFile]) -> int:
    """Bytes of the contents of files, about."""
    return sum(file.size * (_COMPRESSED if file.compression else 1) for file in inputs)


class FlinkOptions(PipelineOptions):
    """An option of Beam's job server for Flink that Beam's Python does not know before it has asked the server."""

    @classmethod
    def _add_argparse_args(cls, parser: argparse.ArgumentParser) -> None:
        modes = ("PIPELINED", "PIPELINED_FORCED", "BATCH", "BATCH_FORCED")
        parser.add_argument("--execution_mode_for_batch", choices=modes, help="how Flink hands data on between tasks")


class JobOptions(PipelineOptions):
    """Our own options, as texts. A runner shows them with Beam's, for example in Dataflow's console."""

    @classmethod
    def _add_argparse_args(cls, parser: argparse.ArgumentParser) -> None:
        for option in OPTIONS:
            if not option.not_in_template:  # they are about the launch, and Beam has a `dry_run` of its own
                parser.add_argument(f"--{option.name}", help=option.help.replace("%", "%%"))


def choose_runner(
    options: PipelineOptions, inputs: Sequence[InputFile], prepare: worker.WorkerSetup | None = None
) -> tuple[Any, PipelineOptions, str]:
    """Chooses a runner. It is never one that would download something.

    `DirectRunner` means the in-process runner here: what Beam runs under that name would first download a binary.

    Args:
        options: Beam's options.
        inputs: the files of the job. Small ones are worked on in this process.
        prepare: the first work of forked worker processes: see `worker.environment`.

    Returns:
        the runner, its options, and a description for the log.

    Raises:
        ConfigError: an option that the runner needs is missing.
    """
    name = options.view_as(StandardOptions).runner
    if name not in (None, "DirectRunner", "FnApiRunner"):
        chosen = _set_defaults(options, str(name).rpartition(".")[2])
        words = ", ".join(f"{option}={value}" for option, value in chosen.items())
        return name, options, f"runner: {name}{f' with {words}' if words else ''}"
    direct = options.view_as(DirectOptions)
    given = _given(options)
    if name is None and "direct_running_mode" not in given and "direct_num_workers" not in given:
        cores = processes.cores()
        small = plain_size(inputs) <= worker.SMALL_INPUT
        direct.direct_running_mode = "in_memory" if small or cores == 1 else "multi_processing"
        direct.direct_num_workers = 1 if small else cores
    if "direct_running_mode" not in given and direct.direct_num_workers > 1:
        direct.direct_running_mode = "multi_processing"
    if direct.direct_running_mode == "in_memory":
        return FnApiRunner(), options, "runner: in-process"
    workers = direct.direct_num_workers = direct.direct_num_workers or processes.cores()
    if direct.direct_running_mode == "multi_threading":
        return FnApiRunner(), options, f"runner: {workers} worker threads"
    environment = worker.environment(workers, prepare)
    direct.direct_running_mode = "in_memory"  # else Beam would put its own command in place of ours
    return FnApiRunner(default_environment=environment), options, f"runner: {workers} worker processes"


_MOST_WORKERS = 16
"""More do not decompress the same file: the time that this takes is then most of all."""


def workers_of(options: PipelineOptions) -> int:
    """About how many workers a job will have, at most `_MOST_WORKERS`; 1 where that is not known.

    Args:
        options: as `choose_runner` gives them.
    """
    runner = str(options.view_as(StandardOptions).runner or "DirectRunner").rpartition(".")[2]
    if runner in ("DirectRunner", "FnApiRunner"):
        found = options.view_as(DirectOptions).direct_num_workers
    elif runner == "FlinkRunner":
        found = options.view_as(FlinkRunnerOptions).parallelism
    elif runner == "DataflowRunner":
        workers = options.view_as(WorkerOptions)
        found = workers.max_num_workers or workers.num_workers
    else:
        found = None
    return max(1, min(found or 1, _MOST_WORKERS))


_GROUPS: dict[str, tuple[type[PipelineOptions], ...]] = {
    "FlinkRunner": (FlinkRunnerOptions, FlinkOptions),
    "PrismRunner": (PrismRunnerOptions,),
    "SparkRunner": (SparkRunnerOptions,),
    "DataflowRunner": (WorkerOptions,),  # and of them those that are not in `_FOR_ALL`
    "DirectRunner": (DirectOptions,),
}
"""Options that one runner alone reads."""
_FOR_ALL = (
    "worker_harness_container_image",
    "sdk_container_image",
    "sdk_harness_container_image_overrides",
    "default_sdk_harness_log_level",
    "sdk_harness_log_level_overrides",
    "max_cache_memory_usage_mb",
    "element_processing_timeout_minutes",
)
_PORTABLE = ("FlinkRunner", "PrismRunner", "SparkRunner", "PortableRunner")


def without_effect(options: PipelineOptions, wait: bool = True) -> list[str]:
    """The options that were given and change nothing with this runner, a sentence for each group of them.

    Args:
        options: as the user gave them, before `choose_runner`.
        wait: as the user gave it.
    """
    name = str(options.view_as(StandardOptions).runner or "DirectRunner").rpartition(".")[2]
    name = "DirectRunner" if name == "FnApiRunner" else name
    if name not in {*_GROUPS, *_PORTABLE}:
        return []  # nobody knows what it reads
    given, found = _given(options), []
    for runner, groups in _GROUPS.items():
        other = [f"--{each}" for each in _names_of(groups) if each in given]
        if runner == name or not other or (name == "PortableRunner" and runner != "DirectRunner"):
            continue
        text = f"{' and '.join(other)} without effect: for {runner}, and this is {name}"
        if name == "DirectRunner" and "num_workers" in given and runner == "DataflowRunner":
            number = options.view_as(WorkerOptions).num_workers
            text += f"; for worker processes on this machine, type --direct_num_workers={number}"
        elif name == "DirectRunner":
            text += f"; type --runner={runner} to run there"
        found.append(text)
    other = [f"--{each}" for each in _names_of((PortableOptions,)) if each in given]
    if other and name not in _PORTABLE:
        found.append(f"{' and '.join(other)} without effect: for runners with a job server, and this is {name}")
    if name == "DirectRunner":
        direct = options.view_as(DirectOptions)
        alone = direct.direct_running_mode == "in_memory" and "direct_running_mode" in given
        if alone and direct.direct_num_workers > 1:
            found.append(
                f"--direct_num_workers={direct.direct_num_workers} without effect: --direct_running_mode=in_memory is "
                "one worker; leave that out, or type multi_processing"
            )
        if not wait:
            found.append(f"--wait=false without effect: {name} works in this process, and ends with it")
    return found


def _names_of(groups: tuple[type[PipelineOptions], ...]) -> list[str]:
    """The names of the options of a few groups."""
    known = argparse.ArgumentParser(add_help=False)
    for group in groups:
        group._add_argparse_args(known)
    return list(dict.fromkeys(action.dest for action in known._actions if action.dest not in _FOR_ALL))


@contextlib.contextmanager
def prepared_process(runner: Any, options: PipelineOptions) -> Iterator[None]:
    """Changes this process for a run by `choose_runner`'s runner, and changes it back: see `beam_prep.patches`."""
    if not isinstance(runner, FnApiRunner):
        yield
        return
    threads = options.view_as(DirectOptions).direct_running_mode == "multi_threading"
    with patches.frequent_sampling(), processes.single_threaded_tokenizers() if threads else contextlib.nullcontext():
        yield


def _given(options: PipelineOptions) -> set[str]:
    """Names of the options that were set. If a value is the default, only the flags tell that it was set."""
    return set(options.get_all_options(drop_default=True)) | {
        flag.lstrip("-").partition("=")[0] for flag in options._flags or ()
    }


def _set_defaults(options: PipelineOptions, runner: str) -> dict[str, Any]:
    """Sets the options that suit our jobs on this runner, unless the user has set them. Returns what was set."""
    wanted: dict[str, tuple[type[PipelineOptions], Any]] = {}
    if runner == "FlinkRunner":
        # Data is handed on when a stage is done: then a failure repeats that stage alone, and none before it.
        wanted["execution_mode_for_batch"] = FlinkOptions, "BATCH_FORCED"
        page = flink_page(options)
        if page is not None and (slots := _flink_slots(page)):
            # Beam's defaults are one slot, and one Python process for all slots of a machine.
            wanted["parallelism"] = FlinkRunnerOptions, slots[0]
            wanted["sdk_worker_parallelism"] = PortableOptions, slots[1]
    elif runner == "DataflowRunner":
        # By default 12 threads share one Python interpreter and hold 12 blocks.
        wanted["number_of_worker_harness_threads"] = DebugOptions, 1
        wanted["save_main_session"] = SetupOptions, False
    elif runner == "PrismRunner" and not options.view_as(PrismRunnerOptions).prism_location:
        portable = options.view_as(PortableOptions)
        if not portable.job_endpoint:
            raise ConfigError(
                "PrismRunner without --prism_location: Beam would download a program from GitHub. If you want that, "
                f"type --prism_location=https://github.com/apache/beam/releases/tag/v{BEAM}; else build it "
                f"(go install github.com/apache/beam/sdks/v2/go/cmd/prism@v{BEAM}) "
                "and type --prism_location=$HOME/go/bin/prism"
            )
    given = _given(options)
    chosen = {name: value for name, (_, value) in wanted.items() if name not in given}
    for name, value in chosen.items():
        setattr(options.view_as(wanted[name][0]), name, value)
    return chosen


def _flink_slots(page: str) -> tuple[int, int] | None:
    """(slots of a Flink cluster, slots of one of its TaskManagers); None if its REST interface does not tell."""
    url = f"{page}/overview"
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            overview = json.load(answer)
        slots, machines = int(overview["slots-total"]), int(overview["taskmanagers"])
    except (OSError, ValueError, KeyError) as error:
        log.warning("%s: %s; set --parallelism and --sdk_worker_parallelism, which are 1 otherwise", url, error)
        return None
    # A cluster that starts TaskManagers for each job has none before it.
    return (slots, -(-slots // machines)) if machines else None
