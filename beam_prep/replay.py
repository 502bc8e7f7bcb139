"""`Replay`: the records that an output rejected are run again, after a mended config, template or tokenizer."""

import hashlib
import json
import logging
import math
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jinja2
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions

from beam_prep import recipe
from beam_prep.config import PipelineConfig
from beam_prep.data.block import NOT_COMPARED, ROWS_COMPARED
from beam_prep.errors import ConfigError, InputError, OutputError
from beam_prep.formats.manifest import MANIFEST, RUN, TOKENIZER, load
from beam_prep.options import RunOptions
from beam_prep.pipeline import Pipeline, Result
from beam_prep.shards.pack import longest_row
from beam_prep.shards.replay import RowsToRecheck
from beam_prep.storage.files import join
from beam_prep.storage.input_digests import digest_of_input, stores_checksum
from beam_prep.storage.output import normalise_path
from beam_prep.storage.publish import same_facts
from beam_prep.storage.splits import BLOCK_BYTES
from beam_prep.storage.staging import Staging
from beam_prep.storage.stores.client import is_local
from beam_prep.storage.stores.objects import read_bytes
from beam_prep.storage.token_cache import EarlierBlocks, TokenCache
from beam_prep.storage.versions import Versions
from beam_prep.tokens.check import CachePolicy
from beam_prep.tokens.tokenizer import Tokenizer

log = logging.getLogger("beam_prep")

