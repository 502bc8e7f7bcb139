"""`beam-prep inspect` and `cat`: what is trained is what is shown as trained, whatever the layout and the tokenizer."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.text import Text

import beam_prep as bp
from beam_prep.data.schema import Column
from beam_prep.errors import BeamPrepError
from beam_prep.hints import shortened
from beam_prep.inspect.draw import RowText
from beam_prep.inspect.output import inspect, shown_row
from beam_prep.inspect.row import RowKind, ShownRow
from beam_prep.readers.dataset import Dataset
from tests.conftest import ROOT, TOKENIZER_PATH, Command, Run, config_of, records_of

pytestmark = pytest.mark.long

Outputs = Callable[[str], Dataset]
MARKED = re.compile("⟦(.*?)⟧", re.DOTALL)


@pytest.fixture(scope="session")
def chats(output: Outputs) -> Dataset:
    return output("sft_chat")


def example(name: str) -> Path:
    return ROOT / "examples" / "data" / f"{name}.jsonl"


@pytest.fixture
def by_domain(run: Run) -> Dataset:
    output = {"domain_key": "domain", "max_tokens_per_shard": 5_000}
    return bp.open(run(config_of("sft_chat", output=output), example("chat")).output)


def render(dataset: Dataset, index: int) -> Text:
    """A row as it is printed without colours."""
    return RowText(marks=True).of(shown_row(dataset, index))


def body(text: Text) -> str:
    """What stands behind the header."""
    return text.plain.partition("\n")[2]


def unmarked(text: str) -> str:
    return text.replace("⟦", "").replace("⟧", "")


# One record


def test_what_is_trained_stands_between_marks(chats: Dataset) -> None:
    assert chats.tokenizer is not None
    for index, row in enumerate(chats[:20]):
        text = render(chats, index)
        assert unmarked(body(text)) == chats.decode(index)
        trained = row["sequence"][row["loss_mask"]]
        assert "".join(MARKED.findall(body(text))) == chats.tokenizer.decode(trained)
        share = f"{len(trained) / len(row['sequence']):.1%}"
        counts = f"{len(row['sequence'])} tokens, {len(trained)} trained ({share})"
        assert text.plain.startswith(f"━━ record {index} · domain __default__ · {counts}\n")


def test_rollouts_exactly(output: Outputs) -> None:
    assert render(output("grpo"), 0).plain == (
        "━━ record 0 · domain __default__ · 22 tokens, 6 trained (27.3%)\n"
        "── prompts: 16 tokens, 0 trained (0.0%), no mask: nothing is trained\n"
        "<|bos|><|im_start|>user\nWhat is 23 + 58?<|im_end|>\n\n"
        "── responses[0]: 2 tokens, 2 trained (100.0%), rewards[0]: 1.0\n⟦81⟧\n"
        "── responses[1]: 2 tokens, 2 trained (100.0%), rewards[1]: 0.0\n⟦71⟧\n"
        "── responses[2]: 2 tokens, 2 trained (100.0%), rewards[2]: 0.0\n⟦82⟧"
    )


def test_text_neither_steers_the_terminal_nor_is_markup(run: Run) -> None:
    nasty = "a\x1b[31mb\r\x07\x00\x7f\x9b\u202ec [bold]d[/bold] :smile: \te\n" + "long " * 100
    made = run(config_of("sft_instruction"), [{"prompt": nasty, "response": "ok"}])
    text = body(render(bp.open(made.output), 0))
    assert not set(text) & {"\x1b", "\r", "\x07", "\x00", "\x7f", "\x9b", "\u202e"}
    assert "a␛[31mb␍␇␀␡\\x9b\\u202ec [bold]d[/bold] :smile: \te\nlong long" in text


def test_a_text_with_the_signs_of_marks_is_not_taken_for_trained(run: Run) -> None:
    made = run(config_of("sft_instruction"), [{"prompt": "⟦no⟧", "response": "⟧yes"}])
    assert body(render(bp.open(made.output), 0)) == "\\u27e6no\\u27e7⟦\\u27e7yes⟧"


def test_an_output_without_a_mask_is_all_trained_where_the_config_says_so(output: Outputs) -> None:
    text = render(output("pretrain"), 0)
    assert "trained (100.0%) · no mask: all is trained\n" in text.plain
    assert body(text) == f"⟦{output('pretrain').decode(0)}⟧"


# Packed and padded rows, pairs


def counted(run: Run, preprocessing: dict[str, Any], **output: Any) -> Dataset:
    """Three short documents of 11, 17 and 9 tokens in some layout."""
    rows = [{"prompt": f"Count to {n}.", "response": " ".join(map(str, range(1, n + 1)))} for n in (3, 6, 2)]
    given = config_of("sft_instruction", preprocessing=preprocessing, output={"columns": "labels", **output})
    return bp.open(run(given, rows).output)


def test_parts_of_documents_with_labels_shifted(run: Run, command: Command) -> None:
    step = {"packing_strategy": "wrapped", "max_packed_len": 20, "shift": True}
    packed = counted(run, step, position_ids_mode="continuous")
    assert render(packed, 1).plain == (
        "━━ record 1 · domain __default__ · 14 tokens, 9 trained (64.3%) · labels: shifted by one · the last token is "
        "a label only · 2 documents or parts of some\n"
        "── document 1 of 2: 6 tokens, 6 trained (100.0%) ───────────────────────\n"
        "3⟦ 4 5 6⟧\n"
        "── document 2 of 2: 8 tokens, 3 trained (37.5%) ────────────────────────\n"
        "Count to 2.⟦1 2⟧"
    )
    assert "fill rate 85.0%\n" in command("inspect", packed.path, "--count", 0)


IDS, LABELS = Column("input_ids", "int32", 1, "ids"), Column("labels", "int32", 1, "labels", "input_ids")
ATTENTION = Column("attention_mask", "int32", 1, "attention")


def by_hand(*columns: tuple[Column, list[int]]) -> str:
    kind = RowKind(tuple(column for column, _ in columns), None, {})
    row = {column.name: np.array(values, np.int32) for column, values in columns}
    return RowText(marks=True).of(ShownRow(kind, row, ["record 0"])).plain


SHIFTED = Column("labels", "int32", 1, "labels", "input_ids", shifted=True)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (((IDS, [5, 6, 0, 0]), (LABELS, [-100, 6, -100, -100]), (ATTENTION, [1, 1, 0, 0])), "5 ⟦6 ⟧\n+ 2 x 0"),
        # No last token that is a label only.
        (((IDS, [5, 6, 7]), (SHIFTED, [6, -100, -100])), " · labels: shifted by one\n5 ⟦6 ⟧7 "),
    ],
)
def test_what_is_odd_in_a_row_is_shown(columns: Any, words: str) -> None:
    assert words in by_hand(*columns)


def test_texts_are_cut_between_words() -> None:
    assert shortened("one two three", 12) == "one two ..."
    assert shortened("one two three", 7) == "one two ..."
    assert shortened("one two three", 13) == "one two three"
    assert shortened("x" * 20, 5) == "xxxxx ..."


# The commands


def test_wrong_numbers_and_names_are_clear_errors(by_domain: Dataset) -> None:
    path, rows = by_domain.path, len(by_domain)
    cases: dict[str, dict[str, Any]] = {
        f"no record {rows}: {path} has {rows}, numbered from 0": {"record": rows},
        "numbered from 0 .--record 99 --domain maths.": {"record": 99, "domain": "maths"},
        "unknown domain 'math'; did you mean 'maths'": {"domain": "math"},
        "--count is -1, wanted 0 or more": {"count": -1},
    }
    for message, options in cases.items():
        with pytest.raises(BeamPrepError, match=message):
            inspect(path, **options)


@pytest.mark.parametrize("name", ["bin", "tfrecord"])
def test_by_default_the_first_shortest_longest_and_some_drawn_rows_are_shown(
    run: Run, command: Command, name: str
) -> None:
    storage = {"storage_format": name, "max_tokens_per_shard": 2_000}
    output = run(config_of("sft_chat", output=storage), example("chat")).output
    out = command("inspect", output)
    shown = {int(number): why for number, why in re.findall("━━ record ([0-9]+) · (.*?) · domain", out)}
    assert next(iter(shown)) == 0
    whys = [re.sub(" in bytes| of 16 shards", "", why) for why in shown.values()]
    assert whys.count("drawn") == 3
    named = [each for why in whys if why != "drawn" for each in why.split(", ")]
    assert (named[0], sorted(named[1:])) == ("the first", ["the longest", "the shortest"])
    assert (" in bytes" in out) == (name == "tfrecord")


# cat


def test_cat_prints_lists_of_lists_numbers_and_texts(output: Outputs, command: Command) -> None:
    rows = [json.loads(line) for line in command("cat", output("grpo").path, "--count", 5).splitlines()]
    for found, row, record in zip(rows, output("grpo")[:5], records_of(example("rollouts"))[:5], strict=True):
        assert found["responses"] == row["responses"].to_lists()
        assert found["rewards"] == record["rewards"]  # 0.1, not 0.10000000149
    printed = [json.loads(line)["answer"] for line in command("cat", output("rlvr").path).splitlines()]
    assert printed == [record["answer"] for record in records_of(example("more/rlvr"))]


def test_cat_escapes_what_controls_a_terminal(run: Run, command: Command) -> None:
    text = "a\x9b31m\x7f\u202eb\U000e0041"
    given = config_of("sft_instruction", output={"keep_fields": ["note"]})
    printed = command("cat", run(given, [{"prompt": "a", "response": "b", "note": text}]).output)
    assert printed.strip().isascii()
    assert json.loads(printed)["note"] == text


def test_a_reader_that_goes_away_is_no_error(chats: Dataset) -> None:
    line = f"'{sys.executable}' -m beam_prep.cli cat '{chats.path}' --count 260 | head -n 1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", line], capture_output=True, cwd=ROOT, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("command", ["cat", "inspect", "verify"])
def test_stdout_may_have_another_encoding(command: str, chats: Dataset) -> None:
    words = [sys.executable, "-m", "beam_prep.cli", command, str(chats.path)]
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(words, capture_output=True, cwd=ROOT, env=ascii_only, check=True)
    assert ("⟦" in done.stdout.decode("utf-8")) == (command == "inspect")


# Before a run

GOOD = '{"prompt": "Count to 3.", "response": "1 2 3"}'
INSTRUCTION = str(ROOT / "configs" / "sft_instruction.json")


def test_preview_exactly(tmp_path: Path, command: Command) -> None:
    source, bad = tmp_path / "in.jsonl", '{"prompt": "a\u001b[31m'
    source.write_text("\n".join(["", '{"prompt": 3, "response": "a"}', GOOD, bad, "{}", GOOD, GOOD]), "utf-8")
    before = sorted(tmp_path.iterdir())
    printed = command("inspect", source, "--config", INSTRUCTION, "--tokenizer_path", TOKENIZER_PATH, "--count", 2)
    row = "domain __default__ · 11 tokens, 5 trained (45.5%)\nCount to 3.⟦1 2 3⟧\n\n"
    assert re.sub("(bad_json\n).*\n", "\\1(what the parser says)\n", printed) == (
        f"{source}: rows, as {INSTRUCTION} makes them; nothing is written\n"
        "columns: sequence, loss_mask; nothing is shifted\n"
        "config: sequence: nothing separates the texts of 'prompt' and 'response', and no EOS ends them, unless "
        "the tokenizer does: put a separator into the data, and set preprocessing.eos to 'if_missing', so that the end "
        "is learned\n"
        "what is trained is between ⟦ and ⟧\n\n"
        f"━━ {source}, line 3 · {row}"
        f"━━ {source}, line 6 · {row}"
        f"━━ {source}, line 2 · rejected: wrong_type\n"
        "field 'prompt' is a number (3), wanted a string\n"
        '── {"prompt": 3, "response": "a"}\n\n'
        f"━━ {source}, line 4 · rejected: bad_json\n"
        "(what the parser says)\n"
        '── {"prompt": "a␛[31m\n\n'
        f"━━ {source}, line 5 · dropped: empty\nhas nothing left to encode\n── {{}}\n\n"
        "6 records looked at (all of it), in 1 file\n"
        "3 kept, 33 tokens (45.5% trained)\n"
        "dropped: 1 empty\n"
        "rejected: 1 bad_json, 1 wrong_type\n"
        "a run on these would fail: 2 of 6 records were rejected (33.33%; 1 bad_json, 1 wrong_type), more than "
        f"--max_reject_rate 0.01; the first record of 'empty' is {source} (byte offset 98), with the fields (none); "
        "the config asks for 'prompt', 'response': 'prompt', 'response' are not there; the first reject of "
        f"'wrong_type' is {source} (byte offset 1): field 'prompt' is a number (3), wanted a string\n\n"
    )
    assert sorted(tmp_path.iterdir()) == before


def test_names_of_records_in_errors_do_not_control_the_terminal(run: Run, command: Command) -> None:
    rows = [{**row, "lang": "fr\x1b[31m\x9b"} for row in records_of(example("chat"))[:2]]
    output = run(config_of("sft_chat", output={"domain_key": "lang"}), rows).output
    assert "known: fr␛[31m\\x9b" in command("inspect", output, "--domain", "nope", code=2)
    preview = ("inspect", "x.jsonl", "-c", "c.json", "--tokenizer_path", "t")
    assert "--record is for outputs" in command(*preview, "--record", "0", code=2)
