"""Suggestions for an unknown name: a similar known name, or our name for what other tools call so."""

import difflib
import json
import reprlib
from collections.abc import Iterable

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


def unknown_name(what: str, name: object, known: Iterable[str], instead: str = "") -> str:
    """A message for an unknown name: what to do instead, else a similar known name; and the known names."""
    names = list(known)
    more = f" and {len(names) - 40} more" if len(names) > 40 else ""
    meant = f"{instead}; " if instead else did_you_mean(name, names)
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
