"""Checks the first records of an input before a run: warns of probable mistakes, and chooses the encoder."""

import contextlib
import itertools
import json
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from beam_prep import recipe
from beam_prep.audit.checks import findings
from beam_prep.config import PipelineConfig
from beam_prep.data.block import InputFile
from beam_prep.data.hashing import CHUNK
from beam_prep.errors import InputError, RunError
from beam_prep.reading.decontaminate import IndexSource
from beam_prep.reading.not_text import fields_of_files
from beam_prep.reading.records import Records
from beam_prep.reading.verdicts import verdicts, warning_of
from beam_prep.runners import plain_size
from beam_prep.sample.sample import Sample, sample_of, with_roles_of_others
from beam_prep.shards.report import ConfigView
from beam_prep.storage.inputs import advice_on, check_heads
from beam_prep.storage.splits import first_records, is_stream, records_at
from beam_prep.tokens.backends import Backend, choose
from beam_prep.tokens.tokenizer import Tokenizer

log = logging.getLogger("beam_prep")

REFERENCE_ALONE = 2_000_000
"""Bytes of input that the reference encodes faster than another backend can be loaded and compared."""
_GROUPS_PROBED = 16
"""Most groups of inputs whose first records are checked before a run: each opens a file. The run checks blocks of all
groups by sample."""
_FILES_PROBED = 16
_PROBE_BYTES = 4 * CHUNK
_PROBES = 64
_PROBE_CHARACTERS = 4096  # a line may have any length, and start-up should be fast


@dataclass(frozen=True, slots=True)
class FirstRecords:
    """The first records of each group of inputs.

    Attributes:
        config, tokenizer, inputs: of the job.
    """

    config: PipelineConfig
    tokenizer: Tokenizer
    inputs: Sequence[InputFile]

    def check_files(self) -> None:
        """Raises InputError if a file certainly cannot be read: see `check_heads`."""
        parts = self.config.parts()
        for group, members in itertools.groupby(self.inputs, lambda file: file.group):
            check_heads(list(members), parts[group or 0].input.fields)

    def warnings(self) -> list[str]:
        """Probable mistakes: bad answers that are trained, numbers as domains, certain findings of the audit."""
        found: dict[str, None] = {}
        groups = self._groups()
        samples: list[Sample] = []
        for part, files in groups[:_GROUPS_PROBED]:
            if (records := _records(files[0])) is None:
                continue
            samples.append(sample_of([records], part, self.tokenizer, files))
            rows, path, use = records.rows, files[0].path, part.field_use
            looked = [row for file in _spread(files, _FILES_PROBED // len(groups)) for row in _looked_at(file)]
            if (text := warning_of(verdicts(looked, use), len(looked))) is not None:
                more = f" and {len(files) - 1:,} more" if len(files) > 1 else ""
                found[f"{path}{more}: {text}"] = None
            found.update(dict.fromkeys(fields_of_files(looked, use.known) if use.answers else ()))
            key = part.output.domain_key
            numbers = [row[key] for row in rows if key is not None and isinstance(row.get(key), int | float)]
            if numbers:
                found[
                    f"{path}: output.domain_key {key!r} is a number or a boolean (as "
                    f"{json.dumps(numbers[0])}) in {len(numbers)} of the first {len(rows)} records: these are in the "
                    "domain '__default__'; write it as a text for a domain of its own"
                ] = None
        for sample in with_roles_of_others(samples):
            first = "the first record" if sample.count == 1 else f"the first {sample.count} records"
            for finding in findings(sample, at_start=True):
                found[f"{sample.files[0].path}: in {first}, {finding.says}; to mend it: {finding.mend}"] = None
        return list(found)

    def backend(self, wanted: Backend, references: IndexSource | None) -> Backend:
        """The backend that encodes, chosen with the first records as probes.

        Args:
            wanted: the requested backend.
            references: see `recipe.Prepare`.

        Raises:
            TokenizerError: the requested backend cannot be used.
        """
        encoded = [(part, files[0]) for part, files in self._groups() if not part.input.tokenized]
        if not encoded:
            return "transformers"
        if wanted == "auto" and plain_size(self.inputs) <= REFERENCE_ALONE:
            wanted = "transformers"
        if wanted == "transformers":
            return wanted
        texts = [
            text
            for part, file in encoded[:_GROUPS_PROBED]
            for text in _texts(file, recipe.text_steps(part, self.tokenizer, references))
        ]
        chosen, problem = choose(self.tokenizer, wanted, texts)
        if problem is not None:
            log.info("%s", problem)
        return chosen

    def with_advice(self, error: BaseException) -> BaseException:
        """The error; if a run failed by a rule, with the format of an input that is no JSONL, and how to convert it."""
        if not isinstance(error, RunError):
            return error
        advice = advice_on(self.inputs, str(error), ConfigView.of(self.config.canonical()).fields)
        return error if advice is None else RunError(f"{error}; {advice}")

    def _groups(self) -> list[tuple[PipelineConfig, list[InputFile]]]:
        """The config of each group, and its files."""
        files: dict[int, list[InputFile]] = {}
        for file in self.inputs:
            files.setdefault(file.group or 0, []).append(file)
        return [(part, files[group]) for group, part in enumerate(self.config.parts())]


def _texts(source: InputFile, steps: Iterable[Callable[[Any], Any]]) -> list[str]:
    """Texts of the first records of a file, ready to encode."""
    block: Any = _records(source)
    if block is None:
        return []
    for step in steps:
        block = step(block)
    return [text[:_PROBE_CHARACTERS] for each in block.pieces.values() for text in each.texts[:_PROBES]]


def _records(source: InputFile) -> Records | None:
    """The first records of a file; None if it has none, or cannot be read, which the run will report."""
    try:
        records = first_records(source, block_bytes=_PROBE_BYTES)
    except InputError:
        return None
    return None if records is None else records.part(range(min(len(records), _PROBES)))


def _spread(files: Sequence[InputFile], most: int) -> list[InputFile]:
    """At most `most` of the files (at least 2), evenly spaced, with the first and the last."""
    count = min(len(files), max(2, most))
    return [files[place * (len(files) - 1) // max(1, count - 1)] for place in range(count)]


def _looked_at(source: InputFile) -> list[dict[str, Any]]:
    """Records from a file's beginning, and from its middle and its end if these can be read separately."""
    places = [] if is_stream(source) else [source.size // 2, source.size - CHUNK]
    found: list[dict[str, Any]] = []
    with contextlib.suppress(InputError):  # the run will report the error
        blocks = [first_records(source, block_bytes=_PROBE_BYTES)]
        blocks += [records_at(source, 0, place // CHUNK * CHUNK, 2 * CHUNK) for place in places if place >= CHUNK]
        for rows in (block.rows for block in blocks if block is not None):
            half = min(len(rows), _PROBES // 2)
            found += rows[:half] + rows[max(half, len(rows) - half) :]
    return found
