"""Collects the numbers that the records of a block give to one output."""

import numpy as np

from beam_prep.core.data.block import Reject
from beam_prep.core.data.ragged import Ragged
from beam_prep.core.data.schema import Output
from beam_prep.core.reading.json_line import describe
from beam_prep.core.reading.records import Record


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
            if type(number) not in (int, float):
                raise Reject("wrong_type", f"field '{self.field}[{place}]' is {describe(number)}, wanted a number")
            try:
                double = float(number)
            except OverflowError:
                raise Reject("bad_number", f"field '{self.field}[{place}]' is beyond a double") from None
            if double != number:
                wanted = "wanted one that a double holds exactly"
                raise Reject("bad_number", f"field '{self.field}[{place}]' is {describe(number)}, {wanted}")
            self.numbers.append(double)
        self.rows.append(len(self.numbers))
        return bool(value)

    def undo(self, rows: int) -> None:
        del self.rows[rows + 1 :]
        del self.numbers[self.rows[-1] :]

    def build(self) -> Ragged:
        return Ragged(np.asarray(self.numbers, np.float64), np.asarray(self.rows, np.int64))
