"""Chat templates whose truth is known: each is put together from labelled parts, with what is right to train.

A template is drawn as a list of parts. Each part gives a jinja expression, and, in plain Python, the runs of text that
it writes for a conversation, each with a label. So for every conversation it is known which characters are a message's
own, which are constants of the template, and which are another message's words. `Rendered.right` derives from that,
and from nothing of the library, which masks are right; the runs one behind the other must be what the library renders.

The rule. What is trained of a message is one span: its own text (content, reasoning, tool calls, and the constants
that the template writes around reasoning and calls) and the first end token that follows it, with white space alone
between them, and an EOS token that follows that at once. Where the message's part of the rendering begins with the
whole generation prompt, written as constants, the span of an answer begins behind that, if only constants of the
template that hold no token that begins or ends a turn lie between both. Else it begins with the own text. To refuse is
always allowed, but for templates and conversations that are plain.
"""

import itertools
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar

T = TypeVar("T")
Message = dict[str, Any]
Ranges = tuple[tuple[int, int], ...]


class Choices(Protocol):
    """Where the generator takes its choices from."""

    def choice(self, options: Sequence[T], /) -> T: ...

    def integer(self, low: int, high: int, /) -> int: ...


class Seeded:
    """By a seed."""

    def __init__(self, seed: int | str) -> None:
        self._random = random.Random(seed)

    def choice(self, options: Sequence[T]) -> T:
        return self._random.choice(options)

    def integer(self, low: int, high: int) -> int:
        return self._random.randint(low, high)


def chance(draw: Choices, percent: int) -> bool:
    # The simple case is the low number: hypothesis shrinks to it.
    return draw.integer(0, 99) >= 100 - percent


# Labels of runs

CONST = "const"  # of the template, whatever any message says
HEADER = "header"  # the same, of a header: role names are constants
COND = "by content"  # a constant that is written or not by what some message says
OTHER = "other"  # something that another message says, and that is no message's own text
AGAIN = "again"  # something that the message itself says, again, or its name
OWN = "own"  # what the message says
WRAP = "wrap"  # a constant around reasoning and tool calls
END = "end"  # the end token of a turn
SOFT = "soft end"  # a word, or what ends no answer: may count as an end token
LATE = "late end"  # the end token of the turn before, written at the head of the next
EOS = "eos"  # an EOS token behind the end
AFTER = "eos after all"  # the same, written behind the loop


class Run(NamedTuple):
    text: str
    label: str
    message: int = -1


class Placed(NamedTuple):
    start: int
    stop: int
    label: str
    message: int


@dataclass(frozen=True, slots=True)
class Now:
    """The turn that is written."""

    messages: list[Message]
    i: int
    question: int = -1  # index of the user's message that was written before, -1 without

    @property
    def m(self) -> Message:
        return self.messages[self.i]

    @property
    def last_question(self) -> int:
        return max((at for at, m in enumerate(self.messages) if m["role"] == "user"), default=-1)


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a template.

    Attributes:
        expr: jinja expression, of `m`, `i`, `messages`, `ns`; "" where it is statements.
        run: the runs that it writes.
        statements: jinja statements; "" = the expression is written.
        constant: its text, where it is one.
    """

    expr: str
    run: Callable[[Now], list[Run]]
    statements: str = ""
    constant: str = ""

    @property
    def written(self) -> str:
        return self.statements or "{{ " + self.expr + " }}"


def quote(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n") + "'"


def const(text: str, label: str = CONST) -> Part:
    def run(now: Now) -> list[Run]:
        return [Run(text, label, now.i - (label == LATE))]

    return Part(quote(text), run, constant=text)


def consts(*texts: str, label: str = CONST) -> list[Part]:
    return [const(text, label) for text in texts if text]


SPEAKERS = {"user": "human", "assistant": "gpt"}
ROLE_FORMS: dict[str, tuple[str, Callable[[str], str]]] = {
    "as is": ("m.role", lambda role: role),
    "upper": ("m.role.upper()", str.upper),
    "model": ("('model' if m.role == 'assistant' else m.role)", lambda r: "model" if r == "assistant" else r),
    "gpt": ("{'user': 'human', 'assistant': 'gpt'}.get(m.role, m.role)", lambda role: SPEAKERS.get(role, role)),
    "alpaca": (
        "('Response' if m.role == 'assistant' else 'Instruction')",
        lambda r: "Response" if r == "assistant" else "Instruction",
    ),
}


def role(form: str) -> Part:
    expr, shown = ROLE_FORMS[form]
    return Part(f"({expr})", lambda now: [Run(shown(now.m["role"]), HEADER)])


def _text(message: Message) -> str:
    return message.get("content") or ""


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


SOURCES: dict[str, tuple[str, Callable[[Now], str]]] = {
    "own": ("(m.content or '')", lambda now: _text(now.m)),
    "before": ("((messages[i - 1].content or '') if i > 0 else '')", lambda n: _text(n.messages[n.i - 1]) * (n.i > 0)),
    "first": ("(messages[0].content or '')", lambda now: _text(now.messages[0])),
    "final": ("(messages[-1].content or '')", lambda now: _text(now.messages[-1])),
    "next": (
        "((messages[i + 1].content or '') if i + 1 < messages | length else '')",
        lambda now: _text(now.messages[now.i + 1]) if now.i + 1 < len(now.messages) else "",
    ),
    "question": ("ns.q", lambda now: _text(now.messages[now.question]) if now.question >= 0 else ""),
    "name": (
        "(('name=' ~ m.name ~ '\\n') if m.name else '')",
        lambda now: f"name={now.m['name']}\n" if "name" in now.m else "",
    ),
    "own message": ("(m | tojson)", lambda now: _json(now.m)),
    "message before": (
        "((messages[i - 1] | tojson) if i > 0 else '')",
        lambda now: _json(now.messages[now.i - 1]) if now.i > 0 else "",
    ),
}
FORMS: dict[str, tuple[str, Callable[[str], str]]] = {
    "as is": ("{}", lambda x: x),
    "trim": ("({} | trim)", str.strip),
    "strip": ("{}.strip()", str.strip),
    "rstrip": ("{}.rstrip()", str.rstrip),
    "lstrip": ("{}.lstrip()", str.lstrip),
    "upper": ("({} | upper)", str.upper),
    "first 8": ("{}[:8]", lambda x: x[:8]),
    "last 6": ("{}[-6:]", lambda x: x[-6:]),
    "first word": ("{}.split(' ')[0]", lambda x: x.split(" ")[0]),
    "reversed": ("{}[::-1]", lambda x: x[::-1]),
    "replaced": ("({} | replace('a', '4'))", lambda x: x.replace("a", "4")),
    "length": ("({} | length | string)", lambda x: str(len(x))),
    "json": ("({} | tojson)", _json),
    "doubled": ("({} * 2)", lambda x: x * 2),
}


def echo(source: str, form: str, bare: bool = False) -> Part:
    """What some message says, in some form, where it is not the message's own text; `bare`: as most templates do."""
    expr, say = SOURCES[source]
    pattern, change = FORMS[form]

    def run(now: Now) -> list[Run]:
        said, text = say(now), change(say(now))
        # Where there is no such message, the text is the same whatever any message says.
        there = {"before": now.i > 0, "message before": now.i > 0, "question": now.question >= 0}
        if not there.get(source, now.i + 1 < len(now.messages) or source != "next"):
            return [Run(text, CONST)]
        if form == "length" or not said:  # a number, or a constant, by what it says
            return [Run(text, COND)]
        mine = {"first": now.i == 0, "final": now.i + 1 == len(now.messages)}
        is_mine = mine.get(source, source in ("own", "name", "own message"))
        return [Run(text, AGAIN if is_mine else OTHER, now.i)]

    return Part(pattern.format(expr.replace(" or ''", "") if bare else expr), run)


