"""`Replay`: a run on the inputs of an earlier output with a new config, template or tokenizer; and what changed."""

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from apache_beam.options.pipeline_options import PipelineOptions

from beam_prep import recipe
from beam_prep.config import PipelineConfig
from beam_prep.data.block import AnyPath
from beam_prep.data.ragged import Array, Ragged
from beam_prep.data.schema import Column
from beam_prep.errors import ConfigError, FormatError, InputError, OutputError
from beam_prep.formats.manifest import MANIFEST, TOKENIZER
from beam_prep.hints import counted
from beam_prep.options import RunOptions
from beam_prep.pipeline import Pipeline, Result, set_beam_options
from beam_prep.readers.dataset import ALL, Dataset, open_dataset
from beam_prep.reading.sources import place_at
from beam_prep.storage.files import join
from beam_prep.storage.inputs import first_changed
from beam_prep.storage.output import normalise_path
from beam_prep.storage.publish import same_facts
from beam_prep.storage.stores import read_bytes
from beam_prep.storage.versions import Versions

_COMPARED = ("ids", "mask", "labels", "weights", "token_value", "value", "text")
"""Roles of columns that come only from the record, and not from its packed row."""
_DOCUMENT = np.dtype([("place", [("file", "i4"), ("offset", "i8")]), ("digest", "u8")])
_AGAIN = "make everything again: beam-prep run INPUTS -o NEW -c CONFIG --tokenizer_path TOKENIZER"


@dataclass(frozen=True, slots=True)
class RowsCompared:
    """The records that both outputs keep.

    Attributes:
        same: number of records with the same tokens, masks, labels and weights.
        changed: number of the other records.
        first: the place of the first changed record; "" if there is none.
    """

    same: int
    changed: int
    first: str


Rejects = dict[str, tuple[int, Mapping[str, Any]]]
"""Reason -> (number of rejected records, the first: `file`, `line`, `offset`, `message` and `text`)."""


def by_reason(rejects: Iterable[Mapping[str, Any]]) -> Rejects:
    """Counts rejected records."""
    found: Rejects = {}
    for reject in rejects:
        count, first = found.get(reject["reason"], (0, reject))
        found[reject["reason"]] = count + 1, first
    return found


