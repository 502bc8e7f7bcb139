"""Whole files, on this disk or in an object store: read and written with patience where a store does not answer."""

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from apache_beam.io.filesystem import CompressionTypes
from apache_beam.io.filesystems import FileSystems

from beam_prep.core.tokenizer import Tokenizer
from beam_prep.errors import TokenizerError
from beam_prep.transforms._files import exists, is_local, join, write_file

log = logging.getLogger("beam_prep")

PATIENCE = 60.0
"""Seconds that a store may be gone in the middle of a run."""

_PAUSE, _LONGEST_PAUSE = 0.25, 8.0
TRANSIENT = (OSError,)

T = TypeVar("T")


def patiently(work: Callable[[], T], path: str) -> T:
    """Does work on a path, again and again where its store does not answer, for `PATIENCE` seconds in all.

    Raises:
        What `work` raised last.
    """
    end, pause = time.monotonic() + PATIENCE, _PAUSE
    while True:
        try:
            return work()
        except TRANSIENT as error:
            if time.monotonic() + pause > end:
                raise
            log.info("%s: %s; trying again in %.1f s", path, error, pause)
        # Not all workers at once.
        time.sleep(pause * random.uniform(0.5, 1.0))
        pause = min(2 * pause, _LONGEST_PAUSE)


def read_bytes(path: str) -> bytes:
    """A file's content."""
    if is_local(path):
        return Path(path).read_bytes()
    with FileSystems.open(path, compression_type=CompressionTypes.UNCOMPRESSED) as file:
        return bytes(file.read())


@dataclass(frozen=True, slots=True)
class TokenizerFolder:
    """A tokenizer's files in a place that all workers reach: the `Origin` of a `Tokenizer`.

    Attributes:
        path: the folder.
        names: its files.
    """

    path: str
    names: tuple[str, ...]

    def __str__(self) -> str:
        return self.path

    def fetch(self, folder: Path) -> None:
        """Copies the files into a local folder.

        Raises:
            TokenizerError: they cannot be read.
        """
        for name in self.names:
            place = join(self.path, name)
            try:
                data = patiently(lambda place=place: read_bytes(place), place)  # type: ignore[misc]
            except TRANSIENT as error:
                raise TokenizerError(
                    f"the tokenizer's folder {self.path} cannot be read on this worker ({error}), tried for "
                    f"{PATIENCE:.0f} s: --staging must name a folder that launcher and workers share, "
                    "or one on gs:// or s3://"
                ) from None
            (folder / name).write_bytes(data)


def ship(tokenizer: Tokenizer, folder: str) -> Tokenizer:
    """Puts a tokenizer's files into a folder that all workers reach; gives the tokenizer that they load from there."""
    place = join(folder, "tokenizers", tokenizer.fingerprint)
    names = tuple(tokenizer.files())
    for name in names:
        if not exists(join(place, name)):
            write_file(join(place, name), Path(tokenizer.folder, name).read_bytes())
    return tokenizer.from_origin(TokenizerFolder(place, names))
