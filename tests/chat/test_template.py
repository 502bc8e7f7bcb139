"""Our environment for chat templates against transformers' own: the same text, the same refusals, the same walls."""

import json
import re
from collections.abc import Callable, Iterator
from datetime import date, datetime
from pathlib import Path
from typing import Any

import jinja2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_prep.chat.template import ChatTemplate
from beam_prep.data.block import Reject
from beam_prep.errors import TokenizerError
from beam_prep.reading.adapters import template_kwargs
from tests.chat.trained import each
from tests.conftest import ROOT, shared
from tests.reference import auto
from tests.tokens.test_tokenizer import _folders

TOOL_CALL = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": {"q": "<a> & 'b' é", "n": 2}}}
TEXT_CALL = {"function": {"name": "find", "arguments": '{"q": "x"}'}}


def say(role: str, content: Any = "Hi.", **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


CALLED = say("assistant", "", tool_calls=[TOOL_CALL])
TALKS: dict[str, list[dict[str, Any]]] = {
    "system": [say("system", "Be kind."), say("user"), say("assistant", "Hello!")],
    "roles in a wrong order": [say("assistant"), say("assistant"), say("user"), say("user")],
    "unknown role": [say("user"), say("narrator", "Meanwhile.")],
    "tool call": [say("user"), CALLED, say("tool", '{"n": 1}', tool_call_id="c1"), say("assistant")],
    "two tool calls without content": [say("user"), say("assistant", None, tool_calls=[TOOL_CALL, TOOL_CALL])],
    "tool call in text": [say("user"), say("assistant", "", tool_calls=[TEXT_CALL])],
    "content null": [say("user", None), say("assistant", None)],
    "reasoning null": [say("user"), say("assistant", "B", reasoning_content=None, thinking="t")],
    "think tags": [say("user"), say("assistant", "<think>\nbecause\n</think>\n\nB"), say("user"), say("assistant")],
    "white space": [say("user", "  a\n"), say("assistant", "\n\tb  ")],
    "unicode": [say("user", "日本 \u2028 \ufdd0 e\u0301 🧑‍🚀 \x00"), say("assistant", "ß\u200b")],
    "parts": [say("user", [{"type": "text", "text": "x"}]), say("assistant")],
    "other keys": [say("user", "x", train=True, name="Ann", weight=0.5), say("assistant", "y", train=False)],
}


def _templates() -> Iterator[Any]:
    """Every template of every tokenizer: (folder, file beside it or None for its own)."""
    for folder in (param.values[0] for param in _folders()):
        files = sorted(path.name for path in folder.glob("*.jinja"))
        config = json.loads((folder / "tokenizer_config.json").read_text())
        for name in files if files else [None] * ("chat_template" in config):
            yield pytest.param(folder, name, id=f"{folder.name}-{name or 'config'}")


TEMPLATES = list(_templates())


def theirs(tokenizer: Any, source: str, talk: list[dict[str, Any]], **options: Any) -> str | None:
    """What transformers writes; None where it refuses."""
    try:
        return str(tokenizer.apply_chat_template(talk, chat_template=source, tokenize=False, **options))
    except Exception:  # whatever the template's own code raises
        return None


def ours(template: ChatTemplate, talk: list[dict[str, Any]], **options: Any) -> str | None:
    """What we write, with origins and without; None where both refuse."""
    before = json.dumps(talk)
    text = tried(template.text, talk, **options)
    if "add_generation_prompt" not in options:
        rendered = tried(template.render, talk, **options)
        assert (rendered if rendered is None else rendered.text) == text
    assert json.dumps(talk) == before
    return text


def tried(render: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """What is rendered; None where the record is rejected."""
    try:
        return render(*arguments, **options)
    except Reject as reject:
        begins = {"template_error": "the chat template raised: ", "template_limit": "the chat template is stopped: "}
        if not reject.message.startswith(begins[reject.reason]):
            raise
        return None


def test_there_are_templates_to_compare() -> None:
    shared("tokenizers")
    assert len(TEMPLATES) >= 16


@pytest.mark.parametrize(("folder", "name"), TEMPLATES)
def test_every_template_writes_what_transformers_writes(folder: Path, name: str | None) -> None:
    """Text and refusals; `tools` are not passed. Contents are in the form that the template takes."""
    tokenizer = auto(folder)
    source = (folder / name).read_text() if name else tokenizer.chat_template
    template = ChatTemplate(source, tokenizer.special_tokens_map, tokenizer.all_special_tokens, None, "as_is")
    rendered = 0
    for about, talk in TALKS.items():
        for options in ({}, {"add_generation_prompt": True}, {"enable_thinking": False, "bos_token": "<other>"}):
            wanted = theirs(tokenizer, source, [*template.forms.apply(talk)[0]], **options)
            assert ours(template, talk, **options) == wanted, about
            rendered += wanted is not None
    assert rendered >= len(TALKS)


# What templates may use: each piece against transformers, on odd templates of our own.


WRITTEN = {
    "continue": each("{% if loop.first %}{% continue %}{% endif %}{{ m.content }}"),
    "break": each("{{ m.content }}{% break %}{{ m.role }}"),
    "loop filter and else": "{% for m in messages if m.role == 'x' %}{{ m }}{% else %}none{% endfor %}",
    "loop variables": each("{{ loop.previtem }}|{{ loop.last }}{{ loop.changed(m.role) }}{{ loop.length }}"),
    "macro": "{% macro say(m, x='d') %}[{{ m.content }}{{ x }}]{% endmacro %}" + each("{{ say(m) }}"),
    "macro with a loop": "{% macro all() %}" + each("{{ m.content }}") + "{% endmacro %}{{ all() }}",
    "set block": "{% set text %}" + each("{{ m.content }}") + "{% endset %}{{ text | upper }}",
    "tojson": "{{ messages | tojson }}{{ {'b': '<é>', 'a': 1} | tojson(indent=2) }}",
    "tojson options": "{{ {'b': 'é', 'a': 1} | tojson(ensure_ascii=True, sort_keys=True, separators=(',', ':')) }}",
    "strings": "{{ messages[0].content.strip().split(' ')[-1] }}{{ 'a%sb' % 1 }}{{ '{}'.format(2) }}{{ 'ab'[::-1] }}",
    "generation in a macro": "{% macro x(m) %}{% generation %}{{ m.content }}{% endgeneration %}{% endmacro %}"
    "{{ x(messages[0]) | upper }}",
    "generation of a number": "{% generation %}{{ 5 }}{% endgeneration %}",
    "lipsum's friends": "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ joiner(',')() }}",
}
REFUSED = {"raise": "{{ raise_exception('no ' + messages[0].role) }}", "mutation": "{% set x = messages.append(1) %}"}


@pytest.mark.parametrize("about", [*WRITTEN, *REFUSED])
def test_the_language_is_transformers(about: str) -> None:
    tokenizer = auto(ROOT / "examples" / "tokenizer")
    source = {**WRITTEN, **REFUSED}[about]
    template = ChatTemplate(source, tokenizer.special_tokens_map, (), None, "as_is")
    for talk in (TALKS["white space"], TALKS["system"], TALKS["tool call"]):
        wanted = theirs(tokenizer, source, talk)
        assert ours(template, talk) == wanted
        assert (wanted is None) == (about in REFUSED)


# The sandbox

ESCAPES = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ dict.pop(messages[0], 'role') }}",
    "{{ raise_exception.__globals__ }}",
    "{{ _beam_prep_at_work.__self__.places }}",
    "{{ _beam_prep_bounded.__func__ }}",
    "{{ '{0.__class__}'.format_map({'0': ''}) }}",
    "{% set ns = namespace() %}{% set ns._x = 1 %}{{ ns._x }}",
    "{% set ns = namespace({'__class__': 1}) %}{{ ns }}",
    "{{ self._TemplateReference__context }}",
    "{{ loop.__class__ }}{{ cycler.__init__.__globals__ }}",
    "{% do messages.append(1) %}",
]


