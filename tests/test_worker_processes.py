"""Worker processes of the local runner: what they import, and how a run ends when they do, or their launcher does."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import psutil
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from beam_prep import Tokenizer, runners
from beam_prep.data.block import InputFile
from beam_prep.errors import ConfigError
from beam_prep.runners import choose_runner
from tests.conftest import ROOT, Folders, Log, Patch, text_config, words_of

TRAINED = text_config()


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: Folders) -> Path:
    """A saved tokenizer, which transformers is not asked for."""
    folder = tmp_path_factory.mktemp("tokenizer")
    Tokenizer.load(ROOT / "examples" / "tokenizer").save(folder)
    return folder


@pytest.fixture(scope="module")
def source(tmp_path_factory: Folders) -> Path:
    """Eight blocks."""
    path = tmp_path_factory.mktemp("source") / "text.jsonl"
    path.write_text("".join(json.dumps({"text": f"line {number}. " * 20}) + "\n" for number in range(2500)))
    return path


class Run:
    """A run of the command line in a process group of its own, as in a terminal, with two workers."""

    def __init__(self, source: Path, tokenizer: Path, folder: Path, *python: str) -> None:
        words = [*words_of(TRAINED, folder, tokenizer), "--direct_num_workers=2"]
        command = [sys.executable, *python, "run", str(source), "-o", "out", *words]
        pipe, here = subprocess.PIPE, {**os.environ, "PYTHONPATH": str(ROOT)}
        self.process = subprocess.Popen(
            command, stdout=pipe, stderr=pipe, text=True, cwd=folder, env=here, start_new_session=True
        )
        self.workers: list[psutil.Process] = []

    def wait_for_workers(self, connected: bool) -> None:
        """Until both are there; `connected`: and their launcher has heard of them."""
        launcher = psutil.Process(self.process.pid)

        def are_there() -> bool:
            self.workers = launcher.children()
            return len(self.workers) == 2 and all("import work" in " ".join(w.cmdline()) for w in self.workers)

        wait_for(lambda: are_there() or self.process.poll() is not None)
        if connected:
            wait_for(lambda: all(self._is_connected(worker) for worker in self.workers))

    def _is_connected(self, worker: psutil.Process) -> bool:
        return any(each.status == psutil.CONN_ESTABLISHED for each in worker.net_connections())

    def end(self) -> tuple[int, str]:
        """(exit code, what it said): its pipes are closed when no process has them any more."""
        try:
            _, said = self.process.communicate(timeout=60)
        finally:
            if self.process.poll() is None:
                os.killpg(self.process.pid, signal.SIGKILL)
        wait_for(lambda: not any(is_there(worker) for worker in self.workers))
        return self.process.returncode, said


def is_there(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


Start = Callable[..., Run]


@pytest.fixture
def start(tmp_path: Path, tokenizer: Path) -> Iterator[Start]:
    runs: list[Run] = []

    def begin(source: Path, *python: str) -> Run:
        runs.append(Run(source, tokenizer, tmp_path, *(python or ("-m", "beam_prep.cli"))))
        return runs[-1]

    yield begin
    for run in runs:
        if run.process.poll() is None:
            os.killpg(run.process.pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def long_source(source: Path) -> Path:
    """Blocks that keep two workers busy for some seconds."""
    path = source.with_name("long.jsonl")
    path.write_text(source.read_text() * 60)
    return path


@pytest.mark.long
@pytest.mark.parametrize("connected", [False, True])
@pytest.mark.parametrize(
    ("who", "number", "code", "last"),
    [
        ("a worker", signal.SIGKILL, 5, "a worker process was killed, or crashed"),
        ("the group", signal.SIGINT, 130, "beam-prep: stopped by SIGINT"),  # Ctrl-C in a terminal
        ("the launcher", signal.SIGTERM, 143, "beam-prep: stopped by SIGTERM"),
        ("the launcher", signal.SIGKILL, -9, ""),
    ],
)
def test_a_run_that_is_killed_ends_with_its_workers_in_one_line(
    start: Start, long_source: Path, tmp_path: Path, connected: bool, who: str, number: int, code: int, last: str
) -> None:
    """Also before a worker has connected; Beam alone would wait for ever. Nothing is left but the token cache."""
    run = start(long_source)
    run.wait_for_workers(connected)
    began = time.monotonic()
    if who == "the group":
        os.killpg(run.process.pid, number)
    else:
        os.kill(run.workers[0].pid if who == "a worker" else run.process.pid, number)
    returned, said = run.end()
    assert time.monotonic() - began < 30
    assert returned == code, said
    assert not last or last in said.splitlines()[-1], said
    assert "Traceback" not in said
    assert "Exception" not in said
    assert not (tmp_path / "out").exists()
    if last.endswith(("SIGINT", "SIGTERM")):
        assert not [path for path in tmp_path.glob(".*") if any(path.rglob("token_cache"))]


def test_a_thread_of_an_engine_that_never_ends_keeps_no_process_alive() -> None:
    code = "import sys, threading, time; from beam_prep import cli; cli.UNTIL_ENDED = 0.2; "
    code += "wait = lambda *_: (threading.Thread(target=time.sleep, args=(600,)).start(), print(flush=True), "
    # Python sees a signal that comes just before a sleep when that ends.
    code += "[time.sleep(0.01) for _ in range(60000)]); cli.COMMANDS['presets'].set_defaults(run=wait); "
    code += "sys.argv[1:] = ['presets']; sys.exit(cli.main())"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], stdout=pipe, stderr=pipe, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.terminate()
        _, said = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGTERM  # 143 in a shell
    assert said == "beam-prep: stopped by SIGTERM\n"


@pytest.mark.long
def test_a_run_in_workers_shows_progress_and_leaves_nothing(
    start: Start, long_source: Path, tmp_path: Path, monkeypatch: Patch
) -> None:
    """No zombie, no line of Beam's on the screen, no file; they import what the launcher does."""
    (tmp_path / "random.py").write_text("raise SystemExit('not this one')")
    folder = tmp_path / "with a blank"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    code = "import sys; from beam_prep import cli, progress; progress.FIRST_LOG = progress.EVERY_LOG = 0.2; "
    code += "line = progress.Progress.line; "  # a library that writes to stderr meanwhile
    code += "progress.Progress.line = lambda bars: (print('of a library', file=sys.stderr), line(bars))[1]; "
    run = start(long_source, "-P", "-c", code + "sys.exit(cli.main())")
    run.wait_for_workers(False)
    code_of_exit, said = run.end()
    assert code_of_exit == 0, said
    assert re.search(r"^tokenise [1-9]\d*%: .+ records, .+ MB/s", said, re.MULTILINE), said
    assert "2 worker processes" in said
    assert "of a library" in said
    assert "severity" not in said
    assert "apitools" not in said
    assert list(folder.iterdir()) == []


