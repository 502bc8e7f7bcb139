"""A room imports rooms that stand before it in `ROOMS`, as CONTRIBUTING.md says."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.conftest import ROOT

PACKAGE = ROOT / "beam_prep"
RENDERER = "environment facts limits messages origins renderer replay template trace turns".split()
"""Modules of `chat` that are a room of their own, `chat.template`: they know templates and no records."""

ROOMS = [
    *("_version", "errors", "hints", "process"),
    *("data", "reading", "tokens", "chat.template", "chat", "shards"),
    *("options", "progress", "formats", "verify", "testing", "config"),
    *("storage", "output_claim", "runners", "readers", "inspect", "transforms", "recipe"),
    *("sample", "preview", "audit", "starter", "beam_yaml", "first_records", "pipeline"),
    *("dry_run", "replay", "__init__", "cli"),
]
DATA = ["data", "reading", "tokens", "shards", "chat.template", "chat"]
ALONE = ["_version", "errors", "hints", "process"]
"""They import nothing of the package."""
KNOW_NO_CONFIG = [*DATA, "formats", "verify", "readers", "inspect", "storage", "transforms"]
WITHOUT_BEAM = ["_version", "errors", *DATA, "config", "formats", "verify", "readers", "inspect"]
WITHOUT_BEAM += ["options", "progress"]
SEEN_BY_BEAM = ["storage", "transforms", "recipe", "beam_yaml", "pipeline", "first_records", "output_claim", "replay"]
SEEN_BY_BEAM += ["runners", "testing"]
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


def imported(rooms: list[str]) -> Iterator[tuple[str, str, str]]:
    """(room, its place, module) of every import in the rooms."""
    for room in rooms:
        for path in files(room):
            yield from ((room, f"{path.relative_to(ROOT)}:{line}", module) for line, module in imports(path))


def test_every_room_has_its_place() -> None:
    found = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert found | {"chat.template"} == {*ROOMS}
    assert len(ROOMS) == len({*ROOMS})


def test_a_room_imports_rooms_before_it() -> None:
    before = {room: {None, *ROOMS[: ROOMS.index(room) + 1]} for room in ROOMS}
    before |= {room: {None, room} for room in ALONE}
    wrong = {(where, name) for room, where, name in imported(ROOMS) if part_of(name) not in before[room]}
    assert wrong == set()
    assert {where for _, where, name in imported(KNOW_NO_CONFIG) if part_of(name) == "config"} == set()


def test_no_beam_where_none_is_needed() -> None:
    assert {where for _, where, name in imported(WITHOUT_BEAM) if "apache_beam" in name} == set()


def test_nothing_of_another_library_is_replaced() -> None:
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
        others = {(each.asname or each.name).partition(".")[0] for node in imports for each in node.names}
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "setattr"]
        assert others.isdisjoint(ast.unparse(call.args[0]).partition(".")[0] for call in calls), path


def test_annotations_are_real_where_beam_sees_them() -> None:
    # As strings they become Any: the coders of blocks are bypassed, and every block is pickled.
    paths = [path for room in SEEN_BY_BEAM for path in files(room)]
    assert [path for path in paths if "import annotations" in path.read_text(encoding="utf-8")] == []


def test_importing_is_light() -> None:
    code = f"""
import sys
import beam_prep as bp
import beam_prep.readers.dataset, beam_prep.inspect.output, beam_prep.cli
import beam_prep.config, beam_prep.formats, beam_prep.formats.cached_block, beam_prep.tokens.tokenizer
bp.open; bp.PipelineConfig.json_schema()
print(*sorted({{name.split(".")[0] for name in sys.modules}} & {HEAVY}))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
