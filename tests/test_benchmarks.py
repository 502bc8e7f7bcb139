"""`benchmarks/end_to_end.py` runs, and says what it needs. What it measures here means nothing."""

import os
import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT, shared

SCRIPT = ROOT / "benchmarks" / "end_to_end.py"


def run(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, SCRIPT, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})


def test_a_tiny_corpus_gives_a_table(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("above\n<!-- end_to_end: begin -->\nold\n<!-- end_to_end: end -->\nbelow\n")
    given = ["--sizes", "1", "--repeats", "1", "--skip_peer", "--cache", tmp_path, "--markdown", page]
    done = run(*given, "--shared", shared("bench", "make_corpus.py").parent.parent)
    assert done.returncode == 0, done.stderr
    row = next(line for line in done.stdout.splitlines() if line.startswith("| mm_chatml"))
    tokenizer, size, tool, _, *numbers = (cell.strip() for cell in row.strip("|").split("|"))
    assert (tokenizer, size, tool) == ("mm_chatml", "1", "beam-prep, in-process")
    assert len(numbers) == 4
    assert all(float(number.replace(",", "")) > 0 for number in numbers)
    text = page.read_text()
    assert text.startswith("above\n<!-- end_to_end: begin -->\n")
    assert text.endswith("\n<!-- end_to_end: end -->\nbelow\n")
    assert done.stdout.strip() in text
    assert "old" not in text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["chat_1mb.jsonl", "page.md"]


def test_absent_test_material_is_named(tmp_path: Path) -> None:
    done = run(BEAM_PREP_SHARED=str(tmp_path / "nowhere"))
    assert done.returncode == 1
    assert f"no test material at {tmp_path / 'nowhere'}" in done.stderr
    assert "--shared" in done.stderr


def test_a_page_without_markers_is_refused_before_anything_runs(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("no markers\n")
    cache = tmp_path / "cache"
    given = ["--quick", "--skip_peer", "--cache", cache, "--markdown", page]
    done = run(*given, "--shared", shared("bench", "make_corpus.py").parent.parent)
    assert done.returncode == 1
    assert "<!-- end_to_end: begin -->" in done.stderr
    assert not cache.exists()
