"""Makes a `Batch`: `tokenize` encodes pieces of text; `from_rollouts` and `from_tokens` take records that have ids."""

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from beam_prep.data.block import sample, step
from beam_prep.data.ragged import Array, Ragged, characters, offsets_of, take
from beam_prep.data.rendered import UNSET, Pieces, Rendered
from beam_prep.data.schema import Column, Output
from beam_prep.reading.adapters import LeftOut, record_domain, record_weight, work_on_each
from beam_prep.reading.records import Record, Records
from beam_prep.reading.rollouts import RolloutFields, read_rollout, token_weights, tokenized
from beam_prep.tokens.backends import FastEncoder, encoder_of, name_of
from beam_prep.tokens.batch import Batch, Segments
from beam_prep.tokens.tokenizer import CharSpans, Tokenizer

Encoder = Tokenizer | FastEncoder


@dataclass(frozen=True, slots=True)
class _Encoded:
    """The pieces of an output as ids.

    Attributes:
        ids: the ids of each piece.
        start, stop: int64 [segments]: first token and one past the last of each segment, counted in its piece.
        prompted: int64, ascending: the pieces with a prompt.
        border: int64 [pieces]: length of the common prefix of a piece's ids and its prompt text's ids.
        is_prefix: bool [pieces]: the prompt's ids are the first ids of the piece.
    """

    ids: Ragged
    start: Array
    stop: Array
    prompted: Array
    border: Array
    is_prefix: Array


@step
def tokenize(rendered: Rendered, encoder: Encoder, bos_id: int | None, reference: Encoder | None = None) -> Batch:
    """Encodes every piece alone, and joins the pieces of each sequence.

    A sequence with `bos` begins with exactly one `bos_id`. If an output has no token in a row (with a template: at most
    a lone BOS), the row is dropped (`empty`), or rejected (`missing_source`) if other outputs have tokens.

    Args:
        rendered: the pieces.
        encoder: encodes them.
        bos_id: id of the BOS token.
        reference: encodes a sample, too, which is the same on every worker. If it gives other ids or places, it encodes
            the entire block.
    """
    batch = Batch(rendered.origin, rendered.ledger, rendered.line, rendered.receipt, rendered.outputs, rendered.domain)
    batch.made, batch.counters = dict(rendered.made), dict(rendered.counters)
    batch.row = rendered.row
    encoded = {name: _encode(pieces, encoder) for name, pieces in rendered.pieces.items()}
    if reference is not None:
        found = [
            _agree(each, encoded[name], reference, rendered.origin.digest) for name, each in rendered.pieces.items()
        ]
        if compared := len(set[int]().union(*(rows for rows, _ in found))):
            batch.made["compared_with_transformers"] = compared
        if not all(agreed for _, agreed in found):
            encoded = {name: _encode(pieces, reference) for name, pieces in rendered.pieces.items()}
            batch.made["blocks_encoded_again"] = 1
    enough = []
    for output in rendered.outputs:
        if output.kind == "value":
            rows = rendered.values[output.name]
            batch.columns[output.name] = rows
            batch.schema[output.name] = Column(output.name, "float32", 1, "value")
            enough.append(np.ones(len(rows), bool))
            continue
        pieces = rendered.pieces[output.name]
        ids, segments = _join(pieces, encoded[output.name], bos_id)
        if output.weights_name is not None and rendered.weights is not None:
            row = _owners(pieces.rows)[segments.sequence]
            own_weight = np.append(pieces.weights, 1)[pieces.segments["own"]]  # UNSET is -1: the last
            segments = replace(segments, weight=rendered.weights[row] * own_weight)
        if bos_id is not None:
            batch.count("double_bos", _double_bos(ids, pieces.rows, bos_id))
        rows = Ragged(ids, pieces.rows) if output.kind == "list" else ids
        batch.columns[output.name] = rows
        batch.schema[output.name] = Column(output.name, "int32", rows.depth, "ids")
        batch.segments[output.name] = segments
        batch.roles = batch.roles.with_messages(pieces.roles, rendered.line, pieces.message_roles_by_row())
        enough.append(rows.flat_lengths > (1 if output.kind == "ids" and output.has_template else 0))
    if any(len(each.prompted) for each in encoded.values()):
        _begin_after_prompts(batch, rendered, encoded)
    return _drop_empty(batch, np.array(enough))


