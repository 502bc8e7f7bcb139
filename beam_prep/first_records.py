"""Looks at a few records of an input before a run: warns of mistakes, chooses the encoder, estimates disk space."""

import functools
import itertools
import json
import logging
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from rich import filesize

from beam_prep import recipe
from beam_prep.audit import FIRST_CHECKS, findings, unread_fields
from beam_prep.config import PipelineConfig
from beam_prep.data.block import InputFile, Split
from beam_prep.data.hashing import CHUNK
from beam_prep.data.rendered import Rendered
from beam_prep.errors import InputError, RunError
from beam_prep.formats.cached_block import encode_block
from beam_prep.hints import counted
from beam_prep.reading.not_text import fields_of_files
from beam_prep.reading.records import Records
from beam_prep.reading.source import split_name
from beam_prep.reading.verdicts import verdicts, warning_of
from beam_prep.sample import Sample, draw, sample_of, with_roles_of_others
from beam_prep.shards.layout import Layout
from beam_prep.shards.report import ConfigView
from beam_prep.storage.files import of_tables, plain_size, total_size
from beam_prep.storage.inputs import advice_on, check_heads, first_records
from beam_prep.storage.output import Staging
from beam_prep.storage.publish import EarlierOutput
from beam_prep.storage.shipped import References
from beam_prep.storage.stores import is_local
from beam_prep.storage.token_cache import TokenCache
from beam_prep.tokens.backends import Backend, choose
from beam_prep.tokens.batch import Batch
from beam_prep.tokens.tokenizer import Tokenizer

log = logging.getLogger("beam_prep")

REFERENCE_ALONE = 2_000_000
"""Bytes of input that the reference encodes faster than another backend can be loaded and compared."""
_GROUPS_PROBED = 16
"""Most groups of inputs whose records are checked before a run. The run checks blocks of all groups by sample."""
_PROBES, _PROBE_BYTES = 64, 4 * CHUNK
"""Records of a group that are rendered and encoded before a run, and their bytes."""
LOOKED_AT, _LOOKED_AT_BYTES = 1 << 14, 8 * CHUNK
"""Records of a group whose fields are looked at, and the bytes of all groups."""
_SHOWN = 5
"""Warnings about records that are logged."""
_AMPLE = 20
"""This many times the size of the input are enough for any run: with more space, nothing is estimated."""
_PROBE_CHARACTERS = 4096  # a line may have any length, and start-up should be fast


