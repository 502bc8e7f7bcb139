"""What is shown: a row, as sequences of tokens with masks, roles and padding; its input lines; or a record left out."""

import dataclasses
import functools
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from beam_prep.data.block import COLLECTION, InputFile
from beam_prep.data.ragged import Array, Ragged, offsets_of
from beam_prep.data.schema import NO_LOSS, PROMPT_COMPLETION, Column
from beam_prep.errors import BeamPrepError, InputError, StorageError
from beam_prep.formats import Row
from beam_prep.hints import VISIBLE, counted, shortened
from beam_prep.process import quiet_beam
from beam_prep.readers.dataset import Dataset
from beam_prep.reading.sources import place_at, place_in
from beam_prep.shards.pack import STRATEGIES, cuts_rows
from beam_prep.tokens.batch import is_role_column
from beam_prep.tokens.tokenizer import Tokenizer


class InputLines:
    """Lines of the inputs of an output. Each input is looked up, and compared with the manifest, once.

    Args:
        inputs: the inputs in the manifest. Relative paths are looked up in the current folder.
    """

    def __init__(self, inputs: Sequence[Mapping[str, Any]]) -> None:
        self._listed = {each["path"]: each for each in inputs}
        self._found: dict[str, InputFile] = {}

    def line(self, path: str, offset: int) -> str:
        """The line at an offset of an input.

        Raises:
            InputError, StorageError: the input cannot be read, or differs from the manifest.
        """
        with quiet_beam():  # of Beam
            from beam_prep.storage.inputs import line_at, unchanged_input

        if path not in self._listed:
            raise InputError("the output lists no such input")
        if path not in self._found:
            self._found[path] = unchanged_input(self._listed[path])
        return line_at(self._found[path], offset)

    def at(self, place: Mapping[str, Any]) -> str:
        """The line at the `file` and `offset` of a drop; if it cannot be read, the reason in parentheses."""
        try:
            return self.line(place["file"], place["offset"])
        except (InputError, StorageError) as error:
            return f"(its line cannot be read: {error})"


class SourceLine(NamedTuple):
    """A line of an input; for a table a row as JSON.

    Attributes:
        path: the file, as the manifest lists it.
        offset: the bytes of content before the line; in a table the rows before it.
        text: the line without its end.
    """

    path: str
    offset: int
    text: str


def source_lines(dataset: Dataset, index: int) -> list[SourceLine]:
    """The input line of a row; for a packed row, the line of each document.

    Args:
        dataset: a dataset whose rows have provenance.
        index: the row.

    Raises:
        BeamPrepError: the rows have no provenance; or an input is missing, has changed, or cannot be read. Relative
            paths are looked up in the current folder.
        IndexError, FormatError: see `Dataset`.
    """
    names = {column.role: column.name for column in dataset.schema}
    if not {"file", "offset"} <= names.keys():
        raise BeamPrepError(
            f"{dataset.path} does not say where its rows come from; put provenance: true into `output` of the config, "
            "and make it again"
        )
    row, inputs = dataset[index], dataset.manifest["inputs"]
    files, offsets = (np.atleast_1d(row[names[role]]).tolist() for role in ("file", "offset"))
    lines, found = InputLines(inputs), []
    for file, offset in zip(files, offsets, strict=True):
        path = inputs[file]["path"]
        try:
            found.append(SourceLine(path, offset, lines.line(path, offset)))
        except (InputError, StorageError) as error:
            hint = ""
            if path == COLLECTION:
                hint = "; records of FromRecords are in no file: keep a field that identifies them (bp.KeepFields)"
            raise BeamPrepError(f"row {index} is of {place_at(path, offset)}: {error}{hint}") from None
    return found


_VALUES = 100  # most values of a list that are shown
_TEXT = 1000  # most characters of a text in a column


class Run(NamedTuple):
    """Neighbouring tokens with the same style.

    Attributes:
        trained: True if the tokens are trained.
        special: True if the tokens are special tokens.
        tokens: (id, text) of each token, with control characters made visible.
    """

    trained: bool
    special: bool
    tokens: list[tuple[int, str]]

    @property
    def text(self) -> str:
        return "".join(text for _, text in self.tokens)


