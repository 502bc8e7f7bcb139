"""Runs that end early, come again, or meet what others left: nothing is done twice, nothing is lost or mixed up."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from beam_prep import cli
from beam_prep.config import PipelineConfig
from beam_prep.errors import OutputError
from beam_prep.formats.cached_block import REJECTS
from beam_prep.pipeline import Pipeline, Result
from tests.conftest import ROOT, tree

pytestmark = pytest.mark.long

KB, MB = 1 << 10, 1 << 20
CONFIG: dict[str, Any] = {
    "input": {"sections": [{"field": "messages", "action": "$role", "template": True}]},
    "mask": {"assistant": "train"},
    "output": {"storage_format": ["bin", "tfrecord"], "domain_key": "topic", "max_tokens_per_shard": 20_000},
}


def changed(**changes: Any) -> dict[str, Any]:
    """CONFIG with other values: `output__domain_key="x"`."""
    config = json.loads(json.dumps(CONFIG))
    for path, value in changes.items():
        part, _, key = path.partition("__")
        if key:
            config.setdefault(part, {})[key] = value
        else:
            config[part] = value
    return dict(config)


def chat(count: int, topic: str = "one", first: int = 0) -> bytes:
    """About 1 KB a record; every tenth line is broken."""
    lines = []
    for number in range(first, first + count):
        talk = [
            {"role": "user", "content": f"Question {number}: " + "how far is it? " * 20},
            {"role": "assistant", "content": f"Answer {number}: " + "it is not far. " * 30},
        ]
        lines.append(json.dumps({"topic": topic, "messages": talk}).encode())
        if number % 10 == 0:
            lines.append(b'{"number": %d, ' % number)
    return b"\n".join(lines) + b"\n"


class Jobs:
    """Runs jobs in one folder, in this process; small blocks, so that 64 KB of input is a block."""

    def __init__(self, folder: Path, tokenizer: str) -> None:
        self.folder, self.tokenizer = folder, tokenizer
        self.cache_dir = str(folder / "token_cache")

    def write(self, name: str, data: bytes) -> Path:
        path = self.folder / name
        path.write_bytes(data)
        return path

    def run(self, *names: str, output: str = "out", config: dict[str, Any] = CONFIG, **options: Any) -> Result:
        job = Pipeline(
            PipelineConfig.from_dict(config),
            [str(self.folder / name) for name in names],
            output_dir=self.folder / output,
            **{
                "tokenizer_path": self.tokenizer,
                "block_bytes": 64 * KB,
                "max_reject_rate": 0.2,
                "max_no_loss_rate": 0.2,
                **options,
            },
        )
        return job.run(["--runner=FnApiRunner"])

    def tree(self, output: str = "out") -> dict[str, bytes]:
        return tree(self.folder / output)

    def told(self, output: str = "out") -> tuple[int, int]:
        """(blocks, those that were reused) of the last run."""
        run = json.loads((self.folder / output / "run.json").read_text())
        return run["blocks"], run["blocks_reused"]

    def scratch(self, *names: str, **options: Any) -> dict[str, bytes]:
        """The files of the same job run from scratch, elsewhere."""
        self.run(*names, output="scratch", **options)
        found = self.tree("scratch")
        shutil.rmtree(self.folder / "scratch")
        return found


@pytest.fixture
def jobs(tmp_path: Path, tokenizer_path: str) -> Jobs:
    return Jobs(tmp_path, tokenizer_path)


def cached(folder: Path) -> list[Path]:
    """The blocks that are whole: their rows are written last."""
    return [path for path in folder.rglob("*.arrow") if path.name.count(".") == 1]


# The token cache


def test_cached_blocks_give_the_bytes_of_a_run_from_scratch(jobs: Jobs) -> None:
    jobs.write("a.jsonl", chat(150))
    for output in ("one", "two"):
        jobs.run("a.jsonl", output=output, cache_dir=jobs.cache_dir)
    blocks = len(cached(Path(jobs.cache_dir)))
    assert (jobs.told("one"), jobs.told("two")) == ((blocks, 0), (blocks, blocks))
    assert jobs.tree("one") == jobs.tree("two")


def test_a_block_without_rejects_needs_no_file_of_them(jobs: Jobs) -> None:
    jobs.write("a.jsonl", b"".join(line for line in chat(70).splitlines(True) if line.endswith(b"}\n")))
    for output in ("one", "two"):
        jobs.run("a.jsonl", output=output, cache_dir=jobs.cache_dir)
    assert list(Path(jobs.cache_dir).rglob("*" + REJECTS)) == []
    assert jobs.told("two") == (len(cached(Path(jobs.cache_dir))),) * 2


def test_of_a_file_that_grew_only_the_end_is_new(jobs: Jobs) -> None:
    data = chat(150)
    jobs.write("a.jsonl", data)
    jobs.run("a.jsonl", cache_dir=jobs.cache_dir)
    jobs.write("a.jsonl", data + chat(60, "more", first=500))
    jobs.run("a.jsonl", cache_dir=jobs.cache_dir, overwrite=True)
    assert jobs.told()[1] == len(data) // (64 * KB)
    assert jobs.tree() == jobs.scratch("a.jsonl")


def test_the_same_bytes_in_two_files_are_tokenised_once_and_counted_twice(jobs: Jobs) -> None:
    for name in ("a.jsonl", "b.jsonl"):
        jobs.write(name, chat(150))
    ledger = jobs.run("a.jsonl", "b.jsonl").manifest["ledger"]  # type: ignore[index]
    blocks, reused = jobs.told()
    assert reused == blocks / 2
    assert (ledger["kept"], ledger["rejected"]) == (300, {"bad_json": 30})
    rejects = [json.loads(line) for line in jobs.tree()["rejects/rejects-00000.jsonl"].splitlines()]
    assert [Path(entry["file"]).name for entry in rejects] == ["a.jsonl"] * 15 + ["b.jsonl"] * 15
    assert [entry["line"] for entry in rejects[:15]] == [entry["line"] for entry in rejects[15:]]


# An output that is there already


def state(folder: Path) -> dict[str, tuple[int, int, int]]:
    """inode, change time and size of everything below a folder, and of itself."""
    paths = [folder, *folder.rglob("*")]
    return {str(path): (path.stat().st_ino, path.stat().st_ctime_ns, path.stat().st_size) for path in paths}


def test_the_same_job_again_does_nothing_and_says_so(jobs: Jobs, capsys: pytest.CaptureFixture[str]) -> None:
    source = jobs.write("a.jsonl", chat(20))
    jobs.run("a.jsonl")
    before = state(jobs.folder / "out")
    config = jobs.write("config.json", json.dumps(CONFIG).encode())
    words = ["run", str(source), "-o", str(jobs.folder / "out"), "-c", str(config), "--tokenizer_path", jobs.tokenizer]
    for options in ([], ["--overwrite"], ["--block_bytes", "131072"]):
        assert cli.main([*words, "--max_reject_rate", "0.2", "--max_no_loss_rate", "0.2", *options]) == 0
        assert capsys.readouterr().out == f"{jobs.folder}/out is up to date: nothing to do\n"
    assert state(jobs.folder / "out") == before


def test_the_output_of_another_job_is_refused_and_left_alone(jobs: Jobs) -> None:
    data = chat(20)
    path = jobs.write("a.jsonl", data)
    jobs.run("a.jsonl")
    before, stamp = state(jobs.folder / "out"), path.stat().st_mtime
    job_of: dict[str, tuple[bytes, dict[str, Any]]] = {
        "a longer input": (data + chat(1), {}),
        "an input of the same size and time": (data.replace(b"Question 7", b"Question 8"), {}),
        "a config": (data, {"config": changed(preprocessing__max_items=5)}),
        "a tokenizer": (data, {"tokenizer_path": ROOT / "tests/material/tokenizers/byte_bpe"}),
    }
    for about, (content, options) in job_of.items():
        jobs.write("a.jsonl", content)
        os.utime(path, (stamp, stamp))
        with pytest.raises(
            OutputError, match="holds the output of another job: choose another -o, or pass --overwrite"
        ):
            jobs.run("a.jsonl", **options)
        assert state(jobs.folder / "out") == before, about


def test_an_output_that_lost_a_file_is_mended_by_overwriting(jobs: Jobs) -> None:
    """The same job again: what is there has the right manifest, and is not whole."""
    jobs.write("a.jsonl", chat(20))
    jobs.run("a.jsonl")
    whole = jobs.tree()
    next((jobs.folder / "out").rglob("*.bin")).unlink()
    with pytest.raises(OutputError, match="--overwrite"):
        jobs.run("a.jsonl")
    assert not jobs.run("a.jsonl", overwrite=True).up_to_date
    assert jobs.tree() == whole


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("out/notes.txt", "mine"),
        ("out/manifest.json", '{"manifest_version": 3, "name": "x"}'),  # of a browser's extension
        ("out/manifest.json/x", ""),
        ("out/.git/config", ""),
        ("out", "a file"),
    ],
)
def test_what_is_foreign_is_refused_even_with_overwrite(name: str, text: str, jobs: Jobs) -> None:
    jobs.write("a.jsonl", chat(5))
    path = jobs.folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    before = state(jobs.folder / "out")
    with pytest.raises(OutputError, match="exists and is no output of beam_prep"):
        jobs.run("a.jsonl", overwrite=True)
    assert state(jobs.folder / "out") == before
