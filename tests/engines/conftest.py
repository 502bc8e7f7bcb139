"""What every engine test shares: where the built engines lie, and what happens where one cannot be."""

import os
import shutil
from pathlib import Path
from typing import NoReturn

import pytest

from tests.engines import image

ENGINES = Path(os.environ.get("BEAM_PREP_ENGINES", Path.home() / ".cache" / "beam_prep-engines"))
"""Made by `make engines`, outside git, and used again."""


def missing(reason: str) -> NoReturn:
    """Skips the test with its reason; with REQUIRE_ENGINES=1, which CI sets, fails it."""
    if os.environ.get("REQUIRE_ENGINES") == "1":
        pytest.fail(f"REQUIRE_ENGINES=1, but {reason}")
    pytest.skip(reason)


def program(name: str) -> str:
    """The path of a program of this machine, `java` or `go`."""
    return shutil.which(name) or missing(f"no {name} on this machine")


@pytest.fixture(scope="session")
def built_image(tmp_path_factory: pytest.TempPathFactory) -> image.Image:
    """The Dataflow image, built without Docker; a minute and a half, most of it pip's."""
    return image.build(tmp_path_factory.mktemp("image"), IMAGE=image.NAME)
