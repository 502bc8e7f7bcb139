"""Nasty inputs: what is accepted, what is rejected and where, and that nothing leaves the account.

The files and a strict reader's verdict on each of their lines lie in the shared material (`data/bad`, manifest.json).
"""

import functools
import gzip
import json
import os
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import beam_prep as bp
from beam_prep.chat.apply import apply_template
from beam_prep.chat.chat_format import chat_format_of
from beam_prep.config import PipelineConfig
from beam_prep.errors import InputError, RunError
from beam_prep.recipe import prepare
from tests.conftest import ROOT, SHARED, Run, config_of, records_of, run_of, shared, text_config
from tests.reference import ours
from tests.test_sources import blocks

FOLDER = SHARED / "data" / "bad"
MANIFEST: dict[str, Any] = (
    json.loads((FOLDER / "manifest.json").read_text("utf-8")) if (FOLDER / "manifest.json").exists() else {}
)
TOKENIZER = ours(ROOT / "examples" / "tokenizer")

UNREADABLE = {
    "zero_bytes.jsonl.gz": "has 0 bytes, which no compressed file has: writing or uploading it has failed",
    "truncated.jsonl.gz": "cannot be read as gzip (Compressed file ended before the end-of-stream marker",
    "bad_crc.jsonl.gz": "cannot be read as gzip (CRC check failed",
    "flipped_byte.jsonl.gz": "cannot be read as gzip (CRC check failed",
    "trailing_garbage.jsonl.gz": "cannot be read as gzip (Not a gzipped file",
    "plain_text_named.jsonl.gz": "cannot be read as gzip (Not a gzipped file",
    "gzip_named.jsonl": "is compressed, but its name does not end in .gz: rename it",
    "utf16le_bom.jsonl": "is text in UTF-16, wanted JSONL: type: iconv -f UTF-16 -t UTF-8 ",
    "utf32be.jsonl": "is text in UTF-32BE, wanted JSONL: type: iconv -f UTF-32BE -t UTF-8 ",
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
    ("deep_nesting.jsonl", 1): "too_deep",  # 500 levels, which orjson reads, but does not write
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


@pytest.fixture(scope="module")
def material() -> None:
    shared("data", "bad", "manifest.json")


@pytest.mark.parametrize("name", READABLE)
@pytest.mark.usefixtures("material")
def test_lines_are_accepted_and_rejected_where_they_stand(name: str) -> None:
    lines = lines_of(name)
    ends = [offset for offset, _ in lines]
    if content(name).startswith(b"\xef\xbb\xbf"):
        ends[0] = 3
    found: list[tuple[int, str]] = []
    for block in blocks(str(FOLDER / name)):
        ledger = block.ledger
        rows = dict(zip(block.line.tolist(), block.rows, strict=True))
        for line, status in enumerate(ledger.status.tolist()):
            verdict = ledger.outcomes[status - 1][1] if status else "kept"
            offset, text = lines[len(found)]
            found.append((block.origin.first_byte + int(ledger.starts[line]), verdict))
            if verdict == "kept":
                wanted = json.loads(text.decode("utf-8-sig" if offset == 0 else "utf-8"))
                assert json.dumps(rows[line]) == json.dumps(wanted)
            elif verdict != "blank":
                assert ledger.messages[line]
                assert ledger.text(line) == shown(text)
    assert found == list(zip(ends, expected(name), strict=True))


def shown(line: bytes) -> str:
    """The text of a reject."""
    return line.removesuffix(b"\r")[:4000].decode("utf-8", "replace")[:1000]


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_file_that_cannot_be_read_ends_the_run_in_one_error_that_names_it(name: str) -> None:
    path = str(shared("data", "bad", name))
    with pytest.raises(InputError) as caught:
        blocks(path)
    assert str(caught.value).startswith(f"{path!r} {UNREADABLE[name]}")
    assert "\n" not in str(caught.value)


# --- whole jobs


TEXT = text_config(preprocessing={"min_chars": 1})
SIDES = {side: {"sections": [{"field": side, "action": "train"}]} for side in ("chosen", "rejected")}
CONFIGS = {
    **{name: config_of(name) for name in ("sft_chat", "sft_instruction", "dpo", "grpo")},
    "pretrain": {**config_of("pretrain"), "preprocessing": {"min_chars": 1}},
    "dpo_text": {"input": {"sources": SIDES}, "preprocessing": {"min_chars": 0}},
}
CONFIGS["grpo"]["input"]["sources"]["prompts"]["sections"][0]["template"] = False


def rejects_in(folder: Path) -> list[Any]:
    return [reject for path in sorted((folder / "rejects").glob("*.jsonl")) for reject in records_of(path)]


@pytest.mark.usefixtures("material")
def test_the_ledger_of_all_bad_files_adds_up_and_every_reject_says_where_what_and_why(run: Run, tmp_path: Path) -> None:
    paths, options = tuple(FOLDER / name for name in READABLE), {"max_reject_rate": 1, "max_no_loss_rate": 1}
    manifest, rejects = run(CONFIGS["sft_chat"], paths, **options).manifest, rejects_in(tmp_path / "out")
    ledger = manifest["ledger"]
    assert ledger["lines"] == sum(len(lines_of(name)) for name in READABLE)
    assert ledger["blank"] == sum(expected(name).count("blank") for name in READABLE)
    assert ledger["read"] == ledger["kept"] + sum(ledger["dropped"].values()) + sum(ledger["rejected"].values())
    assert ledger["lines"] == ledger["blank"] + ledger["read"]
    assert (ledger["not_read"], ledger["kept"]) == (0, manifest["totals"]["rows"])
    assert Counter(reject["reason"] for reject in rejects) == ledger["rejected"]
    for reject in rejects:
        name = os.path.basename(reject["file"])
        offset, line = lines_of(name)[reject["line"] - 1]
        assert reject["file"] == str(FOLDER / name)
        assert reject["offset"] == offset + (3 if line.startswith(b"\xef\xbb\xbf") and offset == 0 else 0)
        assert reject["text"] == shown(line)
        assert 10 < len(reject["message"]) <= 1000
        assert [*reject] == ["file", "offset", "line", "reason", "message", "text"]
        assert expected(name)[reject["line"] - 1] in (reject["reason"], "kept")
    places = [(READABLE.index(os.path.basename(reject["file"])), reject["line"]) for reject in rejects]
    assert places == sorted(set(places))


# What becomes of each line: kept, the reason of its reject, or `-` and the reason for which it is dropped.
TABLE: dict[tuple[str, str], str] = {
    # no role; no content, which the template wants
    ("missing_field.jsonl", "sft_chat"): "kept -empty bad_message template_error -empty kept",
    # a content that is null, a number, true, an object, a list of texts; messages of other types; roles of other types
    ("wrong_types.jsonl", "sft_chat"): "template_error template_error wrong_type wrong_type wrong_type kept kept "
    "wrong_type wrong_type wrong_type -empty wrong_type wrong_type wrong_type bad_message bad_message" + " -empty" * 5,
    # null, a number, a list of strings, which is not joined
    ("wrong_types.jsonl", "pretrain"): "-empty " * 17 + "wrong_type wrong_type -empty -empty",
    # Of empty contents the control tokens of the turns are there, and the end of an empty answer is trained.
    ("empty_messages.jsonl", "sft_chat"): "-empty kept kept kept kept" + " -empty" * 4,
    # a user alone, a system alone
    ("role_order.jsonl", "sft_chat"): "kept " * 3 + "-rows_without_loss kept -rows_without_loss" + " kept" * 5,
    # an image; parts without a text, without a type
    ("content_parts.jsonl", "sft_chat"): "kept not_text unsupported_part kept kept",
    # a prompt, and nothing to train on
    ("mixed_schemas.jsonl", "sft_instruction"): "-empty -empty kept -empty -rows_without_loss -empty",
    # Kept are different prompts on the two sides: nothing compares them.
    ("dpo_odd.jsonl", "dpo"): "wrong_type wrong_type wrong_type kept wrong_type -empty wrong_type",
    ("dpo_odd.jsonl", "dpo_text"): "equal_sides missing_source missing_source wrong_type wrong_type wrong_type kept",
    # two responses and one reward; no response; rewards of other types, responses that are no list; a
    # null response, which counts as an empty one
    ("grpo_odd.jsonl", "grpo"): "count_mismatch missing_source" + " wrong_type" * 4 + " kept" * 3,
}


@pytest.mark.parametrize(("name", "config"), TABLE)
def test_the_verdict_on_each_line(name: str, config: str) -> None:
    (block,) = blocks(str(shared("data", "bad", name)))
    ledger = prepare(block, PipelineConfig.from_dict(CONFIGS[config]), TOKENIZER).ledger
    marks = {"rejected": "", "dropped": "-", "blank": ""}
    names = ["kept", *(marks[kind] + reason for kind, reason in ledger.outcomes)]
    wanted = TABLE[name, config].split()
    assert [names[status] for status in ledger.status.tolist()] == wanted
    said = [verdict != "kept" and not verdict.startswith("-") for verdict in wanted]
    assert [line in ledger.messages for line in range(len(said))] == said


def test_half_a_surrogate_pair_is_the_same_reject_wherever_it_stands() -> None:
    lines = [
        rb'{"messages": [{"role": "user", "content": "\ud800"}]}',
        rb'{"messages": [{"role": "user", "content": "a", "\udc00": 1}]}',
        # In JSON that a text of the line holds, Python's parser lets it pass.
        rb'{"messages": [{"role": "user", "content": "a"}], "tools": "[{\"name\": \"\\ud800\"}]"}',
    ]
    output = bp.Output("sequence", "ids", (bp.Section("messages", "train", "conversation"),), mask_name="loss_mask")
    rules = bp.TextRules(chat_template="{% for m in messages %}{{ m.content }}{{ tools | tojson }}{% endfor %}")
    made = apply_template(bp.testing.records(lines), (output,), chat_format_of((output,), TOKENIZER, rules))
    assert bp.testing.rejects(made) == [(number, "bad_text") for number in range(3)]


# --- the ledger's files


def test_reject_text_0_keeps_texts_and_messages_out(run: Run, tmp_path: Path) -> None:
    rows = b'{"text": "good"}\n{"text": {"name": "SECRET"}}\n{"SECRET": 1, "SECRET": 2}\nSECRET\n[]\n"SECRET"\n'
    run(TEXT, rows, max_reject_rate=1, max_reject_chars=0)
    reasons = ["wrong_type", "duplicate_key", "bad_json", *["not_an_object"] * 2]
    found = [(reject["line"], reject["reason"], reject["text"]) for reject in rejects_in(tmp_path / "out")]
    assert found == [(number, reason, None) for number, reason in enumerate(reasons, 2)]
    for path in (tmp_path / "out").rglob("*"):
        assert path.is_dir() or b"SECRET" not in path.read_bytes(), path


def test_too_many_rejects_publish_nothing_and_leave_them_beside_the_output(run: Run, tmp_path: Path) -> None:
    data = b'{"text": "good"}\n' * 7 + b"[]\n" + b"bad\n" * 2 + b"\n"
    problem = r"^3 of 10 .*\(30\.00%; 2 bad_json, 1 not_an_object\), .* of 'bad_json' is .*, line 9 .*/out\.failed/"
    with pytest.raises(RunError, match=problem):
        run(TEXT, data, max_reject_rate=0.29)
    assert not (tmp_path / "out").exists()
    failed = tmp_path / "out.failed"
    assert sorted(path.name for path in failed.iterdir()) == ["failure.json", "rejects"]
    assert [reject["line"] for reject in rejects_in(failed)] == [8, 9, 10]
    report = json.loads((failed / "failure.json").read_bytes())
    assert (report["ledger"]["kept"], report["ledger"]["rejected"]) == (7, {"bad_json": 2, "not_an_object": 1})
    assert report["inputs"][0]["path"] == str(tmp_path / "input.jsonl")
    # The rate itself is allowed. The run that succeeds takes the tokens of the one that failed, and clears up.
    rejects = (failed / "rejects" / "rejects-00000.jsonl").read_bytes()
    run(TEXT, data, max_reject_rate=0.3)
    assert (tmp_path / "out" / "rejects" / "rejects-00000.jsonl").read_bytes() == rejects
    assert run_of(tmp_path / "out")["blocks_reused"] == 1
    assert not failed.exists()


def test_a_failed_run_keeps_the_output_that_is_there(run: Run, tmp_path: Path) -> None:
    # A folder of the user's that is called so is left alone.
    (tmp_path / "out.failed").mkdir()
    (tmp_path / "out.failed" / "mine.txt").write_text("mine")
    run(TEXT, [{"text": "one"}])
    assert (tmp_path / "out.failed" / "mine.txt").read_text() == "mine"
    shutil.rmtree(tmp_path / "out.failed")
    before = (tmp_path / "out/manifest.json").read_bytes()
    with pytest.raises(RunError):
        run(TEXT, b"bad\n", overwrite=True)
    assert (tmp_path / "out/manifest.json").read_bytes() == before
    assert [reject["text"] for reject in rejects_in(tmp_path / "out.failed")] == ["bad"]
    # A run that is killed while it writes them leaves rejects without a report.
    (tmp_path / "out.failed/failure.json").unlink()
    (tmp_path / "out.failed/rejects/rejects-00001.jsonl").write_text('{"text": "of another run"}')
    with pytest.raises(RunError):
        run(TEXT, b"bad\n", overwrite=True)
    assert [reject["text"] for reject in rejects_in(tmp_path / "out.failed")] == ["bad"]
