"""`ChatTemplate`: conversations as transformers renders them, and the spans of their messages."""

import itertools
import marshal
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jinja2

from beam_prep.chat import limits, origins
from beam_prep.chat.environment import (
    RAISED_BY_TEMPLATES,
    check_addresses,
    compile_template,
    without_addresses,
)
from beam_prep.chat.limits import TemplateLimit
from beam_prep.chat.messages import Forms, Lost, Message, ToolArguments, are_plain, for_template, not_rendered
from beam_prep.chat.origins import TOOLS, Origin
from beam_prep.chat.prefixes import contradict, not_in, turns_by_prefixes
from beam_prep.chat.replay import RENDERING, Replay, Replayed
from beam_prep.chat.trace import Segment, Trace, trace
from beam_prep.chat.turns import Facts, Tokens, Turn, Turns, accounted
from beam_prep.core.data.block import Reject

_MOST_FACTS = 256
_AT_ONCE = 1000
"""Pieces of a rendering after which its characters are counted."""
_TURNS = 2
"""The first and the last so many turns of a conversation are compared with what prefixes show."""
_PROBE_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "Looks at it.",
            "parameters": {"type": "object", "properties": {"word": {"type": "string", "description": "What."}}},
        },
    }
    for name in ("look_up", "add_up")
]


class RenderedChat(NamedTuple):
    """A rendered conversation.

    Attributes:
        text: as transformers renders it.
        turns: of all messages, in order.
        not_rendered: what of messages and tools the template did not write.
        changed: arguments of calls that were given to the template in another form.
        marked: the spans of assistants are the template's `{% generation %}` blocks.
        reasoned: messages whose reasoning it wrote.
        said: what messages say, in order.
    """

    text: str
    turns: list[Turn]
    not_rendered: list[Lost]
    changed: int = 0
    marked: bool = False
    reasoned: int = 0
    said: Sequence[Segment] = ()


