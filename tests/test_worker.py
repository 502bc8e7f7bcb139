"""Worker processes: what they import, that they share the launcher's imports, and how they end."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from beam_prep import Tokenizer, cli, processes, runners, worker
from beam_prep.storage.files import list_inputs

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parent.parent

SCRIPT = """
import json, os, sys

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from beam_prep import BuildMask, MapRecords, ApplyTemplate, PipelineConfig, ReadJSONL, Shard, Tokenize, Tokenizer
from beam_prep import processes
from beam_prep.runners import choose_runner
from beam_prep.storage.files import list_inputs

source, tokenizer, folder, program = sys.argv[1:]


def note(record):
    import json, os, sys

    from apache_beam.runners.worker import statesampler

    with open(os.path.join(folder, f"{os.getpid()}.json"), "w") as file:
        names = ("TOKENIZERS_PARALLELISM", "RAYON_NUM_THREADS")
        found = {"pids": [os.getpid(), os.getppid()], "settings": [os.environ.get(name) for name in names]}
        found["sampling"] = statesampler.get_current_tracker().sampling_period_ms
        json.dump({**found, "modules": sorted(sys.modules)}, file)
    return record


if program == "yes":
    processes.own_program()
config = PipelineConfig.from_dict({"input": {"sections": [{"field": "text", "action": "train"}]}})
options = PipelineOptions(["--direct_num_workers=2"])
runner, options, _ = choose_runner(options, list_inputs(source))
tokenizer = Tokenizer.load(tokenizer)
with beam.Pipeline(runner, options=options) as pipeline:
    records = pipeline | ReadJSONL([source], 65536) | MapRecords(note)
    rendered = records | ApplyTemplate(config.input, tokenizer)
    rendered | Tokenize(tokenizer) | BuildMask({}, "train") | Shard(os.path.join(folder, "out"), tokenizer=tokenizer)
print(os.getpid())
"""


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved tokenizer, which transformers is not asked for."""
    folder = tmp_path_factory.mktemp("tokenizer")
    Tokenizer.load(ROOT / "examples" / "tokenizer").save(folder)
    return folder


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight blocks."""
    path = tmp_path_factory.mktemp("source") / "text.jsonl"
    path.write_text("".join(json.dumps({"text": f"line {number}. " * 20}) + "\n" for number in range(2500)))
    return path


@pytest.mark.parametrize("program", ["yes", "no"])
def test_workers_import_neither_transformers_nor_tensorflow(
    source: Path, tokenizer: Path, tmp_path: Path, program: str
) -> None:
    """Forked or started, each has a thread of Rust only, and does not hold what it does not use."""
    script = tmp_path / "job.py"
    script.write_text(SCRIPT)
    environment = {name: value for name, value in os.environ.items() if name not in ("RAYON_NUM_THREADS",)}
    environment.pop("TOKENIZERS_PARALLELISM", None)
    arguments = [str(source), str(tokenizer), str(tmp_path), program]
    done = subprocess.run(
        [sys.executable, str(script), *arguments], capture_output=True, text=True, cwd=ROOT, env=environment
    )
    assert done.returncode == 0, done.stderr
    notes = [json.loads(path.read_bytes()) for path in tmp_path.glob("*.json")]
    assert len(notes) == 2
    # Of those that are forked, one is the other's child.
    tree = {found["pids"][0]: found["pids"][1] for found in notes}
    parents = sorted(tree.values(), key=lambda pid: pid in tree)
    assert parents[0] == int(done.stdout)
    assert (parents[1] in tree) == (program == "yes")
    for found in notes:
        assert found["sampling"] == 10
        assert found["settings"] == ["false", "1"]
        assert "beam_prep.core.encoding.tokenizer" in found["modules"]
        assert not {"transformers", "tensorflow", "torch"} & set(found["modules"])


def start(source: Path, tokenizer: Path, output: Path) -> "subprocess.Popen[str]":
    """A run that takes long enough to be disturbed."""
    config = output.parent / "config.json"
    config.write_text(json.dumps({"input": {"sections": [{"field": "text", "action": "train"}]}}))
    command = [sys.executable, "-m", "beam_prep.cli", "run", str(source), "-o", str(output), "-c", str(config)]
    command += ["--tokenizer_path", str(tokenizer), "--direct_num_workers=2"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_workers_end_with_a_launcher_that_is_killed(source: Path, tokenizer: Path, tmp_path: Path) -> None:
    process = start(source, tokenizer, tmp_path / "out")
    launcher = psutil.Process(process.pid)
    wait_for(lambda: len(launcher.children(recursive=True)) == 2 or process.poll() is not None)
    workers = launcher.children(recursive=True)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    wait_for(lambda: not any(worker.is_running() and worker.status() != "zombie" for worker in workers))
    assert len(workers) == 2


BUSY = """
import json, sys, time
from beam_prep import worker

