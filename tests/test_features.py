"""What the product can do, and the test that holds it. A feature that is not in `HELD` fails here; so does a file that
is not there, or that does not name the feature."""

import re
from collections.abc import Iterator
from typing import get_args

import pytest
from pydantic import BaseModel

from beam_prep import cli
from beam_prep.config import FORMAT_NAMES, PipelineConfig
from beam_prep.config.presets import PRESETS
from beam_prep.config.strict import model_in
from beam_prep.reading.adapters import AdapterName
from beam_prep.reading.source import COMPRESSIONS
from beam_prep.reading.sources import SOURCES
from beam_prep.shards.pack import STRATEGIES
from tests.conftest import ROOT

HELD: dict[str, dict[str, str]] = {
    "command": {
        "test_options.py": "run",
        "test_replay.py": "replay",
        "test_inspect.py": "inspect",
        "audit/test_audit.py": "audit",
        "test_init.py": "init",
        "test_template_command.py": "template",
        "compose/test_outputs.py": "cat report",
        "test_verify.py": "verify",
        "storage/test_gc.py": "gc",
        "test_config.py": "schema presets",
    },
    # The options of `run` are those of `replay`, too.
    "option": {
        "test_options.py": "run.inputs+output_dir+config+config_json+tokenizer_path+overwrite+max_reject_chars+verbose",
        "test_workers_elsewhere.py": "run.wait",
        "test_versions.py": "run.keep_versions+version_name+lease",
        "test_bad_data.py": "run.max_reject_rate",
        "test_report.py": "run.max_no_loss_rate report.to",
        "test_hostile.py": "run.max_line_bytes",
        "test_resume.py": "run.cache_dir+block_bytes",
        "storage/test_publish_again.py": "run.staging",
        "test_backends.py": "run.tokenizer_backend",
        "test_check.py": "run.check",
        "test_dry_run.py": "run.dry_run",
        "test_inspect.py": "inspect.record+config+tokenizer_path",
        "test_inspect_selection.py": "inspect.count+domain+random+seed+shortest+longest+grep+reason+ids+no_pager",
        "test_keep_fields.py": "inspect.source",
        "test_inspect_page.py": "inspect.html",
        "compose/test_outputs.py": "inspect.split cat.count+domain+split",
        "audit/test_audit.py": "audit.config+tokenizer_path+sample+json",
        "test_init.py": "init.output+tokenizer_path+overwrite",
        "test_template_command.py": "template.chat_template+json+no_pager",
        "browser/test_page.py": "template.html",
        "test_verify.py": "verify.json+inputs",
        "storage/test_gc.py": "gc.older_than+max_bytes+dry_run",
    },
    "output format": {"formats/test_all.py": "bin tfrecord arrow h5 parquet megatron mds npy array_record"},
    "input format": {
        "transforms/test_read.py": ".jsonl .gz .bz2 .zst",
        "reading/test_json_list.py": ".json",
        "storage/test_tables.py": ".parquet .arrow",
    },
    "packing strategy": {"test_packing.py": "simple bfd bfd_split wrapped"},
    "adapter": {"reading/test_adapters.py": "sharegpt alpaca tokenized"},
    "preset": {"test_config.py": "trl_sft trl_dpo trl_kto transformers maxtext megatron olmo torchtune astrai"},
    "key of the config": {
        "test_config.py": "version input input.sections+sources+chat_template+implicit_prompt "
        "input.sections.field+action+template input.sources.sections+list_field+mask_key mask mask_default "
        "preprocessing preprocessing.max_chars+padding output output.dtype+storage_format+columns",
        "tokens/test_tokenizer.py": "input.sections.add_special_tokens",
        "reading/test_adapters.py": "input.adapter input.adapter.name",
        "test_rollouts.py": "input.rollouts "
        "input.rollouts.prompt_ids+response_ids+loss_mask+logprobs+rewards+policy_version+values+texts+grouped",
        "test_date.py": "input.date",
        "test_recipe.py": "input.template_variables",
        "chat/test_not_rendered.py": "input.not_rendered",
        "test_masks_real.py": "input.tool_arguments",
        "reading/test_not_text.py": "input.not_text",
        "test_turns_apart.py": "input.turns",
        "test_groups.py": "input.groups input.groups.files+domain preprocessing.min_chars",
        "test_mask_options.py": "mask_options mask_options.reasoning+tool_calls+generation_prompt+eos",
        "compose/test_naive.py": "preprocessing.max_items output.split_seed output.mix.tokens+share+epochs+repeat",
        "tokens/test_mask.py": "preprocessing.rows_without_loss",
        "test_goldens_conversations.py": "preprocessing.eos+bos",
        "chat/test_control.py": "preprocessing.control_tokens",
        "test_packing.py": "preprocessing.packing_strategy+max_packed_len+max_seq_len+truncation_mode+stride",
        "test_material.py": "preprocessing.packing_group+encode",
        "test_decontaminate.py": "preprocessing.decontaminate "
        "preprocessing.decontaminate.against+field+fields+ngram+mode",
        "tokens/test_shift.py": "preprocessing.shift",
        "compose/test_outputs.py": "preprocessing.deduplicate preprocessing.deduplicate.by",
        "reading/test_keys.py": "preprocessing.deduplicate.normalize",
        "trainers/test_presets.py": "output.preset",
        "compose/test_jobs.py": "output.max_tokens_per_shard+shuffle+splits+split_key+split_missing+mix "
        "output.shuffle.seed",
        "test_loss_weights.py": "output.loss_weights",
        "test_inspect.py": "output.position_ids_mode",
        "test_names.py": "output.names",
        "test_keep_fields.py": "output.keep_fields+provenance+domain_key",
        "test_fim_exact.py": "output.fim output.fim.rate+mode+seed+sentinels",
    },
}
"""Kind -> file of tests -> the features that it holds; `a.b+c` are `a.b` and `a.c`."""

