"""The real DataflowRunner posts a job to an endpoint on loopback; what it staged runs, and gives the same bytes."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from beam_prep.pipeline import Pipeline
from beam_prep.storage.stores import put, read_bytes
from tests.conftest import ROOT, config_of
from tests.engines import image, stores
from tests.engines.dataflow import (
    Service,
    as_launched,
    launch,
    run_in_process,
    run_on_flink,
    staged_pipeline,
    submitted,
)
from tests.engines.flink import Flink
from tests.engines.image import Image
from tests.engines.stores import Store

# The image is built within the first test that wants it, from the network.
pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """Cloud Storage, with data, a config and a tokenizer."""
    with stores.gcs_server(tmp_path_factory.mktemp("gcs")) as made:
        tokenizer = ROOT / "examples" / "tokenizer"
        config = config_of("sft_chat", output={"storage_format": ["bin", "tfrecord"]})
        put(f"{made.url}/configs/sft_chat.json", json.dumps(config).encode())
        put(f"{made.url}/data/chat.jsonl", (ROOT / "examples" / "data" / "chat.jsonl").read_bytes())
        for path in tokenizer.glob("*.j*"):
            put(f"{made.url}/tokenizer/{path.name}", path.read_bytes())
        yield made


def filled_in(store: Store, output: str, **more: str) -> dict[str, str]:
    """The form as somebody filled it in; fields left empty come as empty strings."""
    form = {
        "inputs": f"{store.url}/data/*.jsonl",
        "output_dir": f"{store.url}/{output}",
        "config": f"{store.url}/configs/sft_chat.json",
        "config_json": "",
        "tokenizer_path": f"{store.url}/tokenizer",
        "overwrite": "false",
        "max_reject_rate": "0.05",
        "max_reject_chars": "",
        "cache_dir": "",
        "staging": "",
        "block_bytes": "65536",
        "tokenizer_backend": "auto",
    }
    return {**form, **more}


@pytest.fixture(scope="module")
def job(store: Store) -> dict[str, Any]:
    return submitted(filled_in(store, "job"), store)


def test_workers_start_from_the_image_one_thread_a_process(job: dict[str, Any]) -> None:
    (pool,) = job["environment"]["workerPools"]
    (harness,) = pool["sdkHarnessContainerImages"]
    assert pool["workerHarnessContainerImage"] == harness["containerImage"] == image.NAME
    assert harness["useSingleCorePerContainer"] is True
    options = job["environment"]["sdkPipelineOptions"]["options"]
    assert options["number_of_worker_harness_threads"] == 1
    assert options["save_main_session"] is False
    # They install nothing: this is a list of what the launcher has, for people to compare; Beam always stages it.
    assert [package["name"] for package in pool["packages"]] == ["submission_environment_dependencies.txt"]
    assert not any(options.get(name) for name in ("setup_file", "requirements_file", "extra_packages"))
    assert pool["machineType"] == "n2-standard-4"
    assert pool["autoscalingSettings"]["maxNumWorkers"] == 20
    assert job["environment"]["serviceAccountEmail"] == "beam-prep@project.iam.gserviceaccount.com"
    assert job["name"] == "chats"


def test_the_image_stages_a_job_for_dataflow(store: Store, built_image: Image, direct_manifest: bytes) -> None:
    """As in the cloud: the template's launcher wants no job posted, but its request in a file."""
    place = f"{store.url}/staging/template_launches/1/job_object"
    launcher = Path(built_image.environment["FLEX_TEMPLATE_PYTHON_PY_FILE"])
    with Service() as service:
        arguments = as_launched(filled_in(store, "staged", template_location=place), store)
        done = launch(service, store, arguments, built_image.python, launcher)
        assert done.returncode == 0, done.stderr[-3000:]
        assert service.jobs == []
    job = json.loads(read_bytes(place))
    assert job["environment"]["workerPools"][0]["workerHarnessContainerImage"] == image.NAME
    run_in_process(staged_pipeline(job), store.options)
    # It names the versions of the launcher, which are those that the image pins. Here there may be newer ones.
    made = {**json.loads(manifest(store, "staged")), "versions": json.loads(direct_manifest)["versions"]}
    assert list(made.items()) == list(json.loads(direct_manifest).items())


def manifest(store: Store, output: str) -> bytes:
    return read_bytes(f"{store.url}/{output}/manifest.json")


@pytest.fixture(scope="module")
def direct_manifest(store: Store) -> bytes:
    """Of the same job, run in this process."""
    form = filled_in(store, "direct")
    given = (form[name] for name in ("config", "inputs", "output_dir", "tokenizer_path"))
    job = Pipeline(*given, max_reject_rate=0.05, block_bytes=65536)
    job.run(["--runner=FnApiRunner", *store.options])
    return manifest(store, "direct")


def test_the_staged_pipeline_on_flink_in_workers_of_the_image_gives_the_same_bytes(
    store: Store, direct_manifest: bytes, flink: Flink, built_image: Image, tmp_path: Path
) -> None:
    job = submitted(filled_in(store, "flink"), store)
    containers = built_image.workers(tmp_path, **store.environment)
    run_on_flink(staged_pipeline(job), [*flink.options, *containers, *store.options])
    assert manifest(store, "flink") == direct_manifest
    assert list(tmp_path.glob("worker-*"))
