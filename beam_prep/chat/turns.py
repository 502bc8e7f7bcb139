"""Where the span of each message begins and ends: the one rule of what is trained.

At inference, the model gets the rendering up to the generation prompt, and writes everything from there to the token
that ends its turn. So the span of an assistant turn begins behind the generation prompt (or behind the part of the
prompt that the template wrote there), and ends behind its end token. Words of the template in between are trained, too.
A turn is refused only if it contradicts this: its text stands in several places, another message's text stands within
it, its header is not the generation prompt's, or its end is ambiguous.

The spans are a function of the template, its variables and the record alone. `Facts` are constants of a template, found
by rendering probe conversations (`facts.py`); they save renderings of the record's prefixes. Where a record has another
constant, the record's own prefix is rendered, once for all turns that are alike.

The span of a message of another role begins with its text, and ends with the end token that follows.
"""

import bisect
import contextlib
import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from beam_prep.chat.environment import RAISED_BY_TEMPLATES
from beam_prep.chat.messages import Lost, Message, are_plain, is_said, not_rendered
from beam_prep.chat.origins import GENERATION_BEGINS, NAME
from beam_prep.chat.renderer import Renderer, Tokens
from beam_prep.chat.trace import (
    END,
    Said,
    SourceSpan,
    Trace,
    TurnPlace,
    constants,
    places,
    repeats,
    said,
    spoken_by_others,
)
from beam_prep.data.block import Reason, Reject

PLAIN = "Plainly."
"""The text of a plain answer."""

Ranges = tuple[tuple[int, int], ...]
RAISED = (*RAISED_BY_TEMPLATES, Reject)

_WORD, _BLANKS = re.compile(r"\w"), re.compile(r"\s*")
_NAMES = re.compile(r"\w+")
_SEVERAL_WORDS = re.compile(r"\w\W+\w")
_NUMBER = re.compile(r"[0-9]+")
_ANY_NUMBER = "\0"
"""Stands for each number of a gap. It is no digit, because a header may hold that digit."""

Gap = tuple[Any, str]
"""(what was said before, the constant before a message's text)."""


class Turn(NamedTuple):
    """The trained spans of a message.

    Attributes:
        message: its index.
        spans: of characters; empty if the message is empty or refused.
        reason: (reason, message) if the message is refused, else None.
        rule: the spans by the rule, if `{% generation %}` marks decide what is trained.
    """

    message: int
    spans: Ranges
    reason: tuple[str, str] | None = None
    rule: Ranges = ()


class RenderedChat(NamedTuple):
    """A rendered conversation.

    Attributes:
        text: the rendering, as transformers gives it.
        turns: of all messages, in order.
        not_rendered: parts of messages and tools that the template did not write.
        changed: counter -> number of calls of which the template got arguments, or the id, in another form.
        marked: the template's `{% generation %}` blocks are the spans of assistants.
        reasoned: number of messages whose reasoning the template wrote.
        said: the spans of the messages' own texts, in order.
        replayed: made without the template; then `said` is empty.
    """

    text: str
    turns: list[Turn]
    not_rendered: list[Lost]
    changed: Mapping[str, int] = {}
    marked: bool = False
    reasoned: int = 0
    said: Sequence[SourceSpan] = ()
    replayed: bool = False


class Header(NamedTuple):
    """The text between the last message's text and the place where the model begins to write.

    Attributes:
        text: the header; "" if the generation prompt repeats a message's text.
        closing: characters of `text` that the template writes without a generation prompt, too.
        prompted: True: a generation prompt; False: the text before a plain answer, of a template without prompts.
        whole: the rendering up to the end of the header.
        said: what was said before the header.
    """

    text: str
    closing: int
    prompted: bool
    whole: str
    said: Said | None


