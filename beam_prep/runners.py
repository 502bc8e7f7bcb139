"""Runners: choose one and its options; the id, counters and end of its job; the error that a worker raised."""

import concurrent.futures
import contextlib
import io
import json
import logging
import os
import re
import shlex
import signal
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from apache_beam.options import pipeline_options as beams
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.runners.runner import PipelineState
from apache_beam.transforms.environments import SubprocessSDKEnvironment

from beam_prep import errors
from beam_prep.data.block import InputFile
from beam_prep.errors import BeamPrepError, ConfigError, EngineError
from beam_prep.process import lives, received_signal
from beam_prep.storage.files import plain_size

log = logging.getLogger("beam_prep")

SMALL_INPUT = 64_000_000
"""Bytes of input below which one process is faster than two, which must first start."""


class FlinkOptions(beams.PipelineOptions):
    """An option of Beam's Flink job server that Beam itself does not know."""

    @classmethod
    def _add_argparse_args(cls, parser: Any) -> None:
        parser.add_argument("--execution_mode_for_batch", help="how Flink hands data on between tasks")


def cores() -> int:
    """The number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class WorkerProcesses(FnApiRunner):
    """The local runner with Beam's worker processes. It notices a killed worker; Beam would wait forever.

    A shell starts each worker and notes its process id; `work` notes when it has ended well. Then Ctrl-C in a terminal
    reaches only the launcher. Tracebacks of workers are hidden, because the launcher reports the error.
    """

    def __init__(self) -> None:
        self._notes = tempfile.NamedTemporaryFile(prefix="beam_prep-workers-")  # noqa: SIM115
        # Otherwise the Rust tokenizers start a thread for each core in every worker.
        settings = "TOKENIZERS_PARALLELISM=${TOKENIZERS_PARALLELISM:-false} RAYON_NUM_THREADS=${RAYON_NUM_THREADS:-1}"
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)  # workers import what the launcher does
        notes = shlex.quote(self._notes.name)
        settings += f" PYTHONPATH={shlex.quote(path)} BEAM_PREP_NOTES={notes}"
        worker = f"{shlex.quote(sys.executable)} -P -c 'from {__name__} import work; work({os.getpid()})'"
        hidden = "" if log.isEnabledFor(logging.DEBUG) else "2> /dev/null"
        command = f"echo $$ >> {notes}; trap '' INT; export {settings}; exec {worker} {hidden}"
        super().__init__(default_environment=SubprocessSDKEnvironment.from_command_string(command))

    def run_pipeline(self, pipeline: Any, options: beams.PipelineOptions) -> Any:
        """See Beam's `FnApiRunner.run_pipeline`.

        Raises:
            EngineError: a worker was killed.
        """
        # In a thread, which can be abandoned with everything that Beam starts in it.
        done: concurrent.futures.Future[Any] = concurrent.futures.Future()

        def run() -> None:
            try:
                done.set_result(super(WorkerProcesses, self).run_pipeline(pipeline, options))
            except BaseException as error:  # the waiting thread raises it
                done.set_exception(error)

        held, killed = io.StringIO(), False
        screen = sys.stderr if log.isEnabledFor(logging.DEBUG) else held
        try:
            with self._notes, contextlib.redirect_stderr(screen):
                threading.Thread(target=run, daemon=True, name="beam_prep-run").start()
                try:
                    while not killed and not concurrent.futures.wait([done], _LOOK_EVERY).done:
                        killed = any(not lives(worker) for worker in self._workers())
                finally:
                    if not done.done():
                        for each in self._workers():
                            with contextlib.suppress(ProcessLookupError):
                                os.kill(each, signal.SIGKILL)
                        concurrent.futures.wait([done], _UNTIL_ENDED)
        finally:
            if not killed and received_signal() is None:  # else it is full of tracebacks of Beam's threads
                sys.stderr.write(held.getvalue())
        if not done.done():
            raise EngineError(DIED)
        error = done.exception()
        if killed and error is not None and raised_by_worker(error) is error:
            # The error is about the connection to the killed worker.
            raise EngineError(DIED) from error
        return done.result()

    def _workers(self) -> set[int]:
        """The process ids of the workers that have not ended well."""
        with open(self._notes.name) as file:
            notes = [int(line) for line in file if line.endswith("\n")]
        return {note for note in notes if note > 0 and -note not in notes}


def work(launcher: int) -> None:
    """Runs Beam's worker, and ends it with its launcher: Beam's worker alone would wait for minutes."""
    from apache_beam.runners.worker import sdk_worker_main

    def end_with_launcher() -> None:
        while os.getppid() == launcher:
            time.sleep(_LOOK_EVERY)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=end_with_launcher, daemon=True).start()
    sdk_worker_main.main(None)
    with open(os.environ["BEAM_PREP_NOTES"], "a") as file:
        file.write(f"-{os.getpid()}\n")


_LOOK_EVERY, _UNTIL_ENDED = 0.2, 3.0
"""Seconds between two checks of the other processes; seconds that Beam may take after they were killed."""


def choose_runner(options: beams.PipelineOptions, inputs: Sequence[InputFile]) -> "Job":
    """Chooses a runner. Never chooses one by itself that would download something.

    `DirectRunner` means the in-process runner: Beam's own runner of that name would first download a binary.

    Args:
        options: Beam's options.
        inputs: the files of the job. Small ones run in this process.

    Raises:
        ConfigError: a negative number of workers.
    """
    name = options.view_as(beams.StandardOptions).runner
    if _name_of(options) != "DirectRunner":
        chosen = _set_defaults(options, _name_of(options))
        words = ", ".join(f"{option}={value}" for option, value in chosen.items())
        return Job(name, options, f"runner: {name}{f' with {words}' if words else ''}")
    direct = options.view_as(beams.DirectOptions)
    given = _given(options)
    if name is None and "direct_running_mode" not in given and "direct_num_workers" not in given:
        direct.direct_num_workers = 1 if plain_size(inputs) <= SMALL_INPUT else cores()
    if direct.direct_num_workers < 0:
        found = direct.direct_num_workers
        raise ConfigError(f"--direct_num_workers is {found}, wanted 0 (one for each core) or more")
    if "direct_running_mode" not in given and direct.direct_num_workers != 1:
        direct.direct_running_mode = "multi_processing"
    if direct.direct_running_mode == "in_memory":
        return Job(FnApiRunner(), options, "runner: in-process")
    workers = direct.direct_num_workers = direct.direct_num_workers or cores()
    if direct.direct_running_mode == "multi_threading":
        return Job(FnApiRunner(), options, f"runner: {workers} worker threads")
    direct.direct_running_mode = "in_memory"  # otherwise Beam would replace the worker's command
    return Job(WorkerProcesses(), options, f"runner: {workers} worker processes")


_MOST_WORKERS = 16
"""Most workers for one file: with more, most of the time would go into decompressing it again."""


def workers_of(options: beams.PipelineOptions) -> int:
    """About how many workers a job will have, at most `_MOST_WORKERS`; 1 if unknown.

    Args:
        options: the options of the `Job` from `choose_runner`.
    """
    runner, workers = _name_of(options), options.view_as(beams.WorkerOptions)
    found = {
        "DirectRunner": options.view_as(beams.DirectOptions).direct_num_workers,
        "FlinkRunner": options.view_as(beams.FlinkRunnerOptions).parallelism,
        "DataflowRunner": workers.max_num_workers or workers.num_workers,
    }.get(runner)
    return max(1, min(found or 1, _MOST_WORKERS))


def _name_of(options: beams.PipelineOptions) -> str:
    """The name of the runner; `DirectRunner` for all that work in this process."""
    name = str(options.view_as(beams.StandardOptions).runner or "DirectRunner").rpartition(".")[2]
    known = {each.lower(): each for each in beams.StandardOptions.KNOWN_RUNNER_NAMES}  # Beam takes `flink`, too
    name = known.get(name.lower()) or known.get(f"{name}runner".lower(), name)
    return "DirectRunner" if name == "FnApiRunner" else name


def _given(options: beams.PipelineOptions) -> set[str]:
    """Names of the options that were set. If a value equals the default, only the flags show that it was set."""
    return set(options.get_all_options(drop_default=True)) | {
        flag.lstrip("-").partition("=")[0] for flag in options._flags or ()
    }


def _set_defaults(options: beams.PipelineOptions, runner: str) -> dict[str, Any]:
    """Sets the options that suit our jobs on this runner, except those that the user set. Returns the new values."""
    wanted: dict[str, tuple[type[beams.PipelineOptions], Any]] = {}
    if runner == "FlinkRunner":
        # A stage hands its data on when it is done. So after a failure only that stage is repeated.
        wanted["execution_mode_for_batch"] = FlinkOptions, "BATCH_FORCED"
        page = flink_page(options)
        if page is not None and (slots := _flink_slots(page)):
            # Beam's defaults are one slot, and one Python process for all slots of a machine.
            wanted["parallelism"] = beams.FlinkRunnerOptions, slots[0]
            wanted["sdk_worker_parallelism"] = beams.PortableOptions, slots[1]
    elif runner == "DataflowRunner":
        # By default 12 threads share one Python interpreter and hold 12 blocks.
        wanted["number_of_worker_harness_threads"] = beams.DebugOptions, 1
        wanted["save_main_session"] = beams.SetupOptions, False
    given = _given(options)
    chosen = {name: value for name, (_, value) in wanted.items() if name not in given}
    for name, value in chosen.items():
        setattr(options.view_as(wanted[name][0]), name, value)
    return chosen


def _flink_slots(page: str) -> tuple[int, int] | None:
    """(slots of a Flink cluster, slots of one TaskManager); None if its REST interface does not answer."""
    url = f"{page}/overview"
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            overview = json.load(answer)
        slots, machines = int(overview["slots-total"]), int(overview["taskmanagers"])
    except (OSError, ValueError, KeyError) as error:
        log.warning("%s: %s; set --parallelism and --sdk_worker_parallelism, which are 1 otherwise", url, error)
        return None
    # A cluster that starts TaskManagers for each job has none before the job.
    return (slots, -(-slots // machines)) if machines else None


@dataclass(eq=False)
class Job:
    """A job, and where it runs.

    Attributes:
        runner: a runner of Beam, or its name.
        options: options of Beam.
        how: a description for the log.
        running: Beam's result, once it runs.
        is_left: True: it is left to its runner.
    """

    runner: Any
    options: beams.PipelineOptions
    how: str
    running: Any = None
    is_left: bool = False

    @property
    def here(self) -> bool:
        """True if it ends with this process."""
        return isinstance(self.runner, FnApiRunner)

    @property
    def id(self) -> str | None:
        """The runner's id; None if there is none, as after a launch from a template, which creates no job."""
        if not getattr(self.running, "has_job", True):
            return None
        found = getattr(self.running, "job_id", None) or getattr(self.running, "_job_id", None)
        found = found() if callable(found) else found  # Dataflow has a method
        return None if found is None else str(found)

    @property
    def may_run(self) -> bool:
        """True if it may still run when this process has ended."""
        if self.here or self.running is None:
            return False
        try:
            return not PipelineState.is_terminal(self.running.state)
        except Exception:  # each runner has its own errors; then the state is unknown
            return True

    def refused(self, error: Exception) -> BeamPrepError:
        """The error of a job that its runner did not take. Each runner raises errors of its own."""
        said = f"{_name_of(self.options)} did not take the job ({type(error).__name__}: {error})"
        advice = "check its options (docs/runners.md), and run again"
        return (ConfigError if isinstance(error, ValueError) else EngineError)(f"{said}: {advice}")

    def told(self) -> dict[str, str]:
        """Its id and the address of its page, as far as they are known. Logs both."""
        page = flink_page(self.options)
        if _name_of(self.options) == "DataflowRunner":
            cloud = self.options.view_as(beams.GoogleCloudOptions)
            page = f"https://console.cloud.google.com/dataflow/jobs/{cloud.region}/{self.id}?project={cloud.project}"
        found = {name: value for name, value in (("id", self.id), ("url", page)) if value is not None}
        if found:
            log.info("job %s", " ".join(found.values()))
        return found

    def _on_flink(self) -> list[dict[str, Any]]:
        """The unfinished jobs of a Flink cluster that belong to this job of Beam."""
        if (page := flink_page(self.options)) is None:
            return []
        name = str(self.id).rpartition("_")[0]  # Beam appends a number to it
        with urllib.request.urlopen(f"{page}/jobs/overview", timeout=30) as answer:
            jobs = json.load(answer)["jobs"]
        return [job for job in jobs if job["name"] == name and job["state"] not in ("FINISHED", "FAILED", "CANCELED")]

    def cancel(self) -> None:
        """Cancels it on its runner, if it runs there and the runner can be reached.

        On Flink through Flink's own REST interface: Beam's job server only forgets the job (2.77).
        https://nightlies.apache.org/flink/flink-docs-release-1.19/docs/ops/rest_api/#jobs-jobid-1
        """
        if self.running is None or self.here:
            return
        try:
            self.running.cancel()
            for job in self._on_flink():
                url = f"{flink_page(self.options)}/jobs/{job['jid']}?mode=cancel"
                urllib.request.urlopen(urllib.request.Request(url, method="PATCH"), timeout=30).close()
        except Exception as error:  # each runner has its own errors, and this process ends anyway
            log.warning("the job could not be cancelled (%s): cancel it on its runner", error)
        else:
            log.warning("the job was cancelled on its runner")

    def wait(self) -> None:
        """Waits for its end.

        Raises:
            EngineError: it was cancelled. Some runners raise no error then.
        """
        state = self.running.wait_until_finish()
        if state != PipelineState.DONE:
            raise EngineError(f"the job ended as {state}: look at the runner's own log, and run again")


