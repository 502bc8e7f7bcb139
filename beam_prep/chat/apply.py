"""`apply_template`: records -> pieces of text."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from beam_prep.chat.checks import check_size
from beam_prep.chat.collector import TextCollector, ValueCollector
from beam_prep.chat.conversation import DIFFERENT
from beam_prep.chat.pieces import Codes
from beam_prep.chat.voice import Voice, voice_of
from beam_prep.core.data.block import Reject, step
from beam_prep.core.data.garbage import without_collector
from beam_prep.core.data.places import is_table
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
    roles: Codes[str] = {}
    from_table = is_table(records.origin.source.path)
    collectors: list[Any] = [
        ValueCollector(output) if output.kind == "value" else TextCollector(output, voice, roles, from_table)
        for output in outputs
    ]
    conversations = [each.conversations for each in collectors if each.conversations]
    size = len(records) if compared is None else compared
    sampled = frozenset(sample(records.origin.digest, len(records), size).tolist() if conversations and size else ())
    weighted = any(output.weights_name is not None for output in outputs)
    kept, domain, weights = list[int](), list[str](), list[float]()
    counters: dict[str, dict[int, int]] = {}
    characters, ledger = 0, records.ledger.copy()
    for place, (line, record) in enumerate(zip(records.line.tolist(), records.rows, strict=True)):
        for conversation in conversations:
            conversation.begin(place in sampled)
        try:
            weight = record_weight(record) if weighted else 1.0
            seen = with_prompt(record, outputs) if voice.rules.implicit_prompt else record
            rows: list[Any] = [each.row(seen) for each in collectors]
            if compared is None and any(conversation.made[DIFFERENT] for conversation in conversations):
                raise RunError(
                    f"--check full: {records.place(line)} is not what transformers gives: the rendering differs from "
                    "the template's plain one, or its turns from what prefixes show; run without it, and tell us"
                )
            if not _check(outputs, rows, collectors):
                ledger.drop(line, "empty")
                continue
        except Reject as reject:
            ledger.reject(line, reject.reason, reject.message)
            continue
        except MemoryError:
            found = f"the memory does not suffice to render {records.place(line)}"
            raise RunError(f"{found}: leave that record out") from None
        for output, each, row in zip(outputs, collectors, rows, strict=True):
            each.rows.append(row)
            if output.kind != "value":
                characters += sum([len(piece.text) for sequence in row for piece in sequence])
        check_size(characters, records)
        for conversation in conversations:
            for name, count in conversation.counted.items():
                counts = counters.setdefault(name, {})
                counts[len(kept)] = counts.get(len(kept), 0) + count
        kept.append(line)
        weights.append(weight)
        named = record.get(domain_key) if domain_key is not None else None
        domain.append(named if isinstance(named, str) else DEFAULT_DOMAIN)
    rendered = Rendered(records.origin, ledger, np.asarray(kept, np.int32), records.receipt, tuple(outputs), domain)
    rendered.made = dict(sum([conversation.made for conversation in conversations], Counter(records.made)))
    rendered.weights = np.array(weights) if weighted else None
    for name, counts in counters.items():
        rendered.counters[name] = np.zeros(len(kept), np.int64)
        rendered.counters[name][[*counts]] = [*counts.values()]
    for output, each in zip(outputs, collectors, strict=True):
        target: dict[str, Any] = rendered.values if output.kind == "value" else rendered.pieces
        target[output.name] = each.build()
    return rendered


def _check(outputs: Sequence[Output], rows: Sequence[Any], collectors: Sequence[Any]) -> bool:
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
    lists = [each for each in zip(outputs, rows, collectors, strict=True) if each[2].listed]
    if len({len(row) for _, row, _ in lists}) > 1:
        found = ", ".join(f"{len(row)} {output.name}" for output, row, _ in lists)
        raise Reject("count_mismatch", f"{found}: wanted as many of each")
    return True