class ChatTemplate:
    """A compiled chat template with the tokenizer's special tokens.

    >>> source = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    >>> template = ChatTemplate(source + "{% if add_generation_prompt %}<|assistant|>{% endif %}", {}, ["<|end|>"])
    >>> rendered = template.render([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}])
    >>> [rendered.text[begin:end] for turn in rendered.turns for begin, end in turn.spans]
    ['Hi<|end|>', 'Hello<|end|>']

    Args:
        source: the template.
        special_tokens: by their names in templates ("bos_token" ...).
        controls: texts of all special tokens.
        date: the day that `strftime_now` gives, as "2026-11-22".
        tool_arguments: the form of the arguments of calls, see `Forms`.

    Raises:
        TokenizerError: see `compile_template`.
    """

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str],
        controls: Sequence[str],
        date: str | None = None,
        tool_arguments: ToolArguments = "auto",
    ) -> None:
        self.source, self.special_tokens = source, dict(special_tokens)
        self.tokens = Tokens(controls)
        self._plain = self._traced = compile_template(source, date)
        self._facts: dict[Any, Facts] = {}
        self.forms = Forms(self._shown, tool_arguments)
        self._replay = Replay(self, self._traced.environment.parse(source))

    def render(self, messages: Sequence[Message], /, **variables: Any) -> RenderedChat:
        """A conversation, rendered once.

        Args:
            messages: role, content and whatever else the template reads.
            variables: `tools`, and whatever the template takes besides.

        Raises:
            Reject: `template_error`, `template_limit`: the template refuses the messages, fails on them, or makes too
                much of them; `bad_arguments`: see `Forms`.
        """
        messages, changed = self.forms.apply([for_template(message) for message in messages])
        tools = variables.pop("tools", None)
        rendering = self.run(messages, tools, variables)
        lost, reasoned = not_rendered(rendering, messages, tools)
        turns = Turns(self, self.facts(tools, variables), rendering, messages, tools, variables).all()
        turns = accounted(turns, messages, {index for index, _ in lost})
        return RenderedChat(
            rendering.text, turns, lost, changed, bool(rendering.generation), reasoned, rendering.segments
        )

    def replay(self, messages: Sequence[Message], /, prompt: bool = False, **variables: Any) -> Replayed | None:
        """The same for a plain chat whose kind came before, without the template; None where it is to be rendered.

        With a generation prompt it has no turns. For other arguments see `render`.
        """
        return self._replay.find(messages, variables, prompt) if are_plain(messages) else None

    def render_plainly(self, messages: Sequence[Message], /, **variables: Any) -> RenderedChat:
        """The same in the plain way: transformers' text, and the turns that renderings of prefixes show.

        For arguments and errors see `render`.
        """
        given, changed = self.forms.apply([for_template(message) for message in messages])
        text = self._plain_text(given, variables, False)
        turns = turns_by_prefixes(text, given, partial(self._written, variables), self.tokens)
        return RenderedChat(text, turns, not_in(text, given), changed)

    def differs(self, rendered: RenderedChat, messages: Sequence[Message], /, **variables: Any) -> bool:
        """True if transformers renders another text, or its renderings of prefixes show other turns, or `render`."""
        full = self.render(messages, **variables)
        if (full.text, full.turns) != (rendered.text, rendered.turns):
            return True
        given, _ = self.forms.apply([for_template(message) for message in messages])
        if rendered.text != self._plain_text(given, variables, False):
            return True
        if rendered.marked or not self.generation_prompt(**variables):
            return False
        written = partial(self._written, variables)
        answers = [turn for turn in rendered.turns if turn.spans and given[turn.message]["role"] == "assistant"]
        some = answers if len(answers) <= 2 * _TURNS else [*answers[:_TURNS], *answers[-_TURNS:]]
        return contradict(rendered.text, some, given, written, self.tokens)

    def generation_prompt(self, /, **variables: Any) -> str:
        """The generation prompt behind a question; "" where the template has none."""
        tools = variables.pop("tools", None)
        return next(iter(self.facts(tools, variables).prompts), "")

    def text(self, messages: Sequence[Message], /, add_generation_prompt: bool = False, **variables: Any) -> str:
        """The text of a conversation, as transformers renders it.

        For arguments and errors see `render`.
        """
        replayed = self.replay(messages, True, **variables) if add_generation_prompt else None
        if replayed is not None:
            return replayed.text
        given, _ = self.forms.apply([for_template(message) for message in messages])
        return self._plain_text(given, variables, add_generation_prompt)

    def _plain_text(self, messages: Sequence[Message], variables: dict[str, Any], prompt: bool) -> str:
        context = {"tools": None, **variables, "messages": messages, "add_generation_prompt": prompt}
        text = "".join(self._yielded(self._plain, context))
        self._check_addresses(text, (messages, variables))
        return text

    def _check_addresses(self, text: str, given: Any) -> None:
        try:
            check_addresses(text, given)
        except jinja2.TemplateError as error:
            raise Reject("template_error", f"the chat template raised: {error}") from None

    def _written(self, variables: dict[str, Any], messages: Sequence[Message], prompt: bool) -> str | None:
        try:
            return self._plain_text(messages, variables, prompt)
        except Reject:
            return None

    def facts(self, tools: Any, variables: dict[str, Any]) -> Facts:
        """What is known of the template with these variables."""
        key: Any = bool(tools)
        if variables:
            try:
                key = key, marshal.dumps(sorted(variables.items()), 2)
            except ValueError:  # a class of the user's own
                key = key, repr(sorted(variables.items()))
        found = self._facts.get(key)
        if found is None:
            if len(self._facts) >= _MOST_FACTS:
                self._facts.clear()
            found = self._facts[key] = Facts(self, _PROBE_TOOLS if tools else None, variables)
        return found

    def run(self, messages: Sequence[Message], tools: Any, variables: dict[str, Any], prompt: bool = False) -> Trace:
        """One rendering, with origins, of messages in the form that the template takes."""
        rendering = trace(self.pieces(messages, tools, variables, prompt))
        self._check_addresses(rendering.text, (messages, tools, variables))
        return rendering

    def pieces(
        self, messages: Sequence[Message], tools: Any, variables: dict[str, Any], prompt: bool = False
    ) -> list[str]:
        """What the template yields."""
        given = {
            **variables,
            "tools": None if tools is None else origins.wrap(tools, Origin(TOOLS, ("tools",))),
            "messages": [origins.message_node(message, index) for index, message in enumerate(messages)],
            "add_generation_prompt": prompt,
        }
        return self._yielded(self._traced, given)

    def _yielded(self, template: Any, given: dict[str, Any]) -> list[str]:
        limits.begin()
        context = template.new_context({"documents": None, **self.special_tokens, **given})
        found: list[str] = []
        characters = 0
        try:
            with RENDERING:
                pieces = template.root_render_func(context)
                while some := list(itertools.islice(pieces, _AT_ONCE)):
                    found += some
                    characters += sum(map(str.__len__, some))
                    limits.expect(characters)
        except TemplateLimit as error:
            raise Reject("template_limit", f"the chat template is stopped: {error}") from None
        except RAISED_BY_TEMPLATES as error:
            kind = type(error).__name__
            known = "" if kind in ("TemplateError", "UndefinedError", "SecurityError") else f"{kind}: "
            raise Reject(
                "template_error", f"the chat template raised: {known}{without_addresses(str(error))}"
            ) from None
        return found

    def _shown(self, messages: list[Message]) -> str:
        try:
            return self.run([for_template(message) for message in messages], None, {}).text
        except Reject:
            return ""
