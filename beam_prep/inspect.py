"""`beam-prep inspect` and `beam-prep cat`: what is in an output, for eyes and for other programs.

What the loss is taken on is shown in bold green, the rest dim, special tokens reversed; where there are no colours
(a file, a pipe, NO_COLOR), what is trained stands between `⟦` and `⟧`. Packed rows are shown document by document,
padding as a count, preference pairs side by side where there is room. `beam_prep.preview` shows rows before a run.
"""

import contextlib
import dataclasses
import functools
import itertools
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from rich.console import Console
from rich.text import Text

from beam_prep.core.data.ragged import Array, Ragged, offsets_of
from beam_prep.core.data.schema import IGNORE_INDEX, Column
from beam_prep.core.encoding.tokenizer import Tokenizer
from beam_prep.errors import BeamPrepError, FormatError
from beam_prep.formats import Row
from beam_prep.readers.dataset import Dataset, drawn, open_dataset

OPEN, CLOSE = "⟦", "⟧"
SIDE_BY_SIDE = 100
"""Columns of a terminal from which on both sides of a preference pair stand beside each other."""

_TRAINED, _UNTRAINED, _CAPTION = "bold green", "dim", "cyan"
_VALUES = 100  # that are printed of one list
_RULE = 72  # characters of the line that begins a document

VISIBLE = (
    {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\t\n"}
    | {0x7F: "\u2421"}
    | {code: f"\\x{code:02x}" for code in range(0x80, 0xA0)}
    | {code: f"\\u{code:04x}" for code in (0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))}
)
"""For `str.translate`. Text must not steer the terminal: control characters and turns of the writing direction show."""


def inspect(
    output: str | os.PathLike[str], record: int | None = None, count: int | None = None, domain: str | None = None
) -> None:
    """Prints records of an output, decoded: the first, the shortest, the longest, and some that are drawn.

    The same ones each time. Of an output of many shards, the shortest and longest are those of some of them.

    Args:
        output: an output directory.
        record: the number of the only record to print (negative: from the end); numbers are those of `domain` if given.
        count: print the first records instead, so many.
        domain: only records of this domain.

    Raises:
        BeamPrepError: no such output, domain or record.
    """
    dataset = open_dataset(output)
    rows = dataset if domain is None else dataset.domain(domain)
    if record is not None:
        numbers = {_number(rows, record, domain): ""}
    elif count is not None:
        numbers = dict.fromkeys(range(min(checked_count(count), len(rows))), "")
    else:
        known, sizes = rows.sizes(_SHARDS)
        unit = " in bytes" if dataset.format == "tfrecord" else ""
        some = f" of {_SHARDS} shards" if len(known) < len(rows) else ""
        numbers = picked(known, sizes, len(rows), unit + some)
    screen = Screen()
    texts = (render(rows, number, screen.marks, screen.width, why) for number, why in numbers.items())
    screen.show(itertools.chain([_totals(dataset, screen.marks)], texts))


_SHARDS = 16  # that are looked at for the shortest and the longest row
_DRAWN = 3


def picked(numbers: Array, sizes: Array, rows: int, some: str = "") -> dict[int, str]:
    """Rows to show, and why: the first, the shortest, the longest, and some that are drawn, always the same ones.

    Args:
        numbers: int64, rows of which the size is known.
        sizes: int64, their sizes.
        rows: how many there are.
        some: what to say of the shortest and the longest.
    """
    if not rows:
        return {}
    why: dict[int, list[str]] = {0: ["the first"]}
    for name, place in (("shortest", np.argmin(sizes)), ("longest", np.argmax(sizes))):
        why.setdefault(int(numbers[place]), []).append(f"the {name}{some}")
    others = [number for number in drawn(rows, _DRAWN + len(why)).tolist() if number not in why]
    why |= {number: ["drawn"] for number in others[:_DRAWN]}
    return {number: ", ".join(reasons) for number, reasons in why.items()}


class Screen:
    """Where texts are printed.

    Attributes:
        marks: there are no colours: what is trained stands between `⟦` and `⟧`.
        width: characters of a line.
    """

    def __init__(self) -> None:
        self._console = Console(highlight=False)
        self.marks = self._console.color_system is None or self._console.no_color
        self.width = self._console.width

    def show(self, texts: Iterable[Text]) -> None:
        """Prints texts with a blank line behind each."""
        with _ends_with_its_reader():
            for text in texts:
                if self.marks:
                    self._console.file.write(f"{text.plain}\n\n")  # rich would expand the tabs
                else:
                    self._console.print(text, end="\n\n", soft_wrap=True)