@pytest.mark.parametrize("source", ESCAPES)
def test_a_template_gets_nothing_out_of_the_sandbox(source: str) -> None:
    """Refused as a reject of the record, or nothing written: never an object of Python's, never an error of the run."""
    try:
        template = ChatTemplate(source, {}, ())
    except TokenizerError:
        return  # not a statement of this environment
    talk = [{"role": "user", "content": "x"}]
    assert tried(template.text, talk) in (None, "")
    assert talk == [{"role": "user", "content": "x"}]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{% set ns = namespace() %}{% set ns._x = 1 %}", "a template cannot set '_x' on a namespace"),
        ("{{ ''.__class__.__mro__ }}", "access to attribute '__class__' of 'str' object is unsafe."),
        ("{{ Text.x }}", "'Text' is undefined"),
        ("{{ messages[0].Node.x }}", "'dict object' has no attribute 'Node'"),
        ("{{ raise_exception(\"no role 'Text'\") }}", "the chat template raised: no role 'Text'"),
        ("{{ 'a' + messages[0].x }}", '(not "list") to str'),
    ],
)
def test_an_error_says_what_the_template_did_in_its_own_words(source: str, message: str) -> None:
    with pytest.raises(Reject) as caught:
        ChatTemplate(source, {}, []).render([say("user", x=[1])])
    assert caught.value.message.endswith(message)


# What a record may bring

PLAIN = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}{{ '>' if add_generation_prompt }}{{ more }}"


def test_variables_reach_the_template_and_may_replace_special_tokens() -> None:
    template = ChatTemplate(PLAIN, {"bos_token": "^"}, ())
    assert template.text([say("user", "x")], True, more="!") == "^x>!"
    assert template.text([say("user", "x")], bos_token="#") == "#x"


@pytest.mark.parametrize("name", ["messages", "self", "_beam_prep_at_work", "_beam_prep_bounded"])
def test_variables_of_a_record_do_not_get_in_the_way_of_ours(name: str) -> None:
    """They come from the data: no name may end the run, or put other messages in place."""
    template = ChatTemplate(PLAIN, {}, ())
    talk = [say("user", "x"), say("assistant", "y")]
    given: dict[str, Any] = {name: [say("user", "other")]}
    assert template.text(talk, **given) == "xy"
    assert template.text(talk, True, **given) == "xy>"
    assert template.render(talk, **given).text == "xy"
    assert template.generation_prompt(**given) == ">"


