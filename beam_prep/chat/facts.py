"""The constants of a template that `turns.py` asks for, found by rendering probe conversations."""

import itertools
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from beam_prep.chat.messages import Message, call, result
from beam_prep.chat.renderer import Renderer
from beam_prep.chat.trace import Trace, constants, places
from beam_prep.chat.turns import RAISED, Facts, Refused, Turns, header_of

Probe = tuple[list[Message], Trace]
"""A probe conversation that the template takes, and its rendering."""


def facts_of(renderer: Renderer) -> Facts:
    """The facts of a template with these variables."""
    facts = Facts(renderer.tokens)
    eos = renderer.special_tokens.get("eos_token", "")
    probes = list(_rendered(renderer))
    if probes:
        facts.disordered = _is_disordered(*probes[0])
    facts.openings = frozenset(_openings(renderer, probes)) - {eos}
    facts.prompts = list(dict.fromkeys(_prompts(renderer, probes)))
    facts.left_out.update(_openings_of_reasoning(facts, probes))
    around = _around(probes)
    if not facts.prompts:
        around = _without_always(facts, around, eos)
        facts.headers = _headers(facts, around) - {eos}
    facts.closers = frozenset(_closers(facts, around))
    facts.end_in_history = facts.first_run(around.behind[0]) if around.behind else ""
    facts.plain_end = facts.first_run(around.said[0].removesuffix(facts.always)) if around.said else None
    if end := _end_behind_words(facts, around):
        facts.plain_end = facts.end_in_history = end
        facts.has_parts = True
    for messages, rendering in probes:
        Turns(renderer, facts, rendering, messages).all()
    facts.learning = False
    return facts


def _rendered(renderer: Renderer) -> Iterator[Probe]:
    for messages in PROBES:
        try:
            formed, _ = renderer.formed(messages)
            yield [*formed], renderer.run(formed)
        except RAISED:
            continue  # the template does not take it


def _is_disordered(messages: list[Message], rendering: Trace) -> bool:
    found = places(rendering, range(len(messages)))
    begins = [place.begin for _, place in sorted(found.items()) if not place.silent]
    return begins != sorted(begins)


def _openings(renderer: Renderer, probes: list[Probe]) -> Iterator[str]:
    """BOS, and the first other token of each rendering."""
    bos, tokens = renderer.special_tokens.get("bos_token", ""), renderer.tokens
    yield bos
    for messages, rendering in probes:
        begin = tokens.only_special.match(rendering.text)
        if begin and messages[0]["role"] != "assistant":  # an assistant's header is the prompt
            yield from [token for token in tokens.special.findall(begin[0]) if token != bos][:1]


def _prompts(renderer: Renderer, probes: list[Probe]) -> Iterator[str]:
    """The generation prompts before answers."""
    for messages, _ in probes:
        for index, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            try:
                header = header_of(renderer, messages[:index])
            except (*RAISED, Refused):
                continue
            if header.prompted and header.text:
                yield header.text[header.closing :]


def _openings_of_reasoning(facts: Facts, probes: list[Probe]) -> Iterator[str]:
    """Prompts that stand between another prompt and reasoning (Gemma 4 behind a tool's result)."""
    for (_, rendering), one, other in itertools.product(probes, facts.prompts, facts.prompts):
        thoughts = [each.begin for each in rendering.segments if "reasoning" in each.keys]
        if any(rendering.text.endswith(one + other, 0, begin) for begin in thoughts):
            yield "".join(other.split())


class _Around(NamedTuple):
    """The template's own texts around plain answers.

    Attributes:
        before, behind: those of answers that a question follows.
        own: what of `behind` is written before the loop comes to the question.
        last: behind the last messages.
        said: all text behind the first text of last messages: some templates repeat the message behind its end.
    """

    before: list[str]
    behind: list[str]
    own: list[str]
    last: list[str]
    said: list[str]


def _around(probes: list[Probe]) -> _Around:
    around = _Around([], [], [], [], [])
    for messages, rendering in probes:
        found = places(rendering, range(len(messages)))
        for index, message in enumerate(messages):
            place, following = found.get(index), found.get(index + 1)
            if message["role"] != "assistant" or "tool_calls" in message or place is None:
                continue
            tail = "".join(constants(rendering, place.end, following.begin if following else place.before))
            if index == len(messages) - 1:
                around.last.append(tail)
                texts = (each.end for each in rendering.segments if each.index == index and each.begin >= place.begin)
                around.said.append(rendering.text[next(texts, place.end) :])
            elif messages[index + 1]["role"] == "user":
                around.before.append(rendering.text[place.after : place.begin])
                around.behind.append(tail)
                around.own.append(rendering.text[place.end : rendering.next_mark(index, place.end)[0]])
    return around


