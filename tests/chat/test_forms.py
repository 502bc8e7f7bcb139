"""Contents and arguments in the form that a template takes, found out by rendering; and the nulls of tables."""

from typing import Any

import pytest

from beam_prep import testing
from beam_prep.chat.apply import apply_template
from beam_prep.chat.chat_format import ChatFormat
from beam_prep.chat.template import ChatTemplate
from beam_prep.data.schema import Output, Section, TextRules
from tests.chat.trained import CHATML, CONTROLS, END, HEADER, PROMPT, SECTIONS, TOKENS, fresh, say

ASKED = say("user", "How far?")


def calling(arguments: str) -> str:
    """A template that writes the arguments of calls so."""
    calls = "{% for c in m.tool_calls or [] %}{{ c.function.name ~ ' ' }}" + arguments + "{% endfor %}"
    return "{% for m in messages %}" + HEADER + "{{ m.content or '' }}" + calls + END + PROMPT


AS_OBJECTS = calling("{{ c.function.arguments | tojson }}")
TAKES = {
    "objects, as JSON": AS_OBJECTS,
    "objects, by key": calling("{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }};{% endfor %}"),
    "strings": calling("{{ c.function.arguments + '!' }}"),
    "both": calling("{{ c.function.arguments if c.function.arguments is string else c.function.arguments | tojson }}"),
    "both, otherwise": calling(
        "{% set a = c.function.arguments %}{{ a if a is string else a.items() | map('join', '=') | join }};"
    ),
}
GIVEN: dict[str, Any] = {"object": {"to": "Gent"}, "string": '{"to": "Gent"}'}
BY_KEY, AS_JSON, QUOTED = "to=Gent;", '{"to": "Gent"}', '"{\\"to\\": \\"Gent\\"}"'


def called(arguments: Any, content: str | None = "") -> list[dict[str, Any]]:
    call = {"type": "function", "function": {"name": "go", "arguments": arguments}}
    return [ASKED, say("assistant", content, tool_calls=[call])]


def prepared(source: str, messages: list[dict[str, Any]], tool_arguments: Any = "auto", **more: Any) -> Any:
    """(text, counted) of a record; or the reason of its reject and what it says."""
    template = fresh(source, TOKENS, form=tool_arguments)
    output = Output("sequence", "ids", SECTIONS["$role"], "loss_mask")
    rendered = apply_template(testing.records([{"messages": messages, **more}]), (output,), ChatFormat(template))
    if not len(rendered):
        return rendered.ledger.outcomes[rendered.ledger.status[0] - 1][1], rendered.ledger.messages[0]
    return rendered.pieces["sequence"].texts[0], {name: count.tolist() for name, count in rendered.counters.items()}


@pytest.mark.parametrize("source", [AS_OBJECTS, AS_OBJECTS.replace("content or", "content +")])
def test_calls_without_a_content_are_written_as_with_an_empty_one(source: str) -> None:
    """Even if the template raises without a content, as Qwen3's."""
    absent = [ASKED, {key: value for key, value in called({})[1].items() if key != "content"}]
    assert prepared(source, called({}, None)) == prepared(source, absent) == prepared(source, called({}))
    assert prepared(source, called({}))[0].endswith("assistant\ngo {}<|im_end|>\n")


def test_a_template_that_reads_the_content_of_a_call_only_before_an_answer_gets_an_empty_one() -> None:
    """As QwQ's."""
    source = AS_OBJECTS.replace("m.content or ''", "m.content if loop.last else m.content.strip()")
    chats = ([*called({}, content), say("tool", "9"), say("assistant", "Far.")] for content in (None, ""))
    assert len({prepared(source, chat)[0] for chat in chats}) == 1


def test_a_template_that_takes_the_null_content_of_a_call_gets_it() -> None:
    """As DeepSeek-R1's: if the content is empty, they write an empty answer behind the call."""
    source = AS_OBJECTS.replace("m.content or ''", "(m.content + '|' if m.content is not none else '')")
    absent = [ASKED, {key: value for key, value in called({})[1].items() if key != "content"}]
    assert prepared(source, called({}, None))[0].endswith("assistant\ngo {}<|im_end|>\n")
    assert prepared(source, called({}, None)) == prepared(source, absent)
    assert prepared(source, called({}))[0].endswith("assistant\n|go {}<|im_end|>\n")