CONDITIONS: dict[str, tuple[str, Callable[[Now], bool]]] = {
    "x in own": ("'x' in (m.content or '')", lambda now: "x" in _text(now.m)),
    "e in first": ("'e' in (messages[0].content or '')", lambda now: "e" in _text(now.messages[0])),
    "final is long": ("(messages[-1].content or '') | length > 9", lambda now: len(_text(now.messages[-1])) > 9),
    "before asks": (
        "(i > 0 and '?' in (messages[i - 1].content or ''))",
        lambda now: now.i > 0 and "?" in _text(now.messages[now.i - 1]),
    ),
    "own is blank": ("(m.content or '') | trim == ''", lambda now: not _text(now.m).strip()),
}
PLACES: dict[str, tuple[str, Callable[[Now], bool]]] = {
    "last": ("i == messages | length - 1", lambda now: now.i == len(now.messages) - 1),
    "not last": ("i < messages | length - 1", lambda now: now.i < len(now.messages) - 1),
    "not first": ("i > 0", lambda now: now.i > 0),
    "first": ("i == 0", lambda now: now.i == 0),
    "odd": ("i % 2 == 1", lambda now: now.i % 2 == 1),
}


def by_content(condition: str, one: str, other: str) -> Part:
    expr, holds = CONDITIONS[condition]

    def run(now: Now) -> list[Run]:
        # The first message has none before it: nothing is asked.
        label = CONST if condition == "before asks" and now.i == 0 else COND
        return [Run(one if holds(now) else other, label, now.i)]

    return Part(f"({quote(one)} if {expr} else {quote(other)})", run)


def by_place(place: str, part: Part) -> Part:
    """A part that is written or not by where the turn stands."""
    expr, holds = PLACES[place]
    inner = f"({part.expr} if {expr} else '')" if part.expr else ""
    statements = f"{{% if {expr} %}}{part.written}{{% endif %}}"
    return Part(inner, lambda now: part.run(now) if holds(now) else [], statements)


def trimmed(parts: Sequence[Part]) -> Part:
    """Parts put together, and trimmed as one text."""
    joined = " ~ ".join(part.expr for part in parts)
    return Part(f"(({joined}) | trim)", lambda now: _trim([run for part in parts for run in part.run(now)]))


def _trim(runs: list[Run]) -> list[Run]:
    for step in (1, -1):
        for at in range(len(runs))[::step]:
            text = runs[at].text.lstrip() if step > 0 else runs[at].text.rstrip()
            runs[at] = runs[at]._replace(text=text)
            if text:
                break
    return runs


# What a message says


def own(form: str, guarded: bool = False) -> Part:
    """The content."""
    pattern, change = FORMS[form]
    expr = pattern.format(SOURCES["own"][0] if guarded else "m.content")
    return Part(expr, lambda now: [Run(change(_text(now.m)), OWN, now.i)])


def reasoning(opening: str, closing: str, when: str, form: str) -> Part:
    """The field of reasoning between constants, or nothing.

    Args:
        opening, closing: the constants.
        when: "always" (where there is some), "after the last question", "then even if empty".
        form: how the text is trimmed.
    """
    pattern, change = FORMS[form]
    there = {"always": "m.reasoning_content", "after the last question": "m.reasoning_content and i > ns.last"}
    condition = there.get(when, "i > ns.last")
    text = pattern.format("(m.reasoning_content or '')")

    def run(now: Now) -> list[Run]:
        said = now.m.get("reasoning_content") or ""
        if not (said or when == "then even if empty") or (when != "always" and now.i <= now.last_question):
            return []
        return [Run(opening, WRAP, now.i), Run(change(said), OWN, now.i), Run(closing, WRAP, now.i)]

    expr = f"({quote(opening)} ~ {text} ~ {quote(closing)} if {condition} else '')"
    written = f"{{% if {condition} %}}{{{{ {quote(opening)} + {text} + {quote(closing)} }}}}{{% endif %}}"
    return Part(expr, run, written)


