"""A row as sequences of tokens: which are trained, which are padding, and notes on them."""

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from beam_prep.data.ragged import Array, Ragged, offsets_of
from beam_prep.data.schema import IGNORE_INDEX, METADATA_ROLES, PROMPT_COMPLETION, Column
from beam_prep.errors import FormatError
from beam_prep.formats import Row
from beam_prep.tokens.tokenizer import Tokenizer

VISIBLE = (
    {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\t\n"}
    | {0x7F: "\u2421"}
    | {code: f"\\x{code:02x}" for code in range(0x80, 0xA0)}
    | {code: f"\\u{code:04x}" for code in (0x061C, 0x200B, 0x200E, 0x200F, 0x2060, 0xFEFF, 0xFFFE, 0xFFFF)}
    | {code: f"\\u{code:04x}" for code in (*range(0x2028, 0x202F), *range(0x2066, 0x206A), *range(0xD800, 0xE000))}
    | {code: f"\\U{code:08x}" for code in range(0xE0000, 0xE0080)}
)
"""For `str.translate`. Text must not control the terminal, nor hide in it: control and bidirectional characters are
made visible, and so are characters without width, tags, surrogates, which no encoding can write, and those that XML
has no sign for."""


_VALUES = 100  # printed of one list


@dataclass(frozen=True)
class RowDisplay:
    """Settings with which rows are shown.

    Attributes:
        schema: their columns.
        tokenizer: decodes tokens; None: they are shown as ids.
        config: the config that made them, as in a manifest; {} if it is not known.
        where: the output, for errors.
        marks: put what is trained between `⟦` and `⟧`, for text without colours.
        width: of a line; from `SIDE_BY_SIDE` on, the two sides of a preference pair are side by side.
        ids: show each token's id in front of it: `‹9906›Hello`.
    """

    schema: tuple[Column, ...]
    tokenizer: Tokenizer | None
    config: Mapping[str, Any]
    where: str = ""
    marks: bool = False
    width: int = 80
    ids: bool = False


@dataclass(frozen=True)
class TokenSequence:
    """Tokens of a row to show.

    Attributes:
        name: the column, with an index if it is a list of lists; in packed rows, the document's number.
        ids: the tokens without padding; if labels are shifted, with the last one, which only they hold.
        trained: bool [len(ids)]; None if it is not known.
        stored: tokens in the column of ids, without padding.
        notes: further remarks.
        padding: ids of the padding after them.
        roles: int64 [len(ids)], the number of each token's role; 0: it has none, or it is not certain. None: roles are
            not known.
    """

    name: str
    ids: Array
    trained: Array | None
    stored: int
    notes: tuple[str, ...] = ()
    padding: tuple[int, ...] = ()
    roles: Array | None = None


def role_key(column: str, label: bool = False) -> str:
    """The key under which a row in a preview has the roles of the ids of a column; `label`: those of shifted labels."""
    return f"{column}\0{'label roles' if label else 'roles'}"


def pieces_of(ids: list[int], tokenizer: Tokenizer | None) -> list[str]:
    """A text for each token, see `Tokenizer.pieces`; without a tokenizer its id."""
    return [f"{token} " for token in ids] if tokenizer is None else tokenizer.pieces(ids)


def special_ids(tokenizer: Tokenizer | None) -> frozenset[int]:
    """The ids of special tokens; none without a tokenizer."""
    return frozenset() if tokenizer is None else tokenizer.special_ids


def positions_of(column: Column, display: RowDisplay, row: Row) -> str | None:
    """Describes the positions of a row; None if they follow no known pattern."""
    found = np.asarray(row[column.name])
    through = np.arange(len(found))
    lengths = lengths_of(display, row)
    if lengths is not None and lengths.sum() == len(found):
        starts = np.repeat(offsets_of(lengths)[:-1], lengths)
        if np.array_equal(found, through - starts):
            return "restart at every document"
    if np.array_equal(found, through):
        return f"0 to {len(found) - 1:,}" if lengths is None else "run on through the row"
    return None


def parts_of(column: Column, display: RowDisplay, row: Row) -> Iterator[TokenSequence | str]:
    """Gives sequences of tokens, or a line of text, for a column. Masks and labels are shown on the ids."""
    if column.role == "ids":
        yield from _sequences(column, display, row)
        return
    shown_elsewhere = {
        "lengths": True,
        "mask": column.of is not None,
        "labels": column.of is not None,
        "weights": False,
        "token_value": False,
        "text": False,
        "attention": _padded(display, row) is not None,
        "value": column.name in _values(display, row),
        **dict.fromkeys(METADATA_ROLES, False),
        "position": column.role == "position" and positions_of(column, display, row) is not None,
    }
    if not shown_elsewhere[column.role]:
        show = _metadata if column.metadata else {"weights": _repeats, "text": _text}.get(column.role, _numbers)
        yield f"{column.name}: {show(row[column.name])}"


def _sequences(column: Column, display: RowDisplay, row: Row) -> Iterator[TokenSequence | str]:
    """The sequences of a column of ids: one, or those of a list, or the documents of a packed row."""
    loss = next(
        (other for other in display.schema if other.of == column.name and other.role in ("mask", "labels")), None
    )
    taken_name = column.name if loss is None else loss.name
    ids, taken = _lists(row[column.name]), _lists(row[taken_name])
    known = row.get(role_key(column.name))
    roles = None if known is None else _lists(known)
    if [len(one) for one in ids] != [len(one) for one in taken]:
        raise FormatError(f"{display.where}: columns {column.name} and {taken_name} of a row have other lengths")
    names = [column.name]
    if column.depth == 2:
        names = [f"{column.name}[{index}]" for index in range(len(ids))]
    elif (lengths := lengths_of(display, row)) is not None:
        ids, taken = _documents(ids[0], lengths, display), _documents(taken[0], lengths, display)
        roles = None  # a preview shows each document alone
        names = [f"document {number:,} of {len(ids):,}" for number in range(1, len(ids) + 1)]
    if not ids:
        yield f"{column.name}: an empty list"
    for index, (name, one, other) in enumerate(zip(names, ids, taken, strict=True)):
        found = _without_padding(column.name, one, loss, other, display, row)
        values = _values(display, row) if column.depth == 2 else {}
        beside = (f"{key}[{index}]: {numbers[index]}" for key, numbers in values.items())
        found = dataclasses.replace(found, name=name, notes=(*found.notes, *beside))
        if roles is not None:
            last = np.asarray(row.get(role_key(column.name, label=True), ()), np.int64)[: found.stored][-1:]
            own = np.append(roles[index][: found.stored], last)[: len(found.ids)]
            found = dataclasses.replace(found, roles=own)
        yield found


def _without_padding(
    name: str, ids: Array, loss: Column | None, taken: Array, display: RowDisplay, row: Row
) -> TokenSequence:
    """Ids int [n] and the mask or labels that belong to them, [n], as tokens to show, and the padding after them."""
    real = len(ids) - (_padded(display, row) or 0)
    if loss is None:
        found = _unmasked(name, ids[:real], _trains(display.config, name))
    else:
        found = _sequence(name, ids[:real], loss, taken[:real])
    if real == len(ids):
        return found
    wrong = 0 if loss is None else int((taken[real:] != (IGNORE_INDEX if loss.role == "labels" else 0)).sum())
    notes = (*found.notes, f"{wrong:,} tokens of padding are trained") if wrong else found.notes
    return dataclasses.replace(found, notes=notes, padding=tuple(ids[real:].tolist()))


def lengths_of(display: RowDisplay, row: Row) -> Array | None:
    """The lengths of the documents of a packed row."""
    return next((np.asarray(row[column.name]) for column in display.schema if column.role == "lengths"), None)


def _documents(values: Array, lengths: Array, display: RowDisplay) -> list[Array]:
    if lengths.sum() != len(values):
        name = next(column.name for column in display.schema if column.role == "lengths")
        raise FormatError(f"{display.where}: {name} of a row count {lengths.sum():,} tokens, it has {len(values):,}")
    return np.split(values, offsets_of(lengths)[1:-1]) if len(lengths) else []


def _lists(value: Array | Ragged) -> list[Any]:
    return [value[index] for index in range(len(value))] if isinstance(value, Ragged) else [value]


def _padded(display: RowDisplay, row: Row) -> int | None:
    """How many tokens at the row's end are padding; None if it is not known, or there is padding elsewhere too."""
    attention = next((np.asarray(row[column.name]) for column in display.schema if column.role == "attention"), None)
    if attention is None or lengths_of(display, row) is not None:
        return None
    real = int(np.count_nonzero(attention))
    return len(attention) - real if (attention[:real] != 0).all() else None


def _values(display: RowDisplay, row: Row) -> dict[str, list[str]]:
    """Columns with one value for each sequence of a list: rewards for their responses."""
    lists = [column.name for column in display.schema if column.role == "ids" and column.depth == 2]
    values = {
        column.name: row[column.name] for column in display.schema if column.role == "value" and column.depth == 1
    }
    count = len(row[lists[0]]) if len(lists) == 1 else 0
    return {name: [str(value) for value in found] for name, found in values.items() if 0 < len(found) == count}


def _unmasked(name: str, ids: Array, trains: bool | None) -> TokenSequence:
    """Ids int [n] of a column without a mask, as tokens to show."""
    trained = None if trains is None else np.full(len(ids), trains)
    note = {None: "no mask", True: "no mask: all is trained", False: "no mask: nothing is trained"}[trains]
    return TokenSequence(name, ids, trained, len(ids), (note,))


def _sequence(name: str, ids: Array, loss: Column, taken: Array) -> TokenSequence:
    """Ids int [n] and the mask or labels that belong to them, [n], as tokens to show."""
    if loss.role == "mask":
        return TokenSequence(name, ids, taken != 0, len(ids))
    trained = taken != IGNORE_INDEX
    notes = ["labels: unshifted"]
    shown = ids
    if loss.shifted:
        # Label i is the token after input i; the last label is a token that the inputs do not have.
        notes = ["labels: shifted by one"]
        shown = np.append(ids, taken[-1:][trained[-1:]])
        trained, taken = np.append(False, trained)[: len(shown)], np.append(IGNORE_INDEX, taken)[: len(shown)]
        if len(shown) > len(ids):
            notes.append("the last token is a label only")
    if wrong := int((shown != taken)[trained].sum()):
        notes.append(f"{wrong:,} labels are not the token they belong to")
    return TokenSequence(name, shown, trained, len(ids), tuple(notes))


def _trains(config: Mapping[str, Any], name: str) -> bool | None:
    """True or False if all or nothing of an output without a mask is trained, by its config. `name`: as written.

    None if there is no config (a chain written by hand).
    """
    given = config.get("input")
    if given is None:
        return None
    given = (given.get("groups") or [given])[0]  # an output without a mask is the same in all groups
    if given.get("rollouts"):
        prompts: str = config.get("output", {}).get("names", {}).get("prompt_ids", "prompt_ids")
        return name != prompts
    own = {written: column for column, written in config.get("output", {}).get("names", {}).items()}
    column: str = own.get(name, name)
    if config.get("output", {}).get("columns") == "prompt_completion":
        return column != PROMPT_COMPLETION[2]
    sections = given["sources"][column]["sections"] if given.get("sources") else given["sections"]
    return any(section["action"] not in ("mask", "value") for section in sections)


def _text(values: Array | Ragged) -> str:
    return _beginning(np.asarray(values).tobytes().decode(errors="replace"))


def _metadata(values: Any) -> str:
    """A string or a number; of a packed row those of its documents, strings in quotes."""
    if not isinstance(values, list | np.ndarray):
        return _beginning(str(values))
    if isinstance(values, np.ndarray):
        return _numbers(values)
    some = ", ".join(json.dumps(_beginning(text), ensure_ascii=False) for text in values[:_VALUES])
    return some + (f" ... ({len(values):,} in all)" if len(values) > _VALUES else "")


def _beginning(text: str) -> str:
    return text if len(text) <= 10 * _VALUES else f"{text[: 10 * _VALUES]} ... ({len(text):,} characters in all)"


def repeats(values: Array) -> list[tuple[Any, int]]:
    """(value, how many times in a row) of each run of equal values."""
    starts = np.flatnonzero(np.append(True, values[1:] != values[:-1])[: len(values)])
    return list(zip(values[starts], np.diff(np.append(starts, len(values))).tolist(), strict=True))


def _repeats(values: Array | Ragged) -> str:
    """Numbers, each with how many times in a row it is there: 12 x 0.0, 5 x 0.5."""
    found = repeats(values.flat if isinstance(values, Ragged) else values)
    return ", ".join(f"{count:,} x {value}" for value, count in found[:_VALUES]) + (
        " ..." if len(found) > _VALUES else ""
    )


def _numbers(values: Array | Ragged) -> str:
    if isinstance(values, Ragged):
        return " | ".join(_numbers(values[index]) for index in range(len(values)))
    more = f" ... ({len(values):,} in all)" if len(values) > _VALUES else ""
    return ", ".join(str(value) for value in values[:_VALUES]) + more  # numpy values: float32 prints 0.1


def percent(part: float, total: float) -> str:
    """A share as text: `12.5%`; 0.0% if the total is 0."""
    return f"{part / total if total else 0:.1%}"


def counts_of(sequences: Sequence[TokenSequence]) -> str:
    """Counts tokens, trained tokens and padding, as text."""
    stored = sum(sequence.stored for sequence in sequences)
    known = [sequence.trained for sequence in sequences if sequence.trained is not None]
    text = f"{stored:,} tokens"
    if len(known) == len(sequences):
        trained = sum(int(taken.sum()) for taken in known)
        text += f", {trained:,} trained ({percent(trained, stored)})"
    padding = sum(len(sequence.padding) for sequence in sequences)
    return f"{text} + {padding:,} of padding" if padding else text
