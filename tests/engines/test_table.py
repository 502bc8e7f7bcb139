"""Every job gives one manifest, byte for byte, on every runner, from disk and from object stores (docs/runners.md)."""

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions

from beam_prep.storage.stores import put, read_bytes
from tests.conftest import ROOT
from tests.engines import dataflow
from tests.engines.build import built
from tests.engines.flink import Flink
from tests.engines.jobs import BLOCK_BYTES, JOBS, run
from tests.engines.stores import Store, gcs_server, s3_server
from tests.engines.workers import boot_process, worker_pool

PLACES = {
    "chat, bin + tfrecord": "disk",
    "DPO, bin": "s3",
    "packed, arrow": "gs",
    "composed, bin": "s3",
    "chunks, every format": "disk",
}
"""Where the input and the outputs of each job lie."""


@dataclasses.dataclass(frozen=True, eq=False)
class Engines:
    """All that runs jobs, up.

    Attributes:
        folder: for inputs and outputs on disk.
        flink, external, process: options for Flink, and for SDK workers from a pool, and of the boot program.
        stores: the storage servers, by scheme.
        service: what stands for Dataflow.
    """

    folder: Path
    flink: list[str]
    external: list[str]
    process: list[str]
    stores: dict[str, Store]
    service: dataflow.Service


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory, flink: Flink) -> Iterator[Engines]:
    """Storage servers first, because SDK workers are told where they are."""
    folder = tmp_path_factory.mktemp("table")
    with s3_server(folder) as s3, gcs_server(folder) as gcs, worker_pool(folder / "pool") as pool:
        process = boot_process(folder / "boot", gcs.environment)
        with dataflow.Service() as service:
            yield Engines(folder, flink.options, pool, process, {"s3": s3, "gs": gcs}, service)


@dataclasses.dataclass(frozen=True)
class Task:
    """A job, its input where it belongs, what the paths of its outputs begin with, and Beam's options for its store."""

    config: dict[str, Any]
    source: str
    root: str
    options: tuple[str, ...]

    def run(self, output: str, *words: str) -> None:
        run(self.config, self.source, output, [*words, *self.options])


def task(made: Engines, name: str) -> Task:
    job = JOBS[name]
    local = job.write_input(made.folder)
    if PLACES[name] == "disk":
        return Task(job.config, str(local), str(made.folder), ())
    store = made.stores[PLACES[name]]
    FileSystems.set_options(PipelineOptions(list(store.options)))
    source = f"{store.url}/{local.name}"
    put(source, local.read_bytes())
    return Task(job.config, source, store.url, store.options)


def staged(made: Engines, work: Task, output: str) -> Any:
    """The pipeline that a launch of the Dataflow template stages for the job."""
    parameters = {
        "inputs": work.source,
        "output_dir": output,
        "config_json": json.dumps(work.config),
        "tokenizer_path": str(ROOT / "examples" / "tokenizer"),
        "block_bytes": str(BLOCK_BYTES),
    }
    gcs = made.stores["gs"]
    where = dataclasses.replace(gcs, options=work.options)
    done = dataflow.launch(made.service, where, dataflow.as_launched(parameters, gcs))
    assert done.returncode == 0, done.stderr[-3000:]
    return dataflow.staged_pipeline(made.service.jobs[-1])


RUNNERS: dict[str, Callable[[Engines, Task, str], None]] = {
    "in-process": lambda made, work, output: work.run(output, "--runner=FnApiRunner"),
    "2 worker processes": lambda made, work, output: work.run(
        output, "--direct_running_mode=multi_processing", "--direct_num_workers=2"
    ),
    "Prism": lambda made, work, output: work.run(
        output, "--runner=PrismRunner", f"--prism_location={built('prism') / 'prism'}"
    ),
    "Flink, EXTERNAL": lambda made, work, output: work.run(output, *made.flink, *made.external),
    "Flink, PROCESS": lambda made, work, output: work.run(output, *made.flink, *made.process),
    "Dataflow's staged pipeline, in-process": lambda made, work, output: dataflow.run_in_process(
        staged(made, work, output), work.options
    ),
    "Dataflow's staged pipeline, on Flink": lambda made, work, output: dataflow.run_on_flink(
        staged(made, work, output), [*made.flink, *made.external, *work.options]
    ),
}


def digest(made: Engines, name: str, work: Task, runner: str) -> str:
    """sha256 of the manifest of a job on a runner, from scratch; each file has the sha256 that the manifest says."""
    output = f"{work.root}/{name.partition(',')[0]}-{list(RUNNERS).index(runner)}"
    RUNNERS[runner](made, work, output)
    FileSystems.set_options(PipelineOptions(list(work.options)))
    manifest = read_bytes(f"{output}/manifest.json")
    for shard in json.loads(manifest)["shards"]:
        for file in shard["files"]:
            assert hashlib.sha256(read_bytes(f"{output}/{file['path']}")).hexdigest() == file["sha256"], file["path"]
    return hashlib.sha256(manifest).hexdigest()


@cache
def in_process(made: Engines, name: str) -> tuple[Task, str]:
    work = task(made, name)
    return work, digest(made, name, work, "in-process")


CELLS = [
    ("chat, bin + tfrecord", "2 worker processes"),
    ("chat, bin + tfrecord", "Flink, EXTERNAL"),
    ("chat, bin + tfrecord", "Dataflow's staged pipeline, on Flink"),
    ("DPO, bin", "Prism"),
    ("DPO, bin", "Flink, PROCESS"),
    ("packed, arrow", "Dataflow's staged pipeline, in-process"),
    ("composed, bin", "Flink, EXTERNAL"),
    ("chunks, every format", "Prism"),
    ("chunks, every format", "Flink, PROCESS"),
]
"""Some cells, so that each runner has two jobs; with TABLE=all, all."""


@pytest.mark.parametrize(
    ("job", "runner"),
    [(job, runner) for job in PLACES for runner in RUNNERS] if os.environ.get("TABLE") == "all" else CELLS,
)
def test_one_value_per_row(engines: Engines, job: str, runner: str) -> None:
    work, wanted = in_process(engines, job)
    assert runner == "in-process" or digest(engines, job, work, runner) == wanted
