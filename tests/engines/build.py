"""What the tests on real engines need, built once into the cache folder: `make engines`.

    python -m tests.engines.build            everything that is not there
    python -m tests.engines.build prism      only this part, and without the part's programs an error

Every part is pinned and has a folder of its own, named by its version. A folder counts only once its mark is in it,
which is written last: what was interrupted is made again.
"""

import functools
import hashlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import filelock
from packaging.requirements import Requirement

from tests.conftest import ROOT
from tests.engines.conftest import ENGINES, missing

FLINK = "1.19.3"
JOB_SERVER = "2.70.0"
BEAM = "2.77.0"
VERSITYGW = "1.8.0"
AIRFLOW = Path(__file__).with_name("airflow-requirements.txt")
EXTRAS = ("array_record", "aws", "fast", "gcp", "hdf5")
"""Of our package, for workers."""

_MARK = ".built"


@dataclass(frozen=True)
class Part:
    """One thing to build.

    Attributes:
        version: names the folder, with the part's name.
        programs: what has to be on this machine.
        make: builds it into an empty folder.
    """

    version: str
    programs: tuple[str, ...]
    make: Callable[[Path], None]


class BuildError(Exception):
    """A part could not be built."""


def built(name: str) -> Path:
    """The folder of a part; skips the test where it was not built."""
    folder = _folder(name)
    if not (folder / _MARK).exists():
        missing(f"{name} is not built ({folder}): make engines")
    return folder


def _folder(name: str) -> Path:
    return folder_of(name, parts()[name])


def folder_of(name: str, part: Part) -> Path:
    """Where a part lies, or will."""
    return ENGINES / f"{name}-{part.version}"


def build(name: str, part: Part) -> str:
    """Builds a part unless it is there; gives what was done, in words."""
    folder = folder_of(name, part)
    if (folder / _MARK).exists():
        return "is there"
    if absent := [program for program in part.programs if shutil.which(program) is None]:
        return f"LEFT OUT: no {' and no '.join(absent)} on this machine"
    ENGINES.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(ENGINES / f".{name}.lock"):
        if (folder / _MARK).exists():
            return "is there"
        started = time.monotonic()
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        part.make(folder)
        (folder / _MARK).touch()
    return f"built in {time.monotonic() - started:.0f} s"