@dataclass(frozen=True)
class FirstRecords:
    """A few records of each group of inputs.

    Attributes:
        config, tokenizer, inputs: of the job.
    """

    config: PipelineConfig
    tokenizer: Tokenizer
    inputs: Sequence[InputFile]

    def tell(self, how: str, lacks: Sequence[str], references: References | None) -> list[str]:
        """Logs what will be done, and warnings. Returns all warnings.

        Args:
            how: see `Job`.
            lacks: see `lacks_room`.
            references: the evaluation data.
        """
        log.info("%s; %s, %.1f MB", how, counted(len(self.inputs), "file"), total_size(self.inputs) / 1e6)
        of_config = [f"config: {warning}" for warning in self.config.warnings]
        of_config += [] if references is None else references.warnings
        most, longest = self.tokenizer.model_max_length, self.config.preprocessing.max_seq_len
        if most is not None and longest is not None and most < longest:
            of_config.append(
                f"tokenizer: its model_max_length is {most:,}, and preprocessing.max_seq_len is {longest:,}: rows may "
                "be longer than the model takes"
            )
        names = Counter("".join(split_name(file.path)[:2]) for file in self.inputs)
        twice = [f"{name} is read plain and compressed: leave out a copy" for name in names if names[name] > 1]
        of_inputs, of_records = [*lacks, *twice, *of_tables(self.inputs)], self.warnings()
        for warning in [f"warning: {each}" for each in of_inputs] + of_config:
            log.warning("%s", warning)
        for warning in of_records[:_SHOWN]:
            log.warning("warning: %s", warning)
        for line in unread_fields(self._samples):
            log.info("%s", line)
        if of_records:
            more = f"{len(of_records) - _SHOWN} more are in run.json; " if len(of_records) > _SHOWN else ""
            log.info("%s`beam-prep audit` of these files, config and tokenizer shows records of each", more)
        return [*of_inputs, *of_config, *of_records]

    def check_files(self) -> None:
        """Raises InputError if a file certainly cannot be read: see `check_heads`."""
        for part, files in self._groups():
            check_heads(files, part.input.fields)

    def warnings(self) -> list[str]:
        """Probable mistakes: bad answers that are trained, numbers as domains, certain findings of the audit."""
        found: dict[str, None] = {}
        groups = self._groups()
        for part, files in groups[:_GROUPS_PROBED]:
            more = f" and {len(files) - 1:,} more" if len(files) > 1 else ""
            path, use, key = f"{files[0].path}{more}", part.field_use, part.output.domain_key
            looked = [row for block in _drawn(files, LOOKED_AT, _LOOKED_AT_BYTES // len(groups)) for row in block.rows]
            if (text := warning_of(verdicts(looked, use), len(looked))) is not None:
                found[f"{path}: {text}"] = None
            found.update(dict.fromkeys(fields_of_files(looked, use.known) if use.answers else ()))
            named = dict.fromkeys(part.output.keep_fields, ("keep_fields", "the column is empty"))
            if key is not None:
                named[key] = ("domain_key", "they are in the domain '__default__'")
            for name in [name for name in named if looked and not any(name in row for row in looked)]:
                setting, so = named[name]
                found[
                    f"{path}: output.{setting} {name!r} is in none of {counted(len(looked), 'record')}: {so}; name a "
                    "field of the records, not one within another field"
                ] = None
            numbers = [row[key] for row in looked if key is not None and isinstance(row.get(key), int | float)]
            if numbers:
                found[
                    f"{path}: output.domain_key {key!r} is a number or a boolean (as {json.dumps(numbers[0])}) in "
                    f"{len(numbers)} of {len(looked)} records: these are in the domain '__default__'; write it as a "
                    "text for a domain of its own"
                ] = None
        for sample in with_roles_of_others(self._samples):
            for finding in findings(sample, FIRST_CHECKS):
                place = f"{sample.files[0].path}: in {counted(sample.count, 'record')}"
                found[f"{place}, {finding.says}; to mend it: {finding.mend}"] = None
        return list(found)

    def backend(self, wanted: Backend) -> Backend:
        """The backend that encodes, chosen with a few records as probes.

        Args:
            wanted: the requested backend.

        Raises:
            TokenizerError: the requested backend cannot be used.
        """
        small = wanted == "auto" and plain_size(self.inputs) <= REFERENCE_ALONE
        if small or wanted == "transformers" or all(part.input.tokenized for part in self.config.parts()):
            return "transformers"
        rendered = (part.rendered for sample in self._samples for part in sample.parts)
        texts = [text for block in rendered if block is not None for text in _texts(block)]
        chosen, problem = choose(self.tokenizer, wanted, texts)
        if problem is not None:
            log.info("%s", problem)
        return chosen

    def lacks_room(
        self, token_cache: TokenCache, staging: Staging, earlier: str | None, max_reject_chars: int
    ) -> list[str]:
        """Warnings about disks that will probably be too small, as far as the inputs tell.

        No room is counted for what a run may not write: blocks in an existing token cache, shards of an earlier output,
        rows that are left out.
        """
        places = [place for place in (token_cache.folder, staging.root, staging.home) if is_local(place)]
        total, compose = total_size(self.inputs), recipe.compose(self.config)
        if not places or min(map(free_bytes, places)) > _AMPLE * total:
            return []
        cached, output = sizes(self.config, self.tokenizer, self.inputs, max_reject_chars)
        fewer = compose.mix or compose.deduplicate or self.config.preprocessing.max_items is not None
        output = 0.0 if fewer or len(EarlierOutput(earlier)) else output
        runs = 0.0 if fewer or compose.shuffle is None else cached
        freed = output if token_cache.single_use else 0.0  # blocks are removed as their rows are written
        cached = 0.0 if os.path.isdir(token_cache.folder) else max(0.0, cached - freed)
        needs = [
            (token_cache.folder, "the token cache", cached),
            (staging.root, "sorted runs", runs),
            (staging.home, "the output", output),
        ]
        return lacks_room((folder, what, size * total) for folder, what, size in needs if folder in places)

    def with_advice(self, error: BaseException) -> BaseException:
        """The error; if a run failed by a rule, with the format of an input that is no JSONL, and how to convert it."""
        if not isinstance(error, RunError):
            return error
        advice = advice_on(self.inputs, str(error), ConfigView.of(self.config.canonical()).fields)
        return error if advice is None else RunError(f"{error}; {advice}")

    @functools.cached_property
    def _samples(self) -> list[Sample]:
        """The records of each group that are rendered and encoded before a run."""
        found = []
        for part, files in self._groups()[:_GROUPS_PROBED]:
            if blocks := _drawn(files):
                found.append(sample_of(blocks, part, self.tokenizer, files))
        return found

    def _groups(self) -> list[tuple[PipelineConfig, list[InputFile]]]:
        """The config of each group, and its files."""
        groups = itertools.groupby(self.inputs, lambda file: file.group)
        return [(part, [*files]) for part, (_, files) in zip(self.config.parts(), groups, strict=True)]


def _texts(block: Rendered) -> list[str]:
    """Texts of a block, ready to encode."""
    return [text[:_PROBE_CHARACTERS] for each in block.pieces.values() for text in each.texts[:_PROBES]]


def _drawn(files: Sequence[InputFile], count: int = _PROBES, size: int = _PROBE_BYTES) -> tuple[Records, ...]:
    """Blocks with a few records of some files; () if a file cannot be read, which the run will report."""
    try:
        return draw(files, count, size).blocks
    except InputError:
        return ()


# The room on disks


def sizes(
    config: PipelineConfig, tokenizer: Tokenizer, inputs: Sequence[InputFile], max_reject_chars: int
) -> tuple[float, float]:
    """(bytes in the token cache, bytes in the output) for each byte of input, estimated from the first kept records."""
    for number, source in enumerate(inputs):
        records = first_records(Split(number, source, 0, -1))
        if records is None:
            continue
        size = records.origin.bytes
        batch, layout = recipe.prepare(records, config, tokenizer), recipe.layout(config, tokenizer)
        if not len(batch):
            continue
        _, files = encode_block(batch, layout.tokens(batch), max_reject_chars, "first")
        cached = sum(len(part) for parts in files.values() for part in parts)
        return cached / size, _written(batch, config.output.storage_format, layout) / size
    return 0.0, 0.0


def _written(batch: Batch, formats: Sequence[str], layout: Layout) -> int:
    """Bytes of a block's rows in an output, about: of their values, once for each format."""
    columns = layout.columns(tuple(batch.schema.values()))
    width = {column.name: np.dtype(column.dtype).itemsize for column in columns}
    rows = layout.rows([{name: batch[name] for name in batch.schema}], columns)
    sizes = (width[name] * len(values.flat) for part, _ in rows for name, values in part.items())
    return len(formats) * sum(sizes)


def lacks_room(needs: Iterable[tuple[str, str, float]]) -> list[str]:
    """A warning for each disk with less free space than needed.

    Args:
        needs: (folder, what is written there, bytes). The same thing on the same disk is counted once.
    """
    disks: dict[int, dict[str, tuple[str, float]]] = {}
    for folder, what, size in needs:
        disks.setdefault(os.stat(_existing(folder)).st_dev, {}).setdefault(what, (folder, size))
    lines = []
    for wanted in disks.values():
        need = sum(size for _, size in wanted.values())
        free = free_bytes(next(iter(wanted.values()))[0])
        if need > free:
            listed = " and ".join(f"{what} in {folder}" for what, (folder, size) in wanted.items() if size)
            lines.append(
                f"{listed}: about {filesize.decimal(int(need))} are needed, by the first records, and "
                f"{filesize.decimal(free)} are free: make room, or give folders on other disks (--cache_dir, "
                "--staging, -o)"
            )
    return lines


def free_bytes(folder: str) -> int:
    """Free bytes on the disk of a folder, which need not exist yet."""
    return shutil.disk_usage(_existing(folder)).free


def _existing(folder: str) -> str:
    while not os.path.isdir(folder) and os.path.dirname(folder) != folder:
        folder = os.path.dirname(folder)
    return folder
