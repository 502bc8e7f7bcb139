"""`beam-prep audit FILES -c C --tokenizer_path T`: finds problems of data and config on a sample, before a run."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from beam_prep.audit import of_records, of_tokens
from beam_prep.audit.of_records import Finding
from beam_prep.chat.environment import asks_for_date
from beam_prep.config import PipelineConfig
from beam_prep.data.block import AnyPath
from beam_prep.errors import BeamPrepError, InputError
from beam_prep.hints import counted, some
from beam_prep.reading.sources import place_at, source_of
from beam_prep.reading.verdicts import verdicts
from beam_prep.sample import Sample, draw, opened, with_roles_of_others

SAMPLE = 2000
"""Records of the sample. A fault in one record of a hundred is missed with a chance of 2 in a billion."""

Check = Callable[[Sample], Iterable[Finding]]

FIRST_CHECKS: tuple[Check, ...] = (
    of_records.markup_of_chats,
    of_records.fields_not_read,
    of_tokens.not_written,
    of_tokens.roles_not_in_data,
    of_tokens.answers_not_trained,
    of_tokens.double_bos,
    of_tokens.double_end,
    of_tokens.roles_without_end,
)
"""A run makes these, too, on a few records: they cost little."""

CHECKS: tuple[Check, ...] = (
    *FIRST_CHECKS,
    of_records.left_out,
    of_records.bad_answers,  # a run makes this check on more records
    of_records.duplicates,
    of_records.empty_turns,
    of_records.repeated_turns,
    of_records.characters,
    of_records.control_tokens,
    of_tokens.dates,
    of_tokens.roles_not_in_mask,
    of_tokens.little_trained,
    of_tokens.config_warnings,  # a run prints these by itself
    of_tokens.no_bos,
    of_tokens.no_end,  # documents may have no end on purpose
    of_tokens.cut_off,
    of_tokens.answers_cut,
    of_tokens.prompt_not_prefix,
    of_tokens.answers_in_part,
    of_tokens.unknown_tokens,
)
"""All checks. How to add one: docs/adding.md."""


def findings(sample: Sample, checks: Iterable[Check] = CHECKS) -> list[Finding]:
    """The findings of some checks, those with the most tokens at stake first."""
    found = [finding for check in checks for finding in check(sample)]
    return sorted(found, key=lambda finding: (-finding.tokens, finding.name))


@dataclass(frozen=True, slots=True)
class Audit:
    """The result of an audit.

    Attributes:
        sample: the records, and the result of each.
        findings: the problems, those with the most tokens at stake first.
        notes: remarks that are no problems.
    """

    sample: Sample
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]

    @classmethod
    def of(cls, sample: Sample) -> "Audit":
        """The audit of a sample."""
        return cls(sample, tuple(findings(sample)), tuple(_notes(sample)))


def audit(
    inputs: Sequence[str] | str | None, config: PipelineConfig | AnyPath, tokenizer_path: AnyPath, count: int = SAMPLE
) -> dict[int | None, Audit]:
    """Finds problems of records, config and tokenizer on a sample of all files. It writes nothing.

    Args:
        inputs: paths and globs of JSONL files, as for a run.
        config: a config, or the path of its JSON file.
        tokenizer_path: a tokenizer's folder, or its name on the Hugging Face Hub.
        count: records of the sample, of each group; smaller inputs are read completely.

    Returns:
        number of a group -> its audit, for each of `input.groups` that has a record; without groups {None: audit}.

    Raises:
        ConfigError, InputError, TokenizerError: a run with these arguments would raise the same error.

    >>> found = audit("examples/data/chat.jsonl", "configs/sft_conversation.json", "examples/tokenizer")[None]
    >>> found.sample.count, found.findings
    (260, ())
    """
    if count < 1:
        raise BeamPrepError(f"--sample is {count}, wanted 1 or more records")
    config, files, tokenizer = opened(inputs, config, tokenizer_path)
    samples: dict[int | None, Sample] = {}
    for group, each in itertools.groupby(files, lambda file: file.group):
        some = list(each)
        drawn = draw(some, count)
        if drawn.count:
            samples[group] = Sample.of(drawn, config.part(group), tokenizer, some)
    if not samples:
        raise InputError(f"the input has no record: {', '.join(repr(file.path) for file in files[:3])}")
    return dict(zip(samples, map(Audit.of, with_roles_of_others([*samples.values()])), strict=True))


def unread_fields(samples: Iterable[Sample]) -> list[str]:
    """A line with the fields of records and messages that neither config nor template reads; [] without any."""
    found = (name for each in samples for name in (*of_records.unread(each), *of_tokens.keys_not_written(each)))
    names = some(map(repr, dict.fromkeys(found)), 12)
    return [f"fields that nothing reads: {names}"] if names else []


def _notes(sample: Sample) -> Iterable[str]:
    yield from unread_fields([sample])
    for found in verdicts([record for _, _, record in sample.originals()], sample.config.field_use):
        if not found.bad:
            yield str(found)
    date = sample.config.input.date
    if date is not None and asks_for_date(sample.template_source):
        yield f"the chat template writes a date, and the config says which: {date} in every row"
    if any(s.template == "message" and s.action != "mask" for spec in sample.config.outputs() for s in spec.sections):
        yield 'headers of trained messages are trained, too, with "template": true; "conversation" leaves them out'
    for path in sample.drawn.unread[:3]:
        what = "a table" if source_of(path).by_row else "compressed"
        yield f"{path} is {what}: only its beginning was read"


def as_lines(audit: Audit) -> Iterator[str]:
    """An audit as lines of text: the sample, the findings, the notes."""
    sample = audit.sample
    yield from sample.lines()
    for number, finding in enumerate(audit.findings, start=1):
        part = finding.share_of(sample.tokens)
        yield ""
        yield f"{number}. {finding.name}: {' '.join(finding.says.split())}"
        at_stake = f"{part:.1%} of the tokens are at stake" if part >= 0.0005 else "few tokens are at stake"
        yield f"   {at_stake}, in {counted(finding.records, 'record')}"
        if finding.example is not None:
            example = finding.example
            yield f"   example: {place_at(example.file, example.offset)}: {' '.join(example.text.split())}"
        yield f"   mend: {finding.mend}"
    if audit.notes:
        yield ""
        yield from (f"note: {note}" for note in audit.notes)
    yield ""
    told = f"{counted(len(audit.findings), 'finding')}; docs/audit.md says more of each"
    yield told if audit.findings else "nothing found"


def as_json(audit: Audit) -> dict[str, Any]:
    """The audit as JSON data: the same for the same input, config and tokenizer."""
    sample = audit.sample
    rows, tokens, trained = sample.kept
    return {
        "sample": {
            "records": sample.count,
            "of_about": sample.drawn.about,
            "all": sample.drawn.all,
            "files": len(sample.files),
            "rows": rows,
            "tokens": tokens,
            "trained": trained,
            "tokens_before_cutting": sample.tokens,
            "would_fail": sample.failure,
            **sample.outcomes(),
        },
        "roles": sample.roles,
        "findings": [finding.as_json(sample.tokens) for finding in audit.findings],
        "notes": list(audit.notes),
    }
