"""Nasty inputs: what is accepted, what is rejected and where, and that nothing leaves the account.

The files and a strict reader's verdict on each of their lines lie in the shared material (`data/bad`, manifest.json).
"""

import copy
import functools
import gzip
import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.testing import test_pipeline

import beam_prep as bp
from beam_prep.chat.apply import apply_template
from beam_prep.chat.chat_format import chat_format_of
from beam_prep.config import PipelineConfig
from beam_prep.data.block import Block
from beam_prep.errors import InputError, RunError
from beam_prep.pipeline import Pipeline, Result
from beam_prep.reading.records import Records
from beam_prep.sample.sample import prepare
from beam_prep.transforms.records import ReadJSONL
from tests.conftest import ROOT, SHARED, shared
from tests.test_sources import blocks

FOLDER = SHARED / "data" / "bad"
MANIFEST: dict[str, Any] = (
    json.loads((FOLDER / "manifest.json").read_text("utf-8")) if (FOLDER / "manifest.json").exists() else {}
)
TOKENIZER = str(ROOT / "examples" / "tokenizer")

UNREADABLE = {
    "zero_bytes.jsonl.gz": "has 0 bytes, which no compressed file has: writing or uploading it has failed",
    "truncated.jsonl.gz": "cannot be read as gzip (Compressed file ended before the end-of-stream marker",
    "bad_crc.jsonl.gz": "cannot be read as gzip (CRC check failed",
    "flipped_byte.jsonl.gz": "cannot be read as gzip (CRC check failed",
    "trailing_garbage.jsonl.gz": "cannot be read as gzip (Not a gzipped file",
    "plain_text_named.jsonl.gz": "cannot be read as gzip (Not a gzipped file",
    "gzip_named.jsonl": "is compressed, but its name does not end in .gz: rename it",
    "utf16le_bom.jsonl": "is text in UTF-16, wanted JSONL in UTF-8: type: iconv -f UTF-16 -t UTF-8 ",
    "utf32be.jsonl": "is text in UTF-32BE, wanted JSONL in UTF-8: type: iconv -f UTF-32BE -t UTF-8 ",
}
READABLE = sorted(MANIFEST.keys() - UNREADABLE.keys())

# Where we rule otherwise than the strict reader of the manifest: (file, line) -> what becomes of it.
EXCEPTIONS = {
    ("utf8_bom.jsonl", 1): "kept",  # a BOM at the start of a file is skipped
    ("bom_on_every_line.jsonl", 1): "kept",
    **{("top_level_not_object.jsonl", line): "not_an_object" for line in range(1, 6)},
    ("json_array.jsonl", 1): "not_an_object",
    ("nan_infinity.jsonl", 4): "bad_number",  # 1e999 is beyond a double
    ("huge_numbers.jsonl", 2): "bad_number",  # so is 10**400
}

# The reasons that we give, by the first words of what the strict reader says.
REASONS = {
    "blank": "blank",
    "bad json: duplicate key": "duplicate_key",
    "bad json: Exceeds the limit": "bad_number",
    "bad json": "bad_json",
    "invalid utf-8": "invalid_utf8",
    "lone surrogate": "bad_text",
    "too deep": "too_deep",
}


@functools.cache
def content(name: str) -> bytes:
    data = (FOLDER / name).read_bytes()
    return gzip.decompress(data) if name.endswith(".gz") and data else data


def lines_of(name: str) -> list[tuple[int, bytes]]:
    """(byte offset, bytes with its line end) of every line of a file."""
    lines, offset = [], 0
    for line in content(name).split(b"\n"):
        lines.append((offset, line))
        offset += len(line) + 1
    return lines if lines[-1][1] else lines[:-1]


