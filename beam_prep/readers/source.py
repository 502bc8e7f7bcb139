"""The lines of the input that a row was made of, by its provenance; and those of other places."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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


class InputLines:
    """Lines of the inputs of an output.

    Args:
        inputs: as its manifest lists them. Relative paths are looked up in the current folder.
    """

    def __init__(self, inputs: Sequence[Mapping[str, Any]]) -> None:
        self._inputs = inputs
        self._opened: dict[int, InputFile] = {}

    def at(self, file: int, offset: int) -> str:
        """The line that begins at an offset of an input, by its number.

        Raises:
            InputError, StorageError: the input is not there, is no longer what it was, or cannot be read.
        """
        from beam_prep.storage.lines import line_at, unchanged_input

        if file not in self._opened:
            self._opened[file] = unchanged_input(self._inputs[file])
        return line_at(self._opened[file], offset)

    def of(self, place: Mapping[str, Any]) -> str:
        """The line at the `file` and `offset` of a drop; in parentheses, why it cannot be read."""
        number = next((number for number, each in enumerate(self._inputs) if each["path"] == place["file"]), None)
        try:
            if number is None:
                raise InputError("the output lists no such input")
            return self.at(number, place["offset"])
        except (InputError, StorageError) as error:
            return f"(its line cannot be read: {error})"


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
    names = {column.role: column.name for column in dataset.schema}
    if not {"file", "offset"} <= names.keys():
        raise BeamPrepError(
            f"{dataset.path} does not say where its rows come from; put provenance: true into `output` of the config, "
            "and make it again"
        )
    row, inputs = dataset[index], dataset.manifest["inputs"]
    files, offsets = (np.atleast_1d(row[names[role]]).tolist() for role in ("file", "offset"))
    lines, found = InputLines(inputs), []
    for file, offset in zip(files, offsets, strict=True):
        if not 0 <= file < len(inputs):
            raise BeamPrepError(
                f"{dataset.path} lists {len(inputs)} inputs, the row is of number {file}: it is damaged"
            )
        try:
            found.append(SourceLine(inputs[file]["path"], offset, lines.at(file, offset)))
        except (InputError, StorageError) as error:
            raise BeamPrepError(f"row {index} is byte {offset} of {inputs[file]['path']}: {error}") from None
    return found
