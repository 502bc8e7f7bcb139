"""`Batch`: rows of tokens as named ragged columns; and how pieces of text become one."""

from dataclasses import dataclass, field, replace

import numpy as np

from beam_prep.core.block import Block, Ledger
from beam_prep.core.ragged import Array, Ragged, offsets_of
from beam_prep.core.schema import Column, Output
from beam_prep.core.template import UNSET, Pieces, Rendered
from beam_prep.core.tokenizer import Encoder


@dataclass(frozen=True, slots=True)
class Segments:
    """Where each piece of an output lies in its tokens; what mask policies look at. One entry a segment in each array.

    Attributes:
        start, stop: int64, in the output's flat tokens. Segments may share a token.
        sequence: int64, the sequence that it belongs to.
        action: int8, see `template.MASK`, `TRAIN`, `BY_ROLE`.
        role: int32, index into `roles`; -1 for text sections.
        turn: int32, index of the message in its list; -1 for text sections.
        own: int8, the message's own `train` key (1, 0), -1 without.
        proven: bool, False where it is not certain that this is what the message says.
        roles: names of the roles.
    """

    start: Array
    stop: Array
    sequence: Array
    action: Array
    role: Array
    turn: Array
    own: Array
    proven: Array
    roles: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.start)

    def is_role(self, name: str) -> Array:
        """bool [segments]: the segments of that role."""
        code = self.roles.index(name) if name in self.roles else len(self.roles)
        return np.asarray(self.role == code)

    def is_last_of_role(self) -> Array:
        """bool [segments]: of the last message of its role in its sequence."""
        key = self.sequence * (len(self.roles) + 1) + self.role
        _, group = np.unique(key, return_inverse=True)
        last = np.full(group.max(initial=-1) + 1, UNSET)
        np.maximum.at(last, group, self.turn)
        return np.asarray((self.turn == last[group]) & (self.role != UNSET))


@dataclass(slots=True)
class Batch(Block):
    """Rows of tokens of a block.

    Attributes:
        outputs: what each row consists of.
        domain: one name a row.
        columns: column name -> rows. Ids are int32, masks uint8 (0, 1), labels int32, values float64, until `Shard`
            stores them with the dtypes of the config.
        schema: column name -> what it is. (`dtype` is how it is stored in the end.)
        segments: output name -> its segments; gone after BuildMask.
        counters: name -> int64 [rows], things worth counting that happened to kept rows.
    """

    outputs: tuple[Output, ...] = ()
    domain: list[str] = field(default_factory=list)
    columns: dict[str, Ragged] = field(default_factory=dict)
    schema: dict[str, Column] = field(default_factory=dict)
    segments: dict[str, Segments] = field(default_factory=dict)
    counters: dict[str, Array] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Ragged:
        return self.columns[name]

    def assign(self, column: Column, rows: Ragged) -> "Batch":
        """The batch with a column added or replaced."""
        if len(rows) != len(self):
            raise ValueError(f"column {column.name!r} has {len(rows)} rows, the batch {len(self)}")
        return self._with(columns={**self.columns, column.name: rows}, schema={**self.schema, column.name: column})

    def take(self, rows: Array) -> "Batch":
        """The rows of a bool mask [rows]. Only after BuildMask."""
        if rows.all():
            return self
        picked = np.flatnonzero(rows)
        return self._with(
            line=self.line[rows],
            domain=[self.domain[row] for row in picked.tolist()],
            columns={name: column.take(rows) for name, column in self.columns.items()},
            counters={name: counts[rows] for name, counts in self.counters.items()},
        )

    def count(self, name: str, per_row: Array) -> None:
        """Adds to a counter of kept rows."""
        if per_row.any():
            self.counters[name] = self.counters.get(name, 0) + per_row.astype(np.int64)

    def drop(self, rows: Array, reason: str) -> "Batch":
        """The batch without the rows of a bool mask, which its ledger counts as dropped."""
        left = self._without(rows)
        if left is not self:
            left.ledger.drop(self.line[rows], reason)
        return left

    def reject(self, rows: Array, reason: str, message: str) -> "Batch":
        """The batch without the rows of a bool mask, which go to the rejects."""
        left = self._without(rows)
        for line in self.line[rows].tolist():
            left.ledger.reject(line, reason, message)
        return left

    def _without(self, rows: Array) -> "Batch":
        """The other rows, with a ledger of their own: this batch may have a second consumer."""
        if not rows.any():
            return self
        left = self.take(~rows)
        left.ledger = _copy_of(self.ledger)
        return left

    def _with(self, **changes: object) -> "Batch":
        values = {name: getattr(self, name) for name in _BATCH_FIELDS}
        return Batch(**{**values, "counters": dict(self.counters), **changes})


def _copy_of(ledger: Ledger) -> Ledger:
    return replace(ledger, status=ledger.status.copy(), outcomes=list(ledger.outcomes), messages=dict(ledger.messages))


