"""Rendering by plans against jinja's: the same texts, places and refusals, or no plan."""

import gzip
import json
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from beam_prep.core.chat.message import Message, for_template
from beam_prep.core.chat.recorded import plans, tracer
from beam_prep.core.chat.recorded.layout import PieceLayout, RenderedPieces
from beam_prep.core.chat.recorded.recorder import Recorder
from beam_prep.core.chat.template import ChatTemplate
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_prep.core.data.block import Reject
from tests.conftest import shared
from tests.core.chat.test_template import TALKS, TEMPLATES, each, say

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
FILES = (
    "chat_messages_gsm8k_system.jsonl",
    "chat_messages_sgd.jsonl.gz",
    "dpo_hh_messages.jsonl",
    "prompt_response_gsm8k_train.jsonl",
    "sharegpt_vicuna_dummy.jsonl",
    "tool_messages_glaive_en.jsonl",
)
Talk = tuple[list[Message], dict[str, Any]]


@pytest.fixture(autouse=True)
def _plans_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "DISAGREEING_TEMPLATES", set())


def both(source: str, tokens: dict[str, str] | None = None) -> tuple[ChatTemplate, ChatTemplate]:
    """(with plans, without)."""
    given = TOKENS if tokens is None else tokens
    date = "2026-11-22"
    return ChatTemplate(source, given, True, date), ChatTemplate(source, given, False, date)


def outcome(render: Any, *arguments: Any, **options: Any) -> Any:
    try:
        return render(*arguments, **options)
    except Reject as reject:
        return reject.reason, reject.message


def compare(planned: ChatTemplate, jinja: ChatTemplate, talk: list[Message], **variables: Any) -> None:
    for prompt in (False, True):
        wanted = outcome(jinja.render, talk, prompt, **variables)
        assert outcome(planned.render, talk, prompt, **variables) == wanted
    assert outcome(planned.render_chat, talk, **variables) == outcome(jinja.render_chat, talk, **variables)


def by_plan(template: ChatTemplate, talk: list[Message], **variables: Any) -> bool:
    """Whether a pattern gets a plan once it was seen a few times."""
    for _ in range(8):
        planned = outcome(template.planned, talk, **variables)
    return isinstance(planned, RenderedPieces)


# Real templates, real data


def _talks(name: str, limit: int) -> Iterator[Talk]:
    path = shared("data", name)
    with gzip.open(path, "rt") if name.endswith(".gz") else path.open() as lines:
        rows = [json.loads(line) for _, line in zip(range(limit), lines, strict=False)]
    for row in rows:
        if "messages" in row:
            yield row["messages"], {"tools": row["tools"]} if row.get("tools") else {}
        elif "chosen" in row:
            yield row["chosen"], {}
            yield row["rejected"], {}
        elif "response" in row:
            yield [say("user", row["prompt"]), say("assistant", row["response"])], {}
        else:
            roles = {"human": "user", "gpt": "assistant"}
            yield [say(roles[turn["from"]], turn["value"]) for turn in row["conversations"]], {}


def _own(folder: Path, name: str | None) -> str:
    config = json.loads((folder / "tokenizer_config.json").read_text())
    return (folder / name).read_text() if name else str(config["chat_template"])


@pytest.mark.parametrize(("folder", "name"), TEMPLATES)
def test_real_conversations_render_alike(folder: Path, name: str | None) -> None:
    planned, jinja = both(_own(folder, name))
    for file in FILES:
        for talk, variables in _talks(file, 40):
            compare(planned, jinja, talk)
            if variables:
                compare(planned, jinja, talk, **variables)
    assert planned.rendered_by_plan > planned.rendered_by_jinja


@pytest.mark.parametrize(("folder", "name"), TEMPLATES)
def test_odd_conversations_render_alike(folder: Path, name: str | None) -> None:
    planned, jinja = both(_own(folder, name))
    for talk in TALKS.values():
        for variables in ({}, {"enable_thinking": False, "bos_token": "<other>"}, {"tools": [{"name": "f"}]}):
            for _ in range(3):
                compare(planned, jinja, talk, **variables)


def test_tools_in_calls_get_plans() -> None:
    planned, jinja = both(_own(shared("tokenizers", "qwen2.5"), "chat_template.jinja"))
    call = {"function": {"name": "find", "arguments": {"q": "é", "n": 1}}}
    talk = [say("user"), say("assistant", "", tool_calls=[call, call]), say("tool", "7"), say("assistant", "x")]
    tools = [{"type": "function", "n": 1.0, "b": True}, {"type": "function", "n": 1, "b": 1}]
    assert by_plan(planned, talk, tools=tools)
    for other in (tools, tools[::-1], [{"n": float("nan")}, {"n": None}], [{"\ud800": 1}, {"n": 1 << 70}]):
        compare(planned, jinja, talk, tools=other)


# Templates written to break it

