"""The arrows of the house point one way: core <- formats <- transforms <- recipe <- pipelines."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT

PACKAGE = ROOT / "beam_prep"

# What the modules of a layer may import of the package, besides their own layer and what lies below it.
BELOW: dict[str, tuple[str, ...]] = {
    "core": ("core", "errors"),
    "formats": ("core", "errors", "formats"),
    "readers": ("core", "errors", "formats", "readers"),
    "transforms": ("core", "errors", "formats", "transforms"),
    "config": ("core", "errors"),
    "errors": (),
}
NO_BEAM = ("core", "formats", "readers", "config", "errors", "cli", "progress")
SEEN_BY_BEAM = ("transforms", "recipe", "pipeline", "testing")


def modules() -> Iterator[tuple[str, Path]]:
    """(layer, file): the layer is the folder, or the name of a module at the top."""
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).parts
        yield (parts[0] if len(parts) > 1 else path.stem), path


def imports(path: Path) -> Iterator[str]:
    """Modules that a file imports when it is imported; not those under TYPE_CHECKING or inside functions."""

    def walk(body: list[ast.stmt]) -> Iterator[str]:
        for node in body:
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                yield node.module
            elif isinstance(node, ast.If) and "TYPE_CHECKING" not in ast.dump(node.test):
                yield from walk(node.body)

    yield from walk(ast.parse(path.read_text(encoding="utf-8")).body)


CASES = [pytest.param(layer, path, id=str(path.relative_to(ROOT))) for layer, path in modules()]


@pytest.mark.parametrize(("layer", "path"), CASES)
def test_a_module_imports_only_what_lies_below_it(layer: str, path: Path) -> None:
    for name in imports(path):
        if name.startswith("apache_beam"):
            assert layer not in NO_BEAM, f"{layer} has never heard of Beam"
        if name.startswith("beam_prep.") and layer in BELOW:
            assert name.split(".")[1] in BELOW[layer], name


@pytest.mark.parametrize(("layer", "path"), CASES)
def test_type_hints_are_real_where_beam_sees_them(layer: str, path: Path) -> None:
    # Postponed annotations are strings to Beam: hints become Any, and the coders of blocks are bypassed.
    if layer in SEEN_BY_BEAM:
        assert "__future__" not in set(imports(path))


def test_launchers_define_nothing_that_runs_on_a_worker() -> None:
    for path in (ROOT / "pipelines").rglob("*.py"):
        body = ast.parse(path.read_text(encoding="utf-8")).body
        assert not any(isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Lambda) for node in body), path


@pytest.mark.parametrize("module", ["beam_prep", "beam_prep.cli", "beam_prep.readers.dataset", "beam_prep.inspect"])
def test_light_modules_import_nothing_heavy(module: str) -> None:
    heavy = ("apache_beam", "tensorflow", "transformers", "torch")
    code = f"import sys, {module}; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
