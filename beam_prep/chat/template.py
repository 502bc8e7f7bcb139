"""`ChatTemplate`: conversations as transformers renders them, and the spans of their messages."""

import marshal
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from beam_prep.chat.environment import compile_template
from beam_prep.chat.facts import facts_of
from beam_prep.chat.messages import OTHER_CONTENTS, Forms, Lost, Message, ToolArguments, inline_reasoning, is_said
from beam_prep.chat.renderer import Renderer, Tokens
from beam_prep.chat.replay import Replay
from beam_prep.chat.trace import SourceSpan
from beam_prep.chat.turns import Facts, RenderedChat, Turn, rendered_chat

Written = Callable[[Sequence[Message], bool], str | None]
"""(messages, with a generation prompt) -> their text; None if the template raises."""

NOT_SHOWN = (
    "turn_unplaced",
    "in a sample of its block, the rendering differs from transformers', and renderings of the messages before this "
    "turn do not show where it begins and ends",
)


def _span(text: str, messages: Sequence[Message], index: int, written: Written) -> tuple[int, int] | None:
    answers = sum(message["role"] == "assistant" for message in messages[max(index - 1, 0) : index + 2])
    if messages[index]["role"] != "assistant" or answers > 1:
        return None  # prefixes do not show where one of two answers in a row ends
    before, after = written(messages[:index], True), written(messages[: index + 1], False)
    if before is None or after is None or not text.startswith(before) or not text.startswith(after):
        return None
    if len(after) <= len(before):
        return None  # the history is written differently from what was generated
    return len(before), max(len(before), len(after.rstrip()))


def _prompted(messages: Sequence[Message], index: int, written: Written) -> bool:
    """True if the template writes a generation prompt there; without one, prefixes do not show a turn's begin."""
    return written(messages[:index], True) != written(messages[:index], False)


def not_in(text: str, messages: Sequence[Message]) -> list[Lost]:
    """Contents, and texts in place of them, that are missing in a text, and calls whose names are missing."""
    lost: list[Lost] = []
    for index, message in enumerate(messages):
        texts = {key: message.get(key) for key in OTHER_CONTENTS} | {"content": inline_reasoning(message)[1]}
        for key, value in texts.items():
            if isinstance(value, str) and value.strip() not in text:
                lost.append((index, key))
        for place, call in enumerate(message.get("tool_calls") or ()):
            function = call.get("function", call) if isinstance(call, dict) else {}
            if str(function.get("name", "")) not in text:
                lost.append((index, f"tool_calls[{place}].name"))
    return lost


