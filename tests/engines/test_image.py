"""The steps of the Dataflow image work, in their order, on a clean machine, and what they give can launch."""

import re
import subprocess

import pytest

from beam_prep.options import OPTIONS
from tests.engines import image
from tests.engines.image import Image

# The image is built within the first test that wants it, from the network.
pytestmark = pytest.mark.timeout(1800)

LAUNCHER = "/opt/google/dataflow/python_template_launcher"


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
    assert LAUNCHER in built_image.copied_from


@pytest.mark.parametrize(("name", "code"), [(image.NAME, 0), ("", 1)])
def test_an_image_that_does_not_know_its_name_is_not_built(name: str, code: int) -> None:
    (step,) = [text for kind, text in image.instructions() if kind == "RUN" and "IMAGE" in text]
    assert subprocess.run(["/bin/sh", "-c", step], env={"IMAGE": name}).returncode == code
