"""Markdown of benchmarks: tables, a line about the machine, and the part of a page that a benchmark writes."""

import contextlib
import datetime
import importlib.metadata
import os
import platform
import shlex
from collections.abc import Sequence
from pathlib import Path

import psutil
from _measure import ROOT, BenchmarkError

from beam_prep import runners

LIBRARIES = ("beam-prep", "apache-beam", "datasets", "transformers", "tokenizers", "gigatoken", "pyarrow", "numpy")


def machine() -> str:
    """A line with the date, the machine, and the versions of libraries."""
    versions = [f"Python {platform.python_version()}"]
    for name in LIBRARIES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions.append(f"{name} {importlib.metadata.version(name)}")
    return (
        f"{datetime.date.today()}: {cpu_model()}, {runners.cores()} cores, {memory_gb():.1f} GB memory, "
        f"Linux {platform.release()}; {', '.join(versions)}."
    )


def shown(command: str) -> str:
    """A command for a page. Paths in or beside the project become relative; of other paths only the name is shown."""
    return shlex.join(_seen(word) for word in shlex.split(command))


def _seen(word: str) -> str:
    option, equals, path = word.rpartition("=") if word.startswith("--") else ("", "", word)
    if not os.path.isabs(path):
        return word
    beside = Path(path).is_relative_to(ROOT.parent)
    return f"{option}{equals}{os.path.relpath(path, ROOT) if beside else os.path.basename(path.rstrip('/'))}"


def memory_gb() -> float:
    """The memory of the machine, in 1e9 bytes."""
    return float(psutil.virtual_memory().total / 1e9)


def cpu_model() -> str:
    """The processor's name, from the system."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def table(header: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[int]) -> str:
    """A Markdown table with padded cells; columns not in `left` are aligned right."""
    widths = [max(len(cell) for cell in column) for column in zip(header, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        padded = (
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return f"| {' | '.join(padded)} |"

    rule = ["-" * width if column in left else "-" * (width - 1) + ":" for column, width in enumerate(widths)]
    return "\n".join(line(cells) for cells in (header, rule, *rows))


def split_at_markers(path: Path, name: str) -> tuple[str, str]:
    """(text up to the begin marker, text from the end marker), with the markers.

    Raises:
        BenchmarkError: there is no such page, or it lacks the markers.
    """
    if not path.is_file():
        raise BenchmarkError(f"--markdown {path}: no such file")
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, found, rest = path.read_text(encoding="utf-8").partition(begin)
    _, found_end, after = rest.partition(end)
    if not found or not found_end:
        raise BenchmarkError(f"--markdown {path}: the lines {begin} and {end} are not in it: add them where it belongs")
    return before + begin, end + after


def write_markdown(path: Path, name: str, text: str) -> None:
    """Writes `text` between the markers of a page."""
    before, after = split_at_markers(path, name)
    path.write_text(f"{before}\n\n{text}\n\n{after}", encoding="utf-8")
