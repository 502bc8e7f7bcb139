"""A config -> the chain of PTransforms that it stands for."""

import dataclasses
import hashlib
import importlib.metadata
import json
import math
import os
from typing import Any, Literal

import apache_beam as beam

from beam_prep._version import __version__
from beam_prep.config import PipelineConfig
from beam_prep.core.adapters import adapt_records
from beam_prep.core.backend import Backend
from beam_prep.core.batch import Batch
from beam_prep.core.block import InputFile
from beam_prep.core.columns import Wanted
from beam_prep.core.hashing import CHUNK
from beam_prep.core.layout import CUTTING, Layout
from beam_prep.core.records import Records, filter_by_chars
from beam_prep.core.schema import TextRules
from beam_prep.core.template import Rendered, apply_template
from beam_prep.core.tokenizer import Tokenizer
from beam_prep.errors import ConfigError, InputError
from beam_prep.formats.spool import SPOOL_VERSION
from beam_prep.transforms._stores import is_local, read_bytes
from beam_prep.transforms.filter import AdaptRecords, FilterByChars
from beam_prep.transforms.mask import BuildMask
from beam_prep.transforms.pad import Pad
from beam_prep.transforms.read import first_records
from beam_prep.transforms.shift import Labels, Shift
from beam_prep.transforms.template import ApplyTemplate, Render, check_voice, voice_of
from beam_prep.transforms.tokenize import FromTokens, Tokenize
from beam_prep.transforms.truncate import Truncate

# What makes tokens: with another version of these, an old block or output is another one.
_TOKEN_LIBRARIES = ("tokenizers", "transformers", "jinja2")


def read_config(path: str | os.PathLike[str]) -> PipelineConfig:
    """A config file, local or in a store, and its chat template's.

    Raises:
        ConfigError: it cannot be read, or is wrong.
    """
    name = os.fspath(path)
    if is_local(name):
        return PipelineConfig.from_json(name)
    try:
        text = read_bytes(name).decode("utf-8-sig")
    except (FileNotFoundError, UnicodeDecodeError) as error:
        raise ConfigError(f"{name}: the config cannot be read: {error}") from None
    return PipelineConfig.from_text(text, name, read_bytes)


@dataclasses.dataclass(eq=False)
class Prepare(beam.PTransform):
    """`Records` -> `Batch`: everything of a config between ReadJSONL and Shard.

    Attributes:
        config: the config.
        tokenizer: its tokenizer.
        tokenizer_backend: see `Tokenize`.
        render: see `ApplyTemplate`.
    """

    config: PipelineConfig
    tokenizer: Tokenizer
    tokenizer_backend: Backend | Literal["inherited"] = "auto"
    render: Render = "auto"

    def __post_init__(self) -> None:
        super().__init__()
        self.config.check_vocabulary(self.tokenizer.max_id)

    def expand(self, records: beam.PCollection[Records]) -> beam.PCollection[Batch]:
        config, step = self.config, self.config.preprocessing
        rules = text_rules(config)
        outputs = config.input.outputs(joint=step.encode == "joint")
        if config.input.tokenized:
            batches = records | FromTokens(outputs[0], self.tokenizer, config.output.domain_key)
        else:
            if config.input.adapter is not None:
                records |= AdaptRecords(config.input.adapter.build())
            if config.char_filter_fields:
                records |= FilterByChars(step.min_chars, step.max_chars, config.char_filter_fields)
            batches = (
                records
                | ApplyTemplate(outputs, self.tokenizer, config.output.domain_key, rules, self.render)
                | Tokenize(self.tokenizer, self.tokenizer_backend)
                | BuildMask(config.mask, config.mask_default)
            )
        batches |= Truncate(step.max_seq_len, step.truncation_mode, self.tokenizer)
        if config.output.columns == "labels":
            batches |= Shift() if step.shift else Labels()
        if config.pad_multiple is not None:
            batches |= Pad(config.pad_multiple, pad_id_of(self.tokenizer))
        return batches


def columns_of(config: PipelineConfig, render: Render) -> Wanted | None:
    """What records of a config need not become objects; None where a step looks at each."""
    outputs = config.input.outputs(joint=config.preprocessing.encode == "joint")
    sections = outputs[0].sections
    if config.input.tokenized or config.input.adapter is not None or len(outputs) > 1 or len(sections) > 1:
        return None
    if outputs[0].kind != "ids" or (outputs[0].has_template and not (outputs[0].conversation and render == "auto")):
        return None
    return Wanted("chats" if outputs[0].conversation else "texts", sections[0].field)


