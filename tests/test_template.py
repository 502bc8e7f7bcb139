"""The Dataflow template says what the options say, and its files say the same of each other."""

import json
import re
from pathlib import Path
from typing import Any

import hcl2
import pytest

from beam_prep.options import OPTIONS
from pipelines.dataflow import template
from tests.conftest import ROOT

FOLDER = ROOT / "pipelines" / "dataflow"
PARAMETERS = {entry["name"]: entry for entry in json.loads((FOLDER / "metadata.json").read_text())["parameters"]}
# The types of the API that this template uses: github.com/googleapis, dataflow v1beta3, ParameterType.


def terraform(name: str) -> Any:
    """A file of the module, by Terraform's grammar."""
    text = (FOLDER / "terraform" / name).read_text()
    return hcl2.loads(text, serialization_options=hcl2.SerializationOptions(strip_string_quotes=True))


def variables(name: str) -> dict[str, Any]:
    return {key: value for block in terraform(name)["variable"] for key, value in block.items()}


@pytest.mark.parametrize("path", template.files(), ids=lambda path: path.name)
def test_generated_files_are_up_to_date(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == template.files()[path], "make template"


def test_every_option_is_a_parameter_or_left_out_with_a_reason() -> None:
    assert PARAMETERS.keys() == {option.name for option in OPTIONS if option.in_form}
    assert {option.name for option in OPTIONS if not option.in_form} == {"dry_run", "wait", "verbose"}


def test_every_terraform_variable_is_used_and_every_used_one_is_there() -> None:
    text = "".join(path.read_text() for path in sorted((FOLDER / "terraform").glob("*.tf")))
    assert {*variables("variables.tf"), *PARAMETERS} == {*re.findall(r"\bvar\.(\w+)", text)}
    jobs = [block for block in terraform("main.tf")["resource"] if "google_dataflow_flex_template_job" in block]
    job = jobs[0]["google_dataflow_flex_template_job"]["beam_prep"]
    assert job["container_spec_gcs_path"] == "${var.template}"
    assert job["parameters"] == "${local.parameters}"
    assert {output for block in terraform("outputs.tf")["output"] for output in block} == {"job_id", "state", "job_url"}


def test_the_module_in_the_docs_has_all_that_must_be_given() -> None:
    text = (ROOT / "docs" / "dataflow.md").read_text()
    (shown,) = re.findall(r"^```hcl\n(.*?)^```$", text, re.M | re.S)
    example = hcl2.loads(shown)["module"][0]
    (given,) = example.values()
    needed = {**variables("variables.tf"), **variables("parameters.tf")}
    assert given.keys() - {"source", "__is_block__"} <= needed.keys()
    assert {name for name, variable in needed.items() if "default" not in variable} <= given.keys()


def test_image_requirements_and_project_name_one_beam() -> None:
    dockerfile = (FOLDER / "Dockerfile").read_text()
    (version,) = re.findall(r"^apache-beam(?:\[\w+\])?==(\S+)", (FOLDER / "requirements.txt").read_text(), re.M)
    assert re.findall(r"apache/beam_python3\.11_sdk:(\S+)", dockerfile) == [version]
    # Either would install at every launch what the image has.
    instructions = "\n".join(line for line in dockerfile.splitlines() if not line.startswith("#"))
    assert not re.search("REQUIREMENTS_FILE|SETUP_FILE", instructions)
