"""Chat templates rendered from recorded plans: the same text as jinja's, several times cheaper.

Conversations come in few patterns: roles, keys and types in order. For each pattern the template runs once with
tracers in place of the contents. What it does with them is written down and compiled to a straight-line function,
which renders further conversations of the pattern. A tracer stands for a real value: every operation also runs on that,
and where the template decides by it (a truth test, a length, a type), the function gets a guard: another outcome, and
it gives up. Whatever is not modelled here refuses, and jinja renders. So jinja stays the reference: it also renders
the first conversations of every plan, and one difference switches the plans of the template off.
"""

import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from types import CodeType
from typing import Any

import jinja2
from jinja2 import nodes

from beam_prep.core.chat.message import Message
from beam_prep.core.chat.recorded.environment import CODE_GLOBALS, TracingEnvironment, globals_of, is_allowed
from beam_prep.core.chat.recorded.layout import NO_SOURCES, PieceLayout, Planned, RenderedText, in_characters
from beam_prep.core.chat.recorded.models import plan_functions
from beam_prep.core.chat.recorded.recording import Plan, Recording, Tracker
from beam_prep.core.chat.recorded.tracer import Outcomes, Refusal, Trace

COMPARED_USES = 4  # first uses of a plan that jinja renders as well
SIGHTINGS_BEFORE_TRACE = 4  # of a pattern, before it is traced: a trace costs what ten renderings cost
MAX_PATTERNS = 4096
MAX_PLANS_PER_PATTERN = 8  # of one pattern, for different outcomes of its guards
MAX_OUTCOMES = 64  # ways in which the tests of one message may come out
MAX_MESSAGES = 256  # messages: the same roles again are rare in longer conversations, and their plans are large
FREE_TRACES = 64  # per template, without condition
HITS_PER_TRACE = 8  # renderings by plans that each further trace must have been worth
DISAGREEING_TEMPLATES: set[str] = set()
"""Templates whose plans gave another text than jinja, in this process."""


@dataclass(frozen=True, slots=True)
class Template:
    """What plans need to know of a compiled template.

    Attributes:
        source: its text.
        tree: its syntax tree.
        code: what jinja compiled it to.
        environment: the one that compiled it.
        captured: some of its generation blocks are inside a capture: where they lie cannot be told.
        hooks: names of the variables by which it reports: marks, loops that begin, loops that end, generation blocks.
        tracker: makes what it reports to, from {id of a message: its index}.
        plain: a message as the template is to see it.
    """

    source: str
    tree: nodes.Template
    code: CodeType
    environment: jinja2.Environment
    captured: bool
    hooks: tuple[str, str, str, str]
    tracker: Callable[[dict[int, int]], Tracker]
    plain: Callable[[Message], Message]


@dataclass(slots=True)
class _Pattern:
    """The plans of a pattern; `used` since the last look, `tries` at tracing it."""

    plans: tuple[Plan, ...] = ()
    tries: int = 0
    used: bool = True


_DICTS, _TEXTS = {dict}, {str}
_VALUES = dict.values
_PLAIN_KEYS = [["role", "content"] * messages for messages in range(65)]
_JSON = frozenset((str, int, float, bool, list, dict, type(None)))


