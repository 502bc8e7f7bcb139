"""The environments in which outputs are trained on, built once into the cache folder; prints the Python of the first.

    make test-trainers

`trainers` has TRL, Megatron and torch. PyTorch comes from PyPI with the libraries for graphics cards, whether there is
one or not: 6 GB in all. `streaming` has mosaicml-streaming and the older versions that it pins, and takes all else,
torch above all, from `trainers`.
"""

import importlib.metadata
import sys
import tomllib
import venv
from pathlib import Path

from tests.conftest import ROOT
from tests.engines.build import BuildError, Part, build, digest, folder_of, install
from tests.engines.conftest import missing

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
NO_DEPS = Path(__file__).with_name("no-deps.txt")
STREAMING = Path(__file__).with_name("mds-requirements.txt")


def environment() -> Part:
    """TRL, Megatron, OLMo-core, torchtune and torch, pinned, and what those and beam_prep need; not beam_prep."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    # What is pinned comes first; what pyproject.toml has had since then is found by uv.
    wanted = [*project["dependencies"], *project["optional-dependencies"]["trainers"]]

    def make(folder: Path) -> None:
        venv.create(folder, with_pip=True)
        install(python_of(folder), "--requirement", str(REQUIREMENTS), *wanted, complete=False)
        install(python_of(folder), "--no-deps", "--requirement", str(NO_DEPS), complete=False)

    return Part(digest([REQUIREMENTS.read_text(), NO_DEPS.read_text(), *wanted]), (), make)


def streaming() -> Part:
    """mosaicml-streaming, above the packages of `environment`."""
    trainers = environment()

    def make(folder: Path) -> None:
        venv.create(folder, with_pip=True)
        (packages,) = folder.glob("lib/python*/site-packages")
        (shared,) = folder_of("trainers", trainers).glob("lib/python*/site-packages")
        (packages / "trainers.pth").write_text(f"{shared}\n")
        there = {
            f"{each.name.lower()}=={each.version}" for each in importlib.metadata.distributions(path=[str(shared)])
        }
        pinned = [line for line in STREAMING.read_text().splitlines() if not line.startswith("#")]
        install(python_of(folder), "--no-deps", *(line for line in pinned if line not in there), complete=False)

    return Part(digest([STREAMING.read_text(), trainers.version]), (), make)


def streaming_python() -> str:
    """The Python of `streaming`; skips the test where that is not built."""
    python = python_of(folder_of("streaming", streaming()))
    return python if Path(python).exists() else missing("mosaicml-streaming is not built: make test-trainers")


def python_of(folder: Path) -> str:
    """The environment's Python."""
    return str(folder / "bin" / "python")


def main() -> int:
    """Builds them unless they are there; gives the exit code."""
    parts = {"trainers": environment(), "streaming": streaming()}
    for name, part in parts.items():
        folder = folder_of(name, part)
        try:
            done = build(name, part)
        except BuildError as error:
            print(f"{folder}: FAILED: {error}", file=sys.stderr)
            return 1
        print(f"{folder}: {done}", file=sys.stderr)
    print(python_of(folder_of("trainers", parts["trainers"])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
