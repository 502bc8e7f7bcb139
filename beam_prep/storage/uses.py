"""Who uses which blocks of a spool, so that `gc` keeps them. In the spool itself, in the folder `uses`.

`<launch>.json`: a launch, and where its claim is: as long as that has not ended, every block of its recipe is in use.
`<launch>.blocks`: the blocks of the output that the launch made. They are in use as long as the output is there, and
its `run.json` names the launch. Of a digest 8 bytes are noted, 10 MB for 1.2 million blocks: another block with
the same 8 would be kept, too.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from beam_prep.core.data.ragged import Array
from beam_prep.errors import FormatError, SpoolError
from beam_prep.formats.manifest import MANIFEST, RUN
from beam_prep.formats.sealed import Sealed, seal
from beam_prep.storage.claims import Claims
from beam_prep.storage.files import join, read_file, write_file
from beam_prep.storage.paths import is_local
from beam_prep.storage.stores import objects
from beam_prep.storage.stores.reader import read_bytes

FOLDER = "uses"
_LAUNCH, _BLOCKS = ".json", ".blocks"
_DIGITS = 16
"""Of a block's digest that are noted, as one number."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A launch that uses a spool.

    Attributes:
        launch: its id.
        recipe: the digits of the recipe in the names of its blocks.
        root: what its claim is on: the output, or the folder of generations.
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
    """The folder `uses` of a spool.

    Args:
        spool: the spool's folder.
    """

    def __init__(self, spool: str) -> None:
        self._folder = join(spool, FOLDER)

    def begin(self, launch: Launch) -> None:
        """Notes a launch. Called after it has claimed its output, before it looks for blocks."""
        write_file(join(self._folder, launch.launch + _LAUNCH), json.dumps(asdict(launch)).encode())
        for other in self.launches():
            if other.root == launch.root and other.launch != launch.launch:  # it was killed, or its claim has ended
                self.end(other.launch)

    def end(self, launch: str) -> None:
        """Forgets a launch that has ended."""
        self._remove(join(self._folder, launch + _LAUNCH))

    def note(self, output: str, launch: str, names: pa.StringArray) -> None:
        """Notes the blocks of an output. Called before the first shard is written.

        Args:
            output: its path.
            launch: which makes it.
            names: of its blocks, all of one recipe.
        """
        digests = np.unique(np.array([_number(name) for name in names.to_pylist()], "<u8"))
        recipe = names[0].as_py().rpartition("-")[2] if len(names) else ""
        facts = {"path": output, "launch": launch, "recipe": recipe}
        content = json.dumps(facts).encode() + b"\n" + digests.tobytes()
        write_file(join(self._folder, launch + _BLOCKS), content, seal(content, launch))

    def launches(self) -> Iterator[Launch]:
        """All launches that are noted."""
        for name in self._names(_LAUNCH):
            try:
                yield Launch(**json.loads(read_bytes(join(self._folder, name + _LAUNCH))))
            except FileNotFoundError:
                continue  # it has ended meanwhile

    def outputs(self) -> Iterator[Output]:
        """All outputs that are noted.

        Raises:
            SpoolError: a note is damaged.
        """
        for name in self._names(_BLOCKS):
            path = join(self._folder, name + _BLOCKS)
            try:
                sealed = Sealed(read_file(path), name)
                content = bytes(sealed.read(0, sealed.size))
            except FileNotFoundError:
                continue
            except FormatError as error:
                raise SpoolError(f"{path}: {error}: nothing is removed; remove it, and run its job again") from None
            facts, _, digests = content.partition(b"\n")
            yield Output(**json.loads(facts), blocks=np.frombuffer(digests, "<u8"))

    def forget(self, output: Output) -> None:
        """Removes the note of an output."""
        self._remove(join(self._folder, output.launch + _BLOCKS))

    def _names(self, ending: str) -> Sequence[str]:
        if is_local(self._folder):
            found = sorted(path.name for path in Path(self._folder).glob(f"*{ending}"))
        else:
            found = [each.path.rpartition("/")[2] for each in objects.listed(f"{self._folder}/")]
        return [name.removesuffix(ending) for name in found if name.endswith(ending)]

    def _remove(self, path: str) -> None:
        if is_local(path):
            Path(path).unlink(missing_ok=True)
        else:
            objects.delete([path])


def _number(name: str) -> int:
    """The beginning of a block's digest, of its name `ab/cdef...-recipe`."""
    return int((name[:2] + name[3:])[:_DIGITS], 16)


def is_among(name: str, blocks: Array) -> bool:
    """True if a block is noted: see `Output.blocks`."""
    number = np.uint64(_number(name))
    place = int(np.searchsorted(blocks, number))
    return place < len(blocks) and bool(blocks[place] == number)
