"""Renders the conversations that the records of a block give to one output, one or more pieces each.

With `TurnsApart`, a conversation gives a piece for each trained turn of the assistant: the messages up to this turn,
rendered as at inference, with only this turn trained. With `auto`, a turn joins the piece of the previous turn if the
rendering up to it begins with that piece's text. Text behind the last trained turn is in no piece. tinker-cookbook,
torchtitan and Fireworks train reasoning models in this way, because templates drop the reasoning of the history.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain, pairwise
from typing import Any, NamedTuple

from beam_prep.chat.chat_format import ChatFormat
from beam_prep.chat.checks import check_messages, checked, variables_of
from beam_prep.chat.messages import Message, inline_reasoning, is_optional
from beam_prep.chat.origins import REASONING_FIELDS
from beam_prep.chat.renderer import Tokens
from beam_prep.chat.trace import SourceSpan
from beam_prep.chat.turns import RenderedChat
from beam_prep.data.block import Reject
from beam_prep.data.rendered import BY_ROLE, MASK, TRAIN, UNSET, WHOLE, Codes, Piece, Segment, weight_code
from beam_prep.data.schema import PART_KINDS, MaskOptions, Output, Section, TurnsApart
from beam_prep.hints import nearest
from beam_prep.reading.adapters import CALLS, ROLES
from beam_prep.reading.records import Record

DIFFERENT = "conversations_different"
"""Compared conversations whose text or turns differ from transformers'."""


class _Chat(NamedTuple):
    """A conversation of a record.

    Attributes:
        messages, variables: the input of the template.
        actions, roles: of each message; roles as codes.
        answer: the first message behind the prompt; None: the conversation has no prompt and answer.
    """

    messages: list[Message]
    variables: dict[str, Any]
    actions: Sequence[str]
    roles: list[int]
    answer: int | None