PLANNED = {
    "counter in a namespace": "{% set ns = namespace(n=0) %}"
    + each("{% set ns.n = ns.n + (1 if m.content else 2) %}")
    + "{{ ns.n }}",
    "loop variables": each("{{ loop.index }}{{ loop.first }}{{ loop.last }}{{ loop.revindex }}{{ loop.length }}"),
    "previous item": each(
        "{{ loop.previtem.content if not loop.first }}{{ loop.nextitem.content if not loop.last }}{{ m.content }}"
    ),
    "changed": each("{{ loop.changed(m.content) }}{{ loop.changed(m.role) }}"),
    "cycle": each("{{ loop.cycle('a', m.content) }}"),
    "slice": "{% for m in messages[1:] %}{{ m.content }}{% endfor %}{{ messages[::-1][0].content }}",
    "slice of a text": each("{{ m.content[1:4] }}{{ m.content[::-1] }}{{ m.content[-3:] }}"),
    "character": each("{{ m.content[0] }}{{ m.content[-1] }}{{ m.content[5] is defined }}"),
    "split": each("{{ m.content.split('</think>')[-1].lstrip('\\n') }}{{ m.content.split(' ', 1)[1] }}"),
    "split in a loop": each("{% for word in m.content.split() %}<{{ word }}>{% endfor %}"),
    "two parts": each("{% if ' ' in m.content %}{% set a, b = m.content.split(' ', 1) %}{{ b }}{{ a }}{% endif %}"),
    "find": each("{{ m.content.find('a') }}{{ m.content.count('a') }}{{ m.content.startswith(('a', 'b')) }}"),
    "in": each("{{ 'yes' if 'a' in m.content else 'no' }}{{ m.content in ['', 'a'] }}{{ m.content not in ('b',) }}"),
    "in a neighbour": "{{ messages[0].content in messages[-1].content }}",
    "length": each("{% if m.content | length > 3 %}long{% else %}{{ m.content | length }}{% endif %}"),
    "times": each("{{ m.content * 2 }}{{ '-' * (m.content | length) }}{{ (m.content | length) % 2 }}"),
    "macro": "{% macro say(m, x='d') %}[{{ m.content }}{{ x }}{{ caller() if caller }}]{% endmacro %}"
    + each("{{ say(m) }}{{ say(m, m.role) | upper }}{% call say(m) %}{{ m.content }}{% endcall %}"),
    "set block": each("{% set x %}<{{ m.content }}>{% endset %}{{ x }}{{ x | length }}"),
    "filter block": each("{% filter upper %}<{{ m.content }}>{% endfilter %}"),
    "loop in a set block": "{% set x %}" + each("{{ m.content }}") + "{% endset %}{{ x }}",
    "join": "{{ [messages[0].content, 1, 'b'] | join(', ') }}{{ messages[0].content.split() | join('+') }}",
    "join method": "{{ ','.join([messages[0].content, 'b']) }}",
    "tojson": "{{ messages | tojson }}" + each("{{ m | tojson(indent=2) }}{{ m.content | tojson }}"),
    "tojson in a dict": each("{{ {'a': [m.content, 1.5, none], 'b': m} | tojson }}"),
    "as it is": "{{ messages }}" + each("{{ m }}"),
    "default": each("{{ m.content | default('x') }}{{ m.content | d('x', true) }}{{ m.nothing | default(m.content) }}"),
    "types": each("{{ m.content is string }}{{ m is mapping }}{{ m.content is iterable }}{{ m.content is number }}"),
    "defined": each("{{ m.content is defined }}{{ m.nothing is undefined }}{{ m.content is none }}{{ m.nothing }}"),
    "test of a comparison": each("{{ (m.content == 'a') is true }}{{ (m.content == 'a') is boolean }}"),
    "length tests": each(
        "{{ (m.content | length) is odd }}{{ (m.content | length) is divisibleby 3 }}{{ m.content is eq 'a' }}"
    ),
    "compared": each("{{ m.content == 'a' }}{{ m.content != none }}{{ m.content < 'b' }}{{ m.content == 7 }}"),
    "compared with each other": "{{ messages[0].content == messages[-1].content }}{{ messages[0] == messages[-1] }}",
    "compared in lists": "{{ [messages[0].content] == ['a'] }}{{ (1, messages[0].content) < (1, 'b') }}",
    "keys": each("{% for k in m %}{{ k }}{% endfor %}{% for k, v in m.items() %}{{ k }}={{ v }}{% endfor %}"),
    "values": each("{% for v in m.values() %}{{ v }}{% endfor %}{% for k, v in m | items %}{{ k }}{{ v }}{% endfor %}"),
    "used up": each("{% set x = m | items %}{% for k, v in x %}{{ v }}{% endfor %}{% for k in x %}{{ k }}{% endfor %}"),
    "get": each("{{ m.get('content') }}{{ m.get('nothing', m.content) }}{{ 'content' in m }}{{ m | length }}"),
    "dict of contents": "{% set x = dict(a=messages[0].content) %}{{ x.a ~ x['a'] ~ x.get('b') }}{{ x | tojson }}",
    "break": each("{% if m.content == 'a' %}{% break %}{% endif %}{% if not m.content %}{% continue %}{% endif %}+"),
    "loop filter": "{% for m in messages if m.content %}{{ loop.index }}{{ m.content }}{% else %}none{% endfor %}",
    "recursive": "{% for m in messages recursive %}{{ m.content }}{{ loop(m.more) if m.more }}{% endfor %}",
    "generation": each("{{ m.role }}{% generation %}{{ m.content }}{{ eos_token }}{% endgeneration %}\n"),
    "generation in a set block": each(
        "{% set x %}{% generation %}{{ m.content }}{% endgeneration %}{% endset %}{{ x }}"
    ),
    "generation in a macro": "{% macro x(m) %}{% generation %}{{ m.content }}{% endgeneration %}{% endmacro %}"
    + each("{{ x(m) }}"),
    "stripped": each(
        "{{ m.content | trim }}{{ m.content.strip() }}{{ m.content.strip('a') }}{{ m.content | trim('b') }}"
    ),
    "replaced": each("{{ m.content | replace('a', 'b') }}{{ m.content.replace('a', m.role, 1) }}"),
    "letters": each(
        "{{ m.content | title }}{{ m.content | capitalize }}{{ m.content | lower }}{{ m.content.upper() }}"
    ),
    "indent": each("{{ m.content | indent(2, true) }}{{ m.content | string }}"),
    "tilde": each("{{ m.content ~ 1 ~ none ~ m.nothing ~ m.content }}"),
    "clock": "{{ strftime_now('%Y') }}" + each("{{ m.content }}"),
    "clock compared": "{% if strftime_now('%Y') > '2000' %}x{% endif %}{{ messages[0].content }}",
    "fences": each("\ufdd0{{ m.content }}\ufdd1"),
    "literals": "{{ '\\'\"{}\\\\n\u2028\\n' }}" + each("{{ m.content }}{# no #}{{ '{{' }}\n"),
    "reasoning": each("{{ m.reasoning_content }}{{ m.thinking if m.thinking is string else '-' }}"),
    "nested": each(
        "{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}"
    ),
    "arguments": each(
        "{% for c in m.tool_calls or [] %}{% for k, v in c.function.arguments.items() %}{{ k }}:"
        "{{ v if v is string else v | tojson }}{% endfor %}{% endfor %}"
    ),
    "with": each("{% with x = m.content %}{{ x }}{% endwith %}"),
    "both ways": each("{{ m['content'] }}{{ m.content }}{{ m['other'] is defined }}") + "{{ messages[99] is defined }}",
    "raise": each("{% if 'stop' in m.content %}{{ raise_exception('no ' ~ m.content) }}{% endif %}{{ m.content }}"),
    "raising operations": each("{{ m.content + 'x' }}{{ m.content.index('a') }}{{ 1 // (m.content | length) }}"),
    "unused but raising": each("{% set x = m.content.index('a') %}{{ m.content }}"),
    "logic": each("{{ m.content or 'empty' }}{{ m.content and 'full' }}{{ not m.content }}"),
    "regions": "{{ messages[0].content }}"
    + each("{% if not loop.first %}{{ m.content }}{% endif %}")
    + "{{ eos_token }}",
    "inner loops": each("{% for n in messages %}{{ n.content }}{% endfor %}{{ m.content }}"),
}
PLANNED |= {
    "join after map": "{{ messages | map(attribute='content') | join(',') }}",
    "map of a filter": "{{ messages | map(attribute='content') | map('upper') | list | tojson }}"
    "{{ messages | map(attribute='content') | map('replace', 'a', 'b') | join }}",
    "selected": "{{ (messages | selectattr('role', 'equalto', 'user') | list)[0].content }}"
    "{{ (messages | rejectattr('content', 'equalto', 'a') | map(attribute='content') | list) }}"
    "{{ (messages | selectattr('content') | first).role }}{{ messages | selectattr('nothing') | list | length }}",
    "rejected constants": "{{ ['a', 'b'] | reject('equalto', 'a') | list | join(', ') }}{{ messages[0].content }}",
    "a generator twice": "{% set x = messages | map(attribute='content') %}{{ x | join }}.{{ x | join }}"
    "{% for y in x %}{{ y }}{% endfor %}",
    "stream in a loop": "{% for x in messages | map(attribute='role') | select %}{{ loop.last }}{{ x }}{% endfor %}",
}
NEVER_PLANNED = {
    "sorted values": each("{{ m.values() | sort | join(',') }}"),
    "sorted": "{{ messages | sort(attribute='content') | map(attribute='content') | join }}",
    "mapped with a content": "{{ messages | map('replace', 'a', messages[0].content) | join }}",
    "length of a generator": "{{ messages | map(attribute='content') | length }}",
    "a generator": "{{ messages | map(attribute='content') | string | length > 0 }}",
    "characters": each("{% for c in m.content %}{{ c }}.{% endfor %}"),
    "list of characters": each("{{ m.content | list | length }}"),
    "format": each("{{ '{}!'.format(m.content) }}"),
    "percent": each("{{ '%s!' % m.content }}"),
    "percent without a place": each("{{ 'a' % m.content }}"),
    "divisible by a content": each("{{ 'a' is divisibleby(m.content) }}"),
    "percent of a content": each("{{ m.content % 1 }}"),
    "key of a dict": each("{{ {'a': 1}[m.content] }}"),
    "key of a dict made": each("{{ {m.content: 1} | tojson }}"),
    "in a dict": each("{{ m.content in {'a': 1} }}"),
    "cycler": "{% set c = cycler('a', 'b') %}" + each("{{ c.next() }}{{ m.content }}"),
    "joiner": "{% set j = joiner(',') %}" + each("{{ j() }}{{ m.content }}"),
    "autoescape": "{% autoescape true %}" + each("{{ m.content }}") + "{% endautoescape %}",
    "escaped": each("{{ m.content | e }}"),
    "safe": each("{{ m.content | safe }}"),
    "same": each("{{ m.content is sameas messages[0].content }}"),
    "range": each("{% for i in range(m.content | length) %}{{ i }}{% endfor %}"),
    "index of a list": each("{{ messages[m.content | length - m.content | length].content }}"),
    "method compared": each("{{ m.content.strip == m.content.strip }}{{ m.content }}"),
    "method written": each("{{ 'x' if m.content.strip }}{{ m.content.strip is string }}"),
    "view written": each("{{ m.items() | list }}{{ m.keys() }}"),
    "length of a view": each("{{ m.items() | length }}"),
    "a class": each("{{ m.content.__class__ }}"),
    "the context": "{{ self }}" + each("{{ m.content }}"),
    "the loop": each("{{ loop | string }}"),
    "wide calls": "{{ dict(**messages[0]) | tojson }}",
}
CONTENTS = [
    "a",
    "",
    "Hello there, a b",
    "  a\n",
    "x</think>\n\ny",
    "stop",
    "日本 \u2028 é",
    "\ufdd0a\ufdd1",
    "aaaa",
    "'{%",
    "b",
]