def cat(output: str | os.PathLike[str], count: int | None = None, domain: str | None = None) -> None:
    """Prints rows as JSON lines: {"domain": ..., column: [...], ...}. NaN and infinite values are null in JSON.

    Args:
        output: an output directory.
        count: how many rows, at most; default: all.
        domain: only rows of this domain.

    Raises:
        BeamPrepError: no such output or domain.
    """
    dataset = open_dataset(output)
    left = len(dataset) if count is None else min(checked_count(count), len(dataset))
    with _ends_with_its_reader():
        for name in dataset.domains if domain is None else [domain]:
            head = f'{{"domain":{json.dumps(name)},'
            for row in dataset.domain(name)[:left]:
                lists = {key: list(value) if isinstance(value, Ragged) else value for key, value in row.items()}
                sys.stdout.write(head + orjson.dumps(lists, option=orjson.OPT_SERIALIZE_NUMPY)[1:].decode() + "\n")
                left -= 1


@contextlib.contextmanager
def _ends_with_its_reader() -> Iterator[None]:
    """Printing stops without an error when the reader goes away (`| head`)."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes stdout at its end, and would complain there.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def checked_count(count: int) -> int:
    """`--count`.

    Raises:
        BeamPrepError: it is negative.
    """
    if count < 0:
        raise BeamPrepError(f"--count is {count}, wanted 0 or more")
    return count


def _number(rows: Dataset, record: int, domain: str | None) -> int:
    if not -len(rows) <= record < len(rows):
        where = rows.path if domain is None else f"domain {domain!r} of {rows.path}"
        raise BeamPrepError(f"no record {record}: {where} has {len(rows):,}, numbered 0 to {len(rows) - 1}")
    return record % len(rows)


def _totals(dataset: Dataset, marks: bool) -> Text:
    """What the whole output holds."""
    manifest, totals = dataset.manifest, dataset.manifest["totals"]
    shards = len(manifest["shards"])
    text = Text()
    text.append(str(dataset.path), "bold")
    text.append(
        f": {totals['rows']:,} rows, {sum(totals['tokens'].values()):,} tokens, "
        f"{shards:,} shard{'s' * (shards != 1)} ({', '.join(manifest['formats'])}), {len(dataset.domains):,} "
        f"domain{'s' * (len(dataset.domains) != 1)}\n"
    )
    labels = [column.shifted for column in dataset.schema if column.role == "labels"]
    text.append(f"{columns_line(dataset.columns, any(labels) if labels else None)}\n")
    ids_of = {column.name: column.of for column in dataset.schema}
    for name, trained in totals["trained"].items():
        share = _percent(trained, totals["tokens"][ids_of[name]])
        text.append(f"{name}: {trained:,} trained tokens ({share} of {ids_of[name]})\n")
    if "packing" in totals:
        text.append(f"packing: {_packing(totals['packing'])}\n")
    if dataset.tokenizer is None:
        text.append("no tokenizer is kept in the output: tokens are shown as ids\n")
    return text.append_text(legend(marks))


def columns_line(names: Iterable[str], shifted: bool | None) -> str:
    """The names of the columns, and how labels stand; None: there are none."""
    labels = {None: "nothing is shifted", True: "labels: shifted by one", False: "labels: unshifted"}[shifted]
    return f"columns: {', '.join(names)}; {labels}"


def legend(marks: bool) -> Text:
    """How it is seen what is trained."""
    if marks:
        return Text(f"what is trained stands between {OPEN} and {CLOSE}")
    return Text.assemble(
        ("trained", _TRAINED), "  ", ("not trained", _UNTRAINED), "  ", ("special token", f"{_UNTRAINED} reverse")
    )


def _packing(stats: Mapping[str, Any]) -> str:
    lost = {"cut": stats["rows_cut"], "split": stats["rows_split"]}
    bare = stats.get("packs_untrained", 0)  # outputs of earlier versions do not say
    return ", ".join(
        [
            f"{stats['rows']:,} documents in {stats['packs']:,} rows of {stats['capacity']:,} tokens at most",
            f"{stats['fill_rate']:.1%} full",
            *(f"{count:,} {what}" for what, count in lost.items() if count),
            *([f"{bare:,} row{'s' * (bare != 1)} without a trained token"] if bare else []),
        ]
    )


def _percent(part: int, whole: int) -> str:
    return f"{part / whole if whole else 0:.1%}"


@dataclass(frozen=True)
class Look:
    """What rows are shown with.

    Attributes:
        schema: their columns.
        tokenizer: None: tokens are shown as ids.
        config: the config that made them, as in a manifest; {} where it is not known.
        where: the output, for errors.
        marks: what is trained stands between `⟦` and `⟧`, for text without colours.
        width: of a line; from `SIDE_BY_SIDE` on both sides of a preference pair stand beside each other.
    """

    schema: tuple[Column, ...]
    tokenizer: Tokenizer | None
    config: Mapping[str, Any]
    where: str = ""
    marks: bool = False
    width: int = 80


def render(dataset: Dataset, index: int, marks: bool = False, width: int = 80, why: str = "") -> Text:
    """One record: a header, then each output under its name, values as numbers.

    Args:
        dataset: an output, or a view of one.
        index: the row; negative: from the end.
        marks: what is trained stands between `⟦` and `⟧`, for text without colours.
        width: characters of a line; only preference pairs are fitted to it.
        why: why it is shown, for the header.

    Raises:
        IndexError: there is no such row.
        FormatError: the row is damaged, or a mask has another length than its ids.
    """
    row = dataset[index]
    look = Look(dataset.schema, dataset.tokenizer, dataset.manifest.get("config", {}), str(dataset.path), marks, width)
    title = [f"record {index % len(dataset)}", why, f"domain {dataset.domain_of(index)}"]
    return render_row(look, row, [part for part in title if part])


def render_row(look: Look, row: Row, title: Sequence[str], notes: Sequence[str] = ()) -> Text:
    """A row, below a header that begins with `title` and ends with `notes`.

    Raises:
        FormatError: a mask has another length than its ids, or the lengths of the documents are not those of the row.
    """
    parts = [part for column in look.schema for part in _parts(column, look, row)]
    sequences = [part for part in parts if isinstance(part, _Sequence)]
    shared = [note for one in sequences[:1] for note in one.notes if all(note in other.notes for other in sequences)]
    header = [*title, _counts(sequences), *shared, *_layout_notes(look, row), *notes]
    text = Text().append(f"━━ {' · '.join(header)}".translate(VISIBLE), "bold")
    own = [
        dataclasses.replace(part, notes=tuple(note for note in part.notes if note not in shared))
        if isinstance(part, _Sequence)
        else part
        for part in parts
    ]
    return text.append_text(_body(own, look, packed=_lengths(look, row) is not None))


def _body(parts: Sequence["_Sequence | str"], look: Look, packed: bool) -> Text:
    """What stands below the header."""
    text = Text()
    pair = [part for part in parts if isinstance(part, _Sequence)]
    beside = look.width >= SIDE_BY_SIDE and _is_pair(look, pair)
    if beside:
        text.append_text(_side_by_side(pair[0], pair[1], look))
    for part in parts:
        if isinstance(part, str):
            text.append(f"\n── {part}", _CAPTION)
        elif not beside:
            if packed:
                text.append("\n" + f"{_caption(part)} ".ljust(_RULE, "─"), _CAPTION)
            elif len(parts) > 1:
                text.append(f"\n{_caption(part)}", _CAPTION)
            text.append("\n").append_text(_tokens(part, look)).append_text(_padding(part, look))
    return text


@dataclass(frozen=True)
class _Sequence:
    """Tokens of a row to show.

    Attributes:
        name: the column, with an index where it is a list of lists; the document's number in packed rows.
        ids: the tokens without padding, with the one that only the labels hold where they are shifted.
        trained: bool [len(ids)]; None where nothing says.
        stored: tokens in the column of ids, without padding.
        notes: what else to say.
        padding: ids of the padding behind them.
    """

    name: str
    ids: Array
    trained: Array | None
    stored: int
    notes: tuple[str, ...] = ()
    padding: tuple[int, ...] = ()


def _counts(sequences: Sequence[_Sequence]) -> str:
    stored = sum(sequence.stored for sequence in sequences)
    known = [sequence.trained for sequence in sequences if sequence.trained is not None]
    text = f"{stored:,} tokens"
    if len(known) == len(sequences):
        trained = sum(int(taken.sum()) for taken in known)
        text += f", {trained:,} trained ({_percent(trained, stored)})"
    padding = sum(len(sequence.padding) for sequence in sequences)
    return f"{text} + {padding:,} of padding" if padding else text


def _caption(sequence: _Sequence) -> str:
    return f"── {', '.join([f'{sequence.name}: {_counts([sequence])}', *sequence.notes])}"


def _layout_notes(look: Look, row: Row) -> Iterator[str]:
    """What to say of the row as a whole: its documents, its positions."""
    if (lengths := _lengths(look, row)) is not None:
        strategy = look.config.get("preprocessing", {}).get("packing_strategy")
        parts = " or parts of some" if strategy in ("bfd_split", "wrapped") else ""
        yield f"{len(lengths):,} document{'s' * (len(lengths) != 1)}{parts}"
    for column in look.schema:
        if column.role == "position" and (summary := _positions(column, look, row)) is not None:
            yield f"positions: {summary}"


def _positions(column: Column, look: Look, row: Row) -> str | None:
    """What the positions of a row do, in words; None where they do something else."""
    found = np.asarray(row[column.name])
    through = np.arange(len(found))
    lengths = _lengths(look, row)
    if lengths is not None and lengths.sum() == len(found):
        starts = np.repeat(offsets_of(lengths)[:-1], lengths)
        if np.array_equal(found, through - starts):
            return "restart at every document"
    if np.array_equal(found, through):
        return f"0 to {len(found) - 1:,}" if lengths is None else "run on through the row"
    return None


def _parts(column: Column, look: Look, row: Row) -> Iterator[_Sequence | str]:
    """What to show of a column: sequences of tokens, or a line of text. What is trained is shown on the ids."""
    if column.role == "ids":
        yield from _sequences(column, look, row)
        return
    shown_elsewhere = {
        "lengths": True,
        "mask": column.of is not None,
        "labels": column.of is not None,
        "attention": _padded(look, row) is not None,
        "value": column.name in _values(look, row),
        "position": column.role == "position" and _positions(column, look, row) is not None,
    }
    if not shown_elsewhere[column.role]:
        yield f"{column.name}: {_numbers(row[column.name])}"


def _sequences(column: Column, look: Look, row: Row) -> Iterator[_Sequence | str]:
    """The sequences of a column of ids: one, or those of a list, or the documents of a packed row."""
    loss = next((other for other in look.schema if other.of == column.name and other.role in ("mask", "labels")), None)
    taken_name = column.name if loss is None else loss.name
    ids, taken = _lists(row[column.name]), _lists(row[taken_name])
    if [len(one) for one in ids] != [len(one) for one in taken]:
        raise FormatError(f"{look.where}: columns {column.name} and {taken_name} of a row have other lengths")
    names = [column.name]
    if column.depth == 2:
        names = [f"{column.name}[{index}]" for index in range(len(ids))]
    elif (lengths := _lengths(look, row)) is not None:
        ids, taken = _documents(ids[0], lengths, look), _documents(taken[0], lengths, look)
        names = [f"document {number:,} of {len(ids):,}" for number in range(1, len(ids) + 1)]
    if not ids:
        yield f"{column.name}: an empty list"
    for index, (name, one, other) in enumerate(zip(names, ids, taken, strict=True)):
        found = _without_padding(column.name, one, loss, other, look, row)
        values = _values(look, row) if column.depth == 2 else {}
        beside = (f"{key}[{index}]: {numbers[index]}" for key, numbers in values.items())
        yield dataclasses.replace(found, name=name, notes=(*found.notes, *beside))


def _without_padding(name: str, ids: Array, loss: Column | None, taken: Array, look: Look, row: Row) -> _Sequence:
    """Ids int [n] and the mask or labels that belong to them, [n], as tokens to show, and the padding behind them."""
    real = len(ids) - (_padded(look, row) or 0)
    if loss is None:
        found = _unmasked(name, ids[:real], _trains(look.config, name))
    else:
        found = _sequence(name, ids[:real], loss, taken[:real])
    if real == len(ids):
        return found
    wrong = 0 if loss is None else int((taken[real:] != (IGNORE_INDEX if loss.role == "labels" else 0)).sum())
    notes = (*found.notes, f"{wrong:,} tokens of padding are trained") if wrong else found.notes
    return dataclasses.replace(found, notes=notes, padding=tuple(ids[real:].tolist()))


def _lengths(look: Look, row: Row) -> Array | None:
    """The lengths of the documents of a packed row."""
    return next((np.asarray(row[column.name]) for column in look.schema if column.role == "lengths"), None)


def _documents(values: Array, lengths: Array, look: Look) -> list[Array]:
    if lengths.sum() != len(values):
        name = next(column.name for column in look.schema if column.role == "lengths")
        raise FormatError(f"{look.where}: {name} of a row count {lengths.sum():,} tokens, it has {len(values):,}")
    return np.split(values, offsets_of(lengths)[1:-1]) if len(lengths) else []


def _lists(value: Array | Ragged) -> list[Any]:
    return [value[index] for index in range(len(value))] if isinstance(value, Ragged) else [value]


def _padded(look: Look, row: Row) -> int | None:
    """How many tokens at the row's end are padding; None where nothing says, or it stands elsewhere too."""
    attention = next((np.asarray(row[column.name]) for column in look.schema if column.role == "attention"), None)
    if attention is None or _lengths(look, row) is not None:
        return None
    real = int(np.count_nonzero(attention))
    return len(attention) - real if (attention[:real] != 0).all() else None