class Refused(Exception):
    """A turn contradicts the rule."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Facts:
    """Constants of a template with given variables, and with or without tools, see `facts_of`.

    Attributes:
        openings: tokens that begin a rendering: they end no turn.
        headers: tokens that stand before each answer, and only there, of a template whose prompt is unknown: one may
            always be there (Command R7B, Hunyuan).
        closers: tokens that stand in prompts, but end turns.
        prompts: generation prompts.
        plain_end: the special tokens that end a plain answer; None: unknown.
        has_parts: other tokens stand before plain_end, which close parts of an answer (Kimi K3).
        end_in_history: the special tokens behind answers that a question follows; "": none (other ones than plain_end:
            Apriel 1.6).
        gaps: gap -> (characters of its constant that are not trained, the rests of prompts that the history leaves out
            there). If a header has no number, each number behind it (of calls) is `_ANY_NUMBER`.
        left_out: openings, without blanks, that prompts have behind a header, and history has not (Cohere2 MoE,
            Gemma 4).
        always: a prompt that the template writes at the end of every conversation, whoever spoke last; "": none
            (CodeGeeX4).
        disordered: the template does not write answers in the order of the messages.
        learning: True while the probes are rendered.
    """

    def __init__(self, tokens: Tokens) -> None:
        self.tokens = tokens
        self.openings = self.headers = self.closers = frozenset[str]()
        self.prompts: list[str] = []
        self.plain_end: str | None = None
        self.end_in_history = self.always = ""
        self.gaps: dict[Gap, tuple[int, tuple[str, ...]]] = {}
        self.left_out: set[str] = set()
        self.has_parts = self.disordered = False
        self.learning = True
        # Tails are mostly the same few constants.
        self.end_in = functools.lru_cache(1000)(self._end_in)

    def opens(self, token: str) -> bool:
        """Whether the token begins a rendering or a turn."""
        return (token in self.openings | self.headers or self.is_prompts(token)) and token not in self.closers

    def is_prompts(self, token: str) -> bool:
        """Whether the token stands in a prompt, and ends no turn."""
        return token not in self.closers and any(token in prompt for prompt in self.prompts)

    def of_gap(self, size: int, before: str) -> tuple[int, tuple[str, ...]]:
        """The value of `gaps` for a header of this size. `before`: the rendering up to the end of the header."""
        lacking = []
        for prompt in self.prompts:
            had = max(k for k in range(len(prompt) + 1) if before.endswith(prompt[:k]))
            if had < len(prompt):
                lacking.append(prompt[had:])
                if self.learning and _WORD.search(prompt, 0, had):
                    self.left_out.add("".join(prompt[had:].split()))
        return size, tuple(lacking)

    def _end_in(self, tail: str, calls: bool, plain: str | None) -> int | None:
        """`end_in`: the end of a turn in the text behind the message's text; None: no token there ends a turn.

        Tokens that end a call may stand behind calls, and tokens that end a part behind parts. So there, the end of a
        plain answer counts, or the last token. Elsewhere it may end what the template says behind the turn.
        """
        if (calls or self.has_parts) and plain and plain in tail:
            return tail.find(plain) + len(plain)
        only, ends = self.tokens.only_special, [end for _, end in self._runs(tail)]
        last = ends[-1] if ends else None
        if calls and not plain:
            return last
        return next((end for end in ends if not calls or only.fullmatch(tail, end)), last)

    def first_run(self, tail: str) -> str:
        """The first run of special tokens; "" if there is none."""
        begin, end = next(self._runs(tail), (0, 0))
        return tail[begin:end]

    def _runs(self, text: str) -> Iterator[tuple[int, int]]:
        """Runs of adjacent special tokens. A run ends where its first token comes again, or where one opens a turn."""
        begin = end = -1
        for token in self.tokens.special.finditer(text):
            opens = self.opens(token[0])
            if begin >= 0 and (token.start() > end or opens or text.startswith(token[0], begin)):
                yield begin, end
                begin = -1
            if opens:
                return  # the next turn begins here
            begin, end = token.start() if begin < 0 else begin, token.end()
        if begin >= 0:
            yield begin, end


def header_of(renderer: Renderer, messages: Sequence[Message]) -> Header:
    """The header of the answer that would follow the messages: renders them with and without a generation prompt.

    Raises:
        Refused: the template has no prompt, and a plain answer shows no header.
    """
    closed, asked = (renderer.run(messages, prompt) for prompt in (False, True))
    last = said(asked.segments[-1], len(messages)) if asked.segments else None
    spoken, ended = (each.segments[-1].end if each.segments else 0 for each in (asked, closed))
    if len(asked.segments) > len(closed.segments):
        return Header("", 0, True, asked.text, last)
    header, closed_by = asked.text[spoken:], closed.text[ended:]
    if asked.text == closed.text:
        return plain_header(renderer, messages, closed_by, last)
    closing = renderer.tokens.whole(header, 0, shared(closed_by, header))
    return Header(header, closing, True, asked.text, last)


def plain_header(renderer: Renderer, messages: Sequence[Message], closed: str, last: Any) -> Header:
    """The text before a plain answer: for templates without a prompt, and for prompts that are blank."""
    answer, _ = renderer.formed([{"role": "assistant", "content": PLAIN}])
    plain = renderer.run([*messages, *answer])
    place = places(plain, (len(messages),)).get(len(messages))
    if place is None or place.silent:
        raise Refused("turn_begin", "the template does not write a plain answer here")
    if place.said != last or place.end - place.begin > len(PLAIN):
        raise Refused("turn_begin", "the template does not write a plain answer behind the last message")
    before = plain.text[place.after : place.begin]
    closing = renderer.tokens.whole(before, 0, shared(closed, before))
    return Header(before, closing, False, plain.text[: place.begin], place.said)


class Turns:
    """The turns of one rendering.

    Args:
        renderer: the renderer that made it.
        facts: of the template with these variables.
        rendering, messages: the rendering, and the messages that were rendered.

    Attributes:
        places: message index -> place of the message.
        by_facts: True if no prefix of the record had to be rendered.
    """

    def __init__(self, renderer: Renderer, facts: Facts, rendering: Trace, messages: Sequence[Message]) -> None:
        self._renderer, self._facts, self._messages = renderer, facts, messages
        self._trace, self._text = rendering, rendering.text
        self._tokens = renderer.tokens
        self.places = places(rendering, range(len(messages)))
        self.by_facts = True
        # What renderings of prefixes of this record showed: a long conversation would otherwise take many.
        self._gaps: dict[tuple[Gap, Any], tuple[int, tuple[str, ...]]] = {}  # by gap, and `alike` of `_begin`
        self._cuts: dict[Any, int] = {}

    def all(self) -> list[Turn]:
        """The turns of all messages, in order."""
        found: list[Turn] = []
        spoken = 0  # where a text of users and assistants begins behind all earlier ones
        for index, message in enumerate(self._messages):
            spans: Ranges = ()
            reason = None
            place = self.places.get(index)
            begin = place.begin if place is not None and not place.silent else None  # of its written text
            try:
                if message["role"] == "assistant":
                    if begin is not None and (self._facts.disordered or begin < spoken):
                        raise Refused("turn_apart", "it stands before an earlier message")
                    before = found[-1] if found and self._messages[index - 1]["role"] == "assistant" else None
                    spans = self._spans(index, before)
                else:
                    spans = self._spans_of_other(index)
            except Refused as refused:
                if begin is not None:  # an empty message loses nothing
                    reason = refused.reason, str(refused)
            if begin is not None and message["role"] in ("user", "assistant"):
                spoken = max(spoken, begin)
            if self._trace.generation and message["role"] == "assistant":
                found.append(Turn(index, self._marked(index), None, spans))
            else:
                found.append(Turn(index, spans, reason))
        return found

    def _spans(self, index: int, before: Turn | None) -> Ranges:
        """The spans of an assistant message."""
        place = self.places.get(index)
        if place is None:
            return ()
        if place.apart:
            raise Refused("turn_apart", place.apart)
        spans: list[tuple[int, int]] = []
        for piece in place.pieces:
            begin = self._begin(index, piece, before) if piece is place else self._goes_on(piece)
            self._check_one_turn(begin, piece.end)
            end = self._end(index, piece, max(piece.end, begin))
            silent = piece.silent and not self._tokens.special.search(self._text, begin, end)
            spans += [(begin, end)] if end > begin and not silent else []
        return tuple(spans)

    def _spans_of_other(self, index: int) -> Ranges:
        """The span of a message of another role."""
        place = self.places.get(index)
        if place is None or not is_said(self._messages[index]):
            return ()
        if place.apart or place.goes_on:
            raise Refused("turn_apart", place.apart or "its text stands in several places")
        if place.again:
            raise Refused("turn_apart", "its text is written twice, and no loop says whose turn that is")
        if place.owner > index and self._messages[place.owner]["role"] == "assistant":
            header = self._text[place.after : place.begin]
            if any(prompt.strip() in header for prompt in self._facts.prompts if prompt.strip()):
                raise Refused("turn_apart", f"its text is written in the turn of message {place.owner}")
        text = self._text
        if any(between.strip() for between in self._between_repeated(place.begin, place.end)):
            raise Refused("turn_apart", "its text is written twice, and the template's words stand between")
        stop = min(self._trace.next_mark(index, place.end)[0], place.before, len(text))
        behind_blanks = min(place.end + len(_blanks(text, place.end)), stop)
        end = self._tokens.special.match(text, behind_blanks, stop)
        if end is None:
            return ((place.begin, place.end),)
        eos = self._renderer.special_tokens.get("eos_token", "")
        more = len(eos) if eos and end[0] != eos and text.startswith(eos, end.end(), stop) else 0
        return ((place.begin, end.end() + more),)

    # Begins

    def _begin(self, index: int, place: TurnPlace, before: Turn | None) -> int:
        """Where the model begins to write in this turn."""
        text, at, facts = self._text, place.after, self._facts
        previous = self._messages[index - 1] if index else {}
        context = place.said, previous.get("role"), "tool_calls" in previous
        gap = context, text[at : place.begin]
        counted = context, _NUMBER.sub(_ANY_NUMBER, gap[1])
        # An empty answer may begin behind its place; one of several in a row, within the turn of the one before.
        behind = text[place.begin : place.before] if place.silent else ""
        ended = before.spans[-1][1] - at if before is not None and before.spans else None
        alike = are_plain([self._messages[index]]), behind, ended
        known = facts.gaps.get(gap) or facts.gaps.get(counted)
        # Where a text begins with a tag, the prompt may have it.
        if known is None and (place.silent or not self._tokens.tag.match(text, place.begin)):
            known = self._gaps.get((gap, alike)) or self._gaps.get((counted, alike))
        if known is not None:
            begin = at + known[0]
            if not text.startswith(known[1], begin):  # otherwise it begins like the rest of a prompt (DeepSeek-R1)
                return begin
        self.by_facts = False
        begin, by_header = self._begin_by_rendering(index, place, before)
        is_repeated = place.said and place.said[2]  # a repeated text follows the header
        is_kept = not facts.learning or (by_header and not place.silent)
        if is_kept and not is_repeated and at <= begin <= place.begin + len(behind):
            shown = gap if _NUMBER.search(text, at, begin) else counted
            found = facts.of_gap(begin - at, text[:begin])
            if facts.learning:
                facts.gaps[shown] = found
            else:
                self._gaps[shown, alike] = found
        return begin

    def _begin_by_rendering(self, index: int, place: TurnPlace, before: Turn | None) -> tuple[int, bool]:
        """(begin, True if the header shows it), by rendering the messages before this one."""
        text, facts = self._text, self._facts
        try:
            header = self._header_before(index)
        except (*RAISED, Refused):  # the template does not take this prefix
            joined = self._joined(index, before, place.begin)
            return (self._by_prompt(place) if joined is None else joined), False
        # A prompt that repeats a message's text may be there by chance.
        is_there = header.prompted and text.startswith(header.whole)
        if is_there and (header.text or not self._is_within_word(len(header.whole))):
            if len(header.whole) > place.end and not place.silent:
                raise Refused("turn_begin", f"its text stands before the generation prompt: {header.text[-60:]!r}")
            self._check_alone(index, len(header.whole), place.begin)
            return len(header.whole) + self._rest_of_header(header, place), True
        if header.prompted and not header.text:
            raise Refused("turn_begin", f"the generation prompt repeats a message's text: {header.whole[-60:]!r}")
        is_certain = header.prompted
        if not header.prompted:
            if facts.prompts:
                with contextlib.suppress(Refused):  # no prompt is written here, but history may have one (Reka)
                    return self._by_prompt(place), False
            always = header.text[: header.closing] + _blanks(header.text, header.closing)
            is_certain = not facts.headers.isdisjoint(self._tokens.special.findall(always)[-1:])
            header = header._replace(text=always) if is_certain else header
        # If `said` differs, a text stands before the turn that the prompt does not have.
        begin = self._behind(header, place) if header.said == place.said else None
        by_header = begin is not None
        if begin is None:
            prompt = header.text[header.closing :].strip()
            turn = text[place.after : min(place.before, len(text))]
            joined = None if prompt and prompt in turn else self._joined(index, before, place.begin)
            if joined is not None:
                return joined, False  # several messages share one turn (Apertus)
            begin = self._by_prompt(place, header)
        elif not is_certain and are_plain([self._messages[index]]) and (words := text[begin : place.begin].strip()):
            raise Refused("turn_begin", f"before its text stand words that a plain answer does not have: {words!r}")
        self._check_name(index, begin, place.begin)
        return begin, by_header

    def _is_within_word(self, at: int) -> bool:
        """Whether a place is between two letters or digits."""
        around = self._text[at - 1 : at + 1]
        return len(around) == 2 and around.isalnum()

    def _rest_of_header(self, header: Header, place: TurnPlace) -> int:
        """Length of the rest of another prompt, if this one only ends the answer before (some ChatML templates)."""
        tokens = self._tokens.special
        prompt = header.text[header.closing :]
        ends = {*tokens.findall(prompt)}
        if not ends or not ends <= self._facts.closers or tokens.sub("", prompt).strip():
            return 0
        rests = [other[len(prompt) :] for other in self._facts.prompts if other.startswith(prompt)]
        begin = len(header.whole)
        until = len(self._text) if place.silent else place.begin
        return max((len(rest) for rest in rests if self._text.startswith(rest, begin, until)), default=0)

    def _joined(self, index: int, before: Turn | None, begin: int) -> int | None:
        """Where the turn of the answer before goes on up to this text; None: an end or a header may be between."""
        if before is None or not before.spans:
            return None
        facts, ended, special = self._facts, before.spans[-1][1], self._tokens.special
        between = self._text[ended:begin]
        tokens = special.findall(between)
        if not tokens:
            return None if between.strip() else ended
        eos = self._renderer.special_tokens.get("eos_token")
        ends = {eos, *special.findall(f"{facts.plain_end or ''} {facts.end_in_history}")}
        is_known = facts.plain_end and facts.end_in_history
        if not is_known or not ends.isdisjoint(tokens) or any(map(facts.opens, tokens)):
            return None
        is_open = not self._text.endswith(self._tokens.texts, 0, ended)
        return ended if is_open and self._opens_alone(index, between) else None

    def _opens_alone(self, index: int, opening: str) -> bool:
        """Whether the message begins so behind the header, too: a call (Gemma 4, Mistral), and no separator."""
        first = index
        while first and self._messages[first - 1]["role"] == "assistant":
            first -= 1
        try:
            header = header_of(self._renderer, self._messages[:first])
            plain = plain_header(self._renderer, self._messages[:first], "", header.said)
            alone = self._renderer.run([*self._messages[:first], self._messages[index]])
        except (*RAISED, Refused):
            return False
        place = places(alone, (first,)).get(first)
        return place is not None and alone.text[: place.begin] == plain.whole + opening

    def _header_before(self, index: int) -> Header:
        """The header of an answer in place of the message; that of a plain one, if a blank prompt is not there."""
        header = header_of(self._renderer, self._messages[:index])
        is_blank = header.prompted and header.text and not header.text[header.closing :].strip()
        if is_blank and not self._text.startswith(header.whole):
            closed = header.text[: header.closing]
            return plain_header(self._renderer, self._messages[:index], closed, header.said)
        return header

    def _behind(self, header: Header, place: TurnPlace) -> int | None:
        """Behind the header, or behind the part of it that the history has; None: that is not the header.

        White space may differ.
        """
        text, at, done = self._text, place.after, 0
        until = len(text) if place.silent else place.begin  # where a header ends at the latest
        for token in self._tokens.token.finditer(header.text):
            if token[0].isspace():
                continue
            begin = at + len(_blanks(text, at))
            end = begin + len(token[0])
            within_word = end < until and self._is_within_word(end)
            if within_word or not text.startswith(token[0], begin, until):
                break
            at, done = end, token.end()
        if done < len(header.text[: header.closing].rstrip()):
            return None
        begin = at + _shared_blanks(_blanks(header.text, done), text, at, until)
        if header.text[done:].strip():
            return self._behind_a_part(header, place, done, begin, until) if header.prompted else None
        # An empty answer may stand further behind, if a token takes the place of the header's blanks.
        is_token = place.silent and self._tokens.special.match(text, begin)
        return None if is_token and header.text[-1:].isspace() and not text[begin - 1].isspace() else begin

    def _behind_a_part(self, header: Header, place: TurnPlace, done: int, begin: int, until: int) -> int | None:
        """Behind the part of a generation prompt that the history has, if it may lack the rest; see `_behind`.

        The rest must be known to be left out, or be the opening of the reasoning. The history may also have
        the last tags of the rest (`</think>` of an opening and an end without reasoning between).

        Args:
            done: characters of the header that the history has.
            begin, until: where the history goes on behind them, and where the header ends at the latest.
        """
        tokens, text = self._tokens, self._text
        prompt, rest = header.text[header.closing :].strip(), header.text[done:].lstrip()
        had_of_prompt = header.text[header.closing : done].strip()
        left = "".join(rest.split())
        instead = text[begin : place.begin].strip()
        stands_behind = prompt in text[begin : min(place.before, len(text))] or left in instead
        repeated = any(left in each for each in self._between_repeated(place.begin, place.end))
        if stands_behind or repeated or (had_of_prompt and had_of_prompt in instead):
            return None  # the prompt, or a part of it, stands further behind
        first = next(tokens.token.finditer(rest))[0]
        last_tags = left[len(first) :] if tokens.only_tags.fullmatch(left) else ""
        if last_tags and first not in instead and text.startswith(last_tags, begin, until):
            at, blanks = begin + len(last_tags), header.text[len(header.text.rstrip()) :]
            return at + _shared_blanks(blanks, text, at, until)
        is_tag = tokens.tag.match(first) is not None
        other_words = {*_NAMES.findall(instead.removeprefix("</" + left[1:]))}  # the closing tag may stand there
        if is_tag and left in self._facts.left_out and other_words.isdisjoint(_NAMES.findall(left)):
            return begin
        opens = is_tag or "\n" in _blanks(header.text, done)
        is_left_out = opens and first not in instead  # not only something else before it
        if is_left_out and _WORD.search(had_of_prompt) and self._names_turn(had_of_prompt, instead or had_of_prompt):
            return begin
        return None

    def _names_turn(self, *header: str) -> bool:
        """Whether parts of a header stand before no message of another role: then the first is the whole header."""
        at, marks = 0, {index: begin for begin, index in reversed(self._trace.marks)}
        for segment in self._trace.segments:
            begin = max(at, marks.get(segment.index, 0))
            is_other = segment.index >= 0 and self._messages[segment.index]["role"] != "assistant"
            if is_other and any(part in self._text[begin : segment.begin] for part in header):
                return False
            at = segment.end
        return True

    def _by_prompt(self, place: TurnPlace, header: Header | None = None) -> int:
        """Behind a prompt that stands once before the message's text: the model does not write what is before it."""
        text = self._text
        prompts = [header.text[header.closing :]] if header else sorted(self._facts.prompts, key=len, reverse=True)
        if not prompts:
            self.by_facts = False
            asked = self._renderer.run(self._messages, True)
            if len(asked.segments) > len(self._trace.segments):
                raise Refused("turn_begin", f"the generation prompt repeats a message's text: {asked.text[-60:]!r}")
            prompts = [asked.text[shared(text, asked.text) :]]
        for prompt in prompts:
            end = text.find(prompt, place.after, place.begin) + len(prompt)
            once = _WORD.search(prompt) and text.count(prompt, place.after, place.begin) == 1
            if once and self._tokens.whole(text, place.after, end) == end:
                return end
        for prompt in prompts:  # what it opens may be missing (Qwen3 before a greeting)
            for closer in self._facts.closers:  # it ends the turn before
                prompt = prompt.lstrip().removeprefix(closer)
            first = self._tokens.token.match(prompt := prompt.lstrip())
            at = text.rfind(first[0], place.after, place.begin) if first and _WORD.search(prompt) else -1
            begin = self._behind(Header(prompt, 0, True, "", None), place._replace(after=at)) if at >= 0 else None
            if begin is not None:
                return begin
        known = f"the generation prompt is {header.text[-60:]!r}" if header else "no generation prompt is known here"
        raise Refused("turn_begin", f"found {text[place.after : place.begin][-60:]!r} before its text, and {known}")

    def _goes_on(self, place: TurnPlace) -> int:
        """Where the model goes on after another message's text within its turn.

        This is behind a prompt, or at the model's text if a single token ends the other message's text (Gemma's calls).
        """
        try:
            return self._by_prompt(place)
        except Refused:
            tokens = self._tokens.special.finditer(self._text, place.after, place.begin)
            begins = {token.end(): token.start() for token in tokens}
            if place.begin in begins and begins[place.begin] not in begins:  # no other token directly before it
                return place.begin
            between = self._text[place.after : place.begin][-60:]
            message = f"where the turn goes on after another message's text cannot be told: {between!r}"
            raise Refused("turn_begin", message) from None

    # Checks

    def _check_one_turn(self, begin: int, stop: int) -> None:
        """Raises if the template writes the end of answers, or EOS, before the end of the turn's text."""
        known = self._facts.plain_end or self._facts.end_in_history
        if not known and any(map(self._tokens.special.search, self._between_repeated(begin, stop))):
            raise Refused("turn_apart", "its text is repeated behind a special token")
        end = known or self._renderer.special_tokens.get("eos_token")
        if end and end in self._text[begin:stop] and any(end in own for own in constants(self._trace, begin, stop)):
            raise Refused("turn_apart", f"a token that ends a turn stands before the end of its text: {end!r}")

    def _between_repeated(self, begin: int, stop: int) -> Iterator[str]:
        """The texts between segments and their repetitions, in a part of the rendering."""
        segments, last = self._trace.segments, dict[tuple[str, ...], SourceSpan]()
        for each in segments[bisect.bisect_left(segments, (begin,)) : bisect.bisect_left(segments, (stop,))]:
            earlier = last.get(each.keys)
            if earlier is not None and repeats(self._text, earlier, each):
                yield self._text[earlier.end : each.begin]
            last[each.keys] = each

    def _check_alone(self, index: int, begin: int, stop: int) -> None:
        """Raises if another message says something between the prompt and the text."""
        for each in self._trace.segments:
            said = self._text[max(each.begin, begin) : min(each.end, stop)]
            if each.index != index and said.strip():
                raise Refused("turn_apart", f"within the turn stands {each}: {said[:40]!r}")

    def _check_name(self, index: int, begin: int, stop: int) -> None:
        """Raises if the message's name stands behind the prompt: it belongs to the header."""
        for each in self._trace.segments:
            if each.index == index and each.keys == NAME and begin <= each.begin < stop:
                name = self._text[each.begin : each.end]
                raise Refused("turn_begin", f"before its text stands its name: {name!r}")

    # Ends

    def _end(self, index: int, place: TurnPlace, at: int) -> int:
        """Behind the token that ends the turn."""
        facts = self._facts
        calls = bool(self._messages[index].get("tool_calls"))
        stop, other = self._stop(index, place, at)
        tail = self._text[at:stop]
        ends = [end for end in (facts.plain_end, facts.end_in_history) if end and end in tail]
        plain = min(ends, key=tail.find, default=facts.plain_end)
        may_have_more = calls or place.silent  # the header of an empty answer may hold tokens, too
        end = facts.end_in(tail, may_have_more, plain)
        if end is not None:
            if not (facts.prompts or calls):
                own_words = self._tokens.special.sub("", tail[:end])
                if _SEVERAL_WORDS.search(own_words):  # the model may not write them
                    raise Refused("turn_end", f"the template writes words before the turn's end: {own_words[:40]!r}")
            at += end
            eos = self._renderer.special_tokens.get("eos_token")
            if not calls or plain != "" or (eos and self._text.endswith(eos, 0, at)):
                return at
            # No token ends a plain answer, so these end the call alone (Apertus): its end is that of a plain answer.
        if other is not None:
            said = self._text[other.begin : other.end]
            raise Refused("turn_end", f"before its end stands {other}: {said[:40]!r}")
        return self._end_without_token(index, place, at, stop, may_have_more)

    def _stop(self, index: int, place: TurnPlace, at: int) -> tuple[int, SourceSpan | None]:
        """(where the template's text of the turn ends at the latest, another message's text there within the turn)."""
        stop = self._tail_end(index, place, at)
        other = spoken_by_others(self._trace, index, at) if stop == place.before else None
        if other is None or other.begin != stop or other.owner not in (index, -1, place.owner):
            return stop, None  # it speaks in another turn
        if other.index > index:
            self.by_facts = False  # the conversation, cut off before that message, shows what the model writes
            stop = self._cut_end(other.index, index, place, at)
        return stop, other if other.begin == stop else None

    def _end_without_token(self, index: int, place: TurnPlace, at: int, stop: int, may_have_more: bool) -> int:
        """The end of a turn that no token ends before `stop`.

        The end token may be written with the next turn (Jamba). If answers have none, the token that begins the next
        turn stops the model (GLM). Words before it may be written only because a message follows, but not behind calls
        and empty answers.
        """
        facts, special, text = self._facts, self._tokens.special, self._text
        openings = list(special.finditer(text, at, stop))
        for each in openings:
            goes_on = text[each.end() : stop].strip() and not facts.is_prompts(each[0])
            if goes_on or not facts.opens(each[0]):
                raise Refused("turn_end", f"a token that does not end the turn stands within it: {each[0]!r}")
        opening = next((token.start() for token in openings if facts.is_prompts(token[0])), stop)
        end = at + len(text[at:opening].rstrip())
        head, following = stop + len(_blanks(text, stop)), self.places.get(index + 1)  # of the next turn
        if facts.plain_end:
            is_end = text.startswith(facts.plain_end, head, place.before)
            return head + len(facts.plain_end) if is_end else end
        if openings or following is None or (following.silent and not self._messages[index].get("tool_calls")):
            return end
        token = special.match(text, head, place.before)
        is_known = token is None or any(prompt.lstrip().startswith(token[0]) for prompt in facts.prompts)
        if token is None or is_known or self._messages[index + 1]["role"] == "assistant":
            return end
        if end > at and not may_have_more:
            cut = self._cut_end(index + 1, index, place, at)
            return token.end() if cut >= end else len(text[:cut].rstrip())
        return token.end()

    def _tail_end(self, index: int, place: TurnPlace, at: int) -> int:
        """The end of what the template writes for a message."""
        trace, limit = self._trace, min(place.before, len(self._text.removesuffix(self._facts.always)))
        following = self._messages[index + 1] if index + 1 < len(self._messages) else None
        if index in (trace.owner(at), trace.owner(at + 1)):  # its mark may stand at this place
            until, who = trace.next_mark(index, at)
            other = self.places.get(index + 1)
            begins_behind = who == index + 1 and other is not None and other.begin >= until
            # A tool's empty result may stand in this turn: no text shows where.
            if begins_behind or following is None or following["role"] == "assistant" or is_said(following):
                return min(until, limit)
        if following is None:
            return limit
        self.by_facts = False
        return self._cut_end(index + 1, index, place, at)

    def _cut_end(self, count: int, index: int, place: TurnPlace, at: int) -> int:
        """See `_tail_end`; found by rendering the first messages, once for all messages of a kind with such a tail."""
        message, following = self._messages[index], self._messages[count]
        fields = tuple(key for key, value in message.items() if value)
        calls = len(message.get("tool_calls") or ())
        key = fields, calls, count - index, following["role"], self._text[at : place.before]
        if place.silent or place.before == END or key not in self._cuts:
            self._cuts[key] = self._cut_by_rendering(count, index, place, at) - at
        return at + self._cuts[key]

    def _cut_by_rendering(self, count: int, index: int, place: TurnPlace, at: int) -> int:
        """See `_cut_end`."""
        try:
            cut = self._renderer.run(self._messages[:count])
        except RAISED:
            message = "its end cannot be told: the template does not render the conversation up to this turn"
            raise Refused("turn_end", message) from None
        shown, text = places(cut, (index,)).get(index), self._text
        own, pieces = text[place.begin : place.end], shown.pieces if shown else ()
        # Reasoning that the history leaves out may stand before the text, and hold it.
        segments = [each for each in cut.segments if each.index == index]
        begins = [*(each.begin for each in pieces), *(each.begin for each in segments)]
        begins += [max(each.end - len(own), 0) for each in segments if own]
        ours = text[place.begin : place.before]
        alike = [(shared(ours, cut.text[begin:]), begin) for begin in begins if cut.text.startswith(own, begin)]
        if pieces and alike:
            common, begin = max(alike)
            goes_on = self._tokens.whole(cut.text, begin, begin + common)
            rest = "".join(constants(cut, goes_on, len(cut.text.removesuffix(self._facts.always))))
            if not _WORD.search(self._tokens.special.sub("", rest)):
                return self._tokens.whole(text, at, max(at, place.begin + common))
        raise Refused("turn_end", "its end cannot be told: the conversation up to this turn renders it otherwise")

    @functools.cached_property
    def _blocks(self) -> Ranges:
        """What `{% generation %}` marks, in order."""
        found, begin = [], 0
        for at, what in self._trace.generation:
            if what == GENERATION_BEGINS:
                begin = at
            else:
                found.append((begin, at))
        return tuple(found)

    def _marked(self, index: int) -> Ranges:
        """The ranges of a message that `{% generation %}` marks; one block may hold the texts of several messages."""
        place = self.places.get(index)
        if place is None:
            return ()
        found: list[tuple[int, int]] = []
        after = min(piece.after for piece in place.pieces)
        before = max(piece.before for piece in place.pieces)
        first = bisect.bisect_right(self._blocks, after, key=itemgetter(1))
        last = bisect.bisect_left(self._blocks, before, key=itemgetter(0))
        for begin, at in self._blocks[first:last]:
            owner = self._trace.owner(at)
            current = self.places.get(owner) if owner >= 0 else place
            if current is not place and (current is None or current.silent):
                continue  # the block belongs to a message that says nothing
            own = current is place or current is None or not begin <= current.begin <= current.end <= at
            for piece in place.pieces:
                within = own and piece.after <= begin < at <= piece.before
                if within or (begin < piece.end and piece.begin < at):
                    found.append((max(begin, piece.after), min(at, piece.before)))
        return tuple(found)


