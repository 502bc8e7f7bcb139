"""Digests of the inputs' content: whether they are what an output was made of."""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from beam_prep.data.block import InputFile
from beam_prep.data.hashing import Node, tree_digest, tree_nodes
from beam_prep.errors import InputError, StorageError
from beam_prep.formats.manifest import MANIFEST
from beam_prep.reading.blocks import read_up_to
from beam_prep.storage.files import list_inputs, open_input
from beam_prep.storage.splits import BLOCK_BYTES


def stores_checksum(files: Sequence[InputFile]) -> str | None:
    """A digest of the stores' checksums of the files' content; None: a file is local, or its store has none."""
    if any(file.checksum is None for file in files):
        return None
    checksums = [(file.path, file.size, file.checksum) for file in files]
    return hashlib.sha256(json.dumps(checksums).encode()).hexdigest()


def digest_of_input(source: InputFile) -> str:
    """Digest of a file's content, as in a manifest."""
    nodes, start = list[Node](), 0
    with open_input(source) as stream:
        while part := read_up_to(stream, BLOCK_BYTES):
            nodes += tree_nodes(part, start)
            start += len(part)
    return tree_digest(nodes)


def difference(file: InputFile, entry: Mapping[str, Any]) -> str | None:
    """What is found where a manifest lists another file; None: it is this one.

    Args:
        file: the input.
        entry: the same in the manifest.
    """
    if file.size != entry["size"]:
        return f"found {file.size} bytes, {MANIFEST} says {entry['size']}"
    digest = digest_of_input(file)
    return None if digest == entry["digest"] else f"found digest {digest}, {MANIFEST} says {entry['digest']}"


def first_changed(
    files: Sequence[InputFile], listed: Sequence[Mapping[str, Any]], run_of: Callable[[], Mapping[str, Any]]
) -> InputFile | None:
    """The first of the files that is not what an output was made of; None: there is none.

    Args:
        files: the inputs.
        listed: the same in the manifest.
        run_of: reads the output's `run.json`. Where the stores' checksums are those in it, no file is read.
    """
    checksum = stores_checksum(files)
    if checksum is not None and run_of().get("inputs_checksum") == checksum:
        return None
    for file, entry in zip(files, listed, strict=True):
        if difference(file, entry) is not None:
            return file
    return None


class ComparedInputs(NamedTuple):
    """The inputs of a manifest, read again.

    Attributes:
        compared: how many were found.
        not_found: why others were not, one line each.
        problems: one line for each that is another file now.
    """

    compared: int
    not_found: list[str]
    problems: list[str]


def compare_inputs(inputs: Iterable[Mapping[str, Any]]) -> ComparedInputs:
    """Reads the inputs of a manifest that can be reached from here, and compares size and digest.

    Args:
        inputs: as the manifest lists them. Relative paths are looked up in the current folder.
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
    return ComparedInputs(compared, not_found, problems)
