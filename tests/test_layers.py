"""Arrows point one way, as CONTRIBUTING.md says:

data <- reading <- tokens <- shards <- formats <- storage <- transforms <- recipe <- pipelines.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT

PACKAGE = ROOT / "beam_prep"
TO_SHARDS = ("data", "reading", "tokens", "shards")
RENDERER = {
    "environment",
    "limits",
    "messages",
    "origins",
    "prefixes",
    "renderer",
    "replay",
    "template",
    "trace",
    "turns",
}
"""Modules of `chat` that are a room of their own, `chat.template`: they know templates and no records."""

# Room of the package -> the rooms that it may import. A new module takes a line here only if it opens a new room.
MAY_IMPORT = {
    "_version": set(),
    "__init__": {
        "_version",
        "config",
        "data",
        "chat",
        "reading",
        "shards",
        "tokens",
        "pipeline",
        "process",
        "readers",
        "recipe",
        "renamed",
        "replay",
        "testing",
        "transforms",
    },  # names only, at first use
    "errors": set(),
    "hints": set(),
    "renamed": set(),
    "data": {"errors"},
    "reading": {"data", "errors", "hints"},
    "tokens": {"data", "reading", "errors"},
    "chat.template": {"data", "errors"},
    "chat": {"chat.template", "data", "tokens", "reading", "errors"},
    "shards": {"data", "reading", "tokens", "errors", "hints"},
    "config": {"data", "reading", "errors", "formats", "hints", "renamed"},
    "formats": {"data", "reading", "shards", "tokens", "errors", "renamed"},
    "verify": {"data", "tokens", "shards", "errors", "formats"},
    "readers": {"data", "reading", "tokens", "shards", "errors", "formats", "hints", "storage", "verify", "process"},
    "inspect": {"data", "tokens", "reading", "shards", "errors", "formats", "readers"},
    "report_page": {"data", "tokens", "reading", "shards", "inspect"},
    "storage": {
        "_version",
        "data",
        "tokens",
        "reading",
        "shards",
        "errors",
        "formats",
        "progress",
    },
    "transforms": {*TO_SHARDS, "errors", "formats", "progress", "report_page", "storage"} | {"chat"},
    "testing": {"data", "reading", "tokens"},
    "recipe": {*TO_SHARDS, "chat", "_version", "config", "errors", "formats", "storage", "transforms"},
    "preview": {
        *TO_SHARDS,
        "config",
        "errors",
        "formats",
        "inspect",
        "readers",
        "recipe",
        "storage",
        "transforms",
    }
    | {"chat"},
    "template": {*("chat", "chat.template", "config", "errors", "inspect", "preview", "storage", "testing", "tokens")},
    "audit": {
        *TO_SHARDS,
        "chat",
        "chat.template",
        "config",
        "errors",
        "inspect",
        "readers",
        "recipe",
        "storage",
    },
    "starter": {
        "audit",
        "chat.template",
        "config",
        "data",
        "tokens",
        "reading",
        "shards",
        "errors",
        "inspect",
        "storage",
    },
    "beam_yaml": {
        *("config", "tokens", "reading", "shards"),
        *("errors", "hints", "recipe", "renamed", "storage", "transforms"),
    },
    "progress": {"data"},
    "first_records": {*TO_SHARDS, "audit", "chat", "config", "errors", "recipe", "runners", "storage"},
    "output_claim": {"data", "errors", "formats", "options", "storage", "tokens"},
    "runners": {"data", "errors", "options", "process"},
    "pipeline": {
        *TO_SHARDS,
        "config",
        "errors",
        "first_records",
        "formats",
        "options",
        "output_claim",
        "process",
        "progress",
        "recipe",
        "room",
        "runners",
        "storage",
        "transforms",
    }
    | {"chat"},
    "room": {*TO_SHARDS, "config", "formats", "recipe", "storage"},
    "dry_run": {"data", "reading", "shards", "errors", "formats", "pipeline", "recipe", "room", "storage"},
    "replay": {
        *("data", "reading"),
        *("config", "errors", "formats", "options", "pipeline", "readers", "recipe", "storage"),
    },
    "process": set(),
    "options": {"errors", "hints", "renamed"},
    "cli": {
        "__init__",
        "audit",
        "config",
        "data",
        "shards",
        "dry_run",
        "errors",
        "formats",
        "hints",
        "inspect",
        "options",
        "pipeline",
        "preview",
        "process",
        "readers",
        "recipe",
        "renamed",
        "replay",
        "report_page",
        "runners",
        "starter",
        "storage",
        "template",
        "verify",
    },
}
WITHOUT_BEAM = (
    "_version",
    "errors",
    *TO_SHARDS,
    "chat.template",
    "chat",
    "config",
    "formats",
    "verify",
    "readers",
    "inspect",
    "report_page",
    "options",
    "progress",
)
SEEN_BY_BEAM = (
    "storage",
    "room",
    "transforms",
    "recipe",
    "beam_yaml",
    "pipeline",
    "first_records",
    "output_claim",
    "replay",
    "runners",
    "testing",
)
HEAVY = {"apache_beam", "grain", "jax", "tensorflow", "torch", "transformers"}


def files(part: str) -> list[Path]:
    if part in ("chat", "chat.template"):
        found = sorted((PACKAGE / "chat").glob("*.py"))
        return [path for path in found if (path.stem in RENDERER) == (part == "chat.template")]
    folder = PACKAGE / part.replace(".", "/")
    return sorted(folder.rglob("*.py")) if folder.is_dir() else [PACKAGE / f"{part}.py"]


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, module) of every import of a file, wherever it stands in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            if node.module in ("beam_prep", "beam_prep.chat"):
                yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
            else:
                yield node.lineno, str(node.module)


def part_of(module: str) -> str | None:
    """The room of the package that a module is in; None for others' modules."""
    root, *names = module.split(".")
    if root != "beam_prep":
        return None
    if names[:1] == ["chat"] and names[1:2] and names[1] in RENDERER:
        return "chat.template"
    return (names or ["__init__"])[0]


