"""Records of a block as columns: parsed by Arrow, rendered without an object a record or a message.

This is for plain records: the fields that make the rows are texts, lists of messages with a role and a content each (or
`from` and `value`), lists of texts, or numbers; all other fields hold plain values. A block with anything else, or with
anything that Arrow's parser might read in another way than `records.parse`, is parsed by `records.parse`; parts of it
without such a record are columns all the same.
"""

import functools
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beam_prep.core.data.on_demand import OnDemand
from beam_prep.core.data.ragged import Array, Ragged, changes, check_narrow, narrow, offsets_of

KEYS = ("role", "content")
"""Keys of a message as chat templates want it."""
_SEEN_BY_TEMPLATES = ("tools", "chat_template_kwargs")
# White space beyond ASCII: its first two bytes, and its last byte but one.
_SPACE_BEGINS = ((0xC2, 0x85), (0xC2, 0xA0), (0xE1, 0x9A), (0xE2, 0x80), (0xE2, 0x81), (0xE3, 0x80))
_SPACE_ENDS = (0xC2, 0x9A, 0x80, 0x81)

RecordKind = Literal["texts", "chats", "lists", "numbers"]


class Wanted(NamedTuple):
    """The records to parse as columns, by the kind of a field.

    Attributes:
        kind: `texts`: it holds a text; `chats`: a list of messages; `lists`: a list of texts; `numbers`: a number, or a
            list of numbers.
        field: the name of the field.
        keys: of a message: of its role and of its content.
        others: the same of other fields.
    """

    kind: RecordKind
    field: str
    keys: tuple[str, str] = KEYS
    others: tuple["Wanted", ...] = ()

    @property
    def each(self) -> tuple["Wanted", ...]:
        """This field, and the others."""
        return (self, *self.others)


class Texts(OnDemand[str]):
    """Texts in one array. They become Python strings when they are accessed.

    Attributes:
        array: Arrow strings. The length of a null is 0.
    """

    def __init__(self, array: pa.StringArray, characters: Array | None = None) -> None:
        """From an array, and the lengths of its texts if they are known."""
        self.array = array
        if characters is not None:
            self.characters = characters

    def __len__(self) -> int:
        return len(self.array)

    def _at(self, index: int) -> str:
        text: str = self.array[index].as_py()
        return text

    def __iter__(self) -> Iterator[str]:
        return iter(self.array.to_numpy(zero_copy_only=False).tolist())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def take(self, places: Array) -> "Texts":
        """The texts at these places, in that order."""
        known = self.characters[places] if "characters" in vars(self) else None
        return Texts(self.array.take(pa.array(places)), known)

    @functools.cached_property
    def data(self) -> tuple[Array, Array]:
        """(UTF-8, uint8 [bytes]; borders of the texts, int64 [texts + 1])."""
        _, offsets, data = self.array.buffers()
        borders = np.frombuffer(offsets, np.int32, len(self) + 1, 4 * self.array.offset).astype(np.int64)
        return (np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)), borders

    @functools.cached_property
    def characters(self) -> Array:
        """int64: their lengths."""
        data, borders = self.data
        if data[borders[0] : borders[-1]].max(initial=0) < 0x80:
            return np.diff(borders)
        return np.asarray(pc.fill_null(pc.utf8_length(self.array), 0)).astype(np.int64)


# The same measures of any sequence of texts.


def characters(texts: Sequence[str]) -> Array:
    """int64: lengths of texts."""
    return texts.characters if isinstance(texts, Texts) else np.fromiter(map(len, texts), np.int64, len(texts))


def sizes(texts: Sequence[str]) -> Array:
    """int64: bytes of texts (UTF-8)."""
    if isinstance(texts, Texts):
        return np.diff(texts.data[1])
    return np.fromiter((len(text) if text.isascii() else len(text.encode()) for text in texts), np.int64, len(texts))


def utf8(texts: Sequence[str]) -> tuple[Array, Array]:
    """(UTF-8 of all texts, uint8 [bytes]; their borders in it, int64 [texts + 1])."""
    if isinstance(texts, Texts):
        data, borders = texts.data
        return data[borders[0] : borders[-1]], borders - borders[0]
    return np.frombuffer("".join(texts).encode(), np.uint8), offsets_of(sizes(texts))


def measure(texts: Sequence[str]) -> Array:
    """int64: lengths of texts, in bytes or in characters, whichever is faster."""
    return sizes(texts) if isinstance(texts, Texts) else characters(texts)


def take(texts: Sequence[str], places: Array) -> Sequence[str]:
    """The texts at these places, in that order."""
    return texts.take(places) if isinstance(texts, Texts) else [texts[place] for place in places.tolist()]