_BATCH_FIELDS = (
    "origin", "ledger", "line", "receipt", "outputs", "domain", "columns", "schema", "segments", "counters",
)  # fmt: skip


def tokenize(rendered: Rendered, encoder: Encoder, bos_id: int | None) -> Batch:
    """Encodes every piece alone and joins the pieces of each sequence.

    A sequence with `bos` begins with `bos_id`, once. Rows in which an output has no token (with a template: no more
    than one, a lone BOS) are dropped (`empty`), or rejected (`missing_source`) where other outputs have some.
    """
    batch = Batch(rendered.origin, rendered.ledger, rendered.line, rendered.receipt, rendered.outputs, rendered.domain)
    enough = []
    prompted: dict[str, dict[int, tuple[int, bool]]] = {}
    for output in rendered.outputs:
        if output.kind == "value":
            rows = rendered.values[output.name]
            batch.columns[output.name] = rows
            batch.schema[output.name] = Column(output.name, "float32", 1, "value")
            enough.append(np.ones(len(rows), bool))
            continue
        pieces = rendered.pieces[output.name]
        encoded = _encode(pieces, encoder)
        if pieces.prompts:
            prompted[output.name] = _borders(pieces, encoded[0], encoder)
        ids, segments = _join(pieces, encoded, bos_id)
        if bos_id is not None:
            batch.count("double_bos", _double_bos(ids, pieces.rows, bos_id))
        rows = Ragged(ids, pieces.rows) if output.kind == "list" else ids
        batch.columns[output.name] = rows
        batch.schema[output.name] = Column(output.name, "int32", rows.depth, "ids")
        batch.segments[output.name] = segments
        enough.append(rows.flat_lengths > (1 if output.kind == "ids" and output.has_template else 0))
    if prompted:
        _begin_behind_prompts(batch, rendered, prompted)
    return _drop_empty(batch, np.array(enough))


def _begin_behind_prompts(batch: Batch, rendered: Rendered, prompted: dict[str, dict[int, tuple[int, bool]]]) -> None:
    """Moves the start of what is trained behind the prompt; in preference rows, behind the shorter of both borders."""
    short = np.zeros(len(batch), np.int64)
    border = np.full(len(batch), np.iinfo(np.int64).max)
    for name, found in prompted.items():
        row = _row_of_piece(rendered.pieces[name])[list(found)]
        np.minimum.at(border, row, [tokens for tokens, _ in found.values()])
        short[row[[not whole for _, whole in found.values()]]] = 1
    batch.count("prompt_not_prefix", short)
    for name, found in prompted.items():
        pieces, segments = rendered.pieces[name], batch.segments[name]
        first = pieces.borders[list(found)]  # the piece's first segment is the one behind its prompt
        behind = first[(pieces.segments[first, 1] < 0) & (first < pieces.borders[np.array(list(found)) + 1])]
        start = segments.start.copy()
        start[behind] += border[segments.sequence[behind]]
        batch.segments[name] = replace(segments, start=np.minimum(start, segments.stop))


def _row_of_piece(pieces: Pieces) -> Array:
    """int64 [pieces]. Only where every row is one sequence."""
    return np.repeat(np.arange(len(pieces.sequences) - 1), np.diff(pieces.sequences))


def _encode(pieces: Pieces, encoder: Encoder) -> tuple[Ragged, Array, Array]:
    """(ids of each piece, first token and one past the last of each segment, counted in its piece).

    Equal pieces (shared prompts, short answers) are encoded once; those with character spans each by itself.
    """
    part = np.repeat(np.arange(len(pieces.texts)), np.diff(pieces.borders))
    spanned = np.zeros(len(pieces.texts), bool)
    spanned[part[pieces.segments[:, 1] >= 0]] = True
    places: dict[tuple[str, bool, int], int] = {}
    keys = zip(
        pieces.texts, pieces.special.tolist(), np.where(spanned, np.arange(len(spanned)), -1).tolist(), strict=True
    )
    index = np.array([places.setdefault(key, len(places)) for key in keys], np.int64)
    groups: dict[tuple[bool, bool], list[tuple[int, str, int]]] = {}
    for place, (text, special, piece) in enumerate(places):
        groups.setdefault((special, piece >= 0), []).append((place, text, piece))
    parts, order = [Ragged.from_lists([])], []
    start, stop = np.zeros(len(part), np.int64), np.full(len(part), -1)
    for (special, with_spans), members in groups.items():
        order += [place for place, _, _ in members]
        texts = [text for _, text, _ in members]
        if not with_spans:
            parts.append(encoder.encode(texts, special))
            continue
        owners = [slice(pieces.borders[piece], pieces.borders[piece + 1]) for _, _, piece in members]
        spans = [[(a, b) for a, b in pieces.segments[owner, :2].tolist() if b >= 0] for owner in owners]
        ids, tokens = encoder.encode_spans(texts, special, spans)
        parts.append(ids)
        for owner, found in zip(owners, tokens, strict=True):
            places_of = np.flatnonzero(pieces.segments[owner, 1] >= 0) + owner.start
            start[places_of], stop[places_of] = np.array(found, np.int64).reshape(-1, 2).T
    back = np.empty(len(order), np.int64)
    back[order] = np.arange(len(order))
    encoded = Ragged.concat(parts).take(back[index])
    whole = stop < 0
    stop[whole] = encoded.lengths[part[whole]]
    return encoded, start, stop


