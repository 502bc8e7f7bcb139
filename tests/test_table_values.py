"""A table's values are what its library reads: blocks of tables give what blocks of the same records as JSONL give."""

import json
import math
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest

import beam_prep as bp
from beam_prep.reading.records import Record
from beam_prep.starter.shapes import find_shape
from tests.test_sources import blocks, made, tokens_of, write

TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}\n{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.tool_calls %}{{ m.tool_calls | tojson }}{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
)
CHAT: dict[str, Any] = {
    "input": {
        "sections": [{"field": "messages", "action": "$role", "template": "conversation"}],
        "chat_template": TEMPLATE,
    },
    "mask": {"assistant": "train"},
    "output": {"storage_format": "bin"},
}
TEXT: dict[str, Any] = {
    "input": {"sections": [{"field": "text", "action": "train"}]},
    "preprocessing": {"min_chars": 0},
    "output": {"storage_format": "bin"},
}


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def tool(name: str, **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def asked(*calls: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"role": "user", "content": "When?"},
        {"role": "assistant", "content": None, "tool_calls": list(calls)},
        {"role": "assistant", "content": "At six."},
    ]


TALK = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}]
CALLS: list[Any] = [
    {
        "messages": asked(call("tide", port="Brest", day=1)),
        "tools": [tool("tide", port={"type": "string", "default": None})],
    },
    {
        "messages": asked(call("say", content="x", to=["a", None])),
        "tools": [tool("say", content={"type": ["string", "null"]})],
    },
    {"messages": asked(call("tide", port={"name": "Brest"}, day="two"), call("stop")), "tools": [tool("stop")]},
]


def records_of(path: str) -> list[Record]:
    return [row for block in blocks(path) for row in block.rows]


def compared(rows: list[Record], path: str, given: dict[str, Any], folder: Path) -> None:
    """Compares what a config makes of records as JSONL and of a table."""
    (folder / "x.jsonl").write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    found = tokens_of(path, given)
    assert found == tokens_of(str(folder / "x.jsonl"), given)
    assert len(found[0]) == len(rows)


def without_nulls(value: Any) -> Any:
    if isinstance(value, list):
        return [without_nulls(each) for each in value]
    if isinstance(value, dict):
        return {name: without_nulls(each) for name, each in value.items() if each is not None}
    return value


# As `datasets` writes columns


@pytest.mark.parametrize("way", ["parquet", "folder"])
def test_columns_that_datasets_writes_as_json(way: str, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    mixed: list[Record] = [{"messages": TALK, "meta": value} for value in (1, {"a": [1.5, None]}, "x")]
    for rows in (CALLS, mixed):
        found = datasets.Dataset.from_list(rows, on_mixed_types="use_json")
        assert "Json" in str(found.features)
        path = str(tmp_path / ("x.parquet" if way == "parquet" else "set"))
        found.to_parquet(path) if way == "parquet" else found.save_to_disk(path)
        assert without_nulls(records_of(path)) == without_nulls(list(found))
        compared(rows, path, CHAT, tmp_path)


@pytest.mark.parametrize("adapter", [None, "sharegpt"])
def test_messages_as_json_text_are_messages(adapter: str | None, tmp_path: Path) -> None:
    rows: list[Record] = CALLS
    given = CHAT
    if adapter:
        shared = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello."}]
        rows, given = [{"conversations": shared}], {**CHAT, "input": {**CHAT["input"], "adapter": adapter}}
    texts = [{name: json.dumps(value) for name, value in row.items()} for row in rows]
    compared(rows, write(texts, tmp_path / "x"), given, tmp_path)


def test_init_finds_messages_in_each_of_their_forms() -> None:
    lists = {name: [message[name] for message in TALK] for name in ("role", "content")}
    for value in (TALK, json.dumps(TALK), lists):
        found = find_shape([{"id": "[not JSON", "messages": value}])
        assert found is not None
        assert (str(found.shape), found.records[0]["messages"]) == (
            "conversations in 'messages': messages of role and content",
            TALK,
        )


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ('[{"role": "user"', "field 'messages' is a string that is no JSON"),
        ({"role": ["user"], "content": ["Hi", "Hello."]}, "field 'messages' is an object, wanted a list of messages"),
    ],
    ids=["cut", "lengths"],
)
def test_what_holds_no_messages_is_a_reject(messages: Any, message: str, tmp_path: Path) -> None:
    _, said = tokens_of(write([{"messages": messages}, {"messages": messages}], tmp_path / "x"), CHAT)
    assert len(said) == 2
    assert message in said[0]


# What JSON does not have

NAN = float("nan")


def test_nan_in_a_column_that_nothing_reads_is_no_reject(tmp_path: Path, tokenizer_path: str) -> None:
    columns = {"text": ["a", "NaN", "c"], "score": [NAN, 1.0, -math.inf], "vector": [[1.0, NAN], [], [0.5]]}
    path = write(pa.table(columns), tmp_path / "x")
    assert [math.isnan(row["score"]) for row in records_of(path)] == [True, False, False]
    result = made(TEXT, path, tmp_path / "out", tokenizer_path)
    assert result.manifest is not None
    assert (result.manifest["ledger"]["kept"], result.manifest["ledger"]["rejected"]) == (3, {})
    run = json.loads((tmp_path / "out/run.json").read_text())
    assert run["records_not_finite"] == 2


READ: dict[str, tuple[Any, dict[str, Any], str, str]] = {
    "text": ({"text": NAN}, TEXT, "not_json", "'text' is a number (NaN), which JSON does not have"),
    "kept": (
        {"text": "a", "id": math.inf},
        {**TEXT, "output": {"storage_format": "bin", "keep_fields": {"id": "string"}}},
        "keep_fields",
        "field 'id' is a number (Infinity), which JSON does not have",
    ),
    "arguments": (
        {"messages": asked(call("tide", height=NAN))},
        CHAT,
        "not_json",
        "'messages[1].tool_calls[0].function.arguments.height' is a number (NaN), which JSON does not have",
    ),
    "bytes": ({"text": b"abc"}, TEXT, "not_json", "'text' is binary (3 bytes), which JSON does not have"),
}


@pytest.mark.parametrize("name", READ)
def test_where_it_is_read_the_reject_names_it(name: str, tmp_path: Path) -> None:
    row, given, reason, message = READ[name]
    _, (said,) = tokens_of(write([row], tmp_path / "x"), given)
    assert said.startswith(f"{reason}: {message}")


def test_jsonl_rejects_name_what_is_no_number() -> None:
    ledger = bp.testing.records([b'{"a": NaN}', b'{"a": None}']).ledger
    assert ledger.messages[0].startswith("NaN is no value of JSON: unexpected character, expected a JSON value: line 1")
    assert ledger.messages[1].startswith("None is no value of JSON: ")