def work(_):  # has no connection, whose end would tell it that the launcher is gone
    time.sleep(600)

workers = worker._ForkedWorkers(2, work)
workers.prepare(None)
workers.start({"WORKER_ID": "1"}, int)
workers.start({"WORKER_ID": "2"}, int)
print("started", flush=True)
time.sleep(600)
"""


def test_a_forked_worker_without_a_connection_ends_with_its_launcher() -> None:
    process = subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    workers = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.communicate(timeout=60)  # ends with the last process that holds the pipe
    wait_for(lambda: not any(each.is_running() and each.status() != "zombie" for each in workers))
    assert len(workers) == 2


def test_a_worker_that_is_started_after_its_launcher_ended_ends_at_once() -> None:
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True)
    environment = {**os.environ, "BEAM_PREP_LAUNCHER": gone.stdout.strip()}
    done = subprocess.run([sys.executable, "-m", "beam_prep.worker"], cwd=ROOT, env=environment, timeout=60)
    assert done.returncode == 0


def test_nothing_of_a_forked_worker_is_left(source: Path, tokenizer: Path, tmp_path: Path) -> None:
    """No zombie, no line of Beam's on the screen, and the lock is free."""
    process = start(source, tokenizer, tmp_path / "out")
    out, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert "2 worker processes" in errors
    assert "severity" not in errors
    assert "apitools" not in errors + out


def without_gigatoken(*options: str) -> "subprocess.CompletedProcess[str]":
    """The command line, forked workers, where gigatoken is not installed. No input is small."""
    code = (
        "import sys; sys.modules['gigatoken'] = None; from beam_prep import cli; cli._import_beam(); "
        "from beam_prep import pipeline; pipeline.REFERENCE_ALONE = 0; sys.exit(cli.main())"
    )
    return subprocess.run([sys.executable, "-c", code, *options], capture_output=True, text=True, cwd=ROOT)


def test_what_the_first_worker_finds_when_it_loads_the_tokenizer_is_said_once(
    source: Path, tokenizer: Path, tmp_path: Path
) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"input": {"sections": [{"field": "text", "action": "train"}]}}))
    run = ["run", str(source), "-o", str(tmp_path / "out"), "-c", str(config), "--tokenizer_path", str(tokenizer)]
    run.append("--direct_num_workers=2")
    failed = without_gigatoken(*run, "--tokenizer_backend=gigatoken")
    assert failed.returncode == 2
    assert failed.stderr.count("--tokenizer_backend gigatoken: it is not installed here") == 1
    assert "Traceback" not in failed.stderr
    assert not (tmp_path / "out").exists()
    done = without_gigatoken(*run)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("gigatoken is not used: it is not installed here") == 1
    assert json.loads((tmp_path / "out" / "run.json").read_bytes())["encoded_by_transformers"] == 2500


def test_a_launcher_that_fails_while_the_first_worker_loads_says_so_alone(
    source: Path, tokenizer: Path, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "somebody's").touch()
    process = start(source, tokenizer, tmp_path / "out")
    out, errors = process.communicate(timeout=120)  # of the worker, too
    assert process.returncode == 4
    assert "is no output of beam_prep" in errors
    assert "Traceback" not in out + errors


