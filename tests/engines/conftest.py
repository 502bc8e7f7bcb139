"""What every engine test shares: where the built engines lie, what happens where one cannot be, one Flink cluster."""

import os
import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import filelock
import pytest

if TYPE_CHECKING:
    from tests.engines.flink import Flink
    from tests.engines.image import Image

ENGINES = Path(os.environ.get("BEAM_PREP_ENGINES", Path.home() / ".cache" / "beam_prep-engines"))
"""Made by `make engines`, outside git, and used again."""


def missing(reason: str, required: str = "REQUIRE_ENGINES") -> NoReturn:
    """Skips the test with its reason; with REQUIRE_ENGINES=1 or the like, which CI sets, fails it."""
    if os.environ.get(required) == "1":
        pytest.fail(f"{required}=1, but {reason}")
    pytest.skip(reason)


def program(name: str) -> str:
    """The path of a program of this machine, `java` or `go`."""
    return shutil.which(name) or missing(f"no {name} on this machine")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With `-n auto`, what shares a start stays in one process: the tests of a file, those of all files on Flink.

    Tests of storage servers, which start at once, are shared out one by one.
    """
    for item in items:
        if Path(__file__).parent in item.path.parents and item.path.name != "test_storage.py":
            on_flink = "flink" in getattr(item, "fixturenames", ())
            item.add_marker(pytest.mark.xdist_group("flink" if on_flink else item.path.stem))
    # Last, so that one process need not wait while another builds it.
    items.sort(key=lambda item: "built_image" in getattr(item, "fixturenames", ()))


@pytest.fixture(scope="session")
def flink(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[Flink]":
    """A cluster with one TaskManager of two slots, and its job server: all tests share their start."""
    from tests.engines.flink import running
    from tests.engines.processes import end_on_sigterm

    end_on_sigterm()
    with running(tmp_path_factory.mktemp("flink")) as made:
        yield made


@pytest.fixture(scope="session")
def external(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Options for SDK workers of a worker pool, which has our sdist installed."""
    from tests.engines.workers import worker_pool

    with worker_pool(tmp_path_factory.mktemp("pool")) as options:
        yield options


@pytest.fixture(scope="session")
def process(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Options for SDK workers that Beam's boot program starts, and installs our staged sdist for."""
    from tests.engines.workers import boot_process

    return boot_process(tmp_path_factory.mktemp("boot"))


@pytest.fixture(scope="session")
def built_image(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> "Image":
    """The Dataflow image, built without Docker, once for all processes: a minute and a half, most of it pip's."""
    from tests.engines import image

    own = tmp_path_factory.getbasetemp()
    folder = (own if worker_id == "master" else own.parent) / "image"
    with filelock.FileLock(f"{folder}.lock"):
        made = folder / "made"
        if not made.exists():
            made.write_bytes(pickle.dumps(image.build(folder, IMAGE=image.NAME)))
        return pickle.loads(made.read_bytes())
