"""Holds the spans of generated templates against the truth, character by character.

The rule: of an answer everything behind the generation prompt up to and including its end token is trained. Where
transformers' own rendering of the messages before with the generation prompt begins the whole, the answer begins
there. Where its own rendering of the messages up to the answer begins the whole, the answer ends within it. Elsewhere
the labels of the generator decide (`Rendered.right`).
"""

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from transformers.utils.chat_template_utils import render_jinja_template

from beam_prep.chat.messages import has_words
from beam_prep.chat.template import ChatTemplate
from beam_prep.chat.turns import RenderedChat, Turn, shared
from tests.chat import generated_templates as gen
from tests.chat.generated_templates import Choices, Message, Ranges, Rendered, Template

ANSWERED = (False, False, False, True, True, False, True, False)
"""Whether conversations end with an answer."""


class Case(NamedTuple):
    """A template, and conversations of one pattern."""

    template: Template
    conversations: list[list[Message]]

    def must_prove(self, messages: list[Message], index: int) -> bool:
        """Whether the span of a message must be found."""
        return not self.template.twists and messages[index]["role"] in self.template.proves


def draw_cases(draw: Choices, count: int, plain: bool | None = None, size: int = 8) -> Iterator[Case]:
    """Cases of one template, with `count` conversations, `size` of each pattern."""
    made = gen.template(draw, plain)
    for left in range(count, 0, -size):
        answered = draw.choice(ANSWERED)
        yield Case(made, gen.conversations(draw, made, min(left, size), answered))


def chat_template(made: Template) -> ChatTemplate:
    return ChatTemplate(made.source, {"bos_token": made.bos, "eos_token": made.eos}, made.controls)


# The truth


class Truth(NamedTuple):
    """What is right for a message.

    Attributes:
        right: the masks; none: it can but be refused.
        decided: transformers' own prefixes say where it begins and ends.
    """

    right: list[Ranges]
    decided: bool


class Prefixes:
    """Renderings by transformers of the beginnings of a conversation."""

    def __init__(self, made: Template, messages: list[Message], text: str) -> None:
        self._made, self._messages, self._text = made, messages, text

    def _rendered(self, count: int, prompt: bool) -> str | None:
        given: Any = {"bos_token": self._made.bos, "eos_token": self._made.eos, "add_generation_prompt": prompt}
        try:
            found: Any = render_jinja_template([self._messages[:count]], chat_template=self._made.source, **given)
        except Exception:  # whatever a template makes of no messages
            return None
        return str(found[0][0])

    def begin(self, index: int) -> tuple[int | None, bool]:
        """(where an answer begins: behind the generation prompt, or as much as is written of it; it is all there)."""
        closed, asked = self._rendered(index, False), self._rendered(index, True)
        if closed is None or asked is None or not asked.startswith(closed):
            return None, False
        if not self._made.prompt:
            return (len(closed) if self._text.startswith(closed) else None), False
        if asked == closed:
            return None, False
        alike = shared(asked, self._text)
        if alike == len(asked):
            return alike, True
        return (alike, False) if alike > len(closed) else (None, False)

    def plain_header(self, index: int, region: int) -> int | None:
        """Where the text of a plain answer would begin, if what stands before it begins this text."""
        plain = Prefixes(
            self._made, [*self._messages[:index], {"role": "assistant", "content": "Plainly."}], self._text
        )
        text = plain._rendered(index + 1, False) or ""
        at = text.find("Plainly.", region)
        return at if at >= 0 and self._text.startswith(text[:at]) else None

    def prompt(self, index: int) -> str:
        """What the generation prompt writes."""
        closed, asked = self._rendered(index, False), self._rendered(index, True)
        return asked[len(closed) :] if closed is not None and asked is not None and asked.startswith(closed) else ""

    def stop(self, index: int) -> int | None:
        """Up to where the template writes for a message."""
        upto = self._rendered(index + 1, False)
        return len(upto) if upto is not None and self._text.startswith(upto) else None


