"""Every job gives one manifest, byte for byte, on every runner, from disk and from object stores."""

from collections.abc import Iterator
from functools import cache

import pytest

from tests.engines import table
from tests.engines.flink import Flink


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory, flink: Flink) -> Iterator[table.Engines]:
    with table.engines(tmp_path_factory.mktemp("table"), flink) as made:
        yield made


@cache
def in_process(engines: table.Engines, job: str) -> tuple[table.Task, str]:
    work = table.task(engines, job)
    return work, table.cell(engines, work, "in-process")[0]


# Some cells, so that each runner has two jobs: the whole table is `python -m tests.engines.table`.
CELLS = [
    ("chat, bin + tfrecord", "2 worker processes"),
    ("chat, bin + tfrecord", "Flink, PROCESS"),
    ("chat, bin + tfrecord", "Dataflow's staged pipeline, on Flink"),
    ("DPO, bin", "Prism"),
    ("DPO, bin", "Flink, EXTERNAL"),
    ("packed, arrow", "Dataflow's staged pipeline, in-process"),
    ("packed, arrow", "Flink, EXTERNAL"),
    ("chunks, every format", "Prism"),
    ("chunks, every format", "Flink, PROCESS"),
]


@pytest.mark.parametrize(("job", "runner"), CELLS)
def test_one_value_per_row(engines: table.Engines, job: str, runner: str) -> None:
    work, digest = in_process(engines, job)
    assert table.cell(engines, work, runner)[0] == digest
