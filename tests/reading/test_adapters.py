"""Adapters: exact records out, a reason with what was found and wanted for what cannot be meant, inputs unchanged."""

import copy
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from beam_prep.config import PipelineConfig
from beam_prep.data.block import Reject
from beam_prep.errors import ConfigError
from beam_prep.reading.adapters import ADAPTERS, adapter, fields_read, template_kwargs, tools
from beam_prep.reading.rollouts import tokenized
from beam_prep.shards.report import ConfigView
from tests.conftest import records_of, shared

Row = dict[str, Any]
_BLANK: list[Any] = ["", " ", [], [""], [{"type": "text", "text": "\n"}]]


def outcome(function: Callable[[Any], Any], value: Any) -> Any:
    """What it gives, or (reason, message) of its reject. The input must stay as it is."""
    before = copy.deepcopy(value)
    try:
        return function(value)
    except Reject as reject:
        return reject.reason, reject.message
    finally:
        assert value == before


def says(*turns: tuple[str, Any]) -> list[Row]:
    return [{"role": role, "content": content} for role, content in turns]


def talk(*turns: tuple[Any, Any]) -> list[Row]:
    return [{"from": name, "value": value} for name, value in turns]


class TestShareGPT:
    def test_odd_file(self) -> None:
        gpt_first, null_value, other_keys, no_field, unknown = records_of(shared("data", "bad", "sharegpt_odd.jsonl"))
        adapt = adapter("sharegpt")
        assert outcome(adapt, gpt_first) == {"messages": says(("assistant", "starts with gpt"), ("user", "x"))}
        assert outcome(adapt, null_value) == {"messages": says(("user", None), ("assistant", "x"))}
        assert outcome(adapt, other_keys) == {"messages": other_keys["conversations"]}
        assert outcome(adapt, no_field) == no_field
        assert outcome(adapt, unknown) == (
            "unknown_role",
            "'conversations[0].from' is 'bing', wanted one of human, user, gpt, assistant, chatgpt, bot, model, "
            "function_call, tool_call, system, tool, observation, function_response, tool_response, function, ipython: "
            'map it with "roles": {"bing": "assistant"}, or keep all names with "roles": "keep"',
        )
        for roles, names in (({"bing": "assistant"}, ("assistant", "assistant")), ("keep", ("bing", "chatgpt"))):
            messages = says(*zip(names, "xy", strict=True))
            assert outcome(adapter("sharegpt", roles=roles), unknown) == {"messages": messages}

    @pytest.mark.parametrize(("name", "role"), [("User", "user"), ("GPT", "assistant"), ("bing", "assistant")])
    def test_an_unknown_name_is_mapped_to_what_is_meant(self, name: str, role: str) -> None:
        reason, said = outcome(adapter("sharegpt"), {"conversations": talk((name, "x"))})
        assert (reason, f'map it with "roles": {{"{name}": "{role}"}}' in said) == ("unknown_role", True)

    @pytest.mark.parametrize(
        ("system", "items", "wanted"),
        [
            ("Be kind.", talk(("human", "x")), {"messages": says(("system", "Be kind."), ("user", "x"))}),
            ("a", talk(("system", "b")), {"system": "a", "messages": says(("system", "b"))}),
            *((blank, talk(("human", "x")), {"messages": says(("user", "x"))}) for blank in _BLANK),
        ],
    )
    def test_system_field(self, system: Any, items: list[Row], wanted: Row) -> None:
        assert outcome(adapter("sharegpt"), {"system": system, "conversations": items}) == wanted

    def test_function_calls(self) -> None:
        one = '{"name": "f", "arguments": {"n": 12345678901234567890123}}'
        two = '[{"name": "f", "arguments": {}}, {"name": "g", "arguments": "{\\"a\\": 1}"}]'
        row = {"conversations": talk(("human", "x"), ("function_call", one), ("observation", "1"))}
        call = {"type": "function", "function": {"name": "f", "arguments": {"n": 12345678901234567890123}}}
        asked, called, result = says(("user", "x"), ("assistant", ""), ("tool", "1"))
        assert outcome(adapter("sharegpt"), row) == {"messages": [asked, called | {"tool_calls": [call]}, result]}
        swift = {"conversations": talk(("human", "x"), ("tool_call", one), ("tool_response", "1"))}
        assert outcome(adapter("sharegpt"), swift) == outcome(adapter("sharegpt"), row)
        calls = adapter("sharegpt")({"conversations": talk(("function_call", two))})["messages"][0]["tool_calls"]
        assert [call["function"] for call in calls] == json.loads(two)
        python = {"conversations": talk(("tool_call", repr(json.loads(two))))}
        assert adapter("sharegpt")(python)["messages"][0]["tool_calls"] == calls
        assert outcome(adapter("sharegpt", roles="keep"), row) == {
            "messages": says(("human", "x"), ("function_call", one), ("observation", "1"))
        }

    @pytest.mark.parametrize(
        "text", ["f(1)", '{"name": "f"}', '{"name": 1, "name": 2, "arguments": 3}', "[]", "[" * 100_000, "{'name': f}"]
    )
    def test_function_calls_that_are_text(self, text: str) -> None:
        row = {"conversations": talk(("function_call", text))}
        assert outcome(adapter("sharegpt"), row) == {"messages": says(("assistant", text))}

    def test_sides_of_a_preference(self) -> None:
        row: Row = {"chosen": talk(("gpt", "good")), "rejected": talk(("gpt", "bad"))}
        row["conversations"] = talk(("human", "q"))
        sides = {"chosen": says(("assistant", "good")), "rejected": says(("assistant", "bad"))}
        assert outcome(adapter("sharegpt"), row) == {"messages": says(("user", "q")), **sides}
        del row["conversations"]
        assert outcome(adapter("sharegpt"), row)["chosen"] == says(("assistant", "good"))
        row["chosen"] = {"from": "gpt", "value": "alone"}
        assert outcome(adapter("sharegpt"), row)["chosen"] == says(("assistant", "alone"))

    def test_two_conversations(self) -> None:
        row = {"conversations": talk(("human", "x")), "messages": says(("user", "y"))}
        message = "the record has 'messages' beside 'conversations', wanted one of them: which is meant?"
        assert outcome(adapter("sharegpt"), row) == ("field_taken", message)
        assert outcome(adapter("sharegpt"), {**row, "messages": None}) == {"messages": says(("user", "x"))}


