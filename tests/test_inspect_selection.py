"""`beam-prep inspect --random, --shortest, --grep, --reason ...`: which rows are shown; and the pager."""

import contextlib
import os
import pty
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import beam_prep as bp
from beam_prep.errors import BeamPrepError, FormatError
from beam_prep.inspect.output import Selection, extremes
from beam_prep.readers.dataset import Dataset
from tests.conftest import ROOT, TOKENIZER_PATH, Command, Folders, Patch, config_of, run_job, write_lines

INSTRUCTION = ROOT / "configs" / "sft_instruction.json"


@pytest.fixture(scope="module")
def output(tmp_path_factory: Folders) -> Dataset:
    """60 rows in several shards and two domains, 3 rejects of two kinds, 2 drops."""
    folder = tmp_path_factory.mktemp("selection")
    rows: list[Any] = [
        {"prompt": f"Count to {n}.", "response": " ".join(map(str, range(n % 13))) + " end", "domain": "ab"[n % 2]}
        for n in range(60)
    ]
    rows += [{"prompt": 3, "response": "number <b>"}, {"prompt": 4, "response": "x"}, {}, {"prompt": ""}, "text"]
    given = config_of("sft_instruction", output={"domain_key": "domain", "max_tokens_per_shard": 100})
    limits = {"max_reject_rate": 1.0, "max_no_loss_rate": 1.0}
    return bp.open(run_job(given, write_lines(folder / "in.jsonl", rows), folder / "out", **limits).output)


@pytest.fixture
def shown(command: Command, monkeypatch: Patch) -> Callable[..., str]:
    """What the command prints."""
    monkeypatch.setenv("PAGER", "no pager where there is no terminal")

    def _shown(*arguments: object) -> str:
        return command("inspect", *map(str, arguments))

    return _shown


def numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall("━━ record ([0-9]+) ", text)]


def test_drawn_rows_are_those_of_the_seed(output: Dataset, shown: Callable[..., str]) -> None:
    one, again, other = (numbers(shown(output.path, "--random", 9, "--seed", seed)) for seed in (4, 4, 5))
    assert one == again == sorted(set(one))
    assert len(one) == 9
    assert one != other
    inside = numbers(shown(output.path, "--random", 5, "--domain", "b"))
    assert max(inside) < len(output.domain("b"))


@given(st.lists(st.lists(st.integers(0, 9), max_size=9), max_size=6), st.integers(0, 12), st.booleans())
def test_extremes_of_any_parts(parts: list[list[int]], count: int, longest: bool) -> None:
    flat = [size for part in parts for size in part]
    borders = np.cumsum([0, *map(len, parts)])
    given = [(np.arange(borders[n], borders[n + 1]), np.array(part, np.int64)) for n, part in enumerate(parts)]
    wanted = sorted(enumerate(flat), key=lambda pair: (-pair[1] if longest else pair[1], pair[0]))[:count]
    assert extremes(given, count, longest) == [number for number, _ in wanted]


def test_grep_finds_what_the_texts_have(output: Dataset, shown: Callable[..., str]) -> None:
    for pattern in (r"^Count to \d\.", "(?i)COUNT TO 1", "1 2 end$"):
        wanted = [row for row in range(len(output)) if re.search(pattern, str(output.decode(row)))]
        assert numbers(shown(output.path, "--grep", pattern, "--count", 5)) == wanted[:5] != []
    assert "nothing found: 60 rows: --grep none" in shown(output.path, "--grep", "none")


