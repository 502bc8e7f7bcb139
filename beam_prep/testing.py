"""For tests of your own steps: makes a block from a list of dicts, and rows from a block.

Without a pipeline, a step is a function on a block:

>>> block = bp.testing.records([{"text": "a"}, '{"text": '])
>>> bp.testing.to_rows(block)
[{'text': 'a'}]
>>> bp.testing.rejects(block)
[(1, 'bad_json')]

In a pipeline:

>>> from apache_beam.testing.test_pipeline import TestPipeline
>>> from apache_beam.testing.util import assert_that, equal_to
>>> with TestPipeline(runner="FnApiRunner") as p:
...     rows = p | bp.testing.create([{"text": "a"}, {"text": "b" * 80}]) | bp.FilterByChars(min_chars=50)
...     _ = assert_that(rows | bp.testing.rows(), equal_to([{"text": "b" * 80}]))
"""

import io
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import apache_beam as beam

from beam_prep.data.block import Block, InputFile
from beam_prep.data.rendered import Rendered
from beam_prep.reading.records import Record, Records, parse, read_blocks
from beam_prep.tokens.batch import Batch

_SOURCE = InputFile("test.jsonl", 0, 0.0)
_BLOCK_BYTES = 1 << 40


def records(rows: Iterable[Record | str | bytes]) -> Records:
    """Makes a block of records. A string or bytes is one line of a file, which need not be valid JSON."""
    lines = [
        row if isinstance(row, bytes) else (row if isinstance(row, str) else json.dumps(row)).encode() for row in rows
    ]
    data = b"".join(line + b"\n" for line in lines)
    raw = next(read_blocks(io.BytesIO(data), 0, -1, _BLOCK_BYTES), None)
    if raw is None:
        raise ValueError("a block has at least one line")
    return parse(raw, raw.origin(0, _SOURCE, _BLOCK_BYTES))


def to_rows(block: Block) -> list[dict[str, Any]]:
    """Gives the rows of a block: its records, the texts of each output, or the columns as lists."""
    if isinstance(block, Records):
        return list(block.rows)
    if isinstance(block, Batch):
        columns = {name: rows.to_lists() for name, rows in block.columns.items()}
        return [{name: rows[index] for name, rows in columns.items()} for index in range(len(block))]
    if isinstance(block, Rendered):
        return [dict(_texts(block, index)) for index in range(len(block))]
    raise TypeError(f"wanted Records, Rendered or Batch, got {type(block).__name__}")


def _texts(block: Rendered, row: int) -> Iterator[tuple[str, Any]]:
    for name, pieces in block.pieces.items():
        first, last = pieces.rows[row], pieces.rows[row + 1]
        yield name, pieces.texts[pieces.sequences[first] : pieces.sequences[last]]
    for name, values in block.values.items():
        yield name, values.to_lists()[row]


def rejects(block: Block) -> list[tuple[int, str]]:
    """Gives (line, reason) for each rejected line of a block."""
    ledger = block.ledger
    return [(line, ledger.outcomes[ledger.status[line] - 1][1]) for line in sorted(ledger.messages)]


def create(rows: Sequence[Record | str | bytes]) -> beam.PTransform:
    """A source with one block of these records, in place of ReadJSONL."""
    # The block is made by the step, not by Create: Create would encode it.
    return "Lines" >> beam.Create([list(rows)]) | "Block" >> beam.Map(records).with_output_types(Records)


def rows() -> beam.PTransform:
    """Blocks -> their rows, one element each; see `to_rows`."""
    return "Rows" >> beam.FlatMap(to_rows)
