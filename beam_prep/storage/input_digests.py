"""Digests of input files: they tell whether the inputs are the same as those of an output."""

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
    """A digest of the checksums that stores keep of the files; None if a file is local, or has no checksum."""
    if any(file.checksum is None for file in files):
        return None
    checksums = [(file.path, file.size, file.checksum) for file in files]
    return hashlib.sha256(json.dumps(checksums).encode()).hexdigest()


def digest_of_input(source: InputFile) -> str:
    """The digest of a file's content, as in a manifest."""
    nodes, start = list[Node](), 0
    with open_input(source) as stream:
        while part := read_up_to(stream, BLOCK_BYTES):
            nodes += tree_nodes(part, start)
            start += len(part)
    return tree_digest(nodes)


def difference(file: InputFile, entry: Mapping[str, Any]) -> str | None:
    """How an input differs from its entry in a manifest; None if it is the same.

    Args:
        file: the input.
        entry: the entry of the input in the manifest.
    """
    if file.size != entry["size"]:
        return f"found {file.size} bytes, {MANIFEST} says {entry['size']}"
    digest = digest_of_input(file)
    return None if digest == entry["digest"] else f"found digest {digest}, {MANIFEST} says {entry['digest']}"


def first_changed(
    files: Sequence[InputFile], listed: Sequence[Mapping[str, Any]], run_of: Callable[[], Mapping[str, Any]]
) -> InputFile | None:
    """The first input that differs from the manifest of an output; None if all are the same.

    Args:
        files: the inputs.
        listed: their entries in the manifest.
        run_of: reads the output's `run.json`. If the stores' checksums are the same as there, no file is read.
    """
    checksum = stores_checksum(files)
    if checksum is not None and run_of().get("inputs_checksum") == checksum:
        return None
    for file, entry in zip(files, listed, strict=True):
        if difference(file, entry) is not None:
            return file
    return None


class ComparedInputs(NamedTuple):
    """The result of `compare_inputs`.

    Attributes:
        compared: how many inputs were found.
        not_found: a line for each input that was not found, with the reason.
        problems: a line for each input that has changed.
    """

    compared: int
    not_found: list[str]
    problems: list[str]


def compare_inputs(inputs: Iterable[Mapping[str, Any]]) -> ComparedInputs:
    """Reads the inputs of a manifest that are found from here, and compares size and digest.

    Args:
        inputs: the entries of the manifest. Relative paths are looked up in the current folder.
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
