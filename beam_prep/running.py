"""A running job: its id, its end, and the error that a worker raised."""

import contextlib
import json
import logging
import re
import urllib.request
from collections.abc import Iterator
from typing import Any

from apache_beam.metrics.metric import MetricsFilter
from apache_beam.options.pipeline_options import (
    FlinkRunnerOptions,
    GoogleCloudOptions,
    PipelineOptions,
    StandardOptions,
)
from apache_beam.runners.runner import PipelineState

from beam_prep import errors
from beam_prep.errors import BeamPrepError, EngineError
from beam_prep.process import not_of_beam

log = logging.getLogger("beam_prep")


def cancel(running: Any, options: PipelineOptions) -> None:
    """Cancels a job on its runner, if it can be reached."""
    try:
        running.cancel()
        if (page := flink_page(options)) is not None:
            _cancel_on_flink(page, str(job_id_of(running)))
    except Exception as error:  # each runner has errors of its own, and this process ends anyway
        log.warning("the job could not be cancelled (%s): cancel it on its runner", error)
    else:
        log.warning("the job was cancelled on its runner")


def job_id_of(running: Any) -> str | None:
    """The runner's id of a job; None if it has none, as with a launch by a template, which creates no job."""
    if not getattr(running, "has_job", True):
        return None
    found = getattr(running, "job_id", None) or getattr(running, "_job_id", None)
    found = found() if callable(found) else found  # Dataflow's is a method
    return None if found is None else str(found)


def told_job(running: Any, options: PipelineOptions) -> dict[str, str]:
    """The id of a job and the page that shows it, as far as they are known; both are logged."""
    found = {"id": job_id_of(running), "url": _page(running, options)}
    job = {name: value for name, value in found.items() if value is not None}
    if job:
        log.info("job %s", " ".join(job.values()))
    return job


def _cancel_on_flink(page: str, job_id: str) -> None:
    """Cancels a job by Flink's own REST interface: Beam's job server only forgets it (2.77).

    https://nightlies.apache.org/flink/flink-docs-release-1.19/docs/ops/rest_api/#jobs-jobid-1
    """
    for job in _jobs_on_flink(page, job_id):
        request = urllib.request.Request(f"{page}/jobs/{job['jid']}?mode=cancel", method="PATCH")
        urllib.request.urlopen(request, timeout=30).close()


def _page(running: Any, options: PipelineOptions) -> str | None:
    """The page of a job in its runner's console."""
    name = str(options.view_as(StandardOptions).runner).rpartition(".")[2]
    if name == "DataflowRunner":
        cloud = options.view_as(GoogleCloudOptions)
        page = "https://console.cloud.google.com/dataflow/jobs"
        return f"{page}/{cloud.region}/{job_id_of(running)}?project={cloud.project}"
    return flink_page(options)


def flink_page(options: PipelineOptions) -> str | None:
    """The address of a Flink cluster's console and REST interface; None if nobody named it, or it is another runner."""
    if str(options.view_as(StandardOptions).runner).rpartition(".")[2] != "FlinkRunner":
        return None
    master = options.view_as(FlinkRunnerOptions).flink_master
    if not master or master.startswith("["):  # Beam starts a cluster, or the job server knows one
        return None
    return str(master) if "://" in master else f"http://{master}"


_COUNTERS = ("stored", "lines", "rejected", "tokens")


def counters_of(running: Any, options: PipelineOptions) -> dict[str, int]:
    """How far a job is that works elsewhere, as its runner says it; what it does not say is missing.

    Returns:
        the sums of the counters of `CacheBlocks`; of a job on Flink, too: `tasks`, and `tasks_done`.
    """
    found: dict[str, int] = {}
    with contextlib.suppress(Exception):  # each runner has errors of its own; some answer at the end only
        wanted = MetricsFilter().with_namespace("beam_prep")
        for counter in running.metrics().query(wanted)["counters"]:
            if counter.key.metric.name in _COUNTERS:
                value = counter.committed if counter.committed is not None else counter.attempted
                found[counter.key.metric.name] = found.get(counter.key.metric.name, 0) + int(value or 0)
    if not found.get("lines") and (page := flink_page(options)) is not None:
        with contextlib.suppress(OSError, ValueError, KeyError):
            job = next(_jobs_on_flink(page, str(job_id_of(running))), None)
            if job is not None:
                found |= {"tasks": int(job["tasks"]["total"]), "tasks_done": int(job["tasks"]["finished"])}
    return found


def _jobs_on_flink(page: str, job_id: str) -> Iterator[dict[str, Any]]:
    """The jobs of a Flink cluster that a job of Beam's has become and that have not ended."""
    name = job_id.rpartition("_")[0]  # Beam appends a number to it
    with urllib.request.urlopen(f"{page}/jobs/overview", timeout=30) as answer:
        jobs = json.load(answer)["jobs"]
    return (job for job in jobs if job["name"] == name and job["state"] not in ("FINISHED", "FAILED", "CANCELED"))


def has_ended(running: Any) -> bool:
    """True if a job is known to have ended."""
    try:
        return bool(PipelineState.is_terminal(running.state))
    except Exception:  # each runner has errors of its own; nobody knows then
        return False


def wait_until_done(running: Any) -> None:
    """Waits for a job's end.

    Raises:
        EngineError: it was cancelled. Some runners raise no error of their own then.
    """
    state = running.wait_until_finish()
    if state != PipelineState.DONE:
        raise EngineError(f"the job ended as {state}: look at the runner's own log, and run again")


_RAISED = re.compile(r"beam_prep\.errors\.(\w+): (.+?)(?:\n|\\n|$)")


DIED = (
    "a worker process was killed, or crashed, in the middle of its work (out of memory?): give it more memory, or use "
    "fewer workers (--direct_num_workers); finished blocks are not made again"
)
_DIED = ("Channel closed prematurely", "Process died with exit code", "Worker subprocess exited")
"""Messages about a worker process that died: of the local runner and Beam's job server, of Flink, of subprocesses."""


def _root(error: BaseException) -> BaseException:
    """The error of the operating system that another came from; else the error itself."""
    seen: BaseException | None = error
    while seen is not None and not isinstance(seen, OSError):
        seen = seen.__cause__ or seen.__context__
    return error if seen is None else seen


def raised_by_worker(error: BaseException) -> BaseException:
    """The error that a worker raised, from the error that the runner made of it."""
    seen: BaseException | None = error
    while seen is not None and not isinstance(seen, BeamPrepError):
        seen = seen.__cause__ or seen.__context__
    if seen is not None:
        name, message = type(seen).__name__, str(seen)
    elif found := _RAISED.findall(str(error)):
        name, message = found[-1]
    elif any(words in str(error) for words in _DIED):
        return EngineError(DIED)
    elif (of_system := errors.of_the_system(_root(error))) is not None:
        return of_system
    else:
        return error
    return getattr(errors, name, BeamPrepError)(re.sub(r" \[while running '[^']*'\]$", "", message))


@contextlib.contextmanager
def quiet_beam() -> Iterator[None]:
    """Silences Beam, which logs the complete traceback of a failed bundle several times. The error is raised anyway."""
    if log.isEnabledFor(logging.DEBUG):
        yield
        return
    beam_log, root = logging.getLogger("apache_beam"), logging.getLogger()
    before = beam_log.level
    beam_log.setLevel(logging.CRITICAL)
    root.addFilter(not_of_beam)  # messages of job servers come from no logger of Beam's
    try:
        yield
    finally:
        beam_log.setLevel(before)
        root.removeFilter(not_of_beam)
