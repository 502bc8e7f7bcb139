"""Chats of a kind that comes again: joined without the template, with the text and the turns that rendering gives."""

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import example, given, settings

from beam_prep import testing
from beam_prep.chat.apply import apply_template
from beam_prep.chat.chat_format import ChatFormat, template_of
from beam_prep.chat.origins import Text
from beam_prep.chat.template import ChatTemplate
from beam_prep.data.block import Reject
from beam_prep.data.schema import Output
from tests.chat.trained import CHATML, CONTROLS, END, HEADER, PROMPT, SECTIONS, TOKENS, each, say, talk
from tests.conftest import ROOT
from tests.reference import ours

SOURCES = {
    "chatml": CHATML,
    "stripped": CHATML.replace("m.content", "m.content.strip()"),
    "asks for a word": CHATML.replace("m.content", "('yes' if 'x' in m.content else 'no') + m.content"),
    "asks for an equal": CHATML.replace("m.content", "('same' if m.content == 'x y' else m.content)"),
    "asks for any words": CHATML.replace("{{ m.content }}", "{% if m.content %}{{ m.content }}{% endif %}"),
    "takes reasoning out": CHATML.replace("m.content", "m.content.split('</think>')[-1].lstrip('\n')"),
    "thinks": CHATML.replace(
        "{{ m.content }}", "{{ '<think>\n\n</think>\n\n' if m.role == 'assistant' and loop.last }}{{ m.content }}"
    ),
    "without what is blank": CHATML.replace("in messages %}", "in messages if m.content.strip() %}"),
    "marks": "{% for m in messages %}" + HEADER + "{% generation %}{{ m.content }}{% endgeneration %}" + END + PROMPT,
    "repeats the question": CHATML.replace("{{ m.content }}", "{{ messages[0].content }}{{ m.content }}"),
    "system first": "{% if messages[0].role == 'system' %}{{ messages[0].content ~ '\n' }}{% endif %}" + CHATML,
    "characters": CHATML.replace("{{ m.content }}", "{% for c in m.content %}{{ c }}{% endfor %}"),
    "raises": CHATML.replace("{{ m.content }}", "{{ raise_exception('no') if 'no' == m.content else m.content }}"),
    "looks for it in a constant": CHATML.replace("m.content", "(m.content if m.content in 'x yz' else 'other')"),
    "writes no question": CHATML.replace("m.content", "m.content if m.role != 'user'"),
    "writes contents alone": each("{{ m.content }}"),
    "a half of a token": CHATML.replace("{{ m.content }}", "<|im_{{ m.content }}"),
}
SAID = [
    *("hello there", "yes it is", "x y", "x yz", "no", "abc", "abcd", "", " ", "x", " x y", "x y ", "\nxy", "<think>"),
    *("<|im_end|>", "so <|im_end|> it", "a</think>b", "</think>", "end|>", "assistant", "\u00e9\u2028\U0001f600"),
    *("<|im_start|>assistant\nno", "</s>", "<s", "\u2060xy"),
]
ROLES = st.sampled_from([("user", "assistant"), ("system", "user", "assistant"), ("user", "assistant") * 2, ("user",)])


def check(template: ChatTemplate, messages: list[dict[str, Any]], **variables: Any) -> bool:
    """Compares a chat with its rendering, if it is replayed."""
    try:
        found = template.render(messages, True, **variables)
    except Reject:
        return False
    if not found.replayed:
        return False
    rendered = template.render(messages, **variables)
    assert found.text == rendered.text == template.text(messages, **variables)
    assert found._replace(said=(), replayed=False) == rendered._replace(said=())
    assert rendered.not_rendered == []
    return True


