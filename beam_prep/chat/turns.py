"""Where the span of each message begins and ends: the one rule of what is trained.

At inference, the model gets the rendering up to the generation prompt, and writes everything from there to the token
that ends its turn. So the span of an assistant turn begins behind the generation prompt (or behind the part of the
prompt that the template wrote there), and ends behind its end token. Words of the template in between are trained, too.
A turn is refused only if it contradicts this: its text stands in several places, another message's text stands within
it, its header is not the generation prompt's, or its end is ambiguous.

The spans are a function of the template, its variables and the record alone. `Facts` are constants of a template, found
by rendering probe conversations; they save renderings of the record's prefixes. Where a record has another constant,
the record's own prefix is rendered.

The span of a message of another role begins with its text, and ends with the end token that follows.
"""

import bisect
import contextlib
import functools
import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from beam_prep.chat.environment import RAISED_BY_TEMPLATES
from beam_prep.chat.messages import Message, are_plain, call, is_said
from beam_prep.chat.origins import GENERATION_BEGINS, NAME
from beam_prep.chat.renderer import Renderer
from beam_prep.chat.trace import Said, Trace, TurnPlace, constants, places, said, spoken_by_others
from beam_prep.data.block import Reason, Reject

PLAIN = "Plainly."
"""The text of a plain answer."""

Ranges = tuple[tuple[int, int], ...]
RAISED = (*RAISED_BY_TEMPLATES, Reject)