def patterns() -> Iterator[list[Message]]:
    """Conversations of few patterns and many contents."""
    for turn, content in enumerate(CONTENTS * 3):
        other = CONTENTS[(turn * 7 + 3) % len(CONTENTS)]
        yield [say("user", content), say("assistant", other)]
        yield [say("system", "s"), say("user", other), say("assistant", content), say("user", "x y")]


@pytest.mark.parametrize("about", PLANNED)
def test_what_is_modelled_renders_alike(about: str) -> None:
    planned, jinja = both(PLANNED[about])
    for talk in patterns():
        compare(planned, jinja, talk)
    for talk in TALKS.values():
        for _ in range(6):
            compare(planned, jinja, talk)
    assert planned.rendered_by_plan > 0
    assert PLANNED[about] not in plans.DISAGREEING_TEMPLATES


@pytest.mark.parametrize("about", NEVER_PLANNED)
def test_what_is_not_modelled_is_left_to_jinja(about: str) -> None:
    planned, jinja = both(NEVER_PLANNED[about])
    for talk in patterns():
        compare(planned, jinja, talk)
    assert planned.rendered_by_plan == 0


@pytest.mark.parametrize(
    "kwargs",
    [
        {"documents": [{"text": "x"}]},
        {"documents": "x"},
        {"tools": ["x"]},
        {"tools": "xy"},
        {"tools": True},
        {"tools": {"a": 1}},
        {"x": 1.5},
        {"x": [1]},
        {"x": type("Text", (str,), {})("x")},
    ],
)
def test_variables_that_are_no_constants_are_left_to_jinja(kwargs: dict[str, Any]) -> None:
    planned, jinja = both(each("{{ m.content }}") + "{{ x }}{{ tools }}{{ documents }}")
    for _ in range(6):
        compare(planned, jinja, [say("user", "x")], **kwargs)
    assert planned.rendered_by_plan == 0