class Plans:
    """The plans of a template with its special tokens.

    Args:
        template: the compiled template.
        tokens: variables that every rendering gets.
        reference: how jinja renders messages with variables.
    """

    def __init__(
        self,
        template: Template,
        tokens: Mapping[str, Any],
        reference: Callable[[list[Message], Mapping[str, Any]], RenderedText],
    ) -> None:
        self._template = template
        self._tokens = dict(tokens)
        self._reference = reference
        self._patterns: dict[Any, _Pattern] = {}
        self._seen: dict[int, int] = {}
        self._traces = self._hits = 0
        self._lock = threading.Lock()
        self._possible: bool | None = None  # not known before the first trace
        self._environment = TracingEnvironment()
        self._compiled: jinja2.Template | None = None
        self._functions = plan_functions(template.environment)

    def render(self, messages: list[Message], variables: Mapping[str, Any]) -> Planned | None:
        """A conversation by its plan.

        Args:
            messages: as the data has them, or as the template is to see them.
            variables: `add_generation_prompt`, `tools`, and constants of the template.

        Returns:
            None where jinja has to render: no plan fits, or none yet, or the template raises.
        """
        options = _options(variables)
        if options is None or type(messages) is not list or len(messages) > MAX_MESSAGES:
            return None
        if self._possible is False or self._template.source in DISAGREEING_TEMPLATES:
            return None
        shape, plain = self._shape(messages)
        if shape is None:
            return None
        tools = variables.get("tools")
        key = options, shape
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
                return Planned(pieces, plan.layout)
        return self._recorded(pattern, plain, variables)

    def layout_of_pattern(self, messages: list[Message], uses: int) -> PieceLayout | None:
        """The layout that all conversations of the pattern of these messages have, without variables.

        Args:
            messages: one of them.
            uses: how many others will be rendered by the layout, if there is one.

        Returns:
            None where a rendering depends on more than roles and contents, or jinja has not rendered enough of them.
        """
        if self._possible is False or self._template.source in DISAGREEING_TEMPLATES or len(messages) > MAX_MESSAGES:
            return None
        shape, _ = self._shape(messages)
        pattern = self._patterns.get((False, shape))
        # Without a guard, the first plan fits all.
        if shape is None or pattern is None or not pattern.plans:
            return None
        plan = pattern.plans[0]
        if not plan.layout.simple or plan.compared < COMPARED_USES:
            return None
        pattern.used = True
        self._hits += uses
        return plan.layout

    def _shape(self, messages: list[Message]) -> tuple[Any, list[Message]]:
        """What a plan may rely on: keys and types of all messages, and their roles. None: not plain data.

        What lies deeper in them is guarded where the template looks at it.
        """
        count = len(messages)
        if {*map(type, messages)} == _DICTS and count < len(_PLAIN_KEYS):
            keys = [*chain.from_iterable(messages)]
            if keys == _PLAIN_KEYS[count]:
                values = [*chain.from_iterable(map(_VALUES, messages))]
                if {*map(type, keys), *map(type, values)} == _TEXTS:
                    return tuple(values[::2]), messages
        shape = []
        plain = []
        for message in messages:
            if type(message) is not dict or {*map(type, message)} - _TEXTS:
                return None, messages
            message = self._template.plain(message)
            kinds = tuple(map(type, message.values()))
            if not _JSON.issuperset(kinds):
                return None, messages
            role = message.get("role")
            sizes = tuple(len(value) for value in message.values() if type(value) is list)
            shape.append((tuple(message), kinds, role if type(role) is str else None, sizes))
            plain.append(message)
        return tuple(shape), plain

    def _often(self, key: Any) -> bool:
        """Counts sightings of patterns, roughly: two may share a count."""
        seen = self._seen
        name = hash(key)
        if len(seen) > 4 * MAX_PATTERNS:
            seen.clear()
        seen[name] = seen.get(name, 0) + 1
        return seen[name] >= SIGHTINGS_BEFORE_TRACE

    def _pattern(self, key: Any) -> _Pattern:
        """A new entry; patterns that were not used for long make room."""
        with self._lock:
            if len(self._patterns) >= MAX_PATTERNS:
                kept = {name: pattern for name, pattern in self._patterns.items() if pattern.used}
                for pattern in kept.values():
                    pattern.used = False
                # All were used: the older half goes.
                self._patterns = kept if len(kept) < MAX_PATTERNS else dict(islice(kept.items(), len(kept) // 2, None))
            return self._patterns.setdefault(key, _Pattern())

    def _agrees(self, plan: Plan, pieces: tuple[str, ...], plain: list[Message], variables: Mapping[str, Any]) -> bool:
        """Renders with jinja as well; a difference ends all plans of the template."""
        try:
            rendered = self._reference(plain, variables)
            if self._template.captured:
                rendered = rendered._replace(generations=None)
            if in_characters(Planned(pieces, plan.layout)) == rendered:
                plan.compared += 1
                return True
        except Exception:  # jinja refuses what the plan renders: that is a difference
            pass
        DISAGREEING_TEMPLATES.add(self._template.source)
        return False

    def _recorded(self, pattern: _Pattern, plain: list[Message], variables: Mapping[str, Any]) -> Planned | None:
        """Traces a conversation that no plan fits."""
        if pattern.tries >= MAX_PLANS_PER_PATTERN or self._traces >= max(FREE_TRACES, self._hits // HITS_PER_TRACE):
            return None
        with self._lock:
            pattern.tries += 1
            self._traces += 1
            if self._possible is None:
                self._possible = self._prepared()
            plan = None
            if self._possible:
                try:
                    plan = self._traced(plain, variables)[1]()
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
        return Planned(pieces, plan.layout) if self._agrees(plan, pieces, plain, variables) else None

    def _prepared(self) -> bool:
        """Runs the compiled code in a module of its own, with the hooks of the tracing environment."""
        template = self._template
        if not jinja2.__version__.startswith("3.1.") or not is_allowed(template.tree, template.environment):
            return False
        if not set(globals_of(template.code)) <= CODE_GLOBALS:
            return False
        environment = self._environment
        environment.adopt(template.environment)
        self._compiled = jinja2.Template.from_code(environment, template.code, dict(template.environment.globals))
        module = self._compiled.root_render_func.__globals__
        module["str"], module["str_join"] = environment.text, environment.joined
        return True

    def provenance(self, messages: list[Message], variables: Mapping[str, Any]) -> Planned | None:
        """One conversation traced, for what each piece of its text is computed from. No plan is kept.

        Returns:
            None where the template does something with it that is not modelled, or raises.
        """
        plain = [self._template.plain(message) for message in messages]
        with self._lock:
            if self._possible is None:
                self._possible = self._prepared()
            if not self._possible:
                return None
            try:
                return self._traced(plain, variables)[0]
            except Refusal:
                return None
            except Exception:  # whatever the template's own code raises: jinja raises it, too
                return None

    def with_other_outcomes(
        self, messages: list[Message], variables: Mapping[str, Any], about: Collection[int]
    ) -> dict[int, list[Planned]]:
        """A conversation as it is written when tests of what messages say come out in any other way.

        Each test is taken both ways, whatever the words are (as in concolic testing: Sen, Marinov, Agha: CUTE, 2005).
        What all ways have in common depends on no word of the message. A way in which the template refuses the
        conversation is none. One rendering takes a way of each message, so it takes no more of them for more messages.

        Args:
            messages: a conversation for which `provenance` is known, or a plan.
            variables: see `render`.
            about: indices of the messages.

        Returns:
            For each message its ways; none for those that have too many, or one that is not modelled or fails.
        """
        plain = [self._template.plain(each) for each in messages]
        found: dict[int, list[Planned]] = {message: [] for message in about}
        ways: dict[int, list[Outcomes]] = {message: [()] for message in about}
        with self._lock:
            if self._compiled is None:
                return {}
            for step in range(MAX_OUTCOMES):
                taken = {message: every[step] for message, every in ways.items() if step < len(every)}
                if not taken:
                    return found
                others: dict[int, Outcomes] = dict.fromkeys(ways, ())
                if not self._written({**others, **taken}, taken, plain, variables, found, ways):
                    for message, way in taken.items():  # which of them cannot be taken?
                        alone = {message: way}
                        if not self._written({**others, **alone}, alone, plain, variables, found, ways):
                            found.pop(message, None)
                            ways.pop(message, None)
        return {message: each for message, each in found.items() if len(ways[message]) <= MAX_OUTCOMES}

    def _written(
        self,
        outcomes: Mapping[int, Outcomes],
        taken: Mapping[int, Outcomes],
        plain: list[Message],
        variables: Mapping[str, Any],
        found: dict[int, list[Planned]],
        ways: dict[int, list[Outcomes]],
    ) -> bool:
        """Adds a conversation that is written with given outcomes, and the ways that branch off; False: it fails."""
        trace = Trace(self._functions, outcomes)
        planned = None
        try:
            planned = self._traced(plain, variables, trace)[0]
        except Refusal:
            return False
        except Exception as error:
            # Where the template refuses the conversation (`raise_exception`), there is nothing to compare.
            if type(error) is not jinja2.TemplateError or len(taken) > 1:
                return False
        for message, way in taken.items():
            if planned is not None:
                found[message].append(planned)
            tests = (*trace.tests[message].values(),)
            ways[message] += [(*tests[:at], not tests[at]) for at in range(len(way), len(tests))]
        return True

    def _traced(
        self, plain: list[Message], variables: Mapping[str, Any], trace: Trace | None = None
    ) -> "tuple[Planned, Callable[[], Plan]]":
        """A conversation in pieces, and what compiles its plan."""
        environment, compiled = self._environment, self._compiled
        assert compiled is not None
        trace = environment.trace = trace or Trace(self._functions)
        messages = [
            trace.tracer(f"messages[{place}]", message, dict, frozenset(((place, ""),)), message=place)
            for place, message in enumerate(plain)
        ]
        tools = variables.get("tools")
        if tools is not None:
            tools = [trace.tracer(f"tools[{at}]", tool, dict, NO_SOURCES) for at, tool in enumerate(tools)]
        recording = Recording(trace, self._template.tracker({id(m): at for at, m in enumerate(messages)}))
        mark, enter, leave, generation = self._template.hooks
        tracker = recording.tracker
        trace.turn = lambda: tracker.place
        environment.hooks = (tracker.mark, tracker.enter, tracker.leave, recording.generation)
        given = {
            "tools": None,
            "documents": None,
            **self._tokens,
            **variables,
            **({} if tools is None else {"tools": tools}),
            "messages": messages,
            **dict(zip((mark, enter, leave, generation), environment.hooks, strict=True)),
        }
        try:
            for part in compiled.root_render_func(compiled.new_context(given)):
                recording.write(part)
            return recording.planned(len(messages), self._template.captured)
        finally:
            environment.trace, environment.hooks = Trace({}), ()  # they hold the conversation


def _options(variables: Mapping[str, Any]) -> Any:
    """The part of a pattern that variables are; None where they are more than constants and tools."""
    if len(variables) == 1:
        prompt = variables.get("add_generation_prompt")
        if prompt is False or prompt is True:
            return prompt
    options: list[Any] = []
    for name, value in variables.items():
        kind = type(value)
        if name == "tools" and kind is list and {*map(type, value)} == _DICTS:
            options.append((name, len(value)))
        elif value is None or (kind in _CONSTANTS and name not in ("tools", "documents")):
            options.append((name, kind, value))
        else:
            return None
    return tuple(options)


_CONSTANTS = {str, bool, int}