LEAN = """
import sys

class Absent:
    def find_spec(name, path, target=None):
        if name in ("pandas", "boto3", "botocore", "google.cloud", "google.auth", "apitools", "awkward", "IPython"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent)
from beam_prep import cli
sys.exit(cli.main())
"""


def test_a_local_run_needs_no_client_of_a_store_and_no_pandas(source: Path, tokenizer: Path, tmp_path: Path) -> None:
    """Beam imports them where they are installed; nothing of ours misses them."""
    run = ["run", str(source), "-o", str(tmp_path / "out"), *words_of(TRAINED, tmp_path, tokenizer)]
    done = subprocess.run([sys.executable, "-c", LEAN, *run], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "apitools" not in done.stderr


@pytest.mark.parametrize(
    ("asked", "how"),
    [
        ([], "runner: 2 worker processes"),
        (["--direct_running_mode=in_memory"], "runner: in-process"),  # Beam's own default, and asked for
        (["--direct_num_workers=3"], "runner: 3 worker processes"),
        (["--direct_num_workers=0"], "runner: 2 worker processes"),
        (["--direct_running_mode=multi_threading", "--direct_num_workers=2"], "runner: 2 worker threads"),
    ],
)
def test_large_inputs_get_a_process_a_core_by_default(monkeypatch: Patch, asked: list[str], how: str) -> None:
    monkeypatch.setattr(runners, "cores", lambda: 2)
    assert choose_runner(PipelineOptions(asked), [InputFile("large.jsonl", 64_000_001, 0.0)]).how == how


def test_a_negative_number_of_workers_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"--direct_num_workers is -1, wanted 0 \(one for each core\) or more"):
        choose_runner(PipelineOptions(["--direct_num_workers=-1"]), [])