def _values(look: Look, row: Row) -> dict[str, list[str]]:
    """Columns of values that go with the sequences of a list, one each: rewards with their responses."""
    lists = [column.name for column in look.schema if column.role == "ids" and column.depth == 2]
    values = {column.name: row[column.name] for column in look.schema if column.role == "value" and column.depth == 1}
    count = len(row[lists[0]]) if len(lists) == 1 else 0
    return {name: [str(value) for value in found] for name, found in values.items() if 0 < len(found) == count}


def _unmasked(name: str, ids: Array, trains: bool | None) -> _Sequence:
    """Ids int [n] of a column without a mask, as tokens to show."""
    trained = None if trains is None else np.full(len(ids), trains)
    note = {None: "no mask", True: "no mask: all is trained", False: "no mask: nothing is trained"}[trains]
    return _Sequence(name, ids, trained, len(ids), (note,))


def _sequence(name: str, ids: Array, loss: Column, taken: Array) -> _Sequence:
    """Ids int [n] and the mask or labels that belong to them, [n], as tokens to show."""
    if loss.role == "mask":
        return _Sequence(name, ids, taken != 0, len(ids))
    trained = taken != IGNORE_INDEX
    notes = ["labels: unshifted"]
    shown = ids
    if loss.shifted:
        # Label i is the token behind input i; behind the last one stands a token that only the labels know.
        notes = ["labels: shifted by one"]
        shown = np.append(ids, taken[-1:][trained[-1:]])
        trained, taken = np.append(False, trained)[: len(shown)], np.append(IGNORE_INDEX, taken)[: len(shown)]
        if len(shown) > len(ids):
            notes.append("the last token is a label only")
    if wrong := int((shown != taken)[trained].sum()):
        notes.append(f"{wrong:,} labels are not the token they belong to")
    return _Sequence(name, shown, trained, len(ids), tuple(notes))


