"""Checks of the chat template: what it does not write, and what it writes besides."""

import re
from collections.abc import Iterator

import numpy as np

from beam_prep.audit.finding import Finding, Hits
from beam_prep.audit.sample import Conversation, Sample

_DATE = re.compile(
    r"\b\d{4}-\d{2}-\d{2}\b|\b\d{1,2} (?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]* \d{4}\b|"
    r"\b(?:January|February|March|April|May|June|July|August|September|October|November|December) \d{1,2}, \d{4}\b"
)


def prints_date(sample: Sample) -> Iterator[Finding]:
    """A date in the rendering that is not in the record, and that the config does not set."""
    if sample.template is None or sample.config.input.date is not None:
        return
    hits, dates = Hits(sample, "rows"), dict[str, None]()
    for chat, text in _rendered(sample):
        if not (found := _DATE.findall(text)):
            continue
        told = chat.part.records.ledger
        raw = told.raw[told.starts[chat.line] : told.ends[chat.line]].decode("utf-8", "replace")
        own = [date for date in found if date not in raw]
        if own:
            hits.add(chat.part, chat.line, f"the template writes {own[0]!r}", len(own[0]) * sample.tokens_per_character)
            dates[own[0]] = None
    says = f"the chat template writes a date of its own into {hits.told}: {', '.join(list(dates)[:3])}"
    mend = '"input": {"chat_template": ...} without the date; or the records\' "chat_template_kwargs", if it reads them'
    yield from hits.finding("date_in_template", says, mend)


_NOT_WRITTEN = {
    "tools_not_written": (
        "the chat template does not write the tools of {}",
        '"input": {"chat_template": ...} that writes `tools` (configs/tools.jinja does), "template": "conversation"',
    ),
    "texts_not_written": (
        "the chat template does not write a content or a call of {}",
        '"input": {"chat_template": ...} that writes them, or "not_rendered": "reject"',
    ),
    "reasoning_not_written": (
        "the chat template writes no reasoning at all: not that of {}",
        '"input": {"chat_template": ...} that writes `reasoning_content`',
    ),
}


def not_written(sample: Sample) -> Iterator[Finding]:
    """Records of which the template leaves something out. Reasoning that it leaves out of history is no finding."""
    counters = [part.rendered.counters for part in sample.parts if part.rendered is not None]
    writes_reasoning = any("reasoning_written" in counts for counts in counters)
    for name, (says, mend) in _NOT_WRITTEN.items():
        hits = Hits(sample)
        for part in sample.parts:
            counts = {} if part.rendered is None else part.rendered.counters
            if part.rendered is None or name not in counts or (writes_reasoning and name == "reasoning_not_written"):
                continue
            for line in part.rendered.line[np.flatnonzero(counts[name])].tolist():
                hits.add(part, line)
        yield from hits.finding(name, says.format(hits.told), mend)


def _rendered(sample: Sample) -> Iterator[tuple[Conversation, str]]:
    """Each conversation that became text, with all texts of its row."""
    places = [
        {} if part.rendered is None else {line: row for row, line in enumerate(part.rendered.line.tolist())}
        for part in sample.parts
    ]
    for chat in sample.conversations:
        row, rendered = places[chat.part.number].get(chat.line), chat.part.rendered
        if row is None or rendered is None:
            continue
        texts = []
        for pieces in rendered.pieces.values():
            first, last = (int(pieces.sequences[pieces.rows[at]]) for at in (row, row + 1))
            texts += [pieces.texts[at] for at in range(first, last)]
        yield chat, "\n".join(texts)


CHECKS = (prints_date, not_written)
