"""The files of rejects."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

KEYS = ("file", "offset", "line", "reason", "message", "text")


class Rejects:
    """The rejects of an output, whose files are given in order.

    Args:
        manifest: the manifest.

    Attributes:
        names: the files.
    """

    def __init__(self, manifest: Mapping[str, Any]) -> None:
        self.names = {file["path"] for file in manifest["rejects"]}
        self._inputs = {entry["path"]: place for place, entry in enumerate(manifest["inputs"])}
        self._most = manifest.get("options", {}).get("reject_text")
        self._last = (-1, -1, -1)

    def problems(self, folder: Path, name: str, reasons: Counter[str]) -> Iterator[str]:
        """Counts the reasons in a file. Yields a problem for each line that is not a reject, or not in its place."""
        with (folder / name).open("rb") as stream:
            for number, line in enumerate(stream, 1):
                try:
                    found = json.loads(line)
                    reasons[found["reason"]] += 1
                except (ValueError, KeyError, TypeError):
                    yield f"{name}: line {number} is no reject: {line[:60]!r}"
                    continue
                if problem := self._problem(found):
                    yield f"{name}: line {number}: {problem}"

    def _problem(self, found: Mapping[str, Any]) -> str:
        if found.keys() != {*KEYS}:
            return f"found {', '.join(found)}, wanted {', '.join(KEYS)}"
        if found["file"] not in self._inputs:
            return f"found the file {found['file']!r}, which is none of the inputs"
        place = self._inputs[found["file"]], found["offset"], found["line"]
        if not isinstance(found["offset"], int) or not isinstance(found["line"], int) or min(place) < 0:
            return f"found offset {found['offset']!r} and line {found['line']!r}, wanted numbers"
        before, self._last = self._last, place
        # Both grow with each line of a file.
        if place <= before or (place[0] == before[0] and place[2] <= before[2]):
            return f"found offset {place[1]}, line {place[2]} of {found['file']}, which is not after the line before"
        if self._most is not None and len(found["text"] or "") > self._most:
            return f"found {len(found['text'])} characters of text, options say reject_text {self._most}"
        return ""
