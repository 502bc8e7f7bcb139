"""The records of the input that a row was made of, by its provenance."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from beam_prep.core.data.places import COLLECTION, at_offset
from beam_prep.errors import BeamPrepError, InputError, StorageError
from beam_prep.quiet import quiet_import

if TYPE_CHECKING:
    from beam_prep.core.data.block import InputFile
    from beam_prep.readers.dataset import Dataset


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A line of an input; of a table: a row, as JSON.

    Attributes:
        path: of the file, as the manifest lists it.
        offset: where it begins there, in bytes of content; of a table: the rows before it.
        text: without the line's end.
    """

    path: str
    offset: int
    text: str


def source_lines(dataset: "Dataset", index: int) -> list[SourceLine]:
    """The line that a row was made of; of a packed row, that of each document.

    Args:
        dataset: of rows with provenance.
        index: the row.

    Raises:
        BeamPrepError: the rows have no provenance; or an input is not there, is no longer what it was, or cannot be
            read. Relative paths are looked up in the current folder.
        IndexError, FormatError: see `Dataset`.
    """
    with quiet_import():  # of Beam
        from beam_prep.storage.lines import line_at, unchanged_input

    names = {column.role: column.name for column in dataset.schema}
    if not {"file", "offset"} <= names.keys():
        raise BeamPrepError(
            f"{dataset.path} does not say where its rows come from; put provenance: true into `output` of the config, "
            "and make it again"
        )
    row, inputs = dataset[index], dataset.manifest["inputs"]
    files, offsets = (np.atleast_1d(row[names[role]]).tolist() for role in ("file", "offset"))
    opened: dict[int, InputFile] = {}
    found = []
    for file, offset in zip(files, offsets, strict=True):
        if not 0 <= file < len(inputs) or offset < 0:
            raise BeamPrepError(
                f"{dataset.path} lists {len(inputs)} inputs; row {index} is of place {offset} in number {file}: "
                "it is damaged"
            )
        try:
            if file not in opened:
                opened[file] = unchanged_input(inputs[file])
            found.append(SourceLine(inputs[file]["path"], offset, line_at(opened[file], offset)))
        except (InputError, StorageError) as error:
            place = at_offset(inputs[file]["path"], offset)
            raise BeamPrepError(f"row {index} is of {place}: {_why(dataset, inputs[file], error)}") from None
    return found


def _why(dataset: "Dataset", entry: Mapping[str, Any], error: Exception) -> str:
    """Why a line is not found. A chain by hand may have been given a collection, whose name is that of no file."""
    if entry["path"] != COLLECTION or "config" in dataset.manifest:
        return str(error)
    return (
        f"{COLLECTION!r} is the name of what FromRecords was given, which no file holds. Carry a field that tells one "
        "record from another (bp.Carry), and look for it where they came from"
    )