def _call(*command: str, **environment: str) -> None:
    """Runs a program; what it says is shown only if it fails."""
    settings = {**os.environ, **environment}
    done = subprocess.run(command, env=settings, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise BuildError(f"{' '.join(command)}\nended with code {done.returncode}:\n{done.stdout[-4000:]}")


def _flink(folder: Path) -> None:
    """The cluster's jars, of the archive from PyPI (of which pip needs no more than to download it)."""
    with tempfile.TemporaryDirectory(dir=ENGINES) as download:
        wanted = f"apache-flink-libraries=={FLINK}"
        _call(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", wanted, "--dest", download)
        (archive,) = Path(download).glob("*.tar.gz")
        with tarfile.open(archive) as files:
            for file in files:
                name = Path(file.name).name
                if name.endswith(".jar") and name.startswith(("flink-dist", "log4j", "bash-java-utils")):
                    file.name = name
                    files.extract(file, folder, filter="data")


def _job_server(folder: Path) -> None:
    """The job server's jars, and one that holds nothing but their names, for `--flink_job_server_jar`."""
    pom = Path(__file__).with_name("job_server") / "pom.xml"
    goal = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
    lib = folder / "lib"
    _call(
        "mvn", "--batch-mode", "--quiet", "--file", str(pom), goal, f"-DoutputDirectory={lib}", "-DincludeScope=runtime"
    )
    main = "org.apache.beam.runners.flink.FlinkJobServerDriver"
    write_jar(folder / "job_server.jar", main, sorted(lib.glob("*.jar")))


def write_jar(path: Path, main: str, jars: Sequence[Path]) -> None:
    """A jar with a manifest alone: the class to run, and where its classes lie."""
    text = f"Manifest-Version: 1.0\nMain-Class: {main}\nClass-Path: {' '.join(jar.as_uri() for jar in jars)}\n"
    lines = []
    for line in text.splitlines():  # of at most 72 bytes; a line that begins with a space goes on
        lines.append(line[:70])
        lines += [f" {line[start : start + 69]}" for start in range(70, len(line), 69)]
    with zipfile.ZipFile(path, "w") as jar:
        jar.writestr("META-INF/MANIFEST.MF", "\n".join(lines) + "\n")


def _go(module: str, version: str) -> Callable[[Path], None]:
    return lambda folder: _call("go", "install", f"{module}@v{version}", GOBIN=str(folder))


def _python(folder: Path) -> None:
    """An environment with what our sdist pulls in, but not with us: see `workers`."""
    _call(sys.executable, "-m", "venv", str(folder))
    python = str(folder / "bin" / "python")
    install(python, "--no-deps", *requirements())


def _airflow(folder: Path) -> None:
    """Airflow with its providers, in the versions that were found to go together."""
    _call(sys.executable, "-m", "venv", str(folder))
    python = str(folder / "bin" / "python")
    install(python, "--no-deps", "--requirement", str(AIRFLOW))


def install(python: str, *arguments: str, complete: bool = True) -> None:
    """Installs packages for a Python with uv: pip unpacks one after the other, and takes several times as long.

    Args:
        python: the Python of an environment.
        arguments: of `uv pip install`.
        complete: it is an error if one of the packages needs another one, or another version.
    """
    # No cache: the wheels would lie on the disk beside what they hold.
    _call(sys.executable, "-m", "uv", "pip", "install", "--no-cache", "--python", python, *arguments)
    if complete:
        _call(sys.executable, "-m", "uv", "pip", "check", "--python", python)


def requirements() -> list[str]:
    """What our sdist pulls in, with its extras for workers, in the launcher's versions: `name==version`.

    Workers want the launcher's: Beam pickles what it sends, and tokens are a function of the version of `tokenizers`.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *(line for name in EXTRAS for line in extras.get(name, []))]
    # The boot program installs without a build environment of its own.
    todo = [Requirement(line) for line in (*wanted, "pip", "setuptools", "wheel")]
    found: dict[str, str] = {}
    seen: set[str] = set()
    while todo:
        need = todo.pop()
        if str(need) in seen:
            continue
        seen.add(str(need))
        try:
            have = importlib.metadata.distribution(need.name)
        except importlib.metadata.PackageNotFoundError:
            raise BuildError(f"{need} is not installed: pip install -e '.[dev,engines]'") from None
        found[have.name.lower().replace("_", "-")] = have.version
        for line in have.requires or []:
            further = Requirement(line)
            if further.marker is None or any(further.marker.evaluate({"extra": extra}) for extra in {"", *need.extras}):
                todo.append(further)
    return sorted(f"{name}=={version}" for name, version in found.items())


def digest(requirements: Sequence[str]) -> str:
    """Of this Python and what is installed for it: the name of an environment."""
    return hashlib.sha256("\n".join([sys.version, *requirements]).encode()).hexdigest()[:12]


@functools.cache
def parts() -> dict[str, Part]:
    """Everything that `make engines` builds."""
    return {
        "flink": Part(FLINK, ("java",), _flink),
        "job_server": Part(JOB_SERVER, ("java", "mvn"), _job_server),
        "boot": Part(BEAM, ("go",), _go("github.com/apache/beam/sdks/v2/python/container", BEAM)),
        "prism": Part(BEAM, ("go",), _go("github.com/apache/beam/sdks/v2/go/cmd/prism", BEAM)),
        "versitygw": Part(VERSITYGW, ("go",), _go("github.com/versity/versitygw/cmd/versitygw", VERSITYGW)),
        "python": Part(digest(requirements()), (), _python),
        "airflow": Part(digest([AIRFLOW.read_text()]), (), _airflow),
    }


def main(names: Sequence[str]) -> int:
    """Builds the parts named, or all; gives the exit code."""
    if unknown := set(names) - set(parts()):
        print(f"no part {', '.join(sorted(unknown))}; there are {', '.join(parts())}", file=sys.stderr)
        return 2
    failed = False
    with ThreadPoolExecutor() as pool:  # one waits for the network while another compiles
        started = {name: pool.submit(build, name, parts()[name]) for name in names or parts()}
        for name, building in started.items():
            try:
                done = building.result()
            except BuildError as error:
                failed, done = True, f"FAILED: {error}"
            print(f"{_folder(name)}: {done}", flush=True)
            failed |= bool(names) and done.startswith("LEFT OUT")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