_INPUTS_SHOWN = 3
_TEMPLATE = "chat_template.jinja"


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of a replay.

    Attributes:
        result: of the run; None: nothing was done.
        before: the ledger of the earlier output.
        after: the ledger of the new one; that of the earlier one if nothing was done.
        failing: reason -> its first record in the new rejects: `file`, `line`, `offset`, `message` ...
        run: `run.json` of the new output.
    """

    result: Result | None
    before: dict[str, Any]
    after: dict[str, Any]
    failing: dict[str, dict[str, Any]] = field(default_factory=dict)
    run: dict[str, Any] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """What was replayed and what still fails, for people."""
        again = sum(self.before["rejected"].values())
        kept = self.after["kept"]
        texts = [
            f"replayed: {_counted(again)}; kept: {kept:,}, which were {self.before['kept']:,} "
            f"({kept - self.before['kept']:+,})"
        ]
        if self.result is None:
            texts = ["nothing was replayed: config, template and tokenizer are those of the output"]
        if compared := self.run.get(ROWS_COMPARED):
            kept_before = self.before["kept"]
            text = f"kept records that were made again and compared: {compared:,} of {kept_before:,}"
            texts.append(text + ("" if compared >= kept_before else "; --check full compares all"))
        if unknown := self.run.get(NOT_COMPARED):
            texts.append(
                f"of {unknown:,} of {self.run['blocks']:,} blocks kept records could not be compared: "
                "the token cache does not have these blocks"
            )
        rejected = self.after["rejected"]
        texts.append("still rejected:" if rejected else "no record is rejected any more")
        return [*texts, *_by_reason(rejected, self.failing)]


class Replay:
    """A job that runs the rejected records of an output again: in the new output they are at their place.

    The new output is, byte for byte, that of a run from scratch with the new config. Records that were kept are not
    written again, where their blocks are still in the token cache: they must give what they gave, which is compared for
    all records that may have changed (docs/replay.md). A new config that would change one is refused. Records that were
    dropped are run again, too.

    Args:
        output: the earlier output, or a folder of versions, of which the latest is meant. Its manifest names the
            inputs.
        config: the new config, or its path; without it, the earlier one.
        output_dir: the directory to make. Without it, a folder of versions gets a new one (none is removed, but see
            `keep_versions` of `Pipeline`), and another output is replaced, which `overwrite` must allow.
        tokenizer_path: see `Pipeline`; without it, the tokenizer that the output keeps.
        overwrite: replace `output`, or what is at `output_dir`.
        cache_dir: the folder that kept the blocks of the earlier run; without it, the default one beside `output`.
            Blocks that are not there are made in full, and their kept records are not compared.
        beam_options: see `Pipeline`.
        options: the other arguments of `Pipeline`. `block_bytes`, `max_reject_chars` and `max_line_bytes` are by
            default those of the earlier run.

    Raises:
        BeamPrepError: as `Pipeline`; and an OutputError: there is no output to replay.

    >>> config = bp.PipelineConfig.from_json("configs/sft_chat.json")
    >>> replay = bp.Replay("out/pipeline", config, output_dir="out/replayed")
    >>> replay.rejected
    {}
    >>> replay.run().result is None
    True

    Attributes:
        output: the path of the output that is replayed.
        manifest: its manifest.
        job: the `Pipeline` that makes the new output; None if there is nothing to replay.
    """

    def __init__(
        self,
        output: str | os.PathLike[str],
        config: PipelineConfig | str | os.PathLike[str] | None = None,
        *,
        output_dir: str | os.PathLike[str] | None = None,
        tokenizer_path: str | os.PathLike[str] | None = None,
        overwrite: bool = False,
        cache_dir: str | None = None,
        beam_options: Sequence[str] | PipelineOptions | None = None,
        **options: Any,
    ) -> None:
        if beam_options is not None:
            given = beam_options if isinstance(beam_options, PipelineOptions) else PipelineOptions(list(beam_options))
            FileSystems.set_options(given)
        root = normalise_path(os.fspath(output))
        versions = Versions(root)
        latest = versions.latest()
        self.output = root if latest is None else versions.path(latest)
        text = _read(self.output, MANIFEST)
        if text is None:
            raise OutputError(f"{output} holds no output to replay (no {MANIFEST}): give one that `beam-prep run` made")
        self.manifest = load(text, join(self.output, MANIFEST))
        if not self.manifest.keys() >= {"config", "options", "tokenizer", "versions"}:
            raise OutputError(f"{output} was not made from a config, but by a chain of its own: run that again")
        made_by = json.loads(_read(self.output, RUN) or b"{}")
        self._inputs_checksum = made_by.get("inputs_checksum")
        self._sampled = options.get("check") == "sample"
        self._instead = "beam-prep run"
        self.job: Pipeline | None = None
        self._replaces = False
        if not self.rejected:
            return
        target = root if output_dir is None else normalise_path(os.fspath(output_dir))
        if latest is not None and target == root:
            options.setdefault("keep_versions", len(versions.names()) + 1)
        else:
            self._replaces = target == root and not overwrite
        paths = [entry["path"] for entry in self.manifest["inputs"]]
        given_config = self._config(config, tokenizer_path)
        grouped = given_config.input.groups is not None
        self._instead = _command([] if grouped else paths, target)
        known = RunOptions.model_fields
        limits = {name: value for name, value in self.manifest["options"].items() if name in known}
        defaults = {"block_bytes": made_by.get("block_bytes", BLOCK_BYTES), **limits}
        self.job = Pipeline(
            given_config,
            None if grouped else paths,
            target,
            join(self.output, TOKENIZER) if tokenizer_path is None else tokenizer_path,
            overwrite=overwrite,
            cache_dir=cache_dir,
            beam_options=beam_options,
            **{**defaults, **options},
        )
        files = [file.path for file in self.job.inputs]
        other_groups = self.job.facts.get(recipe.GROUP_FILES) != self.manifest.get(recipe.GROUP_FILES)
        if other_groups or (grouped and files != paths):
            raise ConfigError(
                f"input.groups names {_files_of(files)}, and {self.output} was made of {_files_of(paths)}, perhaps in "
                f"other groups; a replay reads the same inputs in the same groups: make everything again: "
                f"{self._instead}"
            )
        folder = self.job.cache_dir or join(Staging.beside(root, options.get("staging")).root, "token_cache")
        self.job.earlier = self._blocks(self.job, folder)
        digest = hashlib.sha256(text).hexdigest()
        self.job.about = {"replay_of": {"output": self.output, "manifest_sha256": digest}}

    def _config(
        self, given: PipelineConfig | str | os.PathLike[str] | None, tokenizer_path: str | os.PathLike[str] | None
    ) -> PipelineConfig:
        """The new config.

        Raises:
            ConfigError: it cannot be read, or is wrong; or it needs another tokenizer than the one that is kept.
        """
        if given is None:
            return PipelineConfig.from_dict(self.manifest["config"], f"the config in {self.output}/{MANIFEST}")
        config = given if isinstance(given, PipelineConfig) else recipe.read_config(given)
        had_template = self.manifest["config"]["input"].get("chat_template") is not None
        if tokenizer_path is None and had_template and config.input.chat_template is None:
            raise ConfigError(
                f"the tokenizer in {self.output} has the chat template of the earlier config, and the new config has "
                "none: pass --tokenizer_path (tokenizer_path), or name the template in the config"
            )
        return config

    @property
    def rejected(self) -> dict[str, int]:
        """The records that are replayed: how many for each reason."""
        return dict(self.manifest["ledger"]["rejected"])

    def plan(self) -> list[str]:
        """What would be replayed, for people."""
        total = _counted(sum(self.rejected.values()))
        return [f"would replay {total} of {self.output}", *_by_reason(self.rejected, self._first())]

    def _first(self) -> dict[str, dict[str, Any]]:
        return _first_rejects(self.output, self.manifest)

    def run(self, beam_options: Sequence[str] | PipelineOptions | None = None, *, wait: bool = True) -> Replayed:
        """Makes the new output, if there is something to replay. For the arguments see `Pipeline.run`.

        Raises:
            ConfigError: the new config would change a record that was kept.
            InputError: an input is not what it was.
            OutputError: the output would be replaced, without leave.
            BeamPrepError: as `Pipeline.run`.
        """
        before, job = self.manifest["ledger"], self.job
        if job is None:
            return Replayed(None, before, before)
        if same_facts(self.manifest, job.facts):
            return Replayed(None, before, before, self._first())
        if self._replaces:
            raise OutputError(
                f"{self.output} would be replaced: pass -o NEW (output_dir), or --overwrite (overwrite=True)"
            )
        self.check_inputs()
        folder = "" if job.earlier is None else job.earlier.token_cache.folder
        if is_local(folder) and not os.path.isdir(folder):
            log.warning(
                "there is no token cache at %s: everything is made again; --cache_dir names the one of that run", folder
            )
        result = job.run(beam_options, wait=wait)
        if result.manifest is None:
            return Replayed(result, before, before)
        made = json.loads(_read(result.output, RUN) or b"{}")
        failing = _first_rejects(result.output, result.manifest)
        return Replayed(result, before, result.manifest["ledger"], failing, made)

    def check_inputs(self) -> None:
        """Compares the inputs with the digests in the manifest.

        Raises:
            InputError: one changed.
        """
        if self.job is None:
            return
        checksum = stores_checksum(self.job.inputs)
        if checksum is not None and checksum == self._inputs_checksum:
            return
        for file, entry in zip(self.job.inputs, self.manifest["inputs"], strict=True):
            if file.size != entry["size"] or digest_of_input(file) != entry["digest"]:
                raise InputError(
                    f"{file.path!r} is not what {self.output} was made of, and a replay reads the same inputs: make "
                    f"everything again: {self._instead}"
                )

    def _blocks(self, job: Pipeline, folder: str) -> EarlierBlocks:
        """The blocks of the earlier run."""
        facts = {
            key: self.manifest[key]
            for key in {**job.facts, recipe.REFERENCES: None, recipe.GROUP_FILES: None}
            if key in self.manifest
        }
        trust = CachePolicy(job.options.tokenizer_backend, job.options.check)
        recheck = None
        if job.options.check != "full" and self._same_vocabulary(job.tokenizer):
            recheck = rows_to_recheck(facts, job.facts)
        templates = [_read(self.output, TOKENIZER, _TEMPLATE), job.tokenizer.contents().get(_TEMPLATE)]
        if recheck is not None and templates[0] != templates[1]:
            # Which records another template changes is not known. A sample is taken only by request.
            sampled = with_words(recheck, *(template or b"" for template in templates))
            recheck = sampled if self._sampled else None
        token_cache = TokenCache(folder, recipe.cache_recipe(facts), trust=trust, groups=recipe.group_recipes(facts))
        return EarlierBlocks(token_cache, self._instead, recheck)

    def _same_vocabulary(self, tokenizer: Tokenizer) -> bool:
        """True if the tokenizer is that of the output, but maybe for its chat template."""
        contents = tokenizer.contents()
        named = self.manifest["tokenizer"]["special_tokens"] == tokenizer.special_tokens
        return named and contents["tokenizer.json"] == _read(self.output, TOKENIZER, "tokenizer.json")


_NAME_LIMIT = 64
"""Row indexes have so many characters of a role's name."""