def _without_always(facts: Facts, around: _Around, eos: str) -> _Around:
    """Finds a prompt that is always written (CodeGeeX4), and takes it off the texts behind last answers."""
    rest = around.last[0].removeprefix(around.own[0]) if around.last and around.own else ""
    is_prompt = rest.strip() not in ("", eos)  # EOS ends another turn that the template writes there
    if is_prompt and all(each.rstrip().endswith(rest.strip()) for each in around.before):
        facts.always = rest
    return around._replace(last=[tail.removesuffix(facts.always) for tail in around.last])


def _headers(facts: Facts, around: _Around) -> frozenset[str]:
    """Tokens that stand before each answer, and never behind one."""
    special = facts.tokens.special
    before = [frozenset(special.findall(each)) for each in around.before]
    ends = [token[0] for token in map(special.search, around.last) if token]  # a prompt may follow it
    behind = special.findall(" ".join(around.behind))
    return frozenset.intersection(*before).difference(ends, behind) if before else frozenset()


def _closers(facts: Facts, around: _Around) -> Iterator[str]:
    """Tokens behind answers that end turns, though they stand in a prompt, or begin a rendering.

    A token in a prompt ends a turn if another token follows it there, or if it also stands behind each last answer;
    one that stands in no prompt, if both is so.
    """
    special = facts.tokens.special
    starts = [(tail, token.start()) for tail in around.last if (token := special.search(tail))]
    is_known = bool(starts) and not any(_may_end_later(facts, *each) for each in starts)
    for tail in around.behind:
        token = special.search(tail)
        begin = token.start() if token else 0
        while token:
            earlier, at = tail[begin : token.start()], token.end()
            prompts = [prompt for prompt in facts.prompts if token[0] in prompt]
            rests = [prompt.partition(token[0])[2].lstrip() for prompt in prompts] or [tail[at:].lstrip()]
            # Before words, the token begins a header.
            is_followed = any(map(special.match, rests))
            is_last = is_known and all(each.startswith(earlier + token[0], start) for each, start in starts)
            # Behind another token, and directly before a third one, it may begin a header all the same.
            is_between = bool(earlier) and special.match(tail, at) is not None
            is_known_end = is_last and is_followed and not is_between
            if is_known_end or (prompts and not earlier and (is_last or is_followed)):
                yield token[0]
            token = special.match(tail, at)


def _end_behind_words(facts: Facts, around: _Around) -> str:
    """The last token behind all answers, if words and a token that closes several parts stand before it; otherwise "".

    This is Kimi K3's. Behind a token that stands there once, the template may say something that the model does not.
    """
    text, *others = {each.rstrip() for each in (*around.own, *around.last)} or {""}
    *parts, end = facts.tokens.special.findall(text) or [""]
    is_turn = not facts.openings.isdisjoint((*parts, end))  # the template writes another turn there
    closes_parts = bool(parts) and parts[0] in parts[1:] and end not in parts
    is_end = closes_parts and text.endswith(end) and not (others or is_turn)
    return end if is_end and re.search(r"\w", facts.tokens.special.sub("", text)) else ""


def _may_end_later(facts: Facts, tail: str, at: int) -> bool:
    """Whether another special token stands among the tags behind the first one: that may be the end."""
    run, tags = facts.tokens.only_special.match(tail, at), facts.tokens.only_tags.match(tail, at)
    return bool(run and tags and facts.tokens.special.search(tail, run.end(), tags.end()))


# Probes


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


def _answer(text: str, *calls: dict[str, Any], **more: Any) -> Message:
    return {"role": "assistant", "content": text, **more, **({"tool_calls": [*calls]} if calls else {})}


def _probes() -> Iterator[list[Message]]:
    look, add = call("look_up", {"word": "Harbour"}), call("add_up", {"one": "Three", "two": "Five"}, 1)
    thought = {"reasoning_content": "Thinking about that."}
    found, sum_ = result("look_up", "It was found."), result("add_up", "It is eight.", 1)
    system = {"role": "system", "content": "Speak in brief."}
    asked, again, finally_ = _user("What is that thing?"), _user("Why is it there?"), _user("Who brought it?")
    plain, other, last = _answer("Surely a boat."), _answer("For the fish."), _answer("Nobody knows.")
    yield [asked, plain, again, other, finally_, last]
    yield [system, asked, plain, again, other]
    for head in ([asked], [system, asked], [asked, plain, again]):
        for words in ("", "Let me see that."):
            yield [*head, _answer(words, look), found, other, finally_, last]
            yield [*head, _answer(words, look), found, _answer(words, look), found, other]
            yield [*head, _answer(words, look, add), found, sum_, other]
            yield [*head, _answer(words, look, **thought), found, _answer(words, look, **thought), found]
            yield [*head, _answer(words, look, **thought), found, {**other, **thought}, finally_, {**last, **thought}]
            yield [*head, _answer(words, look, add, **thought), found, sum_, {**other, **thought}]
        yield [*head, {**plain, **thought}, finally_, {**last, **thought}]
        yield [*head, _answer("<think>\nThinking of it.\n</think>\n\nA boat."), finally_, last]
    yield [asked, plain, other]
    yield [system, plain]
    yield [plain]


PROBES = tuple(_probes())
"""Conversations that a template is probed with."""