def test_a_first_worker_that_is_killed_while_it_loads_ends_the_run(
    source: Path, tokenizer: Path, tmp_path: Path
) -> None:
    code = (
        "import os, signal, sys; from beam_prep import cli; cli._import_beam(); from beam_prep.transforms import gate; "
        "from beam_prep import pipeline; pipeline.REFERENCE_ALONE = 0; "
        "gate.first_texts = lambda *given: os.kill(os.getpid(), signal.SIGKILL); sys.exit(cli.main())"
    )
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"input": {"sections": [{"field": "text", "action": "train"}]}}))
    run = ["run", str(source), "-o", str(tmp_path / "out"), "-c", str(config), "--tokenizer_path", str(tokenizer)]
    run.append("--direct_num_workers=2")
    done = subprocess.run([sys.executable, "-c", code, *run], capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert done.returncode == 5
    assert "a worker process was killed" in done.stderr
    assert "Traceback" not in done.stderr


BEGUN = """
import sys
from beam_prep import cli, processes, worker

cli._import_beam()
from beam_prep import pipeline, runners
from beam_prep.transforms import gate

worker.SMALL_INPUT = pipeline.REFERENCE_ALONE = 0
processes.cores = lambda: 2
begin = worker.begin


def noted(load):
    print("begun", file=sys.stderr)
    begin(load)


worker.begin = noted
{more}
sys.exit(cli.main())
"""
TRAINED = {"input": {"sections": [{"field": "text", "action": "train"}]}}


def begun(
    source: Path, tokenizer: Path, output: Path, *options: str, config: object = TRAINED, more: str = ""
) -> "subprocess.CompletedProcess[str]":
    """A run of the command line, for which no input is small. It says `begun` if it begins a worker early."""
    command = [*beginning(source, tokenizer, output, config, more), *options]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120)


def beginning(source: Path, tokenizer: Path, output: Path, config: object = TRAINED, more: str = "") -> list[str]:
    """The command of `begun`. Its config is written beside the output."""
    settings = output.parent / "config.json"
    settings.write_text(json.dumps(config))
    words = ["run", str(source), "-o", str(output), "-c", str(settings), "--tokenizer_path", str(tokenizer)]
    return [sys.executable, "-c", BEGUN.format(more=more), *words]


def files_of(output: Path) -> dict[str, bytes]:
    """All but what says when and how it was made."""
    paths = [path for path in output.rglob("*") if path.is_file() and path.name not in ("run.json", "report.html")]
    return {str(path.relative_to(output)): path.read_bytes() for path in paths}


def test_a_worker_that_begins_early_makes_the_same_output(source: Path, tokenizer: Path, tmp_path: Path) -> None:
    early = begun(source, tokenizer, tmp_path / "early")
    late = begun(source, tokenizer, tmp_path / "late", "--direct_num_workers=2")
    for done, count in ((early, 1), (late, 0)):
        assert done.returncode == 0, done.stderr
        assert done.stderr.count("begun\n") == count
        assert "2 worker processes" in done.stderr
        assert "encoded by gigatoken: 2,500" in done.stderr
    assert files_of(tmp_path / "early") == files_of(tmp_path / "late")


@pytest.mark.parametrize(
    ("options", "config"),
    [
        (["--dry_run"], TRAINED),
        (["--direct_running_mode=in_memory"], TRAINED),
        ([], {**TRAINED, "input": {**TRAINED["input"], "chat_template": "{{ messages }}"}}),
    ],
    ids=["dry_run", "in_memory", "another template"],
)
def test_no_worker_begins_early_where_the_job_may_have_no_use_for_it(
    source: Path, tokenizer: Path, tmp_path: Path, options: list[str], config: object
) -> None:
    done = begun(source, tokenizer, tmp_path / "out", *options, config=config)
    assert done.returncode == 0, done.stderr
    assert "begun" not in done.stderr


def test_no_worker_begins_early_for_an_output_that_is_there(source: Path, tokenizer: Path, tmp_path: Path) -> None:
    assert "begun" in begun(source, tokenizer, tmp_path / "out").stderr
    again = begun(source, tokenizer, tmp_path / "out")
    assert (again.returncode, "is up to date" in again.stdout, "begun" in again.stderr) == (0, True, False)


