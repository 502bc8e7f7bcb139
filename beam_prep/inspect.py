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

from beam_prep.core.ragged import Array, Ragged
from beam_prep.core.schema import IGNORE_INDEX, Column
from beam_prep.core.tokenizer import Tokenizer
from beam_prep.errors import BeamPrepError, FormatError
from beam_prep.formats import Row
from beam_prep.readers.dataset import Dataset, open_dataset

OPEN, CLOSE = "⟦", "⟧"
SIDE_BY_SIDE = 100
"""Columns of a terminal from which on both sides of a preference pair stand beside each other."""

_TRAINED, _UNTRAINED, _CAPTION = "bold green", "dim", "cyan"
_VALUES = 100  # that are printed of one list
_RULE = 72  # characters of the line that begins a document

# Text must not steer the terminal: control characters and turns of the writing direction become visible.
_VISIBLE = (
    {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\t\n"}
    | {0x7F: "\u2421"}
    | {code: f"\\x{code:02x}" for code in range(0x80, 0xA0)}
    | {code: f"\\u{code:04x}" for code in (0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))}
)


def inspect(
    output: str | os.PathLike[str], record: int | None = None, count: int = 3, domain: str | None = None
) -> None:
    """Prints records of an output, decoded.

    Args:
        output: an output directory.
        record: the number of the only record to print (negative: from the end); numbers are those of `domain` if given.
        count: how many of the first records to print, without `record`.
        domain: only records of this domain.

    Raises:
        BeamPrepError: no such output, domain or record.
    """
    dataset = open_dataset(output)
    rows = dataset if domain is None else dataset.domain(domain)
    numbers = range(checked_count(count, len(rows))) if record is None else [_number(rows, record, domain)]
    screen = Screen()
    texts = (render(rows, number, screen.marks, screen.width) for number in numbers)
    screen.show(itertools.chain([_totals(dataset, screen.marks)], texts))


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
    left = len(dataset) if count is None else checked_count(count, len(dataset))
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


def checked_count(count: int, rows: int) -> int:
    """`--count`, and no more than there are.

    Raises:
        BeamPrepError: it is negative.
    """
    if count < 0:
        raise BeamPrepError(f"--count is {count}, wanted 0 or more")
    return min(count, rows)


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
    text.append(f"columns: {', '.join(dataset.columns)}; {_shift(dataset.schema)}\n")
    ids_of = {column.name: column.of for column in dataset.schema}
    for name, trained in totals["trained"].items():
        share = _percent(trained, totals["tokens"][ids_of[name]])
        text.append(f"{name}: {trained:,} trained tokens ({share} of {ids_of[name]})\n")
    if dataset.tokenizer is None:
        text.append("no tokenizer is kept in the output: tokens are shown as ids\n")
    if marks:
        return text.append(f"what is trained stands between {OPEN} and {CLOSE}")
    return text.append_text(
        Text.assemble(
            ("trained", _TRAINED), "  ", ("not trained", _UNTRAINED), "  ", ("special token", f"{_UNTRAINED} reverse")
        )
    )


def _shift(schema: tuple[Column, ...]) -> str:
    labels = [column for column in schema if column.role == "labels"]
    if not labels:
        return "nothing is shifted"
    return "labels: shifted by one" if any(column.shifted for column in labels) else "labels: unshifted"


def _percent(part: int, whole: int) -> str:
    return f"{part / whole if whole else 0:.1%}"


def render(dataset: Dataset, index: int, marks: bool = False) -> Text:
    """One record: a header, then each output under its name, values as numbers.

    Args:
        dataset: an output, or a view of one.
        index: the row; negative: from the end.
        marks: what is trained stands between `⟦` and `⟧`, for text without colours.

    Raises:
        IndexError: there is no such row.
        FormatError: the row is damaged, or a mask has another length than its ids.
    """
    row = dataset[index]
    parts = [part for column in dataset.schema for part in _parts(column, dataset, row)]
    sequences = [part for part in parts if isinstance(part, _Sequence)]
    alone = len(parts) == 1
    header = [f"record {index % len(dataset)}", f"domain {dataset.domain_of(index).translate(_VISIBLE)}"]
    header += [_counts(sequences), *(sequences[0].notes if alone and sequences else ())]
    text = Text().append(f"━━ {' · '.join(header)}", "bold")
    for part in parts:
        if isinstance(part, str):
            text.append(f"\n── {part}", _CAPTION)
            continue
        if not alone:
            text.append(f"\n── {', '.join([f'{part.name}: {_counts([part])}', *part.notes])}", _CAPTION)
        text.append("\n").append_text(_tokens(part, dataset.tokenizer, marks))
    return text


