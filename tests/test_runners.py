"""What runners are told where the user does not say otherwise. That it is right is shown in tests/engines."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from beam_prep.errors import ConfigError
from beam_prep.runners import choose_runner


def told(*asked: str) -> tuple[dict[str, Any], str]:
    """(all options that are no default, how it runs) where these were asked for."""
    runner, options, how = choose_runner(PipelineOptions(list(asked)), [])
    assert runner == options.get_all_options()["runner"]
    return options.get_all_options(drop_default=True), how


@pytest.fixture
def flink() -> Iterator[dict[str, Any]]:
    """What a cluster's REST interface answers, by path, and its address."""
    answers: dict[str, Any] = {"/overview": {"slots-total": 8, "taskmanagers": 2}}

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path in answers else 404)
            self.end_headers()
            self.wfile.write(json.dumps(answers.get(self.path)).encode())

        def log_message(self, *words: Any) -> None:
            pass

    with HTTPServer(("localhost", 0), Answer) as server:
        answers["address"] = f"localhost:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield answers
        server.shutdown()


def test_a_flink_job_uses_all_slots_with_a_process_each(flink: dict[str, Any]) -> None:
    options, how = told("--runner=FlinkRunner", f"--flink_master={flink['address']}")
    assert (options["parallelism"], options["sdk_worker_parallelism"]) == (8, 4)
    assert options["execution_mode_for_batch"] == "BATCH_FORCED"
    assert how == (
        "runner: FlinkRunner with execution_mode_for_batch=BATCH_FORCED, parallelism=8, sdk_worker_parallelism=4"
    )


def test_what_was_asked_for_is_left_alone(flink: dict[str, Any]) -> None:
    asked = ["--execution_mode_for_batch=PIPELINED", "--parallelism=-1", "--sdk_worker_parallelism=1"]
    options, how = told("--runner=FlinkRunner", f"--flink_master=http://{flink['address']}", *asked)
    assert options["execution_mode_for_batch"] == "PIPELINED"
    assert "parallelism" not in options  # it is Beam's default
    assert options["sdk_worker_parallelism"] == "1"
    assert how == "runner: FlinkRunner"


def test_slots_that_are_not_known_are_left_to_the_user(flink: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    """Of a cluster that has no machines yet, or does not answer, which is said."""
    flink["/overview"] = {"slots-total": 0, "taskmanagers": 0}
    for address in (flink["address"], "localhost:1"):
        options, _ = told("--runner=FlinkRunner", f"--flink_master={address}")
        assert options.keys().isdisjoint({"parallelism", "sdk_worker_parallelism"})
    assert "http://localhost:1/overview" in caplog.text
    assert "set --parallelism and --sdk_worker_parallelism" in caplog.text


def test_a_dataflow_worker_has_one_thread_and_no_main_session() -> None:
    options, how = told("--runner=apache_beam.runners.dataflow.dataflow_runner.DataflowRunner")
    assert options["number_of_worker_harness_threads"] == 1
    assert options.get("save_main_session") is False
    assert how.endswith("DataflowRunner with number_of_worker_harness_threads=1, save_main_session=False")
    options, _ = told("--runner=DataflowRunner", "--number_of_worker_harness_threads=4", "--save_main_session")
    assert options["number_of_worker_harness_threads"] == 4
    assert options["save_main_session"] is True


def test_prism_is_not_downloaded_unasked() -> None:
    with pytest.raises(ConfigError, match="would download a program from GitHub") as error:
        told("--runner=PrismRunner")
    assert "--prism_location=https://github.com/apache/beam/releases/tag/v2.77.0" in str(error.value)
    assert told("--runner=PrismRunner", "--prism_location=/bin/prism")[1] == "runner: PrismRunner"
    assert told("--runner=PrismRunner", "--job_endpoint=localhost:1")[1] == "runner: PrismRunner"
