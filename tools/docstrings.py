"""Shows the examples in docstrings as code, in the API reference. griffe, which reads the docstrings, calls this."""

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"^( *)>>> .*(?:\n(?! *$).+)*", re.M)


def fenced(docstring: str) -> str:
    """A docstring with each example (`>>>`, up to the next blank line) as a block of code."""
    return _EXAMPLE.sub(lambda match: f"{match[1]}```pycon\n{match[0]}\n{match[1]}```", docstring)


class Examples(griffe.Extension):
    """Changes every docstring as it is read."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        """Called for each module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)
