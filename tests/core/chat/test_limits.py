"""What a rendering may cost: bombs are rejects, whatever they are made of; plans and jinja reject the same."""

import contextlib
import functools
import json
import tracemalloc
from collections import Counter
from dataclasses import dataclass
from typing import Any

import hypothesis.strategies as st
import pytest
from beam_prep.core.chat import limits, template
from beam_prep.core.chat.message import Message
from beam_prep.core.chat.recorded import tracer
from beam_prep.core.chat.sandbox import tojson
from beam_prep.core.chat.template import ChatTemplate
from hypothesis import example, given, settings

from beam_prep.core.data.block import Reject
from beam_prep.errors import TokenizerError
from tests.core.chat.test_recorded import NEVER_PLANNED, PLANNED
from tests.core.chat.test_template import say

TALK: list[Message] = [say("user", "hello"), say("assistant", "yes")]


def rounds(step: str, first: str = "'a'") -> str:
    """A step that is taken sixty times."""
    return f"{{% set n = namespace(x={first}) %}}{{% for i in range(60) %}}{{% set n.x = {step} %}}{{% endfor %}}"


BOMBS = {
    "loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "filtered loops": "{% for i in range(99999) %}{% for j in range(99999) if false %}{% endfor %}{% endfor %}",
    "loops over pairs": "{% for i, j in [[1, 2]] * 99999 %}{% for k, l in [[1, 2]] * 99999 %}{% endfor %}{% endfor %}",
    "macros": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(40) }}",
    "endless macro": "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
    "endless loop": "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "endless caller": "{% macro f() %}{% call f() %}{{ caller() }}{% endcall %}{% endmacro %}{{ f() }}",
    "endless block": "{% block a %}{{ self.a() }}{% endblock %}",
    "percent width": "{{ '%3000000000s' % 'a' }}",
    "percent star": "{{ '%*d' % (3000000000, 1) }}",
    "percent precision": "{{ '%.*f' % (300000000, 1.0) }}",
    "percent key": "{{ '%(a)300000000s' % {'a': 1} }}",
    "format filter": "{{ '%1000000000s' | format('a') }}",
    "times": "{{ 'a' * 10**10 }}",
    "times, not written": "{{ ('a' * 10**10) | length }}",
    "list times": "{{ [0] * 10**9 }}",
    "long number": "{{ (10**5000) | string }}",
    "power": "{{ 10 ** (10 ** 8) }}",
    "round": "{{ 1.5 | round(10**8) }}",
    "bytes of a number": "{{ (5).to_bytes(10**9, 'big') }}",
    "center": "{{ 'x'.center(10**9) }}",
    "ljust": "{{ 'x'.ljust(10**9) }}",
    "rjust": "{{ 'x'.rjust(10**9) }}",
    "zfill": "{{ 'x'.zfill(10**9) }}",
    "expandtabs": "{{ '\\t'.expandtabs(10**9) }}",
    "expandtabs by name": "{{ '\\t'.expandtabs(tabsize=10**9) }}",
    "bytes": "{{ 'a'.encode('utf-8').ljust(10**9) }}",
    "translate": "{{ ('a' * 100000).translate({97: 'x' * 1000}) }}",
    "punycode": "{{ ('\u00e9' * 100000).encode('punycode') }}",
    "join": "{{ ('x' * 9999).join('a' * 99999) }}",
    "join of a map": "{{ range(99999) | map('string') | join('x' * 9999) }}",
    "format": "{{ '{:1000000000}'.format(1) }}",
    "format in a format": "{{ '{0:{1}}'.format('a', 10**9) }}",
    "format_map": "{{ '{x:1000000000}'.format_map({'x': 1}) }}",
    "format of a map": "{{ ('{0}' * 9999).format('x' * 9999) }}",
    "center filter": "{{ 'a' | center(10**9) }}",
    "indent filter": "{{ 'a' | indent(10**9, true) }}",
    "replace filter": "{{ ('a' * 1000000) | replace('a', 'b' * 100) }}",
    "batch": "{{ 'a' | batch(10**9, 'x') | list }}",
    "slice": "{{ 'a' | slice(10**9) | list }}",
    "list of a text": "{{ ('a' * 10000000) | list }}",
    "batches of a text": "{{ ('a' * 10000000) | batch(1) | list }}",
    "split": "{{ ('a ' * 5000000).split() }}",
    "lines": "{{ ('\\n' * 5000000).splitlines() }}",
    "wordwrap": "{{ ('a b ' * 1000000) | wordwrap(1) }}",
    "urlize": "{{ ('a.com ' * 1000000) | urlize }}",
    "json with an indent": "{{ [1, 2, 3] | tojson(indent=10**9) }}",
    "json of a number with an indent": "{{ 0 | tojson(indent=10**9) }}",
    "json with a long indent": "{{ {'a': [1]} | tojson(indent='x' * 10000000) }}",
    "sum of lists": "{{ ([[1] * 1000] * 10000) | sum(start=[]) | length }}",
    "sort": "{% set x = ['y' * 1000000] * 1000 %}{{ x | sort | length }}",
    "map": "{% set x = ['y' * 1000000] * 1000 %}{{ x | map('upper') | list | length }}",
    "doubled by ~": rounds("n.x ~ n.x"),
    "doubled by +": rounds("n.x + n.x"),
    "doubled list": rounds("n.x + n.x", "['a']"),
    "doubled by replace": rounds("n.x.replace('a', 'aa')"),
    "doubled by the filter": rounds("n.x | replace('a', 'aa')"),
    "doubled by %": rounds("'%s%s' % (n.x, n.x)"),
    "doubled by format": rounds("'{0}{0}'.format(n.x)"),
    "doubled by json": rounds("(n.x | tojson) | tojson | tojson | tojson"),
    "nested lists": rounds("[n.x, n.x]") + "{{ n.x }}",
    "nested lists as json": rounds("[n.x, n.x]") + "{{ n.x | tojson }}",
    "nested lists in a format": rounds("[n.x, n.x]") + "{{ '%s' % n.x }}",
    "nested lists as text": rounds("[n.x, n.x]") + "{{ n.x | string | length }}",
    "nested lists pprint": rounds("[n.x, n.x]") + "{{ n.x | pprint }}",
    "nested lists joined": rounds("[n.x, n.x]") + "{{ n.x | join }}",
    "nested objects": rounds("{'a': n.x, 'b': n.x}") + "{{ '{}'.format(n.x) }}",
    "nested lists compared": rounds("[n.x, n.x]") + "{% set y = n.x %}" + rounds("[n.x, n.x]") + "{{ y == n.x }}",
    "nested lists looked for": rounds("[n.x, n.x]") + "{% set y = n.x %}" + rounds("[n.x, n.x]") + "{{ y in [n.x] }}",
    "nested lists tested": rounds("[n.x, n.x]") + "{% set y = n.x %}" + rounds("[n.x, n.x]") + "{{ y is eq n.x }}",
    "nested tuples as keys": rounds("(n.x, n.x)", "(1,)") + "{{ {n.x: 1} | length }}",
    "nested tuples as an index": rounds("(n.x, n.x)", "(1,)") + "{{ {}[n.x] }}",
    "nested lists in an error": rounds("[n.x, n.x]") + "{{ raise_exception(n.x) }}",
    "a namespace": rounds("{'a': n.x, 'b': n.x}") + "{{ n }}",
    "a namespace in itself": "{% set n = namespace() %}{% set n.n = n %}{{ n }}",
    "escaped": "{% autoescape true %}" + rounds("n.x ~ n.x ~ '<'") + "{% endautoescape %}",
    "written again and again": "{% set x = 'y' * 10000000 %}{{ x }}{{ x }}{{ x }}",
    "captured": "{% set x %}{% for i in range(9999) %}{{ 'y' * 9999 }}{% endfor %}{% endset %}{{ x | length }}",
    "kept texts": "{% set n = namespace(l=[]) %}{% for i in range(99999) %}"
    "{% set n.l = n.l + ['x' * 99999] %}{% endfor %}",
    "kept lists": "{% set n = namespace(l=[]) %}{% for i in range(99999) %}{% for j in range(99999) %}"
    "{% set n.l = [n.l, [1, 2, 3, 4, 5, 6, 7, 8, 9]] %}{% endfor %}{% endfor %}",
}


