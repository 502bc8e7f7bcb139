"""What was renamed or taken away, and what to write instead. An old name is an error that says the new one."""

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
    "render": "it is gone, as there is one way to render chat templates: leave it out",
    "shuffle_method": "it is gone, as every shuffle sorts groups of blocks and merges these: leave it out",
    "staging_ttl": "it is gone, as the next launch that claims an output removes what others left: leave it out",
}
"""Options that there were: name -> what to do."""

GONE_VALUES = {"tokie": "which is gone, as transformers encodes WordPiece and Unigram: leave the option out"}
"""Values of options that there were: value -> what to do."""

CONFIG_KEYS = {
    "output.carry": "output.keep_fields",
    "preprocessing.untrained": "preprocessing.rows_without_loss",
}
"""Keys of the config: old name -> new name."""

PUBLIC_NAMES = {"Carry": "KeepFields"}
"""Names of the package `beam_prep`, and steps of Beam YAML: old name -> new name."""


def instead(name: str, mark: str = "") -> str | None:
    """What to do about an option that there was; None if there was none.

    >>> instead("spool", "--")
    'it is --cache_dir now'

    Args:
        name: the option, without `--`.
        mark: what stands before the name of an option where it is given.
    """
    return f"it is {mark}{OPTIONS[name]} now" if name in OPTIONS else GONE_OPTIONS.get(name)


def keys(found: dict[str, Any], names: Mapping[str, str]) -> None:
    """Renames what a file of an earlier version says.

    Args:
        found: parts, each an object; it is changed.
        names: `part.old` -> `part.new`.
    """
    for old, new in names.items():
        (part, name), (_, wanted) = old.split("."), new.split(".")
        if name in found.get(part, {}):  # in its place: what a job is, is compared as text
            found[part] = {wanted if key == name else key: value for key, value in found[part].items()}
