"""Inputs that are no JSONL: found by their first bytes before a run, and named after one has failed."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from beam_prep.data.block import InputFile, drawn
from beam_prep.errors import InputError, StorageError
from beam_prep.reading.blocks import read_up_to
from beam_prep.reading.foreign import GUESS_BYTES, HEAD_BYTES, guess, not_utf8
from beam_prep.reading.sources import source_of
from beam_prep.storage import files
from beam_prep.storage.files import list_inputs, open_input
from beam_prep.storage.input_digests import digest_of_input
from beam_prep.storage.stores.client import is_local

COMPARED_BYTES = 64 * 1024 * 1024
"""Of an input of more bytes only the size is compared with the manifest's: its digest takes reading all of it."""


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
    return source_of(file.path).record_at(file, files, offset).decode(errors="replace")


_FILES = 8  # that are named: of each up to a megabyte is read
_NAMED = 12  # fields
_HEADS = 256  # that are looked at: it takes some milliseconds


def check_heads(inputs: Sequence[InputFile], fields: Collection[str] = ()) -> None:
    """Reads the first bytes of local inputs before a run, and of tables the columns; of many files, of some drawn ones.

    A run would refuse such a file when it comes to it, perhaps hours later.

    Args:
        inputs: the inputs.
        fields: the fields that the config reads.

    Raises:
        InputError: one is certainly no JSONL, or cannot be read; a table has none of the fields.
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
            read_up_to(stream, HEAD_BYTES)  # it refuses


def _names(names: Collection[str]) -> str:
    some = list(names)[:_NAMED]
    return ", ".join(map(repr, some)) + (f" and {len(names) - len(some)} more" if len(names) > len(some) else "")


def advice_on(inputs: Sequence[InputFile], problem: str, fields: Collection[str]) -> str | None:
    """What an input is that is no JSONL, and the command that makes JSONL of it; None if all seem right.

    Args:
        inputs: the inputs of a run; a few of them are looked at.
        problem: why it failed. The files that it names are looked at first.
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
        if found is None and "invalid_utf8" in problem:
            found = not_utf8(head, source.path)
        if found is not None:
            return found
    return None
