"""Dataflow without a cloud: what a launch calls of its API, on loopback, and the staged pipeline on other runners.

    job = submitted({"inputs": ..., "output_dir": ..., "config_json": ..., "tokenizer_path": ...}, store)
    run_in_process(staged_pipeline(job), store.options)
    run_on_flink(staged_pipeline(job), [*flink.options, *worker_pool, *store.options])

Workers of the pool find the store by `store.environment`, which has to be set when the pool starts.
"""

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions, PortableOptions
from apache_beam.portability.api import beam_runner_api_pb2
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.runners.portability.portable_runner import PortableRunner
from apache_beam.runners.runner import PipelineState
from apache_beam.transforms import environments

from tests.conftest import ROOT
from tests.engines import image
from tests.engines.stores import Store

LAUNCHER = ROOT / "pipelines" / "dataflow" / "launcher.py"


class Service:
    """What a launch calls of Dataflow's API, on loopback.

    Attributes:
        jobs: the jobs that were posted, as they came.
        endpoint: where it listens.
    """

    def __init__(self) -> None:
        self.jobs: list[dict[str, Any]] = []
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                job = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if not re.fullmatch(r"/v1b3/projects/[^/]+/locations/[^/]+/jobs", self.path.partition("?")[0]):
                    self.send_error(404)
                    return
                service.jobs.append(job)
                self._answer({**job, "id": f"job-{len(service.jobs)}", "currentState": "JOB_STATE_DONE"})

            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                number = re.search(r"/jobs/job-(\d+)", path)
                if number is None:
                    self.send_error(404)
                elif path.endswith("/messages"):
                    self._answer({})
                else:
                    job = service.jobs[int(number[1]) - 1]
                    self._answer({**job, "id": f"job-{number[1]}", "currentState": "JOB_STATE_DONE"})

            def _answer(self, message: dict[str, Any]) -> None:
                text = json.dumps(message).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *given: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("localhost", 0), Handler)
        self.endpoint = f"http://localhost:{self._server.server_port}"

    def __enter__(self) -> "Service":
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        return self

    def __exit__(self, *given: Any) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def as_launched(parameters: Mapping[str, str], store: Store) -> list[str]:
    """The launcher's arguments as the template launcher gives them: all strings, `--name=value`, sorted by name.

    Args:
        parameters: what the form was filled in with; "" for what was left empty.
        store: where Dataflow's own files go.
    """
    own = {
        "job_name": "chats",
        "machine_type": "n2-standard-4",
        "max_num_workers": "20",
        "project": "project",
        "region": "europe-west4",
        "runner": "DataflowRunner",
        "service_account_email": "beam-prep@project.iam.gserviceaccount.com",
        "staging_location": f"{store.url}/staging",
        "temp_location": f"{store.url}/temp",
    }
    return [f"--{name}={value}" for name, value in sorted({**own, **parameters}.items())]


def launch(
    service: Service, store: Store, arguments: Sequence[str], python: Path | None = None, launcher: Path = LAUNCHER
) -> "subprocess.CompletedProcess[str]":
    """Launches a job as the template does, in a process of its own: to the service, its files to the store.

    Args:
        service: what stands for Dataflow.
        store: what stands for Cloud Storage.
        arguments: as from `as_launched`.
        python: that of the image; by default ours.
        launcher: that of the image; by default ours.
    """
    settings = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    settings |= {**store.environment, "BEAM_PREP_IMAGE": image.NAME, "HF_HUB_OFFLINE": "1"}
    if python is None:
        settings["PYTHONPATH"] = str(ROOT)
    here = [f"--dataflow_endpoint={service.endpoint}", "--no_auth", *store.options]
    command = [str(python or sys.executable), str(launcher), *arguments, *here]
    return subprocess.run(command, env=settings, cwd="/", capture_output=True, text=True)


def submitted(parameters: Mapping[str, str], store: Store) -> dict[str, Any]:
    """The request of a job, as the launcher posts it.

    Args:
        parameters: what the form was filled in with.
        store: where the job is staged.

    Raises:
        RuntimeError: the launch failed; with the end of its log.
    """
    with Service() as service:
        done = launch(service, store, as_launched(parameters, store))
        if done.returncode != 0 or len(service.jobs) != 1:
            raise RuntimeError(f"{len(service.jobs)} jobs, code {done.returncode}: {done.stderr[-3000:]}")
        return service.jobs[0]


def staged_pipeline(job: Mapping[str, Any]) -> beam_runner_api_pb2.Pipeline:
    """The pipeline that a job request names, from where it was staged."""
    with FileSystems.open(job["environment"]["sdkPipelineOptions"]["options"]["pipelineUrl"]) as file:
        return beam_runner_api_pb2.Pipeline.FromString(file.read())


def run_in_process(proto: beam_runner_api_pb2.Pipeline, options: Sequence[str] = ()) -> None:
    """Runs a staged pipeline in this process.

    Raises:
        Exception: whatever a step raised.
    """
    here = _in_environment(proto, environments.EmbeddedPythonEnvironment.default())
    FnApiRunner().run_via_runner_api(here, PipelineOptions(list(options)))


def run_on_flink(proto: beam_runner_api_pb2.Pipeline, options: Sequence[str]) -> None:
    """Runs a staged pipeline on a Flink cluster.

    Args:
        proto: the pipeline.
        options: of Beam, as for any job there: `--job_endpoint`, and where SDK workers come from.

    Raises:
        RuntimeError: the job failed.
    """
    given = PipelineOptions(list(options))
    kinds = {"EXTERNAL": environments.ExternalEnvironment, "PROCESS": environments.ProcessEnvironment}
    kind = kinds[given.view_as(PortableOptions).environment_type]
    there = _in_environment(proto, kind.from_options(given.view_as(PortableOptions)))
    state = PortableRunner().run_portable_pipeline(there, given).wait_until_finish()
    if state != PipelineState.DONE:
        raise RuntimeError(f"the job ended as {state}")


def _in_environment(
    proto: beam_runner_api_pb2.Pipeline, environment: environments.Environment
) -> beam_runner_api_pb2.Pipeline:
    """The pipeline with its workers elsewhere; nothing else of it changes."""
    there = beam_runner_api_pb2.Pipeline()
    there.CopyFrom(proto)
    for name in there.components.environments:
        there.components.environments[name].CopyFrom(environment.to_runner_api(None))
    return there