def test_constants_of_different_types_have_different_plans() -> None:
    planned, jinja = both(each("{{ m.content }}") + "{{ x }}{{ x is true }}{{ x is none }}")
    for _ in range(8):
        for x in (True, 1, "1", "True", None, 0, False, ""):
            compare(planned, jinja, [say("user", "x")], x=x)
    assert planned.rendered_by_plan > planned.rendered_by_jinja


class Text(str):
    def __str__(self) -> str:
        return "other"


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": Text("x")},
        {"role": Text("user"), "content": "x"},
        {Text("role"): "user", "content": "x"},
        type("Message", (dict,), {})(role="user", content="x"),
        {"role": "user", "content": ("x",)},
        {"role": "user", "content": b"x"},
        {"role": "user", "content": "x", "more": {1}},
        {"role": "user", "content": "x", 1: "more"},
    ],
)
def test_only_the_types_of_json_get_plans(message: dict[Any, Any]) -> None:
    planned, jinja = both(each("{{ m.role }}{{ m.content }}{{ m | length }}"))
    for _ in range(8):
        compare(planned, jinja, [message])
    assert planned.rendered_by_plan == 0


def one_by_one(messages: list[Any]) -> tuple[Any, ...] | None:
    """What a pattern has of messages, looked at one after the other; None: they are no plain data."""
    found = []
    for message in messages:
        if type(message) is not dict or not all(type(key) is str for key in message):
            return None
        seen = for_template(message)
        kinds = tuple(map(type, seen.values()))
        if not {str, int, float, bool, list, dict}.issuperset(kinds):
            return None
        role = seen.get("role")
        sizes = tuple(len(value) for value in seen.values() if type(value) is list)
        found.append((tuple(seen), kinds, role if type(role) is str else None, sizes))
    return tuple(found)


