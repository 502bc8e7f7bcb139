"""The history of ratios: one line a measured row, only ever added to; whether a ratio has fallen; and its picture."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from _measure import BenchmarkError

from beam_prep.inspect.picture import DARK, LIGHT

FALL = 0.1
"""The share of a ratio that may be lost: more than the medians of a quiet machine differ."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What it is, and not which one it is. `memory_gb`: 1e9 bytes."""

    cpu: str
    cores: int
    memory_gb: float


@dataclass(frozen=True, slots=True)
class Entry:
    """A measured ratio.

    Attributes:
        date: `2026-11-23`.
        commit: of the code; with a `+` where files were changed.
        row: of a benchmark.
        megabytes: of its corpus.
        ratio: the peer's seconds over ours, of medians.
        ours_s, peer_s: these medians.
    """

    date: str
    commit: str
    machine: Machine
    row: str
    megabytes: float
    ratio: float
    ours_s: float
    peer_s: float

    @property
    def key(self) -> tuple[str, float, int]:
        """Entries of the same key can be compared: the same row, on as many cores."""
        return self.row, self.megabytes, self.machine.cores

    @property
    def name(self) -> str:
        return f"{self.row}, {self.megabytes:g} MB, {self.machine.cores} cores"


def read(path: Path) -> list[Entry]:
    """All entries, the oldest first; none if there is no such file.

    Raises:
        BenchmarkError: a line is none.
    """
    if not path.exists():
        return []
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            fields = json.loads(line)
            found.append(Entry(**{**fields, "machine": Machine(**fields["machine"])}))
        except (ValueError, KeyError, TypeError) as error:
            raise BenchmarkError(f"{path}, line {number} is no entry of a history: {error}") from None
    return found


def append(path: Path, entries: Sequence[Entry]) -> None:
    """Adds entries. What is there stays as it is."""
    with open(path, "a", encoding="utf-8") as file:
        file.writelines(json.dumps(asdict(entry)) + "\n" for entry in entries)


def compare(history: Sequence[Entry], measured: Sequence[Entry]) -> tuple[list[str], list[Entry]]:
    """(a line about each measured row, those whose ratio has fallen by more than `FALL`)."""
    last = {entry.key: entry for entry in history}
    lines, fallen = [], []
    for entry in measured:
        text = f"{entry.name}: {entry.ratio:.2f} ({entry.ours_s:.2f} s, the peer {entry.peer_s:.2f} s)"
        before = last.get(entry.key)
        if before is None:
            lines.append(f"{text}: no entry yet for this row on {entry.machine.cores} cores; --record adds one")
            continue
        change = entry.ratio / before.ratio - 1
        if change < -FALL:
            fallen.append(entry)
        verdict = f"FELL by {-change:.0%}" if change < -FALL else f"{change:+.0%}"
        lines.append(f"{text}: {verdict}, {before.ratio:.2f} on {before.date} at {before.commit}")
    return lines, fallen


# The picture

_WIDTH, _PANEL, _LEFT, _RIGHT, _TOP, _BOTTOM = 720, 130, 60, 90, 34, 28  # pixels


def picture(history: Sequence[Entry]) -> str:
    """The SVG of all entries: for each row a line, from the first entry to the last one."""
    lines: dict[tuple[str, float, int], list[Entry]] = {}
    for entry in history:
        lines.setdefault(entry.key, []).append(entry)
    body = [part for place, entries in enumerate(lines.values()) for part in _panel(entries, place * _PANEL)]
    if not lines:
        body = [f'<text x="{_LEFT}" y="{_TOP}">benchmarks/history.jsonl has no entry yet.</text>']
    height = max(1, len(lines)) * _PANEL
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" '
            f'height="{height}" class="history" role="img" aria-label="How often the peer\'s time is ours, by commit">',
            f"<style>{_style()}</style>",
            f'<rect class="paper" width="{_WIDTH}" height="{height}" rx="6"/>',
            *body,
            "</svg>\n",
        ]
    )


def _panel(entries: Sequence[Entry], top: float) -> Iterator[str]:
    """One row: entries at equal distances, ratios from 0."""
    most = max(entry.ratio for entry in entries)
    floor, roof = top + _PANEL - _BOTTOM, top + _TOP
    step = (_WIDTH - _LEFT - _RIGHT) / max(1, len(entries) - 1)
    places = [(_LEFT + step * n, floor - (floor - roof) * entry.ratio / most) for n, entry in enumerate(entries)]
    first, last = entries[0], entries[-1]
    yield f'<text class="title" x="{_LEFT}" y="{top + 20:g}">{escape(last.name)}</text>'
    for ratio, y in ((0.0, floor), (most, roof)):
        yield f'<path class="grid" d="M{_LEFT} {y:g}H{_WIDTH - _RIGHT}"/>'
        yield f'<text class="end" x="{_LEFT - 8}" y="{y + 4:g}">{ratio:.1f}</text>'
    yield f'<polyline class="line" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in places)}"/>'
    for entry, (x, y) in zip(entries, places, strict=True):
        told = escape(f"{entry.ratio:.2f}, {entry.date}, {entry.commit}, {entry.machine.cpu}")
        yield f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="3"><title>{told}</title></circle>'
    yield f'<text class="title" x="{places[-1][0] + 10:.1f}" y="{places[-1][1] + 4:.1f}">{last.ratio:.1f} x</text>'
    yield f'<text x="{_LEFT}" y="{floor + 18:g}">{first.date}</text>'
    if len(entries) > 1:
        yield f'<text class="end" x="{_WIDTH - _RIGHT}" y="{floor + 18:g}">{last.date}</text>'


def _style() -> str:
    def colours(of: dict[str, str]) -> str:
        return (
            f".history .paper{{fill:{of['paper']}}}.history text{{fill:{of['ink']}}}"
            f".history .grid{{stroke:{of['marker']}}}.history .line{{stroke:{of['line']}}}"
            f".history .dot{{fill:{of['line']}}}"
        )

    return (
        ".history text{font:12px system-ui,'DejaVu Sans',sans-serif}.history .title{font-weight:bold}"
        ".history .end{text-anchor:end}.history .line{fill:none;stroke-width:2}"
        f"{colours(LIGHT)}@media(prefers-color-scheme:dark){{{colours(DARK)}}}"
    )


def facts_of(sessions: Sequence[dict[str, Any]]) -> tuple[str, str, Machine]:
    """(date, commit, machine) of the sessions of a log.

    Raises:
        BenchmarkError: they have none, or not the same: then nobody knows of what their medians are.
    """
    found = {json.dumps(session.get("facts"), sort_keys=True) for session in sessions}
    if len(found) != 1 or found == {"null"}:
        raise BenchmarkError(
            f"found {len(found)} kinds of sessions in the log, wanted sessions of check.py, all of one day, one commit "
            "and one machine"
        )
    facts = json.loads(found.pop())
    return facts["date"], facts["commit"], Machine(**facts["machine"])
