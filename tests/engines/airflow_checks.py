"""Run by `test_airflow.py` in Airflow's own environment, which has neither pytest nor beam_prep. Prints JSON.

python airflow_checks.py dag FOLDER          the DAG as Airflow reads it, and what its task `prepare` is told
python airflow_checks.py call FOLDER CALLS   what functions of nightly_refresh_tasks give, or raise
"""

import datetime
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from airflow.dag_processing.dagbag import BundleDagBag
from airflow.sdk import DAG
from airflow.sdk.definitions.xcom_arg import XComArg
from airflow.sdk.exceptions import AirflowException
from airflow.sdk.execution_time.context import VariableAccessor


def rendered(dag: DAG, value: Any) -> Any:
    """A value of an operator with its templates filled in, for the day 2026-01-02; files come from the task before."""
    if isinstance(value, dict):
        return {key: rendered(dag, one) for key, one in value.items()}
    if isinstance(value, XComArg):
        return "@gs://bucket/prepared/inputs/2026-01-02.txt"
    if not isinstance(value, str):
        return value
    context = {
        "params": {"day": None},
        "data_interval_start": datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC),
        "dag_run": SimpleNamespace(start_date=datetime.datetime(2026, 1, 3, 0, 10, tzinfo=datetime.UTC)),
        "var": {"value": VariableAccessor(deserialize_json=False)},
    }
    return dag.get_template_env().from_string(value).render(context)


def show(folder: str) -> dict[str, Any]:
    """What Airflow makes of the folder's DAGs."""
    bag = BundleDagBag(folder, bundle_path=Path(folder), bundle_name="dags-folder")
    if bag.import_errors:
        return {"import_errors": bag.import_errors}
    dag = bag.dags["nightly_refresh"]
    prepare = dag.get_task("prepare")
    fields = ("runner", "py_interpreter", "py_options", "py_file", "pipeline_options", "body", "location", "project_id")
    return {
        "import_errors": {},
        "dags": list(bag.dags),
        "tasks": {task.task_id: sorted(task.upstream_task_ids) for task in dag.tasks},
        "catchup": dag.catchup,
        "max_active_runs": dag.max_active_runs,
        "operators": [base.__name__ for base in type(prepare).__mro__],
        "prepare": {field: rendered(dag, getattr(prepare, field)) for field in fields if hasattr(prepare, field)},
    }


def resumed(output: str, started: float, message: str = "the job has failed") -> None:
    """What happens when the trigger of a deferred job, which began at `started`, tells that it failed."""
    import nightly_refresh_tasks as tasks

    class Operator:
        def execute_complete(self, context: Any, event: dict[str, str]) -> None:
            raise AirflowException(event["message"])

    class Prepare(tasks.KnowsExitCodes, Operator):
        @property
        def options(self) -> dict[str, Any]:
            return {"output_dir": output}

    began = datetime.datetime.fromtimestamp(started, datetime.UTC)
    Prepare().execute_complete({"ti": SimpleNamespace(start_date=began)}, {"message": message})


def call(name: str, arguments: list[Any]) -> list[Any]:
    """["gave", value], or the kind and the text of an Airflow exception."""
    import nightly_refresh_tasks as tasks

    try:
        return ["gave", (resumed if name == "resumed" else getattr(tasks, name))(*arguments)]
    except AirflowException as error:
        return [type(error).__name__, str(error)]


if __name__ == "__main__":
    what, folder, *rest = sys.argv[1:]
    if what == "dag":
        print(json.dumps(show(folder)))
    else:
        sys.path.insert(0, folder)
        print(json.dumps([call(name, arguments) for name, arguments in json.loads(rest[0])]))