def truth(made: Template, messages: list[Message], index: int, shown: Rendered, prefixes: Prefixes) -> Truth:
    """What is right for a message."""
    old = shown.right(index)
    own = [run for run in shown.own(index) if run.stop > run.start]
    said = "".join(shown.text[run.start : run.stop] for run in own if run.label == gen.OWN)
    silent: list[Ranges] = [] if said.strip() and is_said(messages[index]) else [()]  # nothing is lost of no words
    if messages[index]["role"] != "assistant":
        silent = silent if is_said(messages[index]) else [()]
        return Truth([*old, *_of_others(made, shown, index), *silent], False)
    begin, all_there = prefixes.begin(index)
    stop = prefixes.stop(index)
    place = own or shown.own(index)  # where it says nothing, it says that somewhere
    first, last = (place[0].start, place[-1].stop) if place else (None, begin or 0)
    by_prompt = all_there and begin is not None and (first is None or begin <= last)
    if made.prompt_echo and by_prompt and first is not None and begin is not None and begin > first:
        by_prompt = False  # what it says begins, by chance, as what the prompt says again
    by_stop = stop is not None and stop >= max(last, begin or 0)
    begins = [begin] if by_prompt and begin is not None else [each[0][0] for each in old if each]
    region = shown.regions.get(index, last)
    until = min((each for each in shown.regions.values() if each > region), default=len(shown.text))
    if not by_prompt and first is not None:
        prompt = shown.text.rfind(made.prompt, 0, first) if made.prompt.strip() else -1
        headers = [run for run in shown.runs if run.label == gen.HEADER and region <= run.start and run.stop <= first]
        headers = [run for run in headers if shown.text[run.start : run.stop].strip()]
        written = _whole(made, shared(shown.text[region:first], made.prompt))
        if not made.prompt and headers:
            begin = None  # a header stands behind what was said before
        header_ends = until if silent else first  # where it says nothing, no text shows where
        there: list[int | None] = [begin, prompt + len(made.prompt) if prompt >= 0 else None]
        for each in (made.prompt, prefixes.prompt(index)):  # without what it says again, and as the record has it
            loosely = re.search(r"\s*".join(map(re.escape, "".join(each.split()))), shown.text[region:header_ends])
            there.append(region + loosely.end() if loosely and each.strip() else None)
        there.append(headers[-1].stop if headers else region)
        there += [region + written] if made.prompt[:written].strip() else []
        if not made.prompt.strip():  # what a plain answer has, too
            there.append(region + len(shown.constant(region, skip_empty=False)))
            there.append(prefixes.plain_header(index, region))
        begins += [each for each in there if each is not None and (region <= each <= header_ends or each == begin)]
    ends = _ends(made, shown, index, last, stop if by_stop and stop is not None else max(until, last))
    for at in begins if silent else ():
        ends += _ends(made, shown, index, at, until)  # the first end token, wherever it says nothing
    if not by_stop:
        ends += [each[-1][1] for each in old if each]
    right: list[Ranges] = [((one, two),) for one in dict.fromkeys(begins) for two in dict.fromkeys(ends) if one <= two]
    right = [each for each in right if not _foreign(shown, index, *each[0])]
    if not (by_prompt and by_stop):
        right += [each for each in old if each not in right]
    return Truth(right + silent, by_prompt and by_stop)


def _whole(made: Template, size: int) -> int:
    """So much of the beginning of a generation prompt that no special token is cut."""
    for token in re.finditer("|".join(map(re.escape, made.controls)), made.prompt):
        size = token.start() if token.start() < size < token.end() else size
    return size


def _of_others(made: Template, shown: Rendered, index: int) -> list[Ranges]:
    """The spans of a message of another role: what it says, once or again, and the end token that follows."""
    runs = [run for run in shown.runs if run.message == index and run.label in (gen.OWN, gen.WRAP, gen.AGAIN)]
    begins = [run.start for run in runs if run.stop > run.start]
    ends = []
    for run in runs:
        behind = run.stop + len(shown.text[run.stop :]) - len(shown.text[run.stop :].lstrip())
        tokens = [token for token in made.controls if shown.text.startswith(token, behind)]
        ends += [run.stop, *(behind + len(token) for token in tokens)]
        ends += [behind + len(token + made.eos) for token in tokens if shown.text.startswith(token + made.eos, behind)]
    found: list[Ranges] = [((one, two),) for one in begins for two in dict.fromkeys(ends) if one < two]
    return [each for each in found if not _foreign(shown, index, *each[0])]


def _foreign(shown: Rendered, index: int, begin: int, end: int) -> bool:
    """Whether another message says something there."""
    return any(
        (run.label == gen.OTHER or (run.label == gen.OWN and run.message != index))
        and shown.text[max(run.start, begin) : min(run.stop, end)].strip()
        for run in shown.runs
        if run.start < end and run.stop > begin
    )