def flink_page(options: beams.PipelineOptions) -> str | None:
    """The address of a Flink cluster's console and REST interface; None if it is not given, or on another runner."""
    if _name_of(options) != "FlinkRunner":
        return None
    master = options.view_as(beams.FlinkRunnerOptions).flink_master
    if not master or master.startswith("["):  # Beam starts a cluster, or the job server knows one
        return None
    return str(master) if "://" in master else f"http://{master}"


_RAISED = re.compile(r"beam_prep\.errors\.(\w+): (.+?)(?:\n|\\n|$)")


DIED = (
    "a worker process was killed, or crashed, in the middle of its work (out of memory?): give it more memory, or use "
    "fewer workers (--direct_num_workers); finished blocks are not made again"
)
_DIED = ("Channel closed prematurely", "Process died with exit code", "Worker subprocess exited")
"""Messages about a dead worker process: of the local runner and Beam's job server, of Flink, of subprocesses."""


def _cause(error: BaseException, kind: type[BaseException]) -> BaseException | None:
    """The first of an error and its causes that is of a kind."""
    seen: BaseException | None = error
    while seen is not None and not isinstance(seen, kind):
        seen = seen.__cause__ or seen.__context__
    return seen


def raised_by_worker(error: BaseException) -> BaseException:
    """The error that a worker raised, taken from the runner's error."""
    if (ours := _cause(error, BeamPrepError)) is not None:
        name, message = type(ours).__name__, str(ours)
    elif found := _RAISED.findall(str(error)):
        name, message = found[-1]
    elif any(words in str(error) for words in _DIED):
        return EngineError(DIED)
    else:
        return errors.of_the_system(_cause(error, OSError) or error) or error
    return getattr(errors, name, BeamPrepError)(re.sub(r" \[while running '[^']*'\]$", "", message))
