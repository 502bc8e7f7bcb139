"""Chat templates rendered from recorded plans: the same text as jinja's, several times cheaper.

Conversations come in few patterns: roles, keys and types in order. For each pattern the template runs once with
tracers in place of the contents. Its operations on them are recorded and compiled to a straight-line function, the
plan, which renders further conversations of the pattern. A tracer replaces a real value, and every operation also runs
on that. Where the template decides by a value (a truth test, a length, a type), the plan gets a guard: with another
outcome it gives up. An operation that is not modelled here is refused, and jinja renders. So jinja stays the
reference: it also renders the first conversations of every plan, and one difference turns off the template's plans.
"""

import threading
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from types import NoneType
from typing import Any, NamedTuple

from beam_prep.core.chat.message import REASONING, Message, for_template
from beam_prep.core.chat.recorded.layout import PieceLayout, RenderedPieces, RenderedText, in_characters
from beam_prep.core.chat.recorded.recorder import Recorder
from beam_prep.core.chat.recorded.recording import RenderPlan
from beam_prep.core.chat.recorded.tracer import Refusal

COMPARED_USES = 4  # first uses of a plan that jinja renders as well
SIGHTINGS_BEFORE_TRACE = 4  # of a pattern, before it is traced: a trace costs what ten renderings cost
MAX_PATTERNS = 4096
MAX_PLANS_PER_PATTERN = 8  # of one pattern, for different outcomes of its guards
MAX_MESSAGES = 256  # messages: the same roles again are rare in longer conversations, and their plans are large
FREE_TRACES = 64  # per template, without condition
HITS_PER_TRACE = 8  # renderings by plans that each further trace must have been worth
DISAGREEING_TEMPLATES: set[str] = set()
"""Templates whose plans gave another text than jinja, in this process."""


@dataclass(slots=True)
class _Pattern:
    """The plans of a pattern; `used`: since old patterns were last removed; `tries`: how often it was traced."""

    plans: tuple[RenderPlan, ...] = ()
    tries: int = 0
    used: bool = True


_DICTS, _TEXTS, _CONSTANTS = {dict}, {str}, {str, bool, int}
_VALUES = dict.values
_PLAIN_KEYS = [["role", "content"] * messages for messages in range(65)]
_JSON = frozenset((str, int, float, bool, list, dict, NoneType))


class Shape(NamedTuple):
    """What of the messages of a conversation a plan relies on. Deeper values are guarded where the template reads them.

    Attributes:
        key: their keys, types and roles, and the lengths of lists. It is the same for conversations of one pattern.
        messages: as the template sees them.
    """

    key: Hashable
    messages: list[Message]


def shape_of(messages: list[Message]) -> Shape | None:
    """The shape of messages; None: they are not plain data."""
    if not _DICTS.issuperset(map(type, messages)):
        return None
    # All messages at once: a loop over them would take three times as long.
    keys, values, kinds = _flat(messages)
    count = len(messages)
    if count < len(_PLAIN_KEYS) and keys == _PLAIN_KEYS[count] and {*map(type, keys), *kinds} == _TEXTS:
        return Shape(tuple(values[::2]), messages)
    if NoneType in kinds or not REASONING.isdisjoint(keys):
        messages = list(map(for_template, messages))
        keys, values, kinds = _flat(messages)
    if not _TEXTS.issuperset(map(type, keys)) or not _JSON.issuperset(kinds):
        return None
    roles = [message.get("role") for message in messages]
    if not _TEXTS.issuperset(map(type, roles)):
        roles = [role if type(role) is str else None for role in roles]
    sizes = tuple([len(value) for value in values if type(value) is list]) if list in kinds else ()
    # With the numbers of keys, what is of all messages in a row says what is of each.
    return Shape((tuple(map(len, messages)), tuple(keys), kinds, tuple(roles), sizes), messages)


def _flat(messages: list[Message]) -> tuple[list[Any], list[Any], tuple[type, ...]]:
    """The keys of all messages in a row, their values, and the types of these."""
    values = [*chain.from_iterable(map(_VALUES, messages))]
    return [*chain.from_iterable(messages)], values, tuple(map(type, values))


