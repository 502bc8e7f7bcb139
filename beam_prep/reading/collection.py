"""Records of a collection, which has no order -> blocks of JSON lines in the order of their digests.

All records are the lines of a virtual file, `records`: sorted by the digest of the record (with sorted keys), then by
the line. The file is cut into buckets, which are ranges of the digest, and buckets are cut into blocks. So the place of
a line and the digest of the file do not depend on buckets, blocks or the order of arrival.
"""

import enum
import hashlib
import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from datetime import date, time
from decimal import Decimal
from functools import lru_cache
from typing import Any
from uuid import UUID

import numpy as np

from beam_prep.data.block import COLLECTION, InputFile, Origin, Reject
from beam_prep.data.hashing import Node, subtree
from beam_prep.errors import InputError
from beam_prep.reading.records import MAX_DEPTH, MAX_LINE_BYTES, SHOWN_BYTES, RawBlock, Records, dumped, parse
from beam_prep.reading.source import Line, cut_lines

MOST_BUCKETS = 1 << 16
"""Leaves of the hash tree. A bucket is one or more leaves, so the digest of all records depends on no bucket."""

_DIGEST = 16
_REFUSED = b"!"


def encode_record(element: Any, max_line_bytes: int = MAX_LINE_BYTES, shown_bytes: int = SHOWN_BYTES) -> bytes:
    """An element of a collection as bytes: its digest, then its line, or why it is refused with a part of its text.

    Values that JSON lacks become texts: dates and times by `isoformat`, Beam's timestamps in RFC 3339, `Decimal` and
    `UUID` by `str`. Rows and named tuples become objects, tuples and arrays become lists.

    Args:
        element: the record.
        max_line_bytes: a longer line is refused.
        shown_bytes: bytes that are kept of a refused record's text.
    """
    found: list[Reject] = []
    if not isinstance(element, Mapping) and not hasattr(type(element), "_asdict"):
        found.append(Reject("not_an_object", f"the element is {_type(element)}, wanted a dict or a Row"))
    plain = _plain(element, found)
    if found:
        line = sorted_line = json.dumps(plain).encode()
    else:
        line, sorted_line = dumped(plain), dumped(plain, sort=True)
        if len(line) > max_line_bytes:
            found.append(Reject("line_too_long", f"the record has more than {max_line_bytes} bytes as JSON"))
    digest = hashlib.blake2b(sorted_line, digest_size=_DIGEST).digest()
    if not found:
        return digest + line
    refusal = json.dumps([found[0].reason, found[0].message]).encode()
    return digest + _REFUSED + refusal + b"\n" + line[:shown_bytes]


def _decoded(encoded: bytes) -> Line:
    """The line of an encoded record."""
    if encoded.startswith(_REFUSED, _DIGEST):
        head, _, shown = encoded[_DIGEST + len(_REFUSED) :].partition(b"\n")
        reason, message = json.loads(head)
        return shown, (reason, message)
    return encoded[_DIGEST:], None


def bucket_of(encoded: bytes, buckets: int) -> int:
    """The number of an encoded record's bucket, below `buckets`."""
    return _leaf(encoded) // (MOST_BUCKETS // buckets)


def _leaf(encoded: bytes) -> int:
    return encoded[0] << 8 | encoded[1]


def line_size(encoded: bytes) -> int:
    """Bytes of an encoded record's line in the file, with its line end."""
    head = encoded.index(b"\n", _DIGEST) + 1 if encoded.startswith(_REFUSED, _DIGEST) else _DIGEST
    return len(encoded) - head + 1


# An element -> its line


def _simpler(value: Any) -> Any:
    """A simpler value in place of one that JSON lacks.

    Raises:
        TypeError: there is none.
    """
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(type(value), "_asdict"):  # a Row of Beam, or a named tuple
        return type(value)._asdict(value)
    if isinstance(value, date | time) and value == value:  # NaT of pandas is a date, but differs from itself
        return value.isoformat()
    if hasattr(type(value), "to_rfc3339"):  # a timestamp of Beam
        return value.to_rfc3339()
    if isinstance(value, UUID) or (isinstance(value, Decimal) and value.is_finite()):
        return str(value)
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufUO":
        return value.tolist()
    raise TypeError


