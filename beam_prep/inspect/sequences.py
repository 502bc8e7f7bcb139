"""A row as sequences of tokens, with trained tokens, padding, and notes."""

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
"""A table for `str.translate`. Text must neither control the terminal nor hide in it. So these characters are made
visible: control and bidirectional characters, characters without width, tags, surrogates (no encoding can write them),
and characters that XML does not allow."""


_VALUES = 100  # most values of a list that are printed


@dataclass(frozen=True)
class RowDisplay:
    """Display settings for rows.

    Attributes:
        schema: the columns of the rows.
        tokenizer: decodes tokens; None: tokens are shown as ids.
        config: the config of the rows, as in a manifest; {} if it is not known.
        where: the output, for errors.
        marks: put trained tokens between `⟦` and `⟧`, for text without colours.
        width: characters of a line; from `SIDE_BY_SIDE`, the sides of a preference pair are side by side.
        ids: show each token's id before the token: `‹9906›Hello`.
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
        ids: the tokens without padding; with shifted labels, also the last token, which only the labels have.
        trained: bool [len(ids)]; None: not known.
        stored: number of tokens in the column of ids, without padding.
        notes: further remarks.
        padding: the ids of the padding after the tokens.
        roles: int64 [len(ids)], the number of each token's role; 0: no role, or not certain. None: roles are not known.
    """

    name: str
    ids: Array
    trained: Array | None
    stored: int
    notes: tuple[str, ...] = ()
    padding: tuple[int, ...] = ()
    roles: Array | None = None


def role_key(column: str, label: bool = False) -> str:
    """The key for the roles of a column's ids in a row of a preview; `label`: the roles of shifted labels."""
    return f"{column}\0{'label roles' if label else 'roles'}"


def pieces_of(ids: list[int], tokenizer: Tokenizer | None) -> list[str]:
    """The text of each token, see `Tokenizer.pieces`; without a tokenizer its id."""
    return [f"{token} " for token in ids] if tokenizer is None else tokenizer.pieces(ids)


def special_ids(tokenizer: Tokenizer | None) -> frozenset[int]:
    """The ids of special tokens; none without a tokenizer."""
    return frozenset() if tokenizer is None else tokenizer.special_ids


def positions_of(column: Column, display: RowDisplay, row: Row) -> str | None:
    """A text that describes the positions of a row; None if they follow no known pattern."""
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
    """The sequences of tokens, or a line of text, for a column. Masks and labels are shown on the ids."""
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
    """The sequences of a column of ids: one, or the lists of a list of lists, or the documents of a packed row."""
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
    """The tokens to show for ids and their mask or labels (int [n] each), with the padding after the tokens."""
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
    """The lengths of the documents of a packed row; None if the row is not packed."""
    return next((np.asarray(row[column.name]) for column in display.schema if column.role == "lengths"), None)


def _documents(values: Array, lengths: Array, display: RowDisplay) -> list[Array]:
    if lengths.sum() != len(values):
        name = next(column.name for column in display.schema if column.role == "lengths")
        raise FormatError(f"{display.where}: {name} of a row count {lengths.sum():,} tokens, it has {len(values):,}")
    return np.split(values, offsets_of(lengths)[1:-1]) if len(lengths) else []


def _lists(value: Array | Ragged) -> list[Any]:
    return [value[index] for index in range(len(value))] if isinstance(value, Ragged) else [value]


def _padded(display: RowDisplay, row: Row) -> int | None:
    """How many tokens at the row's end are padding; None if it is not known, or padding is not only at the end."""
    attention = next((np.asarray(row[column.name]) for column in display.schema if column.role == "attention"), None)
    if attention is None or lengths_of(display, row) is not None:
        return None
    real = int(np.count_nonzero(attention))
    return len(attention) - real if (attention[:real] != 0).all() else None


def _values(display: RowDisplay, row: Row) -> dict[str, list[str]]:
    """Column -> values, for columns with one value for each sequence of a list, such as rewards of responses."""
    lists = [column.name for column in display.schema if column.role == "ids" and column.depth == 2]
    values = {
        column.name: row[column.name] for column in display.schema if column.role == "value" and column.depth == 1
    }
    count = len(row[lists[0]]) if len(lists) == 1 else 0
    return {name: [str(value) for value in found] for name, found in values.items() if 0 < len(found) == count}


def _unmasked(name: str, ids: Array, trains: bool | None) -> TokenSequence:
    """The tokens to show for ids (int [n]) of a column without a mask."""
    trained = None if trains is None else np.full(len(ids), trains)
    note = {None: "no mask", True: "no mask: all is trained", False: "no mask: nothing is trained"}[trains]
    return TokenSequence(name, ids, trained, len(ids), (note,))


def _sequence(name: str, ids: Array, loss: Column, taken: Array) -> TokenSequence:
    """The tokens to show for ids and their mask or labels, int [n] each."""
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
    """True if the config trains all tokens of an output without a mask, False if none; `name`: the written column.

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
    """The text of a string or a number; for a packed row the values of its documents, strings in quotes."""
    if not isinstance(values, list | np.ndarray):
        return _beginning(str(values))
    if isinstance(values, np.ndarray):
        return _numbers(values)
    some = ", ".join(json.dumps(_beginning(text), ensure_ascii=False) for text in values[:_VALUES])
    return some + (f" ... ({len(values):,} in all)" if len(values) > _VALUES else "")


def _beginning(text: str) -> str:
    return text if len(text) <= 10 * _VALUES else f"{text[: 10 * _VALUES]} ... ({len(text):,} characters in all)"


def repeats(values: Array) -> list[tuple[Any, int]]:
    """(value, length) of each run of equal values."""
    starts = np.flatnonzero(np.append(True, values[1:] != values[:-1])[: len(values)])
    return list(zip(values[starts], np.diff(np.append(starts, len(values))).tolist(), strict=True))


def _repeats(values: Array | Ragged) -> str:
    """The runs of equal numbers as text: 12 x 0.0, 5 x 0.5."""
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
    """The counts of tokens, trained tokens and padding as text."""
    stored = sum(sequence.stored for sequence in sequences)
    known = [sequence.trained for sequence in sequences if sequence.trained is not None]
    text = f"{stored:,} tokens"
    if len(known) == len(sequences):
        trained = sum(int(taken.sum()) for taken in known)
        text += f", {trained:,} trained ({percent(trained, stored)})"
    padding = sum(len(sequence.padding) for sequence in sequences)
    return f"{text} + {padding:,} of padding" if padding else text