def split_content(opening: str, closing: str, old: str) -> Part:
    """A content with reasoning in it, written apart: the reasoning is kept, or dropped in old turns, or always."""
    think = "m.content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n')"
    rest = "m.content.split('</think>')[-1].lstrip('\\n')"
    kept = {"kept": "true", "dropped": "i > ns.last", "never": "false"}[old]
    written = (
        f"{{% if '</think>' in m.content %}}{{% if {kept} %}}{{{{ {quote(opening)} + {think} + {quote(closing)} }}}}"
        f"{{% endif %}}{{{{ {rest} }}}}{{% else %}}{{{{ m.content }}}}{{% endif %}}"
    )

    def run(now: Now) -> list[Run]:
        content = _text(now.m)
        if "</think>" not in content:
            return [Run(content, OWN, now.i)]
        inner = content.split("</think>")[0].rstrip("\n").split("<think>")[-1].lstrip("\n")
        shown = old == "kept" or (old == "dropped" and now.i > now.last_question)
        runs = [Run(opening, WRAP, now.i), Run(inner, OWN, now.i), Run(closing, WRAP, now.i)] if shown else []
        return [*runs, Run(content.split("</think>")[-1].lstrip("\n"), OWN, now.i)]

    return Part("", run, written)


CALLS: dict[str, tuple[str, Callable[[str, Any], str]]] = {
    "json": ("{{ c.function | tojson }}", lambda name, arguments: _json({"name": name, "arguments": arguments})),
    "arguments": (
        "{{ c.function.name + ' ' }}{{ c.function.arguments | tojson }}",
        lambda name, arguments: f"{name} {_json(arguments)}",
    ),
    "loop": (
        "{{ c.function.name }}{% for k, v in c.function.arguments.items() %}"
        "{{ '\\n<' ~ k ~ '>' ~ (v | tojson) }}{% endfor %}",
        lambda name, arguments: name + "".join(f"\n<{key}>{_json(value)}" for key, value in arguments.items()),
    ),
    "text": ("{{ c.function.name + ' ' + c.function.arguments }}", lambda name, arguments: f"{name} {arguments}"),
}


def calls(opening: str, closing: str, form: str) -> Part:
    """The tool calls, each between constants."""
    inside, shown = CALLS[form]
    each = f"{{{{ {quote(opening)} }}}}{inside}{{{{ {quote(closing)} }}}}"

    def run(now: Now) -> list[Run]:
        runs = []
        for call in now.m.get("tool_calls") or []:
            text = shown(call["function"]["name"], call["function"]["arguments"])
            runs += [Run(opening, WRAP, now.i), Run(text, OWN, now.i), Run(closing, WRAP, now.i)]
        return runs

    return Part("", run, "{% for c in m.tool_calls or [] %}" + each + "{% endfor %}")


# A template

LOOPS = {
    "for": "EACHTURN{% endfor %}",
    "index": "{% for i in range(messages | length) %}{% set m = messages[i] %}TURN{% endfor %}",
    "macro": "{% macro turn(m, i, ns) %}TURN{% endmacro %}"
    "{% for m in messages %}{{ turn(m, loop.index0, ns) }}{% endfor %}",
    "loop in macro": "{% macro all(ns) %}EACHTURN{% endfor %}{% endmacro %}{{ all(ns) }}",
    "collected": "EACH{% set piece %}TURN{% endset %}{% set ns.t = ns.t ~ piece %}{% endfor %}{{ ns.t }}",
    "captured turn": "EACH{% set piece %}TURN{% endset %}{{ piece }}{% endfor %}",
    "captured": "{% set all %}EACHTURN{% endfor %}{% endset %}{{ all }}",
    "reversed": "{% for m in messages[::-1] %}{% set i = messages | length - 1 - loop.index0 %}TURN{% endfor %}",
    "last first": "{% for m in messages[-1:] %}{% set i = messages | length - 1 %}TURN{% endfor %}"
    "{% for m in messages[:-1] %}{% set i = loop.index0 %}TURN{% endfor %}",
    "system first": "EACH{% if m.role == 'system' %}TURN{% endif %}{% endfor %}"
    "EACH{% if m.role != 'system' %}TURN{% endif %}{% endfor %}",
}
"""How the turns are written, and in which order."""


@dataclass(slots=True)
class Turn:
    """What is written for one message, in order.

    Attributes:
        before: parts before the header.
        header: the header.
        between: parts between header and own text.
        body: own text.
        suffix: parts between own text and end.
        end: end tokens.
        tail: what follows in the same turn.
        mode: how it is written: each part alone ("apart"), as one expression by "~" or "+", or that "trimmed".
    """

    before: list[Part] = field(default_factory=list)
    header: list[Part] = field(default_factory=list)
    between: list[Part] = field(default_factory=list)
    body: list[Part] = field(default_factory=list)
    suffix: list[Part] = field(default_factory=list)
    end: list[Part] = field(default_factory=list)
    tail: list[Part] = field(default_factory=list)
    mode: str = "apart"

    @property
    def parts(self) -> list[Part]:
        listed = [*self.before, *self.header, *self.between, *self.body, *self.suffix, *self.end]
        if self.mode == "trimmed" and all(part.expr for part in listed):
            return [trimmed(listed), *self.tail]
        return [*listed, *self.tail]

    @property
    def source(self) -> str:
        parts = self.parts
        if self.mode in ("~", "+") and all(part.expr for part in parts):
            return "{{ " + f" {self.mode} ".join(f"({part.expr})" for part in parts) + " }}"
        return "".join(part.written for part in parts)

    def constants(self) -> list[str]:
        return [part.constant for part in self.parts if part.constant]


