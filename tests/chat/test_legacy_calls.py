"""`function_call`, the role `function` and `functions`: calls, results and tools, as OpenAI's API had them first."""

import json
from typing import Any

import pytest

from beam_prep.chat.checks import check_message, check_messages, variables_of
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
CONTROLS = ("<|im_start|>", "<|im_end|>", "<s>", "</s>", "<|eot_id|>", "<|end|>", *MARKS)


def test_an_old_conversation_is_as_a_new_one() -> None:
    source = shared("templates", "trl/qwen3.jinja").read_text(encoding="utf-8")
    new = [
        OLD[0],
        {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": CALL}]},
        {**OLD[2], "role": "tool"},
        OLD[3],
    ]
    one = outcome(source, OLD, controls=CONTROLS, functions=json.dumps([TIDE]))
    assert one == outcome(source, new, controls=CONTROLS, tools=[{"type": "function", "function": TIDE}])
    assert runs(one)[0].endswith('{"name": "get_tide", "arguments": {"port": "Brest"}}\n</tool_call><|im_end|>')


def test_calls_and_results_are_numbered() -> None:
    source = shared("templates", "models/hfjs-mistralai_Mistral-Nemo-Instruct-2407.jinja").read_text(encoding="utf-8")
    text, _ = outcome(source, [*OLD, *OLD], controls=CONTROLS, functions=[TIDE])
    assert text.count('"id": "call00001"') == text.count('"call_id": "call00001"') == 1
    assert text.count('"id": "call00002"') == text.count('"call_id": "call00002"') == 1


def test_a_template_that_reads_the_old_form_gets_it() -> None:
    source = CHATML.replace(
        "{{ m.content }}", "{{ m.content }}{% if m.function_call %}!{{ m.function_call }}{% endif %}"
    )
    text, _ = outcome(source, OLD)
    assert "!{'name': 'get_tide', 'arguments': '{\"port\": \"Brest\"}'}<|im_end|>\n<|im_start|>" in text


def test_a_call_that_a_template_does_not_write_is_a_reject() -> None:
    assert outcome(CHATML, OLD) == "not_rendered"
    old = CHATML.replace("{{ m.content }}", "{{ m.content }}{{ m.function_call if loop.index < 3 }}")
    assert outcome(old, [OLD[0], OLD[3], *OLD]) == "not_rendered"


def test_roles_of_masks_are_those_of_the_records() -> None:
    source = shared("templates", "trl/qwen2_5.jinja").read_text(encoding="utf-8")
    assert said(source, OLD, function="train") == ["09:00"]
    assert said(source, OLD, tool="train") == []


@pytest.mark.parametrize("empty", [None, "", {}])
def test_no_call_is_none(empty: Any) -> None:
    message = {**OLD[3], "function_call": empty}
    assert outcome(CHATML, [OLD[0], message]) == outcome(CHATML, [OLD[0], OLD[3]])


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ({"function_call": [CALL]}, "'m.function_call' is a list"),
        ({"tool_calls": {"function": CALL}}, "'m.tool_calls' is an object, wanted a list of calls (objects)"),
        ({"tool_calls": [3]}, "'m.tool_calls[0]' is a number (3), wanted a call (an object)"),
        ({"function_call": {"arguments": "{}"}}, "'m.function_call' is an object without a name, wanted an object"),
        ({"function_call": CALL, "tool_calls": [{"function": CALL}]}, "'m' has both 'function_call' and 'tool_calls'"),
    ],
)
def test_what_is_no_call_is_a_reject(message: dict[str, Any], says: str) -> None:
    with pytest.raises(Reject) as found:
        check_message({"role": "assistant", "content": "", **message}, "m")
    assert found.value.reason == "bad_message"
    assert found.value.message.startswith(says)


@pytest.mark.parametrize(
    "given",
    [
        {"tool_calls": json.dumps([{"type": "function", "function": CALL}])},
        {"tool_calls": [json.dumps({"type": "function", "function": CALL})]},
        {"function_call": json.dumps(CALL)},
    ],
)
def test_calls_that_are_json_in_a_text_are_calls(given: dict[str, Any]) -> None:
    source = shared("templates", "trl/qwen2_5.jinja").read_text(encoding="utf-8")
    assert said(source, [OLD[0], {"role": "assistant", "content": "", **given}, *OLD[2:]]) == said(source, OLD)


@pytest.mark.parametrize("key", ["tool_calls", "function_call"])
def test_calls_in_a_text_that_is_no_json_are_a_reject(key: str) -> None:
    message = {"role": "assistant", "content": "", key: "get_tide(Brest)"}
    with pytest.raises(Reject, match=rf"'messages\[0\].{key}' is a string that is no JSON") as found:
        check_messages([message], "messages")
    assert found.value.reason == "bad_json"


def test_functions_are_tools_where_they_are_schemas() -> None:
    tools = [{"type": "function", "function": TIDE}]
    assert variables_of({"functions": [TIDE]}) == {"tools": tools}
    assert variables_of({"functions": json.dumps([TIDE])}) == {"tools": tools}
    assert variables_of({"functions": [TIDE], "tools": None}) == {"tools": tools}
    assert variables_of({"functions": [TIDE], "tools": tools}) == {"tools": tools}
    assert variables_of({"functions": [TIDE], "tools": [TIDE]}) == {"tools": [TIDE]}
    forms: tuple[Any, ...] = (TIDE, json.dumps(TIDE), tools, tools[0], json.dumps(tools), f" [ {json.dumps(TIDE)}]")
    for same in forms:
        assert variables_of({"functions": same}) == {"tools": tools}
    code: tuple[Any, ...] = ([{"code": "x"}], {"main": 1}, [{"function": "x"}], [{"function": {}}], "{ return 1; }")
    others: tuple[Any, ...] = ("main, load", ["main"], '["main"]', {}, [], None, 3, *code)
    for other in others:
        assert variables_of({"functions": other}) == {}
    with pytest.raises(Reject, match="fields 'tools' and 'functions' hold different schemas, wanted one of them"):
        variables_of({"functions": [TIDE], "tools": [{"type": "function", "function": {"name": "other"}}]})


@pytest.mark.parametrize(
    ("functions", "says"),
    [
        ([{"a": 1}, TIDE], "'functions[0]' is an object without a name, wanted a schema (an object with a 'name')"),
        ([TIDE, "x"], "'functions[1]' is a string (\"x\"), wanted a schema"),
        ('[{"name": bad', "field 'functions' is a string that is no JSON ("),
    ],
)
def test_functions_that_are_no_schemas_are_a_reject(functions: Any, says: str) -> None:
    with pytest.raises(Reject) as found:
        variables_of({"functions": functions})
    assert found.value.reason == "bad_tools"
    assert found.value.message.startswith(says)
