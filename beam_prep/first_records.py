"""Checks a few records of an input before a run: warns of probable mistakes, and chooses the encoder."""

import json
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from beam_prep import recipe
from beam_prep.audit import FIRST_CHECKS, findings
from beam_prep.config import PipelineConfig
from beam_prep.data.block import InputFile
from beam_prep.data.hashing import CHUNK
from beam_prep.errors import InputError, RunError
from beam_prep.reading.decontaminate import IndexSource
from beam_prep.reading.not_text import fields_of_files
from beam_prep.reading.records import Records
from beam_prep.reading.verdicts import verdicts, warning_of
from beam_prep.runners import plain_size
from beam_prep.sample import Sample, draw, sample_of, with_roles_of_others
from beam_prep.shards.report import ConfigView
from beam_prep.storage.inputs import advice_on, check_heads
from beam_prep.tokens.backends import Backend, choose
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
_PROBE_CHARACTERS = 4096  # a line may have any length, and start-up should be fast


@dataclass(frozen=True, slots=True)
class FirstRecords:
    """A few records of each group of inputs.

    Attributes:
        config, tokenizer, inputs: of the job.
    """

    config: PipelineConfig
    tokenizer: Tokenizer
    inputs: Sequence[InputFile]

    def check_files(self) -> None:
        """Raises InputError if a file certainly cannot be read: see `check_heads`."""
        for part, files in self._groups():
            check_heads(files, part.input.fields)

    def warnings(self) -> list[str]:
        """Probable mistakes: bad answers that are trained, numbers as domains, certain findings of the audit."""
        found: dict[str, None] = {}
        groups = self._groups()
        samples: list[Sample] = []
        for part, files in groups[:_GROUPS_PROBED]:
            more = f" and {len(files) - 1:,} more" if len(files) > 1 else ""
            path, use, key = f"{files[0].path}{more}", part.field_use, part.output.domain_key
            looked = [row for block in _drawn(files, LOOKED_AT, _LOOKED_AT_BYTES // len(groups)) for row in block.rows]
            if (text := warning_of(verdicts(looked, use), len(looked))) is not None:
                found[f"{path}: {text}"] = None
            found.update(dict.fromkeys(fields_of_files(looked, use.known) if use.answers else ()))
            numbers = [row[key] for row in looked if key is not None and isinstance(row.get(key), int | float)]
            if numbers:
                found[
                    f"{path}: output.domain_key {key!r} is a number or a boolean (as {json.dumps(numbers[0])}) in "
                    f"{len(numbers)} of {len(looked)} records: these are in the domain '__default__'; write it as a "
                    "text for a domain of its own"
                ] = None
            if blocks := _drawn(files):
                samples.append(sample_of(blocks, part, self.tokenizer, files))
        for sample in with_roles_of_others(samples):
            records = f"{sample.count} record{'s' * (sample.count != 1)}"
            for finding in findings(sample, FIRST_CHECKS):
                found[f"{sample.files[0].path}: in {records}, {finding.says}; to mend it: {finding.mend}"] = None
        return list(found)

    def backend(self, wanted: Backend, references: IndexSource | None) -> Backend:
        """The backend that encodes, chosen with a few records as probes.

        Args:
            wanted: the requested backend.
            references: see `recipe.Prepare`.

        Raises:
            TokenizerError: the requested backend cannot be used.
        """
        encoded = [(part, files) for part, files in self._groups() if not part.input.tokenized]
        if not encoded:
            return "transformers"
        if wanted == "auto" and plain_size(self.inputs) <= REFERENCE_ALONE:
            wanted = "transformers"
        if wanted == "transformers":
            return wanted
        texts: list[str] = []
        for part, files in encoded[:_GROUPS_PROBED]:
            steps = recipe.text_steps(part, self.tokenizer, references)
            texts += [text for block in _drawn(files) for text in _texts(block, steps)]
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


def _texts(block: Any, steps: Iterable[Callable[[Any], Any]]) -> list[str]:
    """Texts of a block, ready to encode."""
    for step in steps:
        block = step(block)
    return [text[:_PROBE_CHARACTERS] for each in block.pieces.values() for text in each.texts[:_PROBES]]


def _drawn(files: Sequence[InputFile], count: int = _PROBES, size: int = _PROBE_BYTES) -> tuple[Records, ...]:
    """Blocks with a few records of some files; () if a file cannot be read, which the run will report."""
    try:
        return draw(files, count, size).blocks
    except InputError:
        return ()
