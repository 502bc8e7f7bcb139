"""Where tests find things, and a job in one call."""

import functools
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, settings

from beam_prep.formats.manifest import UNLISTED

# Machines differ in speed, and several tests share one: no case fails for its time.
settings.register_profile("quick", deadline=None, max_examples=40)
# `make test-nightly`
settings.register_profile("nightly", deadline=None, max_examples=500)
# For mutants: that a case fails is enough to know.
settings.register_profile("unshrunk", settings.get_profile("quick"), phases=[Phase.explicit, Phase.generate])
settings.load_profile("quick")

# Types of fixtures.
Capture = pytest.CaptureFixture[str]
Folders = pytest.TempPathFactory
Log = pytest.LogCaptureFixture
Patch = pytest.MonkeyPatch
Run = Callable[..., Any]
Command = Callable[..., str]

ROOT = Path(__file__).resolve().parent.parent
SHARED = Path(os.environ.get("BEAM_PREP_SHARED", ROOT.parent / "shared"))


def shared(*names: str) -> Path:
    """A path of the test material that lies beside the project; skips the test where it is absent."""
    path = SHARED.joinpath(*names)
    if not SHARED.exists():
        pytest.skip(f"no test material at {SHARED} (set BEAM_PREP_SHARED)")
    if not path.exists():
        pytest.skip(f"no test material at {path} (set BEAM_PREP_SHARED)")
    return path


def commit() -> str:
    """The commit that is tested, by which cases are drawn where not all are tried; "" if it is not known."""
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip()


TOKENIZER_PATH = ROOT / "examples" / "tokenizer"
"""Our own small tokenizer."""


@pytest.fixture(scope="session")
def tokenizer_path() -> str:
    return str(TOKENIZER_PATH)


def run_job(config: Any, inputs: Any, output: Path | str, tokenizer: Any = TOKENIZER_PATH, **options: Any) -> Any:
    """Runs a config (a dict, or the path of one) in this process; gives the `Result`."""
    from beam_prep.pipeline import Pipeline

    return Pipeline(config, inputs, output, tokenizer, **options).run(["--runner=FnApiRunner"])


@pytest.fixture(scope="session")
def output(tmp_path_factory: Folders) -> Callable[[str], Any]:
    """Name of a config -> the output over its sample, made once for all tests: they only read it."""
    import beam_prep as bp
    from tests.test_configs import sample

    @functools.cache
    def _output(name: str) -> Any:
        folder = tmp_path_factory.mktemp(name) / "out"
        return bp.open(run_job(ROOT / "configs" / f"{name}.json", [str(sample(name))], folder).output)

    return _output


def config_of(name: str, **changes: Any) -> dict[str, Any]:
    """A config of the project, with some settings of its parts changed."""
    settings: dict[str, Any] = json.loads((ROOT / "configs" / f"{name}.json").read_text())
    if template := settings["input"].get("chat_template"):
        settings["input"]["chat_template"] = (ROOT / "configs" / template).read_text("utf-8")
    return settings | {part: settings.get(part, {}) | values for part, values in changes.items()}


def chat_config(template: Any = "conversation", **parts: Any) -> dict[str, Any]:
    """A config of conversations of which the answers are trained."""
    sections = [{"field": "messages", "action": "$role", "template": template}]
    return {"input": {"sections": sections}, "mask": {"assistant": "train"}, **parts}


def chats(**actions: str) -> dict[str, Any]:
    """An input of messages, or of what becomes messages: field -> action."""
    rendered = {"template": "conversation"}
    return {"sections": [{"field": field, "action": action, **rendered} for field, action in actions.items()]}


def text_config(**parts: Any) -> dict[str, Any]:
    """A config of texts."""
    return {"input": {"sections": [{"field": "text", "action": "train"}]}, **parts}


def says(**said: str) -> list[dict[str, Any]]:
    """Messages, from the content of each role."""
    return [{"role": role, "content": text} for role, text in said.items()]


def records_of(path: Path) -> list[Any]:
    """The records of a file."""
    return [json.loads(line) for line in path.read_text("utf-8").split("\n") if line]


