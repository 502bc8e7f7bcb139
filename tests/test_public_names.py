"""What `import beam_prep as bp` offers."""

import ast
import dataclasses

import apache_beam as beam

import beam_prep as bp
from tests.conftest import ROOT

# Composed by configs only.
WITHOUT_A_NAME = {"AdaptRecords", "ByGroup", "FromTokens", "InDomain"}
TRANSFORMS = [name for name in bp.__all__ if beam.PTransform in getattr(getattr(bp, name), "__mro__", ())]


def test_all_names_are_there() -> None:
    assert bp.__all__ == sorted(set(bp.__all__))
    for name in bp.__all__:
        assert getattr(bp, name) is not None
    assert {*bp.__all__, "__version__"} <= set(dir(bp))


def test_every_transform_is_public() -> None:
    bases = {"beam.PTransform", "BlockStep"}
    found = {
        node.name
        for path in (ROOT / "beam_prep" / "transforms").glob("[a-z]*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and bases & {ast.unparse(base) for base in node.bases}
    } - bases
    assert found == {*TRANSFORMS} - {"Prepare"} | WITHOUT_A_NAME
    assert {"ApplyTemplate", "BuildMask", "ReadJSONL", "Shard", "Shift", "Tokenize", "Truncate"} <= found


def test_a_transforms_docstring_says_what_goes_in_and_out() -> None:
    firsts = {name: getattr(bp, name).__doc__.splitlines()[0] for name in TRANSFORMS}
    assert [name for name, first in firsts.items() if " -> " not in first] == []


def test_beam_can_set_attributes_of_a_transform_and_hash_it() -> None:
    classes = [getattr(bp, name) for name in TRANSFORMS]
    made = [vars(each)["__dataclass_params__"] for each in classes if dataclasses.is_dataclass(each)]
    assert not any(each.frozen or each.eq for each in made)
