"""The files of rejects."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path


def reject_problems(folder: Path, name: str, reasons: Counter[str]) -> Iterator[str]:
    """Counts the reasons in a file of rejects. Yields a problem for each line that is not a reject."""
    with (folder / name).open("rb") as stream:
        for number, line in enumerate(stream, 1):
            try:
                reasons[json.loads(line)["reason"]] += 1
            except (ValueError, KeyError, TypeError):
                yield f"{name}: line {number} is no reject: {line[:60]!r}"
