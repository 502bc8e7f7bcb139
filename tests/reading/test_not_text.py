"""Images, audio and video: rejected with the field's name, or taken out; texts that only look like them stay."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

import beam_prep as bp
from beam_prep.data.block import Reject
from beam_prep.data.schema import Output, Section
from beam_prep.first_records import FirstRecords
from beam_prep.reading.not_text import fields_of_files, text_only
from beam_prep.storage.files import list_inputs
from tests.conftest import ROOT, Run, prepared

CHAT = Output("ids", "ids", (Section("messages", "$role", "conversation"),))
DOCUMENT = Output("ids", "ids", (Section("text", "train"),))
PNG = "data:image/png;base64," + "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJ" * 2 + "=="
ANSWER = {"role": "assistant", "content": "A cat."}
ASK = {"type": "text", "text": "What is it?"}


def chat(content: Any, **more: Any) -> dict[str, Any]:
    """A conversation; `own`: other keys of the question, `more`: of the record."""
    own = more.pop("own", {})
    return {"messages": [{"role": "user", "content": content, **own}, ANSWER], **more}


# (the record, what the message begins with, the text that is kept)
FOUND: dict[str, tuple[dict[str, Any], str, Any]] = {
    "image_url": (
        chat([{"type": "image_url", "image_url": {"url": "https://a/b.png"}}, ASK]),
        "'messages[0].content[0]' is a file (type 'image_url'): ",
        [ASK],
    ),
    "a part without a type": (chat([{"image": "a.png"}, ASK]), "'messages[0].content[0]' is a file: ", [ASK]),
    "a message's field": (chat("What?", own={"images": ["a.png"]}), "'messages[0].images' holds a file: ", "What?"),
    "a placeholder before": (
        chat("<image>\nWhat is it?", images=["a.png"]),
        "'messages[0]' has '<image>', which stands for a file of the field 'images': ",
        "What is it?",
    ),
    "base64": (
        chat(f"What? ![a cat]({PNG})"),
        "'messages[0]' holds a file as base64 (![a cat](data:image/png;base64,iVBORw0",
        "What? ",
    ),
    "a document": ({"text": "See <image> here.", "images": ["a.png"]}, "'text' has '<image>'", "See  here."),
    "frames": (chat("What?", own={"frames": ["clips/a 1.jpg"]}), "'messages[0].frames' holds a file: ", "What?"),
    "bytes": (chat("What?", own={"picture": {"binary": 12}}), "'messages[0].picture' holds a file: ", "What?"),
    "a PDF": (
        chat(f"What? data:application/pdf;base64,JVBERi0xLjQK{'AQAA' * 40}"),
        "'messages[0]' holds a file as base64 (data:application/pdf;base64,JVBERi0",
        "What? ",
    ),
}

TEXT: dict[str, tuple[Output, dict[str, Any]]] = {
    "a placeholder beside nothing": (CHAT, chat("How do I write <image> in HTML?")),
    "beside nulls of a table": (CHAT, chat("How do I write <image>?", image={"bytes": None, "path": None})),
    "nulls of a table in a message": (CHAT, chat("Hi", own={"images": None, "name": None})),
    "the example of an explanation": (CHAT, chat('Write "data:image/png;base64,iVBORw0KGgo..." for it.')),
    "base64 that somebody cut": (CHAT, chat(f"It gave iVBORw0KGgo{'AQAA' * 40}... (cut)")),
    **{
        f"{name}, which is a word": (CHAT, chat("Book it.", own={name: value}))
        for name, value in {
            "speech": "formal",
            "media": "sms",
            "frames": [{"service": "Hotels_1", "actions": [{"act": "INFORM", "values": ["a"]}]}],
        }.items()
    },
    "a path that begins like JPEG": (CHAT, chat("See /9j/4" + "a/" * 80)),
    "an SVG in CSS": (CHAT, chat("url(data:image/svg+xml;base64,PHN2ZyB4bWxucz0i" + "A" * 60 + ")")),
    "a field that is not read": (DOCUMENT, {"text": "Hi", "messages": chat([{"type": "image"}])["messages"]}),
}


@pytest.mark.parametrize("case", FOUND)
def test_what_is_no_text_is_a_reject_or_is_taken_out(case: str) -> None:
    record, message, kept = FOUND[case]
    output = next(each for each in (CHAT, DOCUMENT) if each.sections[0].field in record)
    before = json.dumps(record)
    with pytest.raises(Reject) as caught:
        text_only(record, [output])
    assert caught.value.reason == "not_text"
    assert caught.value.message.startswith(message)
    assert caught.value.message.endswith('keep their text: "not_text": "drop_parts" in "input"')
    made, dropped = text_only(record, [output], "drop_parts")
    field = output.sections[0].field
    assert (made[field][0]["content"] if field == "messages" else made[field]) == kept
    assert dropped == 1
    assert text_only(made, [output]) == (made, 0)
    assert json.dumps(record) == before


@pytest.mark.parametrize("rule", ["reject", "drop_parts"])
@pytest.mark.parametrize("case", TEXT)
def test_text_stays(case: str, rule: Any) -> None:
    output, record = TEXT[case]
    made, dropped = text_only(record, [output], rule)
    assert made is record
    assert dropped == 0


CONFIG = json.loads((ROOT / "configs" / "sft_conversation.json").read_text())


@pytest.mark.parametrize("rule", ["reject", "drop_parts"])
def test_a_part_that_is_null_is_no_part(rule: Any) -> None:
    made, dropped = text_only(chat([None, ASK]), [CHAT], rule)
    assert (made["messages"][0]["content"], dropped) == ([ASK], 0)
    made, dropped = text_only(chat(["", None]), [CHAT], rule)
    assert (made["messages"][0]["content"], dropped) == ([""], 0)
    assert bp.testing.rejects(prepared(CONFIG, [chat([None])])) == [(0, "unsupported_part")]


def test_a_run_rejects_or_keeps_the_text_and_counts_it(run: Run) -> None:
    plain, other = chat("What is it?"), chat([{"type": "image", "url": "a"}, {"type": "image", "url": "b"}, ASK])
    done = run(CONFIG, [{**plain, "image": "a.png"}, other], max_reject_rate=1)
    assert [(each["line"], each["reason"]) for each in bp.open(done.output).rejects()] == [(2, "not_text")]
    beside, says = json.loads((Path(done.output) / "run.json").read_text())["warnings"]
    assert "'image' holds files in 1 of 2 records looked at, and is not read: answers about them" in beside
    assert says.startswith("rejected (not_text): 1 record with images, audio or video; input.not_text: 'drop_parts'")
    kept = run({**CONFIG, "input": {**CONFIG["input"], "not_text": "drop_parts"}}, [plain, other], "kept")
    assert kept.manifest["counters"]["not_text_dropped"] == 2
    one, two = bp.open(kept.output)
    assert {name: one[name].tolist() for name in one} == {name: two[name].tolist() for name in two}
    with pytest.raises(bp.errors.RunError, match=r'"input": \{"not_text": "drop_parts"\}'):
        run(CONFIG, [other] * 3, "none", max_reject_rate=1)


def test_a_placeholder_of_sharegpt_is_found() -> None:
    turns = [{"from": "human", "value": "<image>\nWhat is it?"}, {"from": "gpt", "value": "A cat."}]
    given = {**CONFIG, "input": {**CONFIG["input"], "adapter": "sharegpt"}}
    batch = prepared(given, [{"conversations": turns}, {"image": "a.png", "conversations": turns}])
    assert bp.testing.rejects(batch) == [(1, "not_text")]


def test_what_has_no_text_beside_its_files_is_a_reject() -> None:
    with pytest.raises(Reject, match="has no text beside its files"):
        text_only(chat([{"type": "image"}]), [CHAT], "drop_parts")


@pytest.mark.parametrize("rule", ["reject", "drop_parts"])
@pytest.mark.parametrize("part", [{"type": "output_text", "text": "A cat."}, {"text": "A cat."}])
def test_parts_of_other_apis_are_texts(part: dict[str, Any], rule: Any) -> None:
    blank = {"role": "assistant", "content": [{**part, "text": ""}]}
    record = {"messages": [chat([ASK])["messages"][0], {"role": "assistant", "content": [part]}, blank]}
    made, dropped = text_only(record, [CHAT], rule)
    assert [each["content"][0]["text"] for each in made["messages"][1:]] == ["A cat.", ""]
    assert {each["content"][0]["type"] for each in made["messages"]} == {"text"}
    assert made["messages"][0] is record["messages"][0]
    assert dropped == 0
    beside = chat([{**part, "image": "a.png"}])
    assert text_only(beside, [CHAT], rule) == (beside, 0)  # which the check of messages rejects


@pytest.mark.parametrize(
    "unit", ["![a](", "data:image/a;a", "/9j/4A ", "<|image_1", "1", "/9j/4AAQ" + "A" * 100 + ".."]
)
def test_the_time_grows_with_the_text(unit: str) -> None:
    def seconds(size: int) -> float:
        text = "<image" + unit * (size // len(unit)) + ";base64,"
        started = time.process_time()
        text_only(chat(text, image="a.png"), [CHAT])
        return time.process_time() - started

    assert seconds(1_000_000) < 16 * max(seconds(125_000), 0.05)  # of squares it would be 64


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (chat("", images=["a.png"]), ["'images' holds files in 1 of 1 record looked at"]),
        (chat("", scan={"bytes": "x", "path": "a.png"}), ["'scan' holds files"]),
        (chat("", image=None, images=[]), []),
        (chat("", speech="formal", frames=[{"service": "a"}], clip_id="3", media="sms"), []),
    ],
)
def test_a_field_of_files_beside_answers_is_said(record: dict[str, Any], said: list[str]) -> None:
    found = fields_of_files([record], {"messages"})
    assert len(found) == len(said)
    assert all(line.startswith(start) for line, start in zip(found, said, strict=True))
    assert fields_of_files([record], record) == []


def test_a_field_of_files_beside_documents_is_not_said(tmp_path: Path, tokenizer_path: str) -> None:
    (tmp_path / "in.jsonl").write_text('{"text": "A heron.", "image": "a.png"}\n')
    config = bp.PipelineConfig.from_dict({"input": {"sections": [{"field": "text", "action": "train"}]}})
    tokenizer = bp.Tokenizer.load(tokenizer_path)
    assert FirstRecords(config, tokenizer, list_inputs(str(tmp_path / "in.jsonl"))).warnings() == []