def _trains(config: Mapping[str, Any], name: str) -> bool | None:
    """Whether an output without a mask is trained, by its config: then it is all, or nothing. `name`: as written.

    None where there is no config (a chain written by hand).
    """
    given = config.get("input")
    if given is None:
        return None
    own = {written: column for column, written in config.get("output", {}).get("names", {}).items()}
    sections = given["sources"][own.get(name, name)]["sections"] if given.get("sources") else given["sections"]
    return any(section["action"] not in ("mask", "value") for section in sections)


def _numbers(values: Array | Ragged) -> str:
    if isinstance(values, Ragged):
        return " | ".join(_numbers(values[index]) for index in range(len(values)))
    more = f" ... ({len(values):,} in all)" if len(values) > _VALUES else ""
    return ", ".join(str(value) for value in values[:_VALUES]) + more  # of the array: 0.1, as float32 means it


def _is_pair(look: Look, sequences: Sequence[_Sequence]) -> bool:
    """Whether a row is two sequences of equal right: both with something to train on, neither of a list."""
    ids = [column for column in look.schema if column.role == "ids"]
    return (
        len(ids) == len(sequences) == 2
        and all(column.depth == 1 for column in ids)
        and not any(column.role in ("lengths", "attention") for column in look.schema)
        and all(one.trained is not None and one.trained.any() for one in sequences)
    )


