"""Draws mutants of the data path, tries each with the tests of its room, and says which go unnoticed.

    pip install cosmic-ray
    git clone . ../scratch
    python -m tools.drawn_mutants ../scratch --seed 1 --count 200

Its operators are cosmic-ray's. A place in the code is drawn first, then an operator there; annotations are no places.
Each mutant is written into the clone, tried with the tests of its room (those that import its module first), then
with tests of whole jobs, and taken back.
"""

import argparse
import ast
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import parso.python.tree  # noqa: F401  (before cosmic-ray, which imports it in a circle)
from cosmic_ray import plugins  # type: ignore[import-not-found]
from cosmic_ray.ast import ast_nodes, get_ast  # type: ignore[import-not-found]
from cosmic_ray.mutating import mutate_code  # type: ignore[import-not-found]

TESTS = {
    "chat": "chat test_masks_real test_messages test_mask_options test_turns_apart test_loss_weights test_preference",
    "reading": "reading test_bad_data test_bad_paths test_keep_fields test_decontaminate test_rollouts test_sources "
    "test_date test_loss_weights storage/test_tables",
    "tokens": "tokens test_backends test_check test_loss_weights test_mask_options test_packing test_fim_exact",
    "data": "data test_fim_exact shards formats tokens reading",
    "shards": "shards compose test_packing test_report test_groups formats",
    "formats": "formats readers test_verify test_inspect",
    "transforms": "transforms compose test_chains test_groups",
}
"""Room -> its tests."""
JOBS = "test_goldens_conversations test_goldens_sections test_configs test_template_command"
JOBS += " test_messages test_inspect_page test_resume"
"""Tests of whole jobs."""

Place = tuple[int, int]


def mutants(path: Path) -> Iterator[tuple[Place, str, int]]:
    """(place, operator, its occurrence in the file) of all mutants of a file."""
    source = path.read_text()
    annotations = [
        ((found.lineno, found.col_offset), (found.end_lineno, found.end_col_offset))
        for node in ast.walk(ast.parse(source))
        for found in (getattr(node, "annotation", None), getattr(node, "returns", None))
        if found is not None
    ]
    tree = get_ast(source)
    for name in plugins.operator_names():
        kind = plugins.get_operator(name)
        if kind.arguments() or "NoOp" in name:
            continue
        positions = (place for node in ast_nodes(tree) for place, _ in kind().mutation_positions(node))
        for occurrence, place in enumerate(positions):
            if not any(begin <= place < end for begin, end in annotations):
                yield place, name, occurrence


def is_noticed(root: Path, path: Path) -> str:
    """The first test that fails with a module as it is, or "" where none does: files that import it are tried first."""
    there: list[Path] = []
    imported = f"from beam_prep.{path.parent.name}.{path.stem} import"
    for tests in (TESTS[path.parent.name], JOBS):
        found = [each for test in tests.split() for each in sorted(root.glob(f"tests/{test}/test_*.py"))]
        found += [root / "tests" / f"{test}.py" for test in tests.split() if (root / "tests" / f"{test}.py").exists()]
        there += sorted(found, key=lambda file: imported not in file.read_text())
    options = "-x -q -n 0 --timeout 120 --hypothesis-profile unshrunk -p no:cacheprovider -m"
    command = [sys.executable, "-m", "pytest", *options.split(), "not long", *dict.fromkeys(map(str, there))]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    try:
        done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=1200)
    except subprocess.TimeoutExpired:
        return "no end"
    failed = [line.split(" - ")[0] for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return "" if done.returncode == 0 else (*failed, "the tests do not start")[0]


def main() -> None:
    """Prints a line for each mutant."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path, help="a clone, which is changed and restored")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--part", default="0/1", help="K/N: only every Nth, from the Kth on")
    args = parser.parse_args()
    root, (part, parts) = args.root.resolve(), map(int, args.part.split("/"))
    places: dict[tuple[Path, Place], list[tuple[str, int]]] = {}
    for room in TESTS:
        for path in sorted((root / "beam_prep" / room).glob("*.py")):
            for place, name, occurrence in mutants(path):
                places.setdefault((path, place), []).append((name, occurrence))
    drawing = random.Random(args.seed)
    drawn = [(*each, *drawing.choice(places[each])) for each in drawing.sample(sorted(places), args.count)]
    for number, (path, (line, _), name, occurrence) in enumerate(drawn):
        if number % parts != part:
            continue
        source = path.read_text()
        mutated = mutate_code(source, plugins.get_operator(name)(), occurrence)
        try:
            path.write_text(mutated)
            noticed = is_noticed(root, path)
        finally:
            path.write_text(source)
        was, now = (text.splitlines()[line - 1].strip() for text in (source, mutated))
        print(number, f"{path.relative_to(root)}:{line}", was, now, noticed or "SURVIVES", sep="\t", flush=True)


if __name__ == "__main__":
    main()