ODD_VALUES: st.SearchStrategy[Any] = st.sampled_from(
    ["user", "tool", "", None, 1, 1.0, True, [], ["x"], [{}, {}], {}, {"a": 1}, b"x", (1,)]
)
ODD_MESSAGES = st.one_of(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "tool"]), "content": st.just("x")}),
    st.dictionaries(st.sampled_from(["role", "content", "tool_calls", "thinking", "reasoning", "name"]), ODD_VALUES),
    st.sampled_from([None, "x", [], {1: "x"}, {"role": "user", 2: "x"}, {Text("role"): "user", "content": "x"}]),
)


@settings(max_examples=300)
@given(st.lists(st.lists(ODD_MESSAGES, max_size=4), min_size=2, max_size=8))
def test_conversations_share_a_pattern_where_each_of_their_messages_does(conversations: list[list[Any]]) -> None:
    shapes = [plans.shape_of(messages) for messages in conversations]
    wanted = [one_by_one(messages) for messages in conversations]
    for messages, shape, own in zip(conversations, shapes, wanted, strict=True):
        assert (shape is None) == (own is None)
        if shape is not None:
            assert shape.messages == [for_template(message) for message in messages]
            assert list(map(list, shape.messages)) == [list(for_template(message)) for message in messages]
    known = [
        (shape.key, own, shape.messages == messages)
        for messages, shape, own in zip(conversations, shapes, wanted, strict=True)
        if shape is not None
    ]
    for key, own, _ in known:
        assert all(own == other for same, other, _ in known if same == key)
    for key, own, as_given in known:  # what a null was taken out of may have a pattern of its own
        assert all(same == key for same, other, given in known if (other, given) == (own, as_given))


def test_other_containers_than_lists_get_no_plan() -> None:
    template = ChatTemplate(each("{{ m.content }}"), {}, plans=True)
    assert not by_plan(template, (say("user"),))  # type: ignore[arg-type]


# What a plan says of its text


FIRST, SECOND = {(0, "content")}, {(1, "content")}


def test_pieces_and_layout_of_a_plan() -> None:
    source = (
        "{{ bos_token }}{{ '-' }}"
        + each("<{{ m.role }}>{% generation %}{{ m.content | trim }}{{ eos_token }}{% endgeneration %}.")
        + "{% if add_generation_prompt %}>{% endif %}"
    )
    template = ChatTemplate(source, TOKENS, plans=True)
    talk = [say("user", " a "), say("assistant", "b")]
    assert by_plan(template, talk)
    planned = template.planned(talk)
    assert planned is not None
    assert planned.pieces == ("<s>-", "<user>", "a", "</s>", ".", "<assistant>", "b", "</s>", ".")
    layout = planned.layout
    assert layout.constants == ("<s>-", "<user>", None, "</s>", ".", "<assistant>", None, "</s>", ".")
    assert [*map(set, layout.sources)] == [set(), set(), FIRST, set(), set(), set(), SECOND, set(), set()]
    assert layout.plain_content == (-1, -1, 0, -1, -1, -1, 1, -1, -1)
    assert layout.marks == ((1, 0), (5, 1), (9, -1))
    assert layout.generations == ((2, 4), (6, 8))
    assert not layout.blind
    assert not layout.tested
    assert layout.messages == 2
    again = template.planned([say("user", "c"), say("assistant", "d")])
    assert again is not None
    assert again.layout is layout
    assert hash(layout)
    assert template.chat_of(again) == template.render_chat([say("user", "c"), say("assistant", "d")])


def test_a_layout_tells_computed_contents_and_guards() -> None:
    source = "{{ messages[0].content ~ messages[1].content }}{{ messages[0].content | upper }}" + each(
        "{% if m.content %}{{ m.content.lstrip() }}{% endif %}"
    )
    template = ChatTemplate(source + "{{ tools | tojson }}{{ [messages[0]] | tojson }}", {}, plans=True)
    talk = [say("user", "a"), say("assistant", "b")]
    assert by_plan(template, talk, tools=[{"a": 1}])
    planned = template.planned(talk, tools=[{"a": 1}])
    assert planned is not None
    assert planned.pieces[:5] == ("a", "b", "A", "a", "b")
    assert planned.layout.plain_content == (0, 1, -1, -1, -1, -1, -1)
    assert [*map(set, planned.layout.sources)] == [FIRST, SECOND, FIRST, FIRST, SECOND, set(), {(0, "")}]
    assert planned.layout.constants[5] is None
    assert planned.layout.tested


def test_captured_generation_blocks_are_left_to_jinja_where_their_places_are_wanted() -> None:
    planned, jinja = both(PLANNED["generation in a set block"])
    talk = [say("user", "a"), say("assistant", "b")]
    for _ in range(8):
        compare(planned, jinja, talk)
    found = planned.planned(talk)
    assert found is not None
    assert found.layout.generations is None
    assert planned.chat_of(found) is None


def test_generation_in_a_recursive_loop_is_left_to_jinja() -> None:
    planned, jinja = both(
        "a{% for m in messages recursive %}{{ m.role }}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
    )
    for _ in range(8):
        compare(planned, jinja, [say("user", "a"), say("assistant", "b")])
    assert planned.rendered_by_plan == 0


# The locks


