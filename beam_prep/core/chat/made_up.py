"""Made-up conversations, and the text that a template writes around their words."""

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from beam_prep.core.chat.message import Message
from beam_prep.core.chat.template import ChatTemplate

# Two conversations as different as can be: what a template writes in both does not depend on their words. They share
# no character, and the second has all others.
_REST = "".join(chr(code) for code in range(33, 127) if chr(code) not in "vxzw<>{}|") + "\n"
MADE_UP = (
    ("vxzw", "zxvw", "wxvz", "xwzv"),
    tuple(f"{number}{_REST[first:]} {_REST[:first]}{number}" for number, first in enumerate((7, 29, 41, 53), 5)),
)

DATA = "data"
"""In the variables of a frame: a value that differs between the made-up conversations."""


def made_up_values(variables: Mapping[str, Any], words: Sequence[str]) -> dict[str, Any]:
    """Variables with made-up values: words, and more tools for longer ones."""
    name, _, text, _ = words
    parameters = {"type": "object", "properties": {}}
    tool = {"type": "function", "function": {"name": name, "description": text, "parameters": parameters}}
    values = {"tools": [tool] * (1 if len(name) < 9 else 2)}
    return {key: values.get(key, text) if value == DATA else value for key, value in variables.items()}


def around_words(
    template: ChatTemplate, words: Sequence[str], shape: str, history: bool, variables: Mapping[str, Any]
) -> dict[str, tuple[str, str]]:
    """Role -> the text before and after its words in its turn.

    Args:
        template: renders a question and an answer.
        words: what they say.
        shape: of the answer: `plain`, `reasoned`, or `embedded` (reasoning in the content).
        history: other messages follow.
        variables: for the template.
    """
    question, answer, more, thought = words
    embedded = f"<think>\n{thought}\n</think>\n\n{answer}"
    message: Message = {"role": "assistant", "content": embedded if shape == "embedded" else answer}
    if shape == "reasoned":
        message["reasoning_content"] = thought
    later = [{"role": "user", "content": more}, {"role": "assistant", "content": more}] if history else []
    turns = template.turns([{"role": "user", "content": question}, message, *later], **variables)
    found = {}
    for role, turn, texts in (("user", turns[0], (question,)), ("assistant", turns[1], (thought, answer))):
        text = next((text for text in texts if turn is not None and turn.count(text) == 1), None)
        # If the template does not separate reasoning from content, this is a plain answer, only longer.
        if turn is not None and text is not None and (shape != "embedded" or embedded not in turn):
            before, _, after = turn.partition(text)
            found[role] = before, after
    return found


def around_words_of_other_roles(
    template: ChatTemplate, words: Sequence[str], variables: Mapping[str, Any]
) -> dict[str, tuple[str, str]]:
    """Role -> the text before and after its words, for roles other than user and assistant."""
    found = {}
    question, answer, content, _ = words
    user, assistant = {"role": "user", "content": question}, {"role": "assistant", "content": answer}
    for role in ("system", "developer", "tool", "function"):
        message: Message = {"role": role, "content": content}
        leads = role in ("system", "developer")
        talk = [message, user, assistant] if leads else [user, assistant, message, assistant]
        turn = template.turns(talk, **variables)[0 if leads else 2]
        if turn is not None and turn.count(content) == 1:
            before, _, after = turn.partition(content)
            found[role] = before, after
    return found


def around_parts_of_answers(template: ChatTemplate, words: Sequence[str], variables: Mapping[str, Any]) -> list[str]:
    """The texts between the words of made-up answers with reasoning and calls."""
    question, answer, name, thought = words
    embedded = f"<think>\n{thought}\n</think>\n\n{answer}"
    user: Message = {"role": "user", "content": question}
    plain: Message = {"role": "assistant", "content": answer}
    found = []
    options = itertools.product(
        ({name: name}, f'{{"{name}": "{name}"}}'), (answer, "", embedded), (False, True), (0, 1, 2), (False, True)
    )
    for value, content, reasons, count, history in options:
        function = {"name": name, "arguments": value}
        calls = [{"id": f"{number}12345678", "type": "function", "function": function} for number in range(count)]
        message: Message = {"role": "assistant", "content": content}
        if reasons:
            message["reasoning_content"] = thought
        if calls:
            message["tool_calls"] = calls
        results: list[Message] = [{"role": "tool", "content": name, "tool_call_id": call["id"]} for call in calls]
        later = [*results, plain, user, plain] if history else []
        turn = template.turns([user, message, *later], **variables)[1]
        if turn is not None:
            found += re.split("|".join(map(re.escape, words)), turn)
    return found
