"""The trained parts of a conversation: the segments of its piece, by the sections of its output."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from beam_prep.core.chat.conversation import MessageSpan
from beam_prep.core.data.block import Reject
from beam_prep.core.data.schema import Output
from beam_prep.core.pieces.message_weights import MessageWeights
from beam_prep.core.pieces.rendered import BY_ROLE, TRAIN, UNSET, WHOLE, Segment


class TrainedParts:
    """The trained parts of the conversations of an output.

    Args:
        output: whose sections say what is trained.
        roles: the roles of the block: name -> code; new ones are added.
        weights: of the messages of this output.
    """

    def __init__(self, output: Output, roles: dict[str, int], weights: MessageWeights) -> None:
        self._output, self._roles, self._weights = output, roles, weights
        found = [section.action for section in output.sections]
        self._all_of_one = found[0] if len(found) == 1 else None
        self._has_prompts = {"mask", "train"} <= {*found}

    def codes(self, messages: list[dict[str, Any]]) -> list[int]:
        """The roles of messages."""
        return [self._roles.setdefault(message["role"], len(self._roles)) for message in messages]

    def own(self, messages: list[dict[str, Any]]) -> tuple[int, ...]:
        """What messages say about their own training: see `MessageWeights`."""
        return tuple(self._weights.code(message) for message in messages)

    def actions(self, counts: Sequence[int]) -> list[str]:
        """The action of each message, from the number of messages of each section."""
        if self._all_of_one is not None:
            return [self._all_of_one] * counts[0]
        sections = self._output.sections
        return [section.action for section, count in zip(sections, counts, strict=True) for _ in range(count)]

    def prompt_length(self, messages: list[dict[str, Any]], actions: list[str]) -> int | None:
        """How many messages the prompt has; None where the conversation is not one of prompt and answer."""
        if "$last" in actions:
            if messages[-1]["role"] != "assistant":
                role = messages[-1]["role"]
                raise Reject("last_not_assistant", f"the last message is of role {role!r}, wanted 'assistant'")
            masked = len(messages) - 1
        elif self._has_prompts:
            masked = actions.count("mask")
        else:
            return None
        if masked == 0:
            raise Reject("no_prompt", "no message comes before the answer, wanted at least one")
        if masked == len(messages):
            raise Reject("no_answer", "no message comes after the prompt, wanted at least one")
        return masked

    def segments(
        self,
        spans: Callable[[], list[MessageSpan]],
        messages: list[dict[str, Any]],
        actions: list[str],
        answer: MessageSpan | None,
    ) -> Iterator[Segment]:
        """The segments that can be trained: the span of each message, or the entire piece."""
        own = self.own(messages)
        roles = self.codes(messages)
        last = len(messages) - 1
        masked = None if answer is None else self.prompt_length(messages, actions)
        # Not all messages after the prompt are trained, or not with the same weight.
        apart = masked is not None and (0 in own[masked:] or (masked < last and max(own[masked:]) > 1))
        if answer is not None and not apart:
            weighted = own[last] if own[last] > 1 else UNSET
            yield Segment(answer.start, answer.stop, TRAIN, roles[last], last, weighted, int(answer.proven))
        if all(action == "train" for action in actions) and set(own) <= {UNSET, 1}:
            yield Segment(*WHOLE, TRAIN)
            return
        if "$role" not in actions and set(own) == {UNSET}:
            return
        for span in spans():
            place = span.message
            after = apart and masked is not None and place >= masked
            if (answer is not None and own[place] < 1 and not after) or actions[place] == "mask":
                continue
            action = BY_ROLE if actions[place] == "$role" else TRAIN
            yield Segment(span.start, span.stop, action, roles[place], place, own[place], int(span.proven))