_SAMPLED = 16
_SAMPLED_SIZE = 16_384  # characters


def _agree(pieces: Pieces, encoded: _Encoded, reference: Encoder, digest: str) -> tuple[set[int], bool]:
    """(rows of a sample of the pieces, True if the reference gives the same). Only the block decides the sample."""
    sizes = characters(pieces.texts)
    order = sample(digest, len(sizes), 4 * _SAMPLED)
    picked = order[np.cumsum(sizes[order]) <= _SAMPLED_SIZE][:_SAMPLED]
    if len(picked) == 0:
        picked = order[np.argsort(sizes[order], kind="stable")[:1]]
    picked = np.sort(picked)
    theirs = _encode(pieces.take(picked), reference)
    segments = np.isin(_owners(pieces.borders), picked)
    rows = np.searchsorted(pieces.sequences[pieces.rows], picked, "right")  # from 1 on: how many there are counts
    mine = encoded.ids.take(picked)
    pairs = [(mine.flat, theirs.ids.flat), (mine.lengths, theirs.ids.lengths)]
    pairs += [(encoded.start[segments], theirs.start), (encoded.stop[segments], theirs.stop)]
    pairs += [(encoded.border[picked], theirs.border), (encoded.is_prefix[picked], theirs.is_prefix)]
    return set(rows.tolist()), all(np.array_equal(one, other) for one, other in pairs)


def _owners(borders: Array) -> Array:
    """int64: for each member, the number of the group that has it; `borders`: of the groups."""
    return np.repeat(np.arange(len(borders) - 1), np.diff(borders))


def _begin_after_prompts(batch: Batch, rendered: Rendered, encoded: dict[str, _Encoded]) -> None:
    """Moves the begin of trained segments behind the prompt; in preference rows, behind the shorter of both borders."""
    short = np.zeros(len(batch), np.int64)
    border = np.full(len(batch), np.iinfo(np.int64).max)
    for name, each in encoded.items():
        if len(each.prompted):
            row = _owners(rendered.pieces[name].sequences)  # prompts are in rows of one sequence
            short[row[each.prompted[~each.is_prefix[each.prompted]]]] = 1
            texts = sorted(rendered.pieces[name].prompts)
            np.minimum.at(border, row[texts], each.border[texts])
    batch.count("prompt_not_prefix", short)
    for name in encoded:
        pieces, segments = rendered.pieces[name], batch.segments[name]
        owners = np.array(sorted(pieces.prompts), np.int64)
        first = pieces.borders[:-1][owners]  # the first segment of the piece, which follows the prompt
        after = first[first < pieces.borders[owners + 1]]
        start = segments.start.copy()
        start[after] += border[segments.sequence[after]]
        batch.segments[name] = replace(segments, start=np.minimum(start, segments.stop))


def _encode(pieces: Pieces, encoder: Encoder) -> _Encoded:
    part = _owners(pieces.borders)
    bounded = np.flatnonzero(pieces.segments["stop"] >= 0)
    begun = np.flatnonzero(pieces.prompt_end > 0)
    # First each segment with borders, then the last character of each prompt: their characters and their tokens.
    ends = pieces.prompt_end[begun]
    piece = np.append(part[bounded], begun)
    from_char = np.append(pieces.segments["start"][bounded], ends - 1)
    to_char = np.append(pieces.segments["stop"][bounded], ends)
    tokens = np.zeros((2, len(piece)), np.int64)
    by_piece = np.argsort(piece, kind="stable")
    apart = np.zeros(len(pieces.texts), bool)
    apart[[*pieces.parts]] = True
    parts, order = [], []
    for special, in_parts in itertools.product((False, True), repeat=2):
        chosen = (pieces.special == special) & (apart == in_parts)
        members = np.flatnonzero(chosen)
        if len(members) == 0:
            continue
        if in_parts:
            ids = encoder.encode_parts([pieces.parts[place] for place in members.tolist()], special)
        else:
            mine = by_piece[chosen[piece[by_piece]]]
            wanted = CharSpans(np.searchsorted(members, piece[mine]), from_char[mine], to_char[mine])
            ids, tokens[:, mine] = encoder.encode_spans(take(pieces.texts, members), special, wanted)
        parts.append(ids)
        order.append(members)
    encoded = Ragged.concat(parts or [Ragged.from_lists([])])
    if len(parts) > 1:
        encoded = encoded.take(np.argsort(np.concatenate(order), kind="stable"))
    start, stop = np.zeros(len(part), np.int64), encoded.lengths[part]
    start[bounded], stop[bounded] = tokens[:, : len(bounded)]
    prompted, border, is_prefix = _borders(pieces, encoded, encoder)
    # True if the prompt's last token is not also the first token behind the prompt.
    is_prefix[begun] = True
    after = pieces.borders[begun]
    followed = np.flatnonzero(after < pieces.borders[begun + 1])
    is_prefix[begun[followed]] = tokens[1, len(bounded) + followed] <= start[after[followed]]
    return _Encoded(encoded, start, stop, prompted, border, is_prefix)


