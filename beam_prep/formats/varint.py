"""Protobuf varints of arrays: 7 bits a byte, lowest first, the top bit set on all but the last byte.

Source: protobuf.dev/programming-guides/encoding, "Base 128 Varints". Negative int64 take the 10 bytes of their two's
complement.
"""

from typing import NamedTuple

import numpy as np

from beam_prep.data.ragged import Array, offsets_of, take_rows

_LIMITS = np.array([1 << (7 * size) for size in range(1, 10)], dtype=np.uint64)
_MAX_SIZE = 10
_NONE = np.zeros(0, np.int64)


def sizes(values: Array) -> Array:
    """Bytes of the varint of each value: int64 or uint64 [n] -> int64 [n]."""
    return 1 + np.searchsorted(_LIMITS, values.view(np.uint64), "right")


def put(out: Array, at: Array, values: Array) -> None:
    """Writes varints to `out`, uint8, each from its index in `at` on: int64 or uint64 `values` [n]."""
    values = values.view(np.uint64)
    while len(values):
        more = values >= 128
        out[at] = values.astype(np.uint8) & 127 | more.view(np.uint8) << 7
        if not more.all():
            at, values = at[more], values[more]
        at, values = at + 1, values >> 7


def encode(values: Array) -> tuple[Array, Array | None]:
    """The varints of `values`, one after the other.

    Args:
        values: any integers or bools [n]; uint64 from 2**63 on become the int64 of the same bits.

    Returns:
        uint8 [bytes], which may be a view of `values`; and where each varint begins and the last one ends, int64
        [n + 1], or None where each takes one byte.
    """
    least, most = (values.min(), values.max()) if len(values) else (0, 0)
    if values.dtype == bool or (least >= 0 and most < 128):
        return values.astype(np.uint8, copy=False), None
    widths = (values >= 1 << 7).view(np.uint8)
    widths += values >= 1 << 14
    widths += 1
    # Nearly all ids take up to three bytes; of what takes more, small negatives (the -100 of labels) are common.
    negative = np.flatnonzero(values < 0) if least < 0 else _NONE
    widths[negative] = _MAX_SIZE
    rare = least < -1 << 21 or most >= 1 << 21
    wide = np.flatnonzero((values < -1 << 21) | (values >= 1 << 21)) if rare else _NONE
    rest = values[wide].astype(np.int64, copy=False).view(np.uint64)
    widths[wide] = sizes(rest)
    borders = _borders(widths)
    begins = borders[:-1]
    # From its fourth byte on, a small negative is 0xFF six times, then 1.
    out = np.full(borders[-1] + 2, 0xFF, np.uint8)
    out[begins[negative] + _MAX_SIZE - 1] = 1
    put(out, begins[wide] + 3, rest >> 21)
    low = values.astype(np.uint32)
    # Without a mask every value puts a byte at each place, also after its own end. There it hits a lower place
    # of a later value, which is put later.
    for place in range(min(3, int(widths.max())) - 1, -1, -1):
        more = (widths > place + 1).view(np.uint8) << 7
        out[place:][begins] = (low >> (7 * place)).astype(np.uint8) & 127 | more
    return out[: borders[-1]], borders


_EACH_BYTE = np.uint64(0x0101010101010101)