class Conversations:
    """Renders the conversations of one output.

    Args:
        output: an output whose sections are a conversation.
        chat_format: one with a template.
        roles, weights: codes of roles and of weights of messages; new ones are added.

    Attributes:
        counted: counters of the last record: see `Rendered.counters`.
        compares: True: the record is compared with transformers' own rendering.
        made: numbers of compared and of different conversations.
        reasons: (reason, message) -> the code of refused segments.
    """

    def __init__(self, output: Output, chat_format: ChatFormat, roles: Codes[str], weights: Codes[float]) -> None:
        assert chat_format.template is not None
        self._output, self._chat_format, self._template = output, chat_format, chat_format.template
        self._roles, self._weights = roles, weights
        self._fields = " + ".join(section.field for section in output.sections)
        self.counted: Counter[str] = Counter()
        self.made: Counter[str] = Counter()
        self.compares = False
        self.reasons: Codes[tuple[str, str]] = {}

    def begin(self, compares: bool) -> None:
        """Begins the next record."""
        self.compares = compares
        self.counted.clear()

    def pieces(self, record: Record) -> list[Piece]:
        """The messages of all sections, rendered once, or a piece for each turn; [] without messages.

        Raises:
            Reject: see `check_messages` and `ChatTemplate.render`; `not_rendered`: the template does not write a
                content or a call; `last_not_assistant`, `no_prompt`, `no_answer`: no prompt and answer.
        """
        chat = self._chat(record)
        if chat is None:
            return []
        rule = self._chat_format.rules.turns
        trained = [] if rule is None else self._trained(chat, rule)
        if rule is None or not trained:
            return [self._together(self._without_history_reasoning(chat))]
        return [*self._apart(chat, trained, rule.auto)]

    def _together(self, chat: _Chat) -> Piece:
        rendered = self._rendered(chat)
        prompt_end = -2
        if chat.answer is not None:
            prompt = self._template.text(chat.messages[: chat.answer], True, **chat.variables)
            prompt_end = len(prompt) if rendered.text.startswith(prompt) else -1
        text, cut, special = self._chat_format.cut_bos(checked(rendered.text))
        segments = self._segments(rendered, chat, prompt_end, cut)
        return Piece(text, special, segments, None, max(prompt_end - cut, min(prompt_end, 0)), chat.roles)

    def _trained(self, chat: _Chat, rule: TurnsApart) -> list[int]:
        """The trained messages, as `RoleMask` chooses them from the whole conversation."""
        last = {message["role"]: place for place, message in enumerate(chat.messages)}
        trained = []
        for place, message in enumerate(chat.messages):
            own = weight_code(self._weights, message)
            of_role = rule.roles.get(message["role"], rule.default)
            by_role = of_role == "train" or (of_role == "last" and last[message["role"]] == place)
            if own > 0 or (own == UNSET and by_role):
                trained.append(place)
        return trained

    def _apart(self, chat: _Chat, trained: Sequence[int], auto: bool) -> Iterator[Piece]:
        """Pieces that end with a trained turn of the assistant; the last one includes trained messages behind it."""
        ends = [place for place in trained if chat.messages[place]["role"] == "assistant" or place == trained[-1]]
        first, begin = 0, ""
        made: tuple[RenderedChat, _Chat, int] | None = None  # with the first message that it trains
        for end in ends:
            part = _Chat(chat.messages[: end + 1], chat.variables, chat.actions, chat.roles, None)
            part = self._without_history_reasoning(part)
            rendered = self._rendered(part, first)
            if made is not None and auto and rendered.text.startswith(begin) and _keeps_spans(made[0], rendered):
                since = made[2]  # its turns are told again: the end of one may be written with the next
            else:
                if made is not None:
                    yield self._piece(*made, chat, trained)
                since = first
            made, first = (rendered, part, since), end + 1
            spans = rendered.turns[-1].spans
            begin = rendered.text[: spans[-1][1]] if spans else rendered.text
        assert made is not None
        yield self._piece(*made, chat, trained)

    def _piece(self, rendered: RenderedChat, part: _Chat, first: int, whole: _Chat, trained: Sequence[int]) -> Piece:
        """The piece for the messages of a part from `first` on; earlier messages are only in its text."""
        if len(part.messages) < len(whole.messages):
            rendered = self._ended(rendered, whole.messages[: len(part.messages) + 1], whole.variables)
        text, cut, special = self._chat_format.cut_bos(checked(rendered.text))
        rendered = rendered._replace(turns=[turn for turn in rendered.turns if turn.message >= first])
        # The last message of a role in this piece may not be the last of the conversation: `trained` decides.
        segments = [
            each._replace(action=TRAIN if each.turn in trained else MASK)
            for each in self._segments(rendered, part, -2, cut)
        ]
        return Piece(text, special, segments, roles=part.roles[first : len(part.messages)])

    def _ended(self, rendered: RenderedChat, messages: list[Message], variables: dict[str, Any]) -> RenderedChat:
        """The rendering with the end token of its last turn, if the template writes it only before the next message.

        A token of the next header may be the end (GLM), and the rest of the turn may differ: it is then history.

        Args:
            rendered: of all messages but the last.
            messages, variables: the input of the template.
        """
        *earlier, turn = rendered.turns
        if rendered.marked or not turn.spans:
            return rendered
        *others, (start, until) = turn.spans
        tokens, text = self._template.tokens, rendered.text[:until]
        if text.endswith(tokens.texts):
            return rendered
        try:
            longer = self._render(messages, variables)
        except Reject:
            return rendered  # the template takes no such message there
        begin, stop = next(reversed(longer.turns[turn.message].spans), (0, 0))
        own = [each for each in longer.said if each.index == turn.message]
        end_begins = _end(longer.text, begin, stop, own, tokens)
        end = longer.text[end_begins:stop]
        if not end:
            return rendered
        text += end
        spans = *others, (start, len(text))
        return rendered._replace(text=text, turns=[*earlier, turn._replace(spans=spans)])

    def _chat(self, record: Record) -> _Chat | None:
        rules, sections, roles = self._chat_format.rules, self._output.sections, self._roles
        guard, weighted = self._chat_format.guard, self._output.weights_name is not None
        lists = [
            guard.messages(check_messages(record.get(each.field), each.field, weighted), each.field)
            for each in sections
        ]
        messages = [*chain.from_iterable(lists)]
        if not messages:
            return None
        own = {name: guard(value, name) for name, value in variables_of(record).items()}
        variables = {**(rules.template_variables or {}), **own}
        actions = [section.action for section, given in zip(sections, lists, strict=True) for _ in given]
        codes = [roles.setdefault(message["role"], len(roles)) for message in messages]
        return _Chat(messages, variables, actions, codes, _answer_of(sections, messages, actions))

    def _without_history_reasoning(self, chat: _Chat) -> _Chat:
        """The conversation of a row, with `drop_history` without the reasoning of messages before the last question."""
        options = self._chat_format.rules.mask_options
        if options is None or options.reasoning != "drop_history":
            return chat
        last = max((place for place, message in enumerate(chat.messages) if message["role"] == "user"), default=0)
        messages, dropped = [], 0
        for place, message in enumerate(chat.messages):
            inline, rest = inline_reasoning(message)
            if place < last and (inline or any(map(message.get, REASONING_FIELDS))):
                message = {key: value for key, value in message.items() if key not in REASONING_FIELDS}
                message |= {"content": rest} if inline else {}
                dropped += 1
            messages.append(message)
        if dropped:
            self.counted["reasoning_dropped"] = dropped  # the last of several rows has most of the history
        return chat._replace(messages=messages)

    def _rendered(self, chat: _Chat, first: int = 0) -> RenderedChat:
        """A rendered conversation. Counted, or rejected, are the messages from `first` on: earlier ones are done."""
        replays, fields = self._chat_format.rules.mask_options is None, self._fields
        try:
            rendered = self._render(chat.messages, chat.variables, replays)
            if self.compares:
                rendered = self._compared(rendered, chat)
            self._chat_format.guard.check_seams(rendered.text, rendered.said, fields)
        except Reject as reject:
            raise Reject(reject.reason, f"field {fields!r}{_lack(chat, reject.message)}: {reject.message}") from None
        texts = set[int]()
        for lost in rendered.not_rendered:
            index, key = lost
            if first and index < first:  # tools come before all messages
                continue
            inline, rest = inline_reasoning(chat.messages[index]) if key == "content" else ("", "")
            if inline and not rest.strip():
                continue  # `_count` counts it
            if is_optional(lost):
                self._count_lost(key, index == len(chat.messages) - 1)
            elif self._chat_format.rules.not_rendered == "keep":
                texts.add(index)
            else:
                role = chat.messages[index]["role"]
                raise Reject(
                    "not_rendered",
                    f"the chat template does not write the {key} of '{fields}[{index}]' ({role}): wanted a template "
                    f'that does ("chat_template" in "input"){self._instead(role, fields)}',
                )
        self._count(rendered, chat.messages, first)
        if texts:
            self.counted["texts_not_written"] += len(texts)
        for name, count in (*rendered.changed.items(), ("reasoning_written", rendered.reasoned)):
            if count:
                self.counted[name] = max(self.counted[name], count)  # the largest count of several rows
        return rendered

    def _render(self, messages: list[Message], variables: dict[str, Any], replays: bool = False) -> RenderedChat:
        if self._chat_format.plain:
            return self._template.render_plainly(messages, **variables)
        return self._template.render(messages, replays, **variables)

    def _instead(self, role: str, fields: str) -> str:
        name = role.lower().replace("-", "_")
        usual = {"developer": "system", "chatbot": "assistant", **ROLES, "function": role}
        known = usual.get(name) or nearest(name, ROLES.values()) or "user"
        if name in CALLS:
            return ", or its call in `tool_calls` of the assistant's message"
        if role == known or len(self._output.sections) > 1:
            return '; "not_rendered": "keep" in "input" keeps the rest of the record'
        adapter = json.dumps({"name": "sharegpt", "field": fields, "roles": {role: known}})
        return f', or "adapter": {adapter} in "input", which renames the role: the section reads "messages" then'

    def _compared(self, rendered: RenderedChat, chat: _Chat) -> RenderedChat:
        """Compares a conversation with transformers' own rendering, and what is replayed with our own."""
        self.made["conversations_compared"] += 1
        if rendered.replayed:
            replayed, rendered = rendered, self._template.render(chat.messages, **chat.variables)
            self.made[DIFFERENT] += replayed[:2] != rendered[:2]
        self.made[DIFFERENT] += self._template.differs(rendered, chat.messages, **chat.variables)
        return rendered

    def _count(self, rendered: RenderedChat, messages: Sequence[Message], first: int) -> None:
        """Counts turns whose marks leave out their end, or include their header; and reasoning within contents."""
        for index, message in enumerate(messages[first:], first):
            inline = inline_reasoning(message)[0].strip()
            words = inline.removeprefix("<think>").removesuffix("</think>").strip()
            if words and words in rendered.text:
                self.counted["reasoning_written"] += 1
            elif words:
                self._count_lost("reasoning", index == len(messages) - 1)
        for turn in rendered.turns if rendered.marked else ():
            if turn.message >= first and turn.spans and turn.rule:
                if rendered.text[turn.spans[-1][1] : turn.rule[-1][1]].strip():
                    self.counted["marks_without_end"] += 1
                if rendered.text[turn.spans[0][0] : turn.rule[0][0]].strip():
                    self.counted["marks_with_header"] += 1

    def _count_lost(self, key: str, is_last: bool) -> None:
        self.counted[f"{key}_not_written"] += 1
        if is_last:  # no row of its own would have it
            self.counted[f"last_{key}_not_written"] += 1

    # Segments

    def _segments(self, rendered: RenderedChat, chat: _Chat, prompt_end: int, cut: int) -> list[Segment]:
        """The segments that can be trained. `cut`: characters that are cut off the text's beginning."""
        answer = None if chat.answer is None else self._answer(rendered, chat, chat.answer, prompt_end)
        segments: Sequence[Segment] = [*self._trainable(rendered, chat, answer)]
        if self._chat_format.rules.mask_options is not None:
            segments = [*self._of_kinds(segments, rendered, chat, answer)]
        if not cut:
            return [*segments]
        moved = []
        for each in segments:
            if each[:2] != WHOLE:
                each = each._replace(start=max(each.start - cut, 0), stop=max(each.stop - cut, 0))
            moved.append(each)
        return moved

    def _refused(self, reason: tuple[str, str]) -> int:
        """The code of a refused segment."""
        return self.reasons.setdefault(reason, len(self.reasons) + 1)

    def _answer(self, rendered: RenderedChat, chat: _Chat, first: int, prompt_end: int) -> Segment:
        """Everything behind the prompt: from the begin of the first turn behind it to the end of the last turn."""
        turns, text, last = rendered.turns, rendered.text, len(chat.messages) - 1
        own = weight_code(self._weights, chat.messages[last])
        answer = Segment(0, 0, TRAIN, chat.roles[last], last, own if own > 1 else UNSET)
        reason = turns[first].reason or turns[last].reason
        if reason:
            return answer._replace(refused=self._refused(reason))
        start = next((begin for turn in turns[first:] for begin, _ in turn.spans), len(text))
        if prompt_end >= 0:
            is_answer = chat.messages[first]["role"] == "assistant"
            if rendered.marked and is_answer:
                start = max(start, prompt_end)
            elif not is_answer or not text[prompt_end:start].strip():
                start = prompt_end
        ends = [end for _, end in (*turns[last].spans, *turns[last].rule)]
        stop = max([start, *ends])
        return answer._replace(start=start, stop=stop if text[stop:].strip() else len(text))

    def _trainable(self, rendered: RenderedChat, chat: _Chat, answer: Segment | None) -> Iterator[Segment]:
        """The spans of each message, the answer, or the entire piece."""
        own = [weight_code(self._weights, message) for message in chat.messages]
        behind = own[chat.answer :] if answer is not None else []
        # True if some messages behind the prompt are not trained, or have different weights.
        apart = 0 in behind or (len(behind) > 1 and max(behind) > 1)
        if answer is not None and not apart:
            yield answer
        if {*chat.actions} == {"train"} and {*own} <= {UNSET, 1}:
            yield Segment(*WHOLE, TRAIN)
            return
        for place, spans, reason, _ in rendered.turns:
            after = apart and place >= len(own) - len(behind)
            if chat.actions[place] == "mask" or (answer is not None and own[place] < 1 and not after):
                continue
            action = BY_ROLE if chat.actions[place] == "$role" else TRAIN
            refused = 0 if reason is None else self._refused(reason)
            # A message that is not written has no token, but may still be the last of its role.
            for start, stop in spans or ((0, 0),):
                yield Segment(start, stop, action, chat.roles[place], place, own[place], refused)

    def _of_kinds(
        self, segments: Sequence[Segment], rendered: RenderedChat, chat: _Chat, answer: Segment | None
    ) -> Iterator[Segment]:
        """The segments, split where the kind of their text changes."""
        options, text = self._chat_format.rules.mask_options, rendered.text
        assert options is not None
        prompt = self._template.generation_prompt(**chat.variables)
        own = defaultdict[int, list[SourceSpan]](list)
        for each in rendered.said:
            own[each.index].append(each)
        for segment in segments:
            if segment.refused or segment.start == segment.stop:
                yield segment
                continue
            start, stop = (0, len(text)) if segment[:2] == WHOLE else segment[:2]
            spans = [(segment.turn, start, stop)]
            if segment[:2] == WHOLE or segment is answer:
                turns = rendered.turns[chat.answer or 0 :]
                spans = [(turn.message, max(begin, start), end) for turn in turns for begin, end in turn.spans]
                if spans and not text[spans[-1][2] : stop].strip():
                    spans[-1] = *spans[-1][:2], stop  # the white space behind the last end token
            at = start
            for message, begin, end in spans:
                if at < begin:
                    yield segment._replace(start=at, stop=begin)
                given = chat.messages[message], own[message]
                parts = kinds_of(text, *given, (begin, end), options, prompt, self._template.tokens)
                yield from (segment._replace(start=a, stop=b, kind=kind) for a, b, kind in parts)
                at = max(at, end)
            if at < stop:
                yield segment._replace(start=at, stop=stop)


