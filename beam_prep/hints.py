"""Suggestions for an unknown name: its new name, a similar known name, or our name for what other tools call so."""

import difflib
import json
import reprlib
from collections.abc import Iterable, Mapping
from typing import Any

_short = reprlib.Repr()
_short.maxstring = _short.maxother = 60


def shown(value: object) -> str:
    """A value as in a config, shortened."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return _short.repr(list(value) if isinstance(value, tuple) else value)


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
    more = f" and {len(names) - 40} more" if len(names) > 40 else ""
    meant = did_you_mean(name, names) if instead is None else f"{instead}; "
    return f"unknown {what} {shown(name)}; {meant}known: {', '.join(names[:40])}{more}"


OTHER_NAMES = {
    "tokenizer_path": "tokenizer tokeniser tokenizer_name tokenizer_dir tokenizer_name_or_path model model_name "
    "model_path model_name_or_path",
    "output_dir": "out output output_path output_folder out_dir save_path save_to dest dataset_prepared_path",
    "inputs": "in input input_path input_file input_files input_dir data data_path data_files dataset datasets "
    "dataset_name train_file files",
    "config": "cfg conf config_file config_path",
    "overwrite": "force f replace overwrite_output_dir overwrite_cache",
    "verbose": "v debug log_level",
    "cache_dir": "cache token_cache",
    "staging": "tmp temp tmp_dir temp_dir staging_dir",
    "direct_num_workers": "workers jobs j n_jobs nproc num_proc num_processes processes num_cpus cpus threads "
    "preprocessing_num_workers dataset_num_proc dataset_processes",
    "dry_run": "dry n dryrun",
    "max_no_loss_rate": "max_drops drop_rate",
    "max_reject_rate": "max_rejects reject_rate max_error_rate",
}
"""Options -> their names in other programs, and short names."""


def option_of(name: str) -> str | None:
    """The option that other programs call by this name; None if there is none.

    >>> option_of("num-proc")
    'direct_num_workers'
    """
    return next((option for option, others in OTHER_NAMES.items() if _word(name) in others.split()), None)


_PACKING = 'preprocessing.packing_strategy ("bfd", "bfd_split", "wrapped" or "simple")'
_SEQUENCE = "preprocessing.max_seq_len"
_TEMPLATE = 'input.sections: "template": "conversation" in a section takes the tokenizer\'s chat template'
_SECTIONS = 'input.sections: each section names a "field" of the records'
IN_CONFIG = {
    # TRL
    "max_length": _SEQUENCE,
    "max_seq_length": _SEQUENCE,
    "packing": _PACKING,
    "padding_free": _PACKING,
    "assistant_only_loss": 'mask ({"assistant": "train"})',
    "completion_only_loss": 'input.sections ("action": "mask" for the prompt, "train" for the completion)',
    "chat_template_path": "input.chat_template",
    "dataset_text_field": _SECTIONS,
    "pad_to_multiple_of": "preprocessing.padding (a number)",
    "eos_token": 'preprocessing.eos ("if_missing" adds the tokenizer\'s)',
    # axolotl
    "sequence_len": _SEQUENCE,
    "sample_packing": _PACKING,
    "sample_packing_group_size": "preprocessing.packing_group",
    "pad_to_sequence_len": 'preprocessing.padding ("max_length")',
    "train_on_inputs": 'mask_default ("train" or "mask"), or the action of a section',
    "roles_to_train": 'mask ({"assistant": "train"})',
    "train_on_eos": "mask_options.eos",
    "train_on_eot": "mask_options.eos",
    "field_messages": 'input.sections ("field": "messages")',
    "message_property_mappings": "input.adapter",
    "excess_length_strategy": "preprocessing.truncation_mode",
    # LLaMA-Factory
    "cutoff_len": _SEQUENCE,
    "neat_packing": _PACKING,
    "template": _TEMPLATE,
    "mask_history": 'mask ({"assistant": "last"})',
    "train_on_prompt": 'mask_default ("train" or "mask"), or the action of a section',
    "max_samples": "preprocessing.max_items",
    "formatting": "input.adapter",
    # others, and usual words
    "seq_length": _SEQUENCE,
    "seq_len": _SEQUENCE,
    "sequence_length": _SEQUENCE,
    "context_length": _SEQUENCE,
    "max_tokens": _SEQUENCE,
    "model_max_length": _SEQUENCE,
    "block_size": _SEQUENCE,
    "chunk_size": 'preprocessing.truncation_mode ("chunk", in pieces of max_seq_len)',
    "pack": _PACKING,
    "pack_sequences": _PACKING,
    "truncation": "preprocessing.truncation_mode",
    "truncate": "preprocessing.truncation_mode",
    "truncation_side": 'preprocessing.truncation_mode ("keep_start" or "keep_end")',
    "overlap": "preprocessing.stride",
    "append_eos": 'preprocessing.eos ("if_missing" or "always")',
    "add_eos": 'preprocessing.eos ("if_missing" or "always")',
    "add_eos_token": 'preprocessing.eos ("if_missing" or "always")',
    "add_bos_token": "preprocessing.bos, or add_special_tokens of a section",
    "chat_template": "input.chat_template",
    "chat_template_kwargs": "input.template_variables",
    "enable_thinking": 'input.template_variables ({"enable_thinking": false})',
    "format": "output.storage_format",
    "formats": "output.storage_format",
    "output_format": "output.storage_format",
    "shard_size": "output.max_tokens_per_shard",
    "text_column": _SECTIONS,
    "text_field": _SECTIONS,
    "column": _SECTIONS,
    "prompt_column": _SECTIONS,
    "limit": "preprocessing.max_items",
    "roles": "mask (role to action)",
    "position_ids": "output.position_ids_mode",
}
"""Settings of other tools -> the place in our config, with the values if they differ."""


def place_of(name: str) -> str | None:
    """The place in our config for a setting of another tool, with the values if they differ; None if unknown.

    >>> place_of("cutoff_len")
    'preprocessing.max_seq_len'
    """
    return IN_CONFIG.get(_word(name))


def _word(name: str) -> str:
    return name.lstrip("-").lower().replace("-", "_")


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

GONE_VALUES = {"tokie": "which is gone, because transformers encodes WordPiece and Unigram: leave the option out"}
"""Removed values of options: value -> what to do."""

RENAMED_KEYS = {
    "output.carry": "output.keep_fields",
    "preprocessing.untrained": "preprocessing.rows_without_loss",
}
"""Keys of the config: old name -> new name."""

RENAMED_NAMES = {"Carry": "KeepFields"}
"""Names of the package `beam_prep`, and steps of Beam YAML: old name -> new name."""


def instead(name: str, mark: str = "") -> str | None:
    """What to do about an old option; None if there was no such option.

    >>> instead("spool", "--")
    'it is --cache_dir now'

    Args:
        name: the option, without `--`.
        mark: the prefix of an option's name where it is given.
    """
    return f"it is {mark}{RENAMED_OPTIONS[name]} now" if name in RENAMED_OPTIONS else GONE_OPTIONS.get(name)


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
