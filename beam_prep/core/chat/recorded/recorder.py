"""Traces conversations: for a plan, for what their pieces are computed from, and with other outcomes of tests."""

import threading
from collections.abc import Callable, Collection, Mapping
from typing import Any

import jinja2

from beam_prep.core.chat.compilation import ENTER, GENERATION, LEAVE, MARK, CompiledTemplate
from beam_prep.core.chat.limits import MAX_TRACED, limited
from beam_prep.core.chat.message import Message, for_template
from beam_prep.core.chat.recorded.environment import CODE_GLOBALS, TracingEnvironment, globals_of, is_allowed
from beam_prep.core.chat.recorded.layout import NO_SOURCES, RenderedPieces
from beam_prep.core.chat.recorded.models import plan_functions
from beam_prep.core.chat.recorded.recording import Recording, RenderPlan
from beam_prep.core.chat.recorded.tracer import Outcomes, Refusal, Trace
from beam_prep.core.chat.tracker import Tracker

MAX_OUTCOMES = 64  # sequences of outcomes of the tests of one message


class Recorder:
    """Runs a template on tracers, with its special tokens.

    Args:
        compiled: the template.
        tokens: variables that every rendering gets.

    Attributes:
        compiled: the template.
        possible: see `can_trace`; None before its first call.
    """

    def __init__(self, compiled: CompiledTemplate, tokens: Mapping[str, Any]) -> None:
        self.compiled = compiled
        self.possible: bool | None = None
        self._tokens = dict(tokens)
        self._lock = threading.Lock()
        self._environment = TracingEnvironment()
        self._traceable: jinja2.Template | None = None
        self._functions = plan_functions(compiled.template.environment)

    def can_trace(self) -> bool:
        """True if the template consists of what is modelled."""
        with self._lock:
            if self.possible is None:
                self.possible = self._prepared()
            return self.possible

    def plan(self, plain: list[Message], variables: Mapping[str, Any]) -> RenderPlan:
        """The plan of one conversation, of a template that can be traced.

        Args:
            plain: its messages as the template is to see them.
            variables: see `Plans.render`.

        Raises:
            Refusal: the template does something with it that is not modelled.
        """
        with self._lock:
            return self._traced(plain, variables)[1]()

    def provenance(self, messages: list[Message], variables: Mapping[str, Any]) -> RenderedPieces | None:
        """One conversation traced, for what each piece of its text is computed from. No plan is kept.

        Returns:
            None where the template does something with it that is not modelled, or raises.
        """
        plain = [for_template(message) for message in messages]
        if not self.can_trace():
            return None
        with self._lock:
            try:
                return self._traced(plain, variables)[0]
            except Refusal:
                return None
            except Exception:  # whatever the template's own code raises: jinja raises it, too
                return None

    def with_other_outcomes(
        self, messages: list[Message], variables: Mapping[str, Any], about: Collection[int]
    ) -> dict[int, list[RenderedPieces]]:
        """The renderings of a conversation in which tests of what messages say come out otherwise.

        Each test is given both outcomes, whatever the text is (as in concolic testing: Sen, Marinov, Agha: CUTE,
        2005). What all renderings have in common does not depend on the message's text. Outcomes with which the
        template refuses the conversation do not count. One rendering serves all messages, so more messages do not
        need more renderings. The text of the messages is replaced by a constant one, so the result holds for every
        conversation of a plan.

        Args:
            messages: a conversation for which `provenance` is known, or a plan.
            variables: see `Plans.render`.
            about: indices of the messages.

        Returns:
            For each message its renderings; no entry for a message with more than `MAX_OUTCOMES`, or with one that
                is not modelled, fails, or tests in the message's turn what another one says.
        """
        given = [for_template(each) for each in messages]
        plain = [_with_other_words(each) if place in about else each for place, each in enumerate(given)]
        found: dict[int, list[RenderedPieces]] = {message: [] for message in about}
        outcomes: dict[int, list[Outcomes]] = {message: [()] for message in about}
        with self._lock:
            if self._traceable is None:
                return {}
            for step in range(MAX_OUTCOMES):
                taken = {message: every[step] for message, every in outcomes.items() if step < len(every)}
                if not taken:
                    break
                others: dict[int, Outcomes] = dict.fromkeys(outcomes, ())
                if not self._written({**others, **taken}, taken, plain, variables, found, outcomes):
                    # Which message is it? The others keep their own text, which is not refused.
                    for message, own in taken.items():
                        alone, changed = {message: own}, [*given]
                        changed[message] = plain[message]
                        if not self._written(alone, alone, changed, variables, found, outcomes):
                            found.pop(message, None)
                            outcomes.pop(message, None)
        # Without any rendering there is nothing that all have in common.
        return {message: each for message, each in found.items() if each and len(outcomes[message]) <= MAX_OUTCOMES}

    def _prepared(self) -> bool:
        """Runs the compiled code in a module of its own, with the hooks of the tracing environment."""
        compiled = self.compiled
        original = compiled.template.environment
        if not jinja2.__version__.startswith("3.1.") or not is_allowed(compiled.tree, original):
            return False
        if not set(globals_of(compiled.code)) <= CODE_GLOBALS:
            return False
        environment = self._environment
        environment.adopt(original)
        self._traceable = jinja2.Template.from_code(environment, compiled.code, dict(original.globals))
        module = self._traceable.root_render_func.__globals__
        module["str"], module["str_join"] = environment.text, environment.joined
        return True

    def _written(
        self,
        given: Mapping[int, Outcomes],
        taken: Mapping[int, Outcomes],
        plain: list[Message],
        variables: Mapping[str, Any],
        found: dict[int, list[RenderedPieces]],
        outcomes: dict[int, list[Outcomes]],
    ) -> bool:
        """Adds a rendering with given outcomes, and the sequences of outcomes that branch off; False: it fails."""
        trace = Trace(self._functions, given)
        planned = None
        try:
            planned = self._traced(plain, variables, trace)[0]
        except Refusal:
            return False
        except Exception as error:
            # Where the template refuses the conversation (`raise_exception`), there is nothing to compare.
            if type(error) is not jinja2.TemplateError or len(taken) > 1:
                return False
        if planned is not None and not planned.layout.dependent.isdisjoint(taken):
            return False
        for message, own in taken.items():
            if planned is not None:
                found[message].append(planned)
            tests = (*trace.tests[message].values(),)
            outcomes[message] += [(*tests[:at], not tests[at]) for at in range(len(own), len(tests))]
        return True

    def _traced(
        self, plain: list[Message], variables: Mapping[str, Any], trace: Trace | None = None
    ) -> "tuple[RenderedPieces, Callable[[], RenderPlan]]":
        """A conversation in pieces, and what compiles its plan."""
        environment, template = self._environment, self._traceable
        assert template is not None
        trace = environment.trace = trace or Trace(self._functions)
        messages = [
            trace.tracer(f"messages[{place}]", message, dict, frozenset(((place, ""),)), message=place)
            for place, message in enumerate(plain)
        ]
        tools = variables.get("tools")
        if tools is not None:
            tools = [trace.tracer(f"tools[{at}]", tool, dict, NO_SOURCES) for at, tool in enumerate(tools)]
        recording = Recording(trace, Tracker({id(m): at for at, m in enumerate(messages)}))
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
            **dict(zip((MARK, ENTER, LEAVE, GENERATION), environment.hooks, strict=True)),
        }
        try:
            with limited(MAX_TRACED) as budget:
                for part in template.root_render_func(template.new_context(given)):
                    recording.write(part)
            return recording.planned(len(messages), self.compiled.captured, budget.work)
        finally:
            environment.trace, environment.hooks = Trace({}), ()  # they hold the conversation


def _with_other_words(message: Message) -> Message:
    """The same message with other texts."""
    return {key: value if key == "role" else _reworded(value) for key, value in message.items()}


def _reworded(value: Any) -> Any:
    if type(value) is str:
        return "vxzw"
    if type(value) is list:
        return [_reworded(item) for item in value]
    return {key: _reworded(item) for key, item in value.items()} if type(value) is dict else value