def _keeps_spans(earlier: RenderedChat, later: RenderedChat) -> bool:
    """Whether a longer rendering trains the same turns: a template may mark only the last answer."""
    return all(new.spans or not old.spans for old, new in zip(earlier.turns, later.turns, strict=False))


def _lack(chat: _Chat, raised: str) -> str:
    """What a conversation lacks, so that a template may fail, in brackets; "" if it lacks nothing."""
    functions = [("a schema of 'tools'", chat.variables.get("tools"))]
    for place, message in enumerate(chat.messages):
        calls = message.get("tool_calls")
        if message.get("content") is None and not calls and not message.get("function_call"):
            has = "a null content" if "content" in message else "no content"
            return f" (message {place} has {has}; its keys: {[*message]})"
        functions.append((f"a call of message {place}", calls))
    if "no attribute" not in raised and "Undefined" not in raised:
        return ""
    for what, given in functions:
        for each in given if isinstance(given, list) else ():
            if isinstance(each, dict) and "function" not in each:
                wanted = '{"type": "function", "function": {...}} for most templates'
                return f" ({what} has the keys {[*each]}, wanted {wanted})"
    return ""


def _answer_of(sections: Sequence[Section], messages: Sequence[Message], actions: Sequence[str]) -> int | None:
    """The first message behind the prompt; None if the conversation has no prompt and answer."""
    if "$last" in actions:
        if messages[-1]["role"] != "assistant":
            role = messages[-1]["role"]
            raise Reject("last_not_assistant", f"the last message is of role {role!r}, wanted 'assistant'")
        first = len(messages) - 1
    elif {"mask", "train"} <= {section.action for section in sections}:
        first = actions.count("mask")
    else:
        return None
    if first == 0:
        raise Reject("no_prompt", "no message comes before the answer, wanted at least one")
    if first == len(messages):
        answers = " or ".join(repr(section.field) for section in sections if section.action == "train")
        raise Reject("no_answer", f"no message of {answers} comes after the prompt, wanted at least one")
    return first