def outcome(source: str, talk: list[Message] = TALK) -> str:
    """The reason of the reject; "" if there is a text."""
    try:
        text = ChatTemplate(source, {}, date="2026-11-22").render(talk)
    except Reject as reject:
        return reject.reason
    assert len(text) <= limits.MAX_CHARACTERS
    return ""


@pytest.fixture
def little_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundredth of the work: the bombs that are made of steps take less time."""
    monkeypatch.setattr(template, "limited", functools.partial(limits.limited, limits.MAX_WORK // 100))


@pytest.mark.usefixtures("little_work")
@pytest.mark.parametrize("about", BOMBS)
def test_a_bomb_is_a_reject(about: str) -> None:
    assert outcome(BOMBS[about]) == "template_limit"


@pytest.mark.parametrize("about", ["percent width", "times", "doubled by replace", "kept texts", "batches of a text"])
def test_it_takes_no_memory(about: str) -> None:
    tracemalloc.start()
    assert outcome(BOMBS[about]) == "template_limit"
    assert tracemalloc.get_traced_memory()[1] < 200 << 20
    tracemalloc.stop()


ERRORS = {
    "truncate": "{{ 'abcdef' | truncate(2) }}",
    "division": "{{ 1 / 0 }}",
    "overflow": "{{ 10.0 ** 400 }}",
    "unicode": "{{ '\u00e9'.encode('ascii') }}",
    "no loader": "{% include 'x' %}",
    "no test": "{{ 'a' | select('nothing') | list }}",
    "no filter": "{{ ['a'] | map('nothing') | list }}",
    "bad format": "{{ '{' .format(1) }}",
    "too few": "{{ '%s %s' % 'a' }}",
    "too long a width": "{{ ('{:' ~ '9' * 5000 ~ '}').format(1) }}",
    "slice of nothing": "{{ [1, 2] | slice(0) | list }}",
    "wrong types": "{{ 'a' | replace(1) }}",
    "no name": "{{ nothing.at.all }}",
}


@pytest.mark.parametrize("about", ERRORS)
def test_what_a_template_s_code_raises_is_a_reject(about: str) -> None:
    assert outcome(ERRORS[about]) == "template_error"


@pytest.mark.parametrize(
    "source",
    [
        *("{% break %}", "{% continue %}", "{{ ", "{{ a | nothing }}", "{{ " + "(" * 500 + "1" + ")" * 500 + " }}"),
        *("{% for a in b %}" * 25 + "{% endfor %}" * 25, "{{ " + "9" * 5000 + " }}", "{{ x" + ".a" * 5000 + " }}"),
    ],
)
def test_a_template_that_does_not_compile_is_an_error_in_one_line(source: str) -> None:
    with pytest.raises(TokenizerError, match="the chat template does not compile") as caught:
        ChatTemplate(source, {})
    assert "\n" not in str(caught.value)


def test_loops_can_be_left() -> None:
    source = "{% for m in messages %}{{ m.content }}{% break %}{% endfor %}"
    source += "{% for i in range(3) %}{% continue %}x{% endfor %}"
    assert ChatTemplate(source, {}).render(TALK) == "hello"


def test_long_conversations_are_far_below_the_limits() -> None:
    inner = "{% for n in messages %}{% if n is mapping %}{% endif %}{% endfor %}"
    quadratic = "{% for m in messages %}" + inner + "{{ m.content }}{% endfor %}"
    assert outcome(quadratic, [say("user", "x" * 1000)] * 300) == ""
    adding = "{% for m in messages %}{% set n.t = n.t ~ m.content | trim %}{% endfor %}"
    adding = "{% set n = namespace(t='') %}" + adding + "{{ n.t }}"
    assert outcome(adding, [say("user", "x" * 1000)] * 300) == ""
    assert (
        outcome("{% for m in messages %}{{ m.content | trim }}{% endfor %}", [say("user", "x" * 1_000_000)] * 16) == ""
    )


# Steps that may give much, of one another: nothing that a template puts together raises what is no reject.

NUMBERS = ["0", "1", "-1", "3", "64", "9999", "10**9", "10**30", "true", "none", "1.5"]
TEXTS = ["''", "'a'", "'ab\\t\\n<'", "'x' * 9999", "m.content", "'%5s%r'", "'{0:9}{0!r}'", "m"]
STEPS = [
    *("({x} * {n})", "({x} ~ {x})", "({x} + {y})", "({x} % {y})", "({x} % ({n}, {y}))", "[{x}, {x}]", "({x}, {y})"),
    *("{{'a': {x}, 'b': [{x}]}}", "{x}[:{n}]", "({n} ** {n})", "({x} * 99)", "{x} | string", "{x} | tojson"),
    *("({x} | tojson(indent={n}))", "({x} | list)", "({x} | join({y}))", "({x} | center({n}))", "({x} | indent({n}))"),
    *(
        "({x} | replace({y}, {x}))",
        "({x} | batch({n}, {y}) | list)",
        "({x} | slice({n}) | list)",
        "({x} | truncate({n}))",
    ),
    *(
        "({x} | wordwrap({n}))",
        "({x} | sort)",
        "({x} | map('upper') | list)",
        "({x} | sum(start={y}))",
        "({x} | pprint)",
    ),
    *("({x} | format({y}))", "({x} | urlize)", "({x} | xmlattr)", "({x} | title)", "({x} | round({n}))", "({x} | int)"),
    *("({x} | groupby({n}) | list)", "({x} | unique | list)", "({x} | min)", "({x} | dictsort)", "({x} | escape)"),
    *("({x} | string).replace({y}, {x} | string)", "({x} | string).join({x})", "({x} | string).split({y})"),
    *("({x} | string).zfill({n})", "({x} | string).expandtabs({n})", "({x} | string).format({y}, {n})"),
    *("({x} | string).translate({{97: {x}}})", "({x} | string).encode('utf-16')", "({x} | string).ljust({n}, 'b')"),
    *("({x} | string).splitlines()", "({x} | string).format_map({{'a': {y}}})", "({x} | string).encode().hex()"),
    *(
        "dict(a={x}, b={y})",
        "namespace(a={x})",
        "range({n}) | list",
        "(({x}, {n}) | string)",
        "dict.fromkeys({x}, {y})",
    ),
]


@st.composite
def expressions(draw: st.DrawFn) -> str:
    x = draw(st.sampled_from(TEXTS))
    for step in draw(st.lists(st.sampled_from(STEPS), min_size=1, max_size=7)):
        y, n = draw(st.sampled_from(TEXTS)), draw(st.sampled_from(NUMBERS))
        x = step.format(x=f"({x})", y=f"({y})", n=f"({n})")
        if len(x) > 4000:
            break
    return x


@settings(max_examples=300, deadline=None)
@given(expressions())
@example("0 | tojson(indent=10**9)")
def test_whatever_a_template_puts_together_it_is_a_text_or_a_reject(expression: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "MAX_CHARACTERS", 1 << 18)
        patch.setattr(template, "limited", functools.partial(limits.limited, 1 << 21))
        tracemalloc.start()
        source = "{% for m in messages %}{{ " + expression + " }}{% endfor %}"
        with contextlib.suppress(TokenizerError):  # it does not compile
            assert outcome(source) in ("", "template_limit", "template_error")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 64 << 20, expression


# Plans.


@pytest.mark.usefixtures("plans_at_once")
@pytest.mark.parametrize("about", [*PLANNED, *NEVER_PLANNED])
def test_plans_and_jinja_reject_the_same(about: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With small limits, and contents that come to them from below."""
    source = {**PLANNED, **NEVER_PLANNED}[about]
    monkeypatch.setattr(limits, "MAX_CHARACTERS", 1 << 15)
    monkeypatch.setattr(tracer, "MAX_CHARACTERS", 1 << 15)
    monkeypatch.setattr(tracer, "MIN_LARGEST", 1)
    monkeypatch.setattr(template, "limited", functools.partial(limits.limited, 1 << 17))
    planned, jinja = (ChatTemplate(source, {"eos_token": "</s>"}, plans, "2026-11-22") for plans in (True, False))

    def tried(chat: ChatTemplate, talk: list[Message]) -> Any:
        try:
            return chat.render(talk)
        except Reject as reject:
            return reject.reason, reject.message

    reasons = set()
    for word in ("a", " a", "\u00e9", '"\\', "\n"):
        for size in (1, 1, 1, 1, 1, 1, 50, 400, 1500, 3000, 4000, 6000, 8000, 12000, 16000, 20000, 33000):
            talk = [say("user", word * (size // len(word))), say("assistant", "b a")]
            found = tried(planned, talk)
            assert found == tried(jinja, talk)
            reasons.add(found[0] if isinstance(found, tuple) else "")
    assert "" in reasons or "template_error" in reasons


def paid_one_by_one(value: Any, named: list[str]) -> int:
    """What a value costs a step that takes it, looked at part by part; `named` gets the variables in it."""
    kind = type(value)
    if kind is tracer.Tracer:
        if not value.parts and value.name:
            named.append(value.name)
        return limits.ITEM * len(value.parts) + sum(paid_one_by_one(part, named) for part in value.parts)
    if kind is str:
        return len(value)
    if kind in (list, tuple, dict):
        inside = [*value, *value.values()] if kind is dict else value
        return limits.ITEM * (len(value) + 4) + sum(paid_one_by_one(item, named) for item in inside)
    return 0


@dataclass(frozen=True)
class Variable:
    """What becomes a tracer: hypothesis may not look at one."""

    name: str
    parts: tuple[Any, ...] = ()


def traced(trace: tracer.Trace, value: Any) -> Any:
    """The value with tracers for its variables."""
    if type(value) is Variable:
        parts = tuple(traced(trace, part) for part in value.parts)
        return trace.tracer(value.name, "x", str, frozenset(), parts=parts)
    if type(value) in (list, tuple):
        return type(value)(traced(trace, item) for item in value)
    return {key: traced(trace, item) for key, item in value.items()} if type(value) is dict else value


CONSTANTS = st.sampled_from(["", "a", "\U0001f600" * 3, 1, None, True])
NAMES = st.sampled_from(["", "v1", "v2", "v3"])
ALONE = NAMES.map(Variable)
PARTS = st.lists(CONSTANTS | ALONE | st.tuples(CONSTANTS, ALONE), min_size=1, max_size=3)
PAID = st.recursive(
    CONSTANTS | ALONE | st.builds(Variable, NAMES, PARTS.map(tuple)),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(st.just("k"), inner),
    max_leaves=6,
)


@given(st.data())
def test_a_step_of_a_traced_rendering_is_paid_for_as_its_values_are_one_by_one(data: st.DataObject) -> None:
    trace = tracer.Trace({})
    given_values = [traced(trace, value) for value in data.draw(st.lists(PAID, max_size=4))]
    named: list[str] = []
    wanted = limits.STEP + sum(paid_one_by_one(value, named) for value in given_values)
    trace._within = {"v2": "v1"}
    with limits.limited() as budget:
        trace.pay(*given_values)
    assert budget.work == wanted
    assert trace._weights == Counter("v1" if name == "v2" else name for name in named)
    with pytest.raises(limits.TemplateLimit), limits.limited(wanted - 1):
        trace.pay(*given_values)


def test_a_list_that_is_in_itself_very_often_ends_a_traced_rendering() -> None:
    value: list[Any] = ["x"]
    for _ in range(60):
        value = [value, value]
    with pytest.raises(limits.TemplateLimit), limits.limited(limits.MAX_TRACED):
        tracer.Trace({}).pay(value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(JSON)
def test_tojson_writes_what_json_does(value: Any) -> None:
    assert tojson(value) == json.dumps(value, ensure_ascii=False)