def test_whether_an_answer_follows_is_not_for_a_record_to_say() -> None:
    template = ChatTemplate(PLAIN, {}, ())
    assert template.render([say("user", "x")], add_generation_prompt=True).text == "x"
    assert template.generation_prompt(add_generation_prompt=False) == ">"
    for name in ("messages", "add_generation_prompt"):
        with pytest.raises(Reject, match=f"sets '{name}', which a record cannot set"):
            template_kwargs({"chat_template_kwargs": {name: True}})


# The same text in every run

ASK = 'the chat template writes today\'s date \\(strftime_now\\), .*: add "date": "{}" to "input" in the config'


def test_a_template_that_asks_for_the_date_within_a_block_of_marks_is_refused_without_one() -> None:
    source = each("{% generation %}{{ strftime_now('%d') }}{% endgeneration %}")
    with pytest.raises(TokenizerError, match=ASK.format(date.today())):
        ChatTemplate(source, {}, ())
    ChatTemplate(source, {}, (), "2026-11-22").render([say("user", "x")])


def test_data_cannot_bring_a_clock() -> None:
    with pytest.raises(Reject, match="template_error"):
        ChatTemplate("{{ now('%d') }}", {}, ()).render([say("user", "x")], now="strftime_now")
    template = ChatTemplate("{{ strftime_now('%d') }}", {}, (), date="2026-11-22")
    with pytest.raises(Reject, match="'str' object is not callable"):
        template.render([say("user", "x")], strftime_now="x")


@given(st.dates(date(1000, 1, 1)), st.lists(st.sampled_from("aAbBcdDeFhHIjmMpRSTUxXyYZ%"), max_size=6))
def test_the_date_is_written_as_by_strftime_at_midnight(day: date, letters: list[str]) -> None:
    form = "".join(f"{ord(letter)}: %{letter};" for letter in letters) + "%-d/%-m %-I %-e %-H %-j é"
    midnight = datetime(day.year, day.month, day.day)
    assert ChatTemplate("{{ strftime_now(form) }}", {}, (), date=day.isoformat()).text([], form=form) == (
        midnight.strftime(form)
    )


def test_a_template_that_draws_lots_is_refused() -> None:
    with pytest.raises(TokenizerError, match="the chat template does not compile: No filter named 'random'"):
        ChatTemplate("{{ [1, 2] | random }}", {}, ())
    for source in ("{{ lipsum() }}", "{{ [[1, 2]] | map('random') | list }}"):
        assert tried(ChatTemplate(source, {}, ()).text, [say("user", "x")]) is None


ADDRESS = re.compile("0x[0-9a-f]{6,}", re.IGNORECASE)
OBJECTS = (
    *(*jinja2.defaults.DEFAULT_NAMESPACE, "raise_exception", "strftime_now", "self", "m", "messages[0].content.upper"),
    *("messages[0].keys", "cycler(1, 2)", "joiner(1)", "namespace(a=1).items", "range(3).count"),
    *("messages | map('upper')", "messages | batch(2)", "messages | slice(2)"),
)


def written(expression: str, way: str) -> str:
    """What a template writes of an expression, or how it is refused."""
    source = "{% macro m() %}{% endmacro %}" + way.replace("X", f"({expression})")
    try:
        template = ChatTemplate(source, {}, (), date="2026-11-22")
        return template.render([say("user", "x"), say("assistant", "y")]).text
    except Reject as reject:
        return reject.message
    except TokenizerError as error:  # chance
        return str(error)


@pytest.mark.parametrize(
    "way",
    [
        *("{{ X }}", "{{ X | string }}", "{{ [X] | join }}"),
        "{% for x in messages %}{{ X }}{{ loop.cycle }}{% endfor %}",
        *("{{ X ~ '' }}", "{{ {'a': X} }}", "{{ '%s' % X }}", "{{ [X] | pprint }}", "{{ X | e }}"),
    ],
)
def test_nothing_is_written_as_an_address(way: str) -> None:
    """Which another run would not write again."""
    assert not [text for name in OBJECTS if ADDRESS.search(text := written(name, way))]


def test_what_has_no_order_or_is_one_of_our_classes_is_not_written() -> None:
    assert "a template writes a function" in written("messages[0].get", "{{ X }}")
    for expression in ("messages[0].keys() - ['x']", "{'x': 1, 'y': 2}.keys() - 'ab'"):
        assert "a template makes a set" in written(f"({expression}) | length", "{{ X }}")


def test_a_generation_prompt_is_whole_though_an_end_begins_with_the_same_characters() -> None:
    loop = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    source = loop + "{{ '<|assistant|>' if add_generation_prompt else '<|eos|>' }}"
    template = ChatTemplate(source, {}, ["<|end|>", "<|eos|>", "<|assistant|>"])
    assert template.generation_prompt() == "<|assistant|>"
