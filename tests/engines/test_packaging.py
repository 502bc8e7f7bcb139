"""What a worker gets is enough for every job, without TensorFlow, and nothing else; the image's steps work in order."""

import json
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import beam_prep
from beam_prep.config import FORMAT_NAMES, PipelineConfig
from beam_prep.options import OPTIONS
from beam_prep.pipeline import Pipeline
from tests.conftest import ROOT, config_of, tree
from tests.engines import image, workers
from tests.engines.image import Image
from tests.test_configs import sample

# The image is built within the first test that wants it, from the network.
pytestmark = pytest.mark.timeout(1800)

IN_THE_IMAGE = ("array_record", "fast", "gcp", "hdf5")
PINS = image.DOCKERFILE.parent / "requirements.txt"


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Our sdist, as Beam makes it of --setup_file."""
    return workers.sdist(tmp_path_factory.mktemp("sdist"))


def test_the_sdist_holds_the_package_and_nothing_else(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        files = {name.partition("/")[2] for name in archive.getnames() if archive.getmember(name).isfile()}
    ours = {path.relative_to(ROOT).as_posix() for path in (ROOT / "beam_prep").rglob("*.py")}
    pages = ("inspect/page.css", "inspect/page.html", "inspect/page.js", "report_page.html")
    ours |= {
        f"beam_prep/{name}" for name in ("beam_prep_yaml.yaml", "data/reasons.toml", "py.typed", "__init__.pyi", *pages)
    }
    about = {"pyproject.toml", "setup.py", "README.md", "LICENSE", "MANIFEST.in"}
    # PKG-INFO and the like: setuptools'.
    made = {name for name in files if name.startswith("beam_prep.egg-info/")} | {"PKG-INFO", "setup.cfg"}
    assert files - made == ours | about


@pytest.mark.parametrize("name", ["dpo_conversation", "grpo", "sft_packed", "tools"])
def test_the_image_writes_every_format(name: str, built_image: Image, tmp_path: Path, tokenizer_path: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config_of(name, output={"storage_format": list(FORMAT_NAMES)})))
    arguments = [str(sample(name)), "-o", str(tmp_path / "there"), "-c", str(path), "--tokenizer_path", tokenizer_path]
    command = [str(built_image.python), "-I", "-m", "beam_prep.cli", "run", *arguments, "--runner=FnApiRunner"]
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


# The image


def test_every_step_works_and_pip_finds_no_conflict(built_image: Image) -> None:
    assert ("RUN", "pip check") in image.instructions()
    done = built_image.run("pip", "check")
    assert (done.returncode, done.stdout) == (0, "No broken requirements found.\n")


def test_the_launcher_shows_its_options_without_tensorflow(built_image: Image) -> None:
    launcher = built_image.environment["FLEX_TEMPLATE_PYTHON_PY_FILE"]
    done = built_image.run("python", launcher, "--help")
    assert done.returncode == 0, done.stderr
    assert {f"--{option.name}" for option in OPTIONS} <= set(re.findall(r"--\w+", done.stdout))
    assert built_image.run("python", "-c", "import tensorflow").returncode != 0


def test_the_image_starts_workers_from_itself_and_is_offline(built_image: Image) -> None:
    assert built_image.environment["BEAM_PREP_IMAGE"] == image.NAME
    assert built_image.environment["HF_HUB_OFFLINE"] == "1"
    assert built_image.entrypoint == ["/opt/apache/beam/boot"]
    assert "/opt/apache/beam" in built_image.copied_from
    assert "/opt/google/dataflow/python_template_launcher" in built_image.copied_from


@pytest.mark.parametrize(("name", "code"), [(image.NAME, 0), ("", 1)])
def test_an_image_that_does_not_know_its_name_is_not_built(name: str, code: int) -> None:
    (step,) = [text for kind, text in image.instructions() if kind == "RUN" and "IMAGE" in text]
    assert subprocess.run(["/bin/sh", "-c", step], env={"IMAGE": name}).returncode == code
