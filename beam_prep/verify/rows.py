"""Rows: whether their values are possible at all, whatever they were made from."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from beam_prep.data.ragged import Array, Ragged, offsets_of
from beam_prep.data.schema import IGNORE_INDEX, METADATA_ROLES, Column
from beam_prep.shards.pack import cuts_rows

Part = Mapping[str, Ragged]


@dataclass(frozen=True, slots=True)
class Promises:
    """Of the rows of an output. None: the manifest does not say, as that of a chain written by hand.

    Attributes:
        max_id: the largest id.
        pad_id: what pads the ids of rows.
        multiple: of which the length of every padded row is one.
        longest: tokens of a sequence, or of a document in a packed row.
        capacity: tokens of a packed row.
        positions: `doc_reset` or `continuous`.
        trained: columns of masks or labels in which every row has a trained token.
        counts_cut: a row that was cut has a sequence of `longest` tokens.
        from_config: the config made the rows: its lists and values have equal lengths.
        files: how many inputs there are.
    """

    max_id: int | None = None
    pad_id: int | None = None
    multiple: int | None = None
    longest: int | None = None
    capacity: int | None = None
    positions: str | None = None
    trained: frozenset[str] = frozenset()
    counts_cut: bool = False
    from_config: bool = False
    files: int | None = None


def promises_of(manifest: Mapping[str, Any], columns: Sequence[Column], vocabulary: "Vocabulary | None") -> Promises:
    """What a manifest promises.

    Args:
        manifest: the manifest.
        columns: of every row.
        vocabulary: of the tokenizer that made the output, if it is known.
    """
    max_id, pad_id = (None, None) if vocabulary is None else (vocabulary.max_id, vocabulary.pad_id)
    config = manifest.get("config")
    if config is None:
        return Promises(max_id, pad_id, files=len(manifest["inputs"]))
    rules, output = config["preprocessing"], config["output"]
    packing, padding = rules["packing_strategy"], rules["padding"]
    chunks = rules["truncation_mode"] == "chunk"  # which are cut after labels are shifted
    longest = rules["max_seq_len"] - (not chunks and any(column.shifted for column in columns))
    capacity = None if packing == "none" else rules["max_packed_len"] or rules["max_seq_len"]
    cuts = cuts_rows(packing)
    totals = manifest["totals"]["trained"]
    return Promises(
        max_id=max_id,
        pad_id=pad_id,
        multiple={"none": None, "max_length": rules["max_seq_len"]}.get(padding, padding),
        longest=longest if capacity is None else min(longest, capacity),
        capacity=capacity,
        positions=output.get("position_ids_mode") or ("none" if capacity is None else "doc_reset"),
        # A column that cannot train, of prompts, has nothing trained at all.
        trained=frozenset(
            column.name
            for column in columns
            if column.role in ("mask", "labels") and totals.get(column.name) and rules["rows_without_loss"] != "keep"
        )
        if capacity is None
        else frozenset(),
        counts_cut=(packing == "none" or cuts)
        and rules["truncation_mode"] in ("keep_start", "keep_end")
        and output["columns"] != "prompt_completion",  # whose parts are shorter
        from_config=True,
        files=len(manifest["inputs"]),
    )


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The ids of a tokenizer.

    Attributes:
        max_id: the largest.
        pad_id: the one that pads rows; None: the tokenizer names neither a PAD token nor an EOS token.
    """

    max_id: int
    pad_id: int | None


_ALIGNED = ("mask", "labels", "weights", "token_value", "attention", "position")
"""Roles of columns with a value for each id."""


