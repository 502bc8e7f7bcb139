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


def given(place: int, *names: str) -> set[str]:
    """The strings that stand at this place of the calls of a function, method or class."""
    calls = [node for node in CODE if isinstance(node, ast.Call) and len(node.args) > place]
    found = [call.args[place] for call in calls if getattr(call.func, "attr", getattr(call.func, "id", "")) in names]
    return {each.value for each in found if isinstance(each, ast.Constant) and isinstance(each.value, str)}


def test_every_reason_in_the_code_is_in_the_tables() -> None:
    classes = [node for node in CODE if isinstance(node, ast.ClassDef)]
    made = [node.name for node in classes if any(getattr(base, "id", "") == "Reject" for base in node.bases)]
    raised, rejected, dropped = given(0, "Reject", *made), given(1, "reject"), given(1, "drop")
    assert raised >= {"bad_json", "missing_field", "template_error"}
    assert raised <= set(REJECTED)
    assert rejected >= {"too_short_to_shift", "rows_without_loss", "bad_number"}
    assert rejected <= set(REJECTED)
    assert dropped >= {"empty", "rows_without_loss"}
    assert dropped <= set(DROPPED)


def test_no_reason_in_the_tables_is_one_that_nothing_gives() -> None:
    strings = {node.value for node in CODE if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    assert {*REJECTED, *DROPPED} <= strings
