"""`function_call`, the role `function` and `functions`: calls, results and tools, as OpenAI's API had them first."""

import json
import re
from typing import Any

import pytest

from beam_prep.chat.checks import check_messages, variables_of
from beam_prep.data.block import Reject
from tests.chat.trained import CHATML, outcome, runs, said
from tests.conftest import shared

TIDE = {"name": "get_tide", "parameters": {"type": "object", "properties": {"port": {"type": "string"}}}}
CALL = {"name": "get_tide", "arguments": '{"port": "Brest"}'}
OLD: list[dict[str, Any]] = [
    {"role": "user", "content": "Tide at Brest?"},
    {"role": "assistant", "content": None, "function_call": CALL},
    {"role": "function", "name": "get_tide", "content": "09:00"},
    {"role": "assistant", "content": "Nine."},
]
MARKS = ("<|im_user|>", "<|im_system|>", "<|im_assistant|>", "<|im_middle|>")
CONTROLS = ("<|im_start|>", "<|im_end|>", "<s>", "</s>", "<|eot_id|>", "<|end|>", *MARKS, "<|im_tool|>", "<|call|>")


def source_of(name: str) -> str:
    return shared("templates", name).read_text(encoding="utf-8")


def call_of(name: str, own: str | None = None, arguments: str = "{}") -> dict[str, Any]:
    return {"id": own, "type": "function", "function": {"name": name, "arguments": arguments}}


def asked(calls: list[dict[str, Any]], *results: dict[str, Any]) -> list[dict[str, Any]]:
    """A conversation in which an answer with calls is followed by results."""
    given = [{"role": "tool", "content": "x", **each} for each in results]
    return [OLD[0], {"role": "assistant", "content": "", "tool_calls": calls}, *given, OLD[3]]


def ids_of_results(source: str, messages: list[dict[str, Any]]) -> list[str]:
    text, _ = outcome(source, messages, controls=CONTROLS)
    return re.findall("## (.*?)<", text)


def test_an_old_conversation_is_as_a_new_one() -> None:
    source = source_of("trl/qwen3.jinja")
    new = asked([call_of("get_tide", arguments=CALL["arguments"])], {**OLD[2], "role": "tool"})
    one = outcome(source, OLD, controls=CONTROLS, functions=json.dumps([TIDE]))
    assert one == outcome(source, new, controls=CONTROLS, tools=[{"type": "function", "function": TIDE}])
    assert runs(one)[0].endswith('{"name": "get_tide", "arguments": {"port": "Brest"}}\n</tool_call><|im_end|>')


def test_calls_without_ids_get_them_where_the_template_wants_them_and_results_those_of_their_name() -> None:
    source = source_of("models/hfjs-mistralai_Mistral-Nemo-Instruct-2407.jinja")
    text, _ = outcome(source, [*OLD, *OLD], controls=CONTROLS, functions=[TIDE])
    assert [*re.findall('"(?:call_)?id": "call0000([12])"', text)] == ["1", "1", "2", "2"]
    call, more = {"function": CALL, "id": None}, {"function": {"name": "go", "arguments": "{}"}}
    results = [{"role": "tool", "content": text, **own} for text, own in (("1", {"name": "go"}), ("2", {}))]
    for calls in ([{"tool_calls": [call, more]}], [{"function_call": each["function"]} for each in (call, more)]):
        said = [{"role": "assistant", **each} for each in calls]
        text, _ = outcome(source, [OLD[0], *said, *results, OLD[3]], controls=CONTROLS)
        assert [*re.findall('"(?:call_)?id": "call0000([12])"', text)] == ["1", "2", "2", "1"]
    marked = CHATML.replace("{{ m.content }}", "{{ m.content or '' }}{{ m.tool_calls }}{{ m.tool_call_id }}")
    assert "call0000" not in outcome(marked, [OLD[0], {"role": "assistant", "tool_calls": [call]}, *results])[0]


KIMI = """{% for m in messages %}<|im_{{ m.role }}|>{{ m.content }}{% for c in m.tool_calls or [] %}
<|call|>{{ c.id }} {{ c.function.arguments }}{% endfor %}{% if m.tool_call_id %}
## {{ m.tool_call_id }}{% endif %}<|im_end|>{% endfor %}{% if add_generation_prompt %}<|im_assistant|>{% endif %}"""
NAMED = KIMI.replace("{{ c.id }}", "{{ c.id }} {{ c.function.name }}")
NINE = KIMI.replace(
    "{{ c.id }}", "{{ c.id if c.id | length == 9 else raise_exception('nine!') }} {{ c.function.name }}"
)


@pytest.mark.parametrize(
    ("source", "ids", "wanted"),
    [
        (KIMI, ["call_xYz", "call_aBc"], ["functions.get_tide:0", "functions.go:1"]),
        (KIMI, ["functions.get_tide:7", "call_go"], ["functions.get_tide:7", "functions.go:1"]),
        (NINE, ["call_xYz", "call_aBc"], ["call00001", "call00002"]),
        (NINE, ["a1b2c3d4e", "call_aBc"], ["a1b2c3d4e", "call00002"]),
        (NAMED, ["call_xYz", "call_aBc"], ["call_xYz", "call_aBc"]),
    ],
)
def test_refused_ids_are_replaced_in_call_and_result(source: str, ids: list[str], wanted: list[str]) -> None:
    calls = [call_of(name, own) for name, own in zip(("get_tide", "go"), ids, strict=True)]
    text, _ = outcome(source, asked(calls, *({"tool_call_id": own} for own in ids[::-1])), controls=CONTROLS)
    assert re.findall(r"<\|call\|>(\S+) ", text) == wanted
    assert re.findall("## (.*?)<", text) == wanted[::-1]