def _borders(pieces: Pieces, encoded: Ragged, encoder: Encoder) -> tuple[Array, Array, Array]:
    """(pieces with a prompt, `border` and `is_prefix` of `_Encoded` for each piece).

    If the prompt is a text, they come from the longest common prefix of its ids and the piece's ids.
    """
    border, is_prefix = np.zeros(len(pieces.special), np.int64), pieces.prompt_end == 0
    owners = np.array(sorted(pieces.prompts), np.int64)
    for special in (True, False):
        chosen = owners[pieces.special[owners] == special]
        if len(chosen):
            texts = [pieces.prompts[place] for place in chosen.tolist()]
            whole = CharSpans(np.arange(len(texts)), np.zeros(len(texts), np.int64), characters(texts))
            prompts, (_, end) = encoder.encode_spans(texts, special, whole)
            border[chosen] = prompts.common(encoded.take(chosen))
            is_prefix[chosen] = border[chosen] >= end  # the tokenizer's own EOS behind a prompt is none of it
    has = pieces.prompt_end >= -1
    has[owners] = True
    return np.flatnonzero(has), border, is_prefix


def _join(pieces: Pieces, encoded: _Encoded, bos_id: int | None) -> tuple[Ragged, Segments]:
    """(ids of each sequence, with its BOS; the segments in these ids)."""
    ids, start, stop = encoded.ids, encoded.start, encoded.stop
    values: Array = ids.flat
    piece_borders = ids.offsets
    borders = piece_borders[pieces.sequences]
    part = _owners(pieces.borders)
    sequence = _owners(pieces.sequences)[part]
    added = np.zeros(len(borders) - 1, bool)
    if bos_id is not None and pieces.bos.any():
        added = pieces.bos & ~_brings_bos(pieces, values, piece_borders, borders, bos_id)
        values = np.insert(values, borders[:-1][added], np.int32(bos_id))
    before = offsets_of(added)
    shift = piece_borders[:-1][part] + before[sequence + 1]
    given = pieces.segments
    segments = Segments(
        start + shift,
        stop + shift,
        sequence,
        given["action"],
        given["role"],
        given["turn"],
        np.minimum(given["own"], 1),
        given["refused"],
        pieces.roles,
        pieces.reasons,
        kind=given["kind"].astype(np.int8),
    )
    return Ragged(values, borders + before), segments


def _brings_bos(pieces: Pieces, values: Array, piece_borders: Array, borders: Array, bos_id: int) -> Array:
    """bool [sequences]: the first token is a BOS that a template rendered (a BOS in a text section does not count)."""
    brings = np.zeros(len(borders) - 1, bool)
    filled = np.flatnonzero(np.diff(borders) > 0)
    first = borders[filled]
    piece = np.searchsorted(piece_borders, first, side="right") - 1
    role = pieces.segments["role"][pieces.borders[piece]]
    brings[filled] = (values[first] == bos_id) & (role != UNSET)
    return brings


def _double_bos(ids: Ragged, rows: Array, bos_id: int) -> Array:
    """int64 [rows]: 1 if a sequence of the row begins with two BOS."""
    long = np.flatnonzero(ids.lengths > 1)
    first = ids.offsets[:-1][long]
    double = np.zeros(len(ids), np.int64)
    double[long] = (ids.flat[first] == bos_id) & (ids.flat[first + 1] == bos_id)
    return np.minimum(np.diff(offsets_of(double)[rows]), 1)


def _drop_empty(batch: Batch, enough: Array) -> Batch:
    if enough.all():
        return batch
    text = np.array([output.kind != "value" for output in batch.outputs])
    nothing = ~enough[text].any(axis=0)
    partial = ~enough.all(axis=0) & ~nothing
    left = batch.drop(nothing, "empty")
    first = np.argmin(enough[:, ~nothing], axis=0)
    return left.reject_each(
        {
            row: ("missing_source", f"{batch.outputs[int(first[row])].name!r} has no token")
            for row in np.flatnonzero(partial[~nothing]).tolist()
        }
    )


