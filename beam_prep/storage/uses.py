"""Who uses which blocks of a token cache, so that `gc` keeps them. In the token cache itself, in the folder `uses`.

`<root>.<launch>.json`: a launch, and where its claim is: as long as that has not ended, every block of its recipe is in
use. `<root>-<output>.blocks` (`.<launch>.blocks` until the output is published): the blocks of an output. They are in
use as long as the output is there, and its `run.json` names the launch that noted them. `<root>` and `<output>` are
digests of paths. Of a block's digest 8 bytes are noted, 10 MB for 1.2 million blocks: another with the same 8 would be
kept, too.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from beam_prep.data.ragged import Array
from beam_prep.errors import FormatError, TokenCacheError
from beam_prep.formats.manifest import MANIFEST, RUN
from beam_prep.formats.sealed import Sealed, seal
from beam_prep.storage.claims import Claims
from beam_prep.storage.files import join, read_file, write_file
from beam_prep.storage.stores import objects
from beam_prep.storage.stores.client import is_local
from beam_prep.storage.stores.objects import read_bytes

FOLDER = "uses"
_LAUNCH, _BLOCKS = ".json", ".blocks"
_UNFINISHED = re.compile(rf"({re.escape(_LAUNCH)}|{re.escape(_BLOCKS)})\.[0-9a-f]{{32}}$")
"""A file that `write_file` has not renamed: where a disk has no files without a name."""
_SEALED = "the blocks of an output"
_DIGITS = 16
"""Of a block's digest that are noted, as one number."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A launch that uses a token cache.

    Attributes:
        launch: its id.
        recipe: the digits of the recipe in the names of its blocks.
        root: what its claim is on: the output, or the folder of versions.
        claims: the folder of its claim.
    """

    launch: str
    recipe: str
    root: str
    claims: str

    def is_alive(self) -> bool:
        """True if it has not ended."""
        claim = Claims(self.claims, self.root, self.launch).holder()
        return claim is not None and claim.launch == self.launch and not claim.has_ended()


@dataclass(frozen=True, slots=True)
class Output:
    """An output, and its blocks.

    Attributes:
        path: where it is.
        launch: which made it.
        recipe: see `Launch`.
        blocks: uint64, the beginnings of their digests, sorted.
    """

    path: str
    launch: str
    recipe: str
    blocks: Array

    def is_there(self) -> bool:
        """True if the output is as this launch made it. Where its disk is not mounted, it may be: then also."""
        if is_local(self.path) and not Path(self.path).parent.is_dir():
            return True
        try:
            launch = json.loads(read_bytes(join(self.path, RUN))).get("launch")
            return launch == self.launch and bool(read_bytes(join(self.path, MANIFEST)))
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return False


class Uses:
    """The folder `uses` of a token cache.

    Args:
        token_cache: the token cache's folder.
    """

    def __init__(self, token_cache: str) -> None:
        self._folder = join(token_cache, FOLDER)

    def begin(self, launch: Launch) -> None:
        """Notes a launch. Called after it has claimed its output, before it looks for blocks."""
        self.tidy(launch.root)
        write_file(self._path(f"{_digest(launch.root)}.{launch.launch}{_LAUNCH}"), json.dumps(asdict(launch)).encode())

    def end(self, root: str, launch: str) -> None:
        """Forgets a launch that has ended."""
        self._remove(f"{_digest(root)}.{launch}{_LAUNCH}")
        self.tidy(root)

    def note(self, root: str, output: str, launch: str, names: pa.StringArray) -> None:
        """Notes the blocks of an output. Called before the first shard is written.

        Args:
            root: what the launch has claimed.
            output: the output's path.
            launch: which makes it.
            names: of its blocks, all of one recipe.
        """
        digests = np.unique(np.array([_number(name) for name in names.to_pylist()], "<u8"))
        recipe = names[0].as_py().rpartition("-")[2] if len(names) else ""
        facts = {"path": output, "launch": launch, "recipe": recipe}
        content = json.dumps(facts).encode() + b"\n" + digests.tobytes()
        name = f"{_digest(root)}-{_digest(output)}.{launch}{_BLOCKS}"
        write_file(self._path(name), content, seal(content, _SEALED))

    def launches(self, root: str = "") -> Iterator[tuple[str, Launch]]:
        """All launches that are noted, with the names of the notes; `root`: those on it."""
        for name in self._names(_LAUNCH, root):
            with suppress(FileNotFoundError):  # it has ended meanwhile
                yield name, Launch(**json.loads(read_bytes(self._path(name))))

    def outputs(self, root: str = "") -> Iterator[tuple[str, Output]]:
        """All outputs that are noted, with the names of the notes; `root`: those of launches on it.

        Raises:
            TokenCacheError: a note is damaged.
        """
        for name in self._names(_BLOCKS, root):
            with suppress(FileNotFoundError):  # it is final now, or gone
                yield name, self._output(name)

    def _output(self, name: str) -> Output:
        try:
            content = Sealed(read_file(self._path(name)), _SEALED).part(0).to_pybytes()
        except FormatError as error:
            path = self._path(name)
            raise TokenCacheError(f"{path}: {error}: nothing is removed; remove it, and run its job again") from None
        facts, _, digests = content.partition(b"\n")
        return Output(**json.loads(facts), blocks=np.frombuffer(digests, "<u8"))

    def tidy(self, root: str = "") -> None:
        """Removes notes of launches that have ended and of outputs that are gone.

        Args:
            root: only the notes on it. Of a folder on a disk, which the caller has locked, so that nobody else writes
                notes, what was left by one that was killed while it wrote goes, too.
        """
        alive = set()
        for name, launch in self.launches(root):
            if launch.is_alive():
                alive.add(launch.launch)
            else:
                self._remove(name)
        for name in self._names(_BLOCKS, root):
            try:
                output = self._output(name)
            except FileNotFoundError:
                continue
            except TokenCacheError:
                if root:  # of a job that runs now: it will note them again
                    self._remove(name)
                continue
            if output.is_there():
                final = name.partition(".")[0] + _BLOCKS
                if name != final:
                    self._rename(name, final)
            elif output.launch not in alive:
                self._remove(name)
        if root and is_local(root) and is_local(self._folder):
            for path in Path(self._folder).glob(f"{_digest(root)}*"):
                if _UNFINISHED.search(path.name):
                    path.unlink()

    def _path(self, name: str) -> str:
        return join(self._folder, name)

    def _names(self, ending: str, root: str) -> list[str]:
        if is_local(self._folder):
            found = sorted(path.name for path in Path(self._folder).glob(f"*{ending}"))
        else:
            found = [each.path.rpartition("/")[2] for each in objects.listed(f"{self._folder}/")]
        begin = _digest(root) if root else ""
        return [name for name in found if name.endswith(ending) and name.startswith(begin)]

    def _rename(self, name: str, final: str) -> None:
        if is_local(self._folder):
            os.replace(self._path(name), self._path(final))
        else:
            objects.put(self._path(final), read_bytes(self._path(name)))
            self._remove(name)

    def _remove(self, name: str) -> None:
        if is_local(self._folder):
            Path(self._path(name)).unlink(missing_ok=True)
        else:
            objects.delete([self._path(name)])


def _digest(path: str) -> str:
    return hashlib.sha256(path.encode("utf-8", "surrogateescape")).hexdigest()[:12]


def _number(name: str) -> int:
    """The beginning of a block's digest, of its name `ab/cdef...-recipe`."""
    return int((name[:2] + name[3:])[:_DIGITS], 16)


def is_among(name: str, blocks: Array) -> bool:
    """True if a block is noted: see `Output.blocks`."""
    number = np.uint64(_number(name))
    place = int(np.searchsorted(blocks, number))
    return place < len(blocks) and bool(blocks[place] == number)
