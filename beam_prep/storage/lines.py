"""A line of an input, or a row of a table, by its place: where the input is what an output was made of."""

from collections.abc import Mapping
from typing import Any

from beam_prep.core.data.block import InputFile
from beam_prep.core.data.places import is_table
from beam_prep.core.reading.blocks import BOM, read_up_to
from beam_prep.core.reading.json_list import is_json_file
from beam_prep.errors import InputError
from beam_prep.storage.files import list_inputs, open_input
from beam_prep.storage.input_digests import digest_of_input
from beam_prep.storage.tables import table_row

COMPARED_BYTES = 64 * 1024 * 1024
"""Of an input of more bytes only the size is compared with the manifest's: its digest takes reading all of it."""

_STEP = 1 << 20


def unchanged_input(entry: Mapping[str, Any]) -> InputFile:
    """The file of an input.

    Args:
        entry: as the manifest lists it. A relative path is looked up in the current folder.

    Raises:
        InputError: it is not there, or not what it was.
        StorageError: it cannot be looked up.
    """
    (file,) = list_inputs([entry["path"]])
    if file.size != entry["size"]:
        raise InputError(f"the file has {file.size} bytes, and had {entry['size']} when the output was made")
    if file.size <= COMPARED_BYTES and digest_of_input(file) != entry["digest"]:
        raise InputError("the file has other content than when the output was made")
    return file


def line_at(file: InputFile, offset: int) -> str:
    """The line of a file that begins at a byte of its content, without its end; of a table: a row as JSON.

    Args:
        file: the file.
        offset: of the line, in bytes; of a table: the rows before this one.

    Raises:
        InputError: none begins there, or the file cannot be read.
    """
    if is_table(file.path):
        return table_row(file, offset).decode()
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