def tokenize_with(rendered: Rendered, tokenizer: Tokenizer, backend: str, sampled: bool) -> Batch:
    """Encodes the texts of a block with a backend; `sampled`: the reference encodes a sample, too."""
    encoder = encoder_of(tokenizer, backend)
    reference = tokenizer if sampled and encoder is not tokenizer else None
    batch = tokenize(rendered, encoder, tokenizer.bos_id, reference)
    theirs = len(batch)
    if isinstance(encoder, FastEncoder) and "blocks_encoded_again" not in batch.made:
        theirs = min(encoder.fell_back, len(batch))
    for name, records in (("gigatoken", len(batch) - theirs), ("transformers", theirs)):
        if records:
            batch.made[f"encoded_by_{name}"] = records
            batch.made[f"encoder: {name_of(name)}"] = records
    return batch


# Records that are tokenised already.


@step
def from_rollouts(records: Records, fields: RolloutFields, max_id: int, domain_key: str | None = None) -> Batch:
    """The ids, masks, log probabilities, numbers and texts of each record, unchanged.

    The column of responses comes first, so its tokens measure shards. Records without any of the fields are dropped
    (`empty`). For rejects see `read_rollout`.

    Args:
        records: the records.
        fields: the names of a record's fields.
        max_id: the tokenizer's largest id.
        domain_key: the field of a record that names its domain.
    """
    return _read(records, fields.outputs, fields.columns, domain_key, lambda row: read_rollout(row, fields, max_id))


_DTYPES = {"ids": np.int32, "mask": np.uint8, "text": np.uint8, "weights": np.float32}
"""Role of a column -> type of its values until they are cast to the column's own; other values are float64."""

_Lists = Mapping[str, list[Array]]
"""Column -> its lists in a record: one, or one for each response."""


def _read(
    records: Records,
    outputs: tuple[Output, ...],
    columns: Iterable[Column],
    domain_key: str | None,
    read: Callable[[Record], _Lists | None],
) -> Batch:
    """The batch of the lists that `read` gives by column. Records for which it gives None are dropped."""

    def work(record: Record) -> tuple[_Lists, str]:
        found, domain = read(record), record_domain(record, domain_key)
        if found is None:
            raise LeftOut("empty")
        return found, domain

    left = work_on_each(records, work)
    found: Any = left.rows
    domains = [domain for _, domain in found]
    batch = Batch(left.origin, left.ledger, left.line, left.receipt, outputs, domains, made=dict(left.made))
    for column in columns:
        lists = [row[column.name] for row, _ in found]
        flat = [*itertools.chain.from_iterable(lists)]
        values = np.concatenate([np.zeros(0, _DTYPES.get(column.role, np.float64)), *flat])
        rows = Ragged.from_lengths(values, [*map(len, flat)])
        batch.columns[column.name] = Ragged.from_lengths(rows, [*map(len, lists)]) if column.depth == 2 else rows
        batch.schema[column.name] = column
    return batch


@step
def from_tokens(records: Records, output: Output, max_id: int, domain_key: str | None = None) -> Batch:
    """The ids of each record's `input_ids`, the mask from its labels or masks, and weights if the output has them.

    Records without ids are dropped (`empty`). Records with ids beyond `max_id`, the tokenizer's largest, are rejected.
    """
    assert output.mask_name is not None
    columns = [Column(output.name, "int32", 1, "ids"), Column(output.mask_name, "int32", 1, "mask", of=output.name)]
    if output.weights_name is not None:
        columns.append(Column(output.weights_name, "float32", 1, "weights", of=output.name))

    def read(record: Record) -> _Lists | None:
        row = tokenized(record, max_id)
        if row is None or not len(row[0]):
            return None
        found = [*row]
        if output.weights_name is not None:
            per_token = record_weight(record) * token_weights(record, "loss_weights", len(row[0]))
            found[1] = row[1] & (per_token > 0)
            found.append(np.where(found[1], per_token, 0).astype(np.float32))
        return {column.name: [values] for column, values in zip(columns, found, strict=True)}

    return _read(records, (output,), columns, domain_key, read)