# Kinds of text: reasoning, tool calls, end token, header, and content

CONTENT, REASONING, TOOL_CALLS, GENERATION_PROMPT, EOS = range(len(PART_KINDS))

_INLINE_END = re.compile(r"</think>\n*")
_BLANKS = re.compile(r"\s*")
_WORD = re.compile(r"\w")


def kinds_of(
    text: str,
    message: Message,
    own: Sequence[SourceSpan],
    span: tuple[int, int],
    options: MaskOptions,
    prompt: str,
    tokens: Tokens,
) -> Iterator[tuple[int, int, int]]:
    """A message's span, split into parts: (begin, end, code of its kind, see `PART_KINDS`).

    Constants around the text of reasoning or calls belong to them (`<think>`, `<tool_call>`). Between reasoning and
    calls, the first tag and the blanks behind it belong to the reasoning. Reasoning at the beginning of a content, up
    to `</think>`, is reasoning, too. This follows NeMo Automodel (`mask_reasoning_content`,
    datasets/llm/formatting_utils.py), but on characters, and within the trained text of the message.

    Args:
        text: the conversation.
        message, own: the message, and the spans of its own text, in order.
        span: characters.
        options: the kinds that the config distinguishes.
        prompt: the generation prompt; "" without one.
        tokens: the special tokens.
    """
    start, stop = span
    at, behind = _header(text, prompt, start, tokens) if message["role"] == "assistant" else (start, start)
    begin = max(start, behind)
    end = _end(text, begin, stop, own, tokens)
    # The prompt may hold the first tag of a content.
    written = (each for each in own if each.begin < end and each.end > max(each.begin, begin))
    said = [each._replace(begin=max(each.begin, begin)) for each in written]
    borders = _borders(text, message, said, end, tokens)
    cuts = [(begin, borders[0][1] if borders else CONTENT), *borders[1:], (end, EOS)]
    if begin > start:
        cuts.insert(0, (start, GENERATION_PROMPT if options.generation_prompt == "mask" else CONTENT))
    if options.generation_prompt == "train" and at < start:
        cuts.insert(0, (at, GENERATION_PROMPT))
    places = [*accumulate((min(place, stop) for place, _ in cuts), max), stop]
    for (first, last), (_, kind) in zip(pairwise(places), cuts, strict=True):
        if last > first:
            yield first, last, kind