@dataclass(frozen=True, slots=True)
class Columns:
    """The records of a block, and the texts of one of their fields.

    Attributes:
        kind, field, keys: see `Wanted`; never `numbers`.
        table: the records as Arrow parsed them.
        offsets: int64 [rows + 1], borders of rows, in texts.
        text: the text of each record, the contents of its messages, or the texts of its list.
        role: int32 [texts], codes of the messages' roles.
        plain: bool [rows]: no text is missing, and of chats, no other field that chat templates use is set.
    """

    kind: RecordKind
    field: str
    keys: tuple[str, str]
    table: pa.Table
    offsets: Array
    text: Texts
    role: Array
    plain: Array

    def __len__(self) -> int:
        return len(self.plain)

    def are(self, wanted: Wanted | None) -> bool:
        """True if these are the texts of the wanted field."""
        return wanted is not None and (self.kind, self.field, self.keys) == wanted[:3]

    def of(self, kind: RecordKind, field: str) -> "Columns | None":
        """The same records, with the texts of another field; None where it is no field of that kind."""
        wanted = Wanted(kind, field)
        if self.are(wanted):
            return self
        known = field in self.table.column_names and fits(self.table[field].type, wanted)
        return columns_of(self.table, wanted) if known else None

    def strings(self, field: str) -> list[str | None] | None:
        """A field's texts; None where it is no field of texts."""
        if field not in self.table.column_names or self.table[field].type != pa.string():
            return None
        found: list[str | None] = self.table[field].to_pylist()
        return found

    def utf8(self, field: str) -> list[bytes | None] | None:
        """A field's texts as UTF-8; None where it is no field of texts."""
        if field not in self.table.column_names or self.table[field].type != pa.string():
            return None
        found: list[bytes | None] = self.table[field].cast(pa.binary()).to_pylist()
        return found

    def role_names(self) -> dict[int, str]:
        """Code of `role` -> the role."""
        codes, first = np.unique(self.role, return_index=True)
        return dict(zip(codes.tolist(), self.role_array.take(pa.array(first)).to_pylist(), strict=True))

    @property
    def role_array(self) -> pa.StringArray:
        """The roles of all messages."""
        return array_of(self.table[self.field]).flatten().field(self.keys[0])

    def take(self, rows: Array) -> "Columns":
        """Rows by number."""
        table = self.table.take(pa.array(rows)).combine_chunks()
        texts = Ragged(np.arange(len(self.text)), self.offsets).take(rows)
        return replace(
            self,
            table=table,
            text=self.text.take(texts.flat),
            offsets=texts.offsets,
            role=self.role[texts.flat],
            plain=self.plain[rows],
        )

    def spread(self, places: Array, count: int) -> "Columns":
        """The rows at these places, ascending, among so many; there is nothing in the others."""
        of_row: Array = np.full(count, -1, np.int64)
        of_row[places] = np.arange(len(places))
        lengths, plain = np.zeros(count, np.int64), np.zeros(count, bool)
        lengths[places], plain[places] = np.diff(self.offsets), self.plain
        table = self.table.take(pa.array(of_row, mask=of_row < 0)).combine_chunks()
        if self.kind != "texts":
            return replace(self, table=table, offsets=offsets_of(lengths), plain=plain)
        text, role = Texts(array_of(table[self.field])), np.zeros(count, np.int32)
        return replace(self, table=table, offsets=np.arange(count + 1), text=text, role=role, plain=plain)

    def patterns(self, rows: Array | None = None, counts: Array | None = None) -> list[Array]:
        """The rows (ascending) of each sequence of roles in the block, of rows that are `plain` and have messages.

        The sequences are in the order of their first rows.

        Args:
            rows: bool [rows]: those that are looked at; None: all.
            counts: int64 [rows, n]: rows of one pattern have the same.
        """
        wanted = self.plain & (np.diff(self.offsets) > 0)
        some = np.flatnonzero(wanted if rows is None else wanted & rows)
        codes = _numbered(self.role, self.offsets)[some]
        if counts is not None:
            width = counts.shape[1]
            codes = codes * len(counts) + _numbered(counts.ravel(), np.arange(len(counts) + 1) * width)[some]
        order = np.argsort(codes, kind="stable")
        found = np.split(some[order], changes(codes[order])[1:])
        return sorted(found, key=lambda each: int(each[0])) if len(some) else []

    def alone(self) -> "Columns":
        """Each of the messages as a row."""
        return replace(self, offsets=np.arange(len(self.text) + 1), plain=np.ones(len(self.text), bool))

    def ends(self) -> tuple[Array, Array]:
        """See `ends_of`."""
        return ends_of(self.text)

    def rows_with(self, pattern: re.Pattern[bytes]) -> Array:
        """bool [rows]: a text may match a pattern. (A match across two texts counts too.)"""
        data, borders = self.text.data
        found = np.zeros(len(self), bool)
        by_row = borders[self.offsets]
        for match in pattern.finditer(data.data):
            first, last = np.searchsorted(by_row, [match.start(), match.end() - 1], side="right") - 1
            found[max(first, 0) : last + 1] = True
        return found