def expected(name: str) -> list[str]:
    """`kept`, `blank` or the reason of the reject, of every line: from the manifest, with our exceptions."""
    entry = MANIFEST[name]
    if name == "binary.jsonl":
        return ["invalid_utf8" if any(byte > 127 for byte in line) else "bad_json" for _, line in lines_of(name)]
    if "lines" not in entry:  # gzip that is whole: all of its lines are good
        return ["kept"] * len(lines_of(name))
    verdicts = ["kept"] * entry["lines"]
    if "more" in entry["not_ok"]:
        assert name == "only_blank_lines.jsonl"
        verdicts = ["blank"] * entry["lines"]
    for line, says in entry["not_ok"].items():
        if line != "more":
            verdicts[int(line) - 1] = next(reason for start, reason in REASONS.items() if says.startswith(start))
    for (file, line), verdict in EXCEPTIONS.items():
        if file == name:
            verdicts[line - 1] = verdict
    return verdicts


# --- parsing


def note(block: Records, folder: str) -> None:
    """Leaves what a block says of its lines in a file."""
    ledger = block.ledger
    rows = dict(zip(block.line.tolist(), block.rows, strict=True))
    found = []
    for line, status in enumerate(ledger.status.tolist()):
        verdict = ledger.outcomes[status - 1][1] if status else "kept"
        offset = block.origin.first_byte + int(ledger.starts[line])
        record = json.dumps(rows[line]) if line in rows else None
        found.append((offset, verdict, record, ledger.messages.get(line), ledger.text(line)))
    name = f"{block.origin.file:04d}-{block.origin.start:012d}"
    Path(folder, name).write_text(json.dumps([block.origin.source.path, found]))


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """name -> (offset, verdict, record as JSON, message, text) of each line, as ReadJSONL gives them."""
    shared("data", "bad", "manifest.json")
    folder = tmp_path_factory.mktemp("read")
    with test_pipeline.TestPipeline(runner="FnApiRunner") as pipeline:
        blocks = pipeline | ReadJSONL([str(FOLDER / name) for name in READABLE], 65536)
        _ = blocks | beam.Map(note, str(folder))
    found: dict[str, list[Any]] = {}
    for path in sorted(folder.iterdir()):
        source, lines = json.loads(path.read_text())
        found.setdefault(os.path.basename(source), []).extend(lines)
    return found


@pytest.mark.parametrize("name", READABLE)
def test_lines_are_accepted_and_rejected_where_they_stand(name: str, read: dict[str, list[Any]]) -> None:
    found, lines = read[name], lines_of(name)
    assert [verdict for _, verdict, _, _, _ in found] == expected(name)
    starts = [offset for offset, _ in lines]
    if content(name).startswith(b"\xef\xbb\xbf"):
        starts[0] = 3
    assert [offset for offset, _, _, _, _ in found] == starts
    for (offset, verdict, record, message, text), (_, line) in zip(found, lines, strict=True):
        if verdict == "kept":
            assert record == json.dumps(json.loads(line.decode("utf-8-sig" if offset == 3 else "utf-8")))
            assert message is None
        elif verdict != "blank":
            assert message
            assert text == line.removesuffix(b"\r")[:4000].decode("utf-8", "replace")[:1000]


def test_every_file_of_the_manifest_is_looked_at() -> None:
    shared("data", "bad", "manifest.json")
    assert len(MANIFEST) == len(READABLE) + len(UNREADABLE) >= 64
    assert {name for name, _ in EXCEPTIONS} <= set(READABLE)
    assert sum(expected(name).count("kept") for name in READABLE) > 150


def start(config: dict[str, Any], inputs: list[Path], output: Path, **options: Any) -> Result:
    job = Pipeline(
        PipelineConfig.from_dict(config),
        [str(p) for p in inputs],
        output,
        TOKENIZER,
        **{"max_reject_rate": 1, "max_no_loss_rate": 1, **options},
    )
    return job.run(["--runner=FnApiRunner"])


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_file_that_cannot_be_read_ends_the_run_in_one_error_that_names_it(name: str, tmp_path: Path) -> None:
    path = shared("data", "bad", name)
    with pytest.raises(InputError) as caught:
        start(CONFIGS["sft_chat"], [path], tmp_path / "out")
    assert str(caught.value).startswith(f"{str(path)!r} {UNREADABLE[name]}")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


# --- whole jobs


