"""Transforms on parsed records."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import apache_beam as beam

from beam_prep.core.reading.adapters import Adapter, adapt_records
from beam_prep.core.reading.filters import filter_by_chars, filter_records, map_records
from beam_prep.core.reading.records import Record, Records


@dataclasses.dataclass(eq=False)
class FilterByChars(beam.PTransform):
    """`Records` -> `Records`: a text field outside the limits counts as absent; a record with nothing left is dropped.

    Attributes:
        min_chars, max_chars: code points, both inclusive.
        fields: the text fields that are looked at. Records that have none of them pass.
    """

    min_chars: int = 50
    max_chars: int = 2_000_000
    fields: Sequence[str] = ("text",)

    def __post_init__(self) -> None:
        super().__init__()
        if not 0 <= self.min_chars <= self.max_chars:
            raise ValueError(f"wanted 0 <= min_chars <= max_chars, got {self.min_chars} and {self.max_chars}")
        if isinstance(self.fields, str):
            self.fields = (self.fields,)

    def expand(self, records: beam.PCollection[Records]) -> beam.PCollection[Records]:
        return records | beam.Map(
            filter_by_chars, self.min_chars, self.max_chars, tuple(self.fields)
        ).with_output_types(Records)


@dataclasses.dataclass(eq=False)
class FilterRecords(beam.PTransform):
    """`Records` -> `Records`: keeps the records for which `function(record)` is True.

    False drops the record (counted as `filtered`); a string rejects it, with that string as the reason.
    An exception in `function` ends the run and names the record.
    """

    function: Callable[[Record], bool | str]

    def __post_init__(self) -> None:
        super().__init__()
        _check_callable(self.function)

    def expand(self, records: beam.PCollection[Records]) -> beam.PCollection[Records]:
        return records | beam.Map(filter_records, self.function).with_output_types(Records)


@dataclasses.dataclass(eq=False)
class MapRecords(beam.PTransform):
    """`Records` -> `Records`: puts `function(record)`, a dict, in each record's place.

    A string rejects the record, with that string as the reason. An exception ends the run and names the record.
    """

    function: Callable[[Record], Record | str]

    def __post_init__(self) -> None:
        super().__init__()
        _check_callable(self.function)

    def expand(self, records: beam.PCollection[Records]) -> beam.PCollection[Records]:
        return records | beam.Map(map_records, self.function).with_output_types(Records)


@dataclasses.dataclass(eq=False)
class AdaptRecords(beam.PTransform):
    """`Records` -> `Records`: records of another shape (ShareGPT, Alpaca) become those that sections read.

    Attributes:
        adapter: see `beam_prep.core.reading.adapters.adapter`.
    """

    adapter: Adapter

    def __post_init__(self) -> None:
        super().__init__()

    def expand(self, records: beam.PCollection[Records]) -> beam.PCollection[Records]:
        return records | beam.Map(adapt_records, self.adapter).with_output_types(Records)


def _check_callable(function: Any) -> None:
    if not callable(function):
        raise ValueError(f"wanted a function on one record, got {function!r}")
