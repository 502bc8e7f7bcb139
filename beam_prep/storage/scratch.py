"""Files of one run between the spool and the shards: copies, orders and runs, in the launch's folder."""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa

from beam_prep.core.data.schema import Column
from beam_prep.core.shards.gather import Order
from beam_prep.core.shards.sidecars import Copies
from beam_prep.errors import FormatError, SpoolError
from beam_prep.formats.scratch import (
    RunReader,
    RunRows,
    encode_copies,
    encode_order,
    encode_run,
    read_copies,
    read_order,
)
from beam_prep.formats.sealed import Data
from beam_prep.storage.files import join, read_file, write_file
from beam_prep.storage.paths import is_local


@dataclass(frozen=True, slots=True)
class Scratch:
    """A folder of such files. They end with the launch.

    Attributes:
        folder: the folder.
    """

    folder: str

    def write_copies(self, copies: Copies) -> str:
        """Writes which records of a block are copies. Returns the file's name, a digest; "" of none."""
        if not len(copies):
            return ""
        name = "copies/" + _digest(encode_copies(copies, "")[0])
        self._write(name, encode_copies(copies, name))
        return name

    def copies(self, name: str) -> Copies:
        """What `write_copies` wrote.

        Raises:
            SpoolError: the file is gone, or damaged.
        """
        if not name:
            return Copies()
        with expected(name):
            return read_copies(read_file(self._path(name)), name)

    def write_order(self, order: Order) -> str:
        """Writes which rows a shard has. Returns the file's name: the digest of its content."""
        name = "order/" + _digest(encode_order(order, "")[0])
        self._write(name, encode_order(order, name))
        return name

    def order(self, name: str) -> Order:
        """What `write_order` wrote.

        Raises:
            SpoolError: the file is gone, or damaged.
        """
        with expected(name):
            return read_order(read_file(self._path(name)), name)

    def write_run(
        self, name: str, found: RunRows, schema: Sequence[Column], batches: Sequence[tuple[int, int, int]]
    ) -> None:
        """Writes a run, see `encode_run`."""
        self._write(name, encode_run(found, schema, batches, name))

    def open_run(self, name: str) -> RunReader:
        """A run.

        Raises:
            SpoolError: the file is gone, or damaged.
        """
        with expected(name):
            path = self._path(name)
            return RunReader(pa.OSFile(path) if is_local(path) else read_file(path), name)

    def _write(self, name: str, parts: tuple[Data, bytes]) -> None:
        write_file(self._path(name), *parts)

    def _path(self, name: str) -> str:
        return join(self.folder, name + ".arrow")


def _digest(content: Data) -> str:
    return hashlib.sha256(content).hexdigest()[:40]


@contextmanager
def expected(name: str) -> Iterator[None]:
    """Reads a file of this run.

    Raises:
        SpoolError: it is gone, or damaged.
    """
    try:
        yield
    except FormatError as error:
        raise SpoolError(f"{error}: run again; blocks that are done are kept") from None
    except FileNotFoundError:
        raise SpoolError(f"the file {name} of this run is gone: run again; blocks that are done are kept") from None
