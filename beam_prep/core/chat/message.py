"""A message as chat templates see it."""

from typing import Any

Message = dict[str, Any]
REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")
REASONING = frozenset(REASONING_FIELDS)


def for_template(message: Message) -> Message:
    """A message as transformers hands it to a template: no null keys, reasoning under both of its names."""
    if None in message.values():
        message = {key: value for key, value in message.items() if value is not None}
    if REASONING.isdisjoint(message):
        return message
    reasoning = next(message[key] for key in REASONING_FIELDS if key in message)
    return {"thinking": reasoning, **message, "reasoning_content": reasoning}