def _borders(widths: Array) -> Array:
    """`offsets_of` of uint8 up to 31, in a third of the time: eight at a time.

    A multiplication adds to each byte of a number those below it, so that it is a sum up to there.
    """
    count = len(widths)
    eights = np.zeros(-(-count // 8), "<u8")
    eights.view(np.uint8)[:count] = widths
    sums = (eights * _EACH_BYTE).astype("<u8", copy=False).view(np.uint8).reshape(-1, 8)
    borders = np.empty(8 * len(eights) + 1, np.int64)
    borders[0] = 0
    np.add(offsets_of(sums[:, 7])[:-1, None], sums, out=borders[1:].reshape(-1, 8))
    return borders[: count + 1]


class Encoded(NamedTuple):
    """Values, and what `encode` gives for them."""

    values: Array
    body: Array
    starts: Array | None

    def borders(self, offsets: Array) -> Array:
        """Borders of rows in the bytes; `offsets`: those in the values."""
        return offsets if self.starts is None else self.starts[offsets]


def encode_rows(values: Array, offsets: Array) -> tuple[Array, Array]:
    """The varints of rows, one after the other.

    Args:
        values: of all rows, see `encode`.
        offsets: int64 [rows + 1], borders of rows in them.

    Returns:
        uint8 [bytes], which may be a view of `values`; int64 [rows + 1], borders of rows in these.
    """
    if values.dtype.kind == "i" and len(values):
        negative = values < 0
        first = _runs(negative)
        one = values.min()
        # Labels: most are -100, many in a row.
        if one < 0 and len(first) * _SHORT_RUN < len(values) and ((values == one) == negative).all():
            count = np.diff(first, append=len(values))
            others = offsets_of(np.where(negative[first], 0, count))[:-1]  # before each run
            body, starts = encode(values[~negative])
            return _encode_runs(offsets, first, negative[first], one, body, _all_starts(body, starts), others)
    encoded = Encoded(values, *encode(values))
    return encoded.body, encoded.borders(offsets)


def encode_labels(labels: Array, offsets: Array, ids: Encoded) -> tuple[Array, Array] | None:
    """`encode_rows` of labels that are the ids or one negative value, in runs: the bytes of ids are not made again.

    Args:
        labels, offsets: see `encode_rows`.
        ids: of the same rows.

    Returns:
        What `encode_rows` gives for the labels; None: they are something else.
    """
    if labels.dtype.kind != "i" or len(labels) != len(ids.values) or not len(labels) or (one := labels.min()) >= 0:
        return None
    trained = labels == ids.values
    first = _runs(trained)
    if len(first) * _SHORT_RUN >= len(labels) or not (trained | (labels == one)).all():
        return None
    return _encode_runs(offsets, first, ~trained[first], one, ids.body, _all_starts(ids.body, ids.starts), first)


_SHORT_RUN = 16


def _runs(flags: Array) -> Array:
    """int64 [runs]: the first place of each run of equal flags, of which there is at least one."""
    return np.append(0, np.flatnonzero(flags[1:] != flags[:-1]) + 1)


def _all_starts(body: Array, starts: Array | None) -> Array:
    return np.arange(len(body) + 1) if starts is None else starts


def _encode_runs(
    offsets: Array, first: Array, negative: Array, one: Array, others: Array, starts: Array, place: Array
) -> tuple[Array, Array]:
    """`encode_rows` of runs, of which some have one negative value again and again.

    Args:
        offsets: see `encode_rows`.
        first: int64 [runs], where each begins.
        negative: bool [runs], those of the negative value.
        one: that value.
        others, starts: varints of which the other runs have some that lie together, see `encode`.
        place: int64 [runs], the number of the varint in `others` with which a run begins.
    """
    count = np.diff(first, append=offsets[-1])
    taken = starts[place]
    sizes = np.where(negative, _MAX_SIZE * count, starts[place + np.where(negative, 0, count)] - taken)
    at = offsets_of(sizes)
    # The pieces that are copied: one for each run, and one for each length that a run of the negative value has.
    is_length = np.zeros(int(count[negative].max(initial=0)) + 1, bool)
    is_length[count[negative]] = True
    lengths = np.flatnonzero(is_length)
    pieces = np.concatenate([others, np.tile(encode(one[None])[0], int(lengths.sum()))])
    borders = np.concatenate([taken, starts[-1] + _MAX_SIZE * offsets_of(lengths)])
    wanted = np.arange(len(first))
    wanted[negative] = len(first) + (np.cumsum(is_length) - 1)[count[negative]]
    out = take_rows(pieces, borders, wanted)
    run = np.searchsorted(first, offsets, "right") - 1
    inside = offsets - first[run]
    of_others = starts[place[run] + np.where(negative[run], 0, inside)] - taken[run]
    return out, at[run] + np.where(negative[run], _MAX_SIZE * inside, of_others)


def decode(data: Array) -> Array:
    """uint8 [bytes] of complete varints -> int64 [n].

    Raises:
        ValueError: the last varint is cut, or one has more than 10 bytes.
    """
    last = data < 128
    if last.all():
        return data.astype(np.int64)
    if not last[-1]:
        raise ValueError("a varint is cut")
    ends = np.flatnonzero(last) + 1
    begins = np.concatenate([[0], ends[:-1]])
    widths = ends - begins
    if widths.max() > _MAX_SIZE:
        raise ValueError(f"a varint has {widths.max()} bytes, more than {_MAX_SIZE}")
    place = np.arange(len(data)) - np.repeat(begins, widths)
    bits = (data & 127).astype(np.uint64) << (7 * place).astype(np.uint64)
    return np.bitwise_or.reduceat(bits, begins).view(np.int64)