def _ends(made: Template, shown: Rendered, index: int, last: int, stop: int) -> list[int]:
    """Where the answer ends: behind the first token that ends turns, and those that follow at once."""
    text = shown.text
    behind = [run for run in shown.runs if run.start >= last and run.stop > run.start and run.start < stop]
    soft: list[int] = []
    for place, run in enumerate(behind):
        said = text[run.start : run.stop]
        if run.label == gen.AGAIN:
            continue
        if run.label == gen.SOFT and not soft:
            soft = [last, run.stop]  # a word, which may end it or not
        known = said.strip() in made.end_tokens and said.strip() != made.bos and said.strip() not in made.prompt
        token = known or (run.label in (gen.END, gen.EOS, gen.AFTER) and said.strip() in made.controls)
        if not token:
            continue
        ends = [run.start + len(said.rstrip())]
        for more in behind[place + 1 :]:
            if more.start != ends[-1] or text[more.start : more.stop] not in made.controls:
                break
            if more.label == gen.EOS and text[more.start : more.stop] != said:
                ends = []  # it belongs to the end
            ends.append(more.stop)
        return ends + soft
    # None ends it: what stops the model is the next header.
    ends = [*(run.stop for run in behind if run.label == gen.AGAIN)]
    ends += [last, len(text[:stop].rstrip()), last + len(text[last:stop].rstrip()), stop]
    blank = stop + len(text[stop:]) - len(text[stop:].lstrip())
    ends += [blank + len(token) for token in made.controls if text.startswith(token, blank)]
    return ends + soft


# The judge


@dataclass(slots=True)
class Report:
    """Counts, and the first examples of each kind."""

    pairs: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=dict)
    kept: int = 8

    def add(self, other: "Report") -> None:
        self.pairs += other.pairs
        self.counts.update(other.counts)
        for kind, texts in other.examples.items():
            self.examples[kind] = (self.examples.get(kind, []) + texts)[: self.kept]

    def note(self, kind: str, text: str) -> None:
        """Keeps one example of a template with the same twists."""
        kept = self.examples.setdefault(kind, [])
        title = text.partition("\n")[0]
        if len(kept) < self.kept and not any(each.startswith(title) for each in kept):
            kept.append(text)


def judge(case: Case, report: Report, chat: ChatTemplate) -> None:
    """Adds what comes of a case."""
    made = case.template
    for messages in case.conversations:
        shown = made.render(messages)
        ours = chat.render(messages)
        report.pairs += 1
        assert ours.text == shown.text, f"{made.source}\n{messages}\n{ours.text!r}\n{shown.text!r}"
        given = shown.messages
        prefixes = Prefixes(made, given, shown.text)
        for turn in ours.turns:
            right = truth(made, given, turn.message, shown, prefixes)
            _judge_turn(case, given, turn, ours, right, report)


def _judge_turn(
    case: Case, messages: list[Message], turn: Turn, ours: RenderedChat, right: Truth, report: Report
) -> None:
    made, text = case.template, ours.text
    report.counts["turns"] += 1
    report.counts["decided"] += right.decided
    must = case.must_prove(messages, turn.message)
    lost = any(index == turn.message and key != "reasoning" for index, key in ours.not_rendered)
    spans = tuple(span for span in turn.spans if span[1] > span[0])
    kind = ""
    if turn.reason:
        kind = f"refused {turn.reason[0]}{' of plain' if must else ', decided' if right.decided else ''}"
        report.counts["refused of decided"] += right.decided
        report.counts["refused of plain"] += must
    elif lost:
        report.counts["not rendered"] += 1
    elif _agrees(spans, right, text) and (spans or not is_said(messages[turn.message])):
        report.counts["right"] += 1
    else:
        kind = "wrong"
        report.counts["wrong"] += 1
    if kind:
        report.note(kind, _shown(kind, made, messages, turn, text, right))


def _agrees(spans: Ranges, truth: Truth, text: str) -> bool:
    """Whether spans are right; but for blanks, where prefixes do not decide."""

    def same(one: int, other: int) -> bool:
        return one == other or not (truth.decided or text[min(one, other) : max(one, other)].strip())

    for right in truth.right:
        wanted = tuple(span for span in right if span[1] > span[0])
        pairs = zip(spans, wanted, strict=False)
        if len(wanted) == len(spans) and all(same(a, c) and same(b, d) for (a, b), (c, d) in pairs):
            return True
    return False


def is_said(message: Message) -> bool:
    return bool(message.get("tool_calls")) or has_words(message.get("content"))


def _shown(kind: str, made: Template, messages: list[Message], turn: Turn, text: str, right: Truth) -> str:
    def pieces(ranges: Ranges) -> list[str]:
        return [text[begin:end] for begin, end in ranges]

    return "\n".join(
        [
            f"{kind}: {made.family}, {', '.join(made.twists) or 'plain'}",
            f"  template: {made.source}",
            f"  prompt: {made.prompt!r}; special tokens: {' '.join(made.controls)}; EOS: {made.eos!r}",
            *(f"  {json.dumps(message, ensure_ascii=False)}" for message in messages),
            f"  text: {text!r}",
            f"  message {turn.message}: {pieces(turn.spans)} {turn.reason or ''}",
            *(f"  right: {pieces(each)}" for each in right.right),
        ]
    )