def test_a_tracer_refuses_every_protocol_that_is_not_modelled() -> None:
    trace = tracer.Trace({})
    names = {name for kind in (str, list, dict, int, float, object) for name in dir(kind) if name.startswith("__")}
    refused = 0
    for name in sorted(names - tracer.MODELLED_PROTOCOLS - tracer.PYTHON_PROTOCOLS):
        for kind, real in ((str, "x"), (int, 1), (list, [1]), (dict, {}), (float, 1.0), (bool, True)):
            traced = trace.tracer("x", real, kind, frozenset())
            with pytest.raises(tracer.Refusal):
                getattr(type(traced), name)(traced)
            refused += 1
    assert refused > 200
    assert {"__str__", "__hash__", "__index__", "__format__", "__float__", "__reversed__"} <= names


@pytest.mark.parametrize(
    "ask",
    [
        str,
        repr,
        hash,
        int,
        float,
        iter,
        len,
        "{}".format,
        json.dumps,
        "".join,
        lambda x: isinstance(x, str),
        lambda x: isinstance(x, (int, dict)),
        lambda x: x.strip(),
        lambda x: "%s" % x,  # noqa: UP031
        lambda x: f"{x}",
        lambda x: {x: 1},
        lambda x: x in {"a": 1},
        lambda x: x["a"],
        lambda x: x[0],
        lambda x: x[x:],
        lambda x: x + 1,
        lambda x: x % 2,
        lambda x: x**2,
        lambda x: 1 in x,
        lambda x: x < 1,
        lambda x: x == object(),
        lambda x: [*x],
        lambda x: dict(x),
        lambda x: dict(**x),
        lambda x: hasattr(x, "__html__"),
        lambda x: setattr(x, "a", 1),
        lambda x: __import__("copy").copy(x),
        lambda x: __import__("pickle").dumps(x),
        lambda x: "abc"[x],
        lambda x: range(x),
        lambda x: sorted([x, "a", x]) and hash(x),
    ],
)
def test_a_traced_text_gives_nothing_away(ask: Any) -> None:
    traced = tracer.Trace({}).tracer("x", "secret", str, frozenset())
    with pytest.raises((tracer.Refusal, TypeError)):
        ask(traced)


def test_a_method_that_is_not_called_gives_nothing_away() -> None:
    method = tracer.UncalledMethod(tracer.Trace({}).tracer("x", "secret", str, frozenset()), "strip")
    for ask in (hash, lambda x: x == x, lambda x: x in ["a"]):
        with pytest.raises(tracer.Refusal):
            ask(method)


def _sabotage(template: ChatTemplate, **changes: Any) -> None:
    plans = template._plans
    assert plans is not None
    for pattern in plans._patterns.values():
        for plan in pattern.plans:
            for name, value in changes.items():
                setattr(plan, name, value)


def test_a_plan_that_gives_another_text_is_caught_by_its_first_uses() -> None:
    source = each("{{ m.content }}")
    planned, jinja = both(source)
    talk = [say("user", "x")]
    for _ in range(plans.SIGHTINGS_BEFORE_TRACE):
        compare(planned, jinja, talk)
    before = planned.rendered_by_plan
    assert before
    _sabotage(planned, run=lambda messages, tools: ("y",), compared=0)
    compare(planned, jinja, talk)
    assert planned.rendered_by_plan == before
    assert source in plans.DISAGREEING_TEMPLATES
    assert not by_plan(planned, talk)
    assert not by_plan(ChatTemplate(source, {"other": "x"}, plans=True), talk)


@pytest.mark.parametrize("field", ["marks", "generations", "blind"])
def test_a_plan_that_gives_other_places_is_caught_by_its_first_uses(field: str) -> None:
    source = each("{{ m.content }}{% generation %}{{ m.content }}{% endgeneration %}")
    planned, jinja = both(source)
    talk = [say("user", "x")]
    assert by_plan(planned, talk)
    found = planned.planned(talk)
    assert found is not None
    wrong = {"marks": ((1, 0),), "generations": ((0, 1),), "blind": True}
    layout = found.layout
    fields = {name: getattr(layout, name) for name in layout.__slots__}
    _sabotage(planned, layout=PieceLayout(**{**fields, field: wrong[field]}), compared=0)
    compare(planned, jinja, talk)
    assert source in plans.DISAGREEING_TEMPLATES


def test_a_plan_that_renders_what_jinja_refuses_is_caught_by_its_first_uses() -> None:
    source = each("{{ m.content }}{{ raise_exception('no') if m.content == 'y' }}")
    planned, jinja = both(source)
    assert by_plan(planned, [say("user", "x")])
    _sabotage(planned, run=lambda messages, tools: ("y",), compared=0)
    compare(planned, jinja, [say("user", "y")])
    assert source in plans.DISAGREEING_TEMPLATES


def test_a_plan_is_compared_at_its_first_uses_only(monkeypatch: pytest.MonkeyPatch) -> None:
    template = ChatTemplate(each("{{ m.content }}"), {}, plans=True)
    runs = []
    real = ChatTemplate._run
    monkeypatch.setattr(ChatTemplate, "_run", lambda self, *given: runs.append(1) or real(self, *given))  # type: ignore[func-returns-value]
    for number in range(30):
        assert template.render([say("user", str(number))]) == str(number)
    assert len(runs) == plans.SIGHTINGS_BEFORE_TRACE - 1 + plans.COMPARED_USES
    assert template.rendered_by_jinja == plans.SIGHTINGS_BEFORE_TRACE - 1
    assert template.rendered_by_plan == 30 - template.rendered_by_jinja


