"""Progress is right about what is done and what is left, and never disturbs a run."""

import json
import tempfile
from pathlib import Path

import apache_beam as beam
import pytest
from apache_beam.metrics.metric import MetricsFilter
from hypothesis import given
from hypothesis import strategies as st

import beam_prep as bp
from beam_prep.data.block import InputFile
from beam_prep.progress import Progress, report, reported
from tests.conftest import ROOT

MB = 10**6
CHATS = ROOT / "examples/data/chat.jsonl"


class Clock:
    """A clock that is set by hand."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def of_size(size: int) -> list[InputFile]:
    return [InputFile("x.jsonl", size, 0.0)]


# Reports

numbers = st.fixed_dictionaries({"stored": st.integers(0, 10**15), "written": st.integers(0, 10**9)})


@given(st.lists(st.tuples(numbers, st.integers(0, 2)), max_size=9), st.integers(20, 200))
def test_a_report_read_while_written_gives_the_same_sums(written: list[tuple[dict[str, int], int]], step: int) -> None:
    """Any number of looks, at any bytes, of several workers: complete lines count once."""
    texts = [b"".join(json.dumps(each).encode() + b"\n" for each, worker in written if worker == w) for w in range(3)]
    with tempfile.TemporaryDirectory() as folder:
        for end in range(0, max(map(len, texts)) + step, step):
            for worker, text in enumerate(texts):
                Path(folder, str(worker)).write_bytes(text[:end])
            found = reported(folder)
    for name in ("stored", "written"):
        assert found[name] == sum(each[name] for each, _ in written)


def test_a_line_that_is_not_complete_is_passed_over(tmp_path: Path) -> None:
    report(str(tmp_path), stored=5)
    (tmp_path / "killed").write_bytes(b'{"stored": 7}')
    assert reported(str(tmp_path)) == {"stored": 5}
    (tmp_path / "torn").write_bytes(b'{"sto\n\0\0\xff\n{"stored": 8}\n')
    assert reported(str(tmp_path)) == {"stored": 13}
    assert reported(str(tmp_path / "missing")) == {}


def test_a_plan_that_is_made_again_counts_once(tmp_path: Path) -> None:
    for _ in range(2):
        report(str(tmp_path), plans=1)
        report(str(tmp_path), planned=10)
    assert reported(str(tmp_path)) == {"plans": 1, "planned": 10}


# What is said


def test_the_time_that_is_left_is_that_of_the_last_minute(tmp_path: Path, clock: Clock) -> None:
    shown = Progress(str(tmp_path), of_size(1000 * MB), clock=clock)
    assert shown.line() == "tokenise 0%: no block is done yet, for 0:00:00"
    clock.now += 1  # half of it was in the token cache already
    report(str(tmp_path), stored=500 * MB, lines=10)
    shown.line()
    for _ in range(100):  # 1 MB a second from here on
        clock.now += 1
        report(str(tmp_path), stored=MB, lines=10)
        line = shown.line()
    assert line == "tokenise 60%: 600.0 of 1,000.0 MB, 1,010 records, 5.9 MB/s, about 0:06:40 left"


def test_each_phase_has_its_own_goal(tmp_path: Path, clock: Clock) -> None:
    shown = Progress(str(tmp_path), of_size(10 * MB), clock=clock)
    report(str(tmp_path), stored=10 * MB, lines=1000)
    report(str(tmp_path), plans=1)
    clock.now += 1
    assert shown.line() == "plan: 1,000 records, for 0:00:00"
    report(str(tmp_path), planned=900)
    assert shown.line() == "write 0%: 0 of 900 rows"
    report(str(tmp_path), written=300)
    clock.now += 2
    assert shown.line() == "write 33%: 300 of 900 rows, about 0:00:04 left"
    report(str(tmp_path), written=300)
    clock.now += 2
    assert shown.line() == "write 67%: 600 of 900 rows, about 0:00:02 left"
    report(str(tmp_path), written=1200)  # a shard that was written twice
    assert shown.line() == "write 100%: 900 of 900 rows, about 0:00:00 left"


def test_where_max_items_may_end_the_output_no_end_is_promised(tmp_path: Path, clock: Clock) -> None:
    shown = Progress(str(tmp_path), of_size(8 * MB), limited=True, clock=clock)
    report(str(tmp_path), stored=5 * MB, lines=10)
    clock.now += 1
    assert shown.line() == "tokenise: 5.0 MB, 10 records, 5.0 MB/s"


# Real runs


def test_counters_of_a_real_job_are_those_of_its_manifest(tmp_path: Path) -> None:
    config = bp.PipelineConfig.from_json(str(ROOT / "configs/sft_conversation.json"))
    tokenizer = bp.Tokenizer.load(str(ROOT / "examples/tokenizer"))
    pipeline = beam.Pipeline("FnApiRunner")
    blocks = pipeline | bp.ReadJSONL([str(CHATS)]) | bp.Prepare(config, tokenizer)
    _ = blocks | bp.Shard(str(tmp_path / "out"), tokenizer=tokenizer)
    job = pipeline.run()
    totals = json.loads((tmp_path / "out/manifest.json").read_text())["totals"]
    found = job.metrics().query(MetricsFilter().with_namespace("beam_prep"))["counters"]
    assert {counter.key.metric.name: counter.result for counter in found} == {
        "stored": CHATS.stat().st_size,
        "lines": 260,
        "kept": 260,
        "rejected": 0,
        "tokens": totals["tokens"]["input_ids"],
    }
