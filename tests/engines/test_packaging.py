"""What a worker gets is enough for every job, without TensorFlow, and is nothing else."""

import json
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest

import beam_prep
from beam_prep.config import FORMAT_NAMES, PipelineConfig
from beam_prep.pipeline import Pipeline
from tests.conftest import ROOT, tree
from tests.engines import image, workers
from tests.test_configs import sample

# The image is built within the first test that wants it, from the network.
pytestmark = pytest.mark.timeout(1800)

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
IN_THE_IMAGE = ("array_record", "fast", "gcp", "hdf5")
PINS = image.DOCKERFILE.parent / "requirements.txt"


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Our sdist, as Beam makes it of --setup_file."""
    return workers.sdist(tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory, built_image: image.Image, sdist: Path) -> Path:
    """The Python of an environment that has the sdist, and below it what the image pins."""
    folder = tmp_path_factory.mktemp("worker")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    (site,) = folder.glob("lib/python*/site-packages")
    (below,) = built_image.python.parent.parent.glob("lib/python*/site-packages")
    (site / "below.pth").write_text(f"{below}\n")
    options = ["--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--ignore-installed"]
    subprocess.run([str(python), "-I", "-m", "pip", "install", *options, str(sdist)], cwd=folder, check=True)
    return python


def test_the_sdist_holds_the_package_and_nothing_else(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        files = {name.partition("/")[2] for name in archive.getnames() if archive.getmember(name).isfile()}
    ours = {path.relative_to(ROOT).as_posix() for path in (ROOT / "beam_prep").rglob("*.py")}
    pages = ("inspect/page.css", "inspect/page.html", "inspect/page.js", "report_page.html")
    ours |= {f"beam_prep/{name}" for name in ("beam_prep_yaml.yaml", "py.typed", *pages)}
    about = {"pyproject.toml", "setup.py", "README.md", "LICENSE", "MANIFEST.in"}
    # PKG-INFO and the like: setuptools'.
    made = {name for name in files if name.startswith("beam_prep.egg-info/")} | {"PKG-INFO", "setup.cfg"}
    assert files - made == ours | about


def test_a_worker_has_the_sdist_and_no_tensorflow(worker: Path, sdist: Path) -> None:
    code = "import beam_prep, importlib.util as u; print(beam_prep.__file__, u.find_spec('tensorflow'))"
    done = subprocess.run([str(worker), "-I", "-c", code], cwd="/", capture_output=True, text=True, check=True)
    assert done.stdout.startswith(str(worker.parent.parent))
    assert done.stdout.endswith(" None\n")


@pytest.mark.parametrize("name", ["dpo_conversation", "grpo", "sft_packed", "tools"])
def test_a_worker_runs_a_config_in_every_format(name: str, worker: Path, tmp_path: Path, tokenizer_path: str) -> None:
    config = json.loads((ROOT / "configs" / f"{name}.json").read_text())
    config.setdefault("output", {})["storage_format"] = list(FORMAT_NAMES)
    if (template := config["input"].get("chat_template")) is not None:
        (tmp_path / template).write_text((ROOT / "configs" / template).read_text())
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    arguments = [str(sample(name)), "-o", str(tmp_path / "there"), "-c", str(path), "--tokenizer_path", tokenizer_path]
    command = [str(worker), "-I", "-m", "beam_prep.cli", "run", *arguments, "--runner=FnApiRunner"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    job = Pipeline(PipelineConfig.from_json(path), [str(sample(name))], tmp_path / "here", tokenizer_path)
    job.run(["--runner=FnApiRunner"])
    assert beam_prep.open(tmp_path / "there").manifest["formats"] == list(FORMAT_NAMES)
    assert tokens(tmp_path / "there") == tokens(tmp_path / "here")


def tokens(output: Path) -> dict[str, bytes]:
    """Files that we write byte by byte: in HDF5 and Arrow files, some bytes are those of a version of their library."""
    found = {name: data for name, data in tree(output).items() if name.endswith((".bin", ".tfrecord"))}
    assert {Path(name).suffix for name in found} == {".bin", ".tfrecord"}
    return found


def compiled(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """What uv makes of the project, for the image's Python and platform."""
    makefile = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    (pin,) = re.findall(r"^PIN = \$\(BIN\)/(.*)$", makefile, re.M)
    _, *options = shlex.split(pin)
    uv = str(Path(sys.executable).parent / "uv")
    return subprocess.run([uv, *options, "pyproject.toml", *arguments], cwd=ROOT, capture_output=True, text=True)


def test_the_pinned_versions_are_those_of_the_project(tmp_path: Path) -> None:
    """uv keeps the pins of a file that it writes again: it changes only what pyproject.toml no longer asks for."""
    pins = tmp_path / "requirements.txt"
    shutil.copy(PINS, pins)
    done = compiled(*(f"--extra={name}" for name in IN_THE_IMAGE), "-o", str(pins))
    assert done.returncode == 0, done.stderr
    assert pins.read_text() == PINS.read_text(), "make requirements"