class TestAlpaca:
    def test_messages(self) -> None:
        row = {"id": 1, "instruction": "Add.", "input": "2 3", "output": "5"}
        assert outcome(adapter("alpaca"), row) == {"id": 1, "messages": says(("user", "Add.\n2 3"), ("assistant", "5"))}

    def test_without_an_input(self) -> None:
        row = {"instruction": " Hi ", "input": " \n", "output": ""}
        assert outcome(adapter("alpaca"), row) == {"messages": says(("user", " Hi "), ("assistant", ""))}
        row = {"instruction": "", "input": "x", "output": "y"}
        assert outcome(adapter("alpaca"), row) == {"messages": says(("user", "x"), ("assistant", "y"))}

    def test_system_and_history(self) -> None:
        row = {"instruction": "c", "output": "d", "system": "s", "history": [["a", "b"]]}
        assert outcome(adapter("alpaca"), row) == {
            "messages": says(("system", "s"), ("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d"))
        }

    def test_an_answer_of_calls_beside_tools(self) -> None:
        calls = [{"name": "f", "arguments": {"n": 1}}, {"name": "g", "arguments": {}}]
        row = {"instruction": "x", "output": json.dumps(calls), "tools": "[...]"}
        found = adapter("alpaca")(row)["messages"][-1]
        assert [call["function"] for call in found["tool_calls"]] == calls
        assert found["content"] == ""
        for kept in ({**row, "tools": ""}, {**row, "output": "[]"}, {**row, "output": "f(1)"}):
            assert adapter("alpaca")(kept)["messages"][-1] == {"role": "assistant", "content": kept["output"]}

    def test_prompt_completion(self) -> None:
        adapt = adapter("alpaca", to="prompt_completion", separator="\n\n")
        row = {"instruction": "Add.", "input": "2 3", "output": "5", "system": "", "history": [], "n": 1}
        assert outcome(adapt, row) == {"n": 1, "prompt": "Add.\n\n2 3", "completion": "5"}
        row["system"] = "s"
        message = "field 'system' has no place in a prompt, wanted none of it: use to: 'messages'"
        assert outcome(adapt, row) == ("no_place", message)
        row["history"] = [["a", "b"]]
        assert outcome(adapt, row) == ("no_place", message.replace("system", "history"))

    def test_the_prompt_of_a_pair(self) -> None:
        kept = {"chosen": "x", "output": "kept"}
        row: Row = {"instruction": "c", "input": "d", "system": "s", "history": [["a", "b"]], **kept}
        prompt = says(("system", "s"), ("user", "a"), ("assistant", "b"), ("user", "c\nd"))
        assert outcome(adapter("alpaca", to="preference"), row) == {"prompt": prompt, **kept}
        row = {"prompt": "c", "chosen": says(("user", "c"), ("assistant", "x"))}
        found = outcome(adapter("alpaca", to="preference", instruction="prompt"), row)
        assert found == {**row, "prompt": says(("user", "c"))}
        found = outcome(adapter("alpaca", to="preference"), {"instruction": "i", "prompt": "p", "chosen": "x"})
        assert found[0] == "field_taken"


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("sharegtp", {}, "unknown adapter 'sharegtp'; did you mean 'sharegpt'? known: sharegpt, alpaca"),
        ("alpaca", {"sep": ""}, "adapter 'alpaca': 'sep' is '': Unexpected keyword argument; its options: to, sep"),
        ("sharegpt", {"roles": "drop"}, "adapter 'sharegpt': 'roles' is 'drop': Input should be "),
        ("alpaca", {"to": "text"}, "adapter 'alpaca': 'to' is 'text': Input should be 'messages', 'prompt_"),
    ],
)
def test_wrong_options_are_errors(name: str, options: Row, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        adapter(name, **options)
    assert message in str(error.value)


def test_tools_and_variables_of_a_template_are_read() -> None:
    given = records_of(shared("data", "bad", "tool_calls_odd.jsonl"))
    assert [outcome(tools, row) for row in given] == [None] * 5 + [[], None, [{"name": "bare"}]]
    each = {"tools": ['{"name": "f"}', {"name": "g"}]}  # JSON each, or not
    assert outcome(tools, each) == [{"name": "f"}, {"name": "g"}]
    assert template_kwargs({}) == template_kwargs({"chat_template_kwargs": None}) == {}
    assert template_kwargs({"chat_template_kwargs": {"thinking": False}}) == {"thinking": False}
    assert template_kwargs({"chat_template_kwargs": ' {"thinking": false}'}) == {"thinking": False}


@pytest.mark.parametrize(
    ("row", "mask"),
    [
        ({"input_ids": [5, 0, 2**31 - 1]}, [1, 1, 1]),
        ({"input_ids": [5, 6, 7], "completion_mask": [0, 1, 1], "assistant_masks": [1, 1, 0]}, [0, 1, 0]),
        ({"input_ids": [5, 6, 7], "completion_mask": [0, 1, 1], "labels": [5, 6, -100]}, [0, 1, 0]),
        ({"input_ids": [], "labels": []}, []),
    ],
)
def test_ids_are_taken_as_they_are_with_what_all_masks_train(row: Row, mask: list[int]) -> None:
    found = outcome(of_ids, row)
    assert (found[0].dtype, found[1].dtype) == (np.int32, np.uint8)
    assert found[0].tolist() == row["input_ids"]
    assert found[1].tolist() == mask


@pytest.mark.parametrize("row", [{"input_ids": None, "labels": [1]}, {"text": "x"}])
def test_a_record_without_ids_is_none_of_ids(row: Row) -> None:
    assert outcome(of_ids, row) is None


SHAREGPT, ALPACA = adapter("sharegpt"), adapter("alpaca")


def alpaca(**row: Any) -> Row:
    return {"instruction": "i", "output": "o", **row}


def of_ids(record: Row) -> Any:
    return tokenized(record, 2**31 - 1)


@pytest.mark.parametrize(
    ("adapt", "record", "reason", "words"),
    [
        (SHAREGPT, {"conversations": "x"}, "wrong_type", 'is a string ("x"), wanted a list'),
        (SHAREGPT, {"conversations": ["x"]}, "wrong_type", "wanted an object with 'from' and 'value'"),
        (SHAREGPT, {"conversations": [{"text": "x", "who": "y"}]}, "bad_message", "has 'text', 'who'"),
        (SHAREGPT, {"conversations": [{"from": "human"}]}, "bad_message", "has 'from' but no 'value', wanted both"),
        (SHAREGPT, {"conversations": talk(("gpt", 3))}, "wrong_type", "'conversations[0].value' is a number (3)"),
        (ALPACA, {"instruction": "i"}, "missing_field", "field 'output' is absent, wanted the answer (a string)"),
        (ALPACA, alpaca(history="h"), "wrong_type", "field 'history' is a string (\"h\"), wanted a list of pairs"),
        (ALPACA, alpaca(history=[["a", "b"], ["c"]]), "wrong_type", "'history[1]' is a list, wanted [question, "),
        (ALPACA, alpaca(messages=[]), "field_taken", "the record has 'messages' beside 'instruction'"),
        (tools, {"tools": {}}, "bad_tools", "field 'tools' is an object, wanted a list of schemas (objects)"),
        (tools, {"tools": "{}"}, "bad_tools", "field 'tools' is an object, wanted a list of schemas"),
        (tools, {"tools": [{}, "f"]}, "bad_tools", "'tools[1]' is a string (\"f\"), wanted a schema (an object)"),
        (tools, {"tools": [{}, "{f"]}, "bad_tools", "field 'tools[1]' is a string that is no JSON (unexpected"),
        (tools, {"tools": '[{"a": NaN}]'}, "bad_tools", "is a string that is no JSON (unexpected character"),
        (template_kwargs, {"chat_template_kwargs": "x"}, "bad_kwargs", "is a string that is no JSON"),
        (template_kwargs, {"chat_template_kwargs": "{'a': 1}"}, "bad_kwargs", "is a string that is no JSON"),
        (of_ids, {"input_ids": [5, "6"]}, "wrong_type", "'input_ids[1]' is a string (\"6\"), wanted a token id"),
        (of_ids, {"input_ids": [5, -1]}, "bad_id", "'input_ids[1]' is a number (-1), wanted a token id"),
        (of_ids, {"input_ids": [2**31]}, "bad_id", "is a number (2147483648), wanted a token id"),
        (of_ids, {"input_ids": [5, 2**64]}, "bad_id", "is a number (18446744073709551616), wanted"),
        (of_ids, {"input_ids": [5, 6], "labels": [5]}, "count_mismatch", "'labels' has 1 values, wanted 2: one"),
        (of_ids, {"input_ids": [5, 6], "labels": [6, -100]}, "labels_differ", "is 6 where the id is 5, wanted"),
        (of_ids, {"input_ids": [5], "loss_mask": [2]}, "wrong_type", "'loss_mask[0]' is a number (2), wanted"),
        (of_ids, {"input_ids": [5], "completion_mask": [0.5]}, "wrong_type", "is a number (0.5), wanted 0 or 1"),
        (of_ids, {"input_ids": [5, 9], "attention_mask": [1, 0]}, "padded", "'attention_mask' has zeros, wanted rows"),
        (of_ids, {"input_ids": [5, 9], "position_ids": [0, 0]}, "packed", "says that the row holds 2 documents, "),
        (of_ids, {"input_ids": [5, 9, 9], "seq_lengths": [2, 1]}, "packed", "'seq_lengths' says that the row holds 2"),
    ],
)
def test_what_cannot_be_meant_is_a_reject(adapt: Any, record: Row, reason: str, words: str) -> None:
    found = outcome(adapt, record)
    assert found[0] == reason
    assert words in found[1]


@pytest.mark.parametrize("name", [*ADAPTERS, "tokenized"])
def test_every_adapter_says_what_it_reads_for_the_report_of_a_run(name: str) -> None:
    sections = [{"field": "messages", "action": "$role", "template": True}]
    given = {"adapter": name} if name == "tokenized" else {"adapter": name, "sections": sections}
    config = PipelineConfig.from_dict({"input": given}).canonical()
    fields = ConfigView.of(config).fields
    assert fields == fields_read(name)
    assert fields
