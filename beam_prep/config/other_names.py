"""The names that settings have in other tools, and where they are in our config."""

_PACKING = 'preprocessing.packing_strategy ("bfd", "bfd_split", "wrapped" or "simple")'
_SEQUENCE = "preprocessing.max_seq_len"
_TEMPLATE = 'input.sections: "template": "conversation" in a section takes the tokenizer\'s chat template'
_SECTIONS = 'input.sections: each section names a "field" of the records'
_ON_OPTIONS = {
    "tokenizer": "--tokenizer_path",
    "model": "--tokenizer_path",
    "model_name_or_path": "--tokenizer_path",
    "tokenizer_path": "--tokenizer_path",
    "output_dir": "-o",
    "dataset_prepared_path": "-o",
    "overwrite_cache": "--overwrite",
    "preprocessing_num_workers": "--direct_num_workers",
    "dataset_num_proc": "--direct_num_workers",
    "dataset_processes": "--direct_num_workers",
    "datasets": "the INPUT of beam-prep run",
    "dataset": "the INPUT of beam-prep run",
    "dataset_name": "the INPUT of beam-prep run",
    "data_files": "the INPUT of beam-prep run",
    "inputs": "the INPUT of beam-prep run",
}
_IN_CONFIG = {
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


def place_of(name: str) -> str | None:
    """Where our config has a setting of another tool, with the values if they differ; None if that is not known.

    >>> place_of("cutoff_len")
    'preprocessing.max_seq_len'
    """
    return _IN_CONFIG.get(name.lower().replace("-", "_"))


def option_of(name: str) -> str | None:
    """The option of the command line that has what other tools have in their config; None if there is none."""
    return _ON_OPTIONS.get(name.lower().replace("-", "_"))
