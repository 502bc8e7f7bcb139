"""A tokenizer whose ids can be read in a test: each character is a token, its id is its code point."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from beam_prep import testing
from beam_prep.chat.apply import apply_template
from beam_prep.chat.chat_format import ChatFormat
from beam_prep.chat.template import ChatTemplate
from beam_prep.data.fim import Parts
from beam_prep.data.ragged import Array, Ragged
from beam_prep.data.rendered import Rendered
from beam_prep.data.schema import Output, Section
from beam_prep.tokens.batch import Batch
from beam_prep.tokens.tokenize import tokenize
from beam_prep.tokens.tokenizer import CharSpans, Tokenizer

BOS, EOS = "^", "$"
TEMPLATE = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}"


def char_spans(places: Sequence[tuple[int, int, int]]) -> CharSpans:
    """From (text, start, stop) of each span."""
    return CharSpans(*np.array(places, np.int64).reshape(-1, 3).T)


@dataclass(frozen=True)
class Chars(Tokenizer):
    """Its special tokens are `^` before and `$` behind a text. It counts how often it is asked, and for how much."""

    _folder: str = ""
    fingerprint: str = ""
    calls: list[tuple[list[str], bool]] = field(default_factory=list)

    def encode(self, texts: Sequence[str], add_special_tokens: bool) -> Ragged:
        self.calls.append((list(texts), add_special_tokens))
        ends = (BOS, EOS) if add_special_tokens else ("", "")
        return Ragged.from_lists([[ord(character) for character in ends[0] + text + ends[1]] for text in texts])

    def encode_spans(self, texts: Sequence[str], add_special_tokens: bool, spans: CharSpans) -> tuple[Ragged, Array]:
        return self.encode(texts, add_special_tokens), np.stack([spans.start, spans.stop]) + int(add_special_tokens)

    def encode_parts(self, texts: Sequence[Parts], add_special_tokens: bool) -> Ragged:
        return self.encode(["".join(text.texts) for text in texts], add_special_tokens)


def text(field: str, action: Any = "train", special: bool | None = None) -> Section:
    return Section(field, action, None, special)


def messages(field: str = "messages", action: Any = "$role") -> Section:
    return Section(field, action, "message")


def row(*sections: Section, name: str = "sequence", kind: Any = "ids", mask: str | None = "loss_mask") -> Output:
    return Output(name, kind, sections, mask)


def chat(*turns: str, **own: bool) -> list[dict[str, Any]]:
    """`chat("u hi", "a yo")`: messages by the first letter of their role; `t1=False`: the `train` of message 1."""
    roles = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}
    made: list[dict[str, Any]] = [{"role": roles[turn[0]], "content": turn[2:]} for turn in turns]
    for place, train in own.items():
        made[int(place[1:])]["train"] = train
    return made


def render(rows: Sequence[Any], *outputs: Output, template: str = TEMPLATE) -> Rendered:
    return apply_template(testing.records(rows), outputs, ChatFormat(ChatTemplate(template, {}, ()), bos=BOS, eos=EOS))


def batch_of(
    rows: Sequence[Any], *outputs: Output, template: str = TEMPLATE, bos: str | None = BOS, encoder: Chars | None = None
) -> Batch:
    return tokenize(render(rows, *outputs, template=template), encoder or Chars(), None if bos is None else ord(bos))


def texts(batch: Batch, name: str = "sequence") -> list[Any]:
    """The ids of a column as text, row by row."""

    def read(ids: list[Any]) -> Any:
        return [read(each) for each in ids] if ids and isinstance(ids[0], list) else "".join(map(chr, ids))

    return [read(ids) for ids in batch[name].to_lists()]


def trained(batch: Batch, name: str = "sequence", mask: str = "loss_mask") -> list[str]:
    """The rows of a column as text, with `_` for what is not trained."""
    shown = []
    for ids, marks in zip(batch[name].to_lists(), batch[mask].to_lists(), strict=True):
        assert len(ids) == len(marks)
        shown.append("".join(chr(token) if mark else "_" for token, mark in zip(ids, marks, strict=True)))
    return shown


def outcomes(batch: Any) -> list[str]:
    """What became of each line of a block: the reason, "" where it is kept."""
    ledger = batch.ledger
    return ["" if code == 0 else ledger.outcomes[code - 1][1] for code in ledger.status.tolist()]
