"""Sources that are no JSONL: what the same records give as JSONL, in runs and in all that looks at inputs; a
table's values are what its library reads."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest

import beam_prep as bp
from beam_prep.config import PipelineConfig
from beam_prep.reading.records import Record, Records, parse
from beam_prep.recipe import prepare
from beam_prep.starter import find_shape
from beam_prep.storage.files import list_inputs
from beam_prep.storage.inputs import blocks_of, split_file
from tests.conftest import (
    ROOT,
    TOKENIZER_PATH,
    Command,
    chat_config,
    chats,
    records_of,
    run_job,
    says,
    text_config,
    write_lines,
)
from tests.reference import ours
from tests.storage.test_tables import WRITERS, saved
from tests.test_configs import CONFIGS, sample

TEXTS = text_config(preprocessing={"min_chars": 0}, output={"storage_format": "bin"})
KINDS = ("parquet", "arrow", "folder")


def rows_of(path: Path) -> pa.Table:
    return table(records_of(path))


def table(rows: list[dict[str, Any]]) -> pa.Table:
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: [row.get(name) for row in rows] for name in names}
    for values in columns.values():
        if {str, int} <= set(map(type, values)):  # no column holds both; as a domain, neither 17 nor null is one
            values[:] = [None if type(value) is int else value for value in values]
    return pa.table(columns)


def write(rows: pa.Table | list[dict[str, Any]], path: Path, kind: str = "parquet", group: int = 7) -> str:
    """Rows as a table of some kind; gives its path."""
    rows = rows if isinstance(rows, pa.Table) else table(rows)
    if kind == "folder":
        half = len(rows) // 2
        return saved(path.with_suffix(".set"), b=rows[:half], a=rows[half:])
    return WRITERS[kind](path.with_suffix(f".{kind}"), rows, group)


def blocks(path: str) -> list[Records]:
    """The blocks that a run reads of an input."""
    splits = [split for place, file in enumerate(list_inputs(path)) for split in split_file((place, file), 1 << 20)]
    return [parse(*block, by_row=".jsonl" not in path) for split in splits for block in blocks_of(split, 1 << 20)]


def tokens_of(path: str, given: dict[str, Any] | Path) -> tuple[list[Any], list[str]]:
    """(the values of each row, what is said of each reject) of an input, without a job."""
    config = PipelineConfig.from_json(given) if isinstance(given, Path) else PipelineConfig.from_dict(given)
    rows, said = [], []
    for block in blocks(path):
        batch = prepare(block, config, ours(TOKENIZER_PATH))
        rows += list(zip(*(batch[name].to_lists() for name in batch.schema), strict=True))
        said += [f"{reason}: {batch.ledger.messages[line]}" for line, reason in bp.testing.rejects(batch)]
    return rows, said


# The arguments of `tools` are of several types.
@pytest.mark.parametrize("name", [name for name in CONFIGS if name != "tools"])
def test_blocks_of_tables_give_what_the_same_records_give_as_jsonl(name: str, tmp_path: Path) -> None:
    given = ROOT / "configs" / f"{name}.json"
    wanted = tokens_of(str(sample(name)), given)
    assert len(wanted[0]) > 0
    for kind in KINDS:
        assert tokens_of(write(rows_of(sample(name)), tmp_path / "x", kind), given) == wanted


def test_rejects_and_drops_name_file_and_row(tmp_path: Path) -> None:
    texts: list[Any] = [f"text {number} " * 400 for number in range(60)]
    texts[7], texts[9] = None, "b" * 9000
    meta = pa.array(["{" if row in (3, 50) else "{}" for row in range(60)], pa.json_())
    path = write(pa.table({"text": texts, "meta": meta}), tmp_path / "x", group=9)
    limits = {"max_line_bytes": 8000, "max_reject_rate": 1.0, "max_no_loss_rate": 1.0}
    ledger = run_job(TEXTS, path, tmp_path / "out", block_bytes=65536, **limits).manifest["ledger"]
    assert (ledger["lines"], ledger["kept"], ledger["dropped"]) == (60, 56, {"empty": 1})
    rejects = list(bp.open(tmp_path / "out").rejects())
    found = [(each["file"], each["line"], each["offset"], each["reason"]) for each in rejects]
    assert found == [(path, 4, 3, "bad_json"), (path, 10, 9, "line_too_long"), (path, 51, 50, "bad_json")]
    assert rejects[0]["message"].startswith("column 'meta': its JSON is refused")
    assert rejects[0]["text"].startswith('{"text":"text 3 ')
    (drop,) = bp.open(tmp_path / "out").drops()
    assert (drop["file"], drop["line"], drop["offset"]) == (path, 8, 7)


def test_commands_read_tables(tmp_path: Path, command: Command) -> None:
    rows = records_of(sample("sft_conversation"))[:60]
    chats = write(rows, tmp_path / "chats", group=25)
    words = ["-c", str(ROOT / "configs/sft_conversation.json"), "--tokenizer_path", TOKENIZER_PATH]
    assert "chats.parquet, row " in command("inspect", chats, *words).replace("\n", "")
    audits, configs = [], []
    for path in (write_lines(tmp_path / "chats.jsonl", rows), chats):
        audits.append(json.loads(command("audit", path, *words, "--json")))
        written = tmp_path / f"{len(audits)}.json"
        command("init", path, "-o", written, "--tokenizer_path", TOKENIZER_PATH)
        configs.append(written.read_text())
    assert audits[0] == audits[1]
    assert configs[0] == configs[1]
    run_job(ROOT / "configs/sft_conversation.json", chats, tmp_path / "out")
    shutil.copy(write(rows[:-1], tmp_path / "other"), chats)
    assert "chats.parquet: found" in command("verify", tmp_path / "out", "--inputs", code=1)


def test_a_table_without_the_configs_fields_is_refused_before_a_run(tmp_path: Path) -> None:
    inputs = [write([{"text": "a"}], tmp_path / "a"), write([{"body": "a", "id": 1}], tmp_path / "b")]
    with pytest.raises(
        bp.errors.InputError, match=r"b\.parquet' has none of the fields .*\('text'\): its columns are 'body', 'id'"
    ):
        run_job(TEXTS, inputs, tmp_path / "out", cache_dir=str(tmp_path / "token_cache"))
    assert not (tmp_path / "token_cache").exists()


# Values of tables


TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}\n{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.tool_calls %}{{ m.tool_calls | tojson }}{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
)
CHAT = chat_config(output={"storage_format": "bin"})
CHAT["input"]["chat_template"] = TEMPLATE


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def tool(name: str, **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def asked(*calls: dict[str, Any]) -> list[dict[str, Any]]:
    called = {"role": "assistant", "content": None, "tool_calls": list(calls)}
    return [*says(user="When?"), called, *says(assistant="At six.")]


TALK = says(user="Hi", assistant="Hello.")
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


def rows_in(path: str) -> list[Record]:
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
        assert without_nulls(rows_in(path)) == without_nulls(list(found))
        compared(rows, path, CHAT, tmp_path)


def test_messages_as_json_text_are_messages(tmp_path: Path) -> None:
    texts = [{name: json.dumps(value) for name, value in row.items()} for row in CALLS]
    compared(CALLS, write(texts, tmp_path / "x"), CHAT, tmp_path)


ANSWERS = {
    "a list": '["Brest", "Nantes"]',
    "calls": '[{"name": "get_tide", "arguments": {"port": "Brest"}}]',
    "objects": '[{"port": "Brest", "by": {"role": "pilot"}}]',
    "calls of Python": "[{'name': 'get_tide'}]",
    "a call": "[get_tide(port='Brest')]",
    "a call with from": '[{"name": "get_tide", "arguments": {"from": "Brest"}}]',
    "sets": "[{Brest}, {Nantes}]",
    "an empty list": "[] says so.",
    "a source": "[1] says so.",
    "an object": '{"role": "port", "content": "Brest"}',
    "part of a message": '{"content": "Brest", "of": {"roles": ["user"]}}',
    "messages within": '{"content": "Brest", "of": [{"role": "user", "content": "q"}]}',
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_an_answer_that_looks_like_json_is_a_text(answer: str, tmp_path: Path) -> None:
    given = {**CHAT, "input": {**CHAT["input"], **chats(prompt="mask", completion="train")}, "mask": {}}
    rows: list[dict[str, Any]] = [{"prompt": answer, "completion": answer}]
    asked, said = says(user=answer), says(assistant=answer)
    found = tokens_of(write(rows, tmp_path / "x"), given)
    assert found == tokens_of(write([{"prompt": asked, "completion": said}], tmp_path / "y"), given)
    assert len(found[0]) == 1
    for message in (said[0], {"content": answer, "refusal": None, "role": "assistant"}):
        rows = [{"prompt": asked, "completion": json.dumps(message)}]
        assert found == tokens_of(write(rows, tmp_path / "z"), given)


def test_init_finds_messages_in_each_of_their_forms() -> None:
    lists = {name: [message[name] for message in TALK] for name in ("role", "content")}
    for value in (TALK, json.dumps(TALK), lists):
        found = find_shape([{"id": "[not JSON", "messages": value}])
        assert found is not None
        assert str(found.shape) == "conversations in 'messages': messages of role and content"
        assert found.records[0]["messages"] == TALK


def test_what_holds_no_messages_is_a_reject(tmp_path: Path) -> None:
    lengths = {"role": ["user"], "content": ["Hi", "Hello."]}
    for messages, message in (
        ('[{"role": "user"', "field 'messages' is a string that is no JSON"),
        (lengths, "field 'messages' is an object, wanted a list of messages"),
    ):
        _, (said,) = tokens_of(write([{"messages": messages}], tmp_path / "x"), CHAT)
        assert message in said


# What JSON does not have

NAN = float("nan")


def test_nan_in_a_column_that_nothing_reads_is_no_reject(tmp_path: Path) -> None:
    columns = {"text": ["a", "NaN", "c"], "score": [NAN, 1.0, -math.inf], "vector": [[1.0, NAN], [], [0.5]]}
    path = write(pa.table(columns), tmp_path / "x")
    assert [math.isnan(row["score"]) for row in rows_in(path)] == [True, False, False]
    rows, rejects = tokens_of(path, TEXTS)
    assert (len(rows), rejects) == (3, [])


READ: dict[str, tuple[Any, dict[str, Any], str, str]] = {
    "text": ({"text": NAN}, TEXTS, "not_json", "'text' is a number (NaN), which JSON does not have"),
    "kept": (
        {"text": "a", "id": math.inf},
        {**TEXTS, "output": {"storage_format": "bin", "keep_fields": {"id": "string"}}},
        "keep_fields",
        "field 'id' is a number (Infinity), which JSON does not have",
    ),
    "arguments": (
        {"messages": asked(call("tide", height=NAN))},
        CHAT,
        "not_json",
        "'messages[1].tool_calls[0].function.arguments.height' is a number (NaN), which JSON does not have",
    ),
    "bytes": ({"text": b"abc"}, TEXTS, "not_json", "'text' is binary (3 bytes), which JSON does not have"),
}


@pytest.mark.parametrize("name", READ)
def test_where_it_is_read_the_reject_names_it(name: str, tmp_path: Path) -> None:
    row, given, reason, message = READ[name]
    _, (said,) = tokens_of(write([row], tmp_path / "x"), given)
    assert said.startswith(f"{reason}: {message}")


def test_images_within_messages_are_files_and_not_bytes(tmp_path: Path) -> None:
    said = [{"type": "text", "text": "A cat."}]
    asked = [*said, {"type": "image", "image": {"bytes": b"\x89PNG", "path": "a.png"}}]
    row = {"messages": [{"role": "user", "content": asked}, {"role": "assistant", "content": said}]}
    path = write([row], tmp_path / "x")
    _, (reject,) = tokens_of(path, CHAT)
    assert reject.startswith("not_text: 'messages[0].content[1]' is a file (type 'image')")
    kept, rejects = tokens_of(path, {**CHAT, "input": {**CHAT["input"], "not_text": "drop_parts"}})
    assert (len(kept), rejects) == (1, [])