def place(path: Path, line: int) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


def test_every_part_has_its_place() -> None:
    parts = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert parts | {"chat.template"} == MAY_IMPORT.keys()


def test_the_table_has_no_circle() -> None:
    done: set[str] = {"__init__"}
    while ready := {part for part, needs in MAY_IMPORT.items() if needs <= done} - done:
        done |= ready
    assert done == MAY_IMPORT.keys()


@pytest.mark.parametrize("part", MAY_IMPORT)
def test_arrows_point_one_way(part: str) -> None:
    wrong = [
        f"{place(path, line)} imports {module}"
        for path in files(part)
        for line, module in imports(path)
        if (other := part_of(module)) is not None and other != part and other not in MAY_IMPORT[part]
    ]
    assert wrong == []


@pytest.mark.parametrize("part", WITHOUT_BEAM)
def test_no_beam_where_none_is_needed(part: str) -> None:
    found = [place(path, line) for path in files(part) for line, module in imports(path) if "apache_beam" in module]
    assert found == []


def test_nothing_of_the_package_imports_launchers_or_tests() -> None:
    for path in PACKAGE.rglob("*.py"):
        for line, module in imports(path):
            assert module.split(".")[0] not in ("pipelines", "tests", "examples", "benchmarks", "tools"), place(
                path, line
            )


@pytest.mark.parametrize("part", SEEN_BY_BEAM)
def test_annotations_are_real_where_beam_sees_them(part: str) -> None:
    # As strings they become Any: the coders of blocks are bypassed, and every block is pickled.
    for path in files(part):
        assert "annotations" not in [
            alias.name
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.ImportFrom) and node.module == "__future__"
            for alias in node.names
        ], path


def starts_jobs(path: Path) -> bool:
    """Whether what a file in pipelines/ defines could get into a job: it imports Beam, or what builds pipelines."""
    parts = {part_of(module) for _, module in imports(path)} - {None, "options"}
    return bool(parts) or any(module.split(".")[0] == "apache_beam" for _, module in imports(path))


def test_launchers_define_nothing_that_runs_on_a_worker() -> None:
    # What __main__ defines is pickled with all that it touches. A `main` runs where it is started.
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
    launchers = [path for path in (ROOT / "pipelines").rglob("*.py") if starts_jobs(path)]
    assert {"preprocess.py", "launcher.py"} <= {path.name for path in launchers}
    for path in launchers:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found = [node for node in ast.walk(tree) if isinstance(node, kinds) and getattr(node, "name", "") != "main"]
        assert found == [], place(path, found[0].lineno)
        assert "if __name__ ==" in path.read_text(encoding="utf-8"), path


@pytest.mark.parametrize("part", sorted(MAY_IMPORT))
def test_no_heavy_import_before_it_is_needed(part: str) -> None:
    """TensorFlow and transformers wait until they are used; Beam is imported only where transforms are."""
    allowed = {"apache_beam"} if part in SEEN_BY_BEAM else set()
    for path in files(part):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:  # the top level only
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            assert not {name.split(".")[0] for name in names} & (HEAVY - allowed), place(path, node.lineno)


@pytest.mark.parametrize(
    "code",
    [
        "import beam_prep",
        "import beam_prep.readers.dataset",
        "import beam_prep.inspect.output, beam_prep.report_page",
        "import beam_prep.cli",
        "import beam_prep.config, beam_prep.formats, beam_prep.formats.cached_block, beam_prep.tokens.tokenizer",
        "import beam_prep as bp; bp.open; bp.PipelineConfig.json_schema()",
    ],
)
def test_importing_is_light(code: str) -> None:
    command = f"import sys; {code}; print(*sorted({{name.split('.')[0] for name in sys.modules}} & {HEAVY}))"
    done = subprocess.run([sys.executable, "-c", command], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
