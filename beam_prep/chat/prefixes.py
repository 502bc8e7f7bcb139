"""The spans of assistant turns where transformers' own renderings of prefixes of the conversation show them.

Where the rendering of the messages before a turn, with the generation prompt, begins the whole text, and so does that
of the messages up to it, the turn is the difference. The rule (`turns`) is held against this for a sample of each
block, and where the two differ the block's spans are taken from here.
"""

from collections.abc import Callable, Sequence

from beam_prep.chat.messages import Lost, Message, is_said, text_of_part
from beam_prep.chat.renderer import Tokens
from beam_prep.chat.turns import Turn

Written = Callable[[Sequence[Message], bool], str | None]
"""(messages, with a generation prompt) -> their text; None where the template raises."""

NOT_SHOWN = (
    "turn_unplaced",
    "a sample of its block was rendered in another way than transformers does, and renderings of the messages before "
    "do not show where this turn begins and ends",
)


def turns_by_prefixes(text: str, messages: Sequence[Message], written: Written, tokens: Tokens) -> list[Turn]:
    """The turns of all messages; those that prefixes do not show are refused.

    Args:
        text: the whole conversation.
        messages: of it.
        written: renders.
        tokens: the special tokens.
    """
    return [
        Turn(index, (span,))
        if (span := _span(text, messages, index, written, tokens)) and _prompted(messages, index, written)
        else Turn(index, (), NOT_SHOWN)
        for index in range(len(messages))
    ]


def _span(
    text: str, messages: Sequence[Message], index: int, written: Written, tokens: Tokens
) -> tuple[int, int] | None:
    if messages[index]["role"] != "assistant" or _is_one_of_several(messages, index):
        return None
    before, after = written(messages[:index], True), written(messages[: index + 1], False)
    if before is None or after is None or not text.startswith(before) or not text.startswith(after):
        return None
    if len(after) <= len(before):
        return None  # history is written in another way than it was generated
    shown = after[len(before) :].rstrip()
    ends = [token.end() for token in tokens.special.finditer(shown)]
    return len(before), len(before) + (ends[-1] if ends and ends[-1] == len(shown) else len(shown))


def _prompted(messages: Sequence[Message], index: int, written: Written) -> bool:
    """True if the template writes a generation prompt there; without one, prefixes do not say where a turn begins."""
    return written(messages[:index], True) != written(messages[:index], False)


def _is_one_of_several(messages: Sequence[Message], index: int) -> bool:
    """True for one of two answers in a row: where one of them ends is not said by prefixes."""
    return any(
        0 <= other < len(messages) and messages[other]["role"] == "assistant" for other in (index - 1, index + 1)
    )


def contradict(text: str, turns: Sequence[Turn], messages: Sequence[Message], written: Written, tokens: Tokens) -> bool:
    """True if the spans of an assistant's turn are not what prefixes show, but for blanks."""
    for turn in turns:
        if not is_said(messages[turn.message]):
            continue
        shown = _span(text, messages, turn.message, written, tokens)
        if shown is None:
            continue
        (first, _), (_, last) = turn.spans[0], turn.spans[-1]
        begins_elsewhere = bool(text[min(first, shown[0]) : max(first, shown[0])].strip())
        # What stands behind an end token is not the model's.
        ends = {token.end() for token in tokens.special.finditer(text, *shown)}
        if (begins_elsewhere or (shown[1] in ends and last not in ends)) and _prompted(messages, turn.message, written):
            return True
    return False


def not_in(text: str, messages: Sequence[Message]) -> list[Lost]:
    """Contents that a text does not hold, and calls whose names it does not."""
    lost: list[Lost] = []
    for index, message in enumerate(messages):
        content = message.get("content")
        said = "".join(map(text_of_part, content)) if isinstance(content, list) else content
        if isinstance(said, str) and said.strip() not in text:
            lost.append((index, "content"))
        for place, call in enumerate(message.get("tool_calls") or ()):
            function = call.get("function", call) if isinstance(call, dict) else {}
            if str(function.get("name", "")) not in text:
                lost.append((index, f"tool_calls[{place}].name"))
    return lost
