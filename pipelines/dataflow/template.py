"""Makes three things of the options of a job: the form of the template, its Terraform variables, the table in the docs.

python -m pipelines.dataflow.template        writes them, as `make template` does

A test fails if a file differs from what this gives.
"""

import json
from pathlib import Path
from typing import Any

from beam_prep.options import OPTIONS, Option, OptionKind

ROOT = Path(__file__).resolve().parents[2]

# What the console shows in the form: a text field, a list, a button that browses buckets.
PARAM_TYPES: dict[OptionKind, str] = {
    "text": "TEXT",
    "boolean": "BOOLEAN",
    "integer": "NUMBER",
    "number": "NUMBER",
    "choice": "ENUM",
    "input_file": "GCS_READ_FILE",
    "input_folder": "GCS_READ_FOLDER",
    "output_folder": "GCS_WRITE_FOLDER",
}


def parameters() -> list[dict[str, Any]]:
    """The parameters of the template, as in metadata.json; all values are strings there."""
    return [_parameter(option) for option in OPTIONS if option.in_form]


def _parameter(option: Option) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": option.name,
        "label": option.label,
        "helpText": f"{option.help[0].upper()}{option.help[1:]}. Example: {option.example}",
        "groupName": option.group,
        "paramType": PARAM_TYPES[option.kind],
        "isOptional": not option.required,
    }
    if option.default is not None:
        found["defaultValue"] = str(option.default).lower() if option.kind == "boolean" else str(option.default)
    if option.kind == "boolean":
        found["regexes"] = ["^(true|false)$"]
    if option.pattern:
        found["regexes"] = [option.pattern]
    if option.choices:
        found["enumOptions"] = [{"value": name, "label": name} for name in option.choices]
    return found


def metadata() -> str:
    """metadata.json."""
    content = {
        "name": "beam_prep",
        "description": "Raw JSONL to tokenised, loss-masked, sharded training data.",
        "streaming": False,
        "parameters": parameters(),
    }
    return json.dumps(content, indent=2) + "\n"


def terraform() -> str:
    """parameters.tf: a variable for every parameter, and the map that the job gets."""
    lines = ["# Made from beam_prep/options.py by `make template`."]
    for parameter in parameters():
        lines += ["", f'variable "{parameter["name"]}" {{']
        lines += [f"  description = {_hcl(parameter['helpText'])}", "  type        = string"]
        if parameter["isOptional"]:
            lines += ["  default     = null"]
        name = f"var.{parameter['name']}"
        fits = f"can(regex({_hcl(_regex(parameter))}, {name}))"
        lines += ["", "  validation {"]
        lines += [f"    condition     = {f'{name} == null || {fits}' if parameter['isOptional'] else fits}"]
        lines += [f"    error_message = {_hcl(f'Wanted a value like {_example(parameter)}.')}", "  }", "}"]
    names = [parameter["name"] for parameter in parameters()]
    width = max(map(len, names))
    lines += ["", "locals {", "  # Those that were not given are left to the template.", "  parameters = {"]
    lines += ["    for name, value in {"]
    lines += [f"      {name:<{width}} = var.{name}" for name in names]
    lines += ["    } : name => value if value != null", "  }", "}"]
    return "\n".join(lines) + "\n"


def _regex(parameter: dict[str, Any]) -> str:
    names = "|".join(option["value"] for option in parameter.get("enumOptions", []))
    return f"^({names})$" if names else str(parameter["regexes"][0])


def _example(parameter: dict[str, Any]) -> str:
    return str(parameter["helpText"].partition("Example: ")[2])


def _hcl(text: str) -> str:
    """A string of Terraform's language, in which `${` and `%{` begin templates."""
    return json.dumps(text, ensure_ascii=False).replace("${", "$${").replace("%{", "%%{")


START, END = "<!-- form: begin -->\n", "<!-- form: end -->\n"


def form() -> str:
    """The form as the console shows it, a table in Markdown."""
    lines = [START.rstrip(), "| group | field | shown as | filled in | below it |", "|---|---|---|---|---|"]
    group = ""
    for parameter in parameters():
        shown = "" if parameter["groupName"] == group else parameter["groupName"]
        group = parameter["groupName"]
        star = "" if parameter["isOptional"] else " *"
        value = f"`{parameter['defaultValue']}`" if "defaultValue" in parameter else ""
        text = parameter["helpText"].replace(_example(parameter), f"`{_example(parameter)}`")
        lines += [f"| {shown} | **{parameter['label']}**{star} | {_widget(parameter)} | {value} | {text} |"]
    return "\n".join([*lines, END])


def _widget(parameter: dict[str, Any]) -> str:
    kind = parameter["paramType"]
    if kind == "ENUM":
        return "list: " + ", ".join(option["value"] for option in parameter["enumOptions"])
    if kind == "BOOLEAN":
        return "list: true, false"
    return {"TEXT": "text", "NUMBER": "number"}.get(kind, "text, BROWSE")


def files() -> dict[Path, str]:
    """Every file that is made here: path -> its text."""
    page = ROOT / "docs" / "dataflow.md"
    before, _, rest = page.read_text(encoding="utf-8").partition(START)
    folder = Path(__file__).parent
    return {
        folder / "metadata.json": metadata(),
        folder / "terraform" / "parameters.tf": terraform(),
        page: before + form() + rest.partition(END)[2],
    }


if __name__ == "__main__":
    for path, text in files().items():
        path.write_text(text, encoding="utf-8")
