"""Digests of records: which split a record belongs to, and which records are equal.

Made of the records as they are read, before an adapter changes them. Only what a digest says is kept, not the seeds and
shares that decide: another share makes no block again.
"""

import hashlib
import json
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
import orjson

from beam_prep.core.data.block import Reject, step
from beam_prep.core.reading.records import Record, Records

SPLIT, DUPLICATE = "split", "duplicate"
"""The digests of a record, see `Ledger.digests`; `duplicate` is also the reason of the drops."""
NO_KEY = np.uint64(2**64 - 1)
"""The digest `split` of a record without a key."""

Normalize = Literal["none", "whitespace", "nfkc_casefold"]


@dataclass(frozen=True, slots=True)
class Keys:
    """What is digested.

    Attributes:
        split: digest records for splits.
        split_key: the field that decides; None: the entire record.
        reject_missing: reject records without that field (`no_split_key`); otherwise they have the digest `NO_KEY`.
        duplicate: the fields by which records are equal; (): they are not compared.
        normalize: what differs in their texts without making them different: see `normalized`.

    Raises:
        ValueError: `normalize` is none of those known.
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
    """A value in which all texts are normalised; keys of objects are not.

    `whitespace`: runs of what `str.split` takes for white space become one blank, those at the ends nothing.
    `nfkc_casefold`: NFKC, then `str.casefold`, then NFKC, then that.
    """
    if how == "none":
        return value
    top = [value]
    todo: list[Any] = [top]
    while todo:  # without recursion: a record may be nested deeper than Python's stack allows
        holder = todo.pop()
        for place, item in list(holder.items() if isinstance(holder, dict) else enumerate(holder)):
            if isinstance(item, str):
                holder[place] = _text(item, how)
            elif isinstance(item, dict | list):
                holder[place] = item.copy()
                todo.append(holder[place])
    return top[0]


def _text(text: str, how: Normalize) -> str:
    if how == "nfkc_casefold":
        text = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    return " ".join(text.split())


def canonical(value: Any) -> bytes:
    """The JSON of a value with its keys sorted: equal values give equal bytes."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # integers beyond 64 bits, or nested deeper than orjson writes
        return "".join(_json(value)).encode()


class _Written(str):
    """JSON, no text."""


_COMMA = _Written(",")


def _json(value: Any) -> Iterator[str]:
    """The same without recursion, as `normalized`."""
    todo = [value]
    while todo:
        item = todo.pop()
        if isinstance(item, dict):
            todo.append(_Written("}"))
            for place, name in enumerate(sorted(item, reverse=True)):
                todo += [*[_COMMA][:place], item[name], _Written(json.dumps(name, ensure_ascii=False) + ":")]
            yield "{"
        elif isinstance(item, list):
            todo.append(_Written("]"))
            for place, inner in enumerate(reversed(item)):
                todo += [*[_COMMA][:place], inner]
            yield "["
        else:
            yield item if isinstance(item, _Written) else json.dumps(item, ensure_ascii=False)


@step
def key_records(records: Records, keys: Keys) -> Records:
    """Notes the digests of each record in the ledger.

    Rejects records without `split_key`, or without any of the fields by which they are compared (`no_key`).
    """
    if records.receipt is not None:
        return records
    ledger, count = records.ledger.copy(), len(records.ledger.status)
    digests: list[tuple[str, Callable[[Record], bytes]]] = []
    if keys.split:
        digests.append((SPLIT, lambda row: _split_digest(row, keys)))
    if keys.duplicate:
        digests.append((DUPLICATE, lambda row: _duplicate_digest(row, keys)))
    found: list[list[bytes]] = [[] for _ in digests]
    alive = np.ones(len(records), bool)
    for place, row in enumerate(records.rows):
        try:
            made = [digest(row) for _, digest in digests]
        except Reject as reject:
            ledger.reject(int(records.line[place]), reject.reason, reject.message)
            alive[place] = False
        else:
            for each, value in zip(found, made, strict=True):
                each.append(value)
    kept = records if alive.all() else records.keep(np.flatnonzero(alive), ledger)
    for (name, _), each in zip(digests, found, strict=True):
        width = 1 if name == SPLIT else 2
        values = np.zeros((count, width), np.uint64)
        values[kept.line] = np.frombuffer(b"".join(each), "<u8").reshape(-1, width)
        ledger.digests = {**ledger.digests, name: values[:, 0] if name == SPLIT else values}
    return replace(kept, ledger=ledger)


def _split_digest(row: Record, keys: Keys) -> bytes:
    if keys.split_key is None:
        value: Any = row
    elif (value := row.get(keys.split_key)) is None:
        if keys.reject_missing:
            raise Reject("no_split_key", f"the record has no {keys.split_key!r}, which decides its split")
        return NO_KEY.tobytes()
    digest = hashlib.blake2b(canonical(value), digest_size=8).digest()
    return digest if digest != NO_KEY.tobytes() else bytes(8)


def _duplicate_digest(row: Record, keys: Keys) -> bytes:
    values = [row.get(name) for name in keys.duplicate]
    if all(value is None for value in values):
        names = " and ".join(map(repr, keys.duplicate))
        raise Reject("no_key", f"the record has no {names}, by which records are compared")
    return hashlib.blake2b(canonical(normalized(values, keys.normalize)), digest_size=16).digest()
