"""The kinds of input files; and what a file of another kind is, by its first bytes, with one line of advice.

To add a kind, write a file with its `Source`, and add it to `SOURCES`.

Some other kinds are certain: no JSON begins so. Such a file is refused when it is opened (`refusal`), because all of
its records would be missing. Of others, such as CSV, the first line may be a bad line of JSONL: these are named only
when a run has failed (`guess`).
"""

import json
import re
from collections.abc import Collection

from beam_prep.data.block import ADVICE, at_offset
from beam_prep.reading.records import BOM
from beam_prep.reading.source import COMPRESSIONS, JSONList, Source, split_name
from beam_prep.reading.tables import ArrowStream, Parquet

JSONL = Source()
SOURCES: tuple[Source, ...] = (JSONList(), Parquet(), ArrowStream())


def source_of(path: str) -> Source:
    """The kind of a file, by the ending of its name; JSONL for unknown endings.

    >>> source_of("a.jsonl.gz").place(1_200), source_of("a.json").place(3)
    ('line 1,200', 'record 3')
    """
    _, ending, packed = split_name(path)
    found = (source for source in SOURCES if ending in source.endings and not (source.magic and packed))
    return next(found, JSONL)


def place_in(path: str, number: int) -> str:
    """The place of a record in a file, counted from 1: `line 1,200`; in a list or a table, `record 3` or `row 3`."""
    return source_of(path).place(number)


def place_at(path: str, offset: int) -> str:
    """A file, and where a record begins in the file, for messages: see `at_offset`."""
    return at_offset(path, offset, source_of(path).by_row)


HEAD_BYTES = 1024
"""Bytes from a file's beginning that `refusal` reads."""

GUESS_BYTES = 1024 * 1024
"""Most bytes that `guess` uses."""

_BINARY = ("a binary file (compressed, an archive, of another program?)", "unpack it, or convert it first")
_ARROW = (
    "type in Python: from pyarrow import feather, ipc; table = feather.read_table(FILE); "
    "made = ipc.new_stream('NEW.arrow', table.schema); made.write_table(table, 1024); made.close()"
)
_FIRST_BYTES = {
    b"ARROW1\0\0": ("an Arrow file (Feather)", _ARROW),
    b"version https://git-lfs": ("a Git LFS pointer, not the data", "in its folder, type: git lfs pull"),
    **dict.fromkeys(
        (
            *(b"PK\x03\x04", b"7z\xbc\xaf\x27\x1c", b"Rar!\x1a\x07", b"\xfd7zXZ\0", b"\x04\x22\x4d\x18"),
            *(b"ORC", b"SQLite format 3\0", b"\xd0\xcf\x11\xe0", b"\x89HDF\r\n\x1a\n", b"\x93NUMPY", b"Obj\x01"),
            *(b"%PDF-", b"\x80\2", b"\x80\3", b"\x80\4", b"\x80\5"),
        ),
        _BINARY,
    ),
    **dict.fromkeys(
        (b"<!doctype", b"<html", b"<?xml"),
        ("an HTML page or XML (the error message of a download?)", "download it again, or leave it out"),
    ),
}
"""First bytes -> (what the file is, what to do)."""
_PANDAS = (
    "type in Python: import pandas; pandas.read_csv(FILE, sep={!r}, dtype=str, keep_default_na=False)"
    ".to_json(NEW, orient='records', lines=True)"  # keep_default_na: else 'None' becomes null
)
_ENDINGS = {
    ".csv": ("a table (CSV)", _PANDAS.format(",")),
    ".tsv": ("a table (TSV)", _PANDAS.format("\t")),
    **dict.fromkeys((".txt", ".md"), ("plain text", 'write it as lines of {"text": ...}')),
}
_LISTED = re.compile(r'"(data|rows|records|examples|items|samples|instances|results|train|dataset)"\s*:\s*\[\s*\{')
"""A list of records within an object, under one of the usual names."""


