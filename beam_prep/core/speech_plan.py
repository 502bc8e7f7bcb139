"""What each message says, found once for all conversations that a render plan writes in the same way.

`Speech` looks for it in the text of one conversation. A `Layout` tells which pieces of the text are constant and where
the contents stand, so the same ranges can be had as borders of pieces, for every conversation of that layout. Where
anything of it could depend on what a message says, there is no such table, and `Speech` looks at each text.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

from beam_prep.core.chat_template import ChatTemplate
from beam_prep.core.conversation import control_pattern
from beam_prep.core.render_plan import Layout


class Place(NamedTuple):
    """A place in the text: so many characters behind the beginning of a piece."""

    piece: int
    characters: int


class PlacedSaid(NamedTuple):
    """As `Said`, its range between two places."""

    message: int
    start: Place
    stop: Place


class _Unclear(Exception):
    """What a message says cannot be told from the layout alone."""


@functools.lru_cache(maxsize=4096)
def place_speech(
    layout: Layout, roles: tuple[str, ...], template: ChatTemplate, controls: tuple[str, ...]
) -> list[PlacedSaid] | None:
    """What `Speech.find` gives for every conversation of a layout; all of it proven.

    It holds for messages of a role and a content alone, where no content but an answer's begins with white space, or
    is empty.

    Args:
        layout: of the rendering.
        roles: of its messages.
        template: the one that was rendered, without `tools` or variables.
        controls: texts of the tokenizer's special tokens.

    Returns:
        One or more a message; None where it depends on the contents.
    """
    try:
        return _Finder(layout, roles, template, controls).find()
    except _Unclear:
        return None


def place_prompt(
    layout: Layout, prompt: Layout, controls: tuple[str, ...]
) -> tuple[Place | None, tuple[str, str] | None]:
    """Where a prompt ends in the conversations of a layout, if it is the beginning of each of them.

    Args:
        layout: of the whole conversations.
        prompt: of their first messages with the generation prompt.
        controls: texts of the tokenizer's special tokens.

    Returns:
        The place of its end, and (the last special token, what follows it) of its last constant piece. None where
        these depend on the contents.
    """
    if layout.content_guards or prompt.content_guards:
        return None, None
    try:
        texts, contents = _folded(prompt)
        others, other_contents = _folded(layout)
    except _Unclear:
        return None, None
    last = len(contents)
    if contents != other_contents[:last] or texts[:-1] != others[:last] or not others[last].startswith(texts[last]):
        return None, None
    end = Place(contents[-1][0] + 1 if contents else 0, len(texts[last]))
    found = list(control_pattern(controls).finditer(texts[last]))
    if not found or _may_go_on(texts[last], controls):
        return end, None
    return end, (found[-1].group(), texts[last][found[-1].end() :])


def _folded(layout: Layout) -> tuple[list[str], list[tuple[int, int]]]:
    """The constant texts before, between and behind the contents; (piece, message) of each content."""
    texts, contents = [""], []
    for piece, (constant, message) in enumerate(zip(layout.constants, layout.plain_content, strict=True)):
        if constant is not None:
            texts[-1] += constant
        elif message >= 0 and layout.sources[piece] == {message}:
            contents.append((piece, message))
            texts.append("")
        else:
            raise _Unclear
    return texts, contents


def _may_go_on(behind: str, controls: tuple[str, ...]) -> bool:
    """Whether a content could end with the beginning of a special token that what stands behind it ends."""
    return any(behind.startswith(token[cut:]) for token in controls for cut in range(1, len(token)))


class _Finder:
    def __init__(self, layout: Layout, roles: Sequence[str], template: ChatTemplate, controls: tuple[str, ...]) -> None:
        self.layout, self.roles, self.controls = layout, roles, controls
        self.marked = template.has_generation
        self.prompt = template.generation_prompt()
        self.tokens = template.tokens
        if layout.blind or layout.content_guards or (self.marked and layout.generations is None):
            raise _Unclear
        self.regions, self.guessed = self._regions()

    def find(self) -> list[PlacedSaid]:
        blocks = self._blocks() if self.marked else {}
        said: list[PlacedSaid] = []
        for message, role in enumerate(self.roles):
            if self.marked and role == "assistant":
                nowhere = PlacedSaid(message, Place(0, 0), Place(0, 0))
                said += blocks.get(message, [nowhere])
            else:
                said.append(self._derived(message))
        return said

    def _some(self, start: int, stop: int) -> bool:
        """Whether pieces are some text whatever the contents; none is no text. Unclear where that depends on them."""
        if start == stop:
            return False
        if not any(self.layout.constants[start:stop]):
            raise _Unclear
        return True

    def _constant(self, start: int, stop: int) -> str:
        texts = self.layout.constants[start:stop]
        if None in texts:
            raise _Unclear
        return "".join(text or "" for text in texts)

    def _regions(self) -> tuple[list[tuple[int, int]], bool]:
        """As `chat_template._regions` and `_guess`, in pieces."""
        marks, end = self.layout.marks, len(self.layout.constants)
        regions: dict[int, tuple[int, int]] = {}
        stops = [start for start, _ in marks[1:]] + [end]
        for (start, message), stop in zip(marks, stops, strict=False):
            if not self._some(start, stop) or message < 0:
                continue
            before = regions.get(message)
            if before is not None and before[1] != start:
                raise _Unclear
            regions[message] = (start if before is None else before[0], stop)
        if not marks:
            raise _Unclear
        if self._constant(marks[-1][0], end).strip() in ("", *self.tokens):
            regions = {
                message: (start, end if stop == marks[-1][0] else stop) for message, (start, stop) in regions.items()
            }
        guessed = 0 not in regions
        if guessed:
            first = min((start for start, _ in regions.values()), default=end if len(self.roles) == 1 else 0)
            if self._some(0, first):
                regions[0] = (0, first)
        if len(regions) != len(self.roles):
            raise _Unclear
        return [regions[message] for message in range(len(self.roles))], guessed

    def _blocks(self) -> dict[int, list[PlacedSaid]]:
        """Generation blocks by message."""
        found: dict[int, list[PlacedSaid]] = {}
        for start, stop in self.layout.generations or ():
            inside = [message for message, (first, last) in enumerate(self.regions) if first <= start and stop <= last]
            if len(inside) != 1 or not self._some(start, stop):
                raise _Unclear
            found.setdefault(inside[0], []).append(PlacedSaid(inside[0], Place(start, 0), Place(stop, 0)))
        return found

    def _derived(self, message: int) -> PlacedSaid:
        first, last = self.regions[message]
        layout = self.layout
        written = [piece for piece, sources in enumerate(layout.sources) if message in sources]
        if len(written) != 1 or layout.plain_content[written[0]] != message or not first <= written[0] < last:
            raise _Unclear
        content = written[0]
        before, behind = self._constant(first, content), self._constant(content + 1, last)
        guessed = self.guessed and message == 0
        start = Place(content, 0)
        if self.roles[message] == "assistant" and self.prompt and not guessed:
            start = Place(first, self._header(before))
        return PlacedSaid(message, start, Place(content + 1, self._end(behind)))

    def _header(self, before: str) -> int:
        """Length of the common beginning of the generation prompt and what stands before the content."""
        if before.startswith(self.prompt):
            return len(self.prompt)
        if self.prompt.startswith(before):
            raise _Unclear  # the content might go on as the prompt does
        return next(at for at, (a, b) in enumerate(zip(before, self.prompt, strict=False)) if a != b)

    def _end(self, behind: str) -> int:
        """One past the last special token behind the content."""
        ends = [found.end() for found in control_pattern(self.controls).finditer(behind)]
        if not ends or _may_go_on(behind, self.controls):
            raise _Unclear
        return ends[-1]