def _plain(value: Any, found: list[Reject], where: str = "", depth: int = 1) -> Any:
    """A value as values of JSON. What JSON cannot hold is replaced by its type's name; adds a `Reject`."""
    place = f"field {where[:100]!r}"
    while not (value is None or isinstance(value, _OF_JSON) or type(value) is tuple):
        try:
            value = _simpler(value)
        except (TypeError, ValueError, OverflowError):  # also for a timestamp out of range
            return _unfit(value, _type(value), place, found)
    if value is None or isinstance(value, bool | str):
        return value  # `parse` rejects half of a surrogate pair
    if isinstance(value, int):
        if value.bit_length() <= 1023:
            return int(value)
        found.append(Reject("bad_number", f"{place} is beyond a double"))
        return "<int>"
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else _unfit(value, f"{float(value)}", place, found)
    if depth > MAX_DEPTH:
        found.append(Reject("too_deep", f"the record is nested deeper than {MAX_DEPTH} levels"))
        return "..."
    if isinstance(value, list | tuple):
        return [_plain(each, found, f"{where}[{number}]", depth + 1) for number, each in enumerate(value)]
    made = {}
    for name, each in value.items():
        is_text = isinstance(name, str)
        # Other objects may have another text in each run.
        key = str.__str__(name) if is_text else _unfit(name, _type(name), f"a key of {place}", found)
        inside = key if is_text else "?"
        made[key] = _plain(each, found, f"{where}.{inside}" if where else inside, depth + 1)
    return made


_OF_JSON = (str, int, float, dict, list)


def _type(value: Any) -> str:
    return f"of type {type(value).__name__[:100]}"


def _unfit(value: Any, what: str, place: str, found: list[Reject]) -> str:
    message = f"{place} is {what}, which JSON cannot hold: leave it out, or make it text, before FromRecords"
    found.append(Reject("not_json", message))
    return f"<{type(value).__name__}>"


# Encoded records -> blocks


def blocks(
    group: tuple[int, Iterable[bytes]], sizes: Mapping[int, int], buckets: int, block_bytes: int
) -> Iterator[Records]:
    """The blocks of a bucket.

    Args:
        group: its number, and its records, in any order.
        sizes: bucket -> bytes of its lines, for all buckets that are not empty.
        buckets: number of buckets.
        block_bytes: bytes that the lines of a block just reach.

    Raises:
        InputError: the records do not have the sizes that were counted before.
    """
    bucket, records = group[0], sorted(group[1], reverse=True)
    found, wanted = sum(map(line_size, records)), sizes.get(bucket, 0)
    if found != wanted:
        raise InputError(
            f"a bucket of records has {found} bytes, wanted {wanted}: the source gave other records when a part of the "
            "job ran again: run again, and read data that nobody writes to (a snapshot, a table as of a time)"
        )
    nodes = _nodes(bucket, records, sizes, buckets)
    start = sum(size for other, size in sizes.items() if other < bucket)
    source = InputFile(COLLECTION, sum(sizes.values()), 0.0)
    lines = (_decoded(records.pop()) for _ in range(len(records)))  # removed, so that no record is held twice
    for _, data, refused in cut_lines(lines, block_bytes):
        said = repr([*refused]).encode("utf-8", "backslashreplace")
        digest = hashlib.sha256(b"records\n" + said + b"\n" + data).hexdigest()
        origin = Origin(0, source, start, 0, len(data), nodes, digest, refused=refused)
        start, nodes = start + len(data), ()
        yield parse(RawBlock(origin.start, len(data), 0, data, b""), origin)


def _nodes(bucket: int, records: list[bytes], sizes: Mapping[int, int], buckets: int) -> tuple[Node, ...]:
    """The digests of a bucket, of the empty buckets before it, and, for the last bucket, of those after it.

    Args:
        bucket: its number.
        records: encoded, in reverse order.
        sizes: see `blocks`.
        buckets: number of buckets.
    """
    leaves = MOST_BUCKETS // buckets
    first = bucket * leaves
    contents: dict[int, list[bytes]] = {}
    for record in reversed(records):
        contents.setdefault(first + _leaf(record) % leaves, []).append(record)
    own = subtree({place: map(_framed, content) for place, content in contents.items()}, first, leaves)
    before = max((other for other in sizes if other < bucket), default=-1)
    after = buckets if bucket == max(sizes) else bucket + 1
    empty = itertools.chain(range(before + 1, bucket), range(bucket + 1, after))
    nodes = [own, *(Node(other, own.level, _empty(leaves)) for other in empty)]
    return tuple(sorted(nodes, key=lambda node: node.index))


def _framed(record: bytes) -> bytes:
    return b"%d " % len(record) + record


@lru_cache
def _empty(leaves: int) -> bytes:
    """The digest of a bucket without records."""
    return subtree({}, 0, leaves).digest
