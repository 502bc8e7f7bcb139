"""Suggestions for an unknown name: its new name, a similar known name, or our name for what other tools call so.

And checks of the settings that Python code gives.
"""

import difflib
import json
import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import fields
from types import NoneType, UnionType
from typing import Any, Literal, SupportsIndex, Union, get_args, get_origin

_short = reprlib.Repr()
_short.maxstring = _short.maxother = 60


def shown(value: object) -> str:
    """A value as in a config, shortened."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return _short.repr(list(value) if isinstance(value, tuple) else value)


def counted(count: int, noun: str) -> str:
    """A number of things.

    >>> counted(1, "row"), counted(2000, "row")
    ('1 row', '2,000 rows')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def check_settings(settings: Any) -> None:
    """Raises ValueError if a value of a dataclass is none of its field's `Literal`, or not of its class."""
    for field in fields(settings):
        kinds = get_args(field.type) if get_origin(field.type) in (Union, UnionType) else (field.type,)
        words = [word for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)]
        value = getattr(settings, field.name)
        if value is None and NoneType in kinds:
            continue
        if words and value not in words:
            raise ValueError(f"{field.name} is {value!r}, wanted one of {', '.join(words)}")
        ours = [kind for kind in kinds if isinstance(kind, type) and kind.__module__.startswith("beam_prep.")]
        if ours and not {*kinds} - {*ours, NoneType} and not isinstance(value, tuple(ours)):
            raise ValueError(f"{field.name} is {shown(value)}, wanted a {' or '.join(kind.__name__ for kind in ours)}")


def check_least(least: int, **numbers: Any) -> None:
    """Raises ValueError if one of the numbers is not whole, or is below `least`."""
    for name, number in numbers.items():
        if not isinstance(number, SupportsIndex) or number.__index__() < least:
            raise ValueError(f"{name} is {number!r}, wanted a whole number, at least {least}")


def some(texts: Iterable[str], most: int) -> str:
    """The first texts, and how many more there are.

    >>> some(["a", "b"], 2), some(["a", "b", "c"], 2)
    ('a, b', 'a, b and 1 more')
    """
    every = list(texts)
    more = f" and {len(every) - most:,} more" if len(every) > most else ""
    return ", ".join(every[:most]) + more


def nearest(name: object, known: Iterable[str]) -> str | None:
    """The known name that is similar to an unknown one, whatever its case; None if there is none."""
    by_lower = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1) if isinstance(name, str) else []
    return by_lower[near[0]] if near else None


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """A question for a message, followed by a blank; "" if no known name is similar."""
    near = nearest(name, known)
    return "" if near is None else f"did you mean {near!r}? "


def unknown_name(what: str, name: object, known: Iterable[str], instead: str | None = None) -> str:
    """A message for an unknown name: what to do instead, else a similar known name; and the known names."""
    names = list(known)
    meant = did_you_mean(name, names) if instead is None else f"{instead}; "
    return f"unknown {what} {shown(name)}; {meant}known: {some(names, 40) or 'none'}"


OTHER_NAMES = {
    "--tokenizer_path": "tokenizer tokeniser tokenizer_name model model_name model_path model_name_or_path",
    "--output_dir": "out output output_path out_dir save_path",
    "--inputs": "input input_files data data_path data_files dataset datasets dataset_name train_file files",
    "--overwrite": "force overwrite_output_dir",
    "--direct_num_workers": "workers jobs j n_jobs num_proc num_processes cpus preprocessing_num_workers",
    "preprocessing.max_seq_len": "max_seq_len max_length max_seq_length sequence_len cutoff_len seq_length block_size",
    "preprocessing.packing_strategy": "packing_strategy packing sample_packing neat_packing",
    "preprocessing.padding": "pad_to_multiple_of pad_to_sequence_len",
    "preprocessing.eos": "eos_token append_eos add_eos add_eos_token",
    "preprocessing.truncation_mode": "truncation truncation_side truncate chunk_size",
    "preprocessing.max_items": "max_items max_samples limit",
    "mask_default": "train_on_inputs train_on_prompt",
    "mask": "assistant_only_loss roles_to_train mask_history",
    "input.sections": "dataset_text_field text_column field_messages completion_only_loss template",
    "input.template_variables": "chat_template_kwargs enable_thinking",
    "output.shuffle": "shuffle_seed data_seed",
    "output.storage_format": "storage_format format formats output_format",
}
"""Our options, and places in our config -> the names of such settings in TRL, axolotl, LLaMA-Factory and others."""


def place_of(name: str) -> str | None:
    """Our option, or the place in our config, for a setting of another tool; None if unknown.

    >>> place_of("cutoff_len"), place_of("num-proc")
    ('preprocessing.max_seq_len', '--direct_num_workers')
    """
    word = name.lstrip("-").lower().replace("-", "_")
    return next((ours for ours, others in OTHER_NAMES.items() if word in others.split()), None)


RENAMED_OPTIONS = {
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

RENAMED_KEYS = {
    "output.carry": "output.keep_fields",
    "preprocessing.untrained": "preprocessing.rows_without_loss",
}
"""Keys of the config: old name -> new name."""

RENAMED_NAMES = {"Carry": "KeepFields"}
"""Names of the package `beam_prep`, and steps of Beam YAML: old name -> new name."""


def instead(name: str) -> str | None:
    """What to do about an old option; None if there was no such option.

    >>> instead("spool")
    'it is --cache_dir now'
    """
    return f"it is --{RENAMED_OPTIONS[name]} now" if name in RENAMED_OPTIONS else GONE_OPTIONS.get(name)


def rename_keys(found: dict[str, Any], names: Mapping[str, str]) -> None:
    """Renames keys in a file of an earlier version.

    Args:
        found: parts, each an object; changed in place.
        names: `part.old` -> `part.new`.
    """
    for old, new in names.items():
        (part, name), (_, wanted) = old.split("."), new.split(".")
        if name in found.get(part, {}):  # keeps the place of the key, because facts of jobs are compared as text
            found[part] = {wanted if key == name else key: value for key, value in found[part].items()}


VISIBLE = (
    {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\t\n"}
    | {0x7F: "\u2421"}
    | {code: f"\\x{code:02x}" for code in range(0x80, 0xA0)}
    | {code: f"\\u{code:04x}" for code in (0x061C, 0x200B, 0x200E, 0x200F, 0x2060, 0xFEFF, 0xFFFE, 0xFFFF)}
    | {code: f"\\u{code:04x}" for code in (*range(0x2028, 0x202F), *range(0x2066, 0x206A), *range(0xD800, 0xE000))}
    | {code: f"\\U{code:08x}" for code in range(0xE0000, 0xE0080)}
)
"""A table for `str.translate`. Text must neither control the terminal nor hide in it. So these characters are made
visible: control and bidirectional characters, characters without width, tags, surrogates (no encoding can write them),
and characters that XML does not allow."""


def listed(counts: Mapping[str, int]) -> str:
    """Numbers with their names, sorted: `2 empty, 1 too_long`."""
    return ", ".join(f"{count:,} {name}" for name, count in sorted(counts.items()))


def shortened(text: str, most: int) -> str:
    """A text of at most `most` characters; of a longer text the beginning, up to the end of a word, and ` ...`.

    >>> shortened("one two three", 9)
    'one two ...'
    """
    if len(text) <= most:
        return text
    blank = max(text.rfind(blank, 0, most + 1) for blank in " \n")
    return f"{text[: blank if blank > most // 2 else most]} ..."  # a text without blanks is cut anywhere
