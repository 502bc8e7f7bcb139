"""Spans: which characters of a rendered conversation are what a message says, and where they are certain.

A conversation comes as pieces (`PieceLayout`): constants of the template, and texts that the template computed,
each with the messages and keys that it is computed from. A span is the message's own text (content, reasoning, tool
calls, with the constants that the template writes around them) and the end token right after it, with an EOS that
follows at once. It begins where the generation prompt ends, if the template wrote the entire prompt for this message;
else with the message's own text. Everything in it must be the message's own, or a constant that begins and ends no
turn; otherwise there is no span, and the record is rejected.
"""

import functools
import itertools
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from beam_prep.core.chat.message import Message
from beam_prep.core.chat.recorded.layout import PieceLayout, Planned
from beam_prep.core.chat.template import ChatTemplate

TEXT_KEYS = frozenset(("content", "reasoning_content", "thinking", "reasoning", "tool_calls"))
"""Keys of a message whose values are its own text. A name, or an id of a call, is none of it."""


class Place(NamedTuple):
    """A place in the text: so many characters after the beginning of a piece."""

    piece: int
    characters: int


class Span(NamedTuple):
    """What a message says, between two places."""

    message: int
    start: Place
    stop: Place


class Unclear(Exception):
    """It depends on what the messages say, which is not known here."""


@functools.lru_cache(maxsize=64)
def control_pattern(controls: tuple[str, ...]) -> re.Pattern[str]:
    """Matches any of the special tokens, the longest where several begin."""
    return re.compile("|".join(map(re.escape, sorted(controls, key=len, reverse=True))) or r"(?!)")


@functools.lru_cache(maxsize=64)
def _ending(controls: tuple[str, ...]) -> re.Pattern[str]:
    """Matches white space and a special token."""
    return re.compile(rf"\s*({control_pattern(controls).pattern})")


# Two conversations as unlike as can be: what a template writes in both depends on no word of theirs. They share no
# character, and the second has all others.
_REST = "".join(chr(code) for code in range(33, 127) if chr(code) not in "vxzw<>{}|") + "\n"
_MADE_UP = (
    ("vxzw", "zxvw", "wxvz", "xwzv"),
    tuple(f"{number}{_REST[first:]} {_REST[:first]}{number}" for number, first in enumerate((7, 29, 41, 53), 5)),
)