@dataclass(slots=True)
class Template:
    """A chat template without `{% generation %}`, and what is known about it.

    Attributes:
        family: what it was made from.
        twists: what was changed; none: it is plain, and its answers must be proven.
        controls: texts of the special tokens.
        turn_tokens: those that begin or end turns.
        bos, eos: "" without.
        answer, other: the turns of the assistant, and of all others.
        separator: parts before each turn but the first message's.
        preamble: constants before all turns.
        prompt: the generation prompt.
        prompt_after_user: it is written behind a user's turn only.
        prompt_echo: it ends with what the message before says, in this form; "" = it does not.
        system: how a leading system message is written: in the "loop", "before" it, "fold"ed into the first user's
            turn, or with a "default" where there is none.
        loop: how the turns are written, and in which order.
        after: parts behind all turns.
        uses: keys that messages have: "name", "reasoning", "thinking in content", "calls", "calls as text".
        proves: roles whose messages must be proven where it is plain.
    """

    family: str
    controls: tuple[str, ...]
    turn_tokens: tuple[str, ...]
    bos: str
    eos: str
    answer: Turn
    other: Turn
    prompt: str
    preamble: list[Part] = field(default_factory=list)
    separator: list[Part] = field(default_factory=list)
    prompt_after_user: bool = False
    prompt_echo: str = ""
    system: str = "loop"
    loop: str = "for"
    after: list[Part] = field(default_factory=list)
    uses: frozenset[str] = frozenset()
    proves: frozenset[str] = frozenset()
    twists: list[str] = field(default_factory=list)

    @property
    def source(self) -> str:
        """The jinja template."""
        turn = "{% if m.role == 'assistant' %}" + self.answer.source + "{% else %}" + self.other.source + "{% endif %}"
        if self.separator:
            turn = "{% if i > 0 %}" + "".join(part.written for part in self.separator) + "{% endif %}" + turn
        if self.system in ("before", "fold"):
            turn = "{% if not (i == 0 and m.role == 'system') %}" + turn + "{% endif %}"
        if "ns.q" in turn:
            turn += "{% if m.role == 'user' %}{% set ns.q = m.content or '' %}{% endif %}"
        head = "{% set ns = namespace(q='', last=-1, t='') %}"
        if "ns.last" in turn:
            head += "{% for o in messages %}{% if o.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}"
            head += "{% endfor %}"
        head += "".join(part.written for part in self.preamble)
        if self.system == "before":
            head += "{% if messages[0].role == 'system' %}{% set m = messages[0] %}{% set i = 0 %}" + self.other.source
            head += "{% endif %}"
        if self.system == "default":
            head += "{% if messages[0].role != 'system' %}{{ " + quote(self.default_system) + " }}{% endif %}"
        tail = "".join(part.written for part in self.after)
        asked = "add_generation_prompt"
        if self.prompt_after_user:
            asked += " and messages[-1].role == 'user'"
        if self.prompt:
            written = quote(self.prompt)
            if self.prompt_echo:
                written += " ~ " + FORMS[self.prompt_echo][0].format("(messages[-1].content or '')")
            tail += "{% if " + asked + " %}{{ " + written + " }}{% endif %}"
        return self._looped(head, turn) + tail

    def _looped(self, head: str, turn: str) -> str:
        return head + LOOPS[self.loop].replace("EACH", "{% for m in messages %}{% set i = loop.index0 %}").replace(
            "TURN", turn
        )

    @property
    def default_system(self) -> str:
        header = "".join(part.constant or "system" for part in self.other.header)
        behind = "".join(part.constant for part in [*self.other.end, *self.other.tail])
        return f"{header}You are a helpful assistant.{behind}"

    def render(self, messages: list[Message]) -> "Rendered":
        """What it writes, in plain Python."""
        plain = [_plain(message) for message in messages]
        shown = Rendered(self, plain)
        begin = Now(plain, 0)
        for part in self.preamble:
            shown.write(part.run(begin))
        first_is_system = plain[0]["role"] == "system"
        if self.system == "before" and first_is_system:
            shown.begin(0)
            shown.turn(self.other, begin)
        if self.system == "default" and not first_is_system:
            shown.write([Run(self.default_system, CONST)])
        question = -1
        for i in self._order(plain):
            now = Now(plain, i, question)
            question = i if now.m["role"] == "user" else question
            if self.system in ("before", "fold") and i == 0 and first_is_system:
                continue
            shown.begin(i)
            if i > 0:
                for part in self.separator:
                    shown.write(part.run(now))
            shown.turn(self.answer if now.m["role"] == "assistant" else self.other, now)
        for part in self.after:
            shown.write(part.run(Now(plain, len(plain) - 1)))
        return shown

    def _order(self, messages: list[Message]) -> list[int]:
        order = list(range(len(messages)))
        orders = {
            "reversed": order[::-1],
            "last first": [order[-1], *order[:-1]],
            "system first": sorted(order, key=lambda at: messages[at]["role"] != "system"),
        }
        return orders.get(self.loop, order)

    def collisions(self) -> list[str]:
        """Texts that contents may be taken for."""
        constants = {*self.answer.constants(), *self.other.constants(), self.prompt, *self.controls}
        constants |= {text.strip() for text in constants}
        return sorted(text for text in constants if text)

    @property
    def end_tokens(self) -> frozenset[str]:
        """The tokens that end turns, whatever the template writes them for."""
        turns = (self.answer, self.other)
        headers = "".join(part.constant for turn in turns for part in (*turn.before, *turn.header))
        return frozenset({self.eos, *(token for token in self.turn_tokens if token not in headers)}) - {""}


def _plain(message: Message) -> Message:
    """As the library hands it to templates: null keys left out, reasoning under each of its names."""
    message = {key: value for key, value in message.items() if value is not None}
    if "reasoning_content" in message:
        said = message["reasoning_content"]
        message = {"thinking": said, "reasoning": said, **message}
    return message


# The truth