ALL_OF = {"output format": "FORMAT_NAMES", "preset": "PRESETS"}
"""Kind -> the name by which a test takes all features of it."""


def features_of(kind: str, file: str) -> list[str]:
    parts = [feature.rpartition(".") for feature in HELD[kind][file].split()]
    return [f"{before}{dot}{name}" for before, dot, names in parts for name in names.split("+")]


def options_of(command: str) -> list[str]:
    actions = [action for action in cli.COMMANDS[command]._actions if action.option_strings and action.dest != "help"]
    return [max(action.option_strings, key=len).lstrip("-") for action in actions]


def keys(model: type[BaseModel], at: str, seen: set[type]) -> Iterator[str]:
    """The keys of a config; the keys of an object that stands at several places, at its first."""
    seen.add(model)
    for owner in reversed(model.__mro__):
        for name in getattr(owner, "__annotations__", {}):
            if name not in model.model_fields or (owner is not model and owner in seen):
                continue
            yield at + name
            inner = model_in(model.model_fields[name].annotation)
            if inner is not None and inner not in seen:
                yield from keys(inner, f"{at}{name}.", seen)
        seen.add(owner)


FOUND = {
    "command": [*cli.COMMANDS],
    "option": [f"{command}.{name}" for command in cli.COMMANDS if command != "replay" for name in options_of(command)],
    "output format": [*FORMAT_NAMES],
    "input format": [".jsonl", *(ending for source in SOURCES for ending in source.endings), *COMPRESSIONS],
    "packing strategy": [*STRATEGIES],
    "adapter": [*get_args(AdapterName)],
    "preset": [*PRESETS],
    "key of the config": [*keys(PipelineConfig, "", set())],
}


@pytest.mark.parametrize("kind", FOUND)
def test_every_feature_is_held_by_a_test(kind: str) -> None:
    listed = [feature for file in HELD[kind] for feature in features_of(kind, file)]
    assert sorted(listed) == sorted(FOUND[kind])


def test_a_replay_has_the_options_of_a_run() -> None:
    assert {*options_of("replay")} == {*options_of("run")} - {"inputs"}


@pytest.mark.parametrize(("kind", "file"), [(kind, file) for kind, files in HELD.items() for file in files])
def test_the_file_names_what_it_holds(kind: str, file: str) -> None:
    text = (ROOT / "tests" / file).read_text(encoding="utf-8")
    for feature in features_of(kind, file):
        word = re.escape(feature.rpartition(".")[2])
        assert re.search(rf"(\b|_){word}\b", text) or ALL_OF.get(kind, "\0") in text, f"{file} has no word of {feature}"