def refusal(head: bytes, path: str) -> str | None:
    """The kind of a content that is certainly no JSONL, and what to do; None if it may be JSONL.

    Args:
        head: the first `HEAD_BYTES` of the decompressed content.
        path: the file's name. If it is compressed, the name has the ending of the compression.

    >>> print(refusal(b"version https://git-lfs", "chats.jsonl"))
    'chats.jsonl' is a Git LFS pointer, not the data, wanted JSONL: in its folder, type: git lfs pull
    """
    packed = split_name(path)[2]
    for ending, (_, magic) in COMPRESSIONS.items():
        if head.startswith(magic) and packed:
            return f"{path!r} is compressed twice: {_unpacked(path)}"
        if head.startswith(magic):
            return f"{path!r} is compressed, but its name does not end in {ending}: rename it, or unpack a .tgz"
    for source in SOURCES:
        if source.magic and head.startswith(source.magic) and source is not source_of(path):
            return _read_as(path, source.name, source.endings[0])
    if head[257:262] == b"ustar":
        return _message(path, _BINARY)
    return by_first_bytes(head, path)


def by_first_bytes(head: bytes, path: str) -> str | None:
    """The kind of a content that begins as no JSON does, and what to do; None for others."""
    start = head.removeprefix(BOM).lstrip().lower()
    kind = next(
        (kind for first, kind in _FIRST_BYTES.items() if head.startswith(first) or start.startswith(first)), None
    )
    encoding = json.detect_encoding(head)
    is_json = head.decode(encoding, "replace").lstrip("\ufeff \r\n")[:1] in ("{", "[")
    if encoding in ("utf-16", "utf-32") or (is_json and not encoding.startswith("utf-8")):  # the former have a BOM
        name = f"UTF-{encoding[4:].replace('-', '').upper()}"
        kind = (f"text in {name}", f"type: iconv -f {name} -t UTF-8 FILE > NEW")
    return None if kind is None else _message(path, kind)


def guess(head: bytes, path: str, fields: Collection[str] = ()) -> str | None:
    """The likely kind of a file that gave a run few or no records, and what to do; None if unknown.

    Args:
        head: the first `GUESS_BYTES` of its content.
        path: its name.
        fields: the fields that the config reads.
    """
    start = head.removeprefix(BOM).decode(errors="replace").lstrip()
    first, _, rest = start.partition("\n")
    if start.startswith("{'"):
        return _message(path, ("lines of Python dicts", "write json.dumps(record) in place of the record"))
    if first.startswith("[") and first.rstrip().endswith("]") and rest.lstrip().startswith("["):
        return _message(path, ("lines of JSON lists", "of conversations, type: jq -c '{messages: .}' FILE > NEW"))
    if start.startswith("[") and not isinstance(source_of(path), JSONList):
        return _read_as(path, "one JSON list", ".json")
    if start.startswith("{") and ((goes_on := _goes_on(first)) or not rest.strip()):
        if (found := _LISTED.search(start, 0, HEAD_BYTES)) and found[1] not in fields:
            what = f"one object with its records in the list {found[1]!r}"
            return _message(path, (what, f"type: jq -c '.{found[1]}[]' FILE > NEW"))
        if goes_on:
            return _message(path, ("objects that are not one a line", "type: jq -c . FILE > NEW"))
    try:
        head.decode()
    except UnicodeDecodeError as error:
        if error.reason != "unexpected end of data":  # which a part of a file may have
            return _message(path, (f"no UTF-8 (byte {error.start})", ADVICE["invalid_utf8"]))
    kind = None if start.startswith(("{", "[")) else _ENDINGS.get(split_name(path)[1])
    return None if kind is None else _message(path, kind)


def _message(path: str, kind: tuple[str, str]) -> str:
    return f"{path!r} is {kind[0]}, wanted JSONL: {kind[1]}"


def _read_as(path: str, what: str, ending: str) -> str:
    """Advice for a file that is read under another name."""
    unpack = split_name(path)[2] and ending != ".json"
    advice = _unpacked(path) if unpack else "rename it"
    return f"{path!r} is {what}, which is read from a {ending} file: {advice}"


def _unpacked(path: str) -> str:
    return f"decompress it first ({COMPRESSIONS[split_name(path)[2]][0]} -dk)"


def _goes_on(line: str) -> bool:
    """True if the object in a line does not end there, or another one follows it there."""
    try:
        return line[json.JSONDecoder().raw_decode(line)[1] :].lstrip().startswith("{")
    except json.JSONDecodeError as error:
        return error.pos >= len(line.rstrip())
    except RecursionError:
        return False
