"""The lines of the input that a row was made of, by its provenance."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from beam_prep.errors import BeamPrepError, InputError, StorageError

if TYPE_CHECKING:
    from beam_prep.core.data.block import InputFile
    from beam_prep.readers.dataset import Dataset


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A line of an input: its file, as the manifest lists it; where it begins there, in bytes of content; its text."""

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
        if not 0 <= file < len(inputs):
            raise BeamPrepError(
                f"{dataset.path} lists {len(inputs)} inputs, the row is of number {file}: it is damaged"
            )
        try:
            if file not in opened:
                opened[file] = unchanged_input(inputs[file])
            found.append(SourceLine(inputs[file]["path"], offset, line_at(opened[file], offset)))
        except (InputError, StorageError) as error:
            raise BeamPrepError(f"row {index} is byte {offset} of {inputs[file]['path']}: {error}") from None
    return found
