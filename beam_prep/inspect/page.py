"""A page of rows for a browser: one HTML file that needs no network.

Rows are JSON data in the page; `page.js` builds the rows that are on the screen. A token is an index into a table of
the page: (id, text, 1 if special).
"""

import functools
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import orjson
from jinja2 import Environment, PackageLoader
from rich.text import Text

from beam_prep.errors import BeamPrepError
from beam_prep.inspect.row import VISIBLE, LeftOut, ShownRow, TokenSequence, repeats
from beam_prep.inspect.text import Entry
from beam_prep.storage.files import write_file

_TEXT = 1_000  # most characters of a record that was left out
_MARK = b"<!-- beam-prep inspect -->"


Number = tuple[str, int, str]
"""A total of an output, or of a sample: (label, value, note)."""


@dataclass(frozen=True)
class Head:
    """What stands around rows.

    Attributes:
        title: the output, or the inputs.
        words: which rows are shown.
        numbers: totals, for a page.
        above, below: lines above the rows, and remarks below them; on a page, details in its head.
    """

    title: str
    words: str
    numbers: Sequence[Number] = ()
    above: Text = field(default_factory=Text)
    below: Sequence[Text] = ()


def check_page(path: str | os.PathLike[str]) -> None:
    """Checks that a page can be written there.

    Raises:
        BeamPrepError: another file is there.
    """
    file = Path(path)
    if not file.exists():
        return
    if file.is_file():
        with file.open("rb") as page:
            if _MARK in page.read(100):
                return
    raise BeamPrepError(f"--html {path}: this is there already, and is no page of beam-prep inspect; give another name")


def write_page(path: str | os.PathLike[str], entries: Iterable[Entry], head: Head) -> int:
    """Writes a page. It gets its name when it is complete.

    Args:
        path: the file.
        entries: rows, and records that were left out.
        head: what the page says above them.

    Returns:
        The number of entries.

    Raises:
        BeamPrepError: see `check_page`; or the file cannot be written.
    """
    check_page(path)
    tables = _Tables()
    rows = [tables.left_out(entry) if isinstance(entry, LeftOut) else tables.row(entry) for entry in entries]
    lines = [text.plain for text in (head.above, *head.below)]
    said = {
        "title": head.title,
        "chosen": head.words,
        "numbers": head.numbers,
        "lines": lines,
        "roles": list(tables.roles),
    }
    parts = {"row-data": _json(rows), "tokens": _json(list(tables.tokens)), "head": _json(said)}
    try:
        write_file(os.path.abspath(path), templates().get_template("inspect/page.html").render(parts=parts).encode())
    except OSError as error:
        raise BeamPrepError(f"--html {path}: cannot be written: {error.strerror}") from None
    return len(rows)


@functools.cache
def templates() -> Environment:
    """The pages of this package. What they print of data has visible control and bidirectional characters."""
    return Environment(autoescape=True, finalize=visible, loader=PackageLoader("beam_prep", "."))


def visible(value: Any) -> Any:
    """A value with visible control and bidirectional characters in its texts."""
    if type(value) is str:
        return value.translate(VISIBLE)
    if isinstance(value, dict):
        return {key: visible(each) for key, each in value.items()}
    return [visible(each) for each in value] if isinstance(value, list | tuple) else value


def _json(value: Any) -> str:
    """JSON that can stand in a `<script>`."""
    return orjson.dumps(visible(value)).decode().replace("<", "\\u003c").replace("&", "\\u0026")


class _Tables:
    """The tables of tokens and roles that the rows of a page share."""

    def __init__(self) -> None:
        self.tokens: dict[tuple[int, str, int], int] = {}
        self.roles: dict[str, int] = {}

    def left_out(self, record: LeftOut) -> dict[str, Any]:
        said = asdict(record)
        return {**said, "title": said.pop("place"), "text": "\n".join(record.lines(_TEXT))}

    def row(self, row: ShownRow) -> dict[str, Any]:
        known = [sequence.trained for sequence in row.sequences if sequence.trained is not None]
        parts = [{"line": part} if isinstance(part, str) else self._sequence(row, part) for part in row.parts]
        found = {
            "title": " · ".join(row.title),
            "domain": row.domain,
            "tokens": sum(sequence.stored for sequence in row.sequences),
            "trained": sum(int(each.sum()) for each in known) if len(known) == len(row.sequences) else None,
            "notes": row.header,
            "parts": parts,
            "packed": row.packed,
        }
        if row.pair is not None:
            left, right, common = row.pair
            found["pair"] = {"left": row.parts.index(left), "right": row.parts.index(right), "common": common}
        if roles := {role for part in parts for role, _ in part.get("r", ()) if role >= 0}:
            found["roles"] = sorted(roles)
        return found

    def _sequence(self, row: ShownRow, part: TokenSequence) -> dict[str, Any]:
        tokens = self._tokens(row, part.ids.tolist())
        found: dict[str, Any] = {"name": part.name, "caption": row.caption(part), "t": tokens}
        if part.trained is not None:
            found["m"] = [[int(value), size] for value, size in repeats(part.trained)]
        if part.roles is not None and part.roles.any():
            names = [-1, *(self.roles.setdefault(name, len(self.roles)) for name in row.role_names)]
            found["r"] = [[names[value], size] for value, size in repeats(part.roles)]
        if part.padding:
            found["padding"] = [[*self._tokens(row, [int(token)]), size] for token, size in part.padding]
        return found

    def _tokens(self, row: ShownRow, ids: Sequence[int]) -> list[int]:
        """The places of tokens in the table."""
        special, tokens = row.kind.special, self.tokens
        pieces = zip(ids, row.kind.pieces(ids), strict=True)
        return [tokens.setdefault((token, piece, int(token in special)), len(tokens)) for token, piece in pieces]
