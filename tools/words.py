"""Counts the words of prose of README.md and docs/, by page: `python -m tools.words`.

Code blocks and generated tables do not count.
"""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_FENCED = re.compile(r"^ *(?P<fence>`{3,}).*?^ *(?P=fence)$", re.M | re.S)
# `<!-- table: ... -->` and the rows after it (tools/config_page.py), or everything between two marks.
_MADE = re.compile(
    r"^<!-- table: .* -->\n(?:\|.*\n)*|^<!-- (?P<name>\w+): begin -->\n(?:.*\n)*?<!-- (?P=name): end -->", re.M
)


def prose(text: str) -> str:
    """A page without code blocks and generated tables.

    >>> prose("One `two`.\\n```sh\\nthree\\n```\\n<!-- table: input -->\\n| four |\\nFive.").split()
    ['One', '`two`.', 'Five.']
    """
    return _MADE.sub("", _FENCED.sub("", text))


def main() -> None:
    """Prints the words of each page, largest first, and their sum."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    counts = {page.relative_to(ROOT).as_posix(): len(prose(page.read_text("utf-8")).split()) for page in pages}
    for name, words in sorted(counts.items(), key=lambda item: -item[1]):
        print(f"{words:7,}  {name}")
    print(f"{sum(counts.values()):7,}  {len(counts)} pages")


if __name__ == "__main__":
    main()