@pytest.mark.parametrize("content", ["m.content + ''", "m.content if m.content is string else m.content | tojson"])
def test_a_template_that_leaves_calls_out_gets_an_empty_content_where_it_needs_one(content: str) -> None:
    """As Zephyr's, and LFM2's: both raise without one."""
    source = AS_OBJECTS[: AS_OBJECTS.index("{% for c")].replace("m.content or ''", content) + END
    assert prepared(source, called({}, None))[0] == "not_rendered"


@pytest.mark.parametrize(
    ("takes", "given", "form", "written", "changed"),
    [
        ("objects, as JSON", "object", "auto", AS_JSON, 0),
        ("objects, as JSON", "string", "as_is", QUOTED, 0),
        ("objects, by key", "string", "auto", BY_KEY, 1),
        ("strings", "object", "auto", AS_JSON + "!", 1),
        ("strings", "object", "string", AS_JSON + "!", 1),
        ("both", "object", "auto", AS_JSON, 0),
        ("both", "string", "object", AS_JSON, 1),
        ("both, otherwise", "string", "auto", BY_KEY, 1),
        ("both, otherwise", "object", "auto", BY_KEY, 0),
    ],
)
def test_arguments_have_the_form_of_the_template(takes: str, given: str, form: Any, written: str, changed: int) -> None:
    text, counted = prepared(TAKES[takes], called(GIVEN[given]), form)
    assert text == f"<|im_start|>user\nHow far?<|im_end|>\n<|im_start|>assistant\ngo {written}<|im_end|>\n"
    assert counted == ({"tool_arguments_changed": [1]} if changed else {})


@pytest.mark.parametrize(("takes", "given"), [("objects, by key", "string"), ("strings", "object")])
def test_as_is_changes_nothing_and_the_template_refuses_what_it_does_not_take(takes: str, given: str) -> None:
    assert prepared(TAKES[takes], called(GIVEN[given]), "as_is")[0] == "template_error"


DEEP = '{"to": ' * 3000 + "1" + "}" * 3000


@pytest.mark.parametrize(
    "given", ["no JSON", "[1]", "7", '"x"', "{", "null", '{"to": 1, "to": 2}', '{"to": 1e400}', DEEP]
)
def test_arguments_that_are_no_object_are_rejected_where_one_is_taken(given: str) -> None:
    reason, message = prepared(AS_OBJECTS, called(given))
    assert reason == "bad_arguments"
    assert f"the arguments of '[1].tool_calls[0]' are the string {given[:60]!r}" in message
    assert "wanted a JSON object" in message
    assert prepared(TAKES["both"], called(given))[0] != "bad_arguments"


@pytest.mark.parametrize("given", ["", " ", "{}", {}, None, ...])
def test_no_arguments_are_an_empty_object(given: Any) -> None:
    asked = called(given)
    if given is ...:
        del asked[1]["tool_calls"][0]["function"]["arguments"]
    assert prepared(AS_OBJECTS, asked)[0].endswith("go {}<|im_end|>\n")
    assert prepared(TAKES["objects, by key"], asked)[0].endswith("assistant\ngo <|im_end|>\n")
    assert prepared(TAKES["strings"], asked)[0].endswith("go {}!<|im_end|>\n")
    assert prepared(TAKES["both"], asked)[0].endswith("go {}<|im_end|>\n")
    assert prepared(TAKES["both, otherwise"], asked)[0].endswith("go ;<|im_end|>\n")


def test_an_empty_list_of_calls_is_no_call() -> None:
    source = TAKES["both"].replace("m.content or ''", "m.content if m.tool_calls is not defined else 'calls'")
    assert prepared(source, [ASKED, say("assistant", "Far.", tool_calls=[])])[0].endswith("assistant\nFar.<|im_end|>\n")


def test_calls_without_a_function_around_them_and_without_arguments() -> None:
    flat = "{% for m in messages %}" + HEADER + "{{ m.content or '' }}{% for c in m.tool_calls or [] %}"
    flat += "{% set f = c.function or c %}{{ f.name }} {{ f.arguments | tojson }}{% endfor %}" + END + PROMPT
    calls = [{"name": "go", "arguments": '{"to": 1}'}, {"name": "stay", "arguments": {}}]
    message = say("assistant", "", tool_calls=calls)
    assert prepared(flat, [ASKED, message])[0].endswith('assistant\ngo {"to": 1}stay {}<|im_end|>\n')


# Contents

PARTS = CHATML.replace("{{ m.content }}", "{% for p in m.content %}{{ p.text }}{% endfor %}")
EITHER = CHATML.replace(
    "{{ m.content }}",
    "{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endif %}",
)