def _header(text: str, prompt: str, start: int, tokens: Tokens) -> tuple[int, int]:
    """(begin, end) of the generation prompt, or of the part of it that the history has, before or at a span's begin."""
    last = start  # the end of what stands before the blanks: only these may stand between
    while last and text[last - 1].isspace():
        last -= 1
    for size in sorted((token.end() for token in tokens.token.finditer(prompt)), reverse=True):
        part = prompt[:size]
        at = text.rfind(part, max(last - size, 0), start + size)
        is_there = at >= 0 and _WORD.search(part)
        if is_there and (part == prompt or not at < start < at + size):  # a part over the begin may be the model's
            return at, at + size
    return start, start


def _end(text: str, begin: int, stop: int, own: Sequence[SourceSpan], tokens: Tokens) -> int:
    """Where the end tokens at the end of a span begin, with the white space around them."""
    said = max([begin, *(each.end for each in own if each.end <= stop)])
    found = re.compile(rf"(?:\s*{tokens.special.pattern})+\s*\Z").search(text, said, stop)
    return found.start() if found else stop


def _borders(text: str, message: Message, own: Sequence[SourceSpan], end: int, tokens: Tokens) -> list[tuple[int, int]]:
    """(begin of a kind, the kind) of the text before `end`, in order; the first kind begins with the turn."""
    borders: list[tuple[int, int]] = []
    behind = 0  # end of the previous text
    for segment in own:
        kind = REASONING if "reasoning" in segment.keys else CONTENT
        kind = TOOL_CALLS if any(key.startswith("tool_calls") for key in segment.keys) else kind
        last = borders[-1][1] if borders else None
        if last is None or (kind == CONTENT and last != CONTENT):
            borders.append((segment.begin, kind))  # constants beside content belong to the other kind
        elif kind != last:
            tag = tokens.tag.search(text, behind, segment.begin) if last == REASONING else None
            borders.append((_BLANKS.match(text, tag.end()).end() if tag else behind, kind))  # type: ignore[union-attr]
        behind = segment.end
    inline, rest = inline_reasoning(message)
    if inline:
        first = next((each.begin for each in own if each.keys[:1] == ("content",)), end)
        close = _INLINE_END.search(text, first, end)
        thought = text[first : close.start()].strip() if close else rest
        if close and (thought in inline or thought not in rest):  # otherwise the template drops the first one
            # Calls behind it may begin with the blanks behind the tag, or with a tag that the template writes.
            others = [(at if at < first else max(at, close.end()), kind) for at, kind in borders]
            return sorted([*others, (first, REASONING), (close.end(), CONTENT)])
    return borders