class Rendered:
    """A conversation as a template writes it, run by run."""

    def __init__(self, template: Template, messages: list[Message]) -> None:
        self.template = template
        self.messages = messages
        self.runs: list[Placed] = []
        self.regions: dict[int, int] = {}
        self._texts: list[str] = []
        self._size = 0

    @property
    def text(self) -> str:
        return "".join(self._texts)

    def begin(self, message: int) -> None:
        self.regions[message] = self._size

    def turn(self, turn: Turn, now: Now) -> None:
        for part in turn.parts:
            self.write(part.run(now))

    def write(self, runs: Sequence[Run]) -> None:
        for text, label, message in runs:
            self.runs.append(Placed(self._size, self._size + len(text), label, message))
            self._texts.append(text)
            self._size += len(text)

    def own(self, message: int) -> list[Placed]:
        """The runs of what a message says, and of the constants around it."""
        return [run for run in self.runs if run.message == message and run.label in (OWN, WRAP)]

    def right(self, message: int) -> list[Ranges]:
        """The masks that are right for a message, as ranges of characters."""
        own = self.own(message)
        if not own:
            return [()]
        blocks: list[list[Placed]] = [[own[0]]]
        for run in own[1:]:
            if blocks[-1][-1].stop == run.start:
                blocks[-1].append(run)
            else:
                blocks.append([run])
        last_stop = blocks[-1][-1].stop
        ends = self._ends(message, last_stop)
        if len(blocks) == 1:
            starts = self._starts(message, blocks[0])
            if {run.label for run in own if run.stop > run.start} == {WRAP}:
                starts.append(last_stop)  # it says nothing: the end may be trained without an empty think block
            pairs = itertools.product(dict.fromkeys(starts), dict.fromkeys(ends))
            return [((start, end),) for start, end in pairs]
        # Its own text stands in several places: exactly these, each with or without its end; or the last alone.
        ranges = [(block[0].start, block[-1].stop) for block in blocks]
        inner = [self._ends(message, stop) for _, stop in ranges[:-1]]
        found: list[Ranges] = []
        for end in ends:
            for stops in itertools.product(*[{stop, *more} for (_, stop), more in zip(ranges, inner, strict=False)]):
                whole = [(start, stop) for (start, _), stop in zip(ranges, stops, strict=False)]
                found.append((*whole, (ranges[-1][0], end)))
            found.append(((ranges[-1][0], end),))
        return found

    def _ends(self, message: int, stop: int) -> list[int]:
        """Where a span may end whose own text ends at `stop`."""
        behind = [run for run in self.runs if run.start >= stop and run.stop > run.start]
        text, eos = self.text, self.template.eos
        while behind and not text[behind[0].start : behind[0].stop].strip():
            behind.pop(0)
        if not behind or (behind[0].message != message and behind[0].label != AFTER):
            return [stop]
        first, follows = behind[0], behind[1] if len(behind) > 1 else None
        if follows is not None and follows.message != message and follows.label != AFTER:
            follows = None
        if first.label in (AFTER, EOS):
            return [stop, first.stop]
        if first.label not in (END, SOFT, LATE) and text[first.start : first.stop] not in self.template.end_tokens:
            return [stop]
        certain = first.label == END and text[first.start : first.stop] in self.template.controls
        ends = [first.stop] if certain else [stop, first.stop]
        if follows is not None and follows.label in (EOS, AFTER, END) and text[follows.start : follows.stop] == eos:
            if follows.label == EOS and certain and text[first.start : first.stop] != eos:
                return [follows.stop]
            ends.append(follows.stop)
        return ends

    def _starts(self, message: int, block: list[Placed]) -> list[int]:
        """Where a span may begin whose own text is a block of runs."""
        begin = block[0].start
        # Constants around reasoning may be taken for the header's where that is not the generation prompt.
        said = next((place for place, run in enumerate(block) if run.label == OWN and run.stop > run.start), 0)
        by_text = list(dict.fromkeys(run.start for run in block[: said + 1]))
        prompt, region = self.template.prompt, self.regions.get(message, begin + 1)
        if self.messages[message]["role"] != "assistant" or not prompt or region > begin or self.template.prompt_echo:
            return by_text
        behind = region + len(prompt)
        if not self.constant(region, skip_empty=False).startswith(prompt):
            if self.constant(region, skip_empty=True).startswith(prompt):
                return [behind, *by_text]  # only since something is empty in this conversation
            return by_text
        if behind >= begin:
            return [behind]
        template, text = self.template, self.text
        between = [run for run in self.runs if run.start < begin and run.stop > behind]
        foreign = [run for run in between if run.label not in (CONST, HEADER)]
        if any(text[run.start : run.stop].strip() for run in foreign):
            return by_text
        if any(token in text[behind:begin] for token in template.turn_tokens):
            return by_text
        if foreign or any(run.label == HEADER for run in between):
            return [behind, *by_text]
        has_token = any(token in text[behind:begin] for token in template.controls)
        return [behind, *by_text] if has_token else [behind]

    def constant(self, start: int, skip_empty: bool) -> str:
        """The constant text from a place on."""
        found = []
        for run in self.runs:
            if run.start < start:
                continue
            if run.label in (OWN, OTHER, AGAIN, COND) and (run.stop > run.start or not skip_empty):
                break
            found.append(self.text[run.start : run.stop])
        return "".join(found)


# Plain templates


class Style(NamedTuple):
    """How a template writes its turns, one after the other: opening, role, closing, blank, text, end, line.

    Attributes:
        tokens: those of the turns.
        ends_all: other turns than answers have the end, too.
    """

    opening: str
    form: str
    closing: str
    end: str
    line: str
    tokens: tuple[str, ...]
    blank: str = ""
    ends_all: bool = True


CHATML = Style("<|im_start|>", "as is", "\n", "<|im_end|>", "\n", ("<|im_start|>", "<|im_end|>"))
LLAMA_TOKENS = ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
STYLES = {
    "chatml": CHATML,
    "chatml again": CHATML,
    "gemma": Style("<start_of_turn>", "model", "\n", "<end_of_turn>", "\n", ("<start_of_turn>", "<end_of_turn>")),
    "turn": Style("<|turn>", "model", "\n", "<turn|>", "\n", ("<|turn>", "<turn|>")),
    "llama": Style(LLAMA_TOKENS[0], "as is", "<|end_header_id|>\n\n", "<|eot_id|>", "", LLAMA_TOKENS),
    "phi": Style("<|", "as is", "|>\n", "<|end|>", "\n", ("<|user|>", "<|assistant|>", "<|system|>", "<|end|>")),
    "zephyr": Style("<|", "as is", "|>\n", "</s>", "\n", ("</s>",)),
    "vicuna": Style("", "upper", ":", "</s>", "\n", ("</s>",), " ", ends_all=False),
    "gpt": Style("", "gpt", ":", "</s>", " ", ("</s>",), " ", ends_all=False),
    "alpaca": Style("### ", "alpaca", ":\n", "</s>", "\n\n", ("</s>",), ends_all=False),
}


