"""The tables of reasons are what the code gives. tools/config_page.py makes those of docs/formats.md from them."""

import ast

from beam_prep.data.block import REASONS
from tests.conftest import ROOT

REJECTED, DROPPED = REASONS["rejected"], REASONS["dropped"]

CODE = [
    node
    for path in sorted((ROOT / "beam_prep").rglob("*.py"))
    if path.name != "block.py"
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
]


def second_argument(method: str) -> set[str]:
    """The strings that are given to `block.<method>(rows, "reason", ...)`."""
    return {
        node.args[1].value
        for node in CODE
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == method
        if len(node.args) > 1 and isinstance(node.args[1], ast.Constant) and isinstance(node.args[1].value, str)
    }


def raised() -> set[str]:
    """The reasons with which `Reject`, or a class made of it, is raised."""
    classes = {"Reject"} | {
        node.name
        for node in CODE
        if isinstance(node, ast.ClassDef) and any(getattr(base, "id", "") == "Reject" for base in node.bases)
    }
    return {
        node.args[0].value
        for node in CODE
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in classes
        if node.args and isinstance(node.args[0], ast.Constant) and isinstance(node.args[0].value, str)
    }


def test_every_reason_in_the_code_is_in_the_tables() -> None:
    assert raised() >= {"bad_json", "missing_field", "template_error"}
    assert raised() <= set(REJECTED)
    assert second_argument("reject") >= {"too_short_to_shift", "rows_without_loss", "bad_number"}
    assert second_argument("reject") <= set(REJECTED)
    assert second_argument("drop") >= {"empty", "rows_without_loss"}
    assert second_argument("drop") <= set(DROPPED)


def test_no_reason_in_the_tables_is_one_that_nothing_gives() -> None:
    strings = {node.value for node in CODE if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    assert {*REJECTED, *DROPPED} <= strings
