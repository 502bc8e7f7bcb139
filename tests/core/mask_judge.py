"""Holds the masks of generated templates against the truth, on every path of the library.

With `Points` a token is a character, so the ranges that are trained can be read off exactly. `judge_tokens` does the
same with a real tokenizer: a token is right to be trained that overlaps a character that is right to be trained.
"""

import itertools
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import tokenizers

from beam_prep.core.chat.template import ChatTemplate
from beam_prep.core.data.block import InputFile
from beam_prep.core.data.columns import Wanted
from beam_prep.core.data.ragged import Ragged
from beam_prep.core.data.schema import Output, Section
from beam_prep.core.encoding.backends import encoder_of
from beam_prep.core.encoding.spans import CharSpans, TokenSpans
from beam_prep.core.encoding.tokenizer import Tokenizer
from beam_prep.core.pieces.apply import apply_template
from beam_prep.core.pieces.voice import Voice
from beam_prep.core.reading.blocks import RawBlock
from beam_prep.core.reading.records import Records, parse
from beam_prep.core.tokens.batch import Batch
from beam_prep.core.tokens.mask import RoleMask, build_mask
from beam_prep.core.tokens.tokenize import tokenize
from tests.core.generated_templates import (
    Choices,
    Message,
    Ranges,
    Rendered,
    Template,
    conversations,
    template,
)

Right = list[list[Ranges]]

PATHS = ("plans", "columns", "jinja")
ROLE, LAST_OF_ROLE, ALL, LAST, PROMPT = "$role", "$role last", "$role all", "$last", "prompt"
ACTIONS = (ROLE, ROLE, ROLE, LAST, LAST, ALL, PROMPT, LAST_OF_ROLE)
MASKS = {
    ROLE: RoleMask({"assistant": "train"}),
    LAST_OF_ROLE: RoleMask({"assistant": "last"}),
    ALL: RoleMask({}, "train"),
    LAST: RoleMask({"assistant": "train"}),
    PROMPT: RoleMask({"assistant": "train"}),
}


def sections(action: str) -> tuple[Section, ...]:
    if action == PROMPT:
        return Section("prompt", "mask", "conversation"), Section("messages", "train", "conversation")
    return (Section("messages", "$last" if action == LAST else "$role", "conversation"),)


class Reading(Protocol):
    """How a text becomes tokens: as the library is to have it, and as it can be looked up without the library."""

    name: str

    @property
    def controls(self) -> tuple[str, ...] | None:
        """None: those of the template."""

    @property
    def encoder(self) -> Any: ...

    def ids(self, text: str) -> list[int]: ...

    def in_tokens(self, text: str, ranges: Ranges) -> Ranges:
        """The tokens that overlap ranges of characters."""


class Points:
    """Each character is a token, its id is its code point."""

    name, controls = "", None

    cut_behind = ()

    def id_of_token(self, token: str) -> int:
        return -1  # a special token is several characters here

    def encode(self, texts: Sequence[str], add_special_tokens: bool) -> Ragged:
        texts = list(texts)
        ids = np.frombuffer("".join(texts).encode("utf-32-le"), np.uint32).astype(np.int32)
        return Ragged.from_lengths(ids, [len(text) for text in texts])

    def encode_spans(
        self, texts: Sequence[str], add_special_tokens: bool, spans: CharSpans
    ) -> tuple[Ragged, TokenSpans]:
        return self.encode(texts, add_special_tokens), TokenSpans(spans.start, spans.stop)

    @property
    def encoder(self) -> "Points":
        return self

    def ids(self, text: str) -> list[int]:
        return [ord(character) for character in text]

    def in_tokens(self, text: str, ranges: Ranges) -> Ranges:
        return ranges


class Real:
    """A tokenizer, by one of the library's backends; its own library says where tokens lie."""

    def __init__(self, folder: Path, backend: str) -> None:
        tokenizer = Tokenizer.load(folder)
        self.name = f" ({backend})"
        self.controls = tokenizer.controls
        self.encoder: Any = tokenizer if backend == "transformers" else encoder_of(tokenizer, backend)
        self._reference = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))

    def _encoded(self, text: str) -> Any:
        return self._reference.encode(text, add_special_tokens=False)

    def ids(self, text: str) -> list[int]:
        found: list[int] = self._encoded(text).ids
        return found

    def in_tokens(self, text: str, ranges: Ranges) -> Ranges:
        offsets = self._encoded(text).offsets
        found = []
        for start, stop in ranges:
            inside = [place for place, (first, last) in enumerate(offsets) if first < stop and last > start]
            if inside and start < stop:
                found.append((inside[0], inside[-1] + 1))
        return tuple(found)