class RowChecks:
    """Checks the rows of a shard, part by part.

    Args:
        columns: what every row has.
        promises: what the manifest says of them.

    Attributes:
        documents: rows, or the documents in packed rows, so far.
        full: of these, how many have as many tokens as a sequence may have: all that were cut are among them.
    """

    def __init__(self, columns: Sequence[Column], promises: Promises) -> None:
        self._promises = promises
        self._by_role: dict[str, list[Column]] = {}
        for column in columns:
            self._by_role.setdefault(column.role, []).append(column)
        self._found: dict[str, tuple[int, str]] = {}
        self._rows = 0
        self.documents = self.full = 0

    def add(self, part: Part, trained: Mapping[str, Array]) -> None:
        """Checks the next rows of the shard; `trained`: of each column of masks or labels, see `trained_of`."""
        ids = self._by_role.get("ids", [])
        for column in ids:
            self._in_vocabulary(column.name, part[column.name], None)
        for column in self._all("value", "token_value"):
            values = part[column.name]
            if values.flat.dtype.kind == "f" and not np.isfinite(values.flat).all():
                self._flag(values, ~np.isfinite(values.flat), f"of {column.name!r} holds {{}}, wanted numbers")
        for column in (*self._all("text"), *self._all("string")):
            self._texts(column, part)
        for column in self._all(*METADATA_ROLES):
            self._metadata(column, part)
        aligned = all(
            [self._lengths(column, part) for column in self._all(*_ALIGNED)]  # noqa: C419
        )  # each is told
        for column in (*self._all("mask"), *self._all("attention")):
            self._bits(column.name, part[column.name])
        starts = self._starts(part)
        if aligned and starts is not None:
            ends = self._padding(part, starts)
            for column in self._all("labels"):
                self._labels(column, part, ends)
            for column in self._all("weights"):
                self._weights(column, part)
            for column in self._all("position"):
                self._positions(column, part, starts)
        self._lists(part)
        for name in self._promises.trained:
            text = f"of {name!r} trains no token, wanted at least one"
            self._flag_rows(np.flatnonzero(trained[name] == 0), text)
        self._rows += len(next(iter(part.values())))

    def problems(self) -> Iterator[str]:
        """One line for each kind: its first row, and how many there are."""
        for count, text in self._found.values():
            yield text if count == 1 else f"{text} ({count} rows)"

    def _all(self, *roles: str) -> list[Column]:
        return [column for role in roles for column in self._by_role.get(role, [])]

    def _of(self, column: Column) -> str | None:
        """The ids that a column belongs to."""
        ids = self._by_role.get("ids", [])
        return column.of if column.of is not None else (ids[0].name if ids else None)

    def _flag_rows(self, rows: Array, text: str, *shown: Array) -> None:
        """Counts rows that are wrong; `shown`: arrays over all rows, of which the text shows the first wrong one's."""
        if not len(rows):
            return
        if text in self._found:
            count, first = self._found[text]
            self._found[text] = count + len(rows), first
            return
        values = (array[rows[0]] for array in shown)
        self._found[text] = len(rows), f"row {self._rows + int(rows[0])} {text.format(*values)}"

    def _flag(self, rows: Ragged, wrong: Array, text: str) -> None:
        """The same for values: `wrong` is bool, one for each innermost value of `rows`."""
        places = np.flatnonzero(wrong)
        if len(places):
            which = np.unique(np.searchsorted(_borders(rows), places, "right") - 1)
            first = np.broadcast_to(rows.flat[places[0]], len(rows))
            self._flag_rows(which, text, first)

    def _in_vocabulary(self, name: str, rows: Ragged, nothing: int | None) -> None:
        """Ids are from 0 to the largest; `nothing`: the value of a label that is none."""
        flat, most = rows.flat, self._promises.max_id
        if not len(flat):
            return
        low, high = int(flat.min()), int(flat.max())
        if (most is not None and high > most) or low < (0 if nothing is None else nothing):
            wrong = flat < (0 if nothing is None else nothing)
            wrong |= False if most is None else flat > most
            self._flag(rows, wrong, f"of {name!r} holds {{}}, wanted ids from 0 to {'any' if most is None else most}")
        if nothing is not None and low < 0:
            wrong = (flat < 0) & (flat != nothing)
            if wrong.any():
                self._flag(rows, wrong, f"of {name!r} holds {{}}, wanted {nothing} or an id")

    def _lengths(self, column: Column, part: Part) -> bool:
        """A column has as many values as its ids, row by row, list by list."""
        of = self._of(column)
        if of is None:
            return False
        rows, ids = part[column.name], part[of]
        found, wanted = rows.flat_lengths, ids.flat_lengths
        wrong = found != wanted
        if not wrong.any() and isinstance(rows.values, Ragged) and isinstance(ids.values, Ragged):
            found, wanted = rows.lengths, ids.lengths  # of lists
            wrong = found != wanted
            if not wrong.any() and not np.array_equal(rows.values.offsets, ids.values.offsets):
                places = np.flatnonzero(rows.values.lengths != ids.values.lengths)
                in_rows = np.unique(np.searchsorted(rows.offsets, places, "right") - 1)
                text = f"has lists of {column.name!r} of other lengths than those of {of!r}"
                self._flag_rows(in_rows, text)
                return False
        self._flag_rows(
            np.flatnonzero(wrong),
            f"has {{}} and {{}} values of {column.name!r} and {of!r}, wanted as many of each",
            found,
            wanted,
        )
        return not wrong.any()

    def _bits(self, name: str, rows: Ragged) -> None:
        flat = _plain(rows.flat)
        if len(flat) and (flat.max() > 1 or flat.min() < 0):
            self._flag(rows.with_flat(flat), (flat != 0) & (flat != 1), f"of {name!r} holds {{}}, wanted 0 or 1")

    def _starts(self, part: Part) -> Array | None:
        """Borders of the documents, in tokens; of the rows where they are not packed. None: they make no sense."""
        ids = self._by_role.get("ids", [])
        longest = self._promises.longest
        if not ids:
            return None
        for column in self._all("lengths"):
            lengths, rows = part[column.name], part[str(self._of(column))]
            sizes = lengths.flat.astype(np.int64)
            self._flag(lengths, sizes <= 0, f"of {column.name!r} holds {{}}, wanted lengths above 0")
            sums = lengths.sums(sizes)
            self._flag_rows(
                np.flatnonzero(sums != rows.lengths),
                f"of {column.name!r} adds up to {{}} tokens, wanted {{}}",
                sums,
                rows.lengths,
            )
            most = self._promises.capacity
            if most is not None:
                self._flag_rows(
                    np.flatnonzero(rows.lengths > most),
                    f"has {{}} tokens, wanted at most {most}",
                    rows.lengths,
                )
            self._long(ids[0].name, lengths, sizes)
            self.documents += len(sizes)
            self.full += int(np.count_nonzero(sizes == longest))
            if (sizes <= 0).any() or not np.array_equal(sums, rows.lengths):
                return None
            return offsets_of(sizes)
        full = np.zeros(len(part[ids[0].name]), bool)
        for column in ids:
            rows = part[column.name]
            sizes = rows.values.lengths if isinstance(rows.values, Ragged) else self._real(part, rows)
            self._long(column.name, rows if isinstance(rows.values, Ragged) else None, sizes)
            if longest is not None and (sizes == longest).any():
                reached = np.flatnonzero(sizes == longest)
                full[reached if rows.depth == 1 else np.searchsorted(rows.offsets, reached, "right") - 1] = True
        self.documents += len(full)
        self.full += int(np.count_nonzero(full))
        return part[ids[0].name].offsets if ids[0].depth == 1 else None

    def _long(self, name: str, rows: Ragged | None, lengths: Array) -> None:
        """No sequence has more tokens than the config allows; `rows`: the rows that sequences are in, if not rows."""
        longest = self._promises.longest
        if longest is not None and (wrong := np.flatnonzero(lengths > longest)).size:
            in_rows = wrong if rows is None else np.unique(np.searchsorted(rows.offsets, wrong, "right") - 1)
            first = np.broadcast_to(lengths[wrong[0]], int(in_rows[0]) + 1)
            text = f"of {name!r} has a sequence of {{}} tokens, wanted at most {longest}"
            self._flag_rows(in_rows, text, first)

    def _real(self, part: Part, rows: Ragged) -> Array:
        """int64 [rows]: tokens without padding."""
        for column in self._all("attention"):
            if np.array_equal(part[column.name].offsets, rows.offsets):
                return part[column.name].sums(_plain(part[column.name].flat))
        return rows.lengths

    def _padding(self, part: Part, starts: Array) -> Array:
        """Checks padding. Gives the last token of each document, where a shifted label has no token after it."""
        attention = self._all("attention")
        if not attention:
            return starts[1:] - 1
        rows = part[attention[0].name]
        mask = _plain(rows.flat)
        real = rows.sums(mask)
        places = np.arange(len(mask)) - np.repeat(rows.offsets[:-1], rows.lengths)
        is_padding = places >= np.repeat(real, rows.lengths)
        name = attention[0].name
        self._flag(rows, (mask == 0) != is_padding, f"of {name!r} has 0 before 1, wanted padding at the end")
        if self._promises.multiple is not None:
            multiple = self._promises.multiple
            wanted = -(-np.maximum(real, 1) // multiple) * multiple
            self._flag_rows(
                np.flatnonzero(rows.lengths != wanted),
                f"has {{}} values, wanted {{}}: {{}} tokens, and padding to a multiple of {multiple}",
                rows.lengths,
                wanted,
                real,
            )
        for column in self._all("ids"):
            pad = self._promises.pad_id
            values = part[column.name]
            if pad is not None:
                text = f"of {column.name!r} holds {{}} as padding, wanted {pad}"
                self._flag(values, is_padding & (values.flat != pad), text)
        for column, nothing in [(c, 0) for c in self._all("mask")] + [(c, IGNORE_INDEX) for c in self._all("labels")]:
            values = part[column.name].with_flat(_plain(part[column.name].flat))
            text = f"of {column.name!r} holds {{}} at padding, wanted {nothing}"
            self._flag(values, is_padding & (values.flat != nothing), text)
        if len(starts) != len(rows.offsets):  # packed and padded
            return starts[1:] - 1
        return rows.offsets[:-1] + np.maximum(real, 1) - 1

    def _labels(self, column: Column, part: Part, ends: Array) -> None:
        """A label is its token, or the one after it, or none."""
        rows, ids = part[column.name], part[str(self._of(column))]
        labels, tokens = rows.flat, ids.flat
        self._in_vocabulary(column.name, rows, IGNORE_INDEX)
        if not column.shifted:
            wrong = (labels != tokens) & (labels != IGNORE_INDEX)
            self._flag(rows, wrong, f"of {column.name!r} holds {{}}, wanted {IGNORE_INDEX} or the id at its place")
            return
        wrong = np.zeros(len(labels), bool)
        wrong[:-1] = (labels[:-1] != tokens[1:]) & (labels[:-1] != IGNORE_INDEX)
        wrong[ends[(ends >= 0) & (ends < len(wrong))]] = False  # the token after it is not in the row
        self._flag(rows, wrong, f"of {column.name!r} holds {{}}, wanted {IGNORE_INDEX} or the id after its place")

    def _texts(self, column: Column, part: Part) -> None:
        """Texts are UTF-8."""
        rows = part[column.name]
        for row, found in enumerate(rows):
            try:
                for text in found if isinstance(found, Ragged) else [found]:
                    np.asarray(text).tobytes().decode()
            except UnicodeDecodeError:
                self._flag_rows(np.array([row]), f"of {column.name!r} holds bytes that are no UTF-8")

    def _metadata(self, column: Column, part: Part) -> None:
        """A row has one value, a packed row as many as documents; places are in files that the manifest lists."""
        rows = part[column.name]
        if column.depth:
            for lengths in self._all("lengths"):
                found, wanted = rows.lengths, part[lengths.name].lengths
                text = f"has {{}} of {column.name!r} for {{}} documents, wanted one each"
                self._flag_rows(np.flatnonzero(found != wanted), text, found, wanted)
        elif column.role != "string":
            self._flag_rows(np.flatnonzero(rows.lengths != 1), f"has not one value of {column.name!r}")
        if column.role == "number" and rows.flat.dtype.kind == "f":
            self._flag(rows, ~np.isfinite(rows.flat), f"of {column.name!r} holds {{}}, wanted numbers")
        if column.role == "file":
            files = self._promises.files
            most = np.inf if files is None else files - 1
            wrong = (rows.flat < 0) | (rows.flat > most)
            self._flag(rows, wrong, f"of {column.name!r} holds {{}}, wanted the number of one of {files} inputs")
        if column.role == "offset":
            self._flag(rows, rows.flat < 0, f"of {column.name!r} holds {{}}, wanted a place from 0 on")

    def _weights(self, column: Column, part: Part) -> None:
        """A weight is a number above 0 where the loss is taken, else 0."""
        rows = part[column.name]
        wrong = ~np.isfinite(rows.flat) | (rows.flat < 0)
        self._flag(rows, wrong, f"of {column.name!r} holds {{}}, wanted weights from 0 on")
        for loss in self._all("mask", "labels"):
            if self._of(loss) == self._of(column):
                trained = _plain(part[loss.name].flat) != (0 if loss.role == "mask" else IGNORE_INDEX)
                text = f"of {column.name!r} holds {{}}, wanted weights above 0 where {loss.name!r} trains, else 0"
                self._flag(rows, ~wrong & ((rows.flat > 0) != trained), text)

    def _positions(self, column: Column, part: Part, starts: Array) -> None:
        """Positions count from 0, in every document or through the row."""
        rows = part[column.name]
        by_mode = {"doc_reset": starts, "continuous": rows.offsets}
        known = self._promises.positions
        modes = [known] if known in by_mode else list(by_mode)
        wrong = [_not_counted(rows.flat, by_mode[mode]) for mode in modes]
        if all(each.any() for each in wrong):
            per = "document" if modes == ["doc_reset"] else "row" if modes == ["continuous"] else "document or row"
            self._flag(
                rows, wrong[0], f"of {column.name!r} holds {{}} at the wrong place, wanted 0, 1, 2 ... in every {per}"
            )

    def _lists(self, part: Part) -> None:
        """A row has as many lists of each kind, and as many values as lists, or a single value."""
        lists = [column for column in self._all("ids") if column.depth == 2]
        if not lists or not self._promises.from_config:
            return
        wanted = part[lists[0].name].lengths
        for column in (*lists[1:], *self._all("value")):
            found = part[column.name].lengths
            wrong = (found != wanted) & ((found > 1) | (column.role == "ids"))
            text = f"has {{}} and {{}} of {lists[0].name!r} and {column.name!r}, wanted as many of each"
            self._flag_rows(np.flatnonzero(wrong), text, wanted, found)


def trained_of(column: Column, rows: Ragged) -> Array:
    """int64 [rows]: trained tokens of each, by a column of masks or labels."""
    return rows.sums(rows.flat != (0 if column.role == "mask" else IGNORE_INDEX))


def _borders(rows: Ragged) -> Array:
    """Of the rows, in innermost values."""
    return rows.values.offsets[rows.offsets] if isinstance(rows.values, Ragged) else rows.offsets


def _plain(values: Array) -> Array:
    """Bools as the bytes they are: a file may hold others than 0 and 1."""
    return values.view(np.uint8) if values.dtype == bool else values


def _not_counted(values: Array, starts: Array) -> Array:
    """bool: where values do not count 0, 1, 2 ... from each of the starts on (the last one is the end)."""
    wrong = np.zeros(len(values), bool)
    wrong[1:] = values[1:] != values[:-1] + 1
    first = starts[:-1][starts[:-1] < starts[1:]]
    wrong[first] = values[first] != 0
    return wrong