class Frame:
    """What a template writes around any message, learned from made-up conversations when it is first asked for.

    Args:
        template: the chat template.
        controls: texts of the tokenizer's special tokens.
        variables: what it is given besides messages.
    """

    def __init__(self, template: ChatTemplate, controls: tuple[str, ...], variables: Mapping[str, Any]) -> None:
        self._template, self._controls, self._variables = template, controls, variables
        self._found: dict[tuple[str, bool], list[dict[str, tuple[str, str]]]] = {}
        self.eos = template.tokens.get("eos_token", "")

    @functools.cached_property
    def gaps(self) -> frozenset[str]:
        """Constants from the beginning of an answer's turn to its first words, an empty think block included."""
        shapes = [(shape, history) for shape in ("plain", "reasoned", "embedded") for history in (False, True)]
        return frozenset(
            gap for shape in shapes for gap in self._constants([shape], "assistant", 0) if self._holds(shape, gap)
        )

    def _holds(self, shape: tuple[str, bool], gap: str) -> bool:
        """Whether a constant stays where messages begin with words that the template may ask for."""
        for word in self._template.words:
            words = [f"{word} {text}" for text in _MADE_UP[0]]
            turn = _made_up(self._template, words, *shape, _made_up_values(self._variables, words)).get("assistant")
            if turn is not None and turn[0] != gap:
                return False
        return True

    @functools.cached_property
    def leads(self) -> dict[str, frozenset[str]]:
        """Role -> constants before what it says, from the beginning of its turn; for the assistant a plain answer."""
        found = {role: frozenset(self._constants(_PLAIN[:1], role, 0)) for role in ("user", "assistant")}
        one, other = self._other_roles
        both = one.keys() & other.keys()
        return found | {role: frozenset((one[role][0],)) for role in both if one[role][0] == other[role][0]}

    @functools.cached_property
    def _other_roles(self) -> list[dict[str, tuple[str, str]]]:
        return [_other_roles(self._template, words, _made_up_values(self._variables, words)) for words in _MADE_UP]

    @functools.cached_property
    def repeats(self) -> bool:
        """Whether a template writes the content of a plain answer in several places, or where that is not known."""
        for words in _MADE_UP:
            messages: list[Message] = [
                {"role": "user", "content": words[0]},
                {"role": "assistant", "content": words[1]},
            ]
            planned = self._template.provenance(messages, None, **_made_up_values(self._variables, words))
            if planned is None or sum((1, "content") in sources for sources in planned.layout.sources) > 1:
                return True
        return False

    def around(self, text: str) -> bool:
        """Whether a template writes a constant around reasoning and calls, whatever any message says."""
        return not text.strip() or all(any(text in written for written in each) for each in self._around)

    @functools.cached_property
    def _around(self) -> list[list[str]]:
        """What is written around the words of answers with reasoning and calls, for each made-up conversation."""
        return [_around(self._template, words, _made_up_values(self._variables, words)) for words in _MADE_UP]

    def borders(self, role: str, following: str) -> set[str]:
        """Constants between the words of a role and those of the next one."""
        ends = list(self._constants(_PLAIN, role, 1))
        return {end + begin for end in ends for begin in self._constants(_PLAIN, following, 0)}

    def ends_turn(self, role: str, text: str) -> bool:
        """Whether a text ends with what is written right after any content: white space and end tokens."""
        for after in self._after_content(role):
            end = _ending(self._controls).match(after)
            if end is not None and text.endswith(after[: _after_end(after, end, self.eos)]):
                return True
        return False

    def ends_at_once(self, role: str) -> bool:
        """Whether white space and an end token come right after any content."""
        found = [*self._after_content(role)]
        return bool(found) and all(_ending(self._controls).match(after) for after in found)

    def follows(self, role: str, text: str) -> bool:
        """Whether a text ends what is written after any content."""
        return any(after.endswith(text) for after in self._after_content(role))

    def _after_content(self, role: str) -> Iterator[str]:
        """Constants after a plain content. Other roles than user and assistant end as a user does."""
        return self._constants(_PLAIN, role if role == "assistant" else "user", 1)

    @functools.cached_property
    def turns(self) -> frozenset[str]:
        """Special tokens that begin or end a turn: any may, where it is not known what is written around an answer."""
        if not any(True for side in (0, 1) for _ in self._constants(_PLAIN, "assistant", side)):
            return frozenset(self._controls)
        pattern = control_pattern(self._controls)
        values = [_made_up_values(self._variables, words) for words in _MADE_UP]
        begins = [self._template.generation_prompt(**each) for each in values]
        begins += self._constants(_PLAIN, "assistant", 0)
        whole = [*self._constants(_PLAIN, "user", 0), *self._constants(_PLAIN, "user", 1)]
        whole += self._constants(_PLAIN, "assistant", 1)
        for before, after in (turn for found in self._other_roles for turn in found.values()):
            begins.append(before)
            whole.append(after)
        found = {first[0] for text in begins if (first := pattern.search(text)) is not None}
        found.update(token for text in whole for token in pattern.findall(text))
        named = {self._template.tokens.get(name, "") for name in ("bos_token", "eos_token")} - {""}
        return frozenset(found | named)

    def _constants(self, shapes: Sequence[tuple[str, bool]], role: str, side: int) -> Iterator[str]:
        """What is written before (side 0) or after (1) the words of a role, where it is the same around other words."""
        for shape in shapes:
            one, other = self._turns(shape)
            if role in one and role in other and one[role][side] == other[role][side]:
                yield one[role][side]

    def _turns(self, shape: tuple[str, bool]) -> list[dict[str, tuple[str, str]]]:
        if shape not in self._found:
            self._found[shape] = [
                _made_up(self._template, words, *shape, _made_up_values(self._variables, words)) for words in _MADE_UP
            ]
        return self._found[shape]


_PLAIN = (("plain", False), ("plain", True))


