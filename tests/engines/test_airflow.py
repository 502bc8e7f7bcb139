"""The DAG `nightly_refresh` in a real Airflow, in an environment of its own: `airflow dags test` runs all of it."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from beam_prep import cli, options
from tests.conftest import ROOT, tree
from tests.engines.build import built

pytestmark = pytest.mark.timeout(900)  # a run of the DAG takes 15 s, or minutes on a machine that is busy

DAGS = ROOT / "pipelines" / "airflow"
CHATS = (ROOT / "examples" / "data" / "chat.jsonl").read_bytes().splitlines(keepends=True)
FILES = {
    "2026-01-01/a.jsonl": CHATS[:60],
    "2026-01-01/b.jsonl": CHATS[60:100],
    "2026-01-02/a.jsonl": CHATS[100:160],
    "2026-01-03/a.jsonl": [*CHATS[160:180], *[b"no json\n"] * 7],
}


class Airflow:
    """An Airflow with a database of its own, and the folders that the DAG works in."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.inputs, self.outputs = folder, folder / "in", folder / "prepared"
        self.python = folder / "python"
        self._bin = built("airflow") / "bin"
        # Any interpreter that has beam_prep; this one has that of this checkout.
        self.python.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} "$@"\n')
        self.python.chmod(0o755)
        self.variables = {
            "runner": "direct",
            "python": self.python,
            "inputs": self.inputs,
            "outputs": self.outputs,
            "config": ROOT / "configs" / "sft_chat.json",
            "tokenizer": ROOT / "examples" / "tokenizer",
        }
        for name, lines in FILES.items():
            (self.inputs / name).parent.mkdir(parents=True, exist_ok=True)
            (self.inputs / name).write_bytes(b"".join(lines))

    def call(self, program: str, *arguments: str, **variables: Any) -> "subprocess.CompletedProcess[str]":
        """Runs a program of Airflow's environment, with these variables `beam_prep_...` of Airflow besides."""
        settings = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
        for name, value in {**self.variables, **variables}.items():
            settings[f"AIRFLOW_VAR_BEAM_PREP_{name.upper()}"] = str(value)
        settings |= {
            "PATH": f"{self._bin}:{settings['PATH']}",
            "AIRFLOW_HOME": str(self.folder / "airflow"),
            "AIRFLOW__CORE__DAGS_FOLDER": str(DAGS),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            # Beta features of gcsfs ask Google itself, even where an emulator is named.
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{self.folder}/airflow.db",
        }
        command = [str(self._bin / program), *arguments]
        return subprocess.run(command, capture_output=True, text=True, env=settings, cwd=self.folder)

    def run(self, *arguments: str, **variables: Any) -> str:
        """`airflow dags test nightly_refresh ...`, which has to end well; gives the log."""
        done = self.call("airflow", "dags", "test", "nightly_refresh", *arguments, **variables)
        assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
        return done.stdout + done.stderr

    def checks(self, **variables: Any) -> Any:
        """What `airflow_checks` prints."""
        done = self.call("python", str(Path(__file__).with_name("airflow_checks.py")), str(DAGS), **variables)
        assert done.returncode == 0, done.stderr[-4000:]
        return json.loads(done.stdout.splitlines()[-1])

    @property
    def latest(self) -> str:
        """The name of the latest version."""
        return os.readlink(self.outputs / "data" / "latest")

    def of_day(self, day: str) -> Path:
        """The version of a day, as 20260101."""
        (found,) = (self.outputs / "data").glob(f"{day}T*")
        return found

    def told(self, day: str) -> dict[str, Any]:
        return dict(json.loads((self.of_day(day) / "run.json").read_bytes()))


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Airflow:
    made = Airflow(tmp_path_factory.mktemp("airflow"))
    done = made.call("airflow", "db", "migrate")
    assert done.returncode == 0, done.stderr[-4000:]
    return made


@pytest.fixture(scope="module")
def two_days(airflow: Airflow) -> Airflow:
    """After the nights in which the first and the second of January were refreshed. `latest` is not to be moved."""
    airflow.run("2026-01-02")
    assert airflow.latest.startswith("20260101T")
    airflow.run("2026-01-03")
    return airflow


# Nights


def test_the_second_day_is_what_a_run_from_scratch_gives(two_days: Airflow, tmp_path: Path) -> None:
    files = [str(two_days.inputs / name) for name in FILES if not name.startswith("2026-01-03")]
    job = ["-c", str(two_days.variables["config"]), "--tokenizer_path", str(two_days.variables["tokenizer"])]
    assert cli.main(["run", *files, "-o", str(tmp_path / "out"), *job]) == 0
    assert tree(two_days.of_day("20260102")) == tree(tmp_path / "out")
    told = two_days.told("20260102")
    assert (told["blocks"], told["blocks_reused"]) == (3, 2)