def test_the_date_is_a_constant_of_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "SIGHTINGS_BEFORE_TRACE", 1)
    source = "{{ strftime_now('%d ') }}{{ strftime_now('%B ') }}" + each("{{ m.content }}")
    template = ChatTemplate(source, {}, True, "2026-11-22")
    for text in "abcdef":
        planned = template.planned([say("user", text)])
    assert planned is not None
    assert planned.layout.simple
    assert planned.layout.constants[0] == "22 November "
    assert "".join(planned.pieces) == "22 November f"


def test_another_jinja_is_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jinja2.__version__", "3.2.0")
    planned, jinja = both(each("{{ m.content }}"))
    for _ in range(8):
        compare(planned, jinja, [say("user", "x")])
    assert planned.rendered_by_plan == 0


def test_plans_are_off_unless_asked_for() -> None:
    template = ChatTemplate(each("{{ m.content }}"), {})
    assert not by_plan(template, [say("user", "x")])
    assert template.render([say("user", "x")]) == "x"
    assert (template.rendered_by_plan, template.rendered_by_jinja) == (0, 1)


def test_a_pattern_that_refuses_is_not_traced_again(monkeypatch: pytest.MonkeyPatch) -> None:
    template = ChatTemplate(each("{% for c in m.content %}{{ c }}{% endfor %}"), {}, plans=True)
    traced = []
    real = Recorder._traced
    monkeypatch.setattr(Recorder, "_traced", lambda self, *given: traced.append(1) or real(self, *given))  # type: ignore[func-returns-value]
    for _ in range(20):
        assert template.render([say("user", "xy")]) == "xy"
    assert len(traced) == 1


def test_tracing_stops_where_plans_do_not_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "FREE_TRACES", 5)
    monkeypatch.setattr(plans, "HITS_PER_TRACE", 1000)
    template = ChatTemplate(each("{{ m.content }}"), {}, plans=True)
    for role in "abcdefghij":
        for _ in range(6):
            template.render([say(role, "x")])
    assert template._plans is not None
    assert template._plans._traces == 5


def test_the_outcomes_of_guards_have_so_many_plans() -> None:
    planned, jinja = both(each("{{ m.content | length if m.content | length == 1 else 'n' }}") * 2)
    for turn in range(600):
        talk = [say("user", "x" * (1 + (turn >> place & 1))) for place in range(5)]
        compare(planned, jinja, talk)
    assert planned._plans is not None
    counts = [len(pattern.plans) for pattern in planned._plans._patterns.values()]
    assert max(counts) == plans.MAX_PLANS_PER_PATTERN


def test_the_store_of_patterns_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "MAX_PATTERNS", 8)
    planned, jinja = both(each("{{ m.role }}{{ m.content }}"))
    for number in range(60):
        for _ in range(6):
            compare(planned, jinja, [say("often", "x")])
            compare(planned, jinja, [say(f"role {number}", "x")])
    assert planned._plans is not None
    assert len(planned._plans._patterns) <= 8
    assert len(planned._plans._seen) <= 4 * 8 + 1


def test_threads_share_plans() -> None:
    planned, jinja = both(each("{% if m.content > 'm' %}+{% endif %}{{ m.role }}{{ m.content }}"))
    wrong = []

    def work(seed: int) -> None:
        for turn in range(300):
            talk = [say("user", chr(97 + (turn * seed + place) % 26)) for place in range(1 + turn % 4)]
            if planned.render(talk) != jinja.render(talk):
                wrong.append(talk)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert planned.rendered_by_plan > 0


# Random conversations

FUZZED = (
    "".join(PLANNED[name] for name in ("as it is", "defined", "types", "nested", "reasoning")),
    "".join(PLANNED[name] for name in ("keys", "values", "tojson", "default", "logic")),
    PLANNED["macro"] + PLANNED["tilde"] + PLANNED["stripped"] + PLANNED["in"],
    PLANNED["generation"] + PLANNED["previous item"] + PLANNED["compared"] + PLANNED["split"],
    PLANNED["arguments"] + PLANNED["regions"],
    PLANNED["raise"],
)
TEXTS = st.sampled_from([*CONTENTS, "<|im_end|>", "</s>", "\x00", "<think>\nr\n</think>a", " ", "\ud800"])
LEAVES = st.one_of(TEXTS, st.none(), st.booleans(), st.integers(-3, 1 << 70), st.floats())
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXTS, inner, max_size=2))
CALLS = st.lists(
    st.fixed_dictionaries({"function": st.fixed_dictionaries({"name": LEAVES, "arguments": VALUES})}), max_size=2
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "role": st.one_of(st.sampled_from(["user", "assistant", "system", "tool"]), LEAVES),
            "content": st.one_of(TEXTS, TEXTS, VALUES),
            "tool_calls": st.one_of(CALLS, VALUES),
            "thinking": st.one_of(st.none(), TEXTS),
            "items": VALUES,
        },
    ),
    max_size=3,
)


