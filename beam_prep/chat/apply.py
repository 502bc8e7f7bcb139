"""`apply_template`: records -> pieces of text."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from beam_prep.chat.checks import check_size
from beam_prep.chat.collector import TextCollector, ValueCollector
from beam_prep.chat.conversation import DIFFERENT
from beam_prep.chat.voice import Voice, voice_of
from beam_prep.core.data.block import Reject, step
from beam_prep.core.data.garbage import without_collector
from beam_prep.core.data.places import is_table
from beam_prep.core.data.ragged import Array
from beam_prep.core.data.rendered import DEFAULT_DOMAIN, Rendered
from beam_prep.core.data.sample import sample
from beam_prep.core.data.schema import Output, TextRules
from beam_prep.core.encoding.tokenizer import Tokenizer
from beam_prep.core.reading.implicit_prompt import with_prompt
from beam_prep.core.reading.loss_weights import record_weight
from beam_prep.core.reading.records import Records
from beam_prep.errors import RunError

COMPARED = 16
"""Conversations of a block that are compared with transformers' own rendering."""


def render_records(
    records: Records,
    outputs: tuple[Output, ...],
    tokenizer: Tokenizer,
    domain_key: str | None,
    rules: TextRules,
    compared: int | None = COMPARED,
) -> Rendered:
    """Renders the records of a block. For arguments see `apply_template`."""
    return apply_template(records, outputs, voice_of(outputs, tokenizer, rules), domain_key, compared)


@step
def apply_template(
    records: Records,
    outputs: Sequence[Output],
    voice: Voice,
    domain_key: str | None = None,
    compared: int | None = 0,
) -> Rendered:
    """Turns every record into pieces of text, by the sections of each output.

    A record that yields nothing is dropped (`empty`); one that yields only some of its outputs is rejected
    (`missing_source`), as is one whose lists and values differ in length (`count_mismatch`).

    Args:
        records: the block.
        outputs: what each row consists of.
        voice: renders them.
        domain_key: the record's key that names its domain.
        compared: of so many conversations of the block the text is compared with transformers' own, and the spans with
            what prefixes show; where one differs, the whole block is rendered in the plain way, see
            `ChatTemplate.render_plainly`. None: of all.

    Raises:
        RunError: of all are compared, and one differs; or the texts are much larger than the block.
    """
    with without_collector():
        rendered = _rendered(records, outputs, voice, domain_key, compared)
        if rendered.made.get(DIFFERENT):
            made = rendered.made
            rendered = _rendered(records, outputs, replace(voice, plain=True), domain_key)
            rendered.made = {**made, "blocks_rendered_plainly": 1}
    return rendered


def _rendered(
    records: Records, outputs: Sequence[Output], voice: Voice, domain_key: str | None, compared: int | None = 0
) -> Rendered:
    roles: dict[str, int] = {}
    from_table = is_table(records.origin.source.path)
    collectors: list[Any] = [
        ValueCollector(output) if output.kind == "value" else TextCollector(output, voice, roles, from_table)
        for output in outputs
    ]
    conversations = [
        each.conversations for each in collectors if isinstance(each, TextCollector) and each.conversations
    ]
    size = len(records) if compared is None else compared
    sampled = frozenset(sample(records.origin.digest, len(records), size).tolist() if conversations and size else ())
    kept: list[int] = []
    domain: list[str] = []
    weighted = any(output.weights_name is not None for output in outputs)
    weights: list[float] = []
    counted: dict[int, Counter[str]] = {}
    characters = 0
    ledger = records.ledger.copy()
    for place, (line, record) in enumerate(zip(records.line.tolist(), records.rows, strict=True)):
        for conversation in conversations:
            conversation.compares = place in sampled
            conversation.counted.clear()
        try:
            weight = record_weight(record) if weighted else 1.0
            seen = with_prompt(record, outputs) if voice.rules.implicit_prompt else record
            rows: list[Any] = [collector.row(seen) for collector in collectors]
            if compared is None and any(conversation.made[DIFFERENT] for conversation in conversations):
                raise RunError(
                    f"--check full: {records.place(line)} is not what transformers gives: the rendering differs from "
                    "the template's plain one, or its turns from what prefixes show; run without it, and tell us"
                )
            if not _check(outputs, collectors, rows):
                ledger.drop(line, "empty")
                continue
        except Reject as reject:
            ledger.reject(line, reject.reason, reject.message)
            continue
        except MemoryError:
            found = f"the memory does not suffice to render {records.place(line)}"
            raise RunError(f"{found}: leave that record out") from None
        for output, collector, row in zip(outputs, collectors, rows, strict=True):
            collector.rows.append(row)
            if output.kind != "value":
                characters += sum([len(piece.text) for sequence in row for piece in sequence])
        check_size(characters, records)
        for conversation in conversations:
            if conversation.counted:
                counted.setdefault(len(kept), Counter()).update(conversation.counted)
        kept.append(line)
        weights.append(weight)
        name = record.get(domain_key) if domain_key is not None else None
        domain.append(name if isinstance(name, str) else DEFAULT_DOMAIN)
    rendered = Rendered(records.origin, ledger, np.asarray(kept, np.int32), records.receipt, tuple(outputs), domain)
    made = Counter(records.made)
    for conversation in conversations:
        made.update(conversation.made)
    rendered.made = dict(made)
    rendered.weights = np.array(weights) if weighted else None
    rendered.counters = _counters(counted, len(kept))
    for output, collector in zip(outputs, collectors, strict=True):
        target: dict[str, Any] = rendered.values if output.kind == "value" else rendered.pieces
        target[output.name] = collector.build()
    return rendered


def _counters(counted: dict[int, Counter[str]], rows: int) -> dict[str, Array]:
    """int64 [rows] of each name."""
    found: dict[str, Array] = {}
    for row, counts in counted.items():
        for name, count in counts.items():
            found.setdefault(name, np.zeros(rows, np.int64))[row] = count
    return found


def _check(outputs: Sequence[Output], collectors: Sequence[Any], rows: Sequence[Any]) -> bool:
    """True if each output of a record has something, False if none has.

    Raises:
        Reject: only some have; or lists and values differ in length.
    """
    yielded = [any(row) if output.kind != "value" else bool(row) for output, row in zip(outputs, rows, strict=True)]
    if not any(yielded):
        return False
    if not all(yielded):
        missing = outputs[yielded.index(False)]
        names = ", ".join(repr(section.field) for section in missing.sections)
        raise Reject("missing_source", f"nothing for {missing.name!r}: {names} absent or empty")
    counts = {
        output.name: len(row)
        for output, collector, row in zip(outputs, collectors, rows, strict=True)
        if output.kind == "list" or (output.kind == "value" and collector.listed)
    }
    if len(set(counts.values())) > 1:
        found = ", ".join(f"{count} {name}" for name, count in counts.items())
        raise Reject("count_mismatch", f"{found}: wanted as many of each")
    return True
