"""The transforms for Beam YAML, whose arguments are strings, numbers and mappings. See docs/beam_yaml.md.

`beam_prep_yaml.yaml` lists them by name. Each function checks its arguments, and makes one transform. `ReadJSONL` and
`FromRecords` need no function: their arguments are such already.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import validate_call

from beam_prep import recipe
from beam_prep.config import PipelineConfig
from beam_prep.errors import ConfigError
from beam_prep.recipe import Prepare, chain, compose, read_config
from beam_prep.shards.report import MAX_NO_LOSS_RATE, MAX_REJECT_RATE
from beam_prep.tokens.backends import Backend
from beam_prep.tokens.batch import Check
from beam_prep.tokens.tokenizer import Tokenizer
from beam_prep.transforms import steps
from beam_prep.transforms.shard import Shard
from beam_prep.transforms.steps import BlockStep, Tokenize

PROVIDERS = Path(__file__).with_name("beam_prep_yaml.yaml")
"""The list of the transforms, for `providers:` in a pipeline: `- include: PATH`."""

ConfigOrPath = str | dict[str, Any]


_for_yaml = validate_call(config={"strict": True})
"""Decorates a function that makes a transform: checks names and types of its arguments first."""


def _loaded(given: ConfigOrPath, tokenizer: str) -> tuple[PipelineConfig, Tokenizer]:
    config = read_config(given)
    return config, recipe.tokenizer_of(config, tokenizer)


@_for_yaml
def prepare(
    config: ConfigOrPath, tokenizer: str, tokenizer_backend: Backend = "auto", check: Check = "sample"
) -> Prepare:
    """Records -> rows: all steps of a config. See `beam_prep.Prepare`.

    Args:
        config: the config, or its path.
        tokenizer: the path of the tokenizer's folder.
        tokenizer_backend: auto, transformers or gigatoken.
        check: sample or full.
    """
    return Prepare(*_loaded(config, tokenizer), tokenizer_backend, check)


def _step(kind: type[BlockStep], config: ConfigOrPath, tokenizer: str, **ways: Any) -> BlockStep:
    made = chain(*_loaded(config, tokenizer), check="sample", **ways)
    found = next((step for step in made if type(step) is kind), None)
    if found is None:
        names = ", ".join(type(step).__name__ for step in made)
        raise ConfigError(f"{kind.__name__}: this config has no such step; its steps are {names}")
    return found


def _one_step(kind: type[BlockStep]) -> Callable[..., BlockStep]:
    """A function that makes one step of a config, as `Prepare` makes it."""

    def make(config: ConfigOrPath, tokenizer: str) -> BlockStep:
        return _step(kind, config, tokenizer)

    make.__doc__ = f"One step of a config. `config`, `tokenizer`: see Prepare. See `beam_prep.{kind.__name__}`."
    return _for_yaml(make)


key_records = _one_step(steps.KeyRecords)
count_bad_answers = _one_step(steps.CountBadAnswers)
keep_fields = _one_step(steps.KeepFields)
adapt_records = _one_step(steps.AdaptRecords)
filter_by_chars = _one_step(steps.FilterByChars)
decontaminate = _one_step(steps.Decontaminate)
apply_template = _one_step(steps.ApplyTemplate)
build_mask = _one_step(steps.BuildMask)
from_tokens = _one_step(steps.FromTokens)
from_rollouts = _one_step(steps.FromRollouts)
truncate = _one_step(steps.Truncate)
split_prompt = _one_step(steps.SplitPrompt)
shift = _one_step(steps.Shift)
labels = _one_step(steps.Labels)


@_for_yaml
def tokenize(config: ConfigOrPath, tokenizer: str, tokenizer_backend: Backend = "auto") -> BlockStep:
    """Text -> ids. `config`, `tokenizer`, `tokenizer_backend`: see Prepare. See `beam_prep.Tokenize`."""
    return _step(Tokenize, config, tokenizer, backend=tokenizer_backend)


@_for_yaml
def shard(
    output: str,
    config: ConfigOrPath,
    tokenizer: str,
    overwrite: bool = False,
    max_reject_rate: float = MAX_REJECT_RATE,
    max_no_loss_rate: float = MAX_NO_LOSS_RATE,
    max_reject_chars: int = 1000,
) -> Shard:
    """Rows -> the output. Formats, packing, shards, shuffle, splits and mix: the config's. See `beam_prep.Shard`.

    Args:
        output: the directory to make.
        config: the config, or its path.
        tokenizer: the path of the tokenizer's folder.
        overwrite: replace an earlier output.
        max_reject_rate: a larger share of rejected records fails the run.
        max_no_loss_rate: a larger share of records that are dropped without loss fails the run.
        max_reject_chars: most characters kept of a rejected record.
    """
    chosen, loaded = _loaded(config, tokenizer)
    return recipe.shard(
        chosen,
        loaded,
        output,
        max_reject_rate=max_reject_rate,
        max_no_loss_rate=max_no_loss_rate,
        max_reject_chars=max_reject_chars,
        overwrite=overwrite,
        compose=compose(chosen),
    )
