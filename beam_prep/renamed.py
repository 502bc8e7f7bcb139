"""Old names, and what to write instead. An old name is an error whose message gives the new name."""

from collections.abc import Mapping
from typing import Any

OPTIONS = {
    "spool": "cache_dir",
    "generations": "keep_versions",
    "generation": "version_name",
    "max_drop_rate": "max_no_loss_rate",
    "reject_text": "max_reject_chars",
}
"""Options of `run` and `replay`, and arguments of `Pipeline` and `Replay`: old name -> new name."""

GONE_OPTIONS = {
    "render": "it is gone, because there is only one way to render chat templates now: leave it out",
    "shuffle_method": "it is gone, because every shuffle sorts groups of blocks and merges them: leave it out",
    "staging_ttl": "it is gone, because the next launch that claims an output removes files of others: leave it out",
}
"""Removed options: name -> what to do."""

GONE_VALUES = {"tokie": "which is gone, because transformers encodes WordPiece and Unigram: leave the option out"}
"""Removed values of options: value -> what to do."""

CONFIG_KEYS = {
    "output.carry": "output.keep_fields",
    "preprocessing.untrained": "preprocessing.rows_without_loss",
}
"""Keys of the config: old name -> new name."""

PUBLIC_NAMES = {"Carry": "KeepFields"}
"""Names of the package `beam_prep`, and steps of Beam YAML: old name -> new name."""


def instead(name: str, mark: str = "") -> str | None:
    """What to do about an old option; None if there was no such option.

    >>> instead("spool", "--")
    'it is --cache_dir now'

    Args:
        name: the option, without `--`.
        mark: the prefix of an option's name where it is given.
    """
    return f"it is {mark}{OPTIONS[name]} now" if name in OPTIONS else GONE_OPTIONS.get(name)


def keys(found: dict[str, Any], names: Mapping[str, str]) -> None:
    """Renames keys in a file of an earlier version.

    Args:
        found: parts, each an object; changed in place.
        names: `part.old` -> `part.new`.
    """
    for old, new in names.items():
        (part, name), (_, wanted) = old.split("."), new.split(".")
        if name in found.get(part, {}):  # keeps the place of the key, because facts of jobs are compared as text
            found[part] = {wanted if key == name else key: value for key, value in found[part].items()}
