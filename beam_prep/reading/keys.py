"""What the ledger notes of records as they are read, before an adapter changes them: digests, and metadata columns.

Digests decide a record's split, and which records are equal. Blocks keep only the digests, not the seeds and shares of
splits: another share does not make a block again.

Metadata columns are fields that are kept beside the tokens. They are read first, and written last.
"""

import hashlib
import json
import struct
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import orjson

from beam_prep.data.block import Reject, step
from beam_prep.data.ragged import Ragged
from beam_prep.data.schema import Metadata, MetadataType, metadata_column, one_each
from beam_prep.reading.adapters import work_on_each
from beam_prep.reading.records import Record, Records, check_values, describe, dumped

SPLIT, DUPLICATE = "split", "duplicate"
"""The names of the digests, see `Ledger.digests`; `duplicate` is also the reason of drops."""
NO_KEY = np.uint64(2**64 - 1)
"""The digest `split` of a record without the field `split_key`."""

Normalize = Literal["none", "whitespace", "nfkc_casefold"]


def normalized(value: Any, how: Normalize) -> Any:
    """A value with all its texts normalised, but not the keys of its objects.

    `whitespace`: runs of white space (by `str.split`) become one blank; white space at the ends is removed.
    `nfkc_casefold`: NFKC, then `str.casefold`, then NFKC, then `whitespace`.
    """
    if how == "none":
        return value
    if isinstance(value, str):
        if how == "nfkc_casefold":
            value = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", value).casefold())
        return " ".join(value.split())
    if isinstance(value, list):
        return [normalized(each, how) for each in value]
    if isinstance(value, dict):
        return {name: normalized(each, how) for name, each in value.items()}
    return value


@step
def key_records(
    records: Records,
    split: bool = False,
    split_key: str | None = None,
    reject_missing: bool = True,
    duplicate: Sequence[str] = (),
    normalize: Normalize = "none",
) -> Records:
    """Notes the digests of each record in the ledger. Rejects records without the fields that a digest needs.

    Args:
        records: the records as read.
        split: digest records for splits.
        split_key: the field that decides; None: the entire record.
        reject_missing: True: reject records without that field (`no_split_key`); False: they get the digest `NO_KEY`.
        duplicate: the fields that decide whether records are equal, of which a record needs one (`no_key`); (): records
            are not compared.
        normalize: how texts are normalised before they are compared: see `normalized`.
    """
    if records.receipt is not None:
        return records
    read = [*duplicate] if split_key is None else [split_key, *duplicate]

    def work(row: Record) -> tuple[Record, bytes]:
        if records.ledger.by_row:
            check_values(row, read)
        of_fields = _duplicate_digest(row, duplicate, normalize) if duplicate else bytes(16)
        return row, of_fields + (_split_digest(row, split_key, reject_missing) if split else bytes(8))

    left = work_on_each(records, work)
    found: Any = left.rows
    values = np.zeros((len(left.ledger.status), 3), np.uint64)
    values[left.line] = np.frombuffer(b"".join(digests for _, digests in found), "<u8").reshape(-1, 3)
    if split:
        left.ledger.digests = {**left.ledger.digests, SPLIT: values[:, 2].copy()}
    if duplicate:
        left.ledger.digests = {**left.ledger.digests, DUPLICATE: values[:, :2].copy()}
    return replace(left, rows=[row for row, _ in found])


def _split_digest(row: Record, key: str | None, reject_missing: bool) -> bytes:
    none = NO_KEY.tobytes()
    if key is None:
        content = dumped(row, sort=True)
    elif (value := row.get(key)) is not None:
        content = form(value)
    elif reject_missing:
        raise Reject("no_split_key", f"the record has no {key!r}, which decides its split")
    else:
        return none
    digest = hashlib.blake2b(content, digest_size=8).digest()
    return digest if digest != none else bytes(8)


def _duplicate_digest(row: Record, fields: Sequence[str], normalize: Normalize) -> bytes:
    values = [row.get(name) for name in fields]
    if all(value is None for value in values):
        names = " and ".join(map(repr, fields))
        raise Reject("no_key", f"the record has no {names}, by which records are compared")
    forms = [b"" if value is None else form(normalized(value, normalize)) for value in values]
    if len(forms) > 1:
        sizes = [-1 if value is None else len(each) for value, each in zip(values, forms, strict=True)]
        forms.insert(0, struct.pack(f"<{len(sizes)}q", *sizes))
    return hashlib.sha256(b"".join(forms)).digest()[:16]