@dataclass(frozen=True, eq=False)
class TokenSequence:
    """Tokens of a row.

    Attributes:
        name: the column, with an index if it is a list of lists; in packed rows, the document's number.
        ids: the tokens without padding; with shifted labels, also the last token, which only the labels have.
        trained: bool [len(ids)].
        stored: number of tokens in the column of ids, without padding.
        notes: further remarks.
        padding: (id, count) of each run of equal ids in the padding after the tokens.
        roles: int64 [len(ids)], the number of each token's role; 0: no role, or not certain. None: roles are not known.
    """

    name: str
    ids: Array
    trained: Array
    stored: int
    notes: Sequence[str] = ()
    padding: Sequence[tuple[int, int]] = ()
    roles: Array | None = None


@dataclass(frozen=True)
class RowKind:
    """What rows have in common.

    Attributes:
        schema: their columns.
        tokenizer: decodes tokens; None: tokens are shown as ids.
        config: their config, as in a manifest; {} if it is not known.
    """

    schema: tuple[Column, ...]
    tokenizer: Tokenizer | None
    config: Mapping[str, Any]

    def of_role(self, *roles: str) -> list[Column]:
        """The columns of these roles."""
        return [column for column in self.schema if column.role in roles]

    @functools.cached_property
    def special(self) -> frozenset[int]:
        """The ids of special tokens; none without a tokenizer."""
        return frozenset() if self.tokenizer is None else self.tokenizer.special_ids

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The text of each token, see `Tokenizer.pieces`; without a tokenizer its id."""
        return [f"{token} " for token in ids] if self.tokenizer is None else self.tokenizer.pieces(ids)

    def text(self, ids: Sequence[int]) -> str:
        """The text of tokens."""
        return "".join(self.pieces(ids)) if self.tokenizer is None else self.tokenizer.decode(ids)

    def runs(self, sequence: TokenSequence) -> Iterator[Run]:
        """The tokens of a sequence as runs of text (of ids, without a tokenizer)."""
        ids = sequence.ids.tolist()
        tokens = zip(sequence.trained.tolist(), ids, self.pieces(ids), strict=True)
        styles = itertools.groupby(tokens, lambda token: (token[0], token[1] in self.special))
        for (is_trained, is_special), run in styles:
            yield Run(is_trained, is_special, [(token, piece.translate(VISIBLE)) for _, token, piece in run])

    def trains(self, name: str) -> bool:
        """True if the config trains all tokens of an output without a mask, False if none; `name`: the written column.

        True if there is no config (a chain written by hand).
        """
        given, output = self.config.get("input"), self.config.get("output", {})
        if given is None:
            return True
        names = output.get("names", {})
        given = (given.get("groups") or [given])[0]  # an output without a mask is the same in all groups
        if given.get("rollouts"):
            return bool(name != names.get("prompt_ids", "prompt_ids"))
        column = {written: column for column, written in names.items()}.get(name, name)
        if output.get("columns") == "prompt_completion":
            return bool(column != PROMPT_COMPLETION[2])
        sections = given["sources"][column]["sections"] if given.get("sources") else given["sections"]
        return any(section["action"] not in ("mask", "value") for section in sections)


@dataclass(frozen=True)
class ShownRow:
    """A row to show.

    Attributes:
        kind: what it has in common with other rows.
        row: column -> values; a preview adds the roles of tokens, see `tokens.batch.with_roles`.
        title, notes: the beginning and the end of its header.
        domain: its domain.
        role_names: names of roles; the first has number 1.
    """

    kind: RowKind
    row: Row
    title: Sequence[str]
    domain: str = ""
    notes: Sequence[str] = ()
    role_names: Sequence[str] = ()

    @functools.cached_property
    def parts(self) -> list[TokenSequence | str]:
        """Its sequences of tokens and its lines of text, in the order of the columns. Masks and labels are shown on the
        ids."""
        found: list[TokenSequence | str] = []
        for column in self.kind.schema:
            if column.role == "ids":
                found += self._sequences_of(column)
            elif not self._is_shown_elsewhere(column):
                found.append(f"{column.name}: {_as_line(column, self.row[column.name])}")
        return found

    @property
    def sequences(self) -> list[TokenSequence]:
        return [part for part in self.parts if isinstance(part, TokenSequence)]

    @property
    def packed(self) -> bool:
        """True if the sequences are documents of one packed row."""
        return self._lengths is not None

    @functools.cached_property
    def header(self) -> list[str]:
        """Counts and notes on the entire row. A note on all sequences appears only here."""
        counts = [counts_of(self.sequences)] if self.sequences else []
        return [*counts, *self._shared_notes, *self._layout_notes(), *self.notes]

    def caption(self, sequence: TokenSequence) -> str:
        """The name of a sequence, its counts and notes."""
        notes = [note for note in sequence.notes if note not in self._shared_notes]
        return ", ".join([f"{sequence.name}: {counts_of([sequence])}", *notes])

    def contains(self, pattern: re.Pattern[str]) -> bool:
        """True if a regular expression matches in the text of a sequence, or in a line."""
        parts = self.parts
        texts = (part if isinstance(part, str) else self.kind.text(part.ids.tolist()) for part in parts)
        return any(pattern.search(text) for text in texts)

    @functools.cached_property
    def _shared_notes(self) -> list[str]:
        sequences = self.sequences
        return [note for one in sequences[:1] for note in one.notes if all(note in other.notes for other in sequences)]

    @functools.cached_property
    def _lengths(self) -> Array | None:
        """The lengths of the documents of a packed row; None if the row is not packed."""
        return next((np.asarray(self.row[column.name]) for column in self.kind.of_role("lengths")), None)

    @functools.cached_property
    def _padding(self) -> int:
        """How many tokens at the row's end are padding. In packed rows it is not at the end."""
        masks = () if self.packed else self.kind.of_role("attention")
        return sum(int(np.count_nonzero(np.asarray(self.row[column.name]) == 0)) for column in masks)

    @functools.cached_property
    def _values(self) -> dict[str, list[str]]:
        """Column -> values, for columns with one value for each sequence of a list, such as rewards of responses."""
        lists = [column.name for column in self.kind.of_role("ids") if column.depth == 2]
        count = len(self.row[lists[0]]) if len(lists) == 1 else 0
        names = [column.name for column in self.kind.of_role("value") if column.depth == 1]
        return {name: [*map(str, self.row[name])] for name in names if 0 < len(self.row[name]) == count}

    def _is_shown_elsewhere(self, column: Column) -> bool:
        if column.role in ("mask", "labels"):
            return column.of is not None
        is_part = column.role in ("lengths", "position", "attention") or is_role_column(column)
        return is_part or column.name in self._values

    def _layout_notes(self) -> Iterator[str]:
        if self._lengths is not None:
            strategy = self.kind.config.get("preprocessing", {}).get("packing_strategy")
            parts = " or parts of some" if strategy in STRATEGIES and not cuts_rows(strategy) else ""
            yield f"{counted(len(self._lengths), 'document')}{parts}"

    def _sequences_of(self, column: Column) -> Iterator[TokenSequence | str]:
        """The sequences of a column of ids: one, or the lists of a list of lists, or the documents of a packed row."""
        row = self.row
        loss = next((other for other in self.kind.of_role("mask", "labels") if other.of == column.name), None)
        taken_name = column.name if loss is None else loss.name
        ids, taken = _lists(row[column.name]), _lists(row[taken_name])
        names = [column.name]
        if column.depth == 2:
            names = [f"{column.name}[{index}]" for index in range(len(ids))]
        elif self._lengths is not None:
            ids, taken = self._documents(ids[0]), self._documents(taken[0])
            names = [f"document {number:,} of {len(ids):,}" for number in range(1, len(ids) + 1)]
        if not ids:
            yield f"{column.name}: an empty list"
        # Only rows of a preview have roles, and these are not packed.
        roles = self._roles_of(column) or [None] * len(ids)
        values = self._values if column.depth == 2 else {}
        for index, name in enumerate(names):
            found = self._sequence(column, name, ids[index], loss, taken[index], roles[index])
            beside = [f"{key}[{index}]: {numbers[index]}" for key, numbers in values.items()]
            yield dataclasses.replace(found, notes=(*found.notes, *beside))

    def _sequence(
        self, column: Column, name: str, ids: Array, loss: Column | None, taken: Array, roles: Array | None
    ) -> TokenSequence:
        """The tokens to show for ids and their mask or labels (int [n] each), with the padding after the tokens."""
        real = len(ids) - self._padding
        shown, notes = ids[:real], []
        if loss is None:
            trains = self.kind.trains(column.name)
            trained = np.full(real, trains)
            notes.append(f"no mask: {'all' if trains else 'nothing'} is trained")
        else:
            trained = taken[:real] != NO_LOSS[loss.role]
            if loss.role == "labels":
                notes.append(f"labels: {'shifted by one' if loss.shifted else 'unshifted'}")
            if loss.shifted:
                # Label i is the token after input i; the last label is a token that the inputs do not have.
                shown = np.append(shown, taken[:real][-1:][trained[-1:]])
                notes += ["the last token is a label only"] if len(shown) > real else []
                trained = np.append(False, trained)[: len(shown)]
        if roles is not None:  # a token that is a label only is of the message before it
            with_last = np.append(roles[:real], roles[:real][-1:])
            roles = with_last[: len(shown)].astype(np.int64)
        return TokenSequence(name, shown, trained, real, notes, repeats(ids[real:]), roles)

    def _roles_of(self, column: Column) -> list[Any]:
        """The roles of each list of a column of ids; [] if they are not known."""
        found = (each for each in self.kind.schema if is_role_column(each) and each.of == column.name)
        return [part for each in found for part in _lists(self.row[each.name])]

    def _documents(self, values: Array) -> list[Array]:
        assert self._lengths is not None
        return np.split(values, offsets_of(self._lengths)[1:-1]) if len(self._lengths) else []


