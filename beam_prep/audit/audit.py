"""`audit`: runs all checks on a sample of the records."""

import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

from beam_prep.audit import of_records
from beam_prep.audit.checks import findings
from beam_prep.audit.finding import Finding
from beam_prep.chat.environment import asks_for_date
from beam_prep.config import PipelineConfig
from beam_prep.data.block import InputFile
from beam_prep.errors import BeamPrepError, ConfigError, InputError
from beam_prep.inspect.row import VISIBLE
from beam_prep.reading.sources import place_at, source_of
from beam_prep.reading.verdicts import verdicts
from beam_prep.recipe import inputs_of, read_config
from beam_prep.sample.draw import Drawn, draw
from beam_prep.sample.sample import Sample, with_roles_of_others
from beam_prep.storage.tokenizers import load_tokenizer
from beam_prep.tokens.tokenizer import Tokenizer

SAMPLE = 2000
"""Records of the sample. A fault in one record of a hundred is missed with a chance of 2 in a billion."""


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


def audit(
    inputs: Sequence[str] | str,
    config: PipelineConfig | str | os.PathLike[str],
    tokenizer_path: str | os.PathLike[str],
    count: int = SAMPLE,
) -> Audit:
    """Finds problems of records, config and tokenizer on a sample of all files. It writes nothing.

    For a config with groups of inputs, see `audit_groups`.

    Args:
        inputs: paths and globs of JSONL files, as for a run.
        config: a config, or the path of its JSON file.
        tokenizer_path: a tokenizer's folder, or its name on the Hugging Face Hub.
        count: records of the sample; smaller inputs are read completely.

    Raises:
        ConfigError, InputError, TokenizerError: a run with these arguments would raise the same error.

    >>> found = audit("examples/data/chat.jsonl", "configs/sft_conversation.json", "examples/tokenizer")
    >>> found.sample.count, found.findings
    (260, ())
    """
    found = audit_groups(inputs, config, tokenizer_path, count)
    if None not in found:
        raise ConfigError(f"found {len(found)} groups of inputs, each of which has an audit: call audit_groups")
    return found[None]


def audit_groups(
    inputs: Sequence[str] | str | None,
    config: PipelineConfig | str | os.PathLike[str],
    tokenizer_path: str | os.PathLike[str],
    count: int = SAMPLE,
) -> dict[int | None, Audit]:
    """Number of a group -> its audit, for each of `input.groups`; {None: audit} without groups.

    For arguments and errors see `audit`. Each group has a sample of `count` records. Groups without a record are left
    out.
    """
    if count < 1:
        raise BeamPrepError(f"--sample is {count}, wanted 1 or more records")
    if not isinstance(config, PipelineConfig):
        config = read_config(config)
    files = inputs_of(config, inputs)
    tokenizer = load_tokenizer(tokenizer_path)
    config.check_vocabulary(tokenizer.max_id)
    samples: dict[int | None, tuple[Sample, str | None]] = {}
    for group, each in itertools.groupby(files, lambda file: file.group):
        some = list(each)
        drawn = draw(some, count)
        if drawn.count:
            samples[group] = _sample(drawn, some, config.part(group), tokenizer)
    if not samples:
        raise _no_record(files)
    groups = zip(samples, with_roles_of_others([sample for sample, _ in samples.values()]), strict=True)
    return {group: _checked(sample, samples[group][1]) for group, sample in groups}


def audit_of(drawn: Drawn, files: Sequence[InputFile], config: PipelineConfig, tokenizer: Tokenizer) -> Audit:
    """The audit of records that were drawn."""
    return _checked(*_sample(drawn, files, config, tokenizer))


def _no_record(files: Sequence[InputFile]) -> InputError:
    return InputError(f"the input has no record: {', '.join(repr(file.path) for file in files[:3])}")


def _sample(
    drawn: Drawn, files: Sequence[InputFile], config: PipelineConfig, tokenizer: Tokenizer
) -> tuple[Sample, str | None]:
    """(the sample, the date that the config should set; None: no date is needed)."""
    config, today = _with_date(config, tokenizer)
    return Sample.of(drawn, config, tokenizer, files), today


def _checked(sample: Sample, today: str | None) -> Audit:
    found = findings(sample)
    if today is not None:
        found.insert(0, _wants_date(sample, today))
    return Audit(sample, tuple(found), tuple(_notes(sample)))


def _with_date(config: PipelineConfig, tokenizer: Tokenizer) -> tuple[PipelineConfig, str | None]:
    """(config with today's date, today) if the template asks for a date that the config lacks; else (config, None)."""
    source = tokenizer.template_source(config.input.chat_template) or ""
    templated = any(spec.has_template for spec in config.outputs())
    if not templated or config.input.date is not None or not asks_for_date(source):
        return config, None
    today = date.today().isoformat()
    return config.model_copy(update={"input": config.input.model_copy(update={"date": today})}), today


def _wants_date(sample: Sample, today: str) -> Finding:
    says = "the chat template writes today's date (strftime_now): another day would give other bytes, so no run begins"
    mend = f'"input": {{"date": "{today}"}}'
    return Finding("date_wanted", says, 1, "templates", sample.count, sample.tokens, mend)


def _notes(sample: Sample) -> Iterable[str]:
    if names := of_records.unread(sample):
        more = f" and {len(names) - 12} more" if len(names) > 12 else ""
        yield f"fields that the config does not read: {', '.join(map(repr, names[:12]))}{more}"
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
    for line in _lines(audit):
        yield line.translate(VISIBLE)  # texts of records must not control the terminal


def _lines(audit: Audit) -> Iterator[str]:
    sample = audit.sample
    yield from sample.lines()
    for number, finding in enumerate(audit.findings, start=1):
        part = finding.tokens / max(1, sample.tokens)
        yield ""
        yield f"{number}. {finding.name}: {' '.join(finding.says.split())}"
        at_stake = f"{min(1.0, part):.1%} of the tokens are at stake" if part >= 0.0005 else "few tokens are at stake"
        yield f"   {at_stake}, in {_count(finding.records, 'record')}"
        if finding.example is not None:
            example = finding.example
            yield f"   example: {place_at(example.file, example.offset)}: {' '.join(example.text.split())}"
        yield f"   mend: {finding.mend}"
    if audit.notes:
        yield ""
        yield from (f"note: {note}" for note in audit.notes)
    yield ""
    if audit.findings:
        yield f"{_count(len(audit.findings), 'finding')}; docs/audit.md says more of each"
    else:
        yield "nothing found"


def _count(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


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