def form(value: Any) -> bytes:
    """A value as bytes: equal bytes for equal values only. Texts and plain chats have a fast way."""
    if isinstance(value, str):
        return b"text " + value.encode()
    if isinstance(value, list) and value and all(map(_is_plain, value)):
        contents = [item["content"].encode() for item in value]
        sizes = np.array([len(content) for content in contents], np.int64)
        return b"".join((b"chat ", orjson.dumps([item["role"] for item in value]), sizes.tobytes(), *contents))
    return b"json " + dumped(value, sort=True)


def _is_plain(message: Any) -> bool:
    # Not `are_bare`: a user's own step may give subclasses of dict and str, which are equal to them.
    is_of_two = isinstance(message, dict) and len(message) == 2
    return is_of_two and all(isinstance(message.get(key), str) for key in ("role", "content"))


@step
def keep_fields(records: Records, fields: Mapping[str, MetadataType]) -> Records:
    """Notes fields of the records in the ledger. `CacheBlocks` makes metadata columns of them.

    In a string column, strings stay; numbers, true and false become their JSON text; an absent or null field becomes an
    empty string, which `keep_fields_missing` counts. A numeric column needs a number that its type holds: integers
    exactly, others rounded to its precision. A boolean column needs true, false, 1 or 0. Anything else rejects the
    record (`keep_fields`) if it would be kept.

    Args:
        records: the records as read.
        fields: field -> its type. Fields that an earlier step kept stay.
    """
    if records.receipt is not None:
        return records
    lines = len(records.ledger.starts)
    had = records.ledger.metadata or Metadata((), {}, np.zeros(lines, np.int64))
    values, missing, problems = dict(had.values), had.missing.copy(), dict(had.problems)
    columns = {column.name: column for column in had.columns}
    for name, kind in fields.items():
        columns[name] = metadata_column(name, kind)
        column = [row.get(name) for row in records.rows]
        found: list[Any] = []
        for line, value in zip(records.line.tolist(), column, strict=True):
            try:
                found.append(_string(value) if kind == "string" else _number(value, kind))
            except Reject as reject:
                found.append(b"" if kind == "string" else 0)
                problems.setdefault(line, f"field {name!r} is {reject.message}")
        if kind == "string":
            lengths = np.zeros(lines, np.int64)
            lengths[records.line] = list(map(len, found))
            values[name] = Ragged.from_lengths(np.frombuffer(b"".join(found), np.uint8), lengths)
            missing[records.line] += np.array([value is None for value in column], np.int64)
        else:
            numbers = np.zeros(lines, kind)
            numbers[records.line] = np.array(found, kind)
            values[name] = one_each(numbers)
    ledger = records.ledger.copy()
    ledger.metadata = Metadata(tuple(columns.values()), values, missing, problems)
    return replace(records, ledger=ledger)


def _string(value: Any) -> bytes:
    """A value of a record as UTF-8.

    Raises:
        Reject: the value is neither a string nor a number.
    """
    if type(value) is str:
        try:
            return value.encode()
        except UnicodeEncodeError:  # only a user's function makes such a string, never the parser
            raise Reject("keep_fields", "a string with half of a surrogate pair") from None
    if value is None:
        return b""
    if type(value) not in (int, float, bool):
        raise Reject("keep_fields", f"{describe(value)}, wanted a string or a number")
    if type(value) is float and not np.isfinite(value):
        raise Reject("keep_fields", f"{describe(value)}, which JSON does not have")
    return json.dumps(value).encode()


def _number(value: Any, kind: MetadataType) -> float:
    """A number of a record, converted to a type.

    Raises:
        Reject: the value is no number, or the type does not hold it.
    """
    is_bool = kind == "bool"
    is_number = type(value) in (int, float) or (is_bool and type(value) is bool)
    if not is_number or (is_bool and value not in (0, 1)):
        found = "absent or null" if value is None else describe(value)
        raise Reject("keep_fields", f"{found}, wanted {'true or false' if is_bool else f'a number ({kind})'}")
    is_float = kind.startswith("float")
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            number = np.dtype(kind).type(float(value) if is_float else value)  # a double first, as most readers do
    except (OverflowError, ValueError):
        number = np.float64("inf")
    if not np.isfinite(number) or (not is_float and number != value):
        wanted = "a number" if is_float else "an integer"
        raise Reject("keep_fields", f"{describe(value)}, wanted {wanted} that {kind} holds")
    return float(number) + 0.0 if is_float else int(number)
