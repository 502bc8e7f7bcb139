"""Inputs that are not JSONL: recognised by their first bytes before a run, and explained after a failed run."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from beam_prep.data.block import InputFile, drawn
from beam_prep.errors import InputError, StorageError
from beam_prep.reading.blocks import read_up_to
from beam_prep.reading.foreign import GUESS_BYTES, HEAD_BYTES, guess
from beam_prep.reading.sources import source_of
from beam_prep.storage import files
from beam_prep.storage.files import list_inputs, open_input
from beam_prep.storage.input_digests import digest_of_input
from beam_prep.storage.stores.client import is_local

COMPARED_BYTES = 64 * 1024 * 1024
"""For an input of more bytes only the size is compared with the manifest: a digest needs the whole file."""


def unchanged_input(entry: Mapping[str, Any]) -> InputFile:
    """The file of an input in a manifest, if it has not changed.

    Args:
        entry: the manifest's entry. A relative path is looked up in the current folder.

    Raises:
        InputError: the file is not there, or has changed.
        StorageError: the store does not answer, or refuses.
    """
    (file,) = list_inputs([entry["path"]])
    if file.size != entry["size"]:
        raise InputError(f"the file has {file.size} bytes, and had {entry['size']} when the output was made")
    if file.size <= COMPARED_BYTES and digest_of_input(file) != entry["digest"]:
        raise InputError("the file has other content than when the output was made")
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
