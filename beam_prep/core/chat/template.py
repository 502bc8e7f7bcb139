"""Chat templates, rendered as transformers renders them: same sandbox, same extensions, same filters.

Our own environment instead of `apply_chat_template`, so that a worker needs jinja2 alone (transformers takes more
than a second to import) and a template is compiled once. `tests/core/chat/test_template.py` holds both against each
other on every template at hand.
"""

import functools
import marshal
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jinja2
from jinja2 import nodes

from beam_prep.core.chat import limits
from beam_prep.core.chat.compilation import ENTER, GENERATION, LEAVE, MARK, compile_template
from beam_prep.core.chat.fences import FENCES, NUMBERED_FENCE, content_ranges, generation_ranges, put_between_fences
from beam_prep.core.chat.limits import TemplateLimit, limited
from beam_prep.core.chat.message import Message, for_template
from beam_prep.core.chat.recorded.layout import PieceLayout, RenderedPieces, RenderedText, in_characters
from beam_prep.core.chat.recorded.plans import Plans, Shape
from beam_prep.core.chat.recorded.recorder import Recorder
from beam_prep.core.chat.regions import regions_of
from beam_prep.core.chat.tracker import Tracker, ignore, pass_on, pay
from beam_prep.core.data.block import Reject

# What a template's own code can raise, by jinja and by its filters. Of our own errors it is none.
_RAISED_BY_TEMPLATES = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    AssertionError,
    RuntimeError,
    MemoryError,
    NameError,
    BufferError,
    StopIteration,
)


def key_of(variables: Mapping[str, Any]) -> bytes | str:
    """The same only for equal values, in all types: `tools` may be long, and marshal is much faster than repr."""
    try:
        return marshal.dumps(sorted(variables.items()), 2)
    except ValueError:  # a class of the user's own
        return repr(sorted(variables.items()))


@dataclass(frozen=True, slots=True)
class RenderedChat:
    """A conversation as text, with the ranges of its parts (in characters).

    Attributes:
        text: the entire rendering.
        regions: per message, the range that the template wrote for it, header and end marker included; None where
            that is not known for certain.
        generations: ranges of the `{% generation %}` blocks; None where they are not certain.
        guessed: the first region is what was written before all others, in no message's turn.
        planned: the same in pieces, where a plan rendered it.
    """

    text: str
    regions: list[tuple[int, int] | None]
    generations: list[tuple[int, int]] | None
    guessed: bool = False
    planned: RenderedPieces | None = field(default=None, compare=False)


