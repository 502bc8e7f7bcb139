"""An extension of griffe, which reads docstrings for the API reference: it shows their examples as code."""

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"^( *)>>> .*(?:\n(?! *$).+)*", re.M)


def fenced(docstring: str) -> str:
    """The docstring with a code block around each example (from `>>>` to the next blank line)."""
    return _EXAMPLE.sub(lambda match: f"{match[1]}```pycon\n{match[0]}\n{match[1]}```", docstring)


class Examples(griffe.Extension):
    """Puts code blocks into every docstring."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        """Called for each module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)
