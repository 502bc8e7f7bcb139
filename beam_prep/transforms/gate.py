"""Which backend encodes, found out before a run. The first worker process does it, while the launcher goes on."""

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from beam_prep.core.data.block import InputFile
from beam_prep.core.data.hashing import CHUNK
from beam_prep.core.encoding.backends import Backend, Used, choose, load_first
from beam_prep.core.encoding.tokenizer import Tokenizer
from beam_prep.errors import InputError, TokenizerError
from beam_prep.storage.splits import first_records

_PROBE_BYTES = 4 * CHUNK
_PROBES = 64
_PROBE_CHARACTERS = 4096  # a line may be of any length, and this is start-up

Steps = tuple[Callable[[Any], Any], ...]
"""Functions (block) -> block, from `Records` to `Rendered`."""


@dataclass(frozen=True)
class Gate:
    """The question which backend encodes. It can be pickled.

    Attributes:
        tokenizer: the reference.
        backend: what is wanted: see `choose`.
        firsts: files whose first records are probes, each with the steps that make texts of them.
        spans, full: see `choose`.
    """

    tokenizer: Tokenizer
    backend: Backend
    firsts: tuple[tuple[InputFile, Steps], ...]
    spans: bool
    full: bool

    def choose(self) -> tuple[Used, str | None]:
        """See `choose`. The choice, and what was loaded for it, stay in this process and in those forked from it."""
        texts = [text for source, steps in self.firsts for text in first_texts(source, steps)]
        return choose(self.tokenizer, self.backend, texts, self.spans, self.full)

    def problem(self) -> str | None:
        """Chooses. Returns why it is none of the fast backends, where one was wanted."""
        return self.choose()[1]


def first_texts(source: InputFile, steps: Iterable[Callable[[Any], Any]]) -> list[str]:
    """Texts of the first records of a file, as they are encoded. [] if it cannot be read, which the run will report."""
    try:
        records = first_records(source, block_bytes=_PROBE_BYTES)
    except InputError:
        return []
    if records is None:
        return []
    block: Any = records.part(range(min(len(records), _PROBES)))
    for step in steps:
        block = step(block)
    return [text[:_PROBE_CHARACTERS] for each in block.pieces.values() for text in each.texts[:_PROBES]]


def load(tokenizer: Tokenizer, backend: Backend) -> None:
    """Loads the backend that `choose` would try first. What cannot be loaded is left alone: see `Gate.problem`."""
    with contextlib.suppress(TokenizerError, OSError):
        load_first(tokenizer, backend)