@pytest.mark.parametrize(
    ("asked", "workers"),
    [
        ([], 1),
        (["--direct_num_workers=3"], 3),
        (["--direct_num_workers=99"], 16),
        (["--runner=FlinkRunner", "--parallelism=4"], 4),
        (["--runner=DataflowRunner", "--max_num_workers=8", "--num_workers=2"], 8),
        (["--runner=PrismRunner"], 1),
    ],
)
def test_how_many_workers_may_share_a_file(asked: list[str], workers: int) -> None:
    assert runners.workers_of(PipelineOptions(asked)) == workers


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system binds no process to processors")
def test_cores_are_those_that_the_process_may_use() -> None:
    own = min(os.sched_getaffinity(0))
    code = f"import os; os.sched_setaffinity(0, [{own}]); from beam_prep import runners; print(runners.cores())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1"


# What runners are told where the user does not say otherwise


def told(*asked: str) -> tuple[dict[str, Any], str]:
    """(all options that are no default, how it runs) where these were asked for."""
    job = choose_runner(PipelineOptions(list(asked)), [])
    assert job.runner == job.options.get_all_options()["runner"]
    return job.options.get_all_options(drop_default=True), job.how


@pytest.fixture
def flink() -> Iterator[dict[str, Any]]:
    """What a cluster's REST interface answers, by path, and its address."""
    answers: dict[str, Any] = {"/overview": {"slots-total": 8, "taskmanagers": 2}}

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path in answers else 404)
            self.end_headers()
            self.wfile.write(json.dumps(answers.get(self.path)).encode())

        def log_message(self, *words: Any) -> None:
            pass

    with HTTPServer(("localhost", 0), Answer) as server:
        answers["address"] = f"localhost:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield answers
        server.shutdown()


def test_a_flink_job_uses_all_slots_with_a_process_each(flink: dict[str, Any]) -> None:
    options, how = told("--runner=FlinkRunner", f"--flink_master={flink['address']}")
    assert (options["parallelism"], options["sdk_worker_parallelism"]) == (8, 4)
    assert options["execution_mode_for_batch"] == "BATCH_FORCED"
    given = "execution_mode_for_batch=BATCH_FORCED, parallelism=8, sdk_worker_parallelism=4"
    assert how == f"runner: FlinkRunner with {given}"


def test_what_was_asked_for_is_left_alone(flink: dict[str, Any]) -> None:
    asked = ["--execution_mode_for_batch=PIPELINED", "--parallelism=-1", "--sdk_worker_parallelism=1"]
    options, how = told("--runner=FlinkRunner", f"--flink_master=http://{flink['address']}", *asked)
    assert options["execution_mode_for_batch"] == "PIPELINED"
    assert "parallelism" not in options  # it is Beam's default
    assert options["sdk_worker_parallelism"] == "1"
    assert how == "runner: FlinkRunner"


def test_slots_that_are_not_known_are_left_to_the_user(flink: dict[str, Any], caplog: Log) -> None:
    """Of a cluster that has no machines yet, or does not answer, which is said."""
    flink["/overview"] = {"slots-total": 0, "taskmanagers": 0}
    for address in (flink["address"], "localhost:1"):
        options, _ = told("--runner=FlinkRunner", f"--flink_master={address}")
        assert options.keys().isdisjoint({"parallelism", "sdk_worker_parallelism"})
    assert "http://localhost:1/overview" in caplog.text
    assert "set --parallelism and --sdk_worker_parallelism" in caplog.text