@pytest.mark.parametrize(
    ("source", "content", "written"),
    [
        (CHATML, "Not far.", "Not far."),
        (CHATML, [{"type": "text", "text": "Not "}, {"type": "text", "text": "far."}], "Not far."),
        (PARTS, "Not far.", "Not far."),
        (PARTS, [{"type": "text", "text": "Not "}, {"type": "text", "text": "far."}], "Not far."),
        (EITHER, [{"type": "text", "text": "Not "}, {"type": "text", "text": "far."}], "[Not ][far.]"),
    ],
)
def test_contents_are_given_as_the_template_takes_them(source: str, content: Any, written: str) -> None:
    for role in ("user", "assistant", "system", "tool", "developer", "tool-response"):
        text, counted = prepared(source, [say("user", "Q"), say(role, content)])
        assert text.endswith(f"<|im_start|>{role}\n{written}<|im_end|>\n")
        assert counted == {}


def test_results_are_given_as_a_template_takes_them_that_takes_arguments_as_strings() -> None:
    """As functionary's, which joins texts."""
    source = TAKES["strings"].replace("m.content or ''", "'' ~ (m.content + '')")
    result = say("tool", [{"type": "text", "text": "9"}])
    assert "<|im_start|>tool\n9<|im_end|>" in prepared(source, [*called({}), result])[0]


def test_a_content_of_a_developer_is_given_as_the_template_takes_it_there() -> None:
    """As Gemma 4's, which takes lists of parts elsewhere."""
    source = EITHER.replace("if m.content is string", "if m.role == 'developer' or m.content is string")
    developer = say("developer", [{"type": "text", "text": "Be kind."}])
    assert "developer\nBe kind.<" in prepared(source, [developer, ASKED, say("assistant", "Far.")])[0]


def test_forms_of_a_template_that_needs_tools_are_found() -> None:
    """As of Hermes 2 Pro's `tool_use`."""
    source = "{% for t in tools %}{{ t.name }}{% endfor %}" + AS_OBJECTS
    source = source.replace("m.content or ''", "(m.content or '') ~ ''")
    result = say("tool", [{"type": "text", "text": "9"}])
    text, _ = prepared(source, [*called('{"to": "Gent"}'), result], tools=[{"name": "go"}])
    assert AS_JSON in text
    assert "tool\n9<" in text


def test_a_content_beside_calls_is_given_as_the_template_takes_it_there() -> None:
    """Kimi-K2's takes lists of parts elsewhere."""
    beside = "{% if m.tool_calls %}{{ m.content ~ m.tool_calls[0].function.name }} {}{% elif m.content is string %}"
    source = EITHER.replace("{% if m.content is string %}", beside)
    calls = called({}, "Off.")
    parts = [ASKED, {**calls[1], "content": [{"type": "text", "text": "Off."}]}]
    assert prepared(source, parts)[0] == prepared(source, calls)[0]
    assert "Off.go" in prepared(source, calls)[0]


def test_nulls_of_lines_are_kept() -> None:
    """Those of tables are left out: tests/reading/test_table_rows.py."""
    template = "{{ tools | tojson }}" + AS_OBJECTS
    text, _ = prepared(template, called({"to": "Gent", "by": None}, None), tools=[{"name": "go", "description": None}])
    assert '{"to": "Gent", "by": null}' in text
    assert '"description": null' in text


THINKS_IN_A_FIELD = CHATML.replace(
    "{{ m.content }}", "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}"
)
THINKS_IN_A_PART = EITHER.replace(
    "[{{ p.text }}]",
    "{% if p.type == 'thinking' %}<think>{{ '' + p.thinking }}</think>{% else %}{{ p.text }}{% endif %}",
)
FAR = {"type": "text", "text": "Far."}
THOUGHTS: list[dict[str, Any]] = [
    {"content": "Far.", "reasoning_content": "A map."},
    {"content": [{"type": "thinking", "thinking": "A map.", "signature": "x"}, FAR]},
    {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "A map."}]}, FAR]},
    {"thinking": "", "content": [{"type": "thinking", "thinking": "A map."}, FAR]},
    {"content": [{"type": "reasoning", "text": "A map."}, FAR]},
]


@pytest.mark.parametrize("source", [THINKS_IN_A_FIELD, THINKS_IN_A_PART])
@pytest.mark.parametrize("thought", THOUGHTS)
def test_reasoning_is_given_as_the_template_takes_it(source: str, thought: dict[str, Any]) -> None:
    text, counted = prepared(source, [ASKED, {"role": "assistant", **thought}])
    assert text.endswith("<|im_start|>assistant\n<think>A map.</think>Far.<|im_end|>\n")
    assert counted == {"reasoning_written": [1]}