def repeats(values: Array) -> list[tuple[Any, int]]:
    """(value, length) of each run of equal values."""
    starts = np.flatnonzero(np.append(True, values[1:] != values[:-1])[: len(values)])
    lengths = np.diff(np.append(starts, len(values))).tolist()
    return list(zip(values[starts], lengths, strict=True))


def percent(part: float, total: float) -> str:
    """A share as text: `12.5%`; 0.0% if the total is 0."""
    return f"{part / total if total else 0:.1%}"


def totals_of(sequences: Sequence[TokenSequence]) -> tuple[int, int]:
    """(tokens, trained tokens) without padding."""
    return sum(each.stored for each in sequences), sum(int(each.trained.sum()) for each in sequences)


def counts_of(sequences: Sequence[TokenSequence]) -> str:
    """The counts of tokens, trained tokens and padding as text."""
    stored, trained = totals_of(sequences)
    text = f"{stored:,} tokens, {trained:,} trained ({percent(trained, stored)})"
    padding = sum(count for sequence in sequences for _, count in sequence.padding)
    return f"{text} + {padding:,} of padding" if padding else text


def _lists(value: Array | Ragged) -> list[Any]:
    return list(value) if isinstance(value, Ragged) else [value]


def _as_line(column: Column, value: Any) -> str:
    """The values of a column as text: numbers, a text, the strings of documents; of weights the runs: 12 x 0.0."""
    if column.role == "text":
        value = np.asarray(value).tobytes().decode(errors="replace")
    if isinstance(value, Ragged):
        return " | ".join(_as_line(column, one) for one in value)
    if not isinstance(value, list | np.ndarray):
        return shortened(str(value), _TEXT)
    if column.role == "weights":
        items = [f"{count:,} x {number}" for number, count in repeats(np.asarray(value))]
    elif isinstance(value, list):
        items = [json.dumps(shortened(text, _TEXT), ensure_ascii=False) for text in value]
    else:
        items = [str(number) for number in value[: _VALUES + 1]]  # numpy values: float32 prints 0.1
    more = f" ... ({len(value):,} in all)" if len(items) > _VALUES else ""
    return ", ".join(items[:_VALUES]) + more


