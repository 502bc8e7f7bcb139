"""Lines of the inputs of an output, by the places that its drops have."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from beam_prep.errors import InputError, StorageError
from beam_prep.quiet import quiet_import

if TYPE_CHECKING:
    from beam_prep.core.data.block import InputFile


class InputLines:
    """Lines of the inputs of an output. Each input is looked up, and compared with the manifest, once.

    Args:
        inputs: as the manifest lists them. Relative paths are looked up in the current folder.
    """

    def __init__(self, inputs: Sequence[Mapping[str, Any]]) -> None:
        self._listed = {each["path"]: each for each in inputs}
        self._found: dict[str, InputFile | str] = {}

    def at(self, place: Mapping[str, Any]) -> str:
        """The line at the `file` and `offset` of a drop; in parentheses, why it cannot be read."""
        with quiet_import():  # of Beam
            from beam_prep.storage.lines import line_at

        file = self._file(place["file"])
        try:
            return _unread(file) if isinstance(file, str) else line_at(file, place["offset"])
        except (InputError, StorageError) as error:
            return _unread(str(error))

    def _file(self, path: str) -> "InputFile | str":
        """The input; or why it is not to be had."""
        with quiet_import():
            from beam_prep.storage.lines import unchanged_input

        if path not in self._found:
            try:
                entry = self._listed.get(path)
                self._found[path] = "the output lists no such input" if entry is None else unchanged_input(entry)
            except (InputError, StorageError) as error:
                self._found[path] = str(error)
        return self._found[path]


def _unread(why: str) -> str:
    return f"(its line cannot be read: {why})"