def _styled(draw: Choices) -> Template:
    """As most models have it. Some write calls or reasoning."""
    name = draw.choice(list(STYLES))
    style = STYLES[name]
    form, mode = draw.choice(["as is", "as is", "trim", "strip"]), draw.choice(["apart", "+", "~"])
    eos, bos = draw.choice([style.end, "</s>", "<|endoftext|>"]), draw.choice(["", "<s>"])
    says = draw.choice(["", "", "", "", "calls", "reasoning"])

    def turn(is_answer: bool) -> Turn:
        return Turn(
            header=[*consts(style.opening, label=HEADER), role(style.form), const(style.closing, HEADER)],
            between=consts(style.blank),
            body=[own(form, guarded=says == "calls")],
            end=[const(style.end, END)] if style.ends_all or is_answer else [],
            tail=consts(draw.choice([style.line, style.line, ""]) if is_answer else style.line),
            mode=mode,
        )

    answer = turn(is_answer=True)
    if says == "calls":
        answer.body.append(calls("\n<tool_call>\n", "\n</tool_call>", draw.choice(["json", "arguments"])))
    elif says:
        when = draw.choice(["always", "after the last question", "then even if empty"])
        answer.body.insert(0, reasoning("<think>\n", "\n</think>\n\n", when, draw.choice(["as is", "strip"])))
    tokens = (*style.tokens, eos)
    return Template(
        f"{name} {says}".strip(),
        tuple(dict.fromkeys((*tokens, *([bos] if bos else [])))),
        tokens,
        bos,
        eos,
        answer,
        turn(is_answer=False),
        style.opening + ROLE_FORMS[style.form][1]("assistant") + style.closing,
        preamble=consts(bos),
        system=draw.choice(["loop", "loop", "before", "default"]) if style.ends_all else "loop",
        uses=frozenset({says} - {""}),
        proves=frozenset(["assistant", "user"] if style.ends_all else ["assistant"]),
    )


def _inst(draw: Choices) -> Template:
    """As Mistral: no generation prompt."""
    space, form = draw.choice([" ", ""]), draw.choice(["as is", "trim"])
    controls = ("<s>", "</s>", *draw.choice([(), ("[INST]", "[/INST]")]))
    answer = Turn(header=consts(space, label=HEADER), body=[own(form)], end=[const("</s>", END)])
    other = Turn(header=[const("[INST] ", HEADER)], body=[own(form)], end=[const(" "), const("[/INST]", SOFT)])
    proves = frozenset({"assistant"})
    return Template("inst", controls, controls, "<s>", "</s>", answer, other, "", preamble=consts("<s>"), proves=proves)


# What makes them hard

Twist = Callable[[Template, Choices], str | None]
"""Changes a template; gives its name, or None where it does not fit."""


def _begin(t: Template) -> str:
    """What the headers of answers begin with, where that is a constant."""
    return t.answer.header[0].constant if t.answer.header else ""


def _into(turn: Turn, place: str, part: Part) -> None:
    if place == "lead":
        turn.header.insert(0, part)
    elif place == "header":
        turn.header.insert(max(len(turn.header) - 1, 0), part)
    else:
        getattr(turn, place).append(part)


THINK = "<think>\n\n</think>\n\n"


def _constant(t: Template, draw: Choices) -> str:
    """A constant at some place: always, or by where the turn stands."""
    place = draw.choice(["lead", "before", "header", "between", "between", "suffix", "tail", "separator", "preamble"])
    end = "".join(part.constant for part in t.answer.end)
    a_turn = f"{_begin(t)}system\nStay polite.{end}\n"
    said = ["Answer: ", " Bye.", "22 Nov 2026\n", THINK, a_turn if place == "tail" else THINK, *t.turn_tokens[:2]]
    blanks = ("\n", " ", "\n\n")
    kinds: list[Sequence[str]] = [blanks, said, said, (".", ";", "x", "---\n")]
    if place in ("lead", "separator"):
        kinds = [blanks, ("---\n",) if place == "separator" else (a_turn,)]
    text = draw.choice(draw.choice(kinds))
    if place in ("separator", "preamble"):
        getattr(t, place).append(const(text))
    else:
        part = const(text, HEADER if place == "lead" else CONST)
        part = by_place(draw.choice(list(PLACES)), part) if chance(draw, 30) and place != "lead" else part
        for turn in (t.answer, t.other) if place == "lead" or chance(draw, 20) else (t.answer,):
            _into(turn, place, part)
    if place in ("lead", "separator") and t.prompt and draw.choice([False, True]):
        t.prompt = text + t.prompt
        place += " in prompt"
    return f"constant {place}"


def _prompt_changed(t: Template, draw: Choices) -> str:
    kind = draw.choice(["part", "think", "empty think", "absent", "other", "longer", "after user"])
    header = t.prompt
    t.prompt = {"think": header + "<think>\n", "empty think": header + THINK, "absent": ""}.get(kind, header)
    if kind == "part":
        t.prompt = header[: draw.integer(0, max(len(header) - 1, 0))]
    elif kind == "other":
        t.prompt = draw.choice(["Answer:", "\n", _begin(t) + "bot\n"])
    elif kind == "longer":
        t.prompt = header + draw.choice([" ", "\n", "a", "The"])
    t.prompt_after_user = t.prompt_after_user or kind == "after user"
    return f"prompt: {kind}"


def _prompt_echoes(t: Template, draw: Choices) -> str | None:
    """The generation prompt ends with what the message before says, as the answer's turn may."""
    if not t.prompt:
        return None
    t.prompt_echo = draw.choice(["upper", "as is", "first 8", "length"])
    if draw.choice([True, False]):
        t.answer.between.append(echo("before", t.prompt_echo))
    return "prompt: echo"


