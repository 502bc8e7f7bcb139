"""Inputs that are no JSONL: finds a file's format by its first bytes, and the command that converts it to JSONL.

Some formats are certain: no JSON begins so. Such a file is refused when it is opened (`refusal`), because all of its
records would be missing. Of others, such as CSV, the first line may be a bad line of JSONL: these are named only when a
run has failed (`guess`).
"""

import csv
import json
import os
import re
import shlex
from collections.abc import Collection
from string import Template
from typing import Any, NamedTuple

from beam_prep.reading.blocks import BOM
from beam_prep.reading.json_list import JSONList
from beam_prep.reading.source import COMPRESSIONS, Source, split_name
from beam_prep.reading.sources import SOURCES, source_of

HEAD_BYTES = 1024
"""Bytes from a file's beginning that `refusal` reads."""

GUESS_BYTES = 1024 * 1024
"""Most bytes that `guess` uses."""


class _Kind(NamedTuple):
    """A format of a file that is no JSONL.

    Attributes:
        what: the format, for messages: `is ...`.
        advice: what to do; `$path` stands for the file's local name, `$made` for the file that a command writes.
        wanted: which JSONL is wanted, behind the word.
    """

    what: str
    advice: str = "convert it first"
    wanted: str = ""


def _python(program: str, rows: str, arguments: str = "$path") -> str:
    """The command that writes some rows as JSONL; `program` is the Python code before that."""
    write = f"sys.stdout.writelines(json.dumps(row, default=str) + chr(10) for {rows})"
    return f"type: python -c {shlex.quote(f'import json, sys{program}; {write}')} {arguments} > $made"


def _in_archive(command: str) -> str:
    return f"unpack it, and name the files that were in it: {command} $path"


_AGAIN = "download it again, or leave it out"
_EXCEL_PROGRAM = 'import sys, pandas; pandas.read_excel(sys.argv[1]).to_json(sys.stdout, orient="records", lines=True)'
_EXCEL = _Kind(
    "an Excel file",
    f"pip install pandas openpyxl xlrd, and type: python -c {shlex.quote(_EXCEL_PROGRAM)} $path > $made",
)
_TAR = _Kind("a tar archive", _in_archive("tar xf"))
_PICKLED = _Kind(
    "a pickled Python object",
    "if you trust its source, " + _python(", pickle", 'row in pickle.load(open(sys.argv[1], "rb"))'),
)
_BINARY = {
    b"ARROW1\0\0": _Kind(
        "an Arrow file (Feather)",
        _python(
            ", pyarrow as pa; file = pa.ipc.open_file(sys.argv[1])",
            "part in range(file.num_record_batches) for row in file.get_batch(part).to_pylist()",
        ),
    ),
    b"SQLite format 3\0": _Kind(
        "an SQLite database",
        _python(
            ", sqlite3; base = sqlite3.connect(sys.argv[1]); base.row_factory = sqlite3.Row",
            'row in map(dict, base.execute("SELECT * FROM " + sys.argv[2]))',
            "$path TABLE",
        ),
    ),
    b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1": _EXCEL,
    b"PK\x03\x04": _Kind("a zip archive", _in_archive("unzip")),
    b"7z\xbc\xaf\x27\x1c": _Kind("a 7z archive", _in_archive("7z x")),
    b"Rar!\x1a\x07": _Kind("a rar archive", _in_archive("unrar x")),
    b"\xfd7zXZ\0": _Kind("compressed by xz", "type: xz -dc $path > $made"),
    b"\x04\x22\x4d\x18": _Kind("compressed by lz4", "type: lz4 -dc $path > $made"),
    b"\x89HDF\r\n\x1a\n": _Kind("an HDF5 file"),
    b"\x93NUMPY": _Kind("a NumPy file"),
    b"Obj\x01": _Kind("an Avro file"),
    b"%PDF-": _Kind("a PDF document"),
    b"version https://git-lfs.github.com/spec/": _Kind(
        "a Git LFS pointer, not the data", "in its folder, type: git lfs pull"
    ),
    **dict.fromkeys((b"\x80\2", b"\x80\3", b"\x80\4", b"\x80\5"), _PICKLED),
}
_UTF = {
    b"\xff\xfe\0\0": "UTF-32",
    b"\0\0\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
    b"{\0\0\0": "UTF-32LE",
    b"\0\0\0{": "UTF-32BE",
    b"{\0": "UTF-16LE",
    b"[\0": "UTF-16LE",
    b"\0{": "UTF-16BE",
    b"\0[": "UTF-16BE",
}
_MAGIC = {
    **_BINARY,
    **{
        magic: _Kind(f"text in {name}", f"type: iconv -f {name} -t UTF-8 $path > $made", " in UTF-8")
        for magic, name in _UTF.items()
    },
}
"""First bytes -> the format. A longer beginning comes before its own prefix."""
_PAGES = {
    **dict.fromkeys((b"<!doctype html", b"<html"), _Kind("an HTML page (the error page of a download?)", _AGAIN)),
    b"<?xml": _Kind("an XML document (the error message of a store?)", _AGAIN),
}
_LIST = next(source for source in SOURCES if isinstance(source, JSONList))
_LISTS = ("data", "rows", "records", "examples", "items", "samples", "instances", "results", "train", "dataset")
"""The usual names of a list of records within an object."""
_TEXT = r'"(?:[^"\\]|\\.)*+"'
_LISTED = re.compile(
    rf"\{{(?:\s*{_TEXT}\s*:\s*(?:{_TEXT}|[\w.+-]+|\{{[^{{}}]*\}}|\[[^][{{}}]*\])\s*,)*?\s*({_TEXT})\s*:\s*\[\s*(?=\{{)"
)
"""An object, up to a list of objects in it, behind values that are not deeply nested."""


