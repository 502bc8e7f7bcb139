"""Every night: the files of all days so far become a version of training data, to which `latest` points.

    list_inputs -> prepare -> verify -> tell

docs/airflow.md says how to install it, what each task does, and what retries and backfills do.
"""

import os
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import DAG, Asset, CronDataIntervalTimetable, Param, task
from nightly_refresh_tasks import KnowsExitCodes, day_inputs, keep_list, still_latest, verified

# An Airflow variable from the environment: the only kind that costs nothing when the file is parsed.
RUNNER = os.environ.get("AIRFLOW_VAR_BEAM_PREP_RUNNER", "direct")
PYTHON = "{{ var.value.get('beam_prep_python', 'python3') }}"  # has beam_prep; Airflow's own Python need not
OUTPUTS = "{{ var.value.beam_prep_outputs }}"
DAY = "{{ params.day or data_interval_start | ds }}"
DATA = f"{OUTPUTS}/data"
# The same for all tries of a task, another when a day is run again.
VERSION_NAME = "{{ (params.day or data_interval_start | ds) | replace('-', '') }}T{{ dag_run.start_date | ts_nodash }}"
KEEP = 7  # versions
TRAINING_DATA = Asset("beam_prep_training_data")

DIRECT = {"direct_running_mode": "multi_processing", "direct_num_workers": "0"}  # one worker process per core
FLINK = {
    "flink_master": "{{ var.value.beam_prep_flink_master }}",
    "environment_type": "EXTERNAL",  # a worker pool beside every TaskManager
    "environment_config": "{{ var.value.get('beam_prep_flink_workers', 'localhost:50000') }}",
    "flink_job_server_jar": "{{ var.value.get('beam_prep_flink_job_server_jar', '') }}",  # "": Beam downloads it
}
# https://cloud.google.com/dataflow/docs/reference/rest/v1b3/projects.locations.flexTemplates/launch
DATAFLOW = {"tempLocation": "{{ var.value.beam_prep_temp }}", "maxWorkers": 10}


def prepare(options: dict[str, Any]) -> Any:
    """The task that runs the job, on the runner that RUNNER names."""
    if RUNNER == "dataflow":
        from airflow.providers.google.cloud.operators.dataflow import DataflowStartFlexTemplateOperator

        class PrepareOnDataflow(KnowsExitCodes, DataflowStartFlexTemplateOperator):
            @property
            def options(self) -> dict[str, Any]:
                return self.body["launchParameter"]["parameters"]

        launch = {
            "jobName": f"nightly-refresh-{DAY}",
            "containerSpecGcsPath": "{{ var.value.beam_prep_template }}",
            "parameters": options,
            "environment": DATAFLOW,
        }
        return PrepareOnDataflow(
            task_id="prepare",
            body={"launchParameter": launch},
            project_id="{{ var.value.beam_prep_project }}",
            location="{{ var.value.beam_prep_region }}",
            deferrable=True,
        )

    from airflow.providers.apache.beam.operators.beam import BeamRunPythonPipelineOperator

    class Prepare(KnowsExitCodes, BeamRunPythonPipelineOperator):
        template_fields = (*BeamRunPythonPipelineOperator.template_fields, "py_interpreter")

        @property
        def options(self) -> dict[str, Any]:
            return self.pipeline_options

    runners = {"direct": ("DirectRunner", DIRECT), "flink": ("FlinkRunner", FLINK)}
    if RUNNER not in runners:
        raise ValueError(f"beam_prep_runner is {RUNNER!r}, wanted direct, flink or dataflow")
    runner, settings = runners[RUNNER]
    return Prepare(
        task_id="prepare",
        py_interpreter=PYTHON,
        py_options=["-m", "beam_prep.cli"],
        py_file="run",  # Airflow calls `PYTHON -m beam_prep.cli run --runner=... --output_dir=...`
        runner=runner,
        pipeline_options={**options, **settings},
    )


with DAG(
    "nightly_refresh",
    description=__doc__.splitlines()[0],
    # The interval of a run is one entire day; Airflow's own cron schedules have an interval of length zero.
    schedule=CronDataIntervalTimetable("0 0 * * *", timezone="UTC"),
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 3, "retry_delay": timedelta(minutes=10)},
    params={"day": Param(None, type=["null", "string"], format="date", description="this day instead of the run's")},
    doc_md=__doc__,
):

    @task
    def list_inputs(root: str, outputs: str, day: str) -> str:
        return keep_list(outputs, day, day_inputs(root, day))

    @task
    def verify(python: str, data: str, version_name: str) -> dict[str, Any]:
        return verified(python, data, version_name)

    @task(outlets=[TRAINING_DATA])
    def tell(data: str, day: str, found: dict[str, Any], *, outlet_events: Any) -> None:
        outlet_events[TRAINING_DATA].extra = {"day": day, **still_latest(data, found)}

    prepared = prepare(
        {
            "inputs": list_inputs("{{ var.value.beam_prep_inputs }}", OUTPUTS, DAY),
            "output_dir": DATA,
            "keep_versions": str(KEEP),
            "version_name": VERSION_NAME,
            "config": "{{ var.value.beam_prep_config }}",
            "tokenizer_path": "{{ var.value.beam_prep_tokenizer }}",
            "cache_dir": f"{OUTPUTS}/token_cache",  # kept: the next night tokenises only what is new
        }
    )
    found = verify(PYTHON, DATA, VERSION_NAME)
    prepared >> found
    tell(DATA, DAY, found)