_TAGS = re.compile(r"(?:<[^<>]*>|\[[^\[\]]*\])*")
"""Tags that open the reasoning in a generation prompt."""
_WORD, _WORDS, _BLANKS = re.compile(r"\w"), re.compile(r"[^\s<>\[\]/]+"), re.compile(r"\s*")
_NAMES = re.compile(r"\w+")
_SEVERAL_WORDS = re.compile(r"\w\W+\w")


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
    """Constants of a template with given variables, and with or without tools, found with probe conversations.

    Attributes:
        openings: tokens that begin a rendering: they end no turn.
        headers: tokens that stand before each answer, and only there, of a template whose prompt is unknown: one may
            always be there.
        closers: tokens that stand in prompts, but end turns.
        prompts: generation prompts.
        plain_end: the special tokens that end a plain answer; None: unknown.
        end_in_history: the special tokens behind answers that a question follows; "": none.
        gaps: (what was said before, constant before a message's text) -> (characters of the constant that are not
            trained, the rests of prompts that the history leaves out there).
        left_out: openings, without blanks, that prompts have behind a header, and history has not.
        always: a prompt that the template writes at the end of every conversation, whoever spoke last; "": none.
        disordered: the template does not write answers in the order of the messages.
        learning: True while the probes are rendered.
    """

    def __init__(self, renderer: Renderer) -> None:
        self.prompts: dict[str, None] = {}
        self.plain_end: str | None = None
        self.end_in_history = self.always = ""
        self.gaps: dict[tuple[Any, str], tuple[int, tuple[str, ...]]] = {}
        self.left_out: set[str] = set()
        self.tokens = renderer.tokens
        bos, eos = map(renderer.special_tokens.get, ("bos_token", "eos_token"))
        self.openings: frozenset[str | None] = frozenset((bos,)) - {eos}
        self.closers: frozenset[str] = frozenset()
        self.headers: frozenset[str] = frozenset()
        rendered: list[tuple[list[Message], Trace]] = []
        for messages in PROBES:
            try:
                known, _ = renderer.formed(messages)
                rendered.append(([*known], renderer.run(known)))
            except RAISED:
                continue  # the template does not take it
        found = [places(rendering, range(len(messages))) for messages, rendering in rendered]
        begins = [[place.begin for _, place in sorted(each.items()) if place.end > place.begin] for each in found[:1]]
        self.disordered = any(each != sorted(each) for each in begins)
        for messages, rendering in rendered:
            if messages[0]["role"] != "assistant":  # an assistant's header is the prompt
                begin = self.tokens.only_special.match(rendering.text)
                first = [token for token in self.tokens.special.findall(begin[0] if begin else "") if token != bos]
                self.openings |= frozenset(first[:1]) - {eos}
        # Tails are mostly the same few constants.
        self.end_in = functools.lru_cache(1000)(self._end_in)
        self.learning = True
        befores = [
            messages[:index]
            for messages, _ in rendered
            for index, message in enumerate(messages)
            if message["role"] == "assistant"
        ]
        for before in befores:
            self._learn_prompt(renderer, before)
        for (_, rendering), one, other in itertools.product(rendered, self.prompts, self.prompts):
            thoughts = [each.begin for each in rendering.segments if "reasoning" in each.keys]
            if any(rendering.text.endswith(one + other, 0, begin) for begin in thoughts):  # `other` opens the reasoning
                self.left_out.add("".join(other.split()))
        last = self._learn_around(rendered, eos)
        self.plain_end = self._first_run(last[0]) if last else None
        for messages, rendering in rendered:
            Turns(renderer, self, rendering, messages).all()
        self.learning = False

    def _learn_prompt(self, renderer: Renderer, before: list[Message]) -> None:
        try:
            header = header_of(renderer, before)
            if header.prompted and header.text:
                self.prompts[header.text[header.closing :]] = None
        except (*RAISED, Refused):
            return

    def _learn_around(self, rendered: list[tuple[list[Message], Trace]], eos: str | None) -> list[str]:
        """Learns constants from the text before and behind answers; returns what stands behind last answers.

        A token that stands behind answers and in a prompt ends a turn, if another token follows it in the prompt, or if
        it also stands behind each last answer. If no prompt is known, a token that stands only before answers belongs
        to the header.
        """
        special, before, behind, last, own = self.tokens.special, list[str](), list[str](), list[str](), list[str]()
        for messages, rendering in rendered:
            found = places(rendering, range(len(messages)))
            for index, message in enumerate(messages):
                if message["role"] != "assistant" or "tool_calls" in message or index not in found:
                    continue
                following = found.get(index + 1)
                tail = constants(rendering, found[index].end, following.begin if following else found[index].before)
                if index == len(messages) - 1:
                    last.append(tail)
                elif messages[index + 1]["role"] == "user":
                    before.append(rendering.text[found[index].after : found[index].begin])
                    behind.append(tail)
                    own.append(rendering.text[found[index].end : rendering.next_mark(index, found[index].end)])
        if not self.prompts:
            rest = last[0].removeprefix(own[0]) if last and own else ""
            if rest.strip() and all(each.rstrip().endswith(rest.strip()) for each in before):
                self.always, last = rest, [tail.removesuffix(rest) for tail in last]
            self.headers = frozenset.intersection(*(frozenset(special.findall(each)) for each in before or [""]))
            ending = [token[0] for token in map(special.search, last) if token]  # a prompt may follow it
            self.headers -= {eos, *ending, *special.findall(" ".join(behind))}
        first = [(tail, token.start()) for tail in last if (token := special.search(tail))]
        tokens = self.tokens
        runs = [(tail, tokens.only_special.match(tail, at), tokens.only_tags.match(tail, at)) for tail, at in first]
        # Of tags alone behind the answer, another special token may be the end.
        is_last = not any(run and tags and special.search(tail, run.end(), tags.end()) for tail, run, tags in runs)
        for tail in behind:
            token = special.search(tail)
            begin = token.start() if token else 0
            while token:
                ended, at = tail[begin : token.start()], token.end()
                rests = [prompt.partition(token[0])[2] for prompt in self.prompts if not ended and token[0] in prompt]
                # Before words, the token begins a header; before another token, or at the end of all, it ends a turn.
                at_end = all(each.startswith(ended + token[0], start) for each, start in first)
                at_end = at_end and is_last and bool(first)
                followed = any(special.match(rest.lstrip()) for rest in rests or [tail[at:]])
                # Behind another token, and directly before a third one, it may begin a header all the same.
                between = bool(ended) and special.match(tail, at) is not None
                if (rests and (at_end or followed)) or (at_end and followed and not between):
                    self.closers |= {token[0]}
                token = special.match(tail, at)
        self.end_in_history = next(map(self._first_run, behind), "")
        return last

    def _first_run(self, tail: str) -> str:
        begin, end = next(self._runs(tail), (0, 0))
        return tail[begin:end]

    def opens(self, token: str) -> bool:
        """Whether the token begins a rendering or a turn."""
        return (token in self.openings | self.headers or self.is_prompts(token)) and token not in self.closers

    def is_prompts(self, token: str) -> bool:
        """Whether the token stands in a prompt, and ends no turn."""
        return token not in self.closers and any(token in prompt for prompt in self.prompts)

    def lacking(self, before: str) -> tuple[str, ...]:
        """The rest of each prompt behind `before`, which may end with the first part of the prompt."""
        shared = ((prompt, range(len(prompt) + 1)) for prompt in self.prompts)
        found = (prompt[max(k for k in many if before.endswith(prompt[:k])) :] for prompt, many in shared)
        return tuple(filter(None, found))

    def _end_in(self, tail: str, calls: bool, plain: str | None) -> int | None:
        """`end_in`: the end of a turn in the text behind the message's text; None: no token there ends a turn.

        Tokens that end a call may stand behind calls. So there, the end of a plain answer counts, or the last token.
        """
        if calls and plain and plain in tail:
            return tail.find(plain) + len(plain)
        only, ends = self.tokens.only_special, [end for _, end in self._runs(tail)]
        last = ends[-1] if ends else None
        if calls and not plain:
            return last
        return next((end for end in ends if not calls or only.fullmatch(tail, end)), last)

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
    spoken = asked.segments[-1].end if asked.segments else 0
    closing = shared(closed.text, asked.text) - spoken
    if closing < 0:
        return Header("", 0, True, asked.text, last)
    if asked.text != closed.text:
        return Header(asked.text[spoken:], closing, True, asked.text, last)
    return plain_header(renderer, messages, closed.text[spoken:], last)


