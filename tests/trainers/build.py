"""The environment in which outputs are trained on, built once into the cache folder; prints its Python.

    make test-trainers

PyTorch comes from PyPI with the libraries for graphics cards, whether there is one or not: 6 GB in all.
"""

import sys
import tomllib
import venv
from pathlib import Path

from tests.conftest import ROOT
from tests.engines.build import BuildError, Part, build, digest, folder_of, pip

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
OLMO = Path(__file__).with_name("olmo.txt")


def environment() -> Part:
    """TRL, torch and OLMo-core in their pinned versions, and what those and beam_prep need, but not beam_prep."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    # What is pinned comes first; what pyproject.toml has had since then is found by pip.
    wanted = [*project["dependencies"], *project["optional-dependencies"]["trainers"]]

    def make(folder: Path) -> None:
        venv.create(folder, with_pip=True)
        # No cache: the wheels would lie on the disk beside what they hold.
        pip(python_of(folder), "install", "--no-cache-dir", "--requirement", str(REQUIREMENTS), *wanted)
        pip(python_of(folder), "install", "--no-cache-dir", "--no-deps", "--requirement", str(OLMO))

    return Part(digest([REQUIREMENTS.read_text(), OLMO.read_text(), *wanted]), (), make)


def python_of(folder: Path) -> str:
    """The environment's Python."""
    return str(folder / "bin" / "python")


def main() -> int:
    """Builds it unless it is there; gives the exit code."""
    part = environment()
    folder = folder_of("trainers", part)
    try:
        done = build("trainers", part)
    except BuildError as error:
        print(f"{folder}: FAILED: {error}", file=sys.stderr)
        return 1
    print(f"{folder}: {done}", file=sys.stderr)
    print(python_of(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
