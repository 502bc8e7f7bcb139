"""Hostile inputs, small ones: rejects and clear errors, and the rest of the run as without them.

`benchmarks/hostile.py` runs large ones as processes, and measures their memory.
"""

import bz2
import gzip
import os
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import beam_prep as bp
from beam_prep.chat.apply import apply_template
from beam_prep.chat.chat_format import ChatFormat
from beam_prep.chat.template import ChatTemplate
from beam_prep.data.schema import Output, Section
from beam_prep.errors import RunError
from tests.conftest import ROOT, Run, chat_config, prepared, records_of, says, text_config

TEXT = text_config(preprocessing={"min_chars": 1})
Made = Callable[..., bp.Dataset]
GOOD = b"".join(b'{"text": "good %d"}\n' % number for number in range(50))


@pytest.fixture
def made(run: Run) -> Made:
    """Runs a config over files; gives the output, verified."""

    def _made(config: dict[str, Any], *files: Path, **options: Any) -> bp.Dataset:
        found = bp.open(run(config, files, max_reject_rate=1, max_no_loss_rate=1, **options).output)
        found.verify()
        return found

    return _made


LONG: Any = (("0.jsonl", open, b"\0"), ("1.jsonl.gz", gzip.open, b'{"text": "long"'), ("2.jsonl.bz2", bz2.open, b" "))


def test_a_line_that_is_too_long_is_one_reject(made: Made, tmp_path: Path) -> None:
    """In files of several blocks, some of which begin within the line; the same bytes at another block size."""
    for name, opened, filler in LONG:
        with opened(tmp_path / name, "wb") as file:
            file.write(GOOD + filler * (600_000 // len(filler)) + b"\n" + GOOD)
    paths = [tmp_path / name for name, _, _ in LONG]
    outputs = [
        made(TEXT, *paths, name=str(size), max_line_bytes=100_000, block_bytes=size, max_reject_chars=7)
        for size in (65_536, 1 << 20)
    ]
    for output in outputs:
        assert output.manifest["ledger"]["rejected"] == {"line_too_long": 3}
        assert output.manifest["totals"]["rows"] == 300
        assert [(each["file"], each["offset"], each["line"], each["text"]) for each in output.rejects()] == [
            (str(path), len(GOOD), 51, (filler * 7)[:7].decode())
            for path, (_, _, filler) in zip(paths, LONG, strict=True)
        ]
    assert outputs[0].manifest == outputs[1].manifest


def test_blocks_that_were_cached_with_another_limit_are_not_used(made: Made, tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(GOOD + b'{"text": "' + b"long " * 100 + b'"}\n')
    cache_dir = str(tmp_path / "token_cache")
    rows = [
        made(TEXT, path, name=str(limit), cache_dir=cache_dir, max_line_bytes=limit).manifest["totals"]["rows"]
        for limit in (100, 1000)
    ]
    assert rows == [50, 51]


PLAIN = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"


def test_a_rendering_that_costs_too_much_is_a_reject() -> None:
    rows = [
        {"messages": says(user=question, assistant="yes")}
        for question in ("hello", "width", "times", "failing", "hello again")
    ]
    tests = (
        "{% if messages[0].content == 'width' %}{{ '%3000000000s' % 'a' }}"
        "{% elif messages[0].content == 'times' %}{{ messages[1].content * 10**10 }}"
        "{% elif messages[0].content == 'failing' %}{{ 'abcdef' | truncate(2) }}{% endif %}"
    )
    config = chat_config()
    config["input"]["chat_template"] = tests + PLAIN
    rejects = bp.testing.rejects(prepared(config, rows))
    assert rejects == [(1, "template_limit"), (2, "template_limit"), (3, "template_error")]


def test_a_template_that_writes_much_for_every_record_ends_the_run() -> None:
    """Each rendering is within its limits; those of a block together would fill the memory."""
    chats = bp.testing.records(records_of(ROOT / "examples/data/chat.jsonl"))
    output = Output("sequence", "ids", (Section("messages", "$role", "conversation"),), "loss_mask")
    much = ChatFormat(ChatTemplate("{{ 'x ' * 9999 }}" + PLAIN, {}, ()), most_text=1 << 20)
    with pytest.raises(RunError, match="the chat template writes much more than it gets"):
        apply_template(chats, (output,), much)


DECOMPOSED = unicodedata.normalize("NFD", "\u00e9")
NAMES = ["line\nfeed", "quotes'\"", "-o", "a..b", "x" * 244, "\u00e9", DECOMPOSED, "{{ a }}"]


def test_files_may_have_any_names(made: Made, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for name in NAMES:
        (folder / f"{name}.jsonl").write_bytes(GOOD + b"bad\n")
    Path(os.fsdecode(os.fsencode(folder) + b"/\xff.jsonl")).write_bytes(GOOD)
    found = made(TEXT, folder / "*.jsonl").manifest
    assert found["totals"]["rows"] == 50 * (len(NAMES) + 1)
    assert found["ledger"]["rejected"] == {"bad_json": len(NAMES)}