@pytest.mark.parametrize("name", SOURCES)
@settings(max_examples=settings().max_examples // 2)
@given(
    roles=ROLES,
    first=st.integers(0, 2),
    said=st.lists(st.lists(st.sampled_from(SAID), min_size=4, max_size=4), min_size=1, max_size=5),
)
def test_a_replay_is_what_is_rendered(name: str, roles: tuple[str, ...], first: int, said: list[list[str]]) -> None:
    """The first of a kind may be any."""
    template = ChatTemplate(SOURCES[name], TOKENS, CONTROLS)
    plain = [[say(role, f"turn {turn} {n}") for n, role in enumerate(roles)] for turn in range(2)]
    chats = [[say(role, text) for role, text in zip(roles, texts, strict=False)] for texts in said]
    for chat in [*plain[:first], *chats, *plain * 4, *chats]:
        check(template, chat)


@pytest.mark.parametrize("roles", [("user", "assistant"), ("system", "user", "assistant", "user", "assistant")])
def test_plain_chats_of_a_kind_are_replayed(roles: tuple[str, ...]) -> None:
    for template in (template_of(ours(ROOT / "examples" / "tokenizer")), ChatTemplate(CHATML, TOKENS, CONTROLS)):
        found = [check(template, [say(role, f"{role} says {n}") for role in roles]) for n in range(8)]
        assert found[0] is False
        assert found[-1] is True


CALLS = (
    "{% if tools %}{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content %}{{ m.content }}{% endif %}"
    "{% for call in m.tool_calls or [] %}{% set f = call.function %}WRITE{% endfor %}<|im_end|>\n{% endfor %}" + PROMPT
)
WRITTEN = {
    "json": "{{ f.name }} {{ f.arguments | tojson }}",
    "whole": "{{ call | tojson }}",
    "function": "{{ f | tojson }}",
    "id": "{{ call.id | tojson }} {{ f | tojson }}",
    "if any": "{{ f.name }} {% if f.arguments %}{{ f.arguments | tojson }}{% endif %}",
    "if a string": "{{ f.name }} {{ f.arguments if f.arguments is string else f.arguments | tojson }}",
    "as a mapping": "{{ f.name }} {% if f.arguments is mapping %}{{ f.arguments | tojson }}{% endif %}",
    "each": "{{ f.name }}{% for key, value in f.arguments | items %}<{{ key }}>{{ value }}</{{ key }}>{% endfor %}",
    "by number": "{{ f.arguments | length }}{{ f | tojson }}",
    "by sequence": "{{ f.arguments is sequence }}{{ f | tojson }}",
    "by key": "{{ 'city' in f.arguments }}{{ f.arguments.city is defined }}{{ f | tojson }}",
    "by copy": "{{ f.arguments.copy() | length }}{{ f | tojson }}",
    "by equal calls": "{{ call == m.tool_calls[0] }}{{ f | tojson }}",
    "by equal messages": "{{ m == messages[0] }}{{ messages.index(m) }}{{ f | tojson }}",
    "by its words": "{{ f | tojson | length }}{{ 'x' in (f | tojson) }}{{ f | tojson }}",
    "printed": "{{ f.arguments }}{{ f | tojson }}",
    "indented": "{{ f | tojson(indent=2) }}",
    "as in Kimi": "{{ call.id }}{{ f.arguments | tojson }}",
    "as dict": "{{ dict(f.arguments) | length }}{{ f | tojson }}",
    "asked for its name": "{{ 'find' if f.name == 'find' else 'other' }}{{ f | tojson }}",
}
ARGUMENTS = st.sampled_from([{}, {"city": "Oslo"}, {"city": "x", "n": [1, None]}, {"a": {"b": "<|im_end|>"}}, {"x": 1}])
NAMES = st.sampled_from(["find", "add", "find_all", "f"])


def call_of(own: str, name: str, arguments: Any) -> dict[str, Any]:
    return {"id": own, "type": "function", "function": {"name": name, "arguments": arguments}}


@st.composite
def calling(draw: st.DrawFn) -> dict[str, Any]:
    count = draw(st.integers(1, 2))
    calls = [call_of(f"call_{draw(NAMES)}", draw(NAMES), draw(ARGUMENTS)) for _ in range(count)]
    tool = {"name": draw(NAMES), "parameters": draw(ARGUMENTS), **draw(st.sampled_from([{}, {"role": "x"}]))}
    said = draw(st.sampled_from([None, "", " ", "let me see"]))
    messages = [
        say("user", draw(st.sampled_from(["which?", "what?"]))),
        {"role": "assistant", "content": said, "tool_calls": calls},
        say("tool", draw(st.sampled_from(["it is cold", "7", "which?"]))),
        say("assistant", draw(st.sampled_from(["it is cold", "so it is"]))),
    ]
    return {"messages": messages, "tools": [{"type": "function", "function": tool}]}


def called_twice(*functions: str) -> dict[str, Any]:
    calls = [call_of("call_f", name, {}) for name in functions]
    return {"messages": [say("user", "which?"), {"role": "assistant", "content": "", "tool_calls": calls}]}


@pytest.mark.parametrize("written", WRITTEN)
@settings(max_examples=settings().max_examples // 2)
@given(st.lists(calling(), min_size=1, max_size=4))
@example([called_twice("find", "find"), called_twice("find", "add")])
def test_calls_that_are_replayed_are_what_is_rendered(written: str, chats: list[dict[str, Any]]) -> None:
    template = ChatTemplate(CALLS.replace("WRITE", WRITTEN[written]), TOKENS, CONTROLS)
    for chat in [*chats * 7, *reversed(chats)]:
        check(template, **chat)


@pytest.mark.parametrize("written", ["json", "whole", "function", "id", "if any", "if a string", "as a mapping"])
def test_calls_of_a_kind_are_replayed(written: str) -> None:
    template = ChatTemplate(CALLS.replace("WRITE", WRITTEN[written]), TOKENS, CONTROLS)
    found = []
    for n in range(8):
        calls = [call_of(f"call_{n}", f"find_{n}", {f"key {n}": [n] * n})]
        messages = [say("user", f"ask {n}"), {"role": "assistant", "content": "", "tool_calls": calls}]
        tools = [{"type": "function", "function": {"name": f"find_{n}", "parameters": {"n": n}}}]
        found.append(check(template, messages, tools=tools))
    assert found[-1] is True


def test_what_is_lost_in_one_chat_is_lost_though_others_had_nothing_to_lose() -> None:
    """Empty arguments, a name in the id, and one word beside no content may stay unwritten."""
    source = each("{{ m.content }}{% for c in m.tool_calls or [] %}WRITE{% endfor %}")
    for written, first, other in (
        ("{{ c.name }}", {"name": "find", "arguments": "{}"}, {"name": "find", "arguments": '{"a": 1}'}),
        ("{{ c.id }}", {"id": "find:1", "name": "find"}, {"id": "call:1", "name": "find"}),
    ):
        template = ChatTemplate(source.replace("WRITE", written), TOKENS, CONTROLS, tool_arguments="as_is")
        for call in (*[first] * 8, other):
            messages = [say("user", "ask"), {"role": "assistant", "content": "see", "tool_calls": [call]}]
            lost = template.render(messages, True).not_rendered
            assert lost == template.render(messages).not_rendered
        assert lost
    template = ChatTemplate(source, TOKENS, CONTROLS)
    for state in (*["done"] * 8, "not yet done"):
        messages = [say("user", "ask"), {"role": "assistant", "state": state}]
        assert template.render(messages, True).not_rendered == template.render(messages).not_rendered


def test_a_chat_that_may_exceed_a_limit_is_rendered() -> None:
    template = ChatTemplate(CHATML, TOKENS, CONTROLS)
    found = [check(template, talk("question", "word " * size + "end")) for size in (*[1] * 7, 20_000, 1)]
    assert found[-3:] == [True, False, True]


@pytest.mark.parametrize(
    "asked",
    [
        "'&lt;' in (m.content | escape)",
        "m.content | safe == 'yes'",
        "m.content is escaped",
        "messages | map(attribute='content') | unique | list | length == 1",
        "[m.content, 'yes'] | unique | list | length == 1",
        "m.role == m.content",
        "messages[0].content in [m.role]",
        "messages | selectattr('role', 'lt', messages[0].content) | list",
        "'yes no'.startswith(*[m.content])",
        "'yes no'['startswith'](m.content)",
        "('yes no' | attr('find'))(m.content) == 0",
        "messages[0].content.endswith(*[(messages[1].content, 'x')])",
        "[m.content] | select('i' ~ 'n', 'yes no') | list",
        "not [messages[0].content] is lower",
        "messages[0].content[3] is defined",
        "'yes' | safe == m.content",
        "messages[0].content.index('s') == 0",
    ],
)
def test_what_is_asked_past_a_texts_methods_does_not_depend_on_chats_before(asked: str) -> None:
    source = CHATML.replace("{{ m.content }}", "{{ '[' if " + asked + " }}{{ m.content }}")
    template = ChatTemplate(source, TOKENS, CONTROLS)
    plain = [("ask", f"say {n}") for n in range(8)]
    for texts in (*plain, ("yes", "yes"), ("a<b", "c<d>"), ("user", "er"), ("LOUDLY", "er")):
        check(template, talk(*texts))


@pytest.mark.parametrize(
    ("written", "first", "other"),
    [
        ("{{ '%.1s' % (m.content,) }}", {"content": "\ue000ab"}, {"content": "xyz"}),
        ("look at {{ m.content }}", {"content": "it"}, {"content": "0x12"}),
        ("{{ m | tojson }}", {"content": "so it is", "state": "done"}, {"content": " ", "state": "done"}),
        ("{{ m.content | tojson }}", *({"content": [{"type": "text", "text": text}]} for text in ("so", " "))),
        ("{{ m.name }}\n{{ m.content }}", {"content": "so", "name": "assistant"}, {"content": "so", "name": "helper"}),
    ],
)
def test_what_a_text_decides_beside_the_text_is_decided_for_each_chat(
    written: str, first: dict[str, Any], other: dict[str, Any]
) -> None:
    """Whether it looks like an address or a mark, has words, or is a name that a header may have."""
    header = "<|im_start|>" + ("" if "m.name" in written else "{{ m.role }}\n")
    source = "{% for m in messages %}" + header + written + END + PROMPT
    template = ChatTemplate(source, TOKENS, CONTROLS)
    for said in (*[first] * 8, other):
        check(template, [{"role": "user", **said}, *([{"role": "assistant", **said}] if "name" in said else [])])


@pytest.mark.parametrize(("written", "half"), [("<{{ m.name }}>", "/s"), ("{{ m.name }}{{ '/s>' }}", "so <")])
def test_a_token_across_the_border_of_a_text_is_not_overlooked(written: str, half: str) -> None:
    source = CHATML.replace("{{ m.content }}", "{{ m.content }}{% if m.name %}" + written + " so{% endif %}")
    template = ChatTemplate(source, TOKENS, CONTROLS)
    for name in (*["helper"] * 8, half):
        check(template, [say("user", "ask"), {**say("assistant", "yes"), "name": name}])


def test_a_kind_is_learned_though_its_first_chats_are_not_plain() -> None:
    template = ChatTemplate(CHATML, TOKENS, CONTROLS)
    found = [check(template, talk(f"ask {n}", f"say {n}" + " " * (n < 5))) for n in range(70)]
    assert (any(found[:5]), found[-1]) == (False, True)


def test_kinds_are_told_apart() -> None:
    """By roles that are named like variables, by a null role of a tool, and texts that are one object in Python."""
    template = ChatTemplate("{{ more }}" + CHATML, TOKENS, CONTROLS)
    for n in range(8):
        check(template, [say("user", f"ask {n}")], more="a")
    check(template, [say("user", "ask"), say("more", "or"), say("'a'", "less")])
    source = "{{ tools[0].name }} {{ tools[0].about }} {{ 1 if tools[0].role is none else 2 }}" + CHATML
    for first, other in (("find", "add"), ("f", "add")):
        template = ChatTemplate(source, TOKENS, CONTROLS)
        for _ in range(8):
            check(template, [say("user", "ask")], tools=[{"name": first, "about": first, "role": None}])
        check(template, [say("user", "ask")], tools=[{"name": other, "about": "sums", "role": None}])
        check(template, [say("user", "ask")], tools=[{"name": other, "about": "sums", "role": "None"}])


def test_a_guard_that_does_not_hold_is_rendered() -> None:
    template = ChatTemplate(SOURCES["asks for a word"], TOKENS, CONTROLS)
    for n in range(6):
        check(template, talk("question", f"words {n}"))
    assert [check(template, talk("question", text)) for text in ("again", "with an x", "again")] == [True, False, True]
    template = ChatTemplate(CHATML.replace("assistant\n' }}", "assistant\n<think>\n' }}"), TOKENS, CONTROLS)
    for n in range(6):
        check(template, talk("question", f"words {n}"))
    assert [check(template, talk("question", text)) for text in ("again", "<think>\nso", "no")] == [True, False, True]


@pytest.mark.parametrize("variables", [{"more": "a"}, {"more": ["a", {"b": 1}]}, {"more": True}])
def test_variables_make_kinds_of_their_own(variables: dict[str, Any]) -> None:
    template = ChatTemplate("{{ more }}" + CHATML, TOKENS, CONTROLS)
    for n in range(8):
        for given_ in ({}, variables, {"more": 1}):
            check(template, talk("question", f"answer {n}"), **given_)
    assert check(template, talk("question", "answer"), **variables)
    assert not check(template, talk("question", "answer"), tools=[])


def test_threads_render_while_a_kind_is_learned() -> None:
    template = ChatTemplate(CHATML.replace("m.content", "m.content | trim") + "{# threads #}", TOKENS, CONTROLS)
    start = threading.Barrier(4)

    def work(seed: int) -> None:
        start.wait()
        for turn in range(60):
            chat = [say(("user", "assistant")[n % 2], f"{seed} says {turn}.{n}") for n in range(1 + turn % 7)]
            check(template, chat)
            wanted = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in chat)
            assert template.render(chat).text == wanted

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert check(template, talk("question", "answer"))


def test_what_is_learned_leaves_texts_as_they_were() -> None:
    before = dict(vars(Text))
    template = ChatTemplate(each("{{ m.content | trim }}{{ 1 // (m.content | length - 8) }}"), TOKENS, CONTROLS)
    for text in (*["question"] * 6, "answer"):
        with contextlib.suppress(Reject):
            template.render(talk(text), True)
    assert dict(vars(Text)) == before


def test_marks_are_marks_when_their_kind_comes_again() -> None:
    """They are counted, and an answer begins where they do, as in the first chats."""
    blank = SOURCES["marks"].replace("{% generation %}", "{{ ' ' }}{% generation %}")
    chat_format = ChatFormat(ChatTemplate(blank, TOKENS, CONTROLS))
    output = Output("sequence", "ids", SECTIONS["$last"], "loss_mask")
    rows = [{"messages": talk(f"question {n}", f"answer {n}")} for n in range(8)]
    found = apply_template(testing.records(rows), (output,), chat_format)
    assert found.counters["marks_without_end"].tolist() == [1] * 8
    pieces = found.pieces["sequence"]
    assert len({str(pieces.segments[begin:end]) for begin, end in pairwise(pieces.borders.tolist())}) == 1
