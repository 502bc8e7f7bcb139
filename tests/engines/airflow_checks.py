"""Run by `test_airflow.py` in Airflow's own environment, which has neither pytest nor beam_prep. Prints JSON.

python airflow_checks.py FOLDER   the DAG as Airflow reads it, and what its task `prepare` is told
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


if __name__ == "__main__":
    print(json.dumps(show(sys.argv[1])))
