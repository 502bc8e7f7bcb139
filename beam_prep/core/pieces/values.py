"""Collects the numbers that the records of a block give to one output."""

import numpy as np

from beam_prep.core.data.ragged import Array, Ragged
from beam_prep.core.data.schema import Output
from beam_prep.core.reading.records import Record
from beam_prep.core.reading.rollouts import exact_double


class ValueCollector:
    """Collects the numbers of one output."""

    by_jinja = False

    def __init__(self, output: Output) -> None:
        self.field = output.sections[0].field
        self.numbers: list[float] = []
        self.rows = [0]
        self.listed = False
        self._bulk: Ragged | None = None

    def add(self, record: Record) -> bool:
        value = record.get(self.field)
        self.listed = isinstance(value, list)
        if value is None:
            value = []
        elif not isinstance(value, list):
            value = [value]
        for place, number in enumerate(value):
            self.numbers.append(exact_double(number, f"{self.field}[{place}]"))
        self.rows.append(len(self.numbers))
        return bool(value)

    def undo(self, rows: int) -> None:
        del self.rows[rows + 1 :]
        del self.numbers[self.rows[-1] :]

    def add_in_bulk(self, numbers: Ragged) -> None:
        """Adds rows after all others, once."""
        self._bulk = numbers

    def build(self, order: Array | None = None) -> Ragged:
        """The numbers of all rows; for `order` see `PiecesBuilder.build`."""
        found = Ragged(np.asarray(self.numbers, np.float64), np.asarray(self.rows, np.int64))
        if self._bulk is not None:
            found = Ragged.concat([found, self._bulk])
        return found if order is None else found.take(order)
