"""Inputs that are no JSONL: which format a file has, by its first bytes, and the command that makes JSONL of it.

Some formats are certain: nothing that begins so is JSON. Such a file is refused when it is opened (`refusal`), because
all of its records are missing, however few its lines are. Of others, as CSV, the first line may be a bad line of JSONL:
these are named when a run has failed (`guess`).
"""

import csv
import json
import os
import re
import shlex
from collections.abc import Collection, Iterator
from typing import Any

from beam_prep.reading.blocks import BOM
from beam_prep.reading.json_list import JSONList
from beam_prep.reading.sources import source_of

HEAD_BYTES = 1024
"""Bytes from a file's beginning that `refusal` needs."""

GUESS_BYTES = 1024 * 1024
"""Bytes that `guess` makes most of."""

_ELEMENT = 64 * 1024
"""Characters of a value that are looked at."""

_ENDINGS = {".gz": "gzip -dk", ".bz2": "bzip2 -dk", ".zst": "zstd -dk"}
_WRITE = "sys.stdout.writelines(json.dumps(row, default=str) + chr(10) for {rows})"
_PACKED = {b"\x1f\x8b": ".gz", b"BZh": ".bz2", b"\x28\xb5\x2f\xfd": ".zst"}
_PICKLED = "import json, pickle, sys; " + _WRITE.format(rows='row in pickle.load(open(sys.argv[1], "rb"))')
_ARROW_FILE = "import json, sys, pyarrow as pa; file = pa.ipc.open_file(sys.argv[1]); " + _WRITE.format(
    rows="part in range(file.num_record_batches) for row in file.get_batch(part).to_pylist()"
)
_SQLITE = "import json, sqlite3, sys; base = sqlite3.connect(sys.argv[1]); base.row_factory = sqlite3.Row; " + (
    _WRITE.format(rows='row in map(dict, base.execute("SELECT * FROM " + sys.argv[2]))')
)
_EXCEL = 'import sys, pandas; pandas.read_excel(sys.argv[1]).to_json(sys.stdout, orient="records", lines=True)'
_AGAIN = "download it again, or leave it out"
_UNPACK = "unpack it, and name the files that were in it"
_BINARY: tuple[tuple[bytes, str, str], ...] = (
    (b"ARROW1\0\0", "an Arrow file (Feather)", _ARROW_FILE),
    (b"SQLite format 3\0", "an SQLite database", _SQLITE),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an Excel file", _EXCEL),
    (b"PK\x03\x04", "a zip archive", f"{_UNPACK}: unzip {{path}}"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive", f"{_UNPACK}: 7z x {{path}}"),
    (b"Rar!\x1a\x07", "a rar archive", f"{_UNPACK}: unrar x {{path}}"),
    (b"\xfd7zXZ\0", "compressed by xz", "type: xz -dc {path} > {made}"),
    (b"\x04\x22\x4d\x18", "compressed by lz4", "type: lz4 -dc {path} > {made}"),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file", ""),
    (b"\x93NUMPY", "a NumPy file", ""),
    (b"Obj\x01", "an Avro file", ""),
    (b"%PDF-", "a PDF document", ""),
    (
        b"version https://git-lfs.github.com/spec/",
        "a Git LFS pointer, not the data",
        "in its folder, type: git lfs pull",
    ),
)
"""(the first bytes, what it is, advice): a Python program begins with `import`."""
_TABLES = ((b"PAR1", "a Parquet file", ".parquet"), (b"\xff\xff\xff\xff", "an Arrow stream", ".arrow"))
_UTF = (
    (b"\xff\xfe\0\0", "UTF-32"),
    (b"\0\0\xfe\xff", "UTF-32"),
    (b"\xff\xfe", "UTF-16"),
    (b"\xfe\xff", "UTF-16"),
    (b"{\0\0\0", "UTF-32LE"),
    (b"\0\0\0{", "UTF-32BE"),
    (b"{\0", "UTF-16LE"),
    (b"[\0", "UTF-16LE"),
    (b"\0{", "UTF-16BE"),
    (b"\0[", "UTF-16BE"),
)
_LISTS = ("data", "rows", "records", "examples", "items", "samples", "instances", "results", "train", "dataset")
"""The usual names of a list of records within an object."""


def refusal(head: bytes, path: str) -> str | None:
    """What a file is whose content is certainly no JSONL, and how to convert it; None if it may be JSONL.

    Args:
        head: the first bytes of its content (decompressed), `HEAD_BYTES` if it has so many.
        path: its name. A compressed one has the ending of its compression.

    >>> print(refusal(b"PK" + bytes([3, 4]), "chats.zip"))
    'chats.zip' is a zip archive, wanted JSONL: unpack it, and name the files that were in it: unzip chats.zip
    """
    compressed = os.path.splitext(path)[1].lower() in _ENDINGS
    for magic, ending in _PACKED.items():
        if head.startswith(magic) and compressed:
            return f"{path!r} is compressed twice: type {_unpacked(path)[1]}, and name what it makes with {ending}"
        if head.startswith(magic):
            command = f"mv {_quoted(path)} {_quoted(path + ending)}"
            return f"{path!r} is compressed, but its name does not end in {ending}: rename it: {command}"
    for magic, what, ending in _TABLES:
        if head.startswith(magic) and not path.lower().endswith(ending):
            return _as_table(path, what, ending)
    for magic, what, advice in _BINARY:
        if head.startswith(magic):
            if magic == b"PK\x03\x04" and (b"[Content_Types].xml" in head or path.lower().endswith(".xlsx")):
                what, advice = "an Excel file", _EXCEL
            return _message(path, what, advice)
    if head[:1] == b"\x80" and head[1:2] in (b"\2", b"\3", b"\4", b"\5"):
        return _message(path, "a pickled Python object", _PICKLED)
    if head[257:262] == b"ustar":
        return _message(path, "a tar archive", f"{_UNPACK}: tar xf {{path}}")
    for magic, name in _UTF:
        if head.startswith(magic):
            return _message(path, f"text in {name}", f"type: iconv -f {name} -t UTF-8 {{path}} > {{made}}", "in UTF-8")
    start = head.removeprefix(BOM).lstrip()[:15].lower()
    if start.startswith((b"<!doctype html", b"<html")):
        return _message(path, "an HTML page (the error page of a download?)", _AGAIN)
    if start.startswith(b"<?xml"):
        return _message(path, "an XML document (the error message of a store?)", _AGAIN)
    return None


def guess(head: bytes, path: str, fields: Collection[str] = ()) -> str | None:
    """What a file seems to be of which a run could use little or nothing, and how to convert it; or None.

    Args:
        head: the first bytes of its content, the more the better.
        path: its name.
        fields: the fields that the config reads.
    """
    ending = os.path.splitext(os.path.splitext(path)[0] if os.path.splitext(path)[1] in _ENDINGS else path)[1].lower()
    text = head.removeprefix(BOM).decode("utf-8", "replace")
    start = text.lstrip()
    is_list = isinstance(source_of(path), JSONList)
    if start.startswith("{'"):
        rows = "row in map(ast.literal_eval, filter(str.strip, open(sys.argv[1])))"
        return _message(path, "lines of Python dicts", f"import ast, json, sys; {_WRITE.format(rows=rows)}")
    if start.startswith("{"):
        if (key := _list_of_records(start, fields)) is not None:
            rows = f'row in json.load(open(sys.argv[1], encoding="utf-8"))[{json.dumps(key)}]'
            what = f"one object with its records in the list {key!r}"
            return _message(path, what, f"import json, sys; {_WRITE.format(rows=rows)}")
        return None if is_list or not _spans_lines(start) else _renamed(path, "objects of several lines each")
    if start.startswith("["):
        return None if is_list else _renamed(path, "one JSON list")
    if ending in (".yaml", ".yml"):
        rows = "row in yaml.safe_load(open(sys.argv[1]))"
        return _message(path, "a YAML file", f"import json, sys, yaml; {_WRITE.format(rows=rows)}")
    if (delimiter := _delimiter(text, ending in (".csv", ".tsv"))) is not None:
        table = f'open(sys.argv[1], newline=str(), encoding="utf-8-sig"), delimiter=chr({ord(delimiter)})'
        program = "import csv, json, sys; csv.field_size_limit(1 << 30); "
        program += _WRITE.format(rows=f"row in csv.DictReader({table})")
        return _message(path, "a table (TSV)" if delimiter == "\t" else "a table (CSV)", program)
    if ending in (".txt", ".md", ".rst", ".text"):
        rows = 'row in ({"text": line.strip()} for line in open(sys.argv[1]) if line.strip())'
        return _message(path, "plain text", f"import json, sys; {_WRITE.format(rows=rows)}", "with a record a line")
    return None


def not_utf8(head: bytes, path: str) -> str | None:
    """The advice on a file that is text in another encoding than UTF-8; None if it is UTF-8."""
    try:
        head.decode()
    except UnicodeDecodeError as error:
        if error.end == len(head) and error.reason == "unexpected end of data":
            return None
        what = f"no UTF-8 (byte {error.start}); if it is Windows-1252, type"
        unpacked, before = _unpacked(path)
        names = f"{_quoted(unpacked)} > {_quoted(_made(unpacked))}"
        return f"{path!r} is {what}: {before and before + ' && '}iconv -f WINDOWS-1252 -t UTF-8 {names}"
    return None


def _message(path: str, what: str, advice: str, wanted: str = "") -> str:
    """The problem and the command, for the file on this disk, unpacked."""
    unpacked, before = _unpacked(path)
    if "://" in path:
        unpacked = unpacked.rpartition("/")[2]
    names = {"path": _quoted(unpacked), "made": _quoted(_made(unpacked))}
    if advice.startswith("import "):
        table = " TABLE" if advice == _SQLITE else ""
        first = "copy it to this disk, and type" if "://" in path else "type"
        if advice == _PICKLED:
            first = f"if you trust its source, {first}"
        if advice == _EXCEL:
            first = f"pip install pandas openpyxl xlrd, and {first}"
        unpack = f"{before} && " if before else ""
        command = f"python -c {shlex.quote(advice)} {names['path']}{table} > {names['made']}"
        advice = f"{first}: {unpack}{command}"
    else:
        advice = advice.format(**names) or "convert it first"
    return f"{path!r} {'holds' if before else 'is'} {what}, wanted JSONL{wanted and ' ' + wanted}: {advice}"


def _quoted(path: str) -> str:
    """A path for a shell; what is not printable is escaped, as it would change the terminal."""
    if path.isprintable():
        return shlex.quote(path)
    escaped = (
        each if each.isprintable() and each not in "\\'" else "".join(f"\\x{byte:02x}" for byte in os.fsencode(each))
        for each in path
    )
    return f"$'{''.join(escaped)}'"


def _unpacked(path: str) -> tuple[str, str]:
    """(name of the decompressed file, the command that makes it); of a file that is not compressed, (name, "")."""
    stem, ending = os.path.splitext(path)
    command = _ENDINGS.get(ending.lower())
    if command is None:
        return path, ""
    return stem, f"{command} {_quoted(path.rpartition('/')[2] if '://' in path else path)}"


def _made(path: str) -> str:
    """The name of the file that a conversion makes."""
    stem, ending = os.path.splitext(path)
    return f"{stem}.converted.jsonl" if ending.lower() == ".jsonl" else f"{stem}.jsonl"


def _as_table(path: str, what: str, ending: str) -> str:
    """Advice for a table that is read as it is, under its own ending."""
    unpacked, command = _unpacked(path)
    name = os.path.splitext(unpacked)[0] + ending
    commands = [command] if command else []
    if name != unpacked:
        last = unpacked.rpartition("/")[2] if "://" in path else unpacked
        commands.append(f"mv {_quoted(last)} {_quoted(os.path.splitext(last)[0] + ending)}")
    return f"{path!r} {'holds' if command else 'is'} {what}, which is read from a {ending} file: type: " + (
        " && ".join(commands)
    )


def _renamed(path: str, what: str) -> str:
    """Advice for a file that can be read under another name."""
    stem, packed = os.path.splitext(path)
    if packed.lower() not in _ENDINGS:
        stem, packed = path, ""
    name = f"{os.path.splitext(stem)[0]}.json{packed}"
    return f"{path!r} is {what}, which is read from a .json file: type: mv {_quoted(path)} {_quoted(name)}"


def _spans_lines(text: str) -> bool:
    """True if the first line is no complete object, and there are more."""
    line, _, rest = text.partition("\n")
    return bool(rest.strip()) and _parsed(line.strip()) is None


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _list_of_records(text: str, fields: Collection[str]) -> str | None:
    """The key of the list that holds the records, of a file that is one object; None if it is none."""
    found = None
    for key, value, rest in _pairs(text):
        if not re.match(r"\[\s*\{", value):
            continue
        first = _first_element(value)
        if key not in fields and (key in _LISTS or (first is not None and any(name in first for name in fields))):
            found = key
        if rest is not None and rest.strip():
            return None  # more follows the object: it is one of several
    return found


_DECODER = json.JSONDecoder()


def _first_element(text: str) -> dict[str, Any] | None:
    try:
        found = _DECODER.raw_decode(text, text.index("{"))[0]
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _pairs(text: str) -> Iterator[tuple[str, str, str | None]]:
    """(key, the text from its value on, what follows the object after its last pair) of an object that may be cut."""
    place = 1
    space = re.compile(r"[\s,]*")
    while True:
        place = space.match(text, place).end()  # type: ignore[union-attr]
        try:
            key, place = _DECODER.raw_decode(text, place)
            place = re.compile(r"\s*:\s*").match(text, place).end()  # type: ignore[union-attr]
        except (ValueError, AttributeError, RecursionError):
            return
        value = text[place : place + _ELEMENT]
        try:
            place = _DECODER.raw_decode(text, place)[1]
        except (ValueError, RecursionError):
            yield str(key), value, None
            return
        end = space.match(text, place).end()  # type: ignore[union-attr]
        yield str(key), value, text[end + 1 :] if text[end : end + 1] == "}" else None


def _delimiter(text: str, named: bool) -> str | None:
    """The character between the columns of a table; None if it is none.

    Args:
        text: its first rows.
        named: its name says that it is a table. Otherwise more rows are wanted, as texts have commas, too.
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