_PROBE_BYTES = 4 * CHUNK
_PROBES = 64
_PROBE_CHARACTERS = 4096  # a line may be of any length, and this is start-up


def first_texts(config: PipelineConfig, tokenizer: Tokenizer, source: InputFile) -> list[str]:
    """Some texts of the first records of a file, as they are encoded. None where it cannot be read: the run says so."""
    if config.input.tokenized:
        return []
    try:
        records = first_records(source, block_bytes=_PROBE_BYTES)
    except InputError:
        return []
    if records is None:
        return []
    records = records.part(range(min(len(records), _PROBES)))
    pieces = rendered(records, config, tokenizer).pieces.values()
    return [text[:_PROBE_CHARACTERS] for each in pieces for text in each.texts[:_PROBES]]


def rendered(records: Records, config: PipelineConfig, tokenizer: Tokenizer) -> Rendered:
    """What `Prepare` makes of records before it encodes them, without Beam."""
    given, step = config.input, config.preprocessing
    if given.adapter is not None:
        records = adapt_records(records, given.adapter.build())
    if config.char_filter_fields:
        records = filter_by_chars(records, step.min_chars, step.max_chars, config.char_filter_fields)
    outputs = given.outputs(joint=step.encode == "joint")
    voice = voice_of(outputs, tokenizer, text_rules(config))
    return apply_template(records, outputs, voice, config.output.domain_key)


def check_template(config: PipelineConfig, tokenizer: Tokenizer) -> None:
    """Raises what `ApplyTemplate` would raise of a config."""
    if not config.input.tokenized:
        outputs = config.input.outputs(joint=config.preprocessing.encode == "joint")
        check_voice(outputs, tokenizer, text_rules(config))


def text_rules(config: PipelineConfig) -> TextRules:
    """How a config's text becomes pieces, beyond its sections."""
    step, given = config.preprocessing, config.input
    return TextRules(step.eos, step.bos, given.implicit_prompt, given.chat_template, step.control_tokens, given.date)


def layout(config: PipelineConfig) -> Layout:
    """How the rows of a config's shards are packed."""
    step = config.preprocessing
    return Layout(
        step.packing_strategy,
        step.max_packed_len or step.max_seq_len,
        step.packing_group,
        config.position_ids_mode,
        config.columns(),
        config.names,
        step.truncation_mode,
    )


def pad_id_of(tokenizer: Tokenizer) -> int:
    """The id that fills up rows.

    Raises:
        ConfigError: the tokenizer has none.
    """
    pad_id = tokenizer.pad_id
    if pad_id is None:
        raise ConfigError("preprocessing.padding: this tokenizer has no pad_token and no eos_token; name one in it")
    return pad_id


def facts(config: PipelineConfig, tokenizer: Tokenizer, reject_text: int) -> dict[str, Any]:
    """What an output is a function of, besides its input: it stands in the manifest, and tells jobs apart."""
    versions = {name: importlib.metadata.version(name) for name in _TOKEN_LIBRARIES}
    return {
        "config": config.canonical(),
        "options": {"reject_text": reject_text},
        "tokenizer": {"fingerprint": tokenizer.fingerprint, "special_tokens": tokenizer.special_tokens},
        "versions": {"beam_prep": __version__, **versions},
    }


def spool_recipe(job_facts: dict[str, Any]) -> str:
    """Digest of what a spooled block is a function of, besides its bytes: all but what only the plan and Write see."""
    config = json.loads(json.dumps(job_facts["config"]))
    step = config["preprocessing"]
    if step["packing_strategy"] not in CUTTING or (step["max_packed_len"] or math.inf) >= step["max_seq_len"]:
        del step["max_packed_len"]  # no row is cut to it
    for key in ("max_items", "packing_strategy", "packing_group"):
        del step[key]
    for key in ("max_tokens_per_shard", "storage_format", "position_ids_mode"):
        del config["output"][key]
    config["output"].pop("names", None)
    for key in ("position_ids", "seq_lens"):
        config["output"]["dtype"].pop(key, None)
    text = json.dumps([SPOOL_VERSION, {**job_facts, "config": config}])  # unsorted: the order of sources matters
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