def varied(value: Any, dice: random.Random) -> Any:
    """The same structure, other texts and numbers."""
    if isinstance(value, dict):
        return {key: inner if key == "role" else varied(inner, dice) for key, inner in value.items()}
    if isinstance(value, list):
        return [varied(inner, dice) for inner in value]
    if isinstance(value, str):
        return dice.choice([value, *CONTENTS])
    return dice.choice([value, value + 1]) if type(value) is int else value


@settings(max_examples=60)
@given(messages=MESSAGES, tools=st.none() | st.lists(st.dictionaries(TEXTS, VALUES, max_size=2), max_size=2))
def test_random_conversations_render_alike(messages: list[Message], tools: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plans, "FREE_TRACES", 1 << 30)
        patch.setattr(plans, "SIGHTINGS_BEFORE_TRACE", 1)
        for source in FUZZED:
            planned, jinja = both(source)
            for turn in range(6):
                talk, given = varied(messages, random.Random(turn)), varied(tools, random.Random(turn))
                assert outcome(planned.render, talk, tools=given) == outcome(jinja.render, talk, tools=given)
                assert outcome(planned.render_chat, talk) == outcome(jinja.render_chat, talk)
            assert source not in plans.DISAGREEING_TEMPLATES


# What a template writes otherwise


def ways(turn: str, answer: str, turns: int = 1) -> list[set[str]] | None:
    """The texts of a template, whichever way its tests of each answer come out; None: one of them is not known."""
    template = ChatTemplate(each(turn), TOKENS)
    talk = [say("user" if place % 2 == 0 else "assistant", answer) for place in range(2 * turns)]
    assert template.provenance(talk, template.render(talk)) is not None
    about = frozenset(range(1, 2 * turns, 2))
    found = template.with_other_outcomes(talk, about, None)
    if not about <= found.keys():
        return None
    return [{"".join(planned.pieces) for planned in found[message]} for message in sorted(about)]


@pytest.mark.parametrize(
    ("turn", "wanted"),
    [
        ("{{ m.content }}", ["avxzw"]),  # other words meanwhile
        ("{{ '!' if m.content == 'b' }}", ["", "!"]),
        ("{{ '!' if m.content == 'b' or m.content | length > 3 }}", ["", "!"]),
        ("{{ 1 if m.content else 2 }}{{ 3 if 'x' in m.content else 4 }}", ["1414", "1413", "1424", "1423"]),
        ("{% set x = m.content == 'b' %}{{ 1 if x else 2 }}{{ 3 if x else 4 }}", ["2424", "2413"]),
        ("{% if m.content == 'b' %}{{ raise_exception('no') }}{% endif %}.", [".."]),
        ("{{ 'system' if m.role == 'system' else 'other' }}", ["otherother"]),
        ("{{ m.content.split('</think>')[0] }}{{ '!' if '</think>' in m.content }}", ["avxzw", "avxzw!"]),
    ],
)
def test_every_test_of_a_message_is_taken_both_ways(turn: str, wanted: list[str]) -> None:
    found = ways(turn, "a")
    assert found == [set(wanted)]


def test_one_rendering_takes_a_way_of_every_message(monkeypatch: pytest.MonkeyPatch) -> None:
    traced = Recorder._traced
    counts: list[int] = []

    def counted(*arguments: Any) -> Any:
        counts[-1] += 1
        return traced(*arguments)

    monkeypatch.setattr(Recorder, "_traced", counted)
    for turns in (2, 20):
        counts.append(0)
        assert ways("{{ '!' if m.content == 'b' }}{{ m.content }}", "a", turns) is not None
    assert counts == [3, 3]  # what is known of the conversation, and two ways


@pytest.mark.parametrize(
    "turn",
    [
        "".join("{{ '!' if m.content == '" + str(number) + "' }}" for number in range(7)),  # 128 ways
        "{% if m.content == 'b' %}{{ m.content.split('b')[1].strip() }}{% endif %}",  # nothing stands there in an "a"
    ],
)
def test_too_many_ways_and_those_that_fail_are_not_known(turn: str) -> None:
    assert ways(turn, "a") is None


def test_what_is_found_does_not_depend_on_the_words() -> None:
    turn = "{% if 'b' in m.content %}{{ m.content.split('b')[1].strip() }}{% endif %}"
    assert ways(turn, "abc") is None  # as with "a", though there it could be taken
    assert ways("{{ '!' if messages[0].content == 'a' and loop.index0 and m.content == 'b' }}", "b") is None


def test_a_message_whose_other_words_are_refused_hides_no_way_of_another() -> None:
    turn = "{% if m.content.count('b') == 0 %}{{ raise_exception('no') }}{% endif %}{{ '!' if 'x' in m.content }}"
    found = ways("{% if m.role == 'assistant' %}" + turn + "{% endif %}", "b", 2)
    assert found == [{"", "!!"}, {"", "!!"}]  # both are taken at once


def test_a_way_that_fails_is_that_of_its_message_alone() -> None:
    turn = "{% if m.content == 'b' and loop.last %}{{ m.content.split('b')[1].strip() }}{% endif %}"
    template = ChatTemplate(each(turn), TOKENS)
    talk = [say("user", "a"), say("assistant", "a"), say("user", "a"), say("assistant", "a")]
    assert template.provenance(talk, "") is not None
    assert template.with_other_outcomes(talk, frozenset((1, 3)), None).keys() == {1}