def rows_to_recheck(before: Mapping[str, Any], after: Mapping[str, Any]) -> RowsToRecheck | None:
    """The kept rows that may differ between two jobs with the same vocabulary, besides what another template changes.

    Args:
        before, after: the facts of the jobs: see `recipe.facts`.

    Returns:
        None: all of them may. Only of the mask and the limits it is known which rows they change.
    """
    old, new = (json.loads(json.dumps(facts)) for facts in (before, after))
    cuts = [longest_row(facts["config"]["preprocessing"]) or math.inf for facts in (old, new)]
    modes = [facts["config"]["preprocessing"].pop("truncation_mode") for facts in (old, new)]
    masks = [facts["config"].pop("mask") for facts in (old, new)]
    defaults = [facts["config"].pop("mask_default") for facts in (old, new)]
    rows_without_loss = [facts["config"]["preprocessing"].pop("rows_without_loss") for facts in (old, new)]
    for facts in (old, new):
        facts["options"].pop("max_reject_chars")  # the others are limits
        facts.pop("tokenizer")
        facts["config"]["input"].pop("chat_template", None)
        for part, fields in recipe.AFTER_BLOCKS.items():
            for name in fields:
                facts["config"][part].pop(name, None)
        for name in ("max_seq_len", "max_packed_len"):
            facts["config"]["preprocessing"].pop(name)
    limits = [facts.pop("options") for facts in (old, new)]
    lower = cuts[1] < cuts[0] or (rows_without_loss[0] == "keep" and rows_without_loss[1] != "keep")
    lower |= limits[0].keys() != limits[1].keys() or any(limits[1][name] < limits[0][name] for name in limits[0])
    roles = {*masks[0], *masks[1]}
    if lower or json.dumps(old) != json.dumps(new) or any(len(role) >= _NAME_LIMIT for role in roles):
        return None
    rules = [{role: mask.get(role, default) for role in roles} for mask, default in zip(masks, defaults, strict=True)]
    return RowsToRecheck(
        frozenset(role for role in roles if rules[0][role] != rules[1][role]),
        defaults[0] != defaults[1],
        frozenset(roles),
        cut=cuts[0] != cuts[1] or modes[0] != modes[1],
    )


