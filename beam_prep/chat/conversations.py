"""Conversations that show what a chat template takes and leaves out: `beam-prep template` and docs/templates.md."""

from typing import Any, NamedTuple

from beam_prep.chat.messages import Message, call, is_optional
from beam_prep.chat.origins import TOOLS
from beam_prep.chat.template import ChatTemplate, RenderedChat
from beam_prep.data.block import Reject


def _system(content: Any, role: str = "system") -> Message:
    return {"role": role, "content": content}


def _user(content: Any) -> Message:
    return {"role": "user", "content": content}


def _answer(content: Any, **more: Any) -> Message:
    return {"role": "assistant", "content": content, **more}


def _result(name: str, content: str, place: int = 0) -> Message:
    return {"role": "tool", "name": name, "tool_call_id": call(name, {}, place)["id"], "content": content}


def _tool(name: str, description: str, **parameters: str) -> dict[str, Any]:
    properties = {key: {"type": kind} for key, kind in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": [*properties]}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


_TOOLS = [_tool("next_train", "Finds the next train.", to="string"), _tool("price", "Gives a price.", km="integer")]
_TRAIN, _ASKED = call("next_train", {"to": "Bern"}), _user("When is the next train to Bern?")
_FOUND = [_result("next_train", "At 9:14."), _answer("It leaves at 9:14.")]
_SUM, _NEXT_SUM = _user("What is 2 + 5?"), _user("And 3 + 6?")

CONVERSATIONS: dict[str, dict[str, Any]] = {
    "question and answer": {"messages": [_user("Are you there?"), _answer("Yes, I am.")]},
    "system message": {"messages": [_system("Be brief."), _user("Are you there?"), _answer("Yes.")]},
    "developer message": {"messages": [_system("Be brief.", "developer"), _user("Are you there?"), _answer("Yes.")]},
    "several turns": {
        "messages": [
            *(_user("Hello!"), _answer("Good morning.")),
            *(_user("How is the weather?"), _answer("It rains here.")),
            *(_user("Goodbye!"), _answer("Until tomorrow.")),
        ]
    },
    "assistant first": {"messages": [_answer("How can I help?"), _user("Name a colour."), _answer("Blue.")]},
    "two answers in a row": {
        "messages": [_user("Name a colour."), _answer("Blue."), _answer("Or green."), _user("Two?"), _answer("Red.")]
    },
    "two questions in a row": {"messages": [_user("Are you there?"), _user("Hello?"), _answer("Yes, I am.")]},
    "question at the end": {"messages": [_user("Name a colour."), _answer("Blue."), _user("Another one?")]},
    "empty answer": {"messages": [_user("Say nothing."), _answer(""), _user("And now?"), _answer("Something.")]},
    "blanks at the borders": {
        "messages": [_user(" A poem? \n"), _answer("\n Roses are red \n\n"), _user("More"), _answer("Grass\n\ngrows  ")]
    },
    "signs of code": {
        "messages": [_user("What is {{ x }} in <b>HTML</b>?"), _answer('{% if "x" %} & <i>é 日本語 🙂</i> [1] \\n')]
    },
    "lists of parts": {
        "messages": [
            _user([{"type": "text", "text": "Name a colour,"}, {"type": "text", "text": " please."}]),
            _answer([{"type": "text", "text": "Blue."}]),
        ]
    },
    "call, arguments as object": {"tools": _TOOLS, "messages": [_ASKED, _answer("", tool_calls=[_TRAIN]), *_FOUND]},
    "call, arguments as string": {
        "tools": _TOOLS,
        "messages": [_ASKED, _answer("", tool_calls=[call("next_train", '{"to": "Bern"}')]), *_FOUND],
    },
    "call with words": {
        "tools": _TOOLS,
        "messages": [_ASKED, _answer("I look it up.", tool_calls=[_TRAIN]), *_FOUND, _user("Thanks."), _answer("Bye.")],
    },
    "parallel calls": {
        "tools": _TOOLS,
        "messages": [
            _user("When does it leave, and what do 120 km cost?"),
            _answer(None, tool_calls=[_TRAIN, call("price", {"km": 120}, 1)]),
            *(_result("next_train", "At 9:14."), _result("price", "40 francs.", 1)),
            _answer("It leaves at 9:14 and costs 40 francs."),
        ],
    },
    "reasoning in a field": {"messages": [_SUM, _answer("7.", reasoning_content="Two and five make seven.")]},
    "reasoning in the content": {
        "messages": [_SUM, _answer("<think>\nTwo and five make seven.\n</think>\n\n7."), _NEXT_SUM, _answer("9.")]
    },
    "reasoning of earlier answers": {
        "messages": [
            *(_SUM, _answer("7.", reasoning_content="Two and five make seven.")),
            *(_NEXT_SUM, _answer("9.", reasoning_content="Three and six make nine.")),
        ]
    },
    "reasoning before a call": {
        "tools": _TOOLS,
        "messages": [_ASKED, _answer("", reasoning_content="I need the timetable.", tool_calls=[_TRAIN]), *_FOUND],
    },
}
"""Name -> a record with `messages`, and `tools` where there are some."""


class Outcome(NamedTuple):
    """What a template does with a conversation.

    Attributes:
        kind: `taken`; `not written`: a content or a call is left out, for which a run rejects the record; `refused`:
            where a turn begins or ends cannot be told; `raises`: the template refuses it itself.
        reason, message: of the reject; "" where there is none.
        rendered: None where the template raises, or a form does not fit.
    """

    kind: str
    reason: str = ""
    message: str = ""
    rendered: RenderedChat | None = None

    @property
    def lost(self) -> list[str]:
        """What is not written, as paths in the record: `tools`, `messages[1].content`."""
        found = [] if self.rendered is None else self.rendered.not_rendered
        return ["tools" if index == TOOLS else f"messages[{index}].{key}" for index, key in found]

    @property
    def lost_kinds(self) -> list[str]:
        """What of these is not written: `tools`, `calls`, `contents`, `reasoning`."""
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
