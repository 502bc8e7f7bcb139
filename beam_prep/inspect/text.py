"""Tokens and counts as text."""

import itertools

from rich.text import Text

from beam_prep.inspect.picture import CAPTION, CLOSE, OPEN, TRAINED, UNTRAINED
from beam_prep.inspect.sequences import VISIBLE, RowDisplay, TokenSequence, pieces_of, special_ids


def tokens_text(sequence: TokenSequence, display: RowDisplay, start: int = 0, stop: int | None = None) -> Text:
    """The text (or, without a tokenizer, ids) of tokens from `start` to `stop`. A run of trained tokens is one part."""
    ids = sequence.ids.tolist()
    special = special_ids(display.tokenizer)
    trained = [None] * len(ids) if sequence.trained is None else sequence.trained.tolist()
    tokens = list(zip(trained, ids, pieces_of(ids, display.tokenizer), strict=True))[start:stop]
    text = Text()
    for is_trained, run in itertools.groupby(tokens, lambda token: token[0]):
        style = {True: TRAINED, False: UNTRAINED, None: ""}[is_trained]
        part = Text()
        for is_special, members in itertools.groupby(run, lambda token: token[1] in special):
            shown = f"{style} reverse" if is_special else style
            if display.ids and display.tokenizer is not None:
                for _, token, piece in members:
                    part.append(f"‹{token}›", CAPTION).append(piece.translate(VISIBLE), shown)
            else:
                part.append("".join(piece for _, _, piece in members).translate(VISIBLE), shown)
        if is_trained:
            part = Text.assemble(OPEN, part, CLOSE) if display.marks else _show_outer_newlines(part, style)
        text.append_text(part)
    return text


def padding_text(sequence: TokenSequence, display: RowDisplay) -> Text:
    """`+ 57 x <|pad|>`, below the text."""
    text = Text()
    for token, run in itertools.groupby(sequence.padding):
        style = f"{UNTRAINED} reverse" if token in special_ids(display.tokenizer) else UNTRAINED
        piece = pieces_of([token], display.tokenizer)[0].strip(" ")
        text.append(f"\n+ {len(list(run)):,} x ", UNTRAINED).append(piece.translate(VISIBLE), style)
    return text


def _show_outer_newlines(run: Text, style: str) -> Text:
    """Adds a visible sign to newlines at the ends of a trained run, as colour does not show them."""
    body = run.plain.strip("\n")
    before = len(run.plain) - len(run.plain.lstrip("\n")) if body else 0
    after = len(run.plain) - before - len(body)
    return Text.assemble(("↵\n" * before, style), run[before : before + len(body)], ("↵\n" * after, style))