def with_words(recheck: RowsToRecheck, old: bytes, new: bytes) -> RowsToRecheck:
    """What is to be rechecked, and the rows with words of a changed chat template."""
    before, after = (_words(template.decode("utf-8", "surrogatepass")) for template in (old, new))
    return replace(recheck, words=tuple(sorted(before | after)), new_words=frozenset(before ^ after))


def _words(template: str) -> set[str]:
    """The strings of a template, and the names after its dots."""
    found, last = set(), ""
    for token in jinja2.Environment().lexer.tokenize(template):
        if token.value and (token.type == "string" or (token.type == "name" and last == "dot")):
            found.add(token.value)
        last = token.type
    return found


def _read(folder: str, *names: str) -> bytes | None:
    """A file of an output; None if it is not there."""
    try:
        return read_bytes(join(folder, *names))
    except (FileNotFoundError, NotADirectoryError):
        return None


def _command(paths: Sequence[str], output: str) -> str:
    """The command that makes everything again."""
    inputs = " ".join([*map(shlex.quote, paths), ""]) if len(paths) <= _INPUTS_SHOWN else "INPUTS "
    return f"beam-prep run {inputs}-o {shlex.quote(output)} -c CONFIG --tokenizer_path TOKENIZER --overwrite"


def _files_of(paths: Sequence[str]) -> str:
    return f"{len(paths):,} files" if len(paths) != 1 else repr(paths[0])


def _first_rejects(output: str, manifest: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Reason -> the first reject of an output. The files are read as far as it takes."""
    wanted = set(manifest["ledger"]["rejected"])
    found: dict[str, dict[str, Any]] = {}
    for file in manifest["rejects"]:
        if wanted <= found.keys():
            break
        for line in _lines(join(output, file["path"])):
            reject = json.loads(line)
            found.setdefault(reject["reason"], reject)
            if wanted <= found.keys():
                break
    return found


def _lines(path: str) -> Iterator[bytes]:
    if not is_local(path):
        yield from read_bytes(path).splitlines()
        return
    with open(path, "rb") as file:
        yield from file


def _by_reason(rejected: Mapping[str, int], first: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A line a reason: how many, and the first of them."""
    texts = []
    for reason, count in rejected.items():
        text = f"  {count:,} {reason}"
        if (example := first.get(reason)) is not None:
            text += f", the first: {example['file']}:{example['line']}"
            text += f": {example['message']}" if example["message"] else ""
        texts.append(text)
    return texts


def _counted(count: int) -> str:
    return f"{count:,} rejected record{'' if count == 1 else 's'}"
