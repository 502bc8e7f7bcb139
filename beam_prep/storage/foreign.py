"""Inputs that are no JSONL: found by their first bytes before a run, and named after one has failed."""

from collections.abc import Collection, Sequence

from beam_prep.core.data.block import InputFile
from beam_prep.core.data.drawn import drawn
from beam_prep.core.data.places import is_table
from beam_prep.core.reading.blocks import read_up_to
from beam_prep.core.reading.foreign import GUESS_BYTES, HEAD_BYTES, guess, not_utf8
from beam_prep.errors import InputError, StorageError
from beam_prep.storage.files import open_input
from beam_prep.storage.paths import is_local
from beam_prep.storage.tables import table_columns

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
        if is_table(source.path):
            columns = table_columns(source)
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
        if is_table(source.path):
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
