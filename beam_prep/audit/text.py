"""An audit for a person, and as JSON."""

from collections.abc import Iterator
from typing import Any

from beam_prep.audit.audit import Audit
from beam_prep.core.data.places import at_offset
from beam_prep.core.shards.report import Findings, lines
from beam_prep.inspect.visible import VISIBLE


def as_lines(audit: Audit) -> Iterator[str]:
    """The lines of an audit: what was looked at, the findings, the notes."""
    for line in _lines(audit):
        yield line.translate(VISIBLE)  # texts of records must not control the terminal


def _lines(audit: Audit) -> Iterator[str]:
    sample = audit.sample
    rows, tokens, trained = sample.kept
    what = "all of it" if sample.drawn.all else f"of about {_rounded(sample.drawn.about):,}"
    files = len(sample.files)
    yield f"{sample.count:,} records looked at ({what}), in {_count(files, 'file')}"
    share = f" ({trained / tokens:.1%} trained)" if tokens else ""
    yield f"{rows:,} kept, {tokens:,} tokens{share}"
    for kind, reasons in sample.outcomes().items():
        if reasons:
            yield f"{kind}: {', '.join(f'{count:,} {reason}' for reason, count in reasons.items())}"
    if sample.failure is not None:
        yield f"a run on these would fail: {sample.failure}"
    yield from lines(Findings(sample.roles, tokens, trained), sample.view)
    for number, finding in enumerate(audit.findings, start=1):
        part = finding.tokens / max(1, sample.tokens)
        yield ""
        yield f"{number}. {finding.name}: {' '.join(finding.says.split())}"
        at_stake = f"{min(1.0, part):.1%} of the tokens are at stake" if part >= 0.0005 else "few tokens are at stake"
        yield f"   {at_stake}, in {_count(finding.records, 'record')}"
        if finding.example is not None:
            example = finding.example
            yield f"   example: {at_offset(example.file, example.offset)}: {' '.join(example.text.split())}"
        yield f"   mend: {finding.mend}"
    if audit.notes:
        yield ""
        yield from (f"note: {note}" for note in audit.notes)
    yield ""
    if audit.findings:
        yield f"{_count(len(audit.findings), 'finding')}; docs/audit.md says more of each"
    else:
        yield "nothing found"


def _rounded(count: int) -> int:
    """Two digits of an estimate."""
    return int(float(f"{count:.1e}"))


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