def _made_up(
    template: ChatTemplate, words: Sequence[str], shape: str, history: bool, variables: Mapping[str, Any]
) -> dict[str, tuple[str, str]]:
    """Role -> what is written before and after its words in its turn.

    Args:
        template: renders a question and an answer.
        words: theirs.
        shape: of the answer: `plain`, `reasoned`, or `embedded` (reasoning in the content).
        history: other messages follow.
        variables: for the template.
    """
    question, answer, more, thought = words
    embedded = f"<think>\n{thought}\n</think>\n\n{answer}"
    message: Message = {"role": "assistant", "content": embedded if shape == "embedded" else answer}
    if shape == "reasoned":
        message["reasoning_content"] = thought
    later = [{"role": "user", "content": more}, {"role": "assistant", "content": more}] if history else []
    turns = template.turns([{"role": "user", "content": question}, message, *later], **variables)
    found = {}
    for role, turn, texts in (("user", turns[0], (question,)), ("assistant", turns[1], (thought, answer))):
        text = next((text for text in texts if turn is not None and turn.count(text) == 1), None)
        # Reasoning that is not told apart from its content makes that no other answer, only a longer one.
        if turn is not None and text is not None and (shape != "embedded" or embedded not in turn):
            before, _, after = turn.partition(text)
            found[role] = before, after
    return found


def _other_roles(
    template: ChatTemplate, words: Sequence[str], variables: Mapping[str, Any]
) -> dict[str, tuple[str, str]]:
    """What is written before and after the words of roles that are neither user nor assistant."""
    found = {}
    question, answer, said, _ = words
    asked, answered = {"role": "user", "content": question}, {"role": "assistant", "content": answer}
    for role in ("system", "developer", "tool", "function"):
        message: Message = {"role": role, "content": said}
        leads = role in ("system", "developer")
        talk = [message, asked, answered] if leads else [asked, answered, message, answered]
        turn = template.turns(talk, **variables)[0 if leads else 2]
        if turn is not None and turn.count(said) == 1:
            before, _, after = turn.partition(said)
            found[role] = before, after
    return found


def _around(template: ChatTemplate, words: Sequence[str], variables: Mapping[str, Any]) -> list[str]:
    """The texts between the words of made-up answers with reasoning and calls."""
    question, answer, name, thought = words
    embedded = f"<think>\n{thought}\n</think>\n\n{answer}"
    asked: Message = {"role": "user", "content": question}
    plain: Message = {"role": "assistant", "content": answer}
    found = []
    options = itertools.product(
        ({name: name}, f'{{"{name}": "{name}"}}'), (answer, "", embedded), (False, True), (0, 1, 2), (False, True)
    )
    for value, content, reasons, count, history in options:
        function = {"name": name, "arguments": value}
        calls = [{"id": f"{number}12345678", "type": "function", "function": function} for number in range(count)]
        message: Message = {"role": "assistant", "content": content}
        if reasons:
            message["reasoning_content"] = thought
        if calls:
            message["tool_calls"] = calls
        results: list[Message] = [{"role": "tool", "content": name, "tool_call_id": call["id"]} for call in calls]
        later = [*results, plain, asked, plain] if history else []
        turn = template.turns([asked, message, *later], **variables)[1]
        if turn is not None:
            found += re.split("|".join(map(re.escape, words)), turn)
    return found


def frame_of(template: ChatTemplate, controls: tuple[str, ...], variables: Mapping[str, Any]) -> Frame:
    """The frame of a template, kept with it: one for all values of a variable, but for true, false and null."""
    given = {name: value for name, value in variables.items() if name != "documents"}
    shown = {name: value if isinstance(value, bool | None) else _DATA for name, value in given.items()}
    key = repr((controls, sorted(shown.items())))
    if key not in template.frames:
        if len(template.frames) > 256:
            template.frames.clear()
        template.frames[key] = Frame(template, controls, shown)
    found: Frame = template.frames[key]
    return found


def has_data(variables: Mapping[str, Any]) -> bool:
    """Whether variables bring text or numbers of the record, which a template may write as it writes constants."""
    return not all(isinstance(value, bool | None) for value in variables.values())


_DATA = "data"
"""In the variables of a frame: a value that is another one in each made-up conversation."""


def _made_up_values(variables: Mapping[str, Any], words: Sequence[str]) -> dict[str, Any]:
    """Variables with made-up values: words, and more tools for longer ones."""
    name, _, text, _ = words
    parameters = {"type": "object", "properties": {}}
    tool = {"type": "function", "function": {"name": name, "description": text, "parameters": parameters}}
    values = {"tools": [tool] * (1 if len(name) < 9 else 2)}
    return {key: values.get(key, text) if value == _DATA else value for key, value in variables.items()}


def _after_end(text: str, end: re.Match[str], eos: str) -> int:
    """One past an end token, and past an EOS that follows it at once."""
    return end.end() + len(eos) if eos and end[1] != eos and text.startswith(eos, end.end()) else end.end()


