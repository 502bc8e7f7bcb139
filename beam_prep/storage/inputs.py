"""Inputs as a whole: are they those of an output, what is in a line of them, and what are they if they are no JSONL?"""

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from beam_prep.data.block import InputFile, drawn
from beam_prep.data.hashing import Node, tree_digest, tree_nodes
from beam_prep.errors import InputError, StorageError
from beam_prep.formats.manifest import MANIFEST
from beam_prep.reading.records import read_up_to
from beam_prep.reading.sources import GUESS_BYTES, HEAD_BYTES, guess, source_of
from beam_prep.storage import files
from beam_prep.storage.files import list_inputs, open_input
from beam_prep.storage.splits import BLOCK_BYTES
from beam_prep.storage.stores.client import is_local

_COMPARED_BYTES = 64 * 1024 * 1024
"""Most bytes of an input that are read to find one of its lines."""


def stores_checksum(inputs: Sequence[InputFile]) -> str | None:
    """A digest of the checksums that stores keep of the files; None if a file is local, or has no checksum."""
    if any(file.checksum is None for file in inputs):
        return None
    checksums = [(file.path, file.size, file.checksum) for file in inputs]
    return hashlib.sha256(json.dumps(checksums).encode()).hexdigest()


def digest_of_input(source: InputFile) -> str:
    """The digest of a file's content, as in a manifest."""
    nodes, start = list[Node](), 0
    with open_input(source) as stream:
        while part := read_up_to(stream, BLOCK_BYTES):
            nodes += tree_nodes(part, start)
            start += len(part)
    return tree_digest(nodes)


def difference(file: InputFile, entry: Mapping[str, Any], most: float = float("inf")) -> str | None:
    """How an input differs from its entry in a manifest; None if it is the same.

    Args:
        file: the input.
        entry: the entry of the input in the manifest.
        most: of an input with more bytes only the size is compared, as a digest needs the whole file.
    """
    if file.size != entry["size"]:
        return f"found {file.size} bytes, {MANIFEST} says {entry['size']}"
    if file.size > most or (digest := digest_of_input(file)) == entry["digest"]:
        return None
    return f"found digest {digest}, {MANIFEST} says {entry['digest']}"


def first_changed(
    inputs: Sequence[InputFile], listed: Sequence[Mapping[str, Any]], run_of: Callable[[], Mapping[str, Any]]
) -> InputFile | None:
    """The first input that differs from the manifest of an output; None if all are the same.

    Args:
        inputs: the inputs.
        listed: their entries in the manifest.
        run_of: reads the output's `run.json`. If the stores' checksums are the same as there, no file is read.
    """
    checksum = stores_checksum(inputs)
    if checksum is not None and run_of().get("inputs_checksum") == checksum:
        return None
    return next((file for file, entry in zip(inputs, listed, strict=True) if difference(file, entry)), None)


def compare_inputs(inputs: Iterable[Mapping[str, Any]]) -> tuple[int, list[str], list[str]]:
    """Reads the inputs of a manifest that are found from here, and compares size and digest.

    Args:
        inputs: the entries of the manifest. Relative paths are looked up in the current folder.

    Returns:
        (how many inputs were found, a line for each that was not found, a line for each that has changed).
    """
    compared, not_found, problems = 0, [], []
    for entry in inputs:
        path = str(entry["path"])
        try:
            (file,) = list_inputs([path])
        except (InputError, StorageError) as error:
            not_found.append(str(error))
            continue
        compared += 1
        try:
            problem = difference(file, entry)
        except (InputError, StorageError) as error:
            problem = str(error)
        if problem is not None:
            problems.append(f"input {path}: {problem}")
    return compared, not_found, problems


def unchanged_input(entry: Mapping[str, Any]) -> InputFile:
    """The file of an input in a manifest, if it has not changed.

    Args:
        entry: the manifest's entry. A relative path is looked up in the current folder.

    Raises:
        InputError: the file is not there, or has changed.
        StorageError: the store does not answer, or refuses.
    """
    (file,) = list_inputs([entry["path"]])
    problem = difference(file, entry, _COMPARED_BYTES)
    if problem is not None:
        raise InputError(f"the file has changed since the output was made: {problem}")
    return file


def line_at(file: InputFile, offset: int) -> str:
    """The line of a file that begins at an offset, without its end; for a table the row as JSON.

    Args:
        file: the file.
        offset: bytes before the line, in the content; for a table the rows before this row.

    Raises:
        InputError: no line begins there, or the file cannot be read.
    """
    return source_of(file.path).record_at(file, files, offset).decode(errors="replace")


_FILES = 8  # most files that `advice_on` reads, up to a megabyte each
_NAMED = 12  # most fields in a message
_HEADS = 256  # most files that `check_heads` reads, within some milliseconds


def check_heads(inputs: Sequence[InputFile], fields: Collection[str] = ()) -> None:
    """Checks the first bytes of local inputs, and the columns of tables, before a run. Of many files it draws some.

    Without this check a run would refuse such a file only when it reads the file, perhaps hours later.

    Args:
        inputs: the inputs.
        fields: the fields that the config reads.

    Raises:
        InputError: a file is certainly not JSONL, or cannot be read; or a table has none of the fields.
    """
    local = [source for source in inputs if is_local(source.path)]
    for place in drawn(len(local), _HEADS).tolist():
        source = local[place]
        columns = source_of(source.path).columns(source, files)
        if columns is not None:
            if fields and not set(columns) & set(fields):
                raise InputError(
                    f"{source.path!r} has none of the fields that the config reads ({_names(fields)}): "
                    f"its columns are {_names(columns)}"
                )
            continue
        with open_input(source, size=HEAD_BYTES) as stream:
            read_up_to(stream, HEAD_BYTES)  # raises InputError


def _names(names: Collection[str]) -> str:
    some = list(names)[:_NAMED]
    return ", ".join(map(repr, some)) + (f" and {len(names) - len(some)} more" if len(names) > len(some) else "")


def advice_on(inputs: Sequence[InputFile], problem: str, fields: Collection[str]) -> str | None:
    """Says what an input is that is not JSONL, and what to do; None if all seem to be JSONL.

    Args:
        inputs: the inputs of a run; only a few are read.
        problem: why the run failed. The files that it names are read first.
        fields: the fields that the config reads.
    """
    for source in sorted(inputs, key=lambda source: source.path not in problem)[:_FILES]:
        if source_of(source.path).by_row:
            continue
        try:
            with open_input(source, size=GUESS_BYTES) as stream:
                head = read_up_to(stream, GUESS_BYTES)
        except (InputError, StorageError):
            continue  # the problem says more
        found = guess(head, source.path, fields)
        if found is not None:
            return found
    return None
