"""The kinds of input files. To add one, write a file with its `Source`, and add it to `SOURCES`."""

from beam_prep.reading.source import JSONList, Source, split_name
from beam_prep.reading.tables import ArrowStream, Parquet

JSONL = Source()
SOURCES: tuple[Source, ...] = (JSONList(), Parquet(), ArrowStream())


def source_of(path: str) -> Source:
    """The kind of a file, by the ending of its name; JSONL for unknown endings.

    >>> source_of("a.jsonl.gz").place(1_200), source_of("a.json").place(3), source_of("a.parquet").at("a.parquet", 3)
    ('line 1,200', 'record 3', 'a.parquet (row 4)')
    """
    _, ending, packed = split_name(path)
    found = (source for source in SOURCES if ending in source.endings and (source.compressible or not packed))
    return next(found, JSONL)


def place_in(path: str, number: int) -> str:
    """The place of a record in a file, counted from 1: `line 1,200`; in a list or a table, `record 3` or `row 3`."""
    return source_of(path).place(number)


def place_at(path: str, offset: int) -> str:
    """A file, and where a record begins in the file, for messages: see `at_offset`."""
    return source_of(path).at(path, offset)
