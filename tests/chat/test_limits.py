"""What a rendering may cost: bombs are rejects, whatever they are made of."""

import json
import resource
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_prep.chat import limits
from beam_prep.chat.template import ChatTemplate
from beam_prep.data.block import Reject
from beam_prep.errors import TokenizerError
from tests.chat.trained import Message, each, say

TALK: list[Message] = [say("user", "bomb"), say("assistant", "yes")]


def rounds(step: str, first: str = "'a'") -> str:
    """A step that is taken sixty times."""
    return f"{{% set n = namespace(x={first}) %}}{{% for i in range(60) %}}{{% set n.x = {step} %}}{{% endfor %}}"


BOMBS = {
    "loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "percent width": "{{ '%3000000000s' % 'a' }}",
    "percent star": "{{ '%*d' % (3000000000, 1) }}",
    "times": "{{ 'a' * 10**10 }}",
    "list times": "{{ [0] * 10**9 }}",
    "long number": "{{ (10**5000) | string }}",
    "power": "{{ 10 ** (10 ** 8) }}",
    **{name: "{{ 'x'." + name + "(10**9) }}" for name in ("center", "ljust", "rjust", "zfill")},
    "slice": "{{ 'a' | slice(10**9) | list }}",
    "format_map": "{{ '{x:1000000000}'.format_map({'x': 1}) }}",
    "lines": "{{ ('\\n' * 5000000).splitlines() }}",
    "expandtabs": "{{ '\\t'.expandtabs(10**9) }}",
    "translate": "{{ ('a' * 100000).translate({97: 'x' * 1000}) }}",
    "join": "{{ ('x' * 9999).join('a' * 99999) }}",
    "format": "{{ '{:1000000000}'.format(1) }}",
    "center filter": "{{ 'a' | center(10**9) }}",
    "indent filter": "{{ 'a' | indent(10**9, true) }}",
    "replace filter": "{{ ('a' * 1000000) | replace('a', 'b' * 100) }}",
    "batch": "{{ 'a' | batch(10**9, 'x') | list }}",
    "json with an indent": "{{ [1, 2, 3] | tojson(indent=10**9) }}",
    "json with a long indent": "{{ {'a': [1]} | tojson(indent='x' * 10000000) }}",
    "doubled by ~": rounds("n.x ~ n.x"),
    "doubled by +": rounds("n.x + n.x"),
    "doubled list": rounds("n.x + n.x", "['a']"),
    "doubled by json": rounds("(n.x | tojson) | tojson | tojson | tojson"),
    "nested lists as json": rounds("[n.x, n.x]") + "{{ n.x | tojson }}",
    "written again and again": "{% set x = 'y' * 10000000 %}{{ x }}{{ x }}{{ x }}",
    "captured": "{% set x %}{% for i in range(9999) %}{{ 'y' * 9999 }}{% endfor %}{% endset %}{{ x | length }}",
    "kept texts": "{% set n = namespace(l=[]) %}{% for i in range(99999) %}"
    "{% set n.l = n.l + ['x' * 99999] %}{% endfor %}",
}
ERRORS = [
    "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
    "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "{% macro f() %}{% call f() %}{{ caller() }}{% endcall %}{% endmacro %}{{ f() }}",
    "{{ 'abcdef' | truncate(2) }}",
    "{% include 'x' %}",
    "{{ ['a'] | map('nothing') | list }}",
    "{{ ('{:' ~ '9' * 5000 ~ '}').format(1) }}",
]


def outcome(source: str, talk: list[Message] | None = None) -> str:
    """The reason of the reject; "" if there is a text. It is no bomb for the probes of `ChatTemplate`."""
    source = "{% if messages[0].content == 'bomb' %}" + source + "{% endif %}" + each("{{ m.content }}")
    try:
        text = ChatTemplate(source, {}, (), date="2026-11-22").render(talk or TALK).text
    except Reject as reject:
        return reject.reason
    assert len(text) <= limits.MAX_CHARACTERS
    return ""


@pytest.mark.parametrize("about", BOMBS)
def test_a_bomb_is_a_reject(about: str) -> None:
    """Of what it makes little is there at once."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert outcome(BOMBS[about]) in ("template_limit", "template_error")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 450 << 10


@pytest.mark.parametrize("source", ERRORS)
def test_what_has_no_end_or_raises_is_a_reject(source: str) -> None:
    assert outcome(source) == "template_error"


@pytest.mark.parametrize(
    "source",
    [
        *("{% break %}", "{% continue %}", "{{ ", "{{ a | nothing }}", "{{ " + "(" * 500 + "1" + ")" * 500 + " }}"),
        *("{% if %}", "{% generation %}x", "{{ x | none }}", "{% nothing %}"),
        *("{% for a in b %}" * 25 + "{% endfor %}" * 25, "{{ " + "9" * 5000 + " }}", "{{ x" + ".a" * 5000 + " }}"),
    ],
)
def test_a_template_that_does_not_compile_is_an_error_in_one_line(source: str) -> None:
    with pytest.raises(TokenizerError, match=r"the chat template does not compile: .+") as caught:
        ChatTemplate("\n" + source, {}, ())
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith("(line 2)") or "loop" in str(caught.value) or len(source) > 500


def test_long_conversations_are_far_below_the_limits() -> None:
    inner = "{% for n in messages %}{% if n is mapping %}{% endif %}{% endfor %}"
    assert outcome(each(inner + "{{ m.content }}"), [say("user", "bomb"), *[say("user", "x" * 1000)] * 300]) == ""
    adding = "{% set n = namespace(t='') %}" + each("{% set n.t = n.t ~ m.content | trim %}") + "{{ n.t }}"
    assert outcome(adding, [say("user", "bomb"), *[say("user", "x" * 1000)] * 300]) == ""
    assert outcome("", [say("user", "x" * 1_000_000)] * 16) == ""


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(JSON)
def test_tojson_writes_what_json_does(value: Any) -> None:
    template = ChatTemplate("{{ messages[0].value | tojson if messages[0].value is defined }}", {}, ())
    found = template.render([{"role": "user", "content": "", "value": value}]).text
    assert found == ("" if value is None else json.dumps(value, ensure_ascii=False))