def end_of_answer(text: str, stop: int, controls: tuple[str, ...], eos: str) -> int:
    """Where the last answer of a text ends: after its end token and an EOS, or with the text if only blanks follow."""
    end = _ending(controls).match(text, stop)
    if end is not None:
        stop = _after_end(text, end, eos)
    return stop if text[stop:].strip() else len(text)


class SpanFinder:
    """The spans of a conversation in pieces, or of all conversations with the same layout.

    Args:
        layout: of the rendering.
        texts: the text of each piece; None where it is not known.
        roles: of the messages.
        frame: what the template writes around any message.
        prompt: the generation prompt.
        controls: texts of the tokenizer's special tokens.
        tokens: texts of the special tokens that the template is given.
        messages: the messages, where they are known.
        data: the template was given other text of the record: see `has_data`.
        otherwise: gives, for some messages, what the template writes if its tests of what these say come out
            otherwise: see `Recorder.with_other_outcomes`.

    Raises:
        Unclear: (any method) the answer depends on texts that are not known.
    """

    def __init__(
        self,
        layout: PieceLayout,
        texts: Sequence[str | None],
        roles: Sequence[str],
        frame: Frame,
        prompt: str,
        controls: tuple[str, ...],
        tokens: Mapping[str, str],
        messages: Sequence[Message] | None = None,
        data: bool = False,
        otherwise: Callable[[frozenset[int]], Mapping[int, Sequence[Planned]]] | None = None,
    ) -> None:
        self._layout, self._texts, self._roles, self._frame = layout, texts, roles, frame
        self._prompt, self._controls, self._tokens, self._messages = prompt, controls, tokens, messages
        self._otherwise = otherwise
        self._end_of_text = len(texts)
        # A constant may be there because of what the record says: then the template has to write it always.
        self._guarded = bool(layout.asked) or layout.assumed or data

    def derived(self, message: int) -> Span | None:
        """What a message says, within what the template wrote for it; None where that is not certain."""
        region = self.regions[message]
        if region is None:
            return None
        first, last = region
        own = self._own(message, first, last)
        lead, _ = self._constants(Place(first, 0), own[0] if own else last)
        guessed = self.guessed and message == 0
        role = "" if guessed else self._roles[message]
        if guessed and self._prompt in lead and not lead.endswith(self._prompt) and self._roles[message] == "assistant":
            return None  # where its turn begins is guessed, and constants come after the generation prompt
        if role == "assistant" and self._prompt and lead.startswith(self._prompt):
            start = Place(first, len(self._prompt))
        elif own and self._layout.mixed[own[0]]:
            return None  # where a header ends cannot be told
        elif self._is_one_content(own):
            start = Place(own[0], 0)
            if role == "assistant" and lead.strip() and not self._known(own[0]).strip():
                return None  # where a header ends that no text follows is not known
        else:
            # Constants around reasoning and calls are trained, the header before them is not.
            known = [header for header in self._frame.leads.get(role, ()) if lead.startswith(header)]
            if not known:
                return None
            start = Place(first, max(map(len, known)))
        if not self._written(message, own) or not self._proven(message, start, own):
            return None
        stop = self._end(message, start, own, last, lead if own else lead[: start.characters])
        if stop is None:
            return None
        span = Span(message, start, stop)
        header = None if own and start.piece == own[0] else lead[: start.characters]
        alike = frozenset(place for place in self._layout.asked if self._roles[place] == self._roles[message])
        for other in self._others(message, alike):
            if other is None:
                return None
            begin = other.begin_of_turn(message, header is not None)
            if begin is not None and not self._is_same(other, message, span, begin, header):
                return None
        return span

    def prompted(self, first: int, prompt: Place | None) -> Span | None:
        """What follows a prompt: the messages from `first` on; None where it is not certain that it is these alone.

        Args:
            first: index of the first message after the prompt.
            prompt: where the prompt ends; None: it is not the beginning of the text. Then the span begins where what
                the first message says begins.
        """
        last = len(self._roles) - 1
        start = prompt
        if start is not None and any(
            place >= first for piece in range(start.piece) for place, _ in self._layout.sources[piece]
        ):
            return None
        own = [] if start is None else self._own(first, start.piece, self._end_of_text)
        if start is None or (not self._prompt and self._constants(start, (own or [self._end_of_text])[0])[0].strip()):
            # Without a generation prompt, the header comes after the prompt.
            derived = self.derived(first)
            if derived is None:
                return None
            start = derived.start
            own = self._own(first, start.piece, self._end_of_text)
        if not self._written(first, own) or not self._proven(first, start, own):
            return None
        if last > first:
            final = self._own(last, start.piece, self._end_of_text)
            if not own or not final or not self._written(last, final) or not self._are_of(first, own[0], final[-1]):
                return None
            if not self._layout.decided.isdisjoint(range(first, last + 1)) or not self._between(first):
                return None
            own = final
        # What the template writes for a message that it puts behind the last one ends nothing.
        after = own[-1] if own else start.piece
        behind = [region[0] for region in self.regions[:first] if region is not None and region[0] > after]
        stop = self._end(last, start, own, min(behind, default=self._end_of_text), self._prompt)
        if stop is None:
            return None
        rest, reached = self._constants(stop, self._end_of_text)
        if reached == self._end_of_text and not rest.strip():
            stop = Place(self._end_of_text, 0)
        span = Span(last, start, stop)
        answer = self._layout.asked.intersection(range(first, last + 1))
        for message in answer:
            for other in self._others(message, answer):
                if other is None:
                    return None
                begin = other.same_place(self._layout, start, message)
                if begin is not None and not self._is_same(other, message, span, begin, ""):
                    return None
        return span

    def _others(self, message: int, together: frozenset[int]) -> "Iterator[SpanFinder | None]":
        """The conversation as it is where tests of what a message says come out otherwise; None: that is not known.

        Args:
            message: which one.
            together: tests of these come out otherwise at the same time.
        """
        if self._otherwise is None or self._layout.assumed or message not in together:
            return
        ways = self._otherwise(together).get(message)
        if ways is None:
            yield None
            return
        for planned in ways:
            yield SpanFinder(
                planned.layout,
                planned.pieces,
                self._roles,
                self._frame,
                self._prompt,
                self._controls,
                self._tokens,
                self._messages,
            )

    def begin_of_turn(self, message: int, header: bool) -> Place | None:
        """Where a message's turn begins, or (without header) what it says; None where it is not written.

        A place behind the text where that is not known.
        """
        region = self.regions[message]
        own = self._own(message, 0, self._end_of_text)
        if region is None:
            return Place(self._end_of_text, 0) if own else None
        return Place(region[0], 0) if header else Place(own[0], 0) if own else None

    def same_place(self, layout: PieceLayout, place: Place, message: int) -> Place | None:
        """A place of another layout, up to which both are the same.

        Returns:
            A place behind the text where they are not; None where the message is not written here.
        """
        constants, piece, at = self._layout.constants, 0, 0
        before = [*zip(layout.constants[: place.piece], layout.sources, strict=False)]
        if place.characters:
            before.append(((layout.constants[place.piece] or "")[: place.characters], frozenset()))
        for text, sources in before:
            while text or text is None:
                here = constants[piece] if piece < self._end_of_text else ""
                if here is not None and at < len(here) and text is not None:
                    size = min(len(text), len(here) - at)
                    if text[:size] != here[at : at + size]:
                        break
                    text, at = text[size:], at + size
                elif here is not None and here and at == len(here):
                    piece, at = piece + 1, 0
                elif here is None and text is None and self._layout.sources[piece] == sources:
                    piece, at, text = piece + 1, 0, ""
                else:
                    break
            if text != "":
                return Place(self._end_of_text, 0) if self._own(message, 0, self._end_of_text) else None
        return Place(piece, at)

    def _is_same(self, other: "SpanFinder", message: int, span: Span, begin: Place, header: str | None) -> bool:
        """Whether a span holds the constants that are written in its place otherwise.

        Args:
            other: how it is written otherwise.
            message: whose tests came out otherwise there.
            span: begins where this message is written, or before.
            begin: where the header begins there.
            header: what comes before the span; None: that begins with what the message says.
        """
        end = Place(other._end_of_text, 0)
        if begin == end:
            return False
        own = self._own(message, span.start.piece, self._end_of_text)
        others = other._own(message, begin.piece, end.piece)
        constants, theirs = (header or "") + self._dropped(span.start, span.stop), other._dropped(begin, end)
        keys, their_keys = self._keys(own), other._keys(others)
        if keys != their_keys and (keys ^ their_keys != {"content"} or header is None):
            return True  # the constants around reasoning and calls are written for these
        if keys != their_keys or not keys <= {"content"}:  # white space may depend on whether there is a content
            squeezed = "".join(theirs.split()).startswith("".join(constants.split()))
            return squeezed and theirs.startswith(header or "")
        if own:
            after, behind = Place(own[-1] + 1, 0), Place(others[-1] + 1, 0)
            if not other._dropped(behind, end).startswith(self._dropped(after, span.stop)):
                return False
        return theirs.startswith(constants)

    def _dropped(self, start: Place, stop: Place) -> str:
        """The constants between two places, without what stands between them."""
        constants = self._layout.constants
        texts = [constants[piece] or "" for piece in range(start.piece, min(stop.piece, self._end_of_text))]
        if stop.characters:
            texts.append((constants[stop.piece] or "")[: stop.characters])
        head = start.characters if start.piece < self._end_of_text and constants[start.piece] is not None else 0
        return "".join(texts)[head:]

    def _between(self, first: int) -> bool:
        """Whether nothing but headers and ends stands between messages from `first` on, where all may be constant."""
        if not self._layout.assumed:
            return True
        roles, frame = self._roles, self._frame
        for message in range(first, len(roles) - 1):
            before, after = (self._own(place, 0, self._end_of_text) for place in (message, message + 1))
            if not before or not after or roles[message] == roles[message + 1]:
                return False
            text = "".join(self._known(piece) for piece in range(before[-1] + 1, after[0]))
            if text not in frame.borders(roles[message], roles[message + 1]):
                return False
        return True

    @functools.cached_property
    def regions(self) -> list[tuple[int, int] | None]:
        """Per message the pieces that the template wrote for it; None where that is not known for certain."""
        return self._regions[0]

    @property
    def guessed(self) -> bool:
        """The first region is what was written before all others, in no message's turn."""
        return self._regions[1]

    @functools.cached_property
    def _regions(self) -> tuple[list[tuple[int, int] | None], bool]:
        # As `tracker.regions_of` and `guess_first_region`, in pieces.
        marks, end = self._layout.marks, self._end_of_text
        regions: list[tuple[int, int] | None] = [None] * len(self._roles)
        if self._layout.blind:
            return regions, False
        twice = set()
        stops = [start for start, _ in marks[1:]] + [end]
        for (start, message), stop in zip(marks, stops, strict=False):
            if message < 0 or not self._any_text(start, stop):
                continue
            before = regions[message]
            if before is not None and before[1] == start:
                start = before[0]
            elif before is not None:
                twice.add(message)
            regions[message] = (start, stop)
        if marks and self._is_token(marks[-1][0]):  # an EOS after the loop ends the last message
            regions = [(r[0], end) if r is not None and r[1] == marks[-1][0] else r for r in regions]
        regions = [None if place in twice else region for place, region in enumerate(regions)]
        first = min((region[0] for region in regions if region is not None), default=end if len(regions) == 1 else 0)
        guessed = bool(regions) and regions[0] is None and self._any_text(0, first)
        if guessed:
            regions[0] = (0, first)
        return regions, guessed

    def _any_text(self, start: int, stop: int) -> bool:
        """Whether pieces hold any text."""
        texts = self._texts[start:stop]
        if any(texts):
            return True
        if None in texts:
            raise Unclear
        return False

    def _is_token(self, start: int) -> bool:
        """Whether the text from a piece on is one special token, or nothing."""
        texts = self._texts[start:]
        if None in texts:
            raise Unclear
        return "".join(text or "" for text in texts).strip() in ("", *self._tokens.values())

    def _is_own(self, piece: int, message: int) -> bool:
        sources = self._layout.sources[piece]
        return bool(sources) and all(place == message and key in TEXT_KEYS for place, key in sources)

    def _own(self, message: int, start: int, stop: int) -> list[int]:
        """The pieces that are a message's own text."""
        return [piece for piece in range(start, stop) if self._is_own(piece, message)]

    def _keys(self, pieces: Sequence[int]) -> set[str]:
        return {key for piece in pieces for _, key in self._layout.sources[piece]}

    def _is_one_content(self, own: Sequence[int]) -> bool:
        """Whether a content comes first, in one piece."""
        return self._keys(own[:1]) == {"content"} and "content" not in self._keys(own[1:])

    def _constants(self, start: Place, stop: int) -> tuple[str, int]:
        """The constant text from a place on, and the piece at which it ends."""
        texts: list[str] = []
        piece = start.piece
        while piece < stop and (self._layout.constants[piece] is not None or self._is_nothing(piece)):
            texts.append(self._texts[piece] or "")
            piece += 1
        return "".join(texts)[start.characters :], piece

    def _is_nothing(self, piece: int) -> bool:
        """Whether a piece is blank, and no blank content: where it stands, others of the layout have words."""
        return self._texts[piece] == "" and self._keys((piece,)).isdisjoint(("content", ""))

    def _written(self, message: int, own: Sequence[int]) -> bool:
        """Whether the template writes a message's text: all of it once, in order."""
        keys = self._keys(own)
        if self._messages is None:
            # Contents that are not known may be blank, and are one piece each.
            if keys != {"content"} or len(own) != 1 or self._layout.mixed[own[0]]:
                raise Unclear
            return True
        said = self._messages[message]
        content = said.get("content")
        if isinstance(content, str) and content.strip() and "content" not in keys:
            return False
        for key in keys - {"tool_calls"}:
            pieces = [piece for piece in own if key in self._keys((piece,))]
            texts = [self._texts[piece] or "" for piece in pieces]
            if len(texts) > 1 and (not _are_parts(texts, said.get(key)) or self._frame.repeats):
                return False  # what looks like a part of it may be a copy of a part
        return True

    def _proven(self, message: int, start: Place, own: Sequence[int]) -> bool:
        """Whether all from a place to a message's last piece is its own, or constants that begin and end no turn."""
        if message in self._layout.decided:
            return False
        if not own:
            return True
        if self._guarded and any(self._layout.mixed[piece] and self._keys((piece,)) != {"tool_calls"} for piece in own):
            return False  # what the template puts into it may be there because of what another message says
        gap, reached = self._constants(start, own[0])
        if reached < own[0]:
            return False
        if self._layout.assumed and gap.strip():
            return False  # it may depend on the message's own words, and no test of them can be taken otherwise
        blank = not self._prompt and not gap.strip()
        if self._guarded and gap and not blank and "tool_calls" not in self._keys(own[:1]) and gap not in self._gaps:
            return False
        if self._guarded and not self._around_own(gap, own):
            return False
        before = self._before(start)
        texts = [before, gap]
        for piece in range(own[0], own[-1]):
            text = self._texts[piece]
            if self._is_own(piece, message):
                texts.append("\0" if not self._layout.mixed[piece] else self._known(piece))
            elif self._layout.constants[piece] is None and text != "":
                return False
            else:
                texts.append(text or "")
        texts.append(self._known(own[-1]) if self._layout.mixed[own[-1]] else "")
        text = "".join(texts)
        tokens = [token[0] for token in control_pattern(self._controls).finditer(text) if token.end() > len(before)]
        return not tokens or self._frame.turns.isdisjoint(tokens)

    def _before(self, place: Place) -> str:
        """The constants before a place, from the beginning of its piece: a token may go over the place."""
        constants, _ = self._constants(Place(place.piece, 0), self._end_of_text)
        return constants[: place.characters]

    def _around_own(self, gap: str, own: Sequence[int]) -> bool:
        """Whether constants between the parts of what a message says are there whatever any message says."""
        between = [gap] if "tool_calls" in self._keys(own[:1]) else []
        for one, other in itertools.pairwise(own):
            between.append("".join(self._layout.constants[piece] or "" for piece in range(one + 1, other)))
        return all(map(self._frame.around, between))

    @functools.cached_property
    def _gaps(self) -> frozenset[str]:
        """Constants between the generation prompt and what an answer says."""
        prompt = self._prompt
        gaps = [gap[len(prompt) :] for gap in self._frame.gaps if prompt and gap.startswith(prompt)]
        return frozenset(gap for gap in gaps if not (self._layout.assumed and gap.strip()))

    def _known(self, piece: int) -> str:
        text = self._texts[piece]
        if text is None:
            raise Unclear
        return text

    def _tokens_in(self, text: str) -> list[str]:
        return control_pattern(self._controls).findall(text)

    def _are_of(self, first: int, start: int, stop: int) -> bool:
        """Whether pieces are constants, or computed from messages from `first` on."""
        return all(
            self._layout.constants[piece] is not None
            or self._texts[piece] == ""
            or (bool(sources := self._layout.sources[piece]) and all(place >= first for place, _ in sources))
            for piece in range(start, stop + 1)
        )

    def _end(self, message: int, start: Place, own: Sequence[int], limit: int, header: str) -> Place | None:
        """Where a span ends: after the end token that directly follows what the message says; None: not certain."""
        after = Place(own[-1] + 1, 0) if own else start
        rest, reached = self._constants(after, limit)
        pattern = _ending(self._controls)
        end = pattern.match(rest)
        around = bool(own) and self._keys(own[-1:]) != {"content"}
        if not own:  # it says nothing: constants may come before the end token
            end = self._end_of_nothing(rest)
        elif end is None and around and self._frame.ends_at_once(self._roles[message]):  # so may those around calls
            end = next((token for token in pattern.finditer(rest) if token[1] in self._frame.turns), None)
        if end is None:
            if reached < limit or (rest.strip() and (around or self._tokens_in(rest))) or not own:
                return None
            return self._start_of_next(message, after, limit) if not rest else after
        if end[1] != self._frame.eos and (end[1] in self._tokens_in(header) or end[1] in self._first_tokens):
            return None  # it may as well begin the next turn
        if not own and not self._frame.turns.isdisjoint(self._tokens_in(rest[: end.start(1)])):
            return None
        eos = self._frame.eos
        if end[1] == eos and rest.startswith(eos, end.end()):
            return None  # which of them ends the answer?
        stop = _after_end(rest, end, eos)
        if self._guarded and around and not self._frame.around(rest[: end.start(1)]):
            return None
        if (self._guarded or end.start()) and not self._frame.ends_turn(self._roles[message], rest[:stop]):
            return None
        place = Place(after.piece, after.characters + stop)
        if (around or not own) and not self._is_last_of_turn(message, place):
            return None
        return place

    def _is_last_of_turn(self, message: int, place: Place) -> bool:
        """Whether no more comes in a message's turn than after any other end of an answer: no second header."""
        region = self.regions[message]
        rest = "" if region is None else self._dropped(place, Place(region[1], 0))
        return not rest.strip() or self._frame.follows(self._roles[message], rest)

    def _end_of_nothing(self, rest: str) -> re.Match[str] | None:
        """The end token of an answer that says nothing: where any other's is, after what is written before any."""
        pattern = _ending(self._controls)
        gaps = {"", *self._gaps}
        ends = [
            end
            for gap in sorted(gaps, key=len)
            if rest.startswith(gap) and (end := pattern.match(rest, len(gap))) is not None
        ]
        return ends[-1] if ends else None

    @functools.cached_property
    def _first_tokens(self) -> list[str]:
        """The special tokens that the conversation begins with."""
        begin, _ = self._constants(Place(0, 0), self._end_of_text)
        pattern = _ending(self._controls)
        found, at = [], 0
        while (token := pattern.match(begin, at)) is not None:
            found.append(token[1])
            at = token.end()
        return found

    def _start_of_next(self, message: int, after: Place, limit: int) -> Place:
        """Where a span ends that nothing follows in its turn: after an EOS that the next turn begins with."""
        eos = self._frame.eos
        if any(region is not None and region[0] == limit for region in self.regions[:message]):
            return after  # an earlier message's turn
        following, _ = self._constants(Place(limit, 0), self._end_of_text)
        begin, _ = self._constants(Place(0, 0), self._end_of_text)
        return Place(limit, len(eos)) if eos and following.startswith(eos) and not begin.startswith(eos) else after


def _are_parts(texts: Sequence[str], value: Any) -> bool:
    """Whether texts are parts of a value, one after the other. A text that is written twice is none."""
    if not isinstance(value, str):
        return False
    at = 0
    for text in texts:
        found = value.find(text, at)
        if found < 0:
            return False
        at = found + len(text)
    return True


class Characters:
    """Places of a conversation whose pieces are known, in characters."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._borders = [0, *accumulate(map(len, texts))]

    def of(self, place: Place) -> int:
        """The character at a place."""
        return self._borders[place.piece] + place.characters

    def place(self, character: int) -> Place:
        """The place of a character: where the first piece begins that begins there, or within a piece."""
        piece = bisect_left(self._borders, character)
        piece -= self._borders[piece] != character
        return Place(piece, character - self._borders[piece])