@pytest.mark.parametrize("source", [KIMI, NINE, NAMED])
def test_a_result_without_an_id_gets_that_of_its_call(source: str) -> None:
    ids = ["functions.get_tide:0", "functions.go:1"] if source == KIMI else ["a1b2c3d4e", "a1b2c3d4f"]
    calls = [call_of(name, own) for name, own in zip(("get_tide", "go"), ids, strict=True)]
    named = [([{}, {"tool_call_id": own}], [other, own]) for own, other in (ids, ids[::-1])]
    for results, wanted in (([{"name": "go"}, {}], ids[::-1]), *named):
        assert ids_of_results(source, asked(calls, *results)) == wanted


def test_ids_that_come_again_in_a_later_turn_do_not_count_for_results_without_an_id() -> None:
    one, other = (call_of("go", f"functions.go:{place}") for place in (0, 1))
    later = asked([one], {"tool_call_id": one["id"]})[1:]
    found = ids_of_results(NAMED, [*asked([one, other], {}, {})[:-1], *later])
    assert found == ["functions.go:0", "functions.go:1", "functions.go:0"]


def test_a_result_without_an_id_is_not_that_of_an_earlier_question() -> None:
    names = ("go", "get_tide", "go")
    *before, last = ([call_of(name, f"functions.go:{place}")] for place, name in enumerate(names))
    turns = [message for calls in before for message in asked(calls)[:2]]
    found = ids_of_results(NAMED, [*turns, *asked(last, {}, {"name": "get_tide"})])
    assert found == ["functions.go:2", "functions.go:1"]


def test_a_template_that_reads_the_old_form_gets_it() -> None:
    text, _ = outcome(
        CHATML.replace("{{ m.content }}", "{{ m.content }}{{ '!%s' % m.function_call if m.function_call }}"), OLD
    )
    assert "!{'name': 'get_tide', 'arguments': '{\"port\": \"Brest\"}'}<|im_end|>\n<|im_start|>" in text


def test_a_call_that_a_template_does_not_write_is_a_reject() -> None:
    assert outcome(CHATML, OLD) == "not_rendered"
    old = CHATML.replace("{{ m.content }}", "{{ m.content }}{{ m.function_call if loop.index < 3 }}")
    assert outcome(old, [OLD[0], OLD[3], *OLD]) == "not_rendered"


def test_roles_of_masks_are_those_of_the_records() -> None:
    source = source_of("trl/qwen2_5.jinja")
    assert said(source, OLD, function="train") == ["09:00"]
    assert said(source, OLD, tool="train") == []


@pytest.mark.parametrize(
    ("message", "reason", "says"),
    [
        ({"function_call": [CALL]}, "bad_message", "'m[0].function_call' is a list"),
        ({"tool_calls": {"function": CALL}}, "bad_message", "'m[0].tool_calls' is an object, wanted a list of calls"),
        ({"tool_calls": [3]}, "bad_message", "'m[0].tool_calls[0]' is a number (3), wanted a call (an object)"),
        ({"function_call": {"arguments": "{}"}}, "bad_message", "'m[0].function_call' is an object without a name"),
        ({"function_call": CALL, "tool_calls": [{"function": CALL}]}, "bad_message", "'m[0]' has both 'function_call'"),
        ({"tool_calls": "get_tide(Brest)"}, "bad_json", "field 'm[0].tool_calls' is a string that is no JSON"),
        ({"functions": [{"a": 1}, TIDE]}, "bad_tools", "'functions[0]' is an object without a name, wanted a schema"),
        ({"functions": [TIDE, "x"]}, "bad_tools", "'functions[1]' is a string (\"x\"), wanted a schema"),
        ({"functions": '[{"name": bad'}, "bad_tools", "field 'functions' is a string that is no JSON ("),
    ],
)
def test_what_is_no_call_or_no_schema_is_a_reject(message: dict[str, Any], reason: str, says: str) -> None:
    with pytest.raises(Reject) as found:
        variables_of(message) if "functions" in message else check_messages([{**OLD[3], **message}], "m")
    assert found.value.reason == reason
    assert found.value.message.startswith(says)


@pytest.mark.parametrize(
    "given",
    [
        {"tool_calls": json.dumps([{"function": CALL}])},
        {"tool_calls": [json.dumps({"function": CALL})]},
        {"function_call": json.dumps(CALL)},
    ],
)
def test_calls_that_are_json_in_a_text_are_calls(given: dict[str, Any]) -> None:
    source = source_of("trl/qwen2_5.jinja")
    assert said(source, [OLD[0], {"role": "assistant", "content": "", **given}, *OLD[2:]]) == said(source, OLD)


def test_functions_are_tools_where_they_are_schemas() -> None:
    tools = [{"type": "function", "function": TIDE}]
    assert variables_of({"functions": [TIDE], "tools": tools}) == {"tools": tools}
    assert variables_of({"functions": [TIDE], "tools": [TIDE]}) == {"tools": [TIDE]}
    forms: tuple[Any, ...] = (TIDE, [TIDE], tools, tools[0])
    for same in (*forms, *map(json.dumps, forms), f" [ {json.dumps(TIDE)}]"):
        assert variables_of({"functions": same}) == {"tools": tools}
    code: tuple[Any, ...] = ([{"code": "x"}], {"main": 1}, [{"function": "x"}], [{"function": {}}], "{ return 1; }")
    others: tuple[Any, ...] = ("main, load", ["main"], '["main"]', {}, [], None, 3, *code)
    for other in others:
        assert variables_of({"functions": other}) == {}
    with pytest.raises(Reject, match="fields 'tools' and 'functions' hold different schemas, wanted one of them"):
        variables_of({"functions": [TIDE], "tools": [{"type": "function", "function": {"name": "other"}}]})
