"""Transforms on parsed records."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, get_args

from beam_prep.core.data.carried import CarryType
from beam_prep.core.reading.adapters import Adapter, adapt_records
from beam_prep.core.reading.carry import carry_fields
from beam_prep.core.reading.filters import filter_by_chars, filter_records, map_records
from beam_prep.core.reading.keys import Keys, key_records
from beam_prep.core.reading.records import Record, Records
from beam_prep.transforms.block_step import BlockStep


@dataclasses.dataclass(eq=False)
class FilterByChars(BlockStep):
    """`Records` -> `Records`: a text field outside the limits counts as absent; a record with nothing left is dropped.

    Attributes:
        min_chars, max_chars: code points, both inclusive.
        fields: the text fields that are checked. Records that have none of them pass.

    >>> block = bp.testing.records([{"text": "short"}, {"text": "long enough"}])
    >>> bp.testing.to_rows(bp.FilterByChars(min_chars=8).step()(block))
    [{'text': 'long enough'}]
    """

    min_chars: int = 50
    max_chars: int = 2_000_000
    fields: Sequence[str] = ("text",)

    gives = Records

    def __post_init__(self) -> None:
        super().__init__()
        if not 0 <= self.min_chars <= self.max_chars:
            raise ValueError(f"wanted 0 <= min_chars <= max_chars, got {self.min_chars} and {self.max_chars}")
        if isinstance(self.fields, str):
            self.fields = (self.fields,)

    def step(self) -> Callable[[Records], Records]:
        return partial(filter_by_chars, min_chars=self.min_chars, max_chars=self.max_chars, fields=tuple(self.fields))


@dataclasses.dataclass(eq=False)
class FilterRecords(BlockStep):
    """`Records` -> `Records`: keeps the records for which `function(record)` is True.

    False drops the record (counted as `filtered`); a string rejects it, with that string as the reason.
    An exception in `function` ends the run and names the record.

    >>> block = bp.testing.records([{"text": "one", "score": 0.2}, {"text": "two", "score": 0.9}])
    >>> bp.testing.to_rows(bp.FilterRecords(lambda record: record["score"] > 0.5).step()(block))
    [{'text': 'two', 'score': 0.9}]
    """

    function: Callable[[Record], bool | str]

    gives = Records

    def __post_init__(self) -> None:
        super().__init__()
        _check_callable(self.function)

    def step(self) -> Callable[[Records], Records]:
        return partial(filter_records, function=self.function)


@dataclasses.dataclass(eq=False)
class MapRecords(BlockStep):
    """`Records` -> `Records`: replaces each record by `function(record)`, a dict.

    A string rejects the record, with that string as the reason. An exception ends the run and names the record.

    >>> block = bp.testing.records([{"text": "  one "}])
    >>> bp.testing.to_rows(bp.MapRecords(lambda record: {"text": record["text"].strip()}).step()(block))
    [{'text': 'one'}]
    """

    function: Callable[[Record], Record | str]

    gives = Records

    def __post_init__(self) -> None:
        super().__init__()
        _check_callable(self.function)

    def step(self) -> Callable[[Records], Records]:
        return partial(map_records, function=self.function)


@dataclasses.dataclass(eq=False)
class AdaptRecords(BlockStep):
    """`Records` -> `Records`: converts records of another shape (ShareGPT, Alpaca) to the fields that sections read.

    Attributes:
        adapter: see `beam_prep.core.reading.adapters.adapter`.

    >>> from beam_prep.core.reading.adapters import adapter
    >>> block = bp.testing.records([{"conversations": [{"from": "human", "value": "Hi"}]}])
    >>> bp.testing.to_rows(bp.AdaptRecords(adapter("sharegpt")).step()(block))
    [{'messages': [{'role': 'user', 'content': 'Hi'}]}]
    """

    adapter: Adapter

    gives = Records

    def __post_init__(self) -> None:
        super().__init__()

    def step(self) -> Callable[[Records], Records]:
        return partial(adapt_records, adapt=self.adapter)


@dataclasses.dataclass(eq=False)
class KeyRecords(BlockStep):
    """`Records` -> `Records`: notes the digests by which `Shard` splits and deduplicates.

    It goes before everything that changes records. Without it, `Shard` cannot do either.

    Attributes:
        split: digest records for splits: `split_key`, a field, or the entire record.
        split_key: the field; records without it are rejected (`no_split_key`), unless `reject_missing` is False.
        duplicate: fields; records are equal if the values of all of these are. (): records are not compared.
        normalize: `none`, `whitespace` or `nfkc_casefold`: see `normalized`.

    >>> block = bp.testing.records([{"id": 1, "text": "one"}, {"text": "two"}])
    >>> keyed = bp.KeyRecords(split=True, split_key="id").step()(block)
    >>> keyed.ledger.digests["split"].shape, bp.testing.rejects(keyed)
    ((2,), [(1, 'no_split_key')])
    """

    split: bool = False
    split_key: str | None = None
    reject_missing: bool = True
    duplicate: Sequence[str] = ()
    normalize: Literal["none", "whitespace", "nfkc_casefold"] = "none"

    gives = Records

    def __post_init__(self) -> None:
        super().__init__()
        self.keys = Keys(self.split, self.split_key, self.reject_missing, tuple(self.duplicate), self.normalize)

    def step(self) -> Callable[[Records], Records]:
        return partial(key_records, keys=self.keys)


@dataclasses.dataclass(eq=False)
class Carry(BlockStep):
    """`Records` -> the same `Records`: fields are noted, and become columns of the rows that `Shard` writes.

    It belongs right after the records are read: what steps before it changed is carried along as they changed it. See
    `beam_prep.core.reading.carry.carry_fields` for what fields may hold.

    Attributes:
        fields: field -> `string`, `int32`, `int64`, `float32` or `float64`; or only the fields, as strings. A field is
            the name of its column; `names` of `Shard` gives another.

    >>> block = bp.testing.records([{"id": "a1", "text": "one"}, {"id": 7, "text": "two"}])
    >>> carried = bp.Carry(["id"]).step()(block).ledger.carried
    >>> [bytes(value).decode() for value in carried.values["id"]]
    ['a1', '7']
    """

    fields: Mapping[str, CarryType] | Sequence[str]

    gives = Records

    def __post_init__(self) -> None:
        super().__init__()
        if isinstance(self.fields, str):
            self.fields = (self.fields,)
        fields = dict(self.fields) if isinstance(self.fields, Mapping) else dict.fromkeys(self.fields, "string")
        for name, kind in fields.items():
            if kind not in (known := get_args(CarryType)):
                raise ValueError(f"field {name!r} has type {kind!r}, wanted one of {', '.join(known)}")
        self.fields = fields  # type: ignore[assignment]

    def step(self) -> Callable[[Records], Records]:
        return partial(carry_fields, fields=self.fields)  # type: ignore[arg-type]


def _check_callable(function: Any) -> None:
    if not callable(function):
        raise ValueError(f"wanted a function on one record, got {function!r}")