_MOST_FACTS = 256
_TURNS = 2
"""Number of turns at each end of a conversation that are compared with renderings of prefixes."""
_PROBE_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "Looks at it.",
            # Some templates write a parameter's description, and raise without one.
            "parameters": {"type": "object", "properties": {"word": {"type": "string", "description": "What."}}},
        },
    }
    for name in ("look_up", "add_up")
]


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
        date: the day for `strftime_now`, such as "2026-11-22".
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
        self.source, self.special_tokens, self.tokens = source, dict(special_tokens), Tokens(controls)
        self.compiled = compile_template(source, date)
        self._facts: dict[Any, Facts] = {}
        self.forms = Forms(self._shown, tool_arguments)
        tree = self.compiled.environment.parse(source)
        self._replay = Replay(tree, self.tokens, self.with_variables, self.facts)

    def _shown(self, messages: list[Message]) -> str:
        # Some templates need tools (Hermes 2 Pro's `tool_use`).
        given: list[dict[str, Any]] = [{}, {"tools": []}]
        texts = (self.with_variables(variables).written(messages, False) for variables in given)
        return next(filter(None, texts), "")

    def with_variables(self, variables: Mapping[str, Any]) -> Renderer:
        """A renderer with these variables."""
        return Renderer(self.compiled, self.special_tokens, self.tokens, self.formed, variables)

    def formed(self, messages: Sequence[Message]) -> tuple[Sequence[Message], dict[str, int]]:
        """(the messages in the form that the template takes, see `Forms.apply`)."""
        return self.forms.apply(messages)

    def render(self, messages: Sequence[Message], replays: bool = False, /, **variables: Any) -> RenderedChat:
        """Renders a conversation once.

        Args:
            messages: role, content and other keys that the template reads.
            replays: a chat of a known kind is made without the template.
            variables: `tools`, and other variables of the template.

        Raises:
            Reject: `template_error`: the template refuses the messages, or fails on them; `template_limit`: the
                rendering exceeds a limit; `bad_arguments`: see `Forms`.
        """
        formed, changed = self.formed(messages)
        chat = self._replay.find(formed, variables) if replays else None
        if chat is None:
            chat, _ = rendered_chat(self.with_variables(variables), self.facts(variables), formed)
        return chat._replace(changed=changed)

    def render_plainly(self, messages: Sequence[Message], /, **variables: Any) -> RenderedChat:
        """Renders without origins, exactly as transformers does, and takes the turns from renderings of prefixes.

        For arguments and errors see `render`.
        """
        formed, changed = self.formed(messages)
        renderer = self.with_variables(variables)
        text = renderer.text(formed)
        turns = [
            Turn(index, (span,))
            if (span := _span(text, formed, index, renderer.written)) and _prompted(formed, index, renderer.written)
            else Turn(index, (), NOT_SHOWN)
            for index in range(len(formed))
        ]
        return RenderedChat(text, turns, not_in(text, formed), changed)

    def differs(self, rendered: RenderedChat, messages: Sequence[Message], /, **variables: Any) -> bool:
        """True if transformers renders another text, or if prefixes show turns that differ by more than blanks."""
        formed, renderer = self.formed(messages)[0], self.with_variables(variables)
        if rendered.text != renderer.text(formed):
            return True
        if rendered.marked or not self.generation_prompt(**variables):
            return False
        text = rendered.text
        answers = [turn for turn in rendered.turns if turn.spans and formed[turn.message]["role"] == "assistant"]
        sampled = answers if len(answers) <= 2 * _TURNS else [*answers[:_TURNS], *answers[-_TURNS:]]
        for turn in sampled:
            shown = _span(text, formed, turn.message, renderer.written)
            if shown is None or not is_said(formed[turn.message]):
                continue
            (first, _), (_, last) = turn.spans[0], turn.spans[-1]
            begins_elsewhere = bool(text[min(first, shown[0]) : max(first, shown[0])].strip())
            # The model does not write what stands behind an end token.
            ends = {token.end() for token in self.tokens.special.finditer(text, *shown)}
            is_different = begins_elsewhere or (shown[1] in ends and last not in ends)
            if is_different and _prompted(formed, turn.message, renderer.written):
                return True
        return False

    def generation_prompt(self, /, **variables: Any) -> str:
        """The generation prompt behind a question; "" if the template has none."""
        return next(iter(self.facts(variables).prompts), "")

    def text(self, messages: Sequence[Message], /, add_generation_prompt: bool = False, **variables: Any) -> str:
        """The text of a conversation, as transformers renders it.

        For arguments and errors see `render`.
        """
        return self.with_variables(variables).text(self.formed(messages)[0], add_generation_prompt)

    def said(self, messages: Sequence[Message], /, **variables: Any) -> Sequence[SourceSpan]:
        """The spans of the messages' own texts, in order. For arguments and errors see `render`."""
        return self.with_variables(variables).run(self.formed(messages)[0]).segments

    def with_answer(self, content: str) -> str | None:
        """A conversation in which the assistant says this twice; None: the template refuses it."""
        turns: list[Message] = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": content}]
        return self.with_variables({}).written(self.formed([*turns, *turns])[0], False)

    def facts(self, variables: Mapping[str, Any]) -> Facts:
        """The facts of the template with these variables."""
        has_tools = bool(variables.get("tools"))
        others = sorted((name, value) for name, value in variables.items() if name != "tools")
        try:
            key: Any = has_tools, marshal.dumps(others, 2)
        except ValueError:  # a class of the user's own
            key = has_tools, repr(others)
        found = self._facts.get(key)
        if found is None:
            if len(self._facts) >= _MOST_FACTS:
                self._facts.clear()
            given = {**dict(others), "tools": _PROBE_TOOLS if has_tools else None}
            found = self._facts[key] = facts_of(self.with_variables(given))
        return found
