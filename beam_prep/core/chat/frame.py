"""The frame of a template: the constants that it writes around any message, whatever the message says."""

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from beam_prep.core.chat.end_tokens import after_end, control_pattern, ending_pattern
from beam_prep.core.chat.made_up import (
    DATA,
    MADE_UP,
    around_parts_of_answers,
    around_words,
    around_words_of_other_roles,
    made_up_values,
)
from beam_prep.core.chat.message import Message
from beam_prep.core.chat.template import ChatTemplate

_PLAIN = (("plain", False), ("plain", True))
_SWITCHES = frozenset((bool, type(None)))


class Frame:
    """The constants that a template writes around any message, learned from made-up conversations at first use.

    Args:
        template: the chat template.
        controls: texts of the tokenizer's special tokens.
        variables: what it is given besides messages.

    Attributes:
        controls: see above.
        eos: text of the EOS token, "" where the template is given none.
    """

    def __init__(self, template: ChatTemplate, controls: tuple[str, ...], variables: Mapping[str, Any]) -> None:
        self._template, self.controls, self._variables = template, controls, variables
        self._found: dict[tuple[str, bool], list[dict[str, tuple[str, str]]]] = {}
        self.eos = template.tokens.get("eos_token", "")

    @functools.cached_property
    def gaps(self) -> frozenset[str]:
        """Constants from the beginning of an answer's turn to its first words, an empty think block included."""
        shapes = [(shape, history) for shape in ("plain", "reasoned", "embedded") for history in (False, True)]
        return frozenset(
            gap for shape in shapes for gap in self._constants([shape], "assistant", 0) if self._holds(shape, gap)
        )

    def gaps_after(self, prompt: str, blank: bool) -> frozenset[str]:
        """Constants between the generation prompt and an answer's own text; if `blank`, white space alone."""
        gaps = [gap[len(prompt) :] for gap in self.gaps if prompt and gap.startswith(prompt)]
        return frozenset(gap for gap in gaps if not (blank and gap.strip()))

    def _holds(self, shape: tuple[str, bool], gap: str) -> bool:
        """True if a constant does not change where messages begin with words that the template may test for."""
        for word in self._template.words:
            words = [f"{word} {text}" for text in MADE_UP[0]]
            turn = around_words(self._template, words, *shape, made_up_values(self._variables, words)).get("assistant")
            if turn is not None and turn[0] != gap:
                return False
        return True

    @functools.cached_property
    def leads(self) -> dict[str, frozenset[str]]:
        """Role -> constants from the beginning of its turn to its own text; for the assistant, of a plain answer."""
        found = {role: frozenset(self._constants(_PLAIN[:1], role, 0)) for role in ("user", "assistant")}
        one, other = self._other_roles
        both = one.keys() & other.keys()
        return found | {role: frozenset((one[role][0],)) for role in both if one[role][0] == other[role][0]}

    @functools.cached_property
    def _other_roles(self) -> list[dict[str, tuple[str, str]]]:
        return [
            around_words_of_other_roles(self._template, words, made_up_values(self._variables, words))
            for words in MADE_UP
        ]

    @functools.cached_property
    def repeats(self) -> bool:
        """True if a template writes the content of a plain answer in several places, or if that is not known."""
        for words in MADE_UP:
            messages: list[Message] = [
                {"role": "user", "content": words[0]},
                {"role": "assistant", "content": words[1]},
            ]
            planned = self._template.provenance(messages, None, **made_up_values(self._variables, words))
            if planned is None or sum((1, "content") in sources for sources in planned.layout.sources) > 1:
                return True
        return False

    def is_around_parts(self, text: str) -> bool:
        """True if a template writes a constant around reasoning and calls, whatever any message says."""
        return not text.strip() or all(any(text in written for written in each) for each in self._around_parts)

    @functools.cached_property
    def _around_parts(self) -> list[list[str]]:
        """Constants around the parts of answers with reasoning and calls, for each made-up conversation."""
        return [
            around_parts_of_answers(self._template, words, made_up_values(self._variables, words)) for words in MADE_UP
        ]

    def borders(self, role: str, following: str) -> set[str]:
        """Constants between the words of a role and those of the next one."""
        ends = list(self._constants(_PLAIN, role, 1))
        return {end + begin for end in ends for begin in self._constants(_PLAIN, following, 0)}

    def ends_turn(self, role: str, text: str) -> bool:
        """True if a text ends with the white space and end tokens that come right after any content."""
        for after in self._after_content(role):
            end = ending_pattern(self.controls).match(after)
            if end is not None and text.endswith(after[: after_end(after, end, self.eos)]):
                return True
        return False

    def ends_at_once(self, role: str) -> bool:
        """True if white space and an end token come right after any content."""
        found = [*self._after_content(role)]
        return bool(found) and all(ending_pattern(self.controls).match(after) for after in found)

    def follows(self, role: str, text: str) -> bool:
        """True if a text ends what is written after any content."""
        return any(after.endswith(text) for after in self._after_content(role))

    def _after_content(self, role: str) -> Iterator[str]:
        """Constants after a plain content. Other roles than user and assistant end as a user does."""
        return self._constants(_PLAIN, role if role == "assistant" else "user", 1)

    @functools.cached_property
    def turns(self) -> frozenset[str]:
        """Special tokens that begin or end a turn; all of them, if the constants around an answer are not known."""
        if not any(True for side in (0, 1) for _ in self._constants(_PLAIN, "assistant", side)):
            return frozenset(self.controls)
        pattern = control_pattern(self.controls)
        values = [made_up_values(self._variables, words) for words in MADE_UP]
        begins = [self._template.generation_prompt(**each) for each in values]
        begins += self._constants(_PLAIN, "assistant", 0)
        constants = [*self._constants(_PLAIN, "user", 0), *self._constants(_PLAIN, "user", 1)]
        constants += self._constants(_PLAIN, "assistant", 1)
        for before, after in (turn for found in self._other_roles for turn in found.values()):
            begins.append(before)
            constants.append(after)
        found = {first[0] for text in begins if (first := pattern.search(text)) is not None}
        found.update(token for text in constants for token in pattern.findall(text))
        named = {self._template.tokens.get(name, "") for name in ("bos_token", "eos_token")} - {""}
        return frozenset(found | named)

    def _constants(self, shapes: Sequence[tuple[str, bool]], role: str, side: int) -> Iterator[str]:
        """Constants before (side 0) or after (1) the words of a role: those that are the same around other words."""
        for shape in shapes:
            one, other = self._turns(shape)
            if role in one and role in other and one[role][side] == other[role][side]:
                yield one[role][side]

    def _turns(self, shape: tuple[str, bool]) -> list[dict[str, tuple[str, str]]]:
        if shape not in self._found:
            self._found[shape] = [
                around_words(self._template, words, *shape, made_up_values(self._variables, words)) for words in MADE_UP
            ]
        return self._found[shape]


def frame_of(template: ChatTemplate, controls: tuple[str, ...], variables: Mapping[str, Any]) -> Frame:
    """The frame of a template, kept with it. Values of a variable share one, except true, false and null."""
    shown = {
        name: value if value is None or value is True or value is False else DATA
        for name, value in variables.items()
        if name != "documents"
    }
    key = controls, *sorted(shown.items())  # names differ, so no values are compared
    if key not in template.frames:
        if len(template.frames) > 256:
            template.frames.clear()
        template.frames[key] = Frame(template, controls, shown)
    found: Frame = template.frames[key]
    return found


def has_data(variables: Mapping[str, Any]) -> bool:
    """True if variables bring text or numbers of the record, which a template may write as it writes constants."""
    return not _SWITCHES.issuperset(map(type, variables.values()))
