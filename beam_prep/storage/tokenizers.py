"""Loads tokenizers from a store, and copies tokenizers to a folder that workers on other machines can read."""

import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from beam_prep.errors import StorageError, TokenizerError
from beam_prep.storage.files import join, write_file
from beam_prep.storage.stores import objects
from beam_prep.storage.stores.client import StoreOptions, is_local
from beam_prep.storage.stores.objects import read_bytes, read_shared
from beam_prep.tokens import resolver
from beam_prep.tokens.tokenizer import Tokenizer


def load_tokenizer(path: str | os.PathLike[str]) -> Tokenizer:
    """Like `Tokenizer.load`, also for a folder on gs:// or s3://, which is first copied to this disk without weights.

    Raises:
        TokenizerError: there is no usable tokenizer.
        StorageError: the store does not answer, or refuses.
    """
    given = os.fspath(path)
    if is_local(given):
        return Tokenizer.load(given)
    base = given.rstrip("/") + "/"
    names = [each.path[len(base) :] for each in objects.listed(base)]
    names = [name for name in names if name.rpartition("/")[0] in ("", resolver.BELOW)]
    names = [name for name in names if name and Path(name).suffix not in resolver.WEIGHTS]
    if not names:
        raise TokenizerError(f"no tokenizer folder {given!r}: wanted one with tokenizer.json; check bucket and path")
    with tempfile.TemporaryDirectory(prefix="beam_prep-tokenizer-") as copied:
        for name in names:
            (Path(copied) / name).parent.mkdir(exist_ok=True)
            (Path(copied) / name).write_bytes(read_bytes(base + name))
        try:
            return Tokenizer.load(copied).keep()  # `load` does not copy a folder that `save` wrote
        except TokenizerError as error:
            raise TokenizerError(str(error).replace(copied, given)) from None


@dataclass(frozen=True, slots=True)
class TokenizerFolder:
    """A tokenizer's files in a folder that all workers can read: the `TokenizerSource` of a `Tokenizer`.

    Attributes:
        path: the folder.
        names: its files.
        options: the store options that workers activate.
    """

    path: str
    names: tuple[str, ...]
    options: StoreOptions = field(default_factory=StoreOptions.current, compare=False)

    def __str__(self) -> str:
        return self.path

    def fetch(self) -> dict[str, bytes]:
        """The files, read with the store options of the launcher.

        Raises:
            TokenizerError: the files cannot be read.
        """
        self.options.activate()
        try:
            return {name: read_shared(read_bytes, join(self.path, name)) for name in self.names}
        except StorageError as error:
            raise TokenizerError(
                f"the tokenizer's folder {self.path} cannot be read on this worker: {error}. "
                "--staging must name a folder that launcher and workers share, or one on gs:// or s3://"
            ) from None


def ship(tokenizer: Tokenizer, folder: str) -> Tokenizer:
    """Copies a tokenizer's files to a folder that all workers can read. Returns the tokenizer that loads from it."""
    place = join(folder, "tokenizers", tokenizer.fingerprint)
    contents = tokenizer.contents()
    for name, content in contents.items():
        write_file(join(place, name), content)  # it replaces an old file, which an earlier launch may have left damaged
    return tokenizer.from_source(TokenizerFolder(place, tuple(contents)))