POINTS = Points()


def records(rows: Sequence[Any], wanted: Wanted | None = None) -> Records:
    data = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    raw = RawBlock(0, len(data), 0, data, b"")
    return parse(raw, raw.origin(0, InputFile("x.jsonl", len(data), 0.0), 65536), wanted)


@dataclass(frozen=True, slots=True)
class Case:
    """Conversations of one pattern, and what is trained of them."""

    template: Template
    action: str
    conversations: list[list[Message]]

    def rows(self) -> list[dict[str, Any]]:
        if self.action == PROMPT:
            return [{"prompt": each[:-1], "messages": each[-1:]} for each in self.conversations]
        return [{"messages": each} for each in self.conversations]

    def trained(self, messages: Sequence[Message]) -> list[int]:
        """The messages that are trained."""
        if self.action in (LAST, PROMPT):
            return [len(messages) - 1]
        if self.action == ALL:
            return list(range(len(messages)))
        found = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
        return found[-1:] if self.action == LAST_OF_ROLE else found

    def right(self, messages: Sequence[Message], shown: Rendered) -> Right:
        """For each message that is trained, the masks that are right."""
        return [shown.right(place, self.action in (LAST, PROMPT)) for place in self.trained(messages)]

    def must_prove(self, messages: Sequence[Message]) -> bool:
        made = self.template
        return not made.twists and {messages[place]["role"] for place in self.trained(messages)} <= made.proves


class Wrong(NamedTuple):
    """A mask that is not right.

    Attributes:
        kind: in what way.
        twists: of the template.
        text: all about it.
    """

    kind: str
    twists: tuple[str, ...]
    text: str


@dataclass(slots=True)
class Report:
    """Counts, and the first masks that are wrong."""

    pairs: int = 0
    proven: Counter[str] = field(default_factory=Counter)  # by path
    refused: Counter[str] = field(default_factory=Counter)
    refused_though_plain: Counter[str] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)
    made: Counter[str] = field(default_factory=Counter)  # what rendered the records
    plain: Counter[str] = field(default_factory=Counter)  # records that must be proven, by path
    classes: dict[str, Counter[str]] = field(default_factory=dict)  # kind -> twist -> count
    reasons: Counter[str] = field(default_factory=Counter)
    wrongs: list[Wrong] = field(default_factory=list)

    def add(self, other: "Report", keep: int = 1 << 30) -> None:
        self.pairs += other.pairs
        for name in ("proven", "refused", "refused_though_plain", "wrong", "made", "plain", "reasons"):
            getattr(self, name).update(getattr(other, name))
        for kind, counts in other.classes.items():
            self.classes.setdefault(kind, Counter()).update(counts)
        self.wrongs = (self.wrongs + other.wrongs)[:keep]

    def count_class(self, kind: str, made: Template) -> None:
        names = [f"{made.family} (plain)"] if not made.twists else made.twists
        self.classes.setdefault(kind, Counter()).update(names)


def _bytes(size: int, ranges: Ranges) -> bytes:
    mask = bytearray(size)
    for start, stop in ranges:
        mask[start:stop] = b"\1" * (stop - start)
    return bytes(mask)


def fault(mask: bytes, rights: Sequence[Sequence[Ranges]]) -> str:
    """What is wrong with a mask, "" where it is right.

    Args:
        mask: a byte for each token, 1 where it is trained.
        rights: for each message that is trained, the masks that are right.
    """
    counted = 0
    for choices in rights:
        bounds = [bound for ranges in choices for each in ranges for bound in each]
        if not bounds:
            continue
        first, last = min(bounds), max(bounds)
        found = mask[first:last]
        counted += found.count(1)
        moved = [tuple((start - first, stop - first) for start, stop in ranges) for ranges in choices]
        if not any(found == _bytes(last - first, ranges) for ranges in moved):
            widest = _bytes(last - first, tuple(each for ranges in moved for each in ranges))
            more = any(one and not other for one, other in zip(found, widest, strict=True))
            return "trains more" if more else ("trains nothing" if not any(found) else "trains less")
    return "trains more" if mask.count(1) != counted else ""


def show(text: str, mask: bytes) -> str:
    """The runs of a text that a mask trains."""
    runs, start = [], None
    for place, one in enumerate([*mask, 0]):
        if one and start is None:
            start = place
        elif not one and start is not None:
            runs.append(text[start:place])
            start = None
    return repr(runs)