def plain_header(renderer: Renderer, messages: Sequence[Message], closed: str, last: Any) -> Header:
    """The text before a plain answer: for templates without a prompt, and for prompts that are blank."""
    answer, _ = renderer.formed([{"role": "assistant", "content": PLAIN}])
    plain = renderer.run([*messages, *answer])
    place = places(plain, (len(messages),)).get(len(messages))
    if place is None or place.end == place.begin:
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
        self._renderer, self._facts, self._trace, self._messages = renderer, facts, rendering, messages
        self._tokens = renderer.tokens
        self.places = places(rendering, range(len(messages)))
        self.by_facts = True

    def all(self) -> list[Turn]:
        """The turns of all messages, in order."""
        found: list[Turn] = []
        spoken = 0  # where a text of users and assistants begins behind all earlier ones
        for index, message in enumerate(self._messages):
            spans: Ranges = ()
            reason = None
            place = self.places.get(index)
            begin = place.begin if place is not None and place.end > place.begin else None  # of its written text
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
            silent = piece.begin == piece.end and not self._tokens.special.search(self._trace.text, begin, end)
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
            header = self._trace.text[place.after : place.begin]
            if any(prompt.strip() in header for prompt in self._facts.prompts if prompt.strip()):
                raise Refused("turn_apart", f"its text is written in the turn of message {place.owner}")
        text = self._trace.text
        stop = min(self._trace.next_mark(index, place.end), place.before, len(text))
        end = self._tokens.special.match(text, min(place.end + len(_blanks(text, place.end)), stop), stop)
        if end is None:
            return ((place.begin, place.end),)
        eos = self._renderer.special_tokens.get("eos_token", "")
        more = len(eos) if eos and end[0] != eos and text.startswith(eos, end.end(), stop) else 0
        return ((place.begin, end.end() + more),)

    # Begins

    def _begin(self, index: int, place: TurnPlace, before: Turn | None) -> int:
        """Where the model begins to write in this turn."""
        text, at, facts = self._trace.text, place.after, self._facts
        previous = self._messages[index - 1] if index else {}
        gap = (place.said, previous.get("role"), "tool_calls" in previous), text[at : place.begin]
        if (known := facts.gaps.get(gap)) is not None:
            begin = at + known[0]
            if not text.startswith(known[1], begin):  # otherwise the text begins like the rest of a prompt
                return begin
        self.by_facts = False
        begin, by_header = self._begin_by_rendering(index, place, before)
        by_header = by_header and not (place.said and place.said[2])  # otherwise a repeated text follows the header
        if facts.learning and by_header and at <= begin <= place.begin < place.end:
            facts.gaps[gap] = begin - at, (lacking := facts.lacking(text[:begin]))
            facts.left_out |= {
                "".join(rest.split())
                for rest, prompt in itertools.product(lacking, facts.prompts)
                if prompt.endswith(rest) and _WORD.search(prompt, 0, len(prompt) - len(rest))
            }
        return begin

    def _begin_by_rendering(self, index: int, place: TurnPlace, before: Turn | None) -> tuple[int, bool]:
        """(begin, True if the header shows it), by rendering the messages before this one."""
        text = self._trace.text
        try:
            given = self._renderer, self._messages[:index]
            found = header_of(*given)
            by_prefix = found.prompted and text.startswith(found.whole)
            if found.text and found.prompted and not by_prefix and not found.text[found.closing :].strip():
                found = plain_header(*given, found.text[: found.closing], found.said)
        except (*RAISED, Refused):  # the template does not take this prefix
            return self._by_prompt(place), False
        if by_prefix:
            if len(found.whole) > place.end > place.begin:
                raise Refused("turn_begin", f"its text stands before the generation prompt: {found.text[-60:]!r}")
            self._check_alone(index, len(found.whole), place.begin)
            return len(found.whole), True
        if not found.text and found.prompted:
            raise Refused("turn_begin", f"the generation prompt repeats a message's text: {found.whole[-60:]!r}")
        always = found.text[: found.closing] + _blanks(found.text, found.closing)
        is_header = self._facts.headers.intersection(self._tokens.special.findall(always)[-1:])
        if not found.prompted and is_header:
            found = found._replace(text=always)
        if self._facts.prompts and not found.prompted:
            with contextlib.suppress(Refused):  # no prompt is written here, but the history may have one
                return self._by_prompt(place), False
        # If `said` differs, a text stands before the turn that the prompt does not have.
        begin = self._behind(found, place) if found.said == place.said else None
        by_header = begin is not None
        words = "" if begin is None or found.prompted or is_header else text[begin : place.begin].strip()
        if words and are_plain([self._messages[index]]):
            raise Refused("turn_begin", f"before its text stand words that a plain answer does not have: {words!r}")
        if begin is None:
            headed = found.text[found.closing :].strip() in text[place.after : min(place.before, len(text))]
            ended = before.spans[-1][1] if before is not None and before.spans and not headed else None
            if ended is not None and not text[ended : place.begin].strip():
                return ended, False  # several messages share one turn
            begin = self._by_prompt(place, found)
        self._check_name(index, begin, place.begin)
        return begin, by_header

    def _behind(self, header: Header, place: TurnPlace) -> int | None:
        """Behind the header, or behind the part of it that the history has; None if the header is not there.

        White space may differ. If the history has another text instead of the rest of a prompt, that rest may only be
        the opening of the reasoning. The history may also have the last tags of the rest (`</think>` of an opening and
        an end without reasoning between).
        """
        tokens, text, at, done, opened, lacking = self._tokens, self._trace.text, place.after, 0, "", list[str]()
        until = place.begin if place.end > place.begin else len(text)
        for token in tokens.token.finditer(header.text):
            if token[0].isspace():
                continue
            begin = at + len(_blanks(text, at))
            end = begin + len(token[0])
            within_word = end < until and text[end - 1 : end + 1].isalnum()
            if lacking or within_word or not text.startswith(token[0], begin, until):
                starts_line = "\n" in header.text[done : token.start()]
                if not lacking and (starts_line or tokens.tag.match(token[0])):
                    opened = token[0]
                lacking.append(token[0])
            else:
                at, done = end, token.end()
        left, closing = "".join(lacking), len(header.text[: header.closing].rstrip())
        begin = at + _shared_blanks(_blanks(header.text, done), text, at, until)
        if done < closing:
            return None
        if not left:  # an empty answer may stand further behind, if a token takes the place of the header's blanks
            is_token = place.end == place.begin and tokens.special.match(text, begin)
            return None if is_token and header.text[-1:].isspace() and not text[begin - 1].isspace() else begin
        matched = header.text[header.closing : done].strip()
        ahead = text[begin : min(place.before, len(text))]
        if header.text[header.closing :].strip() in ahead or (matched and matched in text[begin : place.begin]):
            return None  # the prompt stands further behind
        between = self._between_repeated(place.begin, place.end)
        if left in text[begin : place.begin] or any(left in each for each in between):
            return None  # something else stands within the header
        if not header.prompted:  # the header is only what the template writes without an answer
            written = text[begin : place.begin].rstrip()
            same_end = shared(left[::-1], written[::-1])  # length of the common suffix
            same_words = {*_NAMES.findall(left)} & {*_NAMES.findall(written)}
            return None if same_words or _WORD.search(left, len(left) - same_end) or done != closing else begin
        last = "".join(lacking[1:])
        if tokens.only_tags.fullmatch(left) and last and text.startswith(last, begin, until):
            at, wanted = begin + len(last), header.text[len(header.text.rstrip()) :]
            return at + _shared_blanks(wanted, text, at, until)
        instead = text[begin : place.begin].strip()
        others = {*_NAMES.findall(instead.removeprefix("</" + left[1:]))}  # the closing tag may stand there
        if left in self._facts.left_out and tokens.tag.match(left) and not {*_NAMES.findall(left)} & others:
            return begin
        is_left_out = opened and opened not in instead  # not only something else before it
        if done > closing and is_left_out and _WORD.search(matched) and self._names_turn(matched, instead or matched):
            return begin  # the prompt opens this, and the history leaves it out
        following = None if place.end > place.begin else tokens.special.search(text, begin)
        stop = following.start() if following else place.begin
        if _TAGS.fullmatch(left) and (matched or not following) and tokens.only_tags.fullmatch(text, begin, stop):
            # The opening of the reasoning may be missing if the text in its place has no other word.
            alike = not tokens.special.search(left) or tokens.special.search(text, begin, stop)
            if set(_WORDS.findall(text, begin, stop)) <= set(_WORDS.findall(left)) and alike:
                return begin
        return None

    def _names_turn(self, *header: str) -> bool:
        """Whether parts of a header stand before no message of another role: then the first is the whole header."""
        at, marks = 0, {index: begin for begin, index in reversed(self._trace.marks)}
        for segment in self._trace.segments:
            begin = max(at, marks.get(segment.index, 0))
            is_other = segment.index >= 0 and self._messages[segment.index]["role"] != "assistant"
            if is_other and any(part in self._trace.text[begin : segment.begin] for part in header):
                return False
            at = segment.end
        return True

    def _by_prompt(self, place: TurnPlace, found: Header | None = None) -> int:
        """Behind a prompt that stands once before the message's text: the model does not write what is before it."""
        text = self._trace.text
        if found is not None:
            prompts = [found.text[found.closing :]]
        else:
            prompts = sorted(self._facts.prompts, key=len, reverse=True)
            if not prompts:
                asked = self._renderer.run(self._messages, True).text
                prompts = [asked[shared(text, asked) :]]
        for prompt in prompts:
            end = text.find(prompt, place.after, place.begin) + len(prompt)
            once = _WORD.search(prompt) and text.count(prompt, place.after, place.begin) == 1
            if once and self._tokens.whole(text, place.after, end) == end:
                return end
        for prompt in prompts:  # what it opens may be missing
            for closer in self._facts.closers:
                prompt = prompt.lstrip().removeprefix(closer)
            first = self._tokens.token.match(prompt := prompt.lstrip())
            at = text.rfind(first[0], place.after, place.begin) if first and _WORD.search(prompt) else -1
            begin = self._behind(Header(prompt, 0, True, "", None), place._replace(after=at)) if at >= 0 else None
            if begin is not None:
                return begin
        known = f"the generation prompt is {found.text[-60:]!r}" if found else "no generation prompt is known here"
        raise Refused("turn_begin", f"found {text[place.after : place.begin][-60:]!r} before its text, and {known}")

    def _goes_on(self, place: TurnPlace) -> int:
        """Where the model goes on after another message's text within its turn.

        This is behind a prompt, or at the model's text if a single token ends the other message's text.
        """
        try:
            return self._by_prompt(place)
        except Refused:
            tokens = self._tokens.special.finditer(self._trace.text, place.after, place.begin)
            begins = {token.end(): token.start() for token in tokens}
            if place.begin in begins and begins[place.begin] not in begins:  # no other token directly before it
                return place.begin
            between = self._trace.text[place.after : place.begin][-60:]
            message = f"where the turn goes on after another message's text cannot be told: {between!r}"
            raise Refused("turn_begin", message) from None

    # Checks

    def _check_one_turn(self, begin: int, stop: int) -> None:
        """Raises if the template writes the end of answers, or EOS, before the end of the turn's text."""
        facts = self._facts
        end = facts.plain_end or facts.end_in_history or self._renderer.special_tokens.get("eos_token")
        at = self._trace.text.find(end, begin, stop) if end else -1
        unknown = not (facts.plain_end or facts.end_in_history)
        if unknown and any(map(self._tokens.special.search, self._between_repeated(begin, stop))):
            raise Refused("turn_apart", "its text is repeated behind a special token")
        while end and at >= 0:
            if not any(each.begin <= at < each.end for each in self._trace.segments):
                raise Refused("turn_apart", f"a token that ends a turn stands before the end of its text: {end!r}")
            at = self._trace.text.find(end, at + 1, stop)

    def _between_repeated(self, begin: int, stop: int) -> Iterator[str]:
        """The texts between segments and their repetitions, in a part of the rendering."""
        segments, ends = self._trace.segments, dict[tuple[str, ...], int]()
        for each in segments[bisect.bisect_left(segments, (begin,)) : bisect.bisect_left(segments, (stop,))]:
            if each.keys in ends:
                yield self._trace.text[ends[each.keys] : each.begin]
            ends[each.keys] = each.end

    def _check_alone(self, index: int, begin: int, stop: int) -> None:
        """Raises if another message says something between the prompt and the text."""
        for each in self._trace.segments:
            said = self._trace.text[max(each.begin, begin) : min(each.end, stop)]
            if each.index != index and said.strip():
                raise Refused("turn_apart", f"within the turn stands {each}: {said[:40]!r}")

    def _check_name(self, index: int, begin: int, stop: int) -> None:
        """Raises if the message's name stands behind the prompt: it belongs to the header."""
        for each in self._trace.segments:
            if each.index == index and each.keys == NAME and begin <= each.begin < stop:
                name = self._trace.text[each.begin : each.end]
                raise Refused("turn_begin", f"before its text stands its name: {name!r}")

    # Ends

    def _end(self, index: int, place: TurnPlace, at: int) -> int:
        """Behind the token that ends the turn."""
        facts, tokens, text = self._facts, self._tokens, self._trace.text
        calls = bool(self._messages[index].get("tool_calls"))
        stop = self._tail_end(index, place, at)
        behind = spoken_by_others(self._trace, index, at) if stop == place.before else None
        if behind is not None and (behind.begin != stop or behind.owner not in (index, -1, place.owner)):
            behind = None  # it speaks in another turn
        if behind is not None and behind.index > index:
            self.by_facts = False  # the conversation, cut off before that message, shows what the model writes
            stop = self._cut_end(behind.index, index, place, at)
        tail = text[at:stop]
        ends = [end for end in (facts.plain_end, facts.end_in_history) if end and end in tail]
        plain = min(ends, key=tail.find, default=facts.plain_end)
        silent = place.begin == place.end  # then the header may hold tokens, too
        end = facts.end_in(tail, calls or silent, plain)
        if end is not None:
            own_words = tokens.special.sub("", tail[:end])
            if not (facts.prompts or calls) and _SEVERAL_WORDS.search(own_words):  # the model may not write them
                raise Refused("turn_end", f"the template writes words before the end of the turn: {own_words[:40]!r}")
            at += end
            if not calls or plain != "":
                return at
            # No token ends a plain answer, so these end the call alone: what ends a plain answer ends the turn.
        if behind is not None and behind.begin == stop:
            raise Refused("turn_end", f"before its end stands {behind}: {text[behind.begin : behind.end][:40]!r}")
        openings = list(tokens.special.finditer(text, at, stop))
        if not all(facts.opens(token[0]) for token in openings):
            raise Refused("turn_end", f"a token that begins a turn stands within the turn: {openings[0][0]!r}")
        head, following = stop + len(_blanks(text, stop)), self.places.get(index + 1)  # of the next turn
        if facts.plain_end:
            if text.startswith(facts.plain_end, head, place.before):
                return head + len(facts.plain_end)
        elif not openings and following and (calls or following.end > following.begin):
            token = tokens.special.match(text, head, place.before)
            known = token is None or any(prompt.lstrip().startswith(token[0]) for prompt in facts.prompts)
            if token is not None and not known and self._messages[index + 1]["role"] != "assistant":
                if calls or silent or not text[at:stop].strip():
                    return token.end()  # this token stops the model
                cut = self._cut_end(index + 1, index, place, at)  # without what is only written before a message
                return token.end() if cut >= len(text[:stop].rstrip()) else len(text[:cut].rstrip())
        opening = next((token.start() for token in openings if facts.is_prompts(token[0])), stop)
        return at + len(text[at:opening].rstrip())

    def _tail_end(self, index: int, place: TurnPlace, at: int) -> int:
        """The end of what the template writes for a message."""
        marks, limit = self._trace.marks, min(place.before, len(self._trace.text.removesuffix(self._facts.always)))
        k = self._first_mark(at)
        owner = marks[k - 1][1] if k else -1
        if k < len(marks) and marks[k] == (at, index):
            owner, k = index, k + 1
        following = self._messages[index + 1] if index + 1 < len(self._messages) else None
        if owner == index:
            until, who = marks[k] if k < len(marks) else (limit, -1)
            other = self.places.get(index + 1)
            begins_behind = who == index + 1 and other is not None and other.begin >= until
            # A tool's empty result may stand in this turn: no text shows where.
            if begins_behind or following is None or following["role"] == "assistant" or is_said(following):
                return min(until, limit)
        if following is None:
            return limit
        self.by_facts = False
        return self._cut_end(index + 1, index, place, at)

    def _first_mark(self, at: int) -> int:
        return bisect.bisect_left(self._trace.marks, (at,))

    def _cut_end(self, count: int, index: int, place: TurnPlace, at: int) -> int:
        """See `_tail_end`; found by rendering only the first messages."""
        try:
            cut = self._renderer.run(self._messages[:count])
        except RAISED:
            message = "its end cannot be told: the template does not render the conversation up to this turn"
            raise Refused("turn_end", message) from None
        shown, text = places(cut, (index,)).get(index), self._trace.text
        own, pieces = text[place.begin : place.end], shown.pieces if shown else ()
        # Reasoning that the history leaves out may stand before the text, and hold it.
        segments = [each for each in cut.segments if each.index == index]
        begins = [*(each.begin for each in pieces), *(each.begin for each in segments)]
        begins += [max(each.end - len(own), 0) for each in segments if own]
        ours = text[place.begin : place.before]
        alike = [shared(ours, cut.text[begin:]) for begin in begins if cut.text.startswith(own, begin)]
        if pieces and alike:
            common = max(alike)
            return self._tokens.whole(text, at, max(at, place.begin + common))
        raise Refused("turn_end", "its end cannot be told: the conversation up to this turn renders it otherwise")

    def _marked(self, index: int) -> Ranges:
        """The ranges of a message that `{% generation %}` marks; one block may hold the texts of several messages."""
        place, begin = self.places.get(index), 0
        found: list[tuple[int, int]] = []
        for at, what in self._trace.generation:
            if what == GENERATION_BEGINS:
                begin = at
                continue
            k = self._first_mark(at)
            current = self.places.get(self._trace.marks[k - 1][1]) if k else place
            if current is not place and (current is None or current.begin == current.end):
                continue  # the block belongs to a message that says nothing
            own = current is place or current is None or not begin <= current.begin <= current.end <= at
            for piece in place.pieces if place else ():
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