def _next_header(t: Template, draw: Choices) -> str | None:
    """The next header begins at the end of this turn."""
    begin = _begin(t)
    if not begin or not t.other.header or t.other.header[0].constant != begin:
        return None
    for turn in (t.answer, t.other):
        del turn.header[0]
        turn.tail.append(const(begin))
    t.preamble.append(const(begin))
    if t.prompt.startswith(begin) and draw.choice([True, False]):
        t.prompt = t.prompt[len(begin) :]
    t.system = "loop"
    return "header begun before"


def _analysis(t: Template, draw: Choices) -> str:
    """A turn before the answer's, and a second header."""
    end = t.answer.end[0].constant if t.answer.end else "\n"
    header = list(t.answer.header)
    kind = draw.choice(["constant", "echo", "reasoning", "second header"])
    if kind == "second header":
        t.answer.between += [*header]
        return "second header"
    if kind == "reasoning":
        t.uses |= {"reasoning"}
        t.answer.body = [
            reasoning("", "", "always", "strip"),
            const(end, SOFT),
            *[Part(p.expr, p.run, p.statements, p.constant) for p in header],
            *t.answer.body,
        ]
        return "analysis turn with reasoning"
    text = const("analysis: think.") if kind == "constant" else echo(draw.choice(["before", "first"]), "as is")
    t.answer.between += [text, const(end), *consts(draw.choice(["", "\n"])), *header]
    return f"analysis turn, {kind}"


def _echoed(t: Template, draw: Choices) -> str:
    """What a message says stands a second time in an answer's turn."""
    place = draw.choice(["between", "between", "header", "before", "suffix", "tail"])
    source = draw.choice([*SOURCES, "name"])
    t.uses |= {"name"} if source == "name" else set()
    part = echo(source, draw.choice(list(FORMS)), bare=draw.choice([True, False]))
    around = draw.choice([("", ""), ("", "\n"), ("> ", "\n"), ("\n", "")])
    at = draw.choice(list(PLACES)) if chance(draw, 15) else ""
    for turn in (t.answer, t.other) if chance(draw, 15) else (t.answer,):
        for one in (*consts(around[0]), part, *consts(around[1])):
            _into(turn, place, by_place(at, one) if at else one)
    if place == "tail" and draw.choice([True, False]):
        t.answer.tail += consts(*(p.constant for p in t.answer.end))
    return f"echo {source} {place}"


def _by_content(t: Template, draw: Choices) -> str:
    place = draw.choice(["between", "header", "before", "suffix", "tail"])
    one = draw.choice(["Sure. ", "[x] ", "\n", *t.turn_tokens[:2]])
    other = draw.choice(["", "", "Fine. ", " "])
    _into(t.answer, place, by_content(draw.choice(list(CONDITIONS)), one, other))
    return f"by content {place}"


def _ended(t: Template, draw: Choices) -> str:
    """Another end."""
    kind = draw.choice(
        ["word", "none", "blank before", "eos behind", "eos behind a line", "twice", "at next", "eos after all"]
    )
    word = [*consts(draw.choice(["", "\n"])), const(draw.choice(["###", "|"]), SOFT)]
    ends: dict[str, list[Part]] = {"none": [], "at next": [], "word": word}
    late = "".join(part.constant for part in t.answer.end).strip()
    for turn in (t.answer, t.other):
        if kind == "blank before":
            turn.end.insert(0, const(draw.choice(["\n", " "])))
        turn.end = [*ends.get(kind, turn.end)]
    if kind == "eos behind":
        t.answer.end.append(const(t.eos, EOS))
    elif kind == "eos behind a line":
        t.answer.tail += [const("\n"), const(t.eos)]
    elif kind == "twice":
        t.answer.tail += consts(*(part.constant for part in t.answer.end))
    elif kind == "at next":
        t.separator.insert(0, const(late if late in t.controls else t.eos, LATE))
    elif kind == "eos after all":
        t.answer.end = draw.choice([[], t.answer.end])
        t.after.append(const(t.eos, AFTER))
    return f"end {kind}"


def _loops(t: Template, draw: Choices) -> str:
    t.loop = draw.choice([loop for loop in LOOPS if loop != "for"])
    return f"loop {t.loop}"


def _folded(t: Template, draw: Choices) -> str:
    """A system message's text in the first user's turn."""
    opening, closing = draw.choice([("", "\n\n"), ("<<SYS>>\n", "\n<</SYS>>\n\n"), ("", "")])
    condition = "(i == 1 and messages[0].role == 'system')"
    expr = f"(({quote(opening)} ~ (messages[0].content or '') ~ {quote(closing)}) if {condition} else '')"

    def run(now: Now) -> list[Run]:
        if now.i != 1 or now.messages[0]["role"] != "system":
            return []
        return [Run(opening, CONST), Run(_text(now.messages[0]), OWN, 0), Run(closing, CONST)]

    t.system = "fold"
    t.other.body.insert(0, Part(expr, run))
    return "system folded"


def _content_changed(t: Template, draw: Choices) -> str:
    form = draw.choice(["rstrip", "lstrip", "upper", "first 8", "last 6", "replaced", "first word", "json", "trim"])
    for turn in (t.answer, t.other) if draw.choice([True, False]) else (t.answer,):
        turn.body = [own(form, "calls" in t.uses) if "m.content" in part.expr else part for part in turn.body]
    return f"content {form}"


def _split(t: Template, draw: Choices) -> str:
    t.uses |= {"thinking in content"}
    kind = draw.choice(["kept", "dropped", "never"])
    t.answer.body = [split_content("<think>\n", "\n</think>\n\n", kind)]
    return f"split {kind}"


def _reasons(t: Template, draw: Choices) -> str:
    t.uses |= {"reasoning"}
    opening, closing = draw.choice(
        [("<think>", "</think>"), ("<think>\n", "\n</think>\n"), ("", "\n\n"), ("Thought: ", "\n")]
    )
    when = draw.choice(["always", "after the last question", "then even if empty"])
    t.answer.body.insert(0, reasoning(opening, closing, when, draw.choice(["as is", "strip"])))
    return "reasoning"