def _configs() -> dict[str, dict[str, Any]]:
    """The configs of the project; the preference and the rollout one also for plain text, which the files here hold."""
    found = {path.stem: json.loads(path.read_text()) for path in sorted((ROOT / "configs").glob("*.json"))}
    found["chat_conversation"] = copy.deepcopy(found["sft_chat"])
    found["chat_conversation"]["input"]["sections"][0]["template"] = "conversation"
    sides = {side: {"sections": [{"field": side, "action": "train"}]} for side in ("chosen", "rejected")}
    found["dpo_text"] = {"input": {"sources": sides}, "preprocessing": {"min_chars": 0}}
    found["grpo_text"] = copy.deepcopy(found["grpo"])
    found["grpo_text"]["input"]["sources"]["prompts"]["sections"][0]["template"] = False
    found["pretrain"]["preprocessing"]["min_chars"] = 1
    return {name: config for name, config in found.items() if name in TESTED}


TEXT = {"input": {"sections": [{"field": "text", "action": "train"}]}, "preprocessing": {"min_chars": 1}}
TESTED = ("sft_chat", "chat_conversation", "sft_instruction", "pretrain", "dpo", "dpo_text", "grpo", "grpo_text")
CONFIGS = _configs()


@functools.cache
def over_all(config: str, folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """(manifest, rejects) of a job over all files that can be read."""
    inputs = [FOLDER / name for name in READABLE]
    # A good line comes first, so that something is kept: no line of the files has a prompt made of messages.
    good = (
        {"prompt": [{"role": "user", "content": "x"}], "responses": ["a"], "rewards": [1]} if config == "grpo" else {}
    )
    (folder / "first.jsonl").write_text(json.dumps(good) + "\n")
    result = start(CONFIGS[config], [folder / "first.jsonl", *inputs], folder / config, block_bytes=65536)
    assert result.manifest is not None
    return result.manifest, rejects_in(folder / config)


def rejects_in(folder: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for path in sorted((folder / "rejects").glob("*.jsonl"))
        for line in path.read_text("utf-8").split("\n")[:-1]
    ]


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shared("data", "bad", "manifest.json")
    return tmp_path_factory.mktemp("jobs")


@pytest.mark.parametrize("config", CONFIGS)
def test_the_ledger_of_all_bad_files_adds_up(config: str, jobs: Path) -> None:
    manifest, rejects = over_all(config, jobs)
    ledger = manifest["ledger"]
    assert ledger["lines"] == 1 + sum(len(lines_of(name)) for name in READABLE)
    assert ledger["blank"] == sum(expected(name).count("blank") for name in READABLE)
    dropped, rejected = sum(ledger["dropped"].values()), sum(ledger["rejected"].values())
    assert ledger["lines"] == ledger["blank"] + ledger["kept"] + dropped + rejected + ledger["not_read"]
    assert ledger["read"] == ledger["kept"] + dropped + rejected
    assert ledger["not_read"] == 0
    assert ledger["kept"] == manifest["totals"]["rows"] > 0
    assert Counter(reject["reason"] for reject in rejects) == ledger["rejected"]


@pytest.mark.parametrize("config", CONFIGS)
def test_every_reject_says_where_what_and_why(config: str, jobs: Path) -> None:
    _, rejects = over_all(config, jobs)
    for reject in rejects:
        name = os.path.basename(reject["file"])
        assert reject["file"] == str(FOLDER / name)
        offset, line = lines_of(name)[reject["line"] - 1]
        assert reject["offset"] == offset + (3 if line.startswith(b"\xef\xbb\xbf") and offset == 0 else 0)
        assert reject["text"] == line.removesuffix(b"\r")[:4000].decode("utf-8", "replace")[:1000]
        assert reject["reason"].isidentifier()
        assert 10 < len(reject["message"]) <= 1000
        if reject["reason"] in ("wrong_type", "bad_message", "not_an_object"):
            assert "wanted" in reject["message"]
    places = [(str(reject["file"]), reject["line"]) for reject in rejects]
    assert places == sorted(places, key=lambda place: (READABLE.index(os.path.basename(place[0])), place[1]))
    assert len(set(places)) == len(places)
    unparsed = {
        (str(FOLDER / name), line): verdict
        for name in READABLE
        for line, verdict in enumerate(expected(name), 1)
        if verdict not in ("kept", "blank")
    }
    found = dict(zip(places, (reject["reason"] for reject in rejects), strict=True))
    assert {place: found.get(place) for place in unparsed} == unparsed


# What becomes of each line. Reasons of rejects as they stand in the rejects; `-` before the reason of a dropped line.
EMPTY, ROWS_WITHOUT_LOSS = "-empty", "-rows_without_loss"
TABLE: dict[tuple[str, str], list[str]] = {
    ("missing_field.jsonl", "sft_chat"): [
        "kept",
        EMPTY,  # "message" instead of "messages": the field is absent
        "bad_message",  # no role
        "template_error",  # no content, which the template wants
        EMPTY,  # {}
        "kept",
    ],
    ("wrong_types.jsonl", "sft_chat"): [
        "template_error",  # null content counts as none
        "template_error",
        "wrong_type",  # content: 5
        "wrong_type",  # true
        "wrong_type",  # an object
        "kept",  # ["y"]: a list of texts is their text
        "kept",  # [] as well
        "wrong_type",  # 1.5
        "wrong_type",  # messages: a string
        "wrong_type",  # an object
        EMPTY,  # null
        "wrong_type",  # a list of lists
        "wrong_type",  # of strings
        "wrong_type",  # of null
        "bad_message",  # role: 1
        "bad_message",  # null
        *[EMPTY] * 5,  # text, prompt and response: not of this config
    ],
    ("wrong_types.jsonl", "sft_instruction"): [
        *[EMPTY] * 19,
        "kept",  # a null prompt is an absent one: the response is trained
        "wrong_type",  # response: 3
    ],
    ("wrong_types.jsonl", "pretrain"): [
        *[EMPTY] * 16,
        EMPTY,  # null
        "wrong_type",  # 7
        "wrong_type",  # a list of strings is not joined
        *[EMPTY] * 2,
    ],
    ("empty_messages.jsonl", "sft_chat"): [
        EMPTY,  # no message
        *["kept"] * 4,  # empty contents: the turns' control tokens are there, and the end of an empty answer is trained
        *[EMPTY] * 4,
    ],
    ("empty_messages.jsonl", "sft_instruction"): [EMPTY] * 9,
    ("empty_messages.jsonl", "pretrain"): [EMPTY] * 9,
    ("role_order.jsonl", "sft_chat"): [
        *["kept"] * 3,
        ROWS_WITHOUT_LOSS,  # a user alone
        "kept",  # an assistant alone
        ROWS_WITHOUT_LOSS,  # a system alone
        *["kept"] * 5,
    ],
    ("tool_calls_odd.jsonl", "sft_chat"): [
        "template_error",  # calls in place of content, which our small template does not know
        "template_error",
        *["kept"] * 6,
    ],
    ("content_parts.jsonl", "sft_chat"): [
        "kept",  # parts of type text
        "not_text",  # an image
        "unsupported_part",  # no text
        "unsupported_part",  # no type
        "kept",  # strings
    ],
    ("mixed_schemas.jsonl", "sft_chat"): ["kept", *[EMPTY] * 5],
    ("mixed_schemas.jsonl", "sft_instruction"): [
        EMPTY,
        EMPTY,
        "kept",
        EMPTY,
        ROWS_WITHOUT_LOSS,  # a prompt, and nothing to train on
        EMPTY,
    ],
    ("mixed_schemas.jsonl", "pretrain"): [EMPTY, "kept", *[EMPTY] * 4],
    ("mixed_schemas.jsonl", "grpo_text"): [
        EMPTY,
        EMPTY,
        "missing_source",  # a prompt without responses
        EMPTY,
        "missing_source",
        EMPTY,
    ],
    ("dpo_odd.jsonl", "dpo"): [
        "wrong_type",  # strings, where this config wants messages
        "wrong_type",
        "wrong_type",
        "kept",  # different prompts on the two sides: nothing compares them
        "wrong_type",  # one side a string
        EMPTY,  # two empty lists
        "wrong_type",
    ],
    ("dpo_odd.jsonl", "dpo_text"): [
        "equal_sides",  # nothing to prefer
        "missing_source",  # nothing rejected
        "missing_source",  # nothing chosen
        "wrong_type",
        "wrong_type",
        "wrong_type",
        "kept",  # the prompt, which is null, is not of this config
    ],
    ("grpo_odd.jsonl", "grpo"): ["wrong_type"] * 9,  # the prompt is a string, this config wants messages
    ("grpo_odd.jsonl", "grpo_text"): [
        "count_mismatch",  # two responses, one reward
        "missing_source",  # no response
        "wrong_type",  # a reward that is a string
        "wrong_type",  # null
        "wrong_type",  # true
        "wrong_type",  # a response that is no list
        "kept",
        "kept",  # a null response counts as an empty one, and keeps its place beside its reward
        "kept",  # an empty response, and a reward of -1e30
    ],
}


@pytest.mark.parametrize(("name", "config"), TABLE)
def test_the_verdict_on_each_line(name: str, config: str) -> None:
    (block,) = blocks(str(shared("data", "bad", name)))
    ledger = prepare(block, PipelineConfig.from_dict(CONFIGS[config]), bp.Tokenizer.load(TOKENIZER)).ledger
    marks = {"rejected": "", "dropped": "-", "blank": ""}
    names = ["kept", *(marks[kind] + reason for kind, reason in ledger.outcomes)]
    assert [names[status] for status in ledger.status.tolist()] == TABLE[name, config]
    said = [verdict not in ("kept", "blank") and not verdict.startswith("-") for verdict in TABLE[name, config]]
    assert [line in ledger.messages for line in range(len(said))] == said


def test_a_run_of_which_nothing_is_kept_says_what_became_of_each_line(tmp_path: Path) -> None:
    name, config = "dpo_odd.jsonl", "grpo"
    with pytest.raises(RunError, match="nothing is kept") as caught:
        start(CONFIGS[config], [shared("data", "bad", name)], tmp_path / "out")
    assert f"{tmp_path}/out.failed/" in str(caught.value)
    assert not (tmp_path / "out").exists()
    ledger = json.loads((tmp_path / "out.failed" / "failure.json").read_bytes())["ledger"]
    rejects = Counter(reject["reason"] for reject in rejects_in(tmp_path / "out.failed"))
    assert rejects == ledger["rejected"]
    assert sum(ledger["dropped"].values()) + rejects.total() == ledger["lines"] == len(lines_of(name))


@pytest.mark.parametrize(
    ("name", "config", "line", "message"),
    [
        ("missing_field.jsonl", "sft_chat", 3, "'messages[0]' has no role, wanted a string"),
        ("missing_field.jsonl", "sft_chat", 4, "'messages[0]' has no content: the chat template raised: "),
        ("wrong_types.jsonl", "sft_chat", 3, "'messages[0].content' is a number (5), wanted a string"),
        ("wrong_types.jsonl", "sft_chat", 5, "'messages[0].content' is an object, wanted a string"),
        ("wrong_types.jsonl", "sft_chat", 9, "field 'messages' is a string (\"a string\"), wanted a list of messages"),
        ("wrong_types.jsonl", "sft_chat", 14, "'messages[0]' is null, wanted a message (an object)"),
        ("wrong_types.jsonl", "sft_chat", 15, "'messages[0]' has a role that is a number (1), wanted a string"),
        ("dpo_odd.jsonl", "dpo_text", 2, "nothing for 'rejected': 'rejected' absent or empty"),
        ("grpo_odd.jsonl", "grpo_text", 1, "2 responses, 1 rewards: wanted as many of each"),
        ("grpo_odd.jsonl", "grpo_text", 4, "field 'rewards[0]' is null, wanted a number"),
        ("grpo_odd.jsonl", "grpo_text", 6, "field 'responses' is a string (\"a\"), wanted a list"),
        ("duplicate_keys.jsonl", "sft_chat", 2, "the key 'role' is twice in one object"),
        ("huge_numbers.jsonl", "pretrain", 1, "9999999999999999999999999999999999999999 is beyond a double"),
    ],
)
def test_messages_say_what_was_found_and_what_was_wanted(
    name: str, config: str, line: int, message: str, jobs: Path
) -> None:
    _, rejects = over_all(config, jobs)
    found = {(os.path.basename(reject["file"]), reject["line"]): reject["message"] for reject in rejects}
    assert found[name, line].startswith(message)


@pytest.mark.parametrize(
    ("element", "found"),
    [("oops", 'a string ("oops")'), ({"role": "user", "content": "a"}, "an object"), (3, "a number (3)")],
)
def test_an_element_of_a_list_of_chats_that_is_none_is_named_with_its_field(element: Any, found: str) -> None:
    section = bp.Section("responses", "train", "message", add_special_tokens=False)
    output = bp.Output("responses", "list", (section,), mask_name="masks")
    chat = [{"role": "assistant", "content": "a"}]
    tokenizer = bp.Tokenizer.load(TOKENIZER)
    rendered = apply_template(
        bp.testing.records([{"responses": [chat, element]}]),
        (output,),
        chat_format_of((output,), tokenizer, bp.TextRules()),
    )
    said = f"field 'responses' holds {found} at [1], wanted lists of messages (texts want template: false)"
    assert rendered.ledger.messages == {0: said}
    assert bp.testing.rejects(rendered) == [(0, "wrong_type")]


@pytest.mark.parametrize(
    "line",
    [
        rb'{"messages": [{"role": "user", "content": "\ud800"}]}',
        rb'{"messages": [{"role": "user", "content": "a", "\udc00": 1}]}',
        # In JSON that a text of the line holds, Python's parser lets it pass.
        rb'{"messages": [{"role": "user", "content": "a"}], "tools": "[{\"name\": \"\\ud800\"}]"}',
    ],
)
def test_half_a_surrogate_pair_is_the_same_reject_wherever_it_stands(line: bytes) -> None:
    output = bp.Output("sequence", "ids", (bp.Section("messages", "train", "conversation"),), mask_name="loss_mask")
    rules = bp.TextRules(chat_template="{% for m in messages %}{{ m.content }}{{ tools | tojson }}{% endfor %}")
    chat_format = chat_format_of((output,), bp.Tokenizer.load(TOKENIZER), rules)
    assert bp.testing.rejects(apply_template(bp.testing.records([line]), (output,), chat_format)) == [(0, "bad_text")]


def test_half_a_surrogate_pair_that_a_step_makes_is_a_reject(tmp_path: Path) -> None:
    # As from json.loads of a field that holds JSON; no tokenizer takes it, and the run would end without a place.
    (tmp_path / "in.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    config = PipelineConfig.from_dict(TEXT)
    with test_pipeline.TestPipeline(runner="FnApiRunner") as pipeline:
        _ = (
            pipeline
            | ReadJSONL([str(tmp_path / "in.jsonl")])
            | bp.MapRecords(lambda row: {"text": row["text"].replace("two", "2\ud800")})
            | bp.ApplyTemplate(config.input, bp.Tokenizer.load(TOKENIZER))
            | beam.Map(note_rejects, str(tmp_path / "rejects"))
        )
    assert json.loads((tmp_path / "rejects").read_text()) == [[1, "bad_text"]]


def note_rejects(block: Block, path: str) -> None:
    Path(path).write_text(json.dumps(bp.testing.rejects(block)))


# --- values


def test_a_number_that_its_column_cannot_hold_is_rejected_never_changed(
    run: Callable[..., Any], tmp_path: Path
) -> None:
    config = copy.deepcopy(CONFIGS["grpo_text"])
    config["output"] = {"dtype": {"rewards": "int64"}}
    rewards = [2**53, 2**53 + 1, -(2**63), 2**63, 2**63 - 1, 2**70, 0.5, -0.0, 3.0]
    rows = [{"prompt": "p", "responses": ["a"], "rewards": [reward]} for reward in rewards]
    result = run(config, rows, max_reject_rate=1)
    assert [(reject["line"], reject["reason"]) for reject in rejects_in(tmp_path / "out")] == [
        (line, "bad_number") for line, reward in enumerate(rewards, 1) if reward not in (2**53, -(2**63), 0, 3)
    ]
    assert result.manifest["ledger"]["kept"] == 4
    kept = (tmp_path / "out/__default__/rewards.bin").read_bytes()
    assert [int.from_bytes(kept[i : i + 8], "little", signed=True) for i in range(0, 32, 8)] == [2**53, -(2**63), 0, 3]


# --- the ledger's files


def test_rejects_hold_file_offset_line_reason_message_and_a_cut_text(run: Callable[..., Any], tmp_path: Path) -> None:
    long = b'{"text": 7, "more": "' + "字".encode() * 2000 + b'"}'
    data = b'\xef\xbb\xbf{"text": 1}\r\n\r\n{"text": "good"}\n' + long + b'\n\xff\xfe\n{"text": [2]'
    run(TEXT, data, max_reject_rate=0.9)
    file = str(tmp_path / "input.jsonl")
    third = data.index(long)
    assert (tmp_path / "out/rejects/rejects-00000.jsonl").read_bytes().count(b"\n") == 4
    assert rejects_in(tmp_path / "out") == [
        {
            "file": file,
            "offset": 3,
            "line": 1,
            "reason": "wrong_type",
            "message": "field 'text' is a number (1), wanted a string",
            "text": '{"text": 1}',
        },
        {
            "file": file,
            "offset": third,
            "line": 4,
            "reason": "wrong_type",
            "message": "field 'text' is a number (7), wanted a string",
            "text": long.decode()[:1000],
        },
        {
            "file": file,
            "offset": third + len(long) + 1,
            "line": 5,
            "reason": "invalid_utf8",
            "message": "byte 0 of the line is no UTF-8 (invalid start byte)",
            "text": "\ufffd\ufffd",
        },
        {
            "file": file,
            "offset": third + len(long) + 4,
            "line": 6,
            "reason": "bad_json",
            "message": "unexpected end of data: line 1 column 13 (char 12)",
            "text": '{"text": [2]',
        },
    ]


def many(count: int, every: int) -> bytes:
    """Good lines of some 100 bytes; a bad one and a blank one every so often."""
    lines = []
    for n in range(count):
        lines.append(json.dumps({"text": f"line {n} " + "x" * (n % 150)}))
        if n % every == every - 1:
            lines += ["", f"bad {n}"]
    return "".join(line + "\n" for line in lines).encode()


@pytest.mark.parametrize("block_bytes", [65536, 131072, 8 * 1024 * 1024])
def test_places_of_rejects_do_not_depend_on_blocks_or_files(tmp_path: Path, block_bytes: int) -> None:
    data = many(3000, 100)
    paths = [tmp_path / "b.jsonl", tmp_path / "a.jsonl", tmp_path / "c.jsonl.gz"]
    for path in paths:
        path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    assert len(data) > 4 * 65536
    start(TEXT, paths, tmp_path / "out", block_bytes=block_bytes)
    found = rejects_in(tmp_path / "out")
    bad = [(data.index(b"bad %d\n" % n), n) for n in range(99, 3000, 100)]
    assert [(reject["file"], reject["offset"], reject["line"], reject["text"]) for reject in found] == [
        (str(path), offset, data[:offset].count(b"\n") + 1, f"bad {n}") for path in paths for offset, n in bad
    ]


def test_reject_text_0_keeps_texts_and_messages_out(run: Callable[..., Any], tmp_path: Path) -> None:
    rows = b'{"text": "good"}\n{"text": {"name": "SECRET"}}\n{"SECRET": 1, "SECRET": 2}\nSECRET\n[]\n"SECRET"\n'
    run(TEXT, rows, max_reject_rate=1, max_reject_chars=0)
    found = rejects_in(tmp_path / "out")
    assert [(reject["line"], reject["reason"]) for reject in found] == [
        (2, "wrong_type"),
        (3, "duplicate_key"),
        (4, "bad_json"),
        (5, "not_an_object"),
        (6, "not_an_object"),
    ]
    assert {reject["text"] for reject in found} == {None}
    for path in (tmp_path / "out").rglob("*"):
        assert path.is_dir() or b"SECRET" not in path.read_bytes(), path


def test_reject_text_sets_how_much_is_kept(run: Callable[..., Any], tmp_path: Path) -> None:
    run(TEXT, '{"text": "good"}\n字字字字字字\n'.encode(), max_reject_rate=1, max_reject_chars=4)
    assert [reject["text"] for reject in rejects_in(tmp_path / "out")] == ["字字字字"]


def test_too_many_rejects_publish_nothing_and_leave_them_beside_the_output(
    run: Callable[..., Any], tmp_path: Path
) -> None:
    good, bad = b'{"text": "good"}\n', b"bad\n"
    with pytest.raises(RunError) as caught:
        run(TEXT, good * 7 + bad * 3 + b"\n", max_reject_rate=0.29)
    assert str(caught.value) == (
        "3 of 10 records were rejected (30.00%; 3 bad_json), more than --max_reject_rate 0.29; "
        f"the first reject is {tmp_path}/input.jsonl, line 8 (byte offset 119): bad_json: "
        f"{rejects_in(tmp_path / 'out.failed')[0]['message']}; "
        f"nothing was published, see {tmp_path}/out.failed/rejects"
    )
    assert not (tmp_path / "out").exists()
    failed = tmp_path / "out.failed"
    assert sorted(path.name for path in failed.iterdir()) == ["failure.json", "rejects"]
    assert [reject["line"] for reject in rejects_in(failed)] == [8, 9, 10]
    report = json.loads((failed / "failure.json").read_bytes())
    assert report["ledger"] == {
        "lines": 11,
        "blank": 1,
        "read": 10,
        "kept": 7,
        "dropped": {},
        "rejected": {"bad_json": 3},
        "not_read": 0,
    }
    assert report["inputs"][0]["path"] == str(tmp_path / "input.jsonl")
    # The rate itself is allowed. The run that succeeds takes the tokens of the one that failed, and clears up.
    rejects = (failed / "rejects" / "rejects-00000.jsonl").read_bytes()
    run(TEXT, good * 7 + bad * 3 + b"\n", max_reject_rate=0.3)
    assert (tmp_path / "out" / "rejects" / "rejects-00000.jsonl").read_bytes() == rejects
    assert json.loads((tmp_path / "out" / "run.json").read_bytes())["blocks_reused"] == 1
    assert not failed.exists()


def test_a_failed_run_keeps_the_output_that_is_there(run: Callable[..., Any], tmp_path: Path) -> None:
    run(TEXT, [{"text": "one"}])
    before = (tmp_path / "out/manifest.json").read_bytes()
    with pytest.raises(RunError):
        run(TEXT, b"bad\n", overwrite=True)
    assert (tmp_path / "out/manifest.json").read_bytes() == before
    assert [reject["text"] for reject in rejects_in(tmp_path / "out.failed")] == ["bad"]


def test_a_folder_of_the_users_that_is_called_failed_is_left_alone(run: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "out.failed").mkdir()
    (tmp_path / "out.failed" / "mine.txt").write_text("mine")
    run(TEXT, [{"text": "one"}])
    assert (tmp_path / "out.failed" / "mine.txt").read_text() == "mine"


@pytest.mark.parametrize("max_items", [1, 1500])
def test_what_lies_behind_max_items_is_not_read_whatever_the_blocks(
    max_items: int, run: Callable[..., Any], tmp_path: Path
) -> None:
    data = many(3000, 100)
    lines = data.decode().splitlines()
    good = [number for number, line in enumerate(lines) if line.startswith("{")]
    read = lines[: good[max_items - 1] + 1] if max_items <= len(good) else lines
    config = {**TEXT, "preprocessing": {"min_chars": 1, "max_items": max_items}}
    found = []
    for block_bytes in (65536, 8 * 1024 * 1024):
        result = run(config, data, f"out{block_bytes}", max_reject_rate=1, block_bytes=block_bytes)
        found.append((result.manifest["ledger"], rejects_in(tmp_path / f"out{block_bytes}")))
    ledger, rejects = found[0]
    assert found[1] == found[0]
    bad = [number for number, line in enumerate(read, 1) if line.startswith("bad")]
    assert ledger == {
        "lines": len(lines),
        "blank": read.count(""),
        "read": min(max_items, 3000) + len(bad),
        "kept": min(max_items, 3000),
        "dropped": {},
        "rejected": {"bad_json": len(bad)} if bad else {},
        "not_read": len(lines) - len(read),
    }
    assert [reject["line"] for reject in rejects] == bad
