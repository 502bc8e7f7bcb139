"""A page of rows for a browser: one HTML file that needs no network.

Rows are JSON data in the page; `page.js` builds the rows that are on the screen. A token is an index into a table of
the page: (id, text, 1 if special).
"""

import contextlib
import html
import importlib.resources
import os
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import orjson

from beam_prep.data.schema import PROMPT_COMPLETION
from beam_prep.errors import BeamPrepError
from beam_prep.inspect.left_out import LeftOut
from beam_prep.inspect.rows import ShownRow, alike, is_pair, row_parts
from beam_prep.inspect.sequences import VISIBLE, RowDisplay, TokenSequence, counts_of, pieces_of, repeats, special_ids

ROWS = 1_000
"""How many rows a page has, without `--count` or `--random`."""

LEFT_OUT = 20
"""How many records that were left out a page has for each reason, without `--reason`."""

_TEXT = 1_000  # most characters of a record that was left out
_MARK = b"<!-- beam-prep inspect -->"
_DARK = (
    "color-scheme: dark; --bg: #14161a; --panel: #1d2026; --fg: #e9eaed; --dim: #a9afb9; --line: #3a3f49; "
    "--focus: #8ab4f8; --trained: #123a5c; --trained-line: #7cc0ff; --special: #ffbf69; --space: #6b7280; "
    "--hit: #ffe14d; --hit-fg: #000; --bad: #ff8a80; --r0: #6cb8f0; --r1: #ff9d5c; --r2: #4fd1a5; --r3: #e59acb; "
    "--r4: #e0c341; --r5: #a3b1ff; --r6: #ff9c9c; --r7: #b5bdc9;"
)


@dataclass(frozen=True)
class Head:
    """The head of a page, above its rows.

    Attributes:
        title: the output, or the inputs.
        chosen: which rows are shown, in words.
        numbers: totals of the output, or of the sample: (key, label, value, note).
        lines: details, as in the terminal.
    """

    title: str
    chosen: str
    numbers: Sequence[tuple[str, str, int, str]]
    lines: Sequence[str]


def check_page(path: str | os.PathLike[str]) -> None:
    """Checks that a page can be written there.

    Raises:
        BeamPrepError: another file is there, or the folder is missing.
    """
    file = Path(path)
    if not file.parent.is_dir():
        raise BeamPrepError(f"--html {path}: there is no folder {file.parent}; make it first: mkdir -p {file.parent}")
    if not file.exists():
        return
    begins = b""
    if file.is_file():
        with file.open("rb") as found:
            begins = found.read(100)
    if _MARK not in begins:
        raise BeamPrepError(
            f"--html {path}: this is there already, and is no page of beam-prep inspect; give another name"
        )


def write_page(path: str | os.PathLike[str], entries: Iterable[ShownRow | LeftOut], head: Callable[[], Head]) -> int:
    """Writes a page. It gets its name when it is complete. Memory holds one row and the table of tokens.

    Args:
        path: the file.
        entries: rows, and records that were left out.
        head: is called after the last entry.

    Returns:
        The number of entries.

    Raises:
        BeamPrepError: see `check_page`; or the file cannot be written.
    """
    check_page(path)
    file = Path(path)
    made = file.with_name(f".{file.name[:100]}.{uuid.uuid4().hex}")
    try:
        with made.open("xb") as page:
            count = _write(page, entries, head)
        os.replace(made, file)
    except OSError as error:
        if error.filename is not None and Path(error.filename) not in (made, file):
            raise  # the error of a file that is read
        raise BeamPrepError(f"--html {path}: cannot be written: {error.strerror}") from None
    finally:
        with contextlib.suppress(OSError):
            made.unlink()
    return count


def _write(page: BinaryIO, entries: Iterable[ShownRow | LeftOut], head: Callable[[], Head]) -> int:
    folder = importlib.resources.files("beam_prep.inspect")
    frame, style, script = (folder.joinpath(f"page.{kind}").read_text("utf-8") for kind in ("html", "css", "js"))
    begin, _, end = frame.partition("{{data}}\n")
    begin = begin.replace("{{css}}", style.replace("{{dark}}", _DARK))
    before, _, after = begin.partition("{{title}}")
    # The head comes last in the file. The script sets its title; until then a browser shows this title.
    page.write(f"{before}{html.escape('beam-prep inspect')}{after}".encode())
    data = _Data()
    count = 0
    page.write(b'<script type="application/json" id="row-data">[')
    for entry in entries:
        row = data.left_out(entry) if isinstance(entry, LeftOut) else data.row(entry)
        page.write((b",\n" if count else b"\n") + _json(row))
        count += 1
    page.write(b']</script>\n<script type="application/json" id="tokens">[')
    for number, token in enumerate(data.tokens):
        page.write((b"," if number else b"") + _json(token))
    page.write(b']</script>\n<script type="application/json" id="head">' + _json(data.head(head())) + b"</script>\n")
    page.write(end.replace("{{js}}", script).encode())
    return count