def shared(one: str, other: str) -> int:
    """Length of the common prefix of two texts."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[low:middle] == other[low:middle] else (low, middle - 1)
    return low


def _shared_blanks(wanted: str, text: str, at: int, until: int) -> int:
    """Number of a header's blanks that a text has at a place; of all its blanks if they are others."""
    there = _blanks(text, at)[: max(until - at, 0)]
    return len(wanted if there.startswith(wanted) else there)


def _blanks(text: str, at: int) -> str:
    found = _BLANKS.match(text, at)
    return found[0] if found else ""


UNPLACED = "turn_unplaced", "the template writes it, but where is not known"


def rendered_chat(renderer: Renderer, facts: Facts, messages: Sequence[Message]) -> tuple[RenderedChat, bool]:
    """(a conversation in the form that the template takes, rendered once; whether the facts gave all its turns).

    A turn without span or reason is refused, unless its message is empty or not written.
    """
    rendering = renderer.run(messages)
    lost, reasoned = not_rendered(rendering, messages, renderer.variables.get("tools"))
    not_written = {index for index, _ in lost}
    found = Turns(renderer, facts, rendering, messages)
    turns = []
    for turn, message in zip(found.all(), messages, strict=True):
        is_empty = not any(begin < end for begin, end in turn.spans + turn.rule)
        if is_empty and turn.reason is None and turn.message not in not_written and is_said(message):
            turn = turn._replace(reason=UNPLACED)
        turns.append(turn)
    marked = bool(rendering.generation)
    return RenderedChat(rendering.text, turns, lost, {}, marked, reasoned, rendering.segments), found.by_facts
