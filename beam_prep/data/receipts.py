"""Block statistics: one row of an Arrow table for each block in the token cache. The plan knows nothing else of it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from itertools import zip_longest
from typing import Any

import numpy as np
import pyarrow as pa

from beam_prep.data.ragged import Array
from beam_prep.data.schema import Column

Histogram = tuple[int, ...]
"""Number of lengths in each class of `BORDERS`, without empty classes at the end."""

_NAME = pa.dictionary(pa.int32(), pa.string())
_PATH = pa.dictionary(pa.int32(), pa.binary())  # names of files need not be UTF-8

STATISTICS = pa.schema(
    [
        ("lines", pa.int64()),
        ("domains", pa.list_(pa.struct([("domain", _NAME), ("rows", pa.int64()), ("tokens", pa.int64())]))),
        ("counts", pa.list_(pa.struct([("what", _NAME), ("count", pa.int64())]))),
        ("columns", _NAME),
        ("kept", pa.list_(pa.uint32())),
        ("uncut", pa.list_(pa.uint32())),
        ("name", pa.string()),
        ("reused", pa.bool_()),
        ("file", pa.int32()),
        ("start", pa.int64()),
        ("first_byte", pa.int64()),
        ("size", pa.int64()),
        ("nodes", pa.list_(pa.struct([("index", pa.int64()), ("level", pa.uint8()), ("digest", pa.binary(32))]))),
        ("path", _PATH),
        ("path_size", pa.int64()),
        ("plain", pa.bool_()),
        ("copies", _PATH),
    ]
)
"""The columns up to `uncut` are kept with a block: a function of its content and the config, without paths and times.

* `lines`: number of lines of the block, with blank ones.
* `domains`: in order of first appearance.
* `counts`: see `BlockReceipt.counts`. Its `made` describes the run that made the block: no byte of an output depends on
  it.
* `columns`: the columns of each row, see `BlockReceipt.columns`.
* `kept`, `uncut`: histograms of the lengths of kept rows, see `Batch.lengths`; after and before truncation.

Each run adds the other columns (`shards.receipts.placed`); they are null before.

* `name`: name of its file in the token cache, without ending. `reused`: the file existed already: from an earlier run,
  or because the input has the same bytes twice.
* `file`, `start`, `first_byte`, `size`, `nodes`: see `Origin`.
* `path`, `path_size`: of the input file. `plain`: the blocks of that file end at its size.
* `copies`: the file that lists its rows that are copies of earlier records, which are not counted here; "": none. See
  `shards.compose`.
"""


ROLE_COUNTS = ("messages", "tokens", "trained")
"""The counts of each role, in the order of `RoleCounts.sums`."""


@dataclass(frozen=True, slots=True)
class BlockReceipt:
    """The statistics of one block.

    >>> domains = [{"domain": "web", "rows": 2, "tokens": 20}]
    >>> receipt = BlockReceipt.of({"domains": domains, "counts": counts_list({"dropped": {"empty": 1}})}, ())
    >>> receipt.kept, receipt.tokens, receipt.counts("dropped")
    (2, 20, {'empty': 1})

    Attributes:
        values: a row of `STATISTICS`, without the columns that are null.
    """

    values: Mapping[str, Any]

    @classmethod
    def of(cls, values: Mapping[str, Any], columns: Sequence[Column]) -> "BlockReceipt":
        """The statistics of a block without its place in an input.

        Args:
            values: of the columns of `STATISTICS` up to `uncut`, except `columns`.
            columns: the columns of each row.
        """
        return cls({**values, "columns": json.dumps([astuple(column) for column in columns])})

    def updated(self, **values: Any) -> "BlockReceipt":
        """The statistics with new values in some columns."""
        return BlockReceipt({**self.values, **values})

    def __getitem__(self, column: str) -> Any:
        return self.values[column]

    def counts(self, kind: str) -> dict[str, int]:
        """The counts of a kind: `blank`, `dropped` and `rejected` by reason; `counter` of kept rows (`truncated_rows`,
        `double_bos` ...); `made`, see `Block`; `messages`, `tokens` and `trained` tokens by role."""
        found = ((*count_of(each["what"]), each["count"]) for each in self["counts"])
        return {what: count for of, what, count in found if of == kind}

    @property
    def columns(self) -> tuple[Column, ...]:
        return columns_of(self["columns"])

    @property
    def domains(self) -> list[tuple[str, int, int]]:
        """(domain, rows, tokens) of each domain, in order of first appearance."""
        return [(each["domain"], each["rows"], each["tokens"]) for each in self["domains"]]

    @property
    def lines(self) -> int:
        return int(self["lines"])

    @property
    def kept(self) -> int:
        return sum(rows for _, rows, _ in self.domains)

    @property
    def tokens(self) -> int:
        return sum(tokens for _, _, tokens in self.domains)


def counts_list(counts: Mapping[str, Mapping[str, int]]) -> list[dict[str, Any]]:
    """Counts by kind -> the form of a row, without counts of 0."""
    # As JSON, because a reason from a user's function may be no UTF-8.
    entries = [(kind, what, count) for kind, found in counts.items() for what, count in found.items()]
    return [{"what": json.dumps([kind, what]), "count": count} for kind, what, count in entries if count]


def count_of(text: str) -> tuple[str, str]:
    """(kind, what) of an entry's text."""
    kind, what = json.loads(text)
    return kind, what


def columns_of(text: str) -> tuple[Column, ...]:
    """The columns of a receipt's text."""
    return tuple(Column(*column) for column in json.loads(text))


# Histograms of lengths in tokens. They are small, so every block has one, and they can be added.

BORDERS: tuple[int, ...] = (0, 1, *sorted(size << bits for size in (2, 3) for bits in range(30)))
"""The least length of each class: 0, 1, 2, 3, 4, 6, 8, 12, 16, 24 ... There are two classes for each power of two."""


def histogram(lengths: Array) -> Histogram:
    """Counts lengths by class.

    >>> histogram(np.array([0, 1, 5, 4]))
    (1, 1, 0, 0, 2)

    Args:
        lengths: int64, in tokens.
    """
    return tuple(np.bincount(np.searchsorted(BORDERS, lengths, side="right") - 1).tolist())


def add(one: Sequence[int], other: Sequence[int]) -> Histogram:
    """The histogram of the lengths of both histograms."""
    return tuple(a + b for a, b in zip_longest(one, other, fillvalue=0))


def quantile(found: Sequence[int], share: float) -> int:
    """The largest length of the class that holds this quantile; 0 without lengths.

    >>> quantile((0, 0, 0, 0, 90, 9, 1), 0.5)
    5
    """
    total = sum(found)
    if not total:
        return 0
    place = int(np.searchsorted(np.cumsum(found), share * total))
    return BORDERS[place + 1] - 1