class Plans:
    """The plans of a template with its special tokens.

    Args:
        recorder: traces the template.
        reference: how jinja renders messages with variables.
    """

    def __init__(
        self, recorder: Recorder, reference: Callable[[list[Message], Mapping[str, Any]], RenderedText]
    ) -> None:
        self._recorder = recorder
        self._compiled = recorder.compiled
        self._reference = reference
        self._patterns: dict[Any, _Pattern] = {}
        self._seen: dict[int, int] = {}
        self._traces = self._hits = 0
        self._lock = threading.Lock()

    def render(
        self, messages: list[Message], variables: Mapping[str, Any], shape: Shape | None = None
    ) -> RenderedPieces | None:
        """A conversation by its plan.

        Args:
            messages: as the data has them, or as the template is to see them.
            variables: `add_generation_prompt`, `tools`, and constants of the template.
            shape: of these messages, if it is known.

        Returns:
            None where jinja has to render: no plan fits, or none yet, or the template raises.
        """
        options = _options(variables)
        if options is None or type(messages) is not list or len(messages) > MAX_MESSAGES:
            return None
        if self._is_off():
            return None
        shape = shape or shape_of(messages)
        if shape is None:
            return None
        plain = shape.messages
        tools = variables.get("tools")
        key = options, shape.key
        pattern = self._patterns.get(key)
        if pattern is None:
            if not self._often(key):
                return None
            pattern = self._pattern(key)
        pattern.used = True
        for plan in pattern.plans:
            try:
                pieces = plan.run(plain, tools)
            except Exception:  # whatever the template's own code raises: jinja raises it again, as it is to be
                return None
            if pieces is not None:
                if plan.compared < COMPARED_USES and not self._agrees(plan, pieces, plain, variables):
                    return None
                self._hits += 1
                return RenderedPieces(pieces, plan.layout)
        return self._recorded(pattern, plain, variables)

    def layout_of_pattern(self, messages: list[Message], uses: int) -> PieceLayout | None:
        """The layout that all conversations of the pattern of these messages have, without variables.

        Args:
            messages: one of them.
            uses: how many others will be rendered by the layout, if there is one.

        Returns:
            None where a rendering depends on more than roles and contents, or jinja has not rendered enough of them.
        """
        if self._is_off() or len(messages) > MAX_MESSAGES:
            return None
        shape = shape_of(messages)
        pattern = None if shape is None else self._patterns.get((False, shape.key))
        # Without a guard, the first plan fits all.
        if pattern is None or not pattern.plans:
            return None
        plan = pattern.plans[0]
        if not plan.layout.simple or plan.compared < COMPARED_USES:
            return None
        pattern.used = True
        self._hits += uses
        return plan.layout

    def _is_off(self) -> bool:
        return self._recorder.possible is False or self._compiled.source in DISAGREEING_TEMPLATES

    def _often(self, key: Any) -> bool:
        """Counts sightings of patterns, roughly: two may share a count."""
        seen = self._seen
        name = hash(key)
        if len(seen) > 4 * MAX_PATTERNS:
            seen.clear()
        seen[name] = seen.get(name, 0) + 1
        return seen[name] >= SIGHTINGS_BEFORE_TRACE

    def _pattern(self, key: Any) -> _Pattern:
        """A new entry; patterns that were not used recently are removed."""
        with self._lock:
            if len(self._patterns) >= MAX_PATTERNS:
                kept = {name: pattern for name, pattern in self._patterns.items() if pattern.used}
                for pattern in kept.values():
                    pattern.used = False
                # All were used: the older half is removed.
                self._patterns = kept if len(kept) < MAX_PATTERNS else dict(islice(kept.items(), len(kept) // 2, None))
            return self._patterns.setdefault(key, _Pattern())

    def _agrees(
        self, plan: RenderPlan, pieces: tuple[str, ...], plain: list[Message], variables: Mapping[str, Any]
    ) -> bool:
        """Renders with jinja as well; a difference ends all plans of the template."""
        try:
            rendered = self._reference(plain, variables)
            if self._compiled.captured:
                rendered = rendered._replace(generations=None)
            if in_characters(RenderedPieces(pieces, plan.layout)) == rendered:
                plan.compared += 1
                return True
        except Exception:  # jinja refuses what the plan renders: that is a difference
            pass
        DISAGREEING_TEMPLATES.add(self._compiled.source)
        return False

    def _recorded(self, pattern: _Pattern, plain: list[Message], variables: Mapping[str, Any]) -> RenderedPieces | None:
        """Traces a conversation that no plan fits."""
        if pattern.tries >= MAX_PLANS_PER_PATTERN or self._traces >= max(FREE_TRACES, self._hits // HITS_PER_TRACE):
            return None
        with self._lock:
            pattern.tries += 1
            self._traces += 1
            plan = None
            if self._recorder.can_trace():
                try:
                    plan = self._recorder.plan(plain, variables)
                except Refusal:
                    pattern.tries = MAX_PLANS_PER_PATTERN
                except Exception:  # the template refuses this conversation, perhaps not all of the pattern
                    pattern.tries += 1
            if plan is not None:
                pattern.plans = (*pattern.plans, plan)
        if plan is None:
            return None
        try:
            pieces = plan.run(plain, variables.get("tools"))
        except Exception:
            pieces = None
        if pieces is None:  # it does not even fit its own conversation
            pattern.plans = tuple(other for other in pattern.plans if other is not plan)
            return None
        return RenderedPieces(pieces, plan.layout) if self._agrees(plan, pieces, plain, variables) else None


def _options(variables: Mapping[str, Any]) -> Any:
    """The part of a pattern that variables are; None where they are more than constants and tools."""
    if len(variables) == 1:
        prompt = variables.get("add_generation_prompt")
        if prompt is False or prompt is True:
            return prompt
    options: list[Any] = []
    for name, value in variables.items():
        kind = type(value)
        if name == "tools" and kind is list and _DICTS.issuperset(map(type, value)):
            options.append((name, len(value)))
        elif value is None or (kind in _CONSTANTS and name not in ("tools", "documents")):
            options.append((name, kind, value))
        else:
            return None
    return tuple(options)