def _called(t: Template, draw: Choices) -> str:
    form = draw.choice(["json", "arguments", "loop", "text"])
    if "calls" in t.uses or "calls as text" in t.uses:
        form = "json" if "calls" in t.uses else "text"
    t.uses |= {"calls as text" if form == "text" else "calls"}
    around = [("<tool_call>", "</tool_call>"), ("\n[CALL] ", ""), ("", ""), ("<call>\n", "\n</call>\n")]
    part = calls(*draw.choice(around), form)
    t.answer.body = [part, *t.answer.body] if draw.choice([False, True]) else [*t.answer.body, part]
    return f"calls {form}"


def _written(t: Template, draw: Choices) -> str:
    mode = draw.choice(["trimmed", "trimmed", "~", "+"])
    t.answer.mode = t.other.mode = mode
    return f"written {mode}"


TWISTS: tuple[Twist, ...] = (
    *(_constant,) * 8, *(_echoed,) * 3, *(_by_content,) * 2, *(_prompt_changed,) * 2, *(_ended,) * 2, *(_loops,) * 2,
    _prompt_echoes, _next_header, _analysis, _folded, _content_changed, _split, _reasons, _called, _written,
)  # fmt: skip


def template(draw: Choices, plain: bool | None = None) -> Template:
    """One template: a plain one, or one with some twists.

    Args:
        draw: the choices.
        plain: None = two of five.
    """
    made = _inst(draw) if chance(draw, 12) else _styled(draw)
    if plain if plain is not None else chance(draw, 40):
        return made
    for _ in range(draw.choice([1, 1, 1, 2, 2, 3])):
        name = draw.choice(TWISTS)(made, draw)
        if name is not None:
            made.twists.append(name)
    made.twists = made.twists or ["none"]
    return made


# Conversations

_ANY = ["a", "x", "ok", "?", "Yes.", "no", "e", "1", "Assistant", "tool"]
_ALIKE = ["assistant", "user", "system", "model", "<think>", "</think>", THINK, "im_end", "|>", "<|", ":"]
_BLANK = ["", " ", "\n", "  \n"]
_SYLLABLES = ["ka", "lo", "mi", "ne", "ru", "ta", "xe", "zo", "Be", "du"]


def _long(draw: Choices) -> str:
    words = ["".join(draw.choice(_SYLLABLES) for _ in range(draw.integer(2, 4))) for _ in range(draw.integer(2, 4))]
    return " ".join(words) + draw.choice([".", "?", "", "!\nAnd so on."])


def content(draw: Choices, template: Template, others: list[str], tame: bool) -> str:
    """What a message says."""
    if tame:
        return _long(draw)
    kind = draw.integer(0, 99)
    if kind < 40:
        return _long(draw)
    if kind < 52:
        return draw.choice(_ANY)
    if kind < 68:
        text = draw.choice([*_ALIKE, *template.collisions()])
        return draw.choice([text, text, text + _long(draw), _long(draw) + text, text + "\n" + text])
    if kind < 78 and others:
        said = draw.choice(others)
        return draw.choice([said, said, said.upper(), said[:8], said + " " + said, said.title()])
    if kind < 84:
        return draw.choice(_BLANK)
    if kind < 93:
        return draw.choice(["", " ", "\n"]) + draw.choice([_long(draw), "x"]) + draw.choice(["", " ", "\n", " \n"])
    return draw.choice(["é", "日本語 です", "\u2028x\u3000", "🙂🙂", "e\u0301 \u00a0", "ß İ"])


def roles(draw: Choices, answered: bool) -> list[str]:
    """The roles of a conversation; with `answered`, the last is the assistant's, and not the only one."""
    if chance(draw, 15):
        found = [draw.choice(["user", "assistant", "assistant", "system", "tool"]) for _ in range(draw.integer(1, 4))]
        return [*found, "assistant"] if answered and (found[-1] != "assistant" or len(found) < 2) else found
    found = ["system"] if chance(draw, 35) else []
    found += ["user", "assistant"] * draw.integer(1, 3)
    return found if answered or not chance(draw, 15) else [*found, "user"]


def conversations(draw: Choices, template: Template, count: int, answered: bool) -> list[list[Message]]:
    """Conversations of one pattern: roles, keys and types are the same."""
    pattern = roles(draw, answered)
    keys = []
    for who in pattern:
        mine = set()
        if who == "assistant":
            mine |= {use for use in sorted(template.uses - {"name"}) if chance(draw, 60)}
        if "name" in template.uses and chance(draw, 60):
            mine.add("name")
        keys.append(mine)
    tame = chance(draw, 35)
    nothing = not template.twists and chance(draw, 30)
    found = []
    for _ in range(count):
        said: list[str] = []
        messages = []
        for who, mine in zip(pattern, keys, strict=True):
            text = content(draw, template, said, tame)
            if "thinking in content" in mine and (tame or chance(draw, 60)):
                text = f"<think>\n{content(draw, template, said, tame)}\n</think>\n\n{text}"
            message: Message = {"role": who, "content": text}
            if "name" in mine:
                message["name"] = draw.choice(["alice", "bob", "assistant", "Kalo"])
            if "reasoning" in mine:
                message["reasoning_content"] = content(draw, template, said, tame)
            if "calls" in mine or "calls as text" in mine:
                if chance(draw, 50):
                    text = ""
                    message["content"] = None if nothing else ""
                message["tool_calls"] = [_call(draw, template, said, tame, "calls as text" in mine)]
            said.append(text)
            messages.append(message)
        found.append(messages)
    return found


def _call(draw: Choices, template: Template, said: list[str], tame: bool, as_text: bool) -> dict[str, Any]:
    arguments: Any = {"q": content(draw, template, said, tame), "n": draw.integer(0, 9)}
    if as_text:
        arguments = json.dumps(arguments, ensure_ascii=False)
    return {"type": "function", "function": {"name": draw.choice(["find", "x", "user"]), "arguments": arguments}}
