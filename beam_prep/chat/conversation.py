"""Collects the conversations that the records of a block give to one output, a piece each."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from beam_prep.chat.checks import are_plain, checked, guarded_messages, variables_of
from beam_prep.chat.kinds import parts_of, without_history_reasoning
from beam_prep.chat.messages import Message, without_nulls
from beam_prep.chat.origins import TOOLS
from beam_prep.chat.pieces import Layout, Piece
from beam_prep.chat.replay import Replayed
from beam_prep.chat.template import RenderedChat
from beam_prep.chat.voice import Voice
from beam_prep.core.data.block import Reject
from beam_prep.core.data.ragged import Array
from beam_prep.core.data.rendered import BY_ROLE, SEGMENT, TRAIN, UNSET, WHOLE, Segment
from beam_prep.core.data.schema import Action, Output
from beam_prep.core.reading.records import Record

DIFFERENT = "conversations_different"
"""Compared conversations whose text or turns are not what transformers shows."""


class MessageWeights:
    """What messages say about their own training, by `train` and `weight`, as codes.

    UNSET: nothing; 0: not trained; from 1 on: trained. A code from 0 on is a place in `values`, where its weight is.
    """

    def __init__(self) -> None:
        self._codes = {0.0: 0, 1.0: 1}

    def code(self, message: Mapping[str, Any]) -> int:
        """The code of a message that `check_message` has passed."""
        own = message.get("weight")
        if own is None:
            own = message.get("train")
        return UNSET if own is None else self._codes.setdefault(float(own), len(self._codes))

    def values(self) -> Array:
        """float64 [codes]."""
        return np.array(list(self._codes))


class Answer(NamedTuple):
    """All that follows the prompt of a conversation.

    Attributes:
        first: the first message behind the prompt.
        start, stop: characters.
        refused: see `Segment`.
    """

    first: int
    start: int
    stop: int
    refused: int


class Conversations:
    """Renders the conversations of one output.

    Args:
        output: one whose sections are a conversation.
        voice: with a template.
        roles: the roles of the block: name -> code; new ones are added.
        weights: of the messages of this output.
        from_table: the records are rows of a table, which has a null for each key that another row has.

    Attributes:
        counted: of the last record: see `Rendered.counters`.
        compares: the next record is compared with transformers' own rendering.
        made: how many were, and how many were different.
        reasons: (reason, message) -> the code of segments that are refused.
    """

    def __init__(
        self,
        output: Output,
        voice: Voice,
        roles: dict[str, int],
        weights: MessageWeights,
        from_table: bool,
    ) -> None:
        assert voice.template is not None
        self._output, self._voice, self._template = output, voice, voice.template
        self._guard, self._roles, self._weights, self._from_table = voice.guard, roles, weights, from_table
        self._fields = [section.field for section in output.sections]
        self._actions = [section.action for section in output.sections]
        self._layouts: dict[Any, tuple[Any, Layout | None]] = {}  # with the plan, so that its id stays its own
        self._has_prompts = {"mask", "train"} <= {*self._actions}
        self._render = voice.template.render_plainly if voice.plain else voice.template.render
        self.counted: Counter[str] = Counter()
        self.made: Counter[str] = Counter()
        self.compares = False
        self.reasons: dict[tuple[str, str], int] = {}

    def pieces(self, record: Record) -> list[Piece]:
        """The messages of all sections, rendered once; none where there are none.

        Raises:
            Reject: see `check_messages` and `ChatTemplate.render`; `not_rendered`: the template does not write a
                content or a call; `last_not_assistant`, `no_prompt`, `no_answer`: they are no prompt and answer.
        """
        weighted = self._output.weights_name is not None
        lists = [guarded_messages(self._guard, record.get(name), name, weighted) for name in self._fields]
        messages = lists[0] if len(lists) == 1 else list(chain.from_iterable(lists))
        if not messages:
            return []
        if (options := self._voice.rules.mask_options) is not None and options.reasoning == "drop_history":
            messages, dropped = without_history_reasoning(messages)
            self.counted["reasoning_dropped"] += dropped
        if self._from_table:
            messages = [_without_nulls_in_calls(message) for message in messages]
        variables = self._variables(record)
        counts = tuple(map(len, lists))
        if are_plain(messages) and (piece := self._replayed(messages, variables, counts)) is not None:
            return [piece]
        rendered = self._rendered(messages, variables)
        text, cut, special = self._voice.cut_bos(checked(rendered.text))
        actions = self._actions_of(counts)
        answer, prompt_end = None, -2
        if (masked := self._prompt_length(messages, actions)) is not None:
            prompt = self._template.text(messages[:masked], True, **variables)
            begins = rendered.text.startswith(prompt)
            answer = self._answer(rendered, messages, masked, len(prompt) if begins else None)
            prompt_end = max(len(prompt) - cut, 0) if begins else -1
        segments = [*self._segments(rendered, messages, actions, answer)]
        if options is not None:
            segments = self._of_kinds(segments, rendered, messages, variables, answer)
        if cut:
            segments = [_moved(segment, cut) for segment in segments]
        return [Piece(text, special, segments, None, prompt_end, self._codes(messages))]

    def _actions_of(self, counts: Sequence[int]) -> list[Action]:
        """The action of each message, from the number of messages of each section."""
        return [action for action, count in zip(self._actions, counts, strict=True) for _ in range(count)]

    def _replayed(self, messages: list[Message], variables: dict[str, Any], counts: tuple[int, ...]) -> Piece | None:
        """A plain chat whose kind came before; None where it is to be rendered."""
        if self._voice.plain or self._voice.rules.mask_options is not None:
            return None
        replayed = self._template.replay(messages, **variables)
        if replayed is None:
            return None
        text, prompt_end = replayed.text, -2
        masked = self._prompt_length(messages, self._actions_of(counts))
        if masked is not None:
            prompt = self._template.replay(messages[:masked], True, **variables)
            written = self._template.text(messages[:masked], True, **variables) if prompt is None else prompt.text
            prompt_end = len(written) if text.startswith(written) else -1
        key = id(replayed.plan), counts, prompt_end < 0
        if key not in self._layouts:
            self._layouts[key] = replayed.plan, self._layout(replayed, messages, counts, prompt_end)
        layout = self._layouts[key][1]
        if layout is None:
            return None
        if self.compares:
            self._compare(RenderedChat(text, replayed.turns(), replayed.plan.lost), messages, variables)
            full = self._template.render(messages, **variables)
            if (full.text, full.turns) != (text, replayed.turns()):
                self.made[DIFFERENT] += 1
        text, cut, special = self._voice.cut_bos(checked(text))
        prompt_end = max(prompt_end - cut, 0) if prompt_end >= 0 else prompt_end
        return Piece(text, special, (), None, prompt_end, self._codes(messages), layout, replayed.moved)

    def _layout(
        self, replayed: Replayed, messages: list[Message], counts: tuple[int, ...], prompt_end: int
    ) -> Layout | None:
        """The segments of all chats of a plan; None where they are not places in its constants."""
        rendered, answer = RenderedChat(replayed.text, replayed.turns(), replayed.plan.lost), None
        masked = self._prompt_length(messages, self._actions_of(counts))
        if masked is not None:
            if messages[masked]["role"] != "assistant":
                return None
            answer = self._answer(rendered, messages, masked, prompt_end if prompt_end >= 0 else None)
        segments = [*self._segments(rendered, messages, self._actions_of(counts), answer)]
        cut = self._voice.cut_bos(replayed.text)[1]
        rows, first, last = np.array(segments, SEGMENT), [0] * len(segments), [0] * len(segments)
        for place, segment in enumerate(segments):
            if segment[:2] != WHOLE:
                try:
                    start, first[place] = replayed.relative(segment.start, replayed.moved)
                    stop, last[place] = replayed.relative(segment.stop, replayed.moved)
                except ValueError:
                    return None
                rows[place]["start"], rows[place]["stop"] = start - cut, stop - cut
        return Layout(rows, np.array(first, np.int64), np.array(last, np.int64))

    def _variables(self, record: Record) -> dict[str, Any]:
        given: dict[str, Any] = self._guard(variables_of(record))
        if self._from_table and "tools" in given:
            given["tools"] = without_nulls(given["tools"])
        more = self._voice.rules.template_variables
        return {**more, **given} if more else given

    def _rendered(self, messages: list[Message], variables: dict[str, Any]) -> RenderedChat:
        try:
            rendered = self._render(messages, **variables)
            if self.compares:
                self._compare(rendered, messages, variables)
        except Reject as reject:
            fields = ", ".join(map(repr, self._fields))
            empty = [place for place, message in enumerate(messages) if message.get("content") is None]
            lacks = f" (message {empty[0]} has no content)" if empty else ""
            raise Reject(reject.reason, f"field {fields}{lacks}: {reject.message}") from None
        counted = self.counted
        if rendered.changed:
            counted["tool_arguments_changed"] += rendered.changed
        if rendered.reasoned:
            counted["reasoning_written"] += rendered.reasoned
        if rendered.marked:
            counted.update(_unlike_rule(rendered))
        texts = set[int]()
        for index, key in rendered.not_rendered:
            if index == TOOLS:
                counted["tools_not_written"] += 1
            elif key == "reasoning":
                counted["reasoning_not_written"] += 1
            elif self._voice.rules.not_rendered == "reject":
                raise Reject("not_rendered", _not_rendered(self._fields, messages, index, key))
            else:
                texts.add(index)
        if texts:
            counted["texts_not_written"] += len(texts)
        return rendered

    def _compare(self, rendered: RenderedChat, messages: list[Message], variables: dict[str, Any]) -> None:
        """Compares a conversation with transformers' own rendering."""
        self.made["conversations_compared"] += 1
        if self._template.differs(rendered, messages, **variables):
            self.made[DIFFERENT] += 1

    def _refused(self, reason: tuple[str, str]) -> int:
        """The code of a segment that is refused."""
        return self.reasons.setdefault(reason, len(self.reasons) + 1)

    def _codes(self, messages: Sequence[Message]) -> list[int]:
        """The roles of messages."""
        roles = self._roles
        return [roles.setdefault(message["role"], len(roles)) for message in messages]

    def _prompt_length(self, messages: Sequence[Message], actions: Sequence[str]) -> int | None:
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

    def _answer(
        self, rendered: RenderedChat, messages: Sequence[Message], first: int, prompt_end: int | None
    ) -> Answer:
        """All that follows the prompt: from the begin of the first turn behind it to the end of the last.

        Args:
            rendered, messages: the conversation.
            first: the first message behind the prompt.
            prompt_end: how many characters of the text are the prompt's; None: it does not begin with it.
        """
        turns, text = rendered.turns, rendered.text
        reasons = [turn.reason for turn in (turns[first], turns[-1]) if turn.reason is not None]
        if reasons:
            return Answer(first, 0, 0, self._refused(reasons[0]))
        begins = [span[0] for turn in turns[first:] for span in turn.spans]
        start = begins[0] if begins else len(text)
        if prompt_end is not None and messages[first]["role"] != "assistant":
            start = prompt_end  # a turn that begins where the model's does
        elif prompt_end is not None and (rendered.marked or not text[prompt_end:start].strip()):
            start = max(start, prompt_end) if rendered.marked else prompt_end
        stop = max([start, *(span[1] for turn in turns[-1:] for span in (*turn.spans, *turn.rule))])
        return Answer(first, start, stop if text[stop:].strip() else len(text), 0)

    def _segments(
        self, rendered: RenderedChat, messages: Sequence[Message], actions: Sequence[str], answer: Answer | None
    ) -> Iterator[Segment]:
        """The segments that can be trained: the spans of each message, or the entire piece."""
        own, roles = [self._weights.code(message) for message in messages], self._codes(messages)
        last = len(messages) - 1
        masked = len(messages) if answer is None else answer.first
        # Not all messages after the prompt are trained, or not with the same weight.
        apart = answer is not None and (0 in own[masked:] or (masked < last and max(own[masked:]) > 1))
        if answer is not None and not apart:
            weight = own[last] if own[last] > 1 else UNSET
            yield Segment(answer.start, answer.stop, TRAIN, roles[last], last, weight, answer.refused)
        if all(action == "train" for action in actions) and {*own} <= {UNSET, 1}:
            yield Segment(*WHOLE, TRAIN)
            return
        if "$role" not in actions and {*own} == {UNSET}:
            return
        for place, spans, reason, _ in rendered.turns:
            after = apart and place >= masked
            if (answer is not None and own[place] < 1 and not after) or actions[place] == "mask":
                continue
            action = BY_ROLE if actions[place] == "$role" else TRAIN
            refused = 0 if reason is None else self._refused(reason)
            # One that is not written has no token, and is the last of its role all the same.
            for start, stop in spans or ((0, 0),):
                yield Segment(start, stop, action, roles[place], place, own[place], refused)

    def _of_kinds(
        self,
        segments: Sequence[Segment],
        rendered: RenderedChat,
        messages: Sequence[Message],
        variables: dict[str, Any],
        answer: Answer | None,
    ) -> list[Segment]:
        """The segments, cut where their text becomes another kind."""
        options = self._voice.rules.mask_options
        assert options is not None
        prompt, text, found = self._template.generation_prompt(**variables), rendered.text, list[Segment]()
        for segment in segments:
            if segment.refused or segment.start == segment.stop:
                found.append(segment)
                continue
            start, stop = (0, len(text)) if segment[:2] == WHOLE else segment[:2]
            spans = [(segment.turn, start, stop)]
            if segment[:2] == WHOLE or (answer is not None and segment[:2] == answer[1:3]):
                turns = rendered.turns[answer.first if answer is not None else 0 :]
                spans = [(turn.message, max(begin, start), end) for turn in turns for begin, end in turn.spans]
                if spans and not text[spans[-1][2] : stop].strip():
                    spans[-1] = *spans[-1][:2], stop  # the white space behind the last end token
            at = start
            for message, begin, end in spans:
                if at < begin:
                    found.append(segment._replace(start=at, stop=begin))
                own = [each for each in rendered.said if each.index == message]
                parts = parts_of(text, messages[message], own, (begin, end), options, prompt, self._template.tokens)
                found += [segment._replace(start=a, stop=b, kind=kind) for a, b, kind in parts]
                at = max(at, end)
            if at < stop:
                found.append(segment._replace(start=at, stop=stop))
        return found


def _not_rendered(fields: Sequence[str], messages: Sequence[Message], index: int, key: str) -> str:
    name = fields[0] if len(fields) == 1 else " + ".join(fields)
    return (
        f"the chat template does not write the {key} of '{name}[{index}]' ({messages[index]['role']}): wanted a "
        'template that does ("chat_template" in "input"); "not_rendered": "keep" in "input" takes the rest'
    )


def _unlike_rule(rendered: RenderedChat) -> Iterator[str]:
    """What `{% generation %}` marks leave out of turns, or take in, by the rule: a name for each turn."""
    text = rendered.text
    for turn in rendered.turns:
        if turn.spans and turn.rule:
            if text[turn.spans[-1][1] : turn.rule[-1][1]].strip():
                yield "marks_without_end"
            if text[turn.spans[0][0] : turn.rule[0][0]].strip():
                yield "marks_with_header"


def _without_nulls_in_calls(message: Message) -> Message:
    calls = message.get("tool_calls")
    return message if calls is None else {**message, "tool_calls": without_nulls(calls)}


def _moved(segment: Segment, cut: int) -> Segment:
    if segment[:2] == WHOLE:
        return segment
    return segment._replace(start=max(segment.start - cut, 0), stop=max(segment.stop - cut, 0))
