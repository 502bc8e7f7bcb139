"""`apply_template`: records -> pieces of text."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from beam_prep.core.data.block import Ledger, Reject, step
from beam_prep.core.data.sample import sample
from beam_prep.core.data.schema import Output
from beam_prep.core.pieces.bulk import bulk_of
from beam_prep.core.pieces.checks import check_size, most_characters
from beam_prep.core.pieces.collector import TextCollector
from beam_prep.core.pieces.compared import are_equal
from beam_prep.core.pieces.implicit_prompt import with_prompt
from beam_prep.core.pieces.rendered import DEFAULT_DOMAIN, Rendered
from beam_prep.core.pieces.values import ValueCollector
from beam_prep.core.pieces.voice import Voice
from beam_prep.core.reading.loss_weights import record_weight
from beam_prep.core.reading.records import Records


@step
def apply_template(
    records: Records, outputs: Sequence[Output], voice: Voice, domain_key: str | None = None
) -> Rendered:
    """Turns every record into pieces of text, by the sections of each output.

    A record that yields nothing is dropped (`empty`); one that yields only some of its outputs is rejected
    (`missing_source`), as is one whose lists and values differ in length (`count_mismatch`).
    """
    rendered = _rendered(records, outputs, voice, domain_key)
    if voice.reference is None:
        return rendered
    reference = replace(voice, template=voice.reference, reference=None)
    places = np.sort(sample(records.origin.digest, len(records), _SAMPLED))
    rows = [records.rows[place] for place in places.tolist()]
    # With the block's bytes, which say how large its texts may be.
    ledger = Ledger(records.ledger.raw, np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64))
    few = replace(records, rows=rows, columns=None, line=np.arange(len(rows), dtype=np.int32), ledger=ledger)
    theirs = _rendered(few, outputs, reference, domain_key)
    if not are_equal(rendered, records.line[places].tolist(), theirs, range(len(rows))):
        rendered = _rendered(replace(records, rows=[*records.rows], columns=None), outputs, reference, domain_key)
        rendered.made["blocks_rendered_again"] = 1
    rendered.made["compared_with_jinja"] = len(rows)
    return rendered


_SAMPLED = 16


def _rendered(records: Records, outputs: Sequence[Output], voice: Voice, domain_key: str | None) -> Rendered:
    roles: dict[str, int] = {}
    collectors: list[TextCollector | ValueCollector] = [
        ValueCollector(output) if output.kind == "value" else TextCollector(output, voice, roles) for output in outputs
    ]
    of_texts = [collector for collector in collectors if isinstance(collector, TextCollector)]
    kept: list[int] = []
    domain: list[str] = []
    weighted = any(output.weights_name is not None for output in outputs)
    weights: list[float] = []
    ledger = records.ledger.copy()
    made = Counter(records.made)
    countable = any(output.kind != "ids" for output in outputs)
    most = most_characters(records)
    bulk = bulk_of(records, collectors)
    rows = zip(records.line.tolist(), records.rows, strict=True) if bulk is None else bulk.others()
    for line, record in rows:
        try:
            weight = record_weight(record) if weighted else 1.0
            seen = with_prompt(record, outputs) if voice.rules.implicit_prompt else record
            yielded = [collector.add(seen) for collector in collectors]
            if all(yielded):
                if countable:
                    _check_counts(outputs, collectors)
            elif any(yielded):
                missing = next(output for output, some in zip(outputs, yielded, strict=True) if not some)
                names = ", ".join(repr(section.field) for section in missing.sections)
                raise Reject("missing_source", f"nothing for {missing.name!r}: {names} absent or empty")
        except Reject as reject:
            ledger.reject(line, reject.reason, reject.message)
        else:
            if any(yielded):
                if (characters := sum([texts.characters for texts in of_texts])) > most:
                    check_size(characters, records)
                kept.append(line)
                weights.append(weight)
                if voice.template is not None:
                    made["rendered_by_jinja" if any(c.by_jinja for c in collectors) else "rendered_by_plans"] += 1
                name = record.get(domain_key) if domain_key is not None else None
                domain.append(name if isinstance(name, str) else DEFAULT_DOMAIN)
                continue
            ledger.drop(line, "empty")
        for collector in collectors:
            collector.undo(len(kept))
    for texts in of_texts:
        made.update(texts.made)
    if bulk is not None and (lines := bulk.add()):
        if voice.template is not None:
            made["rendered_as_columns"] += len(lines)
        kept += lines
        domain += bulk.domains(domain_key)
    order = None
    if bulk is not None and (np.diff(kept) < 0).any():
        order = np.argsort(kept)
        kept, domain = sorted(kept), [domain[row] for row in order.tolist()]
    rendered = Rendered(records.origin, ledger, np.asarray(kept, np.int32), records.receipt, tuple(outputs), domain)
    rendered.made = dict(made)
    rendered.weights = np.array(weights) if weighted else None
    for output, collector in zip(outputs, collectors, strict=True):
        if isinstance(collector, TextCollector):
            rendered.pieces[output.name] = collector.build(order)
        else:
            rendered.values[output.name] = collector.build(order)
    return rendered


def _check_counts(outputs: Sequence[Output], collectors: list[Any]) -> None:
    counts = {
        output.name: collector.rows[-1] - collector.rows[-2]
        for output, collector in zip(outputs, collectors, strict=True)
        if output.kind == "list" or (output.kind == "value" and collector.listed)
    }
    if len(set(counts.values())) > 1:
        found = ", ".join(f"{count} {name}" for name, count in counts.items())
        raise Reject("count_mismatch", f"{found}: wanted as many of each")