@pytest.mark.parametrize("source", [THINKS_IN_A_FIELD, THINKS_IN_A_PART])
def test_an_answer_may_be_reasoning_alone(source: str) -> None:
    alone = {"role": "assistant", "content": [{"type": "thinking", "thinking": "A map."}]}
    assert "assistant\n<think>A map.</think><|im_end|>" in prepared(source, [ASKED, alone])[0]


def test_empty_parts_of_reasoning_say_nothing() -> None:
    empty = {"type": "thinking", "thinking": "", "signature": "x"}
    plain = prepared(THINKS_IN_A_FIELD, [ASKED, say("assistant", [FAR])])
    assert prepared(THINKS_IN_A_FIELD, [ASKED, say("assistant", [empty, FAR, empty])]) == plain
    alone = prepared(THINKS_IN_A_FIELD, [ASKED, say("assistant", [empty])])
    assert alone == prepared(THINKS_IN_A_FIELD, [ASKED, say("assistant", "")])


def test_reasoning_in_a_part_that_history_leaves_out_is_counted() -> None:
    source = THINKS_IN_A_PART.replace("<think>", "{% if m == messages[-1] %}<think>").replace("</think>", "{% endif %}")
    last = [{"type": "thinking", "thinking": "A globe."}, {"type": "text", "text": "Near."}]
    text, counted = prepared(source, [ASKED, say("assistant", THOUGHTS[1]["content"]), ASKED, say("assistant", last)])
    assert "A map." not in text
    assert "A globe.Near." in text
    assert counted == {"reasoning_written": [1], "reasoning_not_written": [1]}


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": [*reversed(THOUGHTS[1]["content"])]},
        {"role": "assistant", **THOUGHTS[1], "reasoning": "A globe."},
        {"role": "user", **THOUGHTS[1]},
    ],
)
def test_reasoning_in_another_place_is_rejected(message: dict[str, Any]) -> None:
    reason, said = prepared(THINKS_IN_A_PART, [ASKED, message])
    assert reason == "unsupported_part"
    assert "'messages[1].content' has parts of reasoning, wanted it before the texts of an assistant's message" in said


@pytest.mark.parametrize(
    "part",
    [
        {"type": "thinking", "thinking": "A map.", "text": "A globe."},
        {"type": "thinking", "thinking": [{"type": "text", "text": "A map."}, {"type": "reference", "id": 1}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "A map."}]},
    ],
)
def test_a_part_of_reasoning_that_says_more_than_a_text_is_rejected(part: dict[str, Any]) -> None:
    reason, said = prepared(THINKS_IN_A_PART, [ASKED, say("assistant", [part, FAR])])
    assert reason == "unsupported_part"
    assert f"'messages[1].content[0]' is of type {part['type']!r}, wanted one text in it" in said


def test_arguments_of_a_template_that_writes_calls_only_with_a_null_content_get_their_form() -> None:
    """As DeepSeek-R1's first template."""
    source = TAKES["strings"].replace("m.tool_calls or []", "(m.tool_calls if m.content is none else none) or []")
    source = source.replace("m.content or ''", "'' if m.tool_calls else m.content")
    assert prepared(source, called({"to": "Gent"}, None))[0].endswith("assistant\ngo " + AS_JSON + "!<|im_end|>\n")


@pytest.mark.parametrize("listed", [False, True])
def test_messages_rendered_alone_get_the_variables_of_their_record(listed: bool) -> None:
    talk: list[Any] = [say("user", "x"), say("assistant", "y")]
    kwargs: list[Any] = [{"mark": "!"}, {}, "mark"]
    records = [{"messages": [talk] if listed else talk, "chat_template_kwargs": each} for each in kwargs]
    output = Output("sequence", "list" if listed else "ids", (Section("messages", "$role", "message"),), "loss_mask")
    template = ChatTemplate("{{ messages[0].content }}{{ mark }}", TOKENS, CONTROLS)
    chat_format = ChatFormat(template, rules=TextRules(template_variables={"mark": "?"}))
    rendered = apply_template(testing.records(records), (output,), chat_format)
    assert [*rendered.pieces["sequence"].texts] == ["x!", "y!", "x?", "y?"]
    assert testing.rejects(rendered) == [(2, "bad_kwargs")]
