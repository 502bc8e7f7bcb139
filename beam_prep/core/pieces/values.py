"""Collects the numbers that the records of a block give to one output."""

import numpy as np

from beam_prep.core.data.ragged import Ragged
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

    def build(self) -> Ragged:
        return Ragged(np.asarray(self.numbers, np.float64), np.asarray(self.rows, np.int64))