@pytest.mark.parametrize("piped", ["config", "list"])
def test_what_comes_from_a_pipe_is_read_once(source: Path, tokenizer: Path, tmp_path: Path, piped: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TRAINED))
    config, inputs, text = str(tmp_path / "config.json"), "@/dev/stdin", f"{source}\n"
    if piped == "config":
        config, inputs, text = "/dev/stdin", str(source), json.dumps(TRAINED)
    words = ["run", inputs, "-o", str(tmp_path / "out"), "-c", config, "--tokenizer_path", str(tokenizer)]
    code = [sys.executable, "-c", BEGUN.format(more="")]
    done = subprocess.run([*code, *words], input=text, capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "begun" not in done.stderr


@pytest.mark.parametrize("closed", [">&- 2>&-", "<&- >&-", "<&- 2>&-", "<&- >&- 2>&-"])
def test_a_run_ends_whose_streams_were_closed(source: Path, tokenizer: Path, tmp_path: Path, closed: str) -> None:
    command = shlex.join(beginning(source, tokenizer, tmp_path / "out"))
    # `begun` is said nowhere.
    assert subprocess.run(["sh", "-c", f"{command} {closed}"], cwd=ROOT, timeout=120).returncode == 0
    assert (tmp_path / "out" / "manifest.json").exists()


def test_a_worker_that_dies_when_it_gets_its_first_task_is_told_as_one_that_was_killed(
    source: Path, tokenizer: Path, tmp_path: Path
) -> None:
    more = """
check = worker._ForkedWorkers._check_first_worker


def killed(workers):
    check(workers)
    workers.kill()


worker._ForkedWorkers._check_first_worker = killed
"""
    done = begun(source, tokenizer, tmp_path / "out", more=more)
    assert done.returncode == 5, done.stderr
    assert "a worker process was killed" in done.stderr
    assert "Broken pipe" not in done.stderr


@pytest.mark.parametrize("broken", ["config", "tokenizer", "killed"])
def test_a_worker_that_began_early_ends_with_a_run_that_fails(
    source: Path, tokenizer: Path, tmp_path: Path, broken: str
) -> None:
    """The run says what it says otherwise, once; its pipes are closed, so no process is left."""
    config: object = {"input": {"sections": [{"field": "text", "action": "trane"}]}} if broken == "config" else TRAINED
    if broken == "tokenizer":
        tokenizer = shutil.copytree(tokenizer, tmp_path / "tokenizer")
        (tokenizer / "tokenizer.json").write_text("{}")
    more = "gate.load = lambda *given: __import__('os').abort()" if broken == "killed" else ""
    done = begun(source, tokenizer, tmp_path / "out", config=config, more=more)
    wanted = {"config": (2, "trane"), "tokenizer": (2, "tokenizer"), "killed": (5, "a worker process was killed")}
    assert (done.returncode, done.stderr.count("begun\n")) == (wanted[broken][0], 1), done.stderr
    assert wanted[broken][1] in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.fixture
def never_resolved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tokenizer that transformers is asked for."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return ROOT / "examples" / "tokenizer"


def test_another_process_asks_transformers_for_a_tokenizer(source: Path, never_resolved: Path, tmp_path: Path) -> None:
    more = "import atexit; atexit.register(lambda: print('transformers' in sys.modules, file=sys.stderr))"
    done = begun(source, never_resolved, tmp_path / "out", more=more)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (0, "False"), done.stderr
    assert json.loads((tmp_path / "out" / "run.json").read_bytes())["encoded_by_gigatoken"] == 2500


def test_a_run_ends_if_the_process_that_asks_transformers_is_killed(
    source: Path, never_resolved: Path, tmp_path: Path
) -> None:
    more = "import os, signal; pipeline.load_tokenizer = lambda path: os.kill(os.getpid(), signal.SIGKILL)"
    done = begun(source, never_resolved, tmp_path / "out", more=more)
    assert done.returncode == 5, done.stderr
    assert "that loaded the tokenizer was killed" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_run_while_transformers_is_asked(
    source: Path, never_resolved: Path, tmp_path: Path, number: signal.Signals
) -> None:
    more = "import signal; pipeline.load_tokenizer = lambda path: (print('asked', flush=True), signal.pause())"
    command = beginning(source, never_resolved, tmp_path / "out", more=more)
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "asked\n"
        process.send_signal(number)
        # Its pipes are closed when no process has them any more.
        _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + number, said
    assert f"stopped by {number.name}" in said
    assert not (tmp_path / "out").exists()


def test_a_worker_that_began_for_more_cores_than_the_job_wants_is_not_used(
    source: Path, tokenizer: Path, tmp_path: Path
) -> None:
    more = "begun = worker.begin; worker.begin = lambda load: (begun(load), setattr(processes, 'cores', lambda: 3))"
    done = begun(source, tokenizer, tmp_path / "out", more=more)
    assert done.returncode == 0, done.stderr
    assert "3 worker processes" in done.stderr
    assert json.loads((tmp_path / "out" / "run.json").read_bytes())["encoded_by_gigatoken"] == 2500


@pytest.mark.parametrize("own", [True, False])
def test_the_command_line_leaves_out_what_no_job_needs(own: bool) -> None:
    """Pandas alone takes a third of a second in each worker. Callers of `cli.main` keep all of Beam and of pyarrow."""
    pytest.importorskip("pandas")
    code = "import sys; from beam_prep import cli, processes; " + "processes.own_program(); " * own
    code += "cli._import_beam(); import pyarrow; pyarrow.array([1]); print('pandas' in sys.modules); "
    code += "import pandas, apache_beam.io.gcp.bigquery"  # not gone for good
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(not own)


@pytest.mark.parametrize(
    ("words", "there"),
    [
        (["data.jsonl", "-o", "out"], False),
        (["data.jsonl", "-o", "out", "--direct_num_workers=2"], False),
        (["gs://bucket/data.jsonl", "-o", "out"], True),
        (["data.jsonl", "-o", "out", "--temp_location=s3://bucket/temp"], True),
        (["data.jsonl", "-o", "out", "--spool", "s3://bucket/spool"], True),
        (["data.jsonl", "-o", "out", "--runner", "DataflowRunner"], True),
    ],
)
def test_the_clients_of_stores_are_imported_where_an_argument_may_need_them(words: list[str], there: bool) -> None:
    """They take 0.2 s, and 30 MB."""
    pytest.importorskip("google.cloud.storage")
    code = "import sys; from beam_prep import cli, processes; processes.own_program(); "
    code += "given = cli._parsed(sys.argv[1:]); cli._import_beam(cli._names_a_store(*given)); "
    code += (
        "from apache_beam.io.filesystem import FileSystem; print([f.scheme() for f in FileSystem.get_all_subclasses()])"
    )
    words = ["run", *words, "-c", "config.json", "--tokenizer_path", "tokenizer"]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
    assert ("'gs'" in done.stdout) == there


@pytest.mark.parametrize(("scheme", "library"), [("gs", "google.cloud.storage"), ("s3", "boto3")])
def test_a_store_that_no_argument_named_has_a_client_all_the_same(scheme: str, library: str) -> None:
    """Of a config or a list. Then the command line has imported Beam without what this has for stores."""
    pytest.importorskip(library)
    code = "import sys; from beam_prep import cli, processes; processes.own_program(); cli._import_beam(False); "
    code += f"assert {library!r} not in sys.modules; from beam_prep.storage.stores.objects import client_for; "
    code += f"print(type(client_for({scheme!r}, 0, None)).__name__)"
    settings = {"STORAGE_EMULATOR_HOST": "http://127.0.0.1:9", "GOOGLE_CLOUD_PROJECT": "none"}
    settings |= {"AWS_DEFAULT_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, **settings}, timeout=120)
    assert done.stdout == {"gs": "GCSClient\n", "s3": "S3Client\n"}[scheme], done.stderr


def test_help_is_there_at_once() -> None:
    """Nothing large is imported for it (it takes 0.05 s)."""
    code = "import sys, beam_prep.cli; print(*{'apache_beam', 'numpy', 'pyarrow', 'tokenizers'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


@pytest.mark.parametrize(
    ("asked", "how"),
    [
        ([], "runner: 2 worker processes"),
        (["--direct_running_mode=in_memory"], "runner: in-process"),  # Beam's own default, and asked for
        (["--direct_num_workers=1"], "runner: in-process"),
        (["--direct_num_workers=3"], "runner: 3 worker processes"),
        (["--direct_running_mode=multi_threading", "--direct_num_workers=2"], "runner: 2 worker threads"),
    ],
)
def test_a_large_input_gets_a_process_a_core_unless_another_way_is_asked_for(
    source: Path, monkeypatch: pytest.MonkeyPatch, asked: list[str], how: str
) -> None:
    monkeypatch.setattr(worker, "SMALL_INPUT", 0)
    monkeypatch.setattr(processes, "cores", lambda: 2)
    assert runners.choose_runner(PipelineOptions(asked), list_inputs([str(source)]))[2] == how


def test_a_compressed_input_counts_by_its_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "SMALL_INPUT", 4000)
    monkeypatch.setattr(processes, "cores", lambda: 2)

    def told(name: str, size: int) -> str:
        (tmp_path / name).write_bytes(b"x" * size)
        return runners.choose_runner(PipelineOptions([]), list_inputs([str(tmp_path / name)]))[2]

    assert told("a.jsonl.gz", 1000) == told("a.jsonl", 4000) == "runner: in-process"
    assert told("b.jsonl.gz", 1001) == told("b.jsonl", 4001) == "runner: 2 worker processes"


def test_inputs_are_looked_at_until_they_are_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be a million of them, and this is before the first line of the log."""
    monkeypatch.setattr(worker, "SMALL_INPUT", 4000)
    for name in "abc":
        (tmp_path / f"{name}.jsonl").write_bytes(b"x" * 2000)
    (tmp_path / "d.jsonl").symlink_to("nowhere")
    (tmp_path / "e.jsonl").mkdir()
    looked: list[str] = []
    size = os.path.getsize

    def noted(path: str) -> int:
        looked.append(path)
        return size(path)

    monkeypatch.setattr(os.path, "getsize", noted)
    assert cli._are_large([str(tmp_path / "*.jsonl")] * 2)
    assert len(looked) == 3
    assert not cli._are_large([str(tmp_path / "[ab].jsonl"), str(tmp_path / "[d-f].jsonl"), str(tmp_path / "none")])


@pytest.mark.parametrize(
    ("asked", "workers"),
    [
        ([], 1),
        (["--direct_num_workers=3"], 3),
        (["--direct_num_workers=99"], 16),
        (["--runner=FlinkRunner", "--parallelism=4"], 4),
        (["--runner=FlinkRunner"], 1),
        (["--runner=DataflowRunner", "--max_num_workers=8", "--num_workers=2"], 8),
        (["--runner=DataflowRunner", "--num_workers=2"], 2),
        (["--runner=DataflowRunner"], 1),
        (["--runner=PrismRunner"], 1),
        (["--runner=SparkRunner"], 1),
    ],
)
def test_how_many_workers_may_share_a_file(asked: list[str], workers: int) -> None:
    assert runners.workers_of(PipelineOptions(asked)) == workers


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system binds no process to processors")
def test_cores_are_those_that_the_process_may_use() -> None:
    own = min(os.sched_getaffinity(0))
    code = f"import os; os.sched_setaffinity(0, [{own}]); from beam_prep import processes; print(processes.cores())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1"


@pytest.mark.parametrize(("counted", "cores"), [(3, 3), (None, 1)])
def test_cores_are_known_where_no_process_can_be_bound_to_them(
    monkeypatch: pytest.MonkeyPatch, counted: int | None, cores: int
) -> None:
    """As on macOS, where `os` has no `sched_getaffinity`."""
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: counted)
    monkeypatch.setattr(os, "process_cpu_count", lambda: counted, raising=False)
    assert processes.cores() == cores


@pytest.mark.parametrize("which", ["the first", "another"])
def test_a_worker_that_is_killed_before_it_connects_ends_the_run(
    source: Path, tokenizer: Path, tmp_path: Path, which: str
) -> None:
    killed = "==" if which == "the first" else "!="
    code = (
        "import os, signal, sys; from beam_prep import cli, worker; cli._import_beam(); launcher = os.getpid(); "
        "work = worker._work; worker._work = lambda main: "
        f"os.kill(os.getpid(), signal.SIGKILL) if os.getppid() {killed} launcher else work(main); sys.exit(cli.main())"
    )
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"input": {"sections": [{"field": "text", "action": "train"}]}}))
    run = ["run", str(source), "-o", str(tmp_path / "out"), "-c", str(config), "--tokenizer_path", str(tokenizer)]
    run.append("--direct_num_workers=2")
    done = subprocess.run([sys.executable, "-c", code, *run], capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert done.returncode == 5, done.stderr
    assert "a worker process was killed" in done.stderr
    assert "Traceback" not in done.stderr