def _side_by_side(left: _Sequence, right: _Sequence, look: Look) -> Text:
    """Two sequences in two columns; above them, once, what both begin with."""
    common = _alike(left, right)
    text = Text()
    if common:
        text.append(f"\n── both begin with {common:,} tokens", _CAPTION)
        text.append("\n").append_text(_tokens(left, look, stop=common))
    width = (look.width - 3) // 2
    console = Console(width=look.width)
    sides = []
    for side in (left, right):
        column = Text.assemble((_caption(side), _CAPTION), "\n", _tokens(side, look, start=common))
        column.rstrip()
        sides.append(column.wrap(console, width, overflow="fold"))
    for one, other in itertools.zip_longest(*sides, fillvalue=Text()):
        other.rstrip()
        text.append("\n").append_text(one).append(" " * (width - one.cell_len))
        text.append(" │", _CAPTION).append(" " * bool(other)).append_text(other)
    return text


def _alike(one: _Sequence, other: _Sequence) -> int:
    """Tokens that both begin with, up to the last that is not trained: an answer is not cut."""
    assert one.trained is not None
    assert other.trained is not None
    size = min(len(one.ids), len(other.ids))
    same = (one.ids[:size] == other.ids[:size]) & (one.trained[:size] == other.trained[:size])
    first = size if same.all() else int(np.argmin(same))
    untrained = np.flatnonzero(~one.trained[:first])
    return int(untrained[-1]) + 1 if len(untrained) else 0


