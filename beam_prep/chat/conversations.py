"""Test conversations that show what a chat template takes and leaves out, for `beam-prep template` and its docs."""

import functools
from typing import Any, NamedTuple

from beam_prep.chat.messages import Message, call, is_optional, result
from beam_prep.chat.origins import TOOLS
from beam_prep.chat.template import ChatTemplate
from beam_prep.chat.turns import RenderedChat
from beam_prep.data.block import Reject


def _says(role: str, content: Any, **more: Any) -> Message:
    return {"role": role, "content": content, **more}


def _tool(name: str, description: str, parameter: str, kind: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": {parameter: {"type": kind}}, "required": [parameter]}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


def _chat(*messages: Message, **more: Any) -> dict[str, Any]:
    return {"messages": [*messages], **more}


_user, _answer = functools.partial(_says, "user"), functools.partial(_says, "assistant")
_there, _colour, _sum = _user("Are you there?"), _user("Name a colour."), _user("What is 2 + 5?")
_asked, _call = _user("When is the next train to Bern?"), call("next_train", {"to": "Bern"})
_found = result("next_train", "At 9:14."), _answer("It leaves at 9:14.")
_with_tools = functools.partial(
    _chat, tools=[_tool("next_train", "Finds a train.", "to", "string"), _tool("price", "Asks.", "km", "integer")]
)

CONVERSATIONS: dict[str, dict[str, Any]] = {
    "question and answer": _chat(_there, _answer("Yes, I am.")),
    "system message": _chat(_says("system", "Be brief."), _there, _answer("Yes.")),
    "developer message": _chat(_says("developer", "Be brief."), _there, _answer("Yes.")),
    "several turns": _chat(
        *(_user("Hello!"), _answer("Good morning.")),
        *(_user("How is the weather?"), _answer("It rains here.")),
        *(_user("Goodbye!"), _answer("Until tomorrow.")),
    ),
    "assistant first": _chat(_answer("How can I help?"), _colour, _answer("Blue.")),
    "two answers in a row": _chat(_colour, _answer("Blue."), _answer("Or green."), _user("One more?"), _answer("Red.")),
    "two questions in a row": _chat(_there, _user("Hello?"), _answer("Yes, I am.")),
    "question at the end": _chat(_colour, _answer("Blue."), _user("One more?")),
    "empty answer": _chat(_user("Say nothing."), _answer(""), _user("And now?"), _answer("Something.")),
    "blanks at the borders": _chat(
        _user(" A poem? \n"), _answer("\n Roses are red \n\n"), _user("More"), _answer("Grass\n\ngrows  ")
    ),
    "signs of code": _chat(
        _user("What is {{ x }} in <b>HTML</b>?"), _answer('{% if "x" %} & <i>é 日本語 🙂</i> [1] \\n')
    ),
    "lists of parts": _chat(
        _user([{"type": "text", "text": "Name a colour,"}, {"type": "text", "text": " please."}]),
        _answer([{"type": "text", "text": "Blue."}]),
    ),
    "call, arguments as object": _with_tools(_asked, _answer("", tool_calls=[_call]), *_found),
    "call, arguments as string": _with_tools(
        _asked, _answer("", tool_calls=[call("next_train", '{"to": "Bern"}')]), *_found
    ),
    "call with words": _with_tools(
        _asked, _answer("I look it up.", tool_calls=[_call]), *_found, _user("Thanks."), _answer("Bye.")
    ),
    "parallel calls": _with_tools(
        _user("When does it leave, and what do 120 km cost?"),
        _answer(None, tool_calls=[_call, call("price", {"km": 120}, 1)]),
        *(result("next_train", "At 9:14."), result("price", "40 francs.", 1)),
        _answer("It leaves at 9:14 and costs 40 francs."),
    ),
    "reasoning in a field": _chat(_sum, _answer("7.", reasoning_content="Two and five make seven.")),
    "reasoning in the content": _chat(
        *(_sum, _answer("<think>\nTwo and five make seven.\n</think>\n\n7.")),
        *(_user("And 3 + 6?"), _answer("<think>\nThree and six make nine.\n</think>\n\n9.")),
    ),
    "reasoning of earlier answers": _chat(
        *(_sum, _answer("7.", reasoning_content="Two and five make seven.")),
        *(_user("And 3 + 6?"), _answer("9.", reasoning_content="Three and six make nine.")),
    ),
    "reasoning before a call": _with_tools(
        _asked, _answer("", reasoning_content="I need the timetable.", tool_calls=[_call]), *_found
    ),
}
"""Name -> a record with `messages`, some with `tools`."""


class Outcome(NamedTuple):
    """What a template does with a conversation.

    Attributes:
        kind: `taken`; `not written`: the template leaves out a content or a call, so a run rejects the record;
            `refused`: the begin or end of a turn is ambiguous; `raises`: the template itself refuses it.
        reason, message: of the reject; "" without one.
        rendered: None if the template raises, or a form does not fit.
    """

    kind: str
    reason: str = ""
    message: str = ""
    rendered: RenderedChat | None = None

    @property
    def lost(self) -> list[str]:
        """What the template does not write, as paths in the record: `tools`, `messages[1].content`."""
        found = [] if self.rendered is None else self.rendered.not_rendered
        return ["tools" if index == TOOLS else f"messages[{index}].{key}" for index, key in found]

    @property
    def lost_kinds(self) -> list[str]:
        """The kinds of what the template does not write: `tools`, `calls`, `contents`, `reasoning`."""
        kinds = {"tools": "tools", "tool_calls": "calls", "content": "contents", "reasoning": "reasoning"}
        found = [] if self.rendered is None else self.rendered.not_rendered
        return [*dict.fromkeys(kinds[key.partition("[")[0]] for _, key in found)]


def outcome_of(template: ChatTemplate, record: dict[str, Any]) -> Outcome:
    """What a template does with a record of messages.

    >>> template = ChatTemplate("{% for m in messages %}{{ m.content }}</s>{% endfor %}", {}, ["</s>"])
    >>> found = outcome_of(template, CONVERSATIONS["call, arguments as object"])
    >>> found.kind, found.lost_kinds, found.lost[:2]
    ('not written', ['tools', 'calls'], ['tools', 'messages[1].tool_calls[0].name'])
    """
    messages, tools = record["messages"], record.get("tools")
    try:
        rendered = template.render(messages, **({} if tools is None else {"tools": tools}))
    except Reject as reject:
        raises = reject.reason in ("template_error", "template_limit")
        return Outcome("raises" if raises else "refused", reject.reason, reject.message)
    if not all(map(is_optional, rendered.not_rendered)):
        return Outcome("not written", "not_rendered", rendered=rendered)
    reasons = (turn.reason for turn in rendered.turns if messages[turn.message]["role"] == "assistant")
    reason = next(filter(None, reasons), None)
    return Outcome("taken", rendered=rendered) if reason is None else Outcome("refused", *reason, rendered)
