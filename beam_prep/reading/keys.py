"""Digests of records, which decide a record's split, and which records are equal.

They are made from the records as read, before an adapter changes them. Blocks keep only the digests, not the seeds and
shares of splits: another share does not make a block again.
"""

import hashlib
import json
import struct
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
import orjson

from beam_prep.data.block import Reject, step
from beam_prep.reading.json_line import check_values
from beam_prep.reading.records import Records, lines_beyond_json

SPLIT, DUPLICATE = "split", "duplicate"
"""The names of the digests, see `Ledger.digests`; `duplicate` is also the reason of drops."""
NO_KEY = np.uint64(2**64 - 1)
"""The digest `split` of a record without the field `split_key`."""

Normalize = Literal["none", "whitespace", "nfkc_casefold"]


@dataclass(frozen=True, slots=True)
class Keys:
    """Which digests to make.

    Attributes:
        split: True: digest records for splits.
        split_key: the field that decides; None: the entire record.
        reject_missing: True: reject records without that field (`no_split_key`); False: they get the digest `NO_KEY`.
        duplicate: the fields that decide whether records are equal; (): records are not compared.
        normalize: how texts are normalised before they are compared: see `normalized`.

    Raises:
        ValueError: `normalize` is unknown.
    """

    split: bool = False
    split_key: str | None = None
    reject_missing: bool = True
    duplicate: tuple[str, ...] = ()
    normalize: Normalize = "none"

    def __post_init__(self) -> None:
        if self.normalize not in get_args(Normalize):
            raise ValueError(f"normalize is {self.normalize!r}, wanted one of {', '.join(get_args(Normalize))}")


def normalized(value: Any, how: Normalize) -> Any:
    """A value with all its texts normalised, but not the keys of its objects.

    `whitespace`: runs of white space (by `str.split`) become one blank; white space at the ends is removed.
    `nfkc_casefold`: NFKC, then `str.casefold`, then NFKC, then `whitespace`.
    """
    if how == "none":
        return value
    if isinstance(value, str):
        return _normal(value, how)
    if isinstance(value, list):
        values = []
        for each in value:  # no comprehensions: a level takes one frame of the stack
            values.append(normalized(each, how))
        return values
    if isinstance(value, dict):
        made = {}
        for name, each in value.items():
            made[name] = normalized(each, how)
        return made
    return value


def _normal(text: str, how: Normalize) -> str:
    if how == "nfkc_casefold":
        text = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    return " ".join(text.split())


def canonical(value: Any) -> bytes:
    """The JSON of a value with sorted keys: equal values give equal bytes."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # integers beyond 64 bits, or nested deeper than orjson writes
        return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()


@step
def key_records(records: Records, keys: Keys) -> Records:
    """Notes the digests of each record in the ledger.

    Rejects records without `split_key`, or without all fields of `duplicate` (`no_key`).
    """
    if records.receipt is not None:
        return records
    ledger, count = records.ledger.copy(), len(records.ledger.status)
    alive = np.ones(len(records), bool)
    read = [*([] if keys.split_key is None else [keys.split_key]), *keys.duplicate]
    if beyond := lines_beyond_json(ledger):
        for place, line in enumerate(records.line.tolist()):
            try:
                if line in beyond:
                    check_values(records.rows[place], read)
            except Reject as reject:
                ledger.reject(line, reject.reason, reject.message)
                alive[place] = False

    def digests(name: str, width: int, found: Iterable[bytes | Reject]) -> None:
        made = []
        for place, digest in enumerate(found):
            if isinstance(digest, Reject):
                ledger.reject(int(records.line[place]), digest.reason, digest.message)
                alive[place] = False
                digest = bytes(8 * width)
            made.append(digest)
        values = np.zeros((count, width), np.uint64)
        values[records.line] = np.frombuffer(b"".join(made), "<u8").reshape(-1, width)
        ledger.digests = {**ledger.digests, name: values[:, 0] if width == 1 else values}

    if keys.split:
        digests(SPLIT, 1, _split_digests(records, keys))
    if keys.duplicate:
        digests(DUPLICATE, 2, _duplicate_digests(records, keys))
    kept = records if alive.all() else records.keep(np.flatnonzero(alive), ledger)
    return replace(kept, ledger=ledger)


def _split_digests(records: Records, keys: Keys) -> Iterator[bytes | Reject]:
    key, none = keys.split_key, NO_KEY.tobytes()
    forms = (canonical(row) for row in records.rows) if key is None else _forms(records, key, "none")
    for form in forms:
        if form is not None:
            digest = hashlib.blake2b(form, digest_size=8).digest()
            yield digest if digest != none else bytes(8)
        elif keys.reject_missing:
            yield Reject("no_split_key", f"the record has no {key!r}, which decides its split")
        else:
            yield none


def _duplicate_digests(records: Records, keys: Keys) -> Iterator[bytes | Reject]:
    for form in _joined([_forms(records, name, keys.normalize) for name in keys.duplicate]):
        if form is not None:
            yield hashlib.sha256(form).digest()[:16]
        else:
            names = " and ".join(map(repr, keys.duplicate))
            yield Reject("no_key", f"the record has no {names}, by which records are compared")


def _joined(fields: Sequence[Iterator[bytes | None]]) -> Iterator[bytes | None]:
    """The forms of several fields, joined; None: the record has none of these fields."""
    if len(fields) == 1:
        yield from fields[0]
        return
    for forms in zip(*fields, strict=True):
        if all(form is None for form in forms):
            yield None
        else:
            sizes = [-1 if form is None else len(form) for form in forms]
            yield struct.pack(f"<{len(sizes)}q", *sizes) + b"".join(form or b"" for form in forms)


def _forms(records: Records, field: str, how: Normalize) -> Iterator[bytes | None]:
    """The `form` of a field of each record; None: the record lacks the field."""
    for row in records.rows:
        value = row.get(field)
        yield None if value is None else form(normalized(value, how))


def form(value: Any) -> bytes:
    """A value as bytes: equal bytes for equal values only. Texts and plain chats have a fast way."""
    if isinstance(value, str):
        return b"text " + value.encode()
    if isinstance(value, list) and value and all(_is_plain(item) for item in value):
        contents = [item["content"].encode() for item in value]
        sizes = np.array([len(content) for content in contents], np.int64)
        return b"".join((b"chat ", orjson.dumps([item["role"] for item in value]), sizes.tobytes(), *contents))
    return b"json " + canonical(value)


def _is_plain(message: Any) -> bool:
    return (
        isinstance(message, dict)
        and len(message) == 2
        and isinstance(message.get("role"), str)
        and isinstance(message.get("content"), str)
    )