class ChatTemplate:
    """A compiled chat template with the tokenizer's named special tokens.

    Args:
        source: the template.
        special_tokens: by their names in templates.
        plans: render conversations of known patterns by recorded plans: the same texts, faster (`core.chat.recorded`).
        date: the day that `strftime_now` gives, as "2026-11-22".

    Attributes:
        rendered_by_plan, rendered_by_jinja: how many conversations came from which.
        frames: the frames of the template, by its variables: see `frame_of`.
        spans: the spans of kinds of conversations: see `Conversation`.
        known_variables: what spans depend on because of them: see `likeness`.
        written_tokens: the texts of the special tokens, and "".

    Raises:
        TokenizerError: the template has a syntax error, or what it writes would differ from run to run: it calls
            `strftime_now`, and no date is given; or it uses chance.
    """

    def __init__(
        self, source: str, special_tokens: Mapping[str, str], plans: bool = False, date: str | None = None
    ) -> None:
        self._compiled = compile_template(source, date)
        self._tokens = dict(special_tokens)
        self.written_tokens = frozenset(("", *self._tokens.values()))
        self._prompts: dict[bytes | str, str] = {}
        self._recorder = Recorder(self._compiled, self._tokens)
        self._plans = Plans(self._recorder, self._marked) if plans else None
        self.frames: dict[Any, Any] = {}
        self.spans: dict[Any, dict[Any, Any]] = {}
        self.known_variables: dict[Any, Any] = {}
        self._other_outcomes: dict[Any, dict[int, list[RenderedPieces]]] = {}
        self.rendered_by_plan = self.rendered_by_jinja = 0

    @property
    def has_generation(self) -> bool:
        """True if the template marks the assistant's text with `{% generation %}` blocks."""
        return self._compiled.generation

    @functools.cached_property
    def words(self) -> list[str]:
        """Short texts in its source that are no markup: what it may test contents for."""
        found = {node.value for node in self._compiled.tree.find_all(nodes.Const) if isinstance(node.value, str)}
        return sorted(
            word for word in found if 0 < len(word) <= 20 and word.strip() and not set(word) & set("<>[]{}|%")
        )

    @property
    def tokens(self) -> Mapping[str, str]:
        """The special tokens that it is given: name -> text."""
        return self._tokens

    # Variables may come from data: `/` leaves all names to them.

    def render(self, messages: list[Message], /, add_generation_prompt: bool = False, **variables: Any) -> str:
        """The conversation as text.

        Args:
            messages: role, content and whatever else the template reads.
            add_generation_prompt: end with what comes before an answer.
            variables: `tools`, and whatever the template takes besides.

        Raises:
            Reject: `template_error`: the template refuses the messages, or fails on them; `template_limit`: it gives
                too much text, or takes too many steps.
        """
        variables = {**variables, "add_generation_prompt": add_generation_prompt}
        planned = self._plans.render(messages, variables) if self._plans is not None else None
        if planned is not None:
            self.rendered_by_plan += 1
            return "".join(planned.pieces)
        self.rendered_by_jinja += 1
        return self._run([for_template(message) for message in messages], None, variables)

    def planned(
        self,
        messages: list[Message],
        shape: Shape | None = None,
        /,
        add_generation_prompt: bool = False,
        **variables: Any,
    ) -> RenderedPieces | None:
        """The conversation in pieces, where there is a plan for it.

        Args:
            messages: see `render`.
            shape: of these messages, if it is known.
            add_generation_prompt, variables: see `render`.

        Returns:
            None where plans are switched off, or none fits: then `render` and `render_chat` use jinja. `generations`
            of its layout are None where a plan does not give the template's generation blocks.
        """
        if self._plans is None:
            return None
        planned = self._plans.render(messages, {**variables, "add_generation_prompt": add_generation_prompt}, shape)
        self.rendered_by_plan += planned is not None
        return planned

    def layout_of_pattern(self, messages: list[Message], uses: int) -> PieceLayout | None:
        """The layout of all conversations with the roles and keys of this one: see `Plans.layout_of_pattern`."""
        return None if self._plans is None else self._plans.layout_of_pattern(messages, uses)

    def render_chat(self, messages: list[Message], /, **variables: Any) -> RenderedChat:
        """The conversation as text, in one rendering, with the places of its messages and generation blocks.

        Raises:
            Reject: `template_error`, `template_limit`.
        """
        variables = {**variables, "add_generation_prompt": False}
        planned = self._plans.render(messages, variables) if self._plans is not None else None
        chat = self.chat_of(planned) if planned is not None else None
        if chat is not None:
            self.rendered_by_plan += 1
            return chat
        self.rendered_by_jinja += 1
        given = [for_template(message) for message in messages]
        rendered = self._marked(given, variables)
        if self._compiled.captured:
            fenced = self._run(given, Tracker({}, fenced=True), variables)
            rendered = rendered._replace(generations=generation_ranges(fenced, rendered.text))
        return self._chat(rendered, len(messages))

    def chat_of(self, planned: RenderedPieces) -> RenderedChat | None:
        """A planned conversation as `render_chat` gives it; None where its generation blocks are not known."""
        if planned.layout.generations is None:
            return None
        return self._chat(in_characters(planned), planned.layout.messages, planned)

    def _chat(self, rendered: RenderedText, messages: int, planned: RenderedPieces | None = None) -> RenderedChat:
        text, marks, generations, blind = rendered
        if blind:
            return RenderedChat(text, [None] * messages, generations, planned=planned)
        tokens = ("", *self._tokens.values())
        regions, guessed = regions_of(
            marks, messages, len(text), lambda start, stop: start < stop, lambda start: text[start:].strip() in tokens
        )
        return RenderedChat(text, regions, generations, guessed, planned)

    def provenance(self, messages: list[Message], text: str | None, /, **variables: Any) -> RenderedPieces | None:
        """The rendering in pieces, each with what it is computed from.

        Args:
            messages: the messages.
            text: what jinja gives for them, where it is known.
            variables: see `render`.

        Returns:
            None where the template does something that is not modelled, or the pieces are not this text.
        """
        planned = self._recorder.provenance(messages, {**variables, "add_generation_prompt": False})
        return planned if planned is not None and text in (None, "".join(planned.pieces)) else None

    def with_other_outcomes(
        self, messages: list[Message], about: frozenset[int], planned: RenderedPieces | None, /, **variables: Any
    ) -> dict[int, list[RenderedPieces]]:
        """The rendering as it is when tests of what messages say come out otherwise: see `Recorder`.

        Args:
            messages: the messages.
            about: which ones.
            planned: their rendering by a plan: what is found is kept for others of that plan.
            variables: see `render`.
        """
        key = None if planned is None else (planned.layout, about)
        if key in self._other_outcomes:
            return self._other_outcomes[key]
        found = self._recorder.with_other_outcomes(messages, {**variables, "add_generation_prompt": False}, about)
        if key is not None:
            if len(self._other_outcomes) > 1024:
                self._other_outcomes.clear()
            self._other_outcomes[key] = found
        return found

    def turns(self, messages: list[Message], /, **variables: Any) -> list[str | None]:
        """The text that the template writes for each message; None where that is not known, or where it raises."""
        try:
            given = [for_template(message) for message in messages]
            chat = self._chat(self._marked(given, {**variables, "add_generation_prompt": False}), len(messages))
        except Reject:
            return [None] * len(messages)
        return [None if region is None else chat.text[region[0] : region[1]] for region in chat.regions]

    def contents(self, messages: list[Message], text: str, /, **variables: Any) -> list[list[tuple[int, int]]] | None:
        """Where each message's content is written in the rendering `text`: by rendering once more, with marks in it.

        Up to three renderings, however many messages: a template may trim contents, or test for empty ones.

        Returns:
            Per message its ranges: none where its content is not written, an empty one where only its end is (or it
            is blank). None where the template gives another text for contents with marks in them.
        """
        if len(messages) > 0xFFFF or any(fence in text for fence in FENCES):
            return None
        given = [for_template(message) for message in messages]
        variables = {**variables, "add_generation_prompt": False}
        for trimmed, blanks in ((False, True), (True, True), (True, False)):
            marked = [put_between_fences(message, place, trimmed, blanks) for place, message in enumerate(given)]
            try:
                fenced = self._run(marked, None, variables)
            except Reject:
                continue
            if NUMBERED_FENCE.sub("", fenced) == text:
                return content_ranges(fenced, len(messages))
        return None

    def generation_prompt(self, /, **variables: Any) -> str:
        """The generation prompt: the text that the template writes before an answer.

        Raises:
            Reject: `template_error`: the template renders no lone user message.
        """
        variables.pop("add_generation_prompt", None)
        key = key_of(variables)
        found = self._prompts.get(key)
        if found is None:
            if len(self._prompts) > 256:
                self._prompts.clear()
            probe = [{"role": "user", "content": "x"}]
            without, with_prompt = (self.render(probe, add, **variables) for add in (False, True))
            found = self._prompts[key] = with_prompt[len(without) :] if with_prompt.startswith(without) else ""
        return found

    def _marked(self, given: list[Message], variables: Mapping[str, Any]) -> RenderedText:
        given = [dict(message) for message in given]  # copies: the same object may be in the list twice
        tracker = Tracker({id(message): place for place, message in enumerate(given)})
        text = self._run(given, tracker, variables)
        return RenderedText(text, tracker.marks, tracker.generations, tracker.blind)

    def _run(self, messages: list[Message], tracker: Tracker | None, variables: Mapping[str, Any]) -> str:
        given = {
            "tools": None,
            "documents": None,
            **self._tokens,
            **variables,
            "messages": messages,
            MARK: pay if tracker is None else tracker.mark,
            ENTER: ignore if tracker is None else tracker.enter,
            LEAVE: ignore if tracker is None else tracker.leave,
            GENERATION: pass_on if tracker is None else tracker.generation,
        }
        parts, written, most = [], 0, limits.MAX_CHARACTERS
        try:
            with limited():
                for part in self._compiled.template.generate(given):
                    parts.append(part)
                    written += len(part)
                    if written > most:
                        limits.expect(written)
                    if tracker is not None:
                        tracker.written = written
        except TemplateLimit as error:
            raise Reject("template_limit", f"the chat template is stopped: {error}") from None
        except _RAISED_BY_TEMPLATES as error:
            kind = "" if isinstance(error, jinja2.TemplateError) else f"{type(error).__name__}: "
            raise Reject("template_error", f"the chat template raised: {kind}{error}") from None
        return "".join(parts)
