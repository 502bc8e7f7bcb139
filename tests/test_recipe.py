"""The recipe of a job: of which fields of a config its cached blocks are a function."""

import importlib.metadata
from collections.abc import Mapping, Sequence

from beam_prep import recipe
from beam_prep.config import PipelineConfig
from tests.conftest import ROOT, Patch
from tests.reference import ours

SEEN_BY_BLOCKS = {
    "version": (),
    "mask": (),
    "mask_default": (),
    "mask_options": (),
    "input": (
        *("sections", "sources", "adapter", "chat_template", "date", "implicit_prompt", "rollouts", "groups"),
        *("template_variables", "not_rendered", "tool_arguments", "not_text", "turns"),
    ),
    "preprocessing": (
        *("max_seq_len", "min_chars", "max_chars", "rows_without_loss", "truncation_mode", "encode", "eos", "bos"),
        *("control_tokens", "padding", "max_packed_len", "shift", "stride", "deduplicate", "decontaminate"),
    ),
    "output": ("domain_key", "dtype", "columns", "fim", "loss_weights", "split_key", "keep_fields", "provenance"),
}
"""Fields of a config that a block may depend on, by their parts."""


def test_of_every_field_it_is_decided_whether_blocks_depend_on_it() -> None:
    def paths(fields: Mapping[str, Sequence[str]]) -> list[str]:
        return [f"{part}.{name}" for part, names in fields.items() for name in names or [""]]

    parts = {name: field.annotation for name, field in PipelineConfig.model_fields.items()}
    known = paths({name: [*getattr(part, "model_fields", ())] for name, part in parts.items()})
    decided = sorted([*paths(SEEN_BY_BLOCKS), *paths(recipe.AFTER_BLOCKS)])
    new = {*known} - {*decided}
    assert not new, (
        f"new fields {sorted(new)}: those that only the plan and Write see belong in AFTER_BLOCKS of "
        "beam_prep/recipe.py (otherwise another value makes every kept block again), all others in SEEN_BY_BLOCKS here"
    )
    assert decided == sorted(known)  # none twice, none that is no field


def test_blocks_that_other_versions_of_libraries_made_have_other_names(monkeypatch: Patch) -> None:
    config = PipelineConfig.from_json(ROOT / "configs" / "pretrain.json")
    version = importlib.metadata.version

    def name() -> str:
        return recipe.cache_recipe(recipe.facts(config, ours(ROOT / "examples" / "tokenizer"), 0))

    seen = {name()}
    for library in ("orjson", "pyarrow", "numpy", "jinja2", "tokenizers", "transformers"):
        monkeypatch.setattr(
            "beam_prep.recipe.library_version", lambda each, other=library: "0" if each == other else version(each)
        )
        seen.add(name())
    monkeypatch.setattr("beam_prep.recipe.GIGATOKEN_VERSION", "0")
    assert len(seen | {name()}) == 8