@dataclass(frozen=True)
class LeftOut:
    """A record that became no row, or that was marked.

    Attributes:
        place: the file, and the line (in a list the record).
        kind: `dropped` or `rejected`; `marked`: it was kept.
        reason, message: why.
        text: the beginning of its line.
        same_as: for a copy, the place and the line of the earlier, equal record; "" for other records.
    """

    place: str
    kind: str
    reason: str
    message: str
    text: str
    same_as: str = ""

    def lines(self, most: int) -> list[str]:
        """The text of the record, and for a copy of the earlier record; at most `most` characters of each."""
        return [shortened(text, most) for text in (self.text, self.same_as) if text]

    @classmethod
    def of_output(cls, record: Mapping[str, Any], kind: str, inputs: InputLines | None = None) -> "LeftOut":
        """From the rejects, drops or marked records of an output. With `inputs`, the lines of copies are read."""
        text, same_as = beginning(record, kind), ""
        if "same_as" in record:
            text = "(--reason duplicate shows both lines)"
            if inputs is not None:
                text, same_as = inputs.at(record), f"{_place(record['same_as'])}: {inputs.at(record['same_as'])}"
        message = record.get("message") or record.get("note") or ""
        return cls(_place(record), kind, record["reason"], message, text, same_as)


def _place(record: Mapping[str, Any]) -> str:
    return f"{record['file']}, {place_in(record['file'], record['line'])}"


def beginning(record: Mapping[str, Any], kind: str) -> str:
    """The text of a record in an output, without a word that is cut: 1,000 characters are kept, of a drop 200."""
    text = shortened(record["text"] or "", 999 if kind == "rejected" else 199)
    return text or "(its text is not kept: --max_reject_chars 0)"