def refusal(head: bytes, path: str) -> str | None:
    """The format of a content that is certainly no JSONL, and how to convert it; None if it may be JSONL.

    Args:
        head: the first `HEAD_BYTES` of the decompressed content.
        path: the file's name. If it is compressed, the name has the ending of the compression.

    >>> print(refusal(b"PK" + bytes([3, 4]), "chats.zip"))
    'chats.zip' is a zip archive, wanted JSONL: unpack it, and name the files that were in it: unzip chats.zip
    """
    packed = split_name(path)[2]
    for ending, compression in COMPRESSIONS.items():
        if head.startswith(compression.magic) and packed:
            return f"{path!r} is compressed twice: type {_unpack(path)}, and add {ending} to the name of the result"
        if head.startswith(compression.magic):
            command = f"mv {_quoted(path)} {_quoted(path + ending)}"
            return f"{path!r} is compressed, but its name does not end in {ending}: rename it: {command}"
    for source in SOURCES:
        if source.magic and head.startswith(source.magic) and source is not source_of(path):
            return _read_as(path, source.name, source)
    if head.startswith(b"PK\x03\x04") and (b"[Content_Types].xml" in head or path.lower().endswith(".xlsx")):
        return _message(path, _EXCEL)
    if head[257:262] == b"ustar":
        return _message(path, _TAR)
    for magic, kind in _MAGIC.items():
        if head.startswith(magic):
            return _message(path, kind)
    start = head.removeprefix(BOM).lstrip()[:15].lower()
    for magic, kind in _PAGES.items():
        if start.startswith(magic):
            return _message(path, kind)
    return None


def guess(head: bytes, path: str, fields: Collection[str] = ()) -> str | None:
    """The likely format of a file that gave a run few or no records, and how to convert it; None if unknown.

    Args:
        head: the first bytes of its content; more bytes give a better guess.
        path: its name.
        fields: the fields that the config reads.
    """
    source, ending = source_of(path), split_name(path)[1]
    text = head.removeprefix(BOM).decode("utf-8", "replace")
    start = text.lstrip()
    if start.startswith("{'"):
        rows = "row in map(ast.literal_eval, filter(str.strip, open(sys.argv[1])))"
        return _message(path, _Kind("lines of Python dicts", _python(", ast", rows)))
    if start.startswith("{") and (key := _list_of_records(start, fields)) is not None:
        rows = f'row in json.load(open(sys.argv[1], encoding="utf-8"))[{json.dumps(key)}]'
        return _message(path, _Kind(f"one object with its records in the list {key!r}", _python("", rows)))
    if start.startswith(("{", "[")):
        if isinstance(source, JSONList) or not (start.startswith("[") or _spans_lines(start)):
            return None
        return _read_as(path, "one JSON list" if start[0] == "[" else "objects of several lines each", _LIST)
    if ending in (".yaml", ".yml"):
        return _message(path, _Kind("a YAML file", _python(", yaml", "row in yaml.safe_load(open(sys.argv[1]))")))
    if (delimiter := _delimiter(text, ending in (".csv", ".tsv"))) is not None:
        table = f'open(sys.argv[1], newline=str(), encoding="utf-8-sig"), delimiter=chr({ord(delimiter)})'
        program = _python(", csv; csv.field_size_limit(1 << 30)", f"row in csv.DictReader({table})")
        return _message(path, _Kind("a table (TSV)" if delimiter == "\t" else "a table (CSV)", program))
    if ending in (".txt", ".md", ".rst", ".text"):
        program = _python("", 'row in ({"text": line.strip()} for line in open(sys.argv[1]) if line.strip())')
        return _message(path, _Kind("plain text", program, " with a record a line"))
    return None


