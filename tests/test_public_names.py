"""What `import beam_prep as bp` offers."""

import ast
import dataclasses

import apache_beam as beam
import pytest

import beam_prep as bp
from tests.conftest import ROOT


def is_transform(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, beam.PTransform)


# Composed by configs only.
WITHOUT_A_NAME = {"AdaptRecords", "ByGroup", "FromTokens", "InDomain", "MergeShards", "ViewBlocks"}
TRANSFORMS = [name for name in bp.__all__ if is_transform(getattr(bp, name))]


def test_all_names_are_there() -> None:
    assert bp.__all__ == sorted(set(bp.__all__))
    for name in bp.__all__:
        assert getattr(bp, name) is not None
    assert {*bp.__all__, "__version__"} <= set(dir(bp))


def test_the_names_that_type_checkers_see_are_the_same() -> None:
    module = ast.parse((ROOT / "beam_prep" / "__init__.py").read_text())
    guarded = next(node for node in module.body if isinstance(node, ast.If))
    seen = {alias.asname for node in ast.walk(guarded) if isinstance(node, ast.ImportFrom) for alias in node.names}
    named = {ast.unparse(node.targets[0]) for node in guarded.body if isinstance(node, ast.Assign)}
    assert seen - {None} | named == {*bp.__all__} - {"testing"}


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'beam_prep' has no attribute 'Shards'"):
        _ = bp.Shards


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


@pytest.mark.parametrize("name", bp.__all__)
def test_every_public_name_has_a_docstring(name: str) -> None:
    value = getattr(bp, name)
    # A dataclass without one gets its signature.
    assert value.__doc__
    assert not value.__doc__.startswith(f"{name}(")


@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_transforms_docstring_says_what_goes_in_and_out(name: str) -> None:
    transform = getattr(bp, name)
    first = transform.__doc__.splitlines()[0]
    assert " -> " in first, first
    if dataclasses.is_dataclass(transform):
        made = vars(transform)["__dataclass_params__"]
        assert not made.frozen  # Beam sets attributes
        assert not made.eq  # Beam wants it hashable
