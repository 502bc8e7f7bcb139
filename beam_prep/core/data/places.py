"""Where a record is in its file: counted in bytes, or, in a table, in rows."""

import os

COLLECTION = "records"
"""In place of a file: the records of a collection, in the order of their digests. No file has them."""

_TABLES = (".parquet", ".arrow")


def is_table(path: str) -> bool:
    """True if a file is read as a table: its name ends in `.parquet` or `.arrow`.

    A record of a table is a row. Where other files count bytes of their content (`Origin`, the offsets of rejects), a
    table counts rows, from 0.
    """
    return os.path.splitext(path)[1].lower() in _TABLES


def at_offset(path: str, offset: int) -> str:
    """A file, and where a record begins in it, for messages.

    >>> at_offset("a.jsonl", 1200), at_offset("a.parquet", 3)
    ('a.jsonl (byte offset 1200)', 'a.parquet (row 4)')

    Args:
        path: of the file.
        offset: bytes of its content; in a table: rows before this one.
    """
    return f"{path} (row {offset + 1})" if is_table(path) else f"{path} (byte offset {offset})"