def accounted(turns: list[Turn], messages: Sequence[Message], lost: set[int]) -> list[Turn]:
    """The turns; a turn without span or reason is refused, unless its message is empty or not written."""
    return [
        turn
        if any(begin < end for begin, end in turn.spans + turn.rule)
        or turn.reason
        or turn.message in lost
        or not is_said(messages[turn.message])
        else turn._replace(reason=UNPLACED)
        for turn in turns
    ]


# Probes


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


def _answer(text: str, *calls: dict[str, Any], **more: Any) -> Message:
    return {"role": "assistant", "content": text, **more, **({"tool_calls": [*calls]} if calls else {})}


def _result(text: str, name: str, place: int = 0) -> Message:
    return {"role": "tool", "name": name, "tool_call_id": f"call0000{place + 1}", "content": text}


def _probes() -> Iterator[list[Message]]:
    look, add = call("look_up", {"word": "Harbour"}), call("add_up", {"one": "Three", "two": "Five"}, 1)
    thought = {"reasoning_content": "Thinking about that."}
    found, sum_ = _result("It was found.", "look_up"), _result("It is eight.", "add_up", 1)
    system = {"role": "system", "content": "Speak in brief."}
    asked, again, finally_ = _user("What is that thing?"), _user("Why is it there?"), _user("Who brought it?")
    plain, other, last = _answer("Surely a boat."), _answer("For the fish."), _answer("Nobody knows.")
    yield [asked, plain, again, other, finally_, last]
    yield [system, asked, plain, again, other]
    for head in ([asked], [system, asked], [asked, plain, again]):
        for words in ("", "Let me see that."):
            yield [*head, _answer(words, look), found, other, finally_, last]
            yield [*head, _answer(words, look), found, _answer(words, look), found, other]
            yield [*head, _answer(words, look, add), found, sum_, other]
            yield [*head, _answer(words, look, **thought), found, _answer(words, look, **thought), found]
            yield [*head, _answer(words, look, **thought), found, {**other, **thought}, finally_, {**last, **thought}]
            yield [*head, _answer(words, look, add, **thought), found, sum_, {**other, **thought}]
        yield [*head, {**plain, **thought}, finally_, {**last, **thought}]
        yield [*head, _answer("<think>\nThinking of it.\n</think>\n\nA boat."), finally_, last]
    yield [asked, plain, other]
    yield [system, plain]
    yield [plain]


PROBES = tuple(_probes())
"""Conversations that a template is probed with."""