@dataclass(frozen=True)
class _Sequence:
    """Tokens of a row to show.

    Attributes:
        name: the column, with an index where it is a list of lists.
        ids: the tokens, with the one that only the labels hold where they are shifted.
        trained: bool [len(ids)]; None where nothing says.
        stored: tokens in the column of ids.
        notes: what else to say.
    """

    name: str
    ids: Array
    trained: Array | None
    stored: int
    notes: tuple[str, ...] = ()


def _counts(sequences: list[_Sequence]) -> str:
    stored = sum(sequence.stored for sequence in sequences)
    known = [sequence.trained for sequence in sequences if sequence.trained is not None]
    if len(known) < len(sequences):
        return f"{stored:,} tokens"
    trained = sum(int(taken.sum()) for taken in known)
    return f"{stored:,} tokens, {trained:,} trained ({_percent(trained, stored)})"


def _parts(column: Column, dataset: Dataset, row: Row) -> Iterator[_Sequence | str]:
    """What to show of a column: sequences of tokens, or a line of text."""
    if column.role != "ids":
        if column.of is None:
            yield f"{column.name}: {_numbers(row[column.name])}"
        return  # what is trained is shown on the ids
    loss = next((other for other in dataset.schema if other.of == column.name), None)
    lists = _lists(row[column.name])
    names = [f"{column.name}[{index}]" for index in range(len(lists))] if column.depth == 2 else [column.name]
    if not lists:
        yield f"{column.name}: an empty list"
    if loss is None:
        trains = _trains(dataset.manifest, column.name)
        yield from (_unmasked(name, ids, trains) for name, ids in zip(names, lists, strict=True))
        return
    others = _lists(row[loss.name])
    if [len(ids) for ids in lists] != [len(taken) for taken in others]:
        raise FormatError(f"{dataset.path}: columns {column.name} and {loss.name} of a row have other lengths")
    for name, ids, taken in zip(names, lists, others, strict=True):
        yield _sequence(name, ids, loss, taken)


def _lists(value: Array | Ragged) -> list[Any]:
    return [value[index] for index in range(len(value))] if isinstance(value, Ragged) else [value]


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


def _trains(manifest: Mapping[str, Any], name: str) -> bool | None:
    """Whether an output without a mask is trained, by the config in the manifest: then it is all, or nothing.

    None where the manifest has no config (a chain written by hand).
    """
    config = manifest.get("config", {}).get("input")
    if config is None:
        return None
    sections = config["sources"][name]["sections"] if config.get("sources") else config["sections"]
    return any(section["action"] not in ("mask", "value") for section in sections)


def _numbers(values: Array | Ragged) -> str:
    if isinstance(values, Ragged):
        return " | ".join(_numbers(values[index]) for index in range(len(values)))
    more = f" ... ({len(values):,} in all)" if len(values) > _VALUES else ""
    return ", ".join(str(value) for value in values[:_VALUES]) + more  # of the array: 0.1, as float32 means it


def _tokens(sequence: _Sequence, tokenizer: Tokenizer | None, marks: bool) -> Text:
    """The sequence's text (ids without a tokenizer), trained runs of tokens as one."""
    ids = sequence.ids.tolist()
    if tokenizer is None:
        pieces, special = [f"{token} " for token in ids], frozenset[int]()
    else:
        pieces, special = tokenizer.pieces(ids), _special_ids(tokenizer)
    trained = [None] * len(ids) if sequence.trained is None else sequence.trained.tolist()
    text = Text()
    for is_trained, run in itertools.groupby(zip(trained, ids, pieces, strict=True), lambda token: token[0]):
        style = {True: _TRAINED, False: _UNTRAINED, None: ""}[is_trained]
        part = Text()
        for is_special, tokens in itertools.groupby(run, lambda token: token[1] in special):
            plain = "".join(piece for _, _, piece in tokens)
            part.append(plain.translate(_VISIBLE), f"{style} reverse" if is_special else style)
        if is_trained:
            part = Text.assemble(OPEN, part, CLOSE) if marks else _show_outer_newlines(part, style)
        text.append_text(part)
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


def _special_ids(tokenizer: Tokenizer) -> frozenset[int]:
    return _special_ids_of(Path(tokenizer.folder, "tokenizer.json"))
