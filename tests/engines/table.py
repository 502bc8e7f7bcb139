"""Job x runner -> sha256 of the manifest, and seconds: what docs/runners.md says, shown by one command.

    python -m tests.engines.table               every job
    python -m tests.engines.table 'DPO, bin'    this one

The jobs' inputs and outputs lie on this disk, on s3:// and on gs://. A row that holds two values is an error.
"""

import contextlib
import dataclasses
import hashlib
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability.api import beam_runner_api_pb2

from tests.conftest import ROOT
from tests.engines import dataflow
from tests.engines.build import built
from tests.engines.flink import Flink, running
from tests.engines.jobs import BLOCK_BYTES, JOBS, Job, run
from tests.engines.processes import end_on_sigterm
from tests.engines.stores import Store, gcs_server, s3_server
from tests.engines.workers import boot_process, worker_pool

PLACES = {
    "chat, bin + tfrecord": "disk",
    "DPO, bin": "s3",
    "packed, arrow": "gs",
    "chunks, every format": "disk",
}
"""Where the input and the outputs of each job lie."""


@dataclasses.dataclass(frozen=True, eq=False)
class Engines:
    """All that runs jobs, up.

    Attributes:
        folder: for inputs and outputs on disk.
        flink: the cluster.
        external: options for SDK workers from a pool.
        process: options for SDK workers that the boot program starts.
        s3, gcs: the storage servers.
        service: what stands for Dataflow.
    """

    folder: Path
    flink: Flink
    external: list[str]
    process: list[str]
    s3: Store
    gcs: Store
    service: dataflow.Service


@dataclasses.dataclass(frozen=True)
class Task:
    """A job with its place.

    Attributes:
        name: of the job.
        job: the job.
        source: its input.
        root: what its outputs' paths begin with.
        options: of Beam, for its store.
    """

    name: str
    job: Job
    source: str
    root: str
    options: tuple[str, ...]


@contextlib.contextmanager
def engines(folder: Path, flink: Flink) -> Iterator[Engines]:
    """Everything but Flink is started: storage servers first, because SDK workers are told where they are.

    Args:
        folder: for files, logs and environments.
        flink: a running cluster.
    """
    with contextlib.ExitStack() as stack:
        enter = stack.enter_context
        s3, gcs = enter(s3_server(folder)), enter(gcs_server(folder))
        pool = enter(worker_pool(folder / "pool"))  # with gcs.environment, which is in ours now
        process = boot_process(folder / "boot", gcs.environment)
        yield Engines(folder, flink, pool, process, s3, gcs, enter(dataflow.Service()))


def task(made: Engines, name: str) -> Task:
    """A job, its input put where it belongs."""
    job, place = JOBS[name], PLACES[name]
    local = job.write_input(made.folder)
    if place == "disk":
        return Task(name, job, str(local), str(made.folder), ())
    store = made.s3 if place == "s3" else made.gcs
    FileSystems.set_options(PipelineOptions(list(store.options)))
    source = f"{store.url}/{local.name}"
    with FileSystems.create(source) as file:
        file.write(local.read_bytes())
    return Task(name, job, source, store.url, store.options)


def _with(*words: str) -> Callable[[Engines, Task, str], None]:
    """Runs the job from here with these options."""
    return lambda made, work, output: _run(work, output, words)


def _run(work: Task, output: str, words: Sequence[str]) -> None:
    run(work.job.config, work.source, output, [*words, *work.options])


def _prism(made: Engines, work: Task, output: str) -> None:
    _run(work, output, ["--runner=PrismRunner", f"--prism_location={built('prism') / 'prism'}"])


def _external(made: Engines, work: Task, output: str) -> None:
    _run(work, output, [*made.flink.options, *made.external])


def _process(made: Engines, work: Task, output: str) -> None:
    _run(work, output, [*made.flink.options, *made.process])


def _staged(made: Engines, work: Task, output: str) -> beam_runner_api_pb2.Pipeline:
    """The pipeline that a launch of the Dataflow template stages for the job."""
    config = made.folder / f"{work.job.sample}.json"
    config.write_text(json.dumps(work.job.config))
    parameters = {
        "inputs": work.source,
        "output_dir": output,
        "config": str(config),
        "tokenizer_path": str(ROOT / "examples" / "tokenizer"),
        "block_bytes": str(BLOCK_BYTES),
    }
    where = dataclasses.replace(made.gcs, options=work.options)
    done = dataflow.launch(made.service, where, dataflow.as_launched(parameters, made.gcs))
    if done.returncode:
        raise RuntimeError(f"the launch ended with code {done.returncode}: {done.stderr[-3000:]}")
    return dataflow.staged_pipeline(made.service.jobs[-1])


def _dataflow_here(made: Engines, work: Task, output: str) -> None:
    dataflow.run_in_process(_staged(made, work, output), work.options)


def _dataflow_on_flink(made: Engines, work: Task, output: str) -> None:
    dataflow.run_on_flink(_staged(made, work, output), [*made.flink.options, *made.external, *work.options])


RUNNERS: dict[str, Callable[[Engines, Task, str], None]] = {
    "in-process": _with("--runner=FnApiRunner"),
    "2 worker processes": _with("--direct_running_mode=multi_processing", "--direct_num_workers=2"),
    "Prism": _prism,
    "Flink, EXTERNAL": _external,
    "Flink, PROCESS": _process,
    "Dataflow's staged pipeline, in-process": _dataflow_here,
    "Dataflow's staged pipeline, on Flink": _dataflow_on_flink,
}


def cell(made: Engines, work: Task, runner: str) -> tuple[str, float]:
    """(sha256 of the manifest, seconds) of a job on a runner, from scratch.

    The files of the output are those of the manifest: each is read, and its sha256 compared.
    """
    output = f"{work.root}/{work.name.partition(',')[0]}-{list(RUNNERS).index(runner)}"
    started = time.monotonic()
    RUNNERS[runner](made, work, output)
    seconds = time.monotonic() - started
    FileSystems.set_options(PipelineOptions(list(work.options)))
    return _checked(output), seconds


def _checked(output: str) -> str:
    def read(name: str) -> bytes:
        with FileSystems.open(f"{output}/{name}", compression_type="uncompressed") as file:
            return bytes(file.read())

    manifest = read("manifest.json")
    for shard in json.loads(manifest)["shards"]:
        for file in shard["files"]:
            found = hashlib.sha256(read(file["path"])).hexdigest()
            if found != file["sha256"]:
                raise RuntimeError(f"{output}/{file['path']} has sha256 {found}, its manifest says {file['sha256']}")
    return hashlib.sha256(manifest).hexdigest()


def main(names: Sequence[str]) -> int:
    """Prints the table, or the rows of these jobs; gives the exit code: 0 if every row holds one value."""
    print(f"| job | where | {' | '.join(RUNNERS)} |\n|{'---|' * (len(RUNNERS) + 2)}", flush=True)
    same = True
    end_on_sigterm()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        made = stack.enter_context(engines(folder, stack.enter_context(running(folder / "flink"))))
        for job in names or PLACES:
            place = PLACES[job]
            work = task(made, job)
            cells = [cell(made, work, runner) for runner in RUNNERS]
            same &= len({digest for digest, _ in cells}) == 1
            shown = " | ".join(f"`{digest[:12]}` {seconds:.0f} s" for digest, seconds in cells)
            print(f"| {job} | {place if place == 'disk' else f'`{place}://`'} | {shown} |", flush=True)
    print("one value in every row" if same else "A ROW HOLDS TWO VALUES", file=sys.stderr)
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
