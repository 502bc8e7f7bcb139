"""The spool: where tokenised blocks lie between the two phases, and between a run and the next."""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from beam_prep.core.data.block import BlockReceipt
from beam_prep.core.data.ragged import Array, Ragged
from beam_prep.core.tokens.batch import Batch
from beam_prep.core.tokens.check import Trust
from beam_prep.errors import FormatError, SpoolError
from beam_prep.formats.spool import (
    REJECTS,
    ROWS,
    SIDECAR,
    Rows,
    check_whole,
    encode_block,
    read_receipt,
    read_rejects,
    read_rows,
    read_sidecar,
)
from beam_prep.storage.files import DAMAGED_SUFFIX, exists, join, read_file, set_aside, write_file
from beam_prep.storage.paths import is_local
from beam_prep.storage.stores.options import StoreOptions

AT_ONCE = 32
"""Files that are read at the same time."""


@dataclass(frozen=True, slots=True)
class Spool:
    """A folder of blocks, named by what they are a function of.

    Attributes:
        folder: the folder.
        recipe: digest of all that phase 1 depends on but the block's bytes: config, tokenizer, versions.
        options: for workers.
        once: for this run alone, on a local disk: a block goes as soon as all of its rows are in a shard. Then less of
            the disk is in use at a time, and what is not yet on it need not be written there.
        trust: which blocks are used again.
    """

    folder: str
    recipe: str
    options: StoreOptions = field(default_factory=StoreOptions.current)
    once: bool = False
    trust: Trust = field(default_factory=Trust)

    def name(self, digest: str) -> str:
        """The name of a block, from the digest of its bytes. The first two digits are a folder."""
        return f"{digest[:2]}/{digest[2:32]}-{self.recipe[:16]}"

    def find(self, digest: str) -> BlockReceipt | None:
        """The receipt of a block that is already there; None: it is not. All of its bytes are proven.

        Raises:
            SpoolError: it is there, and damaged.
        """
        name = self.name(digest)
        if is_local(self.folder) and not exists(self._path(name, ROWS)):
            return None
        try:
            rows = read_file(self._path(name, ROWS))
        except FileNotFoundError:
            return None
        try:
            receipt = read_receipt(rows, name, whole=True)
            for ending in (SIDECAR, REJECTS) if receipt.counts["rejected"] else (SIDECAR,):
                check_whole(read_file(self._path(name, ending)), name, ending)
        except (FormatError, OSError) as error:
            raise SpoolError(str(error)) from None
        return receipt

    def write(self, batch: Batch, text_limit: int) -> BlockReceipt:
        """Writes a block's files, its rows last."""
        name = self.name(batch.origin.digest)
        receipt, files = encode_block(batch, text_limit, name)
        for ending, parts in files.items():
            write_file(self._path(name, ending), *parts)
        return receipt

    def rows(self, name: str, domain: int, start: int, stop: int, last: bool = False) -> dict[str, Ragged]:
        """A slice of a block's rows. Where it is the `last` use of the block, and all of its rows, the block goes.

        Raises:
            SpoolError: see `_expected_block`.
        """
        path = self._path(name, ROWS)
        with self._expected_block(name):
            rows, are_all = read_rows(read_file(path), name, domain, start, stop)
        if last and are_all:
            os.unlink(path)  # the rows are mapped, and stay as long as they are in use
        return rows

    def counter(self, counter: str, name: str, domain: int, start: int, stop: int) -> Array | None:
        """int64 [rows]: what a counter says of a slice of a block's rows; None where it counts none of the block."""
        sidecar = self._sidecar(name)
        counts = sidecar.counters.get(counter)
        return None if counts is None else counts[sidecar.domain == domain][start:stop]

    def receipt(self, name: str) -> BlockReceipt:
        """A block's receipt.

        Raises:
            SpoolError: see `_expected_block`.
        """
        with self._expected_block(name):
            return read_receipt(read_file(self._path(name, ROWS)), name)

    def rejects(self, names: Sequence[str]) -> Iterator[list[dict[str, Any]]]:
        """Rejects of several blocks, in order, some fetched at the same time."""
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for first in range(0, len(names), AT_ONCE):
                yield from pool.map(self._rejects, names[first : first + AT_ONCE])

    def _rejects(self, name: str) -> list[dict[str, Any]]:
        with self._expected_block(name):
            return read_rejects(read_file(self._path(name, REJECTS)), name)

    def sidecars(self, names: Sequence[str]) -> list[Rows]:
        """Sidecars of several blocks, fetched at the same time."""
        with ThreadPoolExecutor(AT_ONCE) as pool:
            return list(pool.map(self._sidecar, names))

    def _sidecar(self, name: str) -> Rows:
        with self._expected_block(name):
            return read_sidecar(read_file(self._path(name, SIDECAR)), name)

    @contextmanager
    def _expected_block(self, name: str) -> Iterator[None]:
        """Around the use of a block that the plan counts on.

        Raises:
            SpoolError: it is damaged, and then set aside, or no longer there. The next run makes it anew.
        """
        advice = f"in {self.folder}: run again, and the block is made anew; all others are used as they are"
        try:
            yield
        except FormatError as error:
            for ending in (ROWS, SIDECAR, REJECTS):  # without its rows it is not found
                set_aside(self._path(name, ending))
            raise SpoolError(f"{error}; it is set aside (*{DAMAGED_SUFFIX}) {advice}") from None
        except FileNotFoundError:
            raise SpoolError(f"the spool file {name} is gone, or was set aside, {advice}") from None

    def _path(self, name: str, ending: str) -> str:
        return join(self.folder, name + ending)