def _borders(pieces: Pieces, encoded: Ragged, encoder: Encoder) -> dict[int, tuple[int, bool]]:
    """For pieces with a prompt: piece -> (tokens of the longest common beginning, the prompt's ids are all of it)."""
    found = {}
    for special in (True, False):
        owners = [piece for piece in pieces.prompts if bool(pieces.special[piece]) is special]
        alone = encoder.encode([pieces.prompts[piece] for piece in owners], special)
        for number, piece in enumerate(owners):
            prompt, full = alone[number], encoded[piece]
            size = min(len(prompt), len(full))
            differs = np.flatnonzero(np.asarray(prompt)[:size] != np.asarray(full)[:size])
            border = int(differs[0]) if len(differs) else size
            found[piece] = border, border == len(prompt)
    return found


def _join(pieces: Pieces, encoded: tuple[Ragged, Array, Array], bos_id: int | None) -> tuple[Ragged, Segments]:
    """Ids of each sequence, with its BOS, and where the segments lie in them."""
    ids, start, stop = encoded
    values: Array = ids.flat
    piece_borders = ids.offsets
    borders = piece_borders[pieces.sequences]
    part = np.repeat(np.arange(len(pieces.texts)), np.diff(pieces.borders))
    sequence_of_piece = np.repeat(np.arange(len(borders) - 1), np.diff(pieces.sequences))
    sequence = sequence_of_piece[part]
    added = np.zeros(len(borders) - 1, bool)
    if bos_id is not None and pieces.bos.any():
        added = pieces.bos & ~_brings_bos(pieces, values, piece_borders, borders, bos_id)
        values = np.insert(values, borders[:-1][added], np.int32(bos_id))
    before = offsets_of(added)
    shift = piece_borders[:-1][part] + before[sequence + 1]
    _, _, action, role, turn, own, proven = pieces.segments.T
    segments = Segments(
        start + shift, stop + shift, sequence, action, role, turn, own, proven.astype(bool), pieces.roles
    )
    return Ragged(values, borders + before), segments


def _brings_bos(pieces: Pieces, values: Array, piece_borders: Array, borders: Array, bos_id: int) -> Array:
    """bool [sequences]: the first token is BOS, and a template rendered it (a text section's own does not count)."""
    brings = np.zeros(len(borders) - 1, bool)
    some = np.flatnonzero(np.diff(borders) > 0)
    first = borders[some]
    piece = np.searchsorted(piece_borders, first, side="right") - 1
    role = pieces.segments[pieces.borders[piece], 3]
    brings[some] = (values[first] == bos_id) & (role != UNSET)
    return brings


def _double_bos(ids: Ragged, rows: Array, bos_id: int) -> Array:
    """int64 [rows]: 1 where a sequence of the row begins with two BOS."""
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
    some = ~enough.all(axis=0) & ~nothing
    keep = ~(nothing | some)
    segments = {name: _take_segments(s, batch.columns[name], keep) for name, s in batch.segments.items()}
    batch.ledger = _copy_of(batch.ledger)
    batch.ledger.drop(batch.line[nothing], "empty")
    for row in np.flatnonzero(some).tolist():
        name = batch.outputs[int(np.argmin(enough[:, row]))].name
        batch.ledger.reject(int(batch.line[row]), "missing_source", f"{name!r} has no token")
    kept = batch.take(keep)
    kept.segments = segments
    return kept


def _take_segments(segments: Segments, rows: Ragged, keep: Array) -> Segments:
    """Segments of the kept rows, in the coordinates of the kept tokens."""
    lists = np.diff(rows.offsets) if isinstance(rows.values, Ragged) else np.ones(len(rows), np.int64)
    keep_sequence = np.repeat(keep, lists)
    inner = rows.values if isinstance(rows.values, Ragged) else rows
    gone = offsets_of(np.where(keep_sequence, 0, inner.lengths))
    picked = keep_sequence[segments.sequence]
    sequence = segments.sequence[picked]
    new_sequence = offsets_of(keep_sequence)[sequence]
    return Segments(
        segments.start[picked] - gone[sequence],
        segments.stop[picked] - gone[sequence],
        new_sequence,
        segments.action[picked],
        segments.role[picked],
        segments.turn[picked],
        segments.own[picked],
        segments.proven[picked],
        segments.roles,
    )