def test_records_left_out_of_an_output(output: Dataset, shown: Callable[..., str]) -> None:
    source = output.manifest["inputs"][0]["path"]
    text = shown(output.path, "--reason", "wrong_type")
    assert re.findall("━━ (.*)", text) == [f"{source}, line {n} · rejected: wrong_type" for n in (61, 62)]
    assert "field 'prompt' is a number (3), wanted a string\n── {" in text
    assert shown(output.path, "--reason", "rejected").count("· rejected: ") == 3
    assert shown(output.path, "--reason", "wrong_type", "--grep", "<b>").count("· rejected: ") == 1
    text = shown(output.path, "--reason", "empty")
    places = [(drop["file"], drop["line"]) for drop in output.drops()]
    assert re.findall("━━ (.*)", text) == [f"{file}, line {line} · dropped: empty" for file, line in places]
    assert len(places) == 2
    assert "dropped: 2 empty\n" in text
    # What it says to type works.
    command = text.partition("type: beam-prep inspect ")[2].strip()
    command = command.replace("CONFIG", str(INSTRUCTION)).replace("TOKENIZER", str(TOKENIZER_PATH))
    assert shown(*shlex.split(command)).count("· dropped: empty") == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--random", "3", "--count", "2"], "--random and --count exclude each other; leave out all but one of them"),
        (["--reason", "empty", "--domain", "a"], "--reason and --domain exclude each other"),
        (["--grep", "["], r"to find it as it is, type: --grep '\['"),
        (["--reason", "nothing"], "there are dropped: 2 empty; rejected: "),
    ],
)
def test_what_excludes_each_other_says_what_to_type(
    output: Dataset, command: Command, arguments: list[str], message: str
) -> None:
    assert message in command("inspect", output.path, *arguments, code=2)  # and prints nothing else


def test_every_pair_of_options_is_either_shown_or_refused() -> None:
    values: dict[str, Any] = {
        "record": 0, "count": 1, "domain": "a", "random": 1, "shortest": True, "longest": True, "grep": "x",
        "reason": "r",
    }  # fmt: skip
    allowed = set()
    for one in values:
        for other in values:
            with contextlib.suppress(BeamPrepError):
                Selection(**{one: values[one], other: values[other]})
                allowed.add(frozenset((one, other)))
    pairs = {"domain record", "domain count", "domain random", "domain shortest", "domain longest", "domain grep"}
    pairs |= {"count shortest", "count longest", "count grep", "count reason", "grep reason"}
    assert allowed == {frozenset(pair.split()) for pair in pairs} | {frozenset([name]) for name in values}


def test_rejects_that_are_damaged_are_an_error(output: Dataset, tmp_path: Path) -> None:
    copy = shutil.copytree(output.path, tmp_path / "copy")
    (file,) = (copy / "rejects").iterdir()
    for content in (b"no json\n", b"\xff\n"):
        file.write_bytes(content)
        with pytest.raises(FormatError, match="damaged"):
            list(bp.open(copy).rejects())
    file.unlink()
    with pytest.raises(FormatError, match="is missing or damaged"):
        list(bp.open(copy).rejects())


def test_ids_stand_before_their_tokens(output: Dataset, shown: Callable[..., str]) -> None:
    plain, text = shown(output.path, "--count", 1), shown(output.path, "--count", 1, "--ids")
    for number in output[0]["sequence"][:5].tolist():
        assert re.search(rf"\b{number}\b", text)
        assert not re.search(rf"\b{number}\b.*⟦", plain)


IN_TERMINAL = """
import os, sys
from beam_prep import cli
for pager, no_color, *words in {runs!r}:
    os.environ.update(PAGER=pager, NO_COLOR=no_color)
    assert cli.main(["inspect", *words]) == 0
    print("END", flush=True)
"""


def _in_terminal(*runs: tuple[str, ...]) -> list[str]:
    """What commands print in a terminal, one after the other."""
    command = [sys.executable, "-c", IN_TERMINAL.format(runs=runs)]
    inside, outside = pty.openpty()
    settings = {**os.environ, "TERM": "xterm", "COLUMNS": "90"}
    with subprocess.Popen(command, stdin=outside, stdout=outside, stderr=outside, env=settings, cwd=ROOT) as process:
        os.close(outside)
        parts = []
        with contextlib.suppress(OSError):  # Linux says so when the last writer has gone
            while part := os.read(inside, 65536):
                parts.append(part)
        os.close(inside)
    text = b"".join(parts).decode().replace("\r", "")
    assert process.returncode == 0, text
    return text.split("END\n")


def test_a_terminal_gets_a_pager_unless_it_is_told_otherwise(output: Dataset) -> None:
    two = (str(output.path), "--count", "2")
    paged, none, left_out, plain, left_early, *_ = _in_terminal(
        ("sed s/^/paged:/", "", *two),
        ("no-such-pager", "", *two),
        ("sed s/^/paged:/", "", *two, "--no_pager"),
        ("", "1", *two),
        ("head -n 1", "", str(output.path), "--count", "60"),
    )
    assert "paged:" in paged
    assert "\x1b[1;32m" in paged
    assert none == left_out == paged.replace("paged:", "")
    assert "⟦" in plain
    assert "━━" not in left_early
