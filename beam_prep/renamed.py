"""What was renamed or taken away, and what to write instead. An old name is an error that says the new one."""

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


def option(name: str) -> str | None:
    """What to do about an option, without `--`, that there was; None if there was none.

    >>> option("spool")
    'it is --cache_dir now'
    """
    return f"it is --{OPTIONS[name]} now" if name in OPTIONS else GONE_OPTIONS.get(name)


def argument(name: str) -> str | None:
    """What to do about an argument that `Pipeline` had under another name; None if it had none."""
    return f"it is {OPTIONS[name]} now" if name in OPTIONS else GONE_OPTIONS.get(name)