def _listed(heading: str, rejects: Rejects) -> list[str]:
    """A heading, then a line for each reason: the number of records, and the first one. [] without rejects."""
    lines = [heading] if rejects else []
    for reason, (count, first) in rejects.items():
        message = f": {first['message']}" if first["message"] else ""
        lines.append(f"  {count:,} {reason}, the first: {first['file']}:{first['line']}{message}")
    return lines


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of a replay.

    Attributes:
        result: of the run; None: nothing was done.
        before: the ledger of the earlier output.
        after: the ledger of the new output; the earlier one if nothing was done.
        still: the records that both outputs reject.
        newly: the records that only the new output rejects.
        rows: the kept records of both outputs; None: they are not compared, see docs/replay.md.
    """

    result: Result | None
    before: dict[str, Any]
    after: dict[str, Any]
    still: Rejects = field(default_factory=dict)
    newly: Rejects = field(default_factory=dict)
    rows: RowsCompared | None = None

    def lines(self) -> list[str]:
        """What changed, and which records are still rejected, as text for people."""
        texts = ["nothing was replayed: config, template and tokenizer are those of the output"]
        if self.result is not None:
            rejected = sum(self.before["rejected"].values())
            mended = rejected - sum(count for count, _ in self.still.values())
            texts = [f"replayed: {counted(rejected, 'rejected record')}, of which {mended:,} are rejected no more"]
            before, after = _counts(self.before), _counts(self.after)
            texts += [
                f"{name}: {after[name]:,}, which were {before[name]:,}"
                for name in dict.fromkeys([*before, *after])
                if name == "kept" or before[name] != after[name]
            ]
            texts.append("kept records were not compared: docs/replay.md says what that takes")
            if self.rows is not None:
                texts[-1] = f"records that both keep: {self.rows.same:,} as they were, {self.rows.changed:,} changed"
                texts[-1] += f", the first: {self.rows.first}" if self.rows.changed else ""
        texts += _listed("rejected now, and not before:", self.newly)
        return [*texts, *(_listed("still rejected:", self.still) or ["none is still rejected"])]


def _counts(ledger: Mapping[str, Any]) -> Counter[str]:
    """The kept and dropped records of a ledger."""
    return Counter({"kept": ledger["kept"], **{f"dropped ({why})": n for why, n in ledger["dropped"].items()}})


class Replay:
    """A run on the inputs of an output that rejected records, with a new config; compares the new output with it.

    Args:
        output: the earlier output, or a folder of versions, whose latest is taken. Its manifest names the inputs.
        config: the new config, or its path; by default the earlier one.
        output_dir: the directory to make. By default, a folder of versions gets a new version (none is removed, but see
            `keep_versions` of `Pipeline`), and another output is replaced, which `overwrite` must allow.
        tokenizer_path: see `Pipeline`; by default the tokenizer that the output keeps.
        beam_options: see `Pipeline`.
        options: the other arguments of `Pipeline`, such as `overwrite`. The defaults of `block_bytes`,
            `max_reject_chars` and `max_line_bytes` are the values of the earlier run.

    Raises:
        BeamPrepError: see `Pipeline`; and an OutputError: there is no output to replay.

    >>> config = bp.PipelineConfig.from_json("configs/sft_chat.json")
    >>> replay = bp.Replay("out/pipeline", config, output_dir="out/replayed")
    >>> replay.rejected
    {}
    >>> replay.run().result is None
    True

    Attributes:
        output: the path of the earlier output.
        manifest: its manifest.
        job: the `Pipeline` that makes the new output; None if no record was rejected.
    """

    def __init__(
        self,
        output: AnyPath,
        config: PipelineConfig | AnyPath | None = None,
        *,
        output_dir: AnyPath | None = None,
        tokenizer_path: AnyPath | None = None,
        beam_options: Sequence[str] | PipelineOptions | None = None,
        **options: Any,
    ) -> None:
        set_beam_options(beam_options)
        root = normalise_path(os.fspath(output))
        latest = Versions(root).latest()
        self.output = root if latest is None else join(root, latest)
        try:
            self._before = open_dataset(self.output, split=ALL)
        except FormatError as error:
            raise OutputError(f"no output to replay: {error}") from None
        self.manifest = self._before.manifest
        if "config" not in self.manifest:
            raise OutputError(f"{output} was not made from a config, but by a chain of its own: run that again")
        self.job: Pipeline | None = None
        if not self.rejected:
            return
        target = root if output_dir is None else normalise_path(os.fspath(output_dir))
        if latest is not None and target == root:
            options.setdefault("keep_versions", len(Versions(root).names()) + 1)
        paths = [entry["path"] for entry in self.manifest["inputs"]]
        if config is None:
            config = PipelineConfig.from_dict(self.manifest["config"], f"the config in {self.output}/{MANIFEST}")
        else:
            config = recipe.read_config(config)
        had_template = self.manifest["config"]["input"].get("chat_template") is not None
        if had_template and tokenizer_path is None and config.input.chat_template is None:
            raise ConfigError(
                f"the tokenizer in {self.output} has the chat template of the earlier config, and the new config has "
                "none: pass --tokenizer_path (tokenizer_path), or name the template in the config"
            )
        limits = {name: value for name, value in self.manifest["options"].items() if name in RunOptions.model_fields}
        if "block_bytes" in self._before.run:
            limits["block_bytes"] = self._before.run["block_bytes"]
        tokenizer = join(self.output, TOKENIZER) if tokenizer_path is None else tokenizer_path
        inputs = paths if config.input.groups is None else None
        self.job = Pipeline(config, inputs, target, tokenizer, beam_options=beam_options, **{**limits, **options})
        groups = [facts.get(recipe.GROUP_FILES) for facts in (self.job.facts, self.manifest)]
        if groups[0] != groups[1] or [file.path for file in self.job.inputs] != paths:
            raise ConfigError(
                f"input.groups names other files than the {len(paths):,} that {self.output} was made of, or in other "
                f"groups; a replay reads the same inputs in the same groups: {_AGAIN}"
            )
        digest = hashlib.sha256(read_bytes(join(self.output, MANIFEST))).hexdigest()
        self.job.about = {"replay_of": {"output": self.output, "manifest_sha256": digest}}

    @property
    def rejected(self) -> dict[str, int]:
        """Number of rejected records, by reason."""
        return dict(self.manifest["ledger"]["rejected"])

    def plan(self) -> list[str]:
        """What would be replayed, as text for people.

        Raises:
            InputError: an input changed.
        """
        self._check_inputs()
        total = counted(sum(self.rejected.values()), "rejected record")
        return _listed(f"would replay {total} of {self.output}", by_reason(self._before.rejects()))

    def run(self, beam_options: Sequence[str] | PipelineOptions | None = None, *, wait: bool = True) -> Replayed:
        """Makes the new output, if a record was rejected and anything changed. For the arguments see `Pipeline.run`.

        Raises:
            InputError: an input changed.
            OutputError: the earlier output would be replaced, and `overwrite` is not set.
            BeamPrepError: see `Pipeline.run`.
        """
        ledger = self.manifest["ledger"]
        if self.job is None or same_facts(self.manifest, self.job.facts):
            return Replayed(None, ledger, ledger, by_reason(self._before.rejects()))
        self._check_inputs()
        # Read before the run, which may replace the output.
        places = {(reject["file"], reject["line"]) for reject in self._before.rejects()}
        rows = documents(self._before) if wait and self.job.config.output.provenance else None
        result = self.job.run(beam_options, wait=wait)
        if result.manifest is None:
            return Replayed(result, ledger, ledger)
        made = open_dataset(result.output, split=ALL)
        still = by_reason(each for each in made.rejects() if (each["file"], each["line"]) in places)
        newly = by_reason(each for each in made.rejects() if (each["file"], each["line"]) not in places)
        compared = None if rows is None else compare(rows, documents(made), self.manifest)
        return Replayed(result, ledger, result.manifest["ledger"], still, newly, compared)

    def _check_inputs(self) -> None:
        """Raises InputError if an input is not what the manifest says."""
        if self.job is None:
            return
        changed = first_changed(self.job.inputs, self.manifest["inputs"], lambda: self._before.run)
        if changed is not None:
            raise InputError(
                f"{changed.path!r} is not what it was for {self.output}, and a replay reads the same inputs: {_AGAIN}"
            )


def documents(dataset: Dataset) -> Array | None:
    """The place and a digest of every row, or of every document of packed rows.

    Returns:
        `_DOCUMENT` [documents], in the order of the rows; None: rows have no provenance, or packing split documents.
    """
    columns = dataset.schema
    split = dataset.manifest["totals"].get("packing", {}).get("rows_split", 0)
    if split or not {"file", "offset"} <= {column.role for column in columns}:
        return None
    return np.fromiter((found for row in dataset for found in _documents_of(row, columns)), _DOCUMENT)


def _documents_of(row: Mapping[str, Any], columns: Sequence[Column]) -> Iterator[Any]:
    named = {column.role: row[column.name] for column in columns}
    files, offsets = (np.atleast_1d(named[role]).tolist() for role in ("file", "offset"))
    places = zip(files, offsets, strict=True)
    borders = [0, *np.cumsum(named["lengths"]).tolist()] if "lengths" in named else [0, None]
    for place, start, end in zip(places, borders[:-1], borders[1:], strict=True):
        digest = hashlib.blake2b(digest_size=8)
        for column in columns:
            if column.role in _COMPARED:
                values = row[column.name]
                for part in [values.flat, values.lengths] if isinstance(values, Ragged) else [values[start:end]]:
                    digest.update(f"{column.name} {len(part)}".encode())
                    # A column may be stored with a narrower dtype than before.
                    digest.update(part.astype(np.float64 if part.dtype.kind == "f" else np.int64).tobytes())
        yield place, int.from_bytes(digest.digest(), "little")


def compare(before: Array, after: Array | None, manifest: Mapping[str, Any]) -> RowsCompared | None:
    """Compares the records that two outputs of the same inputs keep.

    Args:
        before, after: see `documents`.
        manifest: names the inputs.
    """
    if after is None:
        return None
    both = np.intersect1d(before["place"], after["place"])
    changed = np.intersect1d(both, np.setxor1d(before, after)["place"])
    first = ""
    if len(changed):
        file, offset = changed[0]["file"], int(changed[0]["offset"])
        first = place_at(manifest["inputs"][file]["path"], offset)
    return RowsCompared(len(both) - len(changed), len(changed), first)
