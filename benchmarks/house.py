"""How large the files and classes of the package are, which names are used twice, and how many files a room has.

    python benchmarks/house.py --before 3d14480                                      # that commit beside these files
    python benchmarks/house.py --before 3d14480 --markdown docs/decisions/house.md

It counts lines as `wc -l` does, comments and docstrings included. A room is a folder of `beam_prep/`.
"""

import argparse
import ast
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from _measure import ROOT, BenchmarkError
from _page import split_at_markers, table, write_markdown

PACKAGE = "beam_prep"
LONG_FILE, LONG_CLASS = 500, 200


@dataclass(frozen=True)
class Tree:
    """The modules of one version of the package: path -> text."""

    name: str
    files: dict[str, str]

    def lines(self) -> dict[str, int]:
        """Path -> its lines."""
        return {path: text.count("\n") for path, text in self.files.items()}

    def classes(self) -> dict[str, int]:
        """`path: class` -> its lines."""
        found = {}
        for path, text in self.files.items():
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.ClassDef) and node.end_lineno is not None:
                    found[f"{path}: {node.name}"] = node.end_lineno - node.lineno + 1
        return found

    def shared_names(self) -> dict[str, int]:
        """Names of classes and type aliases that have several definitions -> how many."""
        names = Counter(name for text in self.files.values() for name in _types(ast.parse(text)))
        return {name: count for name, count in sorted(names.items()) if count > 1}

    def rooms(self) -> dict[str, tuple[int, int]]:
        """Folder -> its files that are not empty, and their lines."""
        found: dict[str, list[int]] = defaultdict(list)
        for path, lines in self.lines().items():
            if lines:
                found[str(PurePosixPath(path).parent)].append(lines)
        return {room: (len(lines), sum(lines)) for room, lines in found.items()}


def _types(module: ast.Module) -> Iterator[str]:
    for node in ast.walk(module):
        if isinstance(node, ast.ClassDef):
            yield node.name
    for statement in module.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Subscript):
            for target in statement.targets:
                if isinstance(target, ast.Name) and target.id.lstrip("_")[:1].isupper() and not target.id.isupper():
                    yield target.id


def of_commit(commit: str) -> Tree:
    """The package as it was at a commit.

    Raises:
        BenchmarkError: git does not have it.
    """
    names = _git("ls-tree", "-r", "--name-only", commit, f"{PACKAGE}/").splitlines()
    return Tree(
        f"before ({commit})", {name: _git("show", f"{commit}:{name}") for name in names if name.endswith(".py")}
    )


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise BenchmarkError(f"git {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def of_this_checkout() -> Tree:
    """The package as it is."""
    paths = sorted((ROOT / PACKAGE).rglob("*.py"))
    return Tree("after", {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in paths})


def report(trees: list[Tree]) -> str:
    """Two tables: sizes and names; files and lines of each room."""
    rows = [
        ["files that are not empty", *(f"{sum(map(bool, tree.files.values()))}" for tree in trees)],
        ["lines", *(f"{sum(tree.lines().values()):,}" for tree in trees)],
        ["largest file", *(_largest(tree.lines()) for tree in trees)],
        [f"files of more than {LONG_FILE} lines", *(_above(tree.lines(), LONG_FILE) for tree in trees)],
        ["largest class", *(_largest(tree.classes()) for tree in trees)],
        [f"classes of more than {LONG_CLASS} lines", *(_above(tree.classes(), LONG_CLASS) for tree in trees)],
        ["names of several classes or type aliases", *(_names(tree.shared_names()) for tree in trees)],
    ]
    names = [tree.name for tree in trees]
    rooms = sorted({room for tree in trees for room in tree.rooms()})
    by_room = [[f"`{room}/`", *(_room(tree.rooms().get(room)) for tree in trees)] for room in rooms]
    sizes = table(["", *names], rows, left=range(len(trees) + 1))
    return f"{sizes}\n\n{table(['room: files, lines', *names], by_room, left=[0])}"


def _short(path: str) -> str:
    return f"`{path.removeprefix(f'{PACKAGE}/')}`"


def _largest(sizes: dict[str, int]) -> str:
    name, size = max(sizes.items(), key=lambda item: item[1])
    return f"{_short(name)}, {size:,}"


def _above(sizes: dict[str, int], limit: int) -> str:
    return str(sum(size > limit for size in sizes.values()))


def _names(names: dict[str, int]) -> str:
    listed = ", ".join(f"`{name}` {count}" for name, count in names.items())
    return f"{len(names)}: {listed}" if names else "0"


def _room(found: tuple[int, int] | None) -> str:
    return "" if found is None else f"{found[0]}, {found[1]:,}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", metavar="COMMIT", help="show this commit beside the files of this checkout")
    parser.add_argument("--markdown", type=Path, metavar="PAGE", help="write the tables into this page")
    given = parser.parse_args()
    try:
        if given.markdown is not None:
            split_at_markers(given.markdown, "house")
        text = report([*([of_commit(given.before)] if given.before else []), of_this_checkout()])
        if given.markdown is not None:
            write_markdown(given.markdown, "house", text)
    except BenchmarkError as error:
        sys.exit(f"house.py: {error}")
    print(text)


if __name__ == "__main__":
    main()
