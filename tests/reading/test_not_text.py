"""Images, audio and video: rejected with the field's name, or taken out; texts that only look like them stay."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import beam_prep as bp
from beam_prep.data.block import Reject
from beam_prep.data.schema import Output, Section
from beam_prep.reading.not_text import text_only
from tests.conftest import ROOT

CHAT = Output("ids", "ids", (Section("messages", "$role", "conversation"),))
PAIR = Output("ids", "ids", (Section("prompt", "mask"), Section("completion", "train")))
DOCUMENT = Output("ids", "ids", (Section("text", "train"),))
PNG = "data:image/png;base64," + "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJ" * 2 + "=="
ANSWER = {"role": "assistant", "content": "A cat."}
ASK = {"type": "text", "text": "What is it?"}


def chat(content: Any, **more: Any) -> dict[str, Any]:
    """A conversation; `own`: other keys of the question, `more`: of the record."""
    own = more.pop("own", {})
    return {"messages": [{"role": "user", "content": content, **own}, ANSWER], **more}


# (what is read, the record, what the message begins with, the text that is kept or None where there is none)
FOUND: dict[str, tuple[Output, dict[str, Any], str, Any]] = {
    "a placeholder of a field whose files are lost": (
        CHAT,
        chat("<image>\nWhat is it?", images=None),
        "'messages[0]' has '<image>', and the field 'images', for which it stands, is empty",
        "What is it?",
    ),
    "image_url": (
        CHAT,
        chat([{"type": "image_url", "image_url": {"url": "https://a/b.png"}}, ASK]),
        "'messages[0].content[0]' is an image (type 'image_url'): ",
        [ASK],
    ),
    "input_audio": (
        CHAT,
        chat([ASK, {"type": "input_audio", "input_audio": {"data": "x"}}]),
        "'messages[0].content[1]' is a sound (type 'input_audio'): ",
        [ASK],
    ),
    "video": (CHAT, chat([{"type": "video", "video": "a.mp4"}, ASK]), "'messages[0].content[0]' is a video", [ASK]),
    "a file": (
        CHAT,
        chat([{"type": "file", "file": {"file_id": "f"}}, ASK]),
        "'messages[0].content[0]' is a file",
        [ASK],
    ),
    "a part without a type": (
        CHAT,
        chat([{"image": "a.png"}, ASK]),
        "'messages[0].content[0]' is an image: ",
        [ASK],
    ),
    "a field of the message": (
        CHAT,
        chat("What is it?", own={"images": ["a.png"]}),
        "'messages[0].images' holds an image: ",
        "What is it?",
    ),
    "a placeholder before": (
        CHAT,
        chat("<image>\nWhat is it?", images=["a.png"]),
        "'messages[0]' has '<image>', which stands for an image of the field 'images': ",
        "What is it?",
    ),
    "a placeholder behind": (
        CHAT,
        chat("What is it? <image>", image="a.png"),
        "'messages[0]' has '<image>'",
        "What is it?",
    ),
    "a numbered one": (
        CHAT,
        chat("<|image_1|>\nWhat is it?", image_path="a"),
        "'messages[0]' has '<|image_1|>'",
        "What is it?",
    ),
    "audio": (
        CHAT,
        chat("<audio>What is it?", audios=[{"path": "a.wav"}]),
        "'messages[0]' has '<audio>'",
        "What is it?",
    ),
    "a video as frames": (
        CHAT,
        chat("<video>What is it?", images=["1", "2"]),
        "'messages[0]' has '<video>'",
        "What is it?",
    ),
    "in a part": (
        CHAT,
        chat([{"type": "text", "text": "<image>What is it?"}], image={"bytes": "x", "path": None}),
        "'messages[0].content[0]' has '<image>'",
        [ASK],
    ),
    "base64": (
        CHAT,
        chat(f"What is it? ![a cat]({PNG})"),
        "'messages[0]' holds an image as base64 (data:image/png;base64,iVBORw0",
        "What is it? ",
    ),
    "base64 in a pair": (
        PAIR,
        {"prompt": f"{PNG} What?", "completion": "A cat."},
        "'prompt' holds an image as",
        " What?",
    ),
    "a placeholder in a pair": (
        PAIR,
        {"prompt": "<image>What?", "completion": "A cat.", "image": "a.png"},
        "'prompt' has '<image>'",
        "What?",
    ),
    "a placeholder in a document": (
        DOCUMENT,
        {"text": "See <image> here.", "images": ["a.png"]},
        "'text' has '<image>'",
        "See  here.",
    ),
    "attachments": (
        CHAT,
        chat("What is it?", own={"experimental_attachments": [{"contentType": "image/png", "url": "x"}]}),
        "'messages[0].experimental_attachments' holds a file: ",
        "What is it?",
    ),
    "pixel_values": (
        CHAT,
        chat("<image>What is it?", pixel_values=[[1]]),
        "'messages[0]' has '<image>'",
        ASK["text"],
    ),
    "mm_data": (
        CHAT,
        chat("<image>What is it?", mm_data={"image": ["a"]}),
        "'messages[0]' has '<image>'",
        "What is it?",
    ),
    "multi_modal_data": (
        CHAT,
        chat("<video>What is it?", multi_modal_data={"video": ["a"]}),
        "'messages[0]' has '<video>'",
        "What is it?",
    ),
    "a file of datasets": (
        CHAT,
        chat("<image>What is it?", scan={"bytes": "x", "path": None}),
        "'messages[0]' has '<image>'",
        "What is it?",
    ),
    "base64 alone": (
        CHAT,
        chat(f"What is it? /9j/4AAQSkZJRgAB{'AQAA' * 40}=="),
        "'messages[0]' holds an image as base64 (/9j/4AAQSkZJRgABAQAA",
        "What is it? ",
    ),
    "base64 alone, in a pair": (
        PAIR,
        {"prompt": f"iVBORw0KGgo{'AQAA' * 40} What?", "completion": "A cat."},
        "'prompt' holds an image as base64 (iVBORw0KGgo",
        " What?",
    ),
    "a text of another type": (
        CHAT,
        chat([{"type": "input_text", "text": "What is it?"}, {"type": "input_image", "image_url": "a"}]),
        "'messages[0].content[1]' is an image (type 'input_image'): ",
        [ASK],
    ),
    "parts without a type": (
        CHAT,
        chat([{"text": "What is it?"}, {"image": "a.png"}]),
        "'messages[0].content[1]' is an image: ",
        [ASK],
    ),
    "beside a null": (
        CHAT,
        chat([ASK, {"type": "image_url", "image_url": {"url": "a"}}, None]),
        "'messages[0].content[1]' is an image",
        [ASK],
    ),
    "a part without a type, and without an extension": (
        CHAT,
        chat([{"photo": "COCO_000123"}, ASK]),
        "'messages[0].content[0]' is an image: ",
        [ASK],
    ),
    "an image with a text beside it": (
        CHAT,
        chat([{"type": "image_url", "text": "a cat", "image_url": {"url": "a"}}, ASK]),
        "'messages[0].content[0]' is an image (type 'image_url'): ",
        [ASK],
    ),
    "an image without an extension": (
        CHAT,
        chat("What is it?", own={"image": "COCO_000123"}),
        "'messages[0].image' holds an image: ",
        "What is it?",
    ),
    "a placeholder for what has no extension": (
        CHAT,
        chat("<image>What is it?", image_id="COCO_000123"),
        "'messages[0]' has '<image>', which stands for an image of the field 'image_id': ",
        "What is it?",
    ),
    "frames": (
        CHAT,
        chat("What is it?", own={"frames": ["clips/a 1.jpg", "clips/a 2.jpg"]}),
        "'messages[0].frames' holds a video: ",
        "What is it?",
    ),
    "a recording": (
        CHAT,
        chat("What is it?", own={"speech": {"array": [0.1, 0.2], "sampling_rate": 16000}}),
        "'messages[0].speech' holds a sound: ",
        "What is it?",
    ),
    "a picture in base64": (
        CHAT,
        chat("What is it?", own={"photo": "AQAA" * 40}),
        "'messages[0].photo' holds an image: ",
        "What is it?",
    ),
    "bytes of a table": (
        CHAT,
        chat("What is it?", own={"picture": {"binary": 1234}}),
        "'messages[0].picture' holds an image: ",
        "What is it?",
    ),
    "WebP alone": (
        CHAT,
        chat(f"What is it? UklGRiQAAABXRUJQVlA4{'AQAA' * 40}"),
        "'messages[0]' holds an image as base64 (UklGRiQAAABXRUJQ",
        "What is it? ",
    ),
    "a PDF": (
        CHAT,
        chat(f"What is it? data:application/pdf;base64,JVBERi0xLjQK{'AQAA' * 40}"),
        "'messages[0]' holds a file as base64 (data:application/pdf;base64,JVBERi0",
        "What is it? ",
    ),
    "nothing else": (CHAT, chat([{"type": "image"}]), "'messages[0].content[0]' is an image", None),
    "nothing but a placeholder": (CHAT, chat("<image>", image="a.png"), "'messages[0]' has '<image>'", None),
    "a prompt of nothing else": (PAIR, {"prompt": PNG, "completion": "A cat."}, "'prompt' holds an image", None),
}

TEXT: dict[str, tuple[Output, dict[str, Any]]] = {
    "a placeholder beside nothing": (CHAT, chat("How do I write <image> in HTML?")),
    "beside an empty field": (CHAT, chat("How do I write <image>?", images=[])),
    "beside nulls of a table": (CHAT, chat("How do I write <image>?", image={"bytes": None, "path": None})),
    "beside a field of another kind": (CHAT, chat("How do I write <video>?", audio="a.wav")),
    "beside a number": (CHAT, chat("How do I write <image>?", images=3)),
    "a field of files alone": (CHAT, chat("What is it?", image="a.png")),
    "nulls of a table in a message": (CHAT, chat("Hi", own={"images": None, "name": None})),
    "nulls of a table in a part": (CHAT, chat([{"type": "text", "text": "Hi", "image_url": None}])),
    "the example of an explanation": (CHAT, chat('Write "data:image/png;base64,iVBORw0KGgo..." for it.')),
    "an image that somebody cut": (CHAT, chat(f'The tool gave "{PNG[:-2]}... (truncated)"')),
    "base64 of a small file": (CHAT, chat("A PNG begins with iVBORw0KGgoAAAANSUhEUg, in base64." + " And so on." * 20)),
    "base64 that somebody cut": (CHAT, chat(f"It gave iVBORw0KGgo{'AQAA' * 40}... (cut)")),
    "a document with base64": (DOCUMENT, {"text": f'<img src="{PNG}">'}),
    "a text in base64": (CHAT, chat("data:text/plain;base64," + "QUJD" * 30)),
    **{
        f"{name}, which is a word": (CHAT, chat("Book it.", own={name: value}))
        for name, value in {
            "speech": "formal",
            "media": "sms",
            "frame": "Motion",
            "clip_id": "3",
            "picture": "Somebody at a table.",
            "frames": [{"service": "Hotels_1", "actions": [{"act": "INFORM", "values": ["a"]}]}],
            "attachments": [{"title": "none"}],
            "video_title": "a.mp4",
            "media_type": "image/png",
        }.items()
    },
    "a placeholder beside what may hold files": (CHAT, chat("How do I write <image>?", media="sms")),
    "a document as a part": (CHAT, chat([{"type": "document", "text": "A heron."}, ASK])),
    "a path that begins like JPEG": (CHAT, chat("See /9j/4" + "a/" * 80)),
    "a word that begins like WAV": (CHAT, chat("See UklGR" + "abc" * 80)),
    "JSON in base64": (CHAT, chat("Decode data:application/json;base64," + "eyJhbGciOiJIUzI1NiJ9" * 5)),
    "a font in CSS": (CHAT, chat("src:url(data:application/font-woff;base64,d09GRgABAAAA" + "A" * 60 + ")")),
    "an SVG in CSS": (
        CHAT,
        chat("url(data:image/svg+xml;base64,PHN2ZyB4bWxucz0i" + "A" * 60 + ")"),
    ),
    "a field that is not read": (
        DOCUMENT,
        {"text": "Hi", "messages": [{"role": "user", "content": [{"type": "image"}]}]},
    ),
}


@pytest.mark.parametrize("case", FOUND)
def test_what_is_no_text_is_a_reject_that_names_the_field(case: str) -> None:
    output, record, message, _ = FOUND[case]
    before = json.dumps(record)
    with pytest.raises(Reject) as caught:
        text_only(record, [output])
    assert caught.value.reason == "not_text"
    assert caught.value.message.startswith(message)
    assert caught.value.message.endswith('keep their text: "not_text": "drop_parts" in "input"')
    assert json.dumps(record) == before


@pytest.mark.parametrize("case", FOUND)
def test_drop_parts_keeps_the_text(case: str) -> None:
    output, record, _, kept = FOUND[case]
    before = json.dumps(record)
    if kept is None:
        with pytest.raises(Reject, match="has no text beside what is no text"):
            text_only(record, [output], "drop_parts")
        return
    made, dropped = text_only(record, [output], "drop_parts")
    field = output.sections[0].field
    assert (made[field][0]["content"] if field == "messages" else made[field]) == kept
    assert dropped == 1
    assert json.dumps(record) == before
    assert text_only(made, [output]) == (made, 0)


@pytest.mark.parametrize("rule", ["reject", "drop_parts"])
@pytest.mark.parametrize("case", TEXT)
def test_text_stays(case: str, rule: Any) -> None:
    output, record = TEXT[case]
    made, dropped = text_only(record, [output], rule)
    assert made is record
    assert dropped == 0


CONFIG = json.loads((ROOT / "configs" / "sft_conversation.json").read_text())
SHAREGPT = {**CONFIG, "input": {**CONFIG["input"], "adapter": "sharegpt"}}


def rejected(output: str) -> list[tuple[int, str]]:
    lines = [line for file in Path(output).glob("rejects/*.jsonl") for line in file.read_text().splitlines()]
    return [(row["line"], row["reason"]) for row in map(json.loads, lines)]


def test_a_run_rejects_or_keeps_the_text_and_counts_it(run: Callable[..., Any]) -> None:
    plain, other = chat("What is it?"), chat([{"type": "image", "url": "a"}, {"type": "image", "url": "b"}, ASK])
    done = run(CONFIG, [plain, other], max_reject_rate=1)
    assert rejected(done.output) == [(2, "not_text")]
    assert done.manifest["ledger"]["rejected"] == {"not_text": 1}
    run_json = json.loads((Path(done.output) / "run.json").read_text())
    says = (
        "1 record has images, audio or video, and is rejected (not_text): input.not_text: 'drop_parts' keeps their text"
    )
    assert says in run_json["warnings"]
    kept = run({**CONFIG, "input": {**CONFIG["input"], "not_text": "drop_parts"}}, [plain, other], "kept")
    assert kept.manifest["counters"]["not_text_dropped"] == 2
    one, two = bp.open(kept.output)
    assert {name: one[name].tolist() for name in one} == {name: two[name].tolist() for name in two}


def test_a_placeholder_of_sharegpt_is_found(run: Callable[..., Any]) -> None:
    turns = [{"from": "human", "value": "<image>\nWhat is it?"}, {"from": "gpt", "value": "A cat."}]
    records = [{"conversations": turns}, {"image": "a.png", "conversations": turns}]
    done = run(SHAREGPT, records, max_reject_rate=1)
    assert rejected(done.output) == [(2, "not_text")]


def test_a_run_that_keeps_nothing_says_what_to_do(run: Callable[..., Any]) -> None:
    with pytest.raises(bp.errors.RunError, match=r'"input": \{"not_text": "drop_parts"\}'):
        run(CONFIG, [chat([{"type": "image"}, ASK])] * 3, max_reject_rate=1)


def test_drop_parts_keeps_texts_of_other_types_where_nothing_is_dropped() -> None:
    answer = {"role": "assistant", "content": [{"type": "output_text", "text": "A cat."}]}
    record = {"messages": [chat([ASK])["messages"][0], answer]}
    made, dropped = text_only(record, [CHAT], "drop_parts")
    assert made["messages"][1]["content"] == [{"type": "text", "text": "A cat."}]
    assert made["messages"][0] is record["messages"][0]
    assert dropped == 0
    assert text_only(record, [CHAT]) == (record, 0)  # which the check of messages rejects


@pytest.mark.parametrize(
    "unit",
    [
        *("![", "![a](", "data:image/", "data:image/a;a", ";a", "data:image/png;base64,", "iVBORw0KGgo", "/9j/4A "),
        *("<image", "<|image_1", "<image 1", "[image", "1", "/9j/4AAQ" + "A" * 100 + ".."),
    ],
)
def test_the_time_grows_with_the_text(unit: str) -> None:
    def seconds(size: int) -> float:
        text = "<image" + unit * (size // len(unit)) + ";base64,"
        started = time.process_time()
        text_only(chat(text, image="a.png"), [CHAT])
        return time.process_time() - started

    assert seconds(1_000_000) < 16 * max(seconds(125_000), 0.05)  # of squares it would be 64


@pytest.mark.parametrize("name", ["images", "image", "video_path", "pixel_values", "mm_data", "scan"])
def test_a_field_of_files_beside_answers_is_said_before_a_run(name: str, run: Callable[..., Any]) -> None:
    value = {"bytes": "x", "path": "a.png"} if name == "scan" else ["a.png"]
    done = run(CONFIG, [chat("What is it?", **{name: value}), chat("Hi")])
    (warning,) = json.loads((Path(done.output) / "run.json").read_text())["warnings"]
    assert warning.startswith(f"{name!r} holds a")
    assert " in 1 of 2 records that were looked at, and is not read: answers about it would be trained" in warning


def test_a_field_of_files_that_is_kept_or_empty_or_beside_a_document_is_not_said(run: Callable[..., Any]) -> None:
    keeps = {**CONFIG, "output": {**CONFIG.get("output", {}), "keep_fields": {"image": "string"}}}
    document = {"input": {"sections": [{"field": "text", "action": "train"}]}, "preprocessing": {"min_chars": 1}}
    cases: list[tuple[Any, Any]] = [
        (keeps, chat("What is it?", image="a.png")),
        (CONFIG, chat("What is it?", image=None, images=[])),
        (CONFIG, chat("What is it?", speech="formal", frames=[{"service": "a"}], clip_id="3", media="sms")),
        (document, {"text": "A heron.", "image": "a.png"}),
    ]
    for place, (config, record) in enumerate(cases):
        done = run(config, [record], f"out{place}")
        assert json.loads((Path(done.output) / "run.json").read_text())["warnings"] == []