def render_by(path: str, case: Case, chat: ChatTemplate, reading: Reading) -> Batch:
    """What the library makes of the conversations."""
    made = case.template
    wanted = Wanted("chats", "messages") if path == "columns" else None
    output = Output("sequence", "ids", sections(case.action), "loss_mask")
    controls = made.controls if reading.controls is None else reading.controls
    rendered = apply_template(records(case.rows(), wanted), (output,), Voice(chat, controls, made.bos, made.eos))
    return build_mask(tokenize(rendered, reading.encoder, None), MASKS[case.action])


def judge(case: Case, report: Report, readings: Sequence[Reading] = (POINTS,), paths: Sequence[str] = PATHS) -> None:
    """Adds what comes of a case, by every path."""
    made = case.template
    shown = [made.render(messages) for messages in case.conversations]
    rights = [case.right(messages, each) for messages, each in zip(case.conversations, shown, strict=True)]
    report.pairs += len(shown)
    tokens = {"bos_token": made.bos, "eos_token": made.eos}
    planned = ChatTemplate(made.source, tokens, plans=True)
    plain = ChatTemplate(made.source, tokens)
    before = case.conversations[0][:-1]
    if before:
        assert plain.render(before, True) == made.render(before, True).text, made.source
    for reading, path in itertools.product(readings, paths):
        if path == "columns" and case.action == PROMPT:
            continue
        batch = render_by(path, case, plain if path == "jinja" else planned, reading)
        report.made.update({f"{path}: {name}": count for name, count in batch.made.items()})
        _judge_batch(case, report, reading, path + reading.name, batch, [each.text for each in shown], rights)


def _judge_batch(
    case: Case, report: Report, reading: Reading, path: str, batch: Batch, texts: list[str], rights: list[Right]
) -> None:
    rows = dict(zip(batch.line.tolist(), range(len(batch)), strict=True))
    for line, (messages, text, right) in enumerate(zip(case.conversations, texts, rights, strict=True)):
        must = case.must_prove(messages)
        report.plain[path] += must
        if line not in rows:
            reason = _reason(batch, line)
            report.reasons[reason] += 1
            if reason == "empty" and not text:
                continue
            if reason not in REFUSALS:
                raise AssertionError(f"{reason}: {batch.ledger.messages.get(line)}\n{case.template.source}\n{messages}")
            (report.refused_though_plain if must else report.refused)[path] += 1
            if must:
                _note(report, case, path, "refused though plain", messages, reason, [])
            continue
        ids, mask = batch["sequence"][rows[line]], np.asarray(batch["loss_mask"][rows[line]]).astype(np.uint8).tobytes()
        # The generator checks itself: the library renders what the parts say.
        assert list(ids) == reading.ids(text), f"{case.template.source}\n{messages}\n{text!r}"
        wanted = [[reading.in_tokens(text, ranges) for ranges in choices] for choices in right]
        kind = fault(mask, wanted)
        if not kind:
            report.proven[path] += 1
            continue
        report.wrong[path] += 1
        by_characters = len(mask) == len(text)
        choices = [
            f"{place}: {show(text, _bytes(len(text), ranges))}"
            for place, each in zip(case.trained(messages), right, strict=True)
            for ranges in each
        ]
        trained = show(text, mask) if by_characters else f"{mask.count(1)} tokens of {wanted}"
        _note(report, case, path, kind, messages, trained, choices)


REFUSALS = {"spans_unproven", "prompt_not_prefix"}
"""Reasons by which a record may be refused."""


_KEPT = 200


def _note(
    report: Report, case: Case, path: str, kind: str, messages: list[Message], trained: str, right: list[str]
) -> None:
    made = case.template
    report.count_class(kind, made)
    if len(report.wrongs) >= _KEPT:
        return
    lines = [
        f"{kind}, by {path}, {case.action}: {made.family}, {', '.join(made.twists) or 'plain'}",
        f"  template: {made.source}",
        f"  generation prompt: {made.prompt!r}; special tokens: {' '.join(made.controls)}; EOS: {made.eos!r}",
        *(f"  {json.dumps(message, ensure_ascii=False)}" for message in messages),
        f"  trained: {trained}",
        *(f"  right: {each}" for each in right),
    ]
    report.wrongs.append(Wrong(kind, tuple(made.twists), "\n".join(lines)))


def _reason(batch: Batch, line: int) -> str:
    ledger = batch.ledger
    return str(ledger.outcomes[ledger.status[line] - 1][1])


def draw_cases(
    draw: Choices, count: int, plain: bool | None = None, tokens: tuple[str, str] | None = None, size: int = 8
) -> Iterator[Case]:
    """Cases of one template, with `count` conversations, `size` of each pattern."""
    made = template(draw, plain, tokens)
    for left in range(count, 0, -size):
        action = draw.choice(ACTIONS)
        found = conversations(draw, made, min(left, size), action in (LAST, PROMPT))
        yield Case(made, action, found)