def test_a_day_with_too_many_rejects_fails_with_their_summary(two_days: Airflow) -> None:
    before = two_days.latest
    done = two_days.call("airflow", "dags", "test", "nightly_refresh", "2026-01-04")
    assert done.returncode != 0
    log = done.stdout + done.stderr
    failed = f"{two_days.outputs}/data.failed"
    # Not tried again: this is the kind of failure that ends a task at once.
    _, found, rest = log.partition("AirflowFailException: Apache Beam process failed with return code 3\n")
    assert found
    problem, *more = rest.splitlines()
    assert problem.startswith(
        "7 of 187 records were rejected (3.74%; 7 bad_json), more than --max_reject_rate 0.01; the first reject of "
    )
    assert more[:3] == [
        "records read: 187, kept: 180",
        "rejected: 7 bad_json",
        f"each of them, with file, line and reason: {failed}/rejects/",
    ]
    assert Path(failed, "rejects", "rejects-00000.jsonl").is_file()
    assert two_days.latest == before


# The choice of the runner

STORE = {
    "inputs": "gs://bucket/in",
    "outputs": "gs://bucket/prepared",
    "config": "gs://bucket/sft_chat.json",
    "tokenizer": "gs://bucket/tokenizer",
    "flink_master": "localhost:8081",
    "temp": "gs://bucket/temp",
    "template": "gs://bucket/beam_prep.json",
    "project": "project",
    "region": "europe-west4",
}
JOB = {
    "inputs": "@gs://bucket/prepared/inputs/2026-01-02.txt",
    "output_dir": "gs://bucket/prepared/data",
    "keep_versions": "7",
    "version_name": "20260102T20260103T001000",
    "config": "gs://bucket/sft_chat.json",
    "tokenizer_path": "gs://bucket/tokenizer",
    "cache_dir": "gs://bucket/prepared/token_cache",
}


@pytest.fixture(scope="module", params=["direct", "flink", "dataflow"])
def dag(request: pytest.FixtureRequest, airflow: Airflow) -> tuple[str, dict[str, Any]]:
    """(runner, the DAG as Airflow reads it with that choice)."""
    return request.param, airflow.checks(**STORE, runner=request.param)


def test_every_choice_of_a_runner_gives_the_same_four_tasks_and_options_that_the_job_has(
    dag: tuple[str, dict[str, Any]], airflow: Airflow
) -> None:
    runner, found = dag
    assert found["import_errors"] == {}
    assert found["dags"] == ["nightly_refresh"]
    assert found["tasks"] == {"list_inputs": [], "prepare": ["list_inputs"], "verify": ["prepare"], "tell": ["verify"]}
    assert (found["catchup"], found["max_active_runs"]) == (False, 1)
    operator = "DataflowStartFlexTemplateOperator" if runner == "dataflow" else "BeamRunPythonPipelineOperator"
    assert operator in found["operators"]
    prepare = found["prepare"]
    if runner == "dataflow":
        given = prepare["body"]["launchParameter"]["parameters"]
        assert given == JOB
    else:
        assert [prepare["py_interpreter"], *prepare["py_options"], prepare["py_file"]] == [
            str(airflow.python),
            *["-m", "beam_prep.cli", "run"],
        ]
        assert prepare["runner"] == {"direct": "DirectRunner", "flink": "FlinkRunner"}[runner]
        given = prepare["pipeline_options"]
        assert JOB.items() <= given.items()
        more = [f"--{name}={value}" for name, value in given.items() if name not in JOB]
        assert len(more) >= 2
        assert cli.unknown_beam_options([f"--runner={prepare['runner']}", *more]) is None
    assert all(isinstance(value, str) for value in given.values())
    known = {option.name: option for option in options.OPTIONS}
    for name in JOB:
        assert known[name].in_form, name
        assert re.fullmatch(known[name].pattern or "true", JOB[name]), name
    assert {name for name, option in known.items() if option.required} <= JOB.keys()


def test_the_launch_of_the_template_is_what_dataflow_takes(dag: tuple[str, dict[str, Any]]) -> None:
    runner, found = dag
    if runner != "dataflow":
        return
    (document,) = built("airflow").glob("lib/*/site-packages/googleapiclient/**/dataflow.v1b3.json")
    schemas = json.loads(document.read_bytes())["schemas"]
    launch = found["prepare"]["body"]["launchParameter"]
    assert launch.keys() <= schemas["LaunchFlexTemplateParameter"]["properties"].keys()
    assert launch["environment"].keys() <= schemas["FlexTemplateRuntimeEnvironment"]["properties"].keys()
    assert re.fullmatch("[a-z]([-a-z0-9]{0,1022}[a-z0-9])?", launch["jobName"])
    assert (found["prepare"]["location"], found["prepare"]["project_id"]) == ("europe-west4", "project")


def test_another_runner_is_refused_when_the_dag_is_read(airflow: Airflow) -> None:
    (error,) = airflow.checks(runner="spark")["import_errors"].values()
    assert "beam_prep_runner is 'spark', wanted direct, flink or dataflow" in error
