"""Finds the input records of a row, by its provenance."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from beam_prep.data.block import COLLECTION
from beam_prep.errors import BeamPrepError, InputError, StorageError
from beam_prep.process import quiet_beam
from beam_prep.reading.sources import place_at

if TYPE_CHECKING:
    from beam_prep.data.block import InputFile
    from beam_prep.readers.dataset import Dataset


class InputLines:
    """Lines of the inputs of an output. Each input is looked up, and compared with the manifest, once.

    Args:
        inputs: the inputs in the manifest. Relative paths are looked up in the current folder.
    """

    def __init__(self, inputs: Sequence[Mapping[str, Any]]) -> None:
        self._listed = {each["path"]: each for each in inputs}
        self._found: dict[str, InputFile] = {}

    def line(self, path: str, offset: int) -> str:
        """The line at an offset of an input.

        Raises:
            InputError, StorageError: the input cannot be read, or differs from the manifest.
        """
        with quiet_beam():  # of Beam
            from beam_prep.storage.inputs import line_at, unchanged_input

        if path not in self._listed:
            raise InputError("the output lists no such input")
        if path not in self._found:
            self._found[path] = unchanged_input(self._listed[path])
        return line_at(self._found[path], offset)

    def at(self, place: Mapping[str, Any]) -> str:
        """The line at the `file` and `offset` of a drop; if it cannot be read, the reason in parentheses."""
        try:
            return self.line(place["file"], place["offset"])
        except (InputError, StorageError) as error:
            return f"(its line cannot be read: {error})"


class SourceLine(NamedTuple):
    """A line of an input; for a table a row as JSON.

    Attributes:
        path: the file, as the manifest lists it.
        offset: the bytes of content before the line; in a table the rows before it.
        text: the line without its end.
    """

    path: str
    offset: int
    text: str


def source_lines(dataset: "Dataset", index: int) -> list[SourceLine]:
    """The input line of a row; for a packed row, the line of each document.

    Args:
        dataset: a dataset whose rows have provenance.
        index: the row.

    Raises:
        BeamPrepError: the rows have no provenance; or an input is missing, has changed, or cannot be read. Relative
            paths are looked up in the current folder.
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
        if not 0 <= file < len(inputs) or offset < 0:
            raise BeamPrepError(
                f"{dataset.path} lists {len(inputs)} inputs; row {index} is of place {offset} in number {file}: "
                "it is damaged"
            )
        path = inputs[file]["path"]
        try:
            found.append(SourceLine(path, offset, lines.line(path, offset)))
        except (InputError, StorageError) as error:
            hint = ""
            if path == COLLECTION:
                hint = "; records of FromRecords are in no file: keep a field that identifies them (bp.KeepFields)"
            raise BeamPrepError(f"row {index} is of {place_at(path, offset)}: {error}{hint}") from None
    return found