def ends_of(texts: Texts) -> tuple[Array, Array]:
    """(bool [texts], bool [texts]): the text certainly does not begin, and does not end, with white space."""
    data, borders = texts.data
    filled = np.flatnonzero(borders[1:] > borders[:-1])
    begin, end = borders[filled], borders[filled + 1] - 1
    # Where a byte has no neighbour, it is a character of its own, and the neighbour does not count.
    first, second = data[begin], data[np.minimum(begin + 1, len(data) - 1)]
    unclear = first <= 0x20
    for one, two in _SPACE_BEGINS:
        unclear |= (first == one) & (second == two)
    last, before = data[end], data[np.maximum(end - 1, 0)]
    begins, ends = np.zeros((2, len(texts)), bool)
    begins[filled] = ~unclear
    ends[filled] = ~((last <= 0x20) | ((last >= 0x80) & np.isin(before, _SPACE_ENDS)))
    return begins, ends


def columns_of(table: pa.Table, wanted: Wanted) -> Columns:
    """A table of one chunk, with the texts of the wanted field."""
    kind, field, keys, _ = wanted
    values, rows = array_of(table[field]), len(table)
    if kind == "texts":
        return Columns(
            kind, field, keys, table, np.arange(rows + 1), Texts(values), np.zeros(rows, np.int32), ~_nulls(values)
        )
    items, offsets = values.flatten(), lists_of(values)
    if kind == "lists":
        plain = rows_without(_nulls(items), offsets)
        return Columns(kind, field, keys, table, offsets, Texts(items), np.zeros(len(items), np.int32), plain)
    roles, contents = map(items.field, keys)
    missing = _nulls(roles) | _nulls(contents)
    plain = rows_without(missing, offsets) & have_none(table, _SEEN_BY_TEMPLATES)
    return Columns(kind, field, keys, table, offsets, Texts(contents), _codes(roles), plain)


def _numbered(values: Array, offsets: Array) -> Array:
    """int64 [rows]: the same number for rows that have the same values, less than the number of rows."""
    borders, values = pa.py_buffer(offsets * values.itemsize), np.ascontiguousarray(values)
    rows = pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, [None, borders, pa.py_buffer(values)])
    return np.asarray(rows.dictionary_encode().indices).astype(np.int64)


def array_of(column: pa.ChunkedArray) -> pa.Array:
    """A column of a table of one chunk; one of no rows may have none."""
    return column.chunk(0) if column.num_chunks else pa.array([], column.type)


def lists_of(values: pa.ListArray) -> Array:
    """int64 [rows + 1]: the borders of lists in `values.flatten()`; a null has nothing."""
    return offsets_of(np.asarray(pc.fill_null(pc.list_value_length(values), 0)).astype(np.int64))


def chats(table: pa.Table, field: str, offsets: Array, roles: pa.StringArray, texts: Texts, plain: Array) -> Columns:
    """Conversations that were made of other columns.

    Args:
        table: the records, without the conversations.
        field: the name that these get.
        offsets: int64 [rows + 1], borders of rows, in messages.
        roles, texts: of the messages.
        plain: bool [rows]: see `Columns`; rows that templates see more of are none.
    """
    messages = pa.StructArray.from_arrays([roles, texts.array], list(KEYS))
    lists = pa.ListArray.from_arrays(pa.array(narrow(offsets)), messages)
    plain = plain & have_none(table, _SEEN_BY_TEMPLATES)
    return Columns("chats", field, KEYS, table.append_column(field, lists), offsets, texts, _codes(roles), plain)


def _codes(roles: pa.StringArray) -> Array:
    """int32 [messages]: see `Columns.role`; -1: null."""
    return np.asarray(pc.fill_null(roles.dictionary_encode().indices, -1)).astype(np.int32)


def rows_without(marked: Array, offsets: Array) -> Array:
    """bool [rows]: none of the texts of a row is marked."""
    found: Array = Ragged(marked, offsets).sums(marked.astype(np.int64)) == 0
    return found


def have_none(table: pa.Table, names: Iterable[str]) -> Array:
    """bool [rows]: none of these fields is set."""
    found = np.ones(len(table), bool)
    for name in set(names) & set(table.column_names):
        found &= _nulls(table[name])
    return found


