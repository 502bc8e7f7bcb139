"""The lines of the input that a row was made of, by its provenance."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from beam_prep.errors import BeamPrepError, InputError, StorageError

if TYPE_CHECKING:
    from beam_prep.core.data.block import InputFile
    from beam_prep.readers.dataset import Dataset

COMPARED_BYTES = 64 * 1024 * 1024
"""Of an input of more bytes only the size is compared with the manifest's: its digest takes reading all of it."""

_STEP = 1 << 20


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
                opened[file] = _unchanged(inputs[file])
            found.append(SourceLine(inputs[file]["path"], offset, _line(opened[file], offset)))
        except (InputError, StorageError) as error:
            raise BeamPrepError(f"row {index} is byte {offset} of {inputs[file]['path']}: {error}") from None
    return found


def _unchanged(entry: dict[str, Any]) -> "InputFile":
    """The file of an input.

    Raises:
        InputError: it is not there, or not what it was.
    """
    from beam_prep.storage.files import list_inputs
    from beam_prep.storage.input_digests import digest_of_input

    (file,) = list_inputs([entry["path"]])
    if file.size != entry["size"]:
        raise InputError(f"the file has {file.size} bytes, and had {entry['size']} when the output was made")
    if file.size <= COMPARED_BYTES and digest_of_input(file) != entry["digest"]:
        raise InputError("the file has other content than when the output was made")
    return file


def _line(file: "InputFile", offset: int) -> str:
    """The line of a file that begins at a byte of its content.

    Raises:
        InputError: none begins there.
    """
    from beam_prep.core.reading.blocks import BOM, read_up_to
    from beam_prep.core.reading.json_list import is_json_file
    from beam_prep.storage.files import open_input

    as_list = is_json_file(file.path)
    seeks = file.compression is None and not as_list
    with open_input(file, offset if seeks else 0) as stream:
        left, before = min(offset, 1) if seeks else offset, b""
        while left and (before := read_up_to(stream, min(left, _STEP))):
            left -= len(before)
        begins = offset == 0 or as_list or before[-1:] == b"\n" or (offset == len(BOM) and before[-1:] == BOM[-1:])
        parts = [read_up_to(stream, _STEP)]
        if left or not begins or not parts[0]:
            raise InputError("no line begins there: the file is not what it was when the output was made")
        while parts[-1] and b"\n" not in parts[-1]:
            parts.append(read_up_to(stream, _STEP))
    return b"".join(parts).partition(b"\n")[0].rstrip(b"\r").decode(errors="replace")
