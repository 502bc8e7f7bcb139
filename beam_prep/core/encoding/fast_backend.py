"""What a fast backend is. Each is a module of its own, and an entry of `backends.BACKENDS`:

* its name: a value of --tokenizer_backend, and the name of its package;
* `VERSION`, the one that is used: another may give other ids;
* `load`: `Tokenizer` -> `Loaded`; raises `Unsupported`, with the reason in a few words.
"""

import importlib.metadata
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from beam_prep.core.data.ragged import Array, Ragged
from beam_prep.core.encoding.tokenizer import Tokenizer

Encoded = tuple[Ragged, Array]
"""int32 ids of each text, without special tokens around it; and int64 [n], ascending: the numbers of the texts whose
ids are not known to be the reference's. It encodes these."""


class Unsupported(Exception):
    """A backend cannot be used; the message says why in a few words."""


class Loaded(Protocol):
    """A tokenizer as a backend loaded it."""

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Ids of each text."""
        ...


class FastBackend(NamedTuple):
    """A backend as `backends.BACKENDS` has it."""

    version: str
    load: Callable[[Tokenizer], Loaded]


def wanted_version(name: str, version: str) -> None:
    """Raises `Unsupported` where another version of a package is installed."""
    found = importlib.metadata.version(name)
    if found != version:
        raise Unsupported(f"version {found} is installed, wanted {version}")


def first_line(error: Exception) -> str:
    """What an error says, cut to 200 characters of one line."""
    return str(error).splitlines()[0][:200] if str(error) else type(error).__name__