def not_utf8(head: bytes, path: str) -> str | None:
    """Advice for a text file in another encoding than UTF-8; None if some of it is UTF-8, which iconv would damage."""
    start, first = 0, None
    for line in head.splitlines(keepends=True):
        try:
            if not line.decode().isascii():
                return None
        except UnicodeDecodeError as error:
            cut = start + error.end == len(head) and error.reason == "unexpected end of data"
            if first is None and not cut:
                first = start + error.start
        start += len(line)
    if first is None:
        return None
    advice = "if it is Windows-1252, type: iconv -f WINDOWS-1252 -t UTF-8 $path > $made"
    return _message(path, _Kind(f"no UTF-8 (byte {first})", advice, " in UTF-8"))


def _message(path: str, kind: _Kind) -> str:
    """The problem, and a command for the local, decompressed file."""
    unpack, unpacked = _unpack(path), _unpacked(path)
    stem, ending = os.path.splitext(unpacked)
    made = f"{stem}.converted.jsonl" if ending.lower() == ".jsonl" else f"{stem}.jsonl"
    advice = Template(kind.advice).substitute(path=_quoted(unpacked), made=_quoted(made))
    first = f"type: {unpack} && " if unpack else "type: "
    if "://" in path:
        first = f"copy it to this disk, and {first}"
    problem = f"{path!r} {'holds' if unpack else 'is'} {kind.what}, wanted JSONL{kind.wanted}"
    return f"{problem}: {advice.replace('type: ', first, 1)}"


def _read_as(path: str, what: str, source: Source) -> str:
    """Advice for a file that can be read under another name."""
    packed = split_name(path)[2]
    unpack = _unpack(path) if packed and not source.compressible else ""
    name = _unpacked(path) if unpack else _here(path)
    made = os.path.splitext(_unpacked(path))[0] + source.endings[0] + ("" if unpack else packed)
    rename = "" if name == made else f"mv {_quoted(name)} {_quoted(made)}"
    command = " && ".join(filter(None, (unpack, rename)))
    return (
        f"{path!r} {'holds' if unpack else 'is'} {what}, which is read from a {source.endings[0]} file: type: {command}"
    )


def _here(path: str) -> str:
    """The local name of a file; a file in a store has to be copied first."""
    return path.rpartition("/")[2] if "://" in path else path


def _unpacked(path: str) -> str:
    """The local name of the decompressed file."""
    return _here(path)[: -len(split_name(path)[2]) or None]


def _unpack(path: str) -> str:
    """The command that decompresses a file; "" if it is not compressed."""
    packed = split_name(path)[2]
    return f"{COMPRESSIONS[packed].unpack} {_quoted(_here(path))}" if packed else ""


def _quoted(path: str) -> str:
    """A path, quoted for a shell. Unprintable characters are escaped, because they could change the terminal."""
    if path.isprintable():
        return shlex.quote(path)
    escaped = (
        each if each.isprintable() and each not in "\\'" else "".join(f"\\x{byte:02x}" for byte in os.fsencode(each))
        for each in path
    )
    return f"$'{''.join(escaped)}'"


def _spans_lines(text: str) -> bool:
    """True if the first line is no complete value, and more lines follow."""
    line, _, rest = text.partition("\n")
    return bool(rest.strip()) and _first_value(line.strip())[0] is None


def _first_value(text: str) -> tuple[Any, str]:
    """(the JSON value at the beginning of a text, what follows); (None, "") if there is none, or it is cut."""
    try:
        value, end = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return None, ""
    return value, text[end:].strip()


def _list_of_records(text: str, fields: Collection[str]) -> str | None:
    """The key of the list that holds the records, if the file is one object; otherwise None."""
    if _first_value(text)[1] or (match := _LISTED.match(text)) is None:
        return None  # the object is one of several
    key, first = json.loads(match[1]), _first_value(text[match.end() :])[0]
    has_fields = isinstance(first, dict) and any(name in first for name in fields)
    return key if key not in fields and (key in _LISTS or has_fields) else None


def _delimiter(text: str, named: bool) -> str | None:
    """The character between the columns of a table; None if the text is no table.

    Args:
        text: its first rows.
        named: True if the file's name says that it is a table. Otherwise, more rows are needed: texts have commas, too.
    """
    lines = text.splitlines(keepends=True)[:50]
    for delimiter in ("\t", ",", ";", "|"):
        try:
            rows = list(csv.reader(lines, delimiter=delimiter, strict=False))
        except csv.Error:
            continue
        widths = {len(row) for row in rows[:-1] if row}  # the last one may be cut within a quoted field
        if len(rows) > (1 if named else 3) and len(widths) == 1 and widths.pop() > 1:
            return delimiter
    return None