def write_lines(path: Path, rows: Sequence[Any]) -> Path:
    """Writes records as JSONL; gives the path."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def words_of(config: Any, folder: Path, tokenizer: Path = TOKENIZER_PATH) -> list[str]:
    """The options of a command for a config, which is written into the folder."""
    (folder / "config.json").write_text(json.dumps(config))
    return ["-c", str(folder / "config.json"), "--tokenizer_path", str(tokenizer)]


def flip(path: Path, bit: int | None = None) -> None:
    """Flips a bit of a file, by default one in its middle; what is linked to the file stays as it is."""
    data = bytearray(path.read_bytes())
    place = 4 * len(data) if bit is None else bit
    data[place // 8] ^= 1 << place % 8
    path.unlink()
    path.write_bytes(data)


def checkout(folder: Path) -> Path:
    """Makes a folder look like the root of the project, to write in."""
    for name in ("configs", "examples"):
        (folder / name).symlink_to(ROOT / name)
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Any]:
    """Runs a config over records (dicts, or the bytes of a file) or a path, or a tuple of some; gives the `Result`."""

    def _run(config: dict[str, Any], records: Any, name: str = "out", **options: Any) -> Any:
        inputs = records
        if not isinstance(records, Path | tuple | None):
            inputs = tmp_path / "input.jsonl"
            inputs.write_bytes(records) if isinstance(records, bytes) else write_lines(inputs, records)
        return run_job(config, inputs, tmp_path / name, options.pop("tokenizer_path", TOKENIZER_PATH), **options)

    return _run


@pytest.fixture
def command(capsys: Capture) -> Command:
    """Runs a command with an exit code, 0 unless another is given; gives its output, or, if it fails, its error."""

    def _command(*words: object, code: int = 0) -> str:
        from beam_prep.cli import main

        try:
            found = main([*map(str, words)])
        except SystemExit as end:  # --help
            found = int(end.code or 0)
        printed = capsys.readouterr()
        assert found == code, printed.err
        has_findings = code == 1 and ("audit" in words or "--json" in words)
        return printed.out if code == 0 or has_findings else printed.err

    return _command


def run_of(output: Path | str) -> dict[str, Any]:
    """What the `run.json` of an output says."""
    return dict(json.loads(Path(output, "run.json").read_bytes()))


def prepared(config: dict[str, Any], records: list[Any]) -> Any:
    """The `Batch` of a block of records, as a run caches it, without a job."""
    from beam_prep.config import PipelineConfig
    from beam_prep.recipe import prepare
    from beam_prep.testing import records as block
    from tests.reference import ours

    return prepare(block(records), PipelineConfig.from_dict(config), ours(TOKENIZER_PATH))


def tree(folder: Path | str, leave_out: tuple[str, ...] = UNLISTED) -> dict[str, bytes]:
    """Every file below a folder: relative path -> bytes."""
    base = Path(folder)
    return {
        path.relative_to(base).as_posix(): path.read_bytes()
        for path in sorted(base.rglob("*"))
        if path.is_file() and path.name not in leave_out
    }


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Says how many tests were skipped for each reason."""
    # A file skipped as it is collected is reported by every process of pytest-xdist.
    skipped = {report.nodeid: report for report in terminalreporter.stats.get("skipped", ())}
    reasons = Counter(_reason(report) for report in skipped.values())
    if not reasons:
        return
    terminalreporter.section(f"{sum(reasons.values())} skipped", sep="-")
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"{count:6} {reason}")


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return f"{reason.removeprefix('Skipped: ')}{' (entire files)' * isinstance(report, pytest.CollectReport)}"


def steps(work: Callable[..., Any], *given: Any) -> int:
    """The lines of Python that a call executes; each round of a comprehension counts."""
    count, before = 0, sys.gettrace()

    def counted(*_: Any) -> Any:
        nonlocal count
        count += 1
        return counted

    sys.settrace(counted)
    try:
        work(*given)
    finally:
        sys.settrace(before)
    return count