def _nulls(values: pa.Array | pa.ChunkedArray) -> Array:
    # Arrow gives booleans one by one.
    return np.asarray(values.is_null()) if values.null_count else np.zeros(len(values), bool)


NUMBERS = (pa.float64(), pa.list_(pa.float64()))


def messages_of(keys: Iterable[str]) -> pa.DataType:
    """The type of a field of messages with these keys, in this order."""
    return pa.list_(pa.struct([(key, pa.string()) for key in keys]))


def fits(found: pa.DataType | None, wanted: Wanted) -> bool:
    """True if a field of this type is of that kind."""
    if wanted.kind == "chats":
        return found in (messages_of(wanted.keys), messages_of(reversed(wanted.keys)))
    if wanted.kind == "numbers":
        return found in NUMBERS
    return bool(found == (pa.string() if wanted.kind == "texts" else pa.list_(pa.string())))


def join(texts: Texts, constants: Sequence[str], pieces: Ragged, characters: Array) -> Texts:
    """Joins texts.

    Args:
        texts: of messages.
        constants: the texts between them.
        pieces: int64, one row a result: indexes into `texts`, and from its length on into `constants`.
        characters: int64, lengths of the results.

    Raises:
        RunError: the results take more bytes than an array of texts holds.
    """
    between = pa.array(constants, pa.string())
    # Arrow's `take` would give texts with borders that fell below 0.
    taken = np.concatenate([sizes(texts), sizes(Texts(between))])[pieces.flat]
    check_narrow(int(taken.sum()), "bytes of text")
    values = pa.concat_arrays([texts.array, between]).take(pa.array(pieces.flat))
    lists = pa.ListArray.from_arrays(pa.array(narrow(pieces.offsets)), values)
    return Texts(pc.binary_join(lists, ""), characters)


_MOST_SLICES = 256


def merge(texts: Sequence[str], others: Texts, order: Array | None = None) -> Texts:
    """Texts and others as one array.

    Args:
        texts, others: the texts.
        order: int64: the number of each, those of `others` counted after those of `texts`; None: first the ones, then
            the others.

    Raises:
        RunError: they take more bytes than an array of texts holds.
    """
    if not texts and order is None:
        return others
    check_narrow(int(sizes(texts).sum()) + int(sizes(others).sum()), "bytes of text")
    lengths = np.concatenate([characters(texts), others.characters]) if "characters" in vars(others) else None
    arrays, first = [pa.array(texts, pa.string()), others.array], len(texts)
    if order is None:
        return Texts(pa.concat_arrays(arrays), lengths)
    lengths = None if lengths is None else lengths[order]
    # Runs of texts that stay beside each other, none of both arrays.
    breaks = np.flatnonzero((np.diff(order) != 1) | (order[1:] == first)) + 1
    if len(breaks) >= _MOST_SLICES:
        return Texts(pa.concat_arrays(arrays).take(pa.array(order)), lengths)
    slices = []
    for start, stop in itertools.pairwise([0, *breaks.tolist(), len(order)]):
        at = int(order[start]) if stop > start else 0
        slices.append(arrays[at >= first].slice(at - first if at >= first else at, stop - start))
    return Texts(pa.concat_arrays(slices), lengths)


def _places(counts: Array) -> Array:
    """int64: of each item of rows, its number among those of the first column, then the second, and so on."""
    before = offsets_of(counts.ravel())[:-1].reshape(counts.shape)
    found: Array = np.empty(int(counts.sum()), np.int64)
    first = 0
    for starts, lengths in zip(before.T, counts.T, strict=True):
        inside = np.arange(first, first := first + int(lengths.sum()))
        found[np.repeat(starts - offsets_of(lengths)[:-1] - (first - len(inside)), lengths) + inside] = inside
    return found


def chained(columns: Sequence["Columns"]) -> tuple["Columns", Array]:
    """The messages of several fields as one conversation a row; and int64 [rows, columns], how many each has."""
    counts = np.column_stack([np.diff(each.offsets) for each in columns])
    if len(columns) == 1:
        return columns[0], counts
    places = pa.array(_places(counts))
    text = Texts(pa.concat_arrays([each.text.array for each in columns]).take(places))
    roles = pa.concat_arrays([each.role_array for each in columns]).take(places)
    plain = np.logical_and.reduce([each.plain for each in columns])
    offsets = offsets_of(counts.sum(axis=1))
    return replace(columns[0], offsets=offsets, text=text, role=_codes(roles), plain=plain), counts


def end_with(texts: Texts, end: str, always: bool) -> Texts:
    """Texts with an end appended; to those that already have it only if `always`."""
    ends = pa.scalar(end) if always else pc.if_else(pc.ends_with(texts.array, end), "", end)
    return Texts(pc.binary_join_element_wise(texts.array, ends, ""))