def _json(value: Any) -> bytes:
    """JSON that can stand in a `<script>`. All its texts must have passed `_seen`."""
    return orjson.dumps(value).replace(b"<", b"\\u003c").replace(b"&", b"\\u0026")


def _seen(text: str) -> str:
    return text.translate(VISIBLE)


class _Data:
    """The rows of a page as JSON, and the tables that they share."""

    def __init__(self) -> None:
        self._tokens: dict[tuple[int, str, int], int] = {}
        self._roles: dict[str, int] = {}
        self._rows = False

    @property
    def tokens(self) -> Iterable[tuple[int, str, int]]:
        """(id, text, 1 if special) of each token, in the order of the table."""
        return self._tokens

    def head(self, head: Head) -> dict[str, Any]:
        note = ""
        if self._rows and not self._roles:
            note = (
                "Roles are not shown: rows hold ids and masks. A preview of messages shows them: "
                "beam-prep inspect FILES -c CONFIG --tokenizer_path TOKENIZER --html PAGE"
            )
        return {
            "title": _seen(head.title),
            "chosen": _seen(head.chosen),
            "numbers": [[key, _seen(label), value, _seen(said)] for key, label, value, said in head.numbers],
            "lines": [_seen(line) for line in head.lines],
            "roles": list(map(_seen, self._roles)),
            "no_roles": note,
        }

    def left_out(self, record: LeftOut) -> dict[str, Any]:
        return {
            "title": _seen(record.place),
            "kind": _seen(record.kind),
            "reason": _seen(record.reason),
            "message": _seen(record.message),
            "text": _seen("\n".join(record.lines(_TEXT))),
        }

    def row(self, shown: ShownRow) -> dict[str, Any]:
        self._rows = True
        display = shown.display
        found = row_parts(display, shown.row)
        sequences = found.sequences
        known = [sequence.trained for sequence in sequences if sequence.trained is not None]
        parts: list[dict[str, Any]] = [
            {"line": _seen(part)} if isinstance(part, str) else self._sequence(part, display, shown.role_names)
            for part in found.parts
        ]
        counts = [counts_of(sequences)] if sequences else []
        row: dict[str, Any] = {
            "title": _seen(" · ".join(shown.title)),
            "domain": _seen(shown.domain),
            "tokens": sum(sequence.stored for sequence in sequences),
            "trained": sum(int(each.sum()) for each in known) if len(known) == len(sequences) else None,
            "notes": [_seen(note) for note in (*counts, *found.notes, *shown.notes)],
            "parts": parts,
            "packed": found.packed,
        }
        if (pair := _pair(display, found.parts)) is not None:
            row["pair"] = pair
        roles = {role for part in parts for role, _ in part.get("r", ()) if role >= 0}
        if roles:
            row["roles"] = sorted(roles)
        return row

    def _sequence(self, part: TokenSequence, display: RowDisplay, role_names: Sequence[str]) -> dict[str, Any]:
        ids = part.ids.tolist()
        special = special_ids(display.tokenizer)
        found: dict[str, Any] = {
            "name": _seen(part.name),
            "counts": counts_of([part]),
            "notes": [_seen(note) for note in part.notes],
            "t": [
                self._token(token, piece, special)
                for token, piece in zip(ids, pieces_of(ids, display.tokenizer), strict=True)
            ],
        }
        if part.trained is not None:
            found["m"] = [[int(value), size] for value, size in repeats(part.trained)]
        if part.roles is not None and part.roles.any():
            names = [-1, *(self._roles.setdefault(name, len(self._roles)) for name in role_names)]
            found["r"] = [[names[value], size] for value, size in repeats(part.roles)]
        if part.padding:
            found["padding"] = [
                [self._token(int(token), pieces_of([int(token)], display.tokenizer)[0], special), size]
                for token, size in repeats(np.array(part.padding, np.int64))
            ]
        return found

    def _token(self, token: int, piece: str, special: frozenset[int]) -> int:
        return self._tokens.setdefault((token, _seen(piece), int(token in special)), len(self._tokens))


def _pair(display: RowDisplay, parts: Sequence[TokenSequence | str]) -> dict[str, int] | None:
    """The positions of the sides of a preference pair, and the number of common first tokens; None if it is no pair."""
    places = [place for place, part in enumerate(parts) if isinstance(part, TokenSequence)]
    sequences = [part for part in parts if isinstance(part, TokenSequence)]
    if is_pair(display, sequences):
        return {"left": places[0], "right": places[1], "common": alike(sequences[0], sequences[1])}
    output = display.config.get("output", {})
    if output.get("columns") != "prompt_completion":
        return None
    names = [output.get("names", {}).get(name, name) for name in PROMPT_COMPLETION[:2]]
    sides = [place for name in names for place in places if parts[place].name == name]  # type: ignore[union-attr]
    return {"left": sides[0], "right": sides[1], "common": 0} if len(sides) == 2 else None