def _tokens(sequence: _Sequence, look: Look, start: int = 0, stop: int | None = None) -> Text:
    """The text (ids without a tokenizer) of the tokens from `start` to `stop`, trained runs of tokens as one."""
    ids = sequence.ids.tolist()
    special = _special_ids(look.tokenizer)
    trained = [None] * len(ids) if sequence.trained is None else sequence.trained.tolist()
    tokens = list(zip(trained, ids, _pieces(ids, look.tokenizer), strict=True))[start:stop]
    text = Text()
    for is_trained, run in itertools.groupby(tokens, lambda token: token[0]):
        style = {True: _TRAINED, False: _UNTRAINED, None: ""}[is_trained]
        part = Text()
        for is_special, members in itertools.groupby(run, lambda token: token[1] in special):
            plain = "".join(piece for _, _, piece in members)
            part.append(plain.translate(VISIBLE), f"{style} reverse" if is_special else style)
        if is_trained:
            part = Text.assemble(OPEN, part, CLOSE) if look.marks else _show_outer_newlines(part, style)
        text.append_text(part)
    return text


def _pieces(ids: list[int], tokenizer: Tokenizer | None) -> list[str]:
    return [f"{token} " for token in ids] if tokenizer is None else tokenizer.pieces(ids)


def _padding(sequence: _Sequence, look: Look) -> Text:
    """`+ 57 x <|pad|>`, below the text."""
    text = Text()
    for token, run in itertools.groupby(sequence.padding):
        style = f"{_UNTRAINED} reverse" if token in _special_ids(look.tokenizer) else _UNTRAINED
        piece = _pieces([token], look.tokenizer)[0].strip(" ")
        text.append(f"\n+ {len(list(run)):,} x ", _UNTRAINED).append(piece.translate(VISIBLE), style)
    return text


def _show_outer_newlines(run: Text, style: str) -> Text:
    """A newline in colour is not seen: at the ends of a trained run it gets a sign."""
    body = run.plain.strip("\n")
    before = len(run.plain) - len(run.plain.lstrip("\n")) if body else 0
    after = len(run.plain) - before - len(body)
    return Text.assemble(("↵\n" * before, style), run[before : before + len(body)], ("↵\n" * after, style))


@functools.lru_cache(maxsize=4)
def _special_ids_of(path: Path) -> frozenset[int]:
    added = json.loads(path.read_bytes())["added_tokens"]
    return frozenset(token["id"] for token in added if token["special"])


def _special_ids(tokenizer: Tokenizer | None) -> frozenset[int]:
    return frozenset() if tokenizer is None else _special_ids_of(Path(tokenizer.folder, "tokenizer.json"))
