"""`beam-prep inspect` and `cat`: what is trained is what is shown as trained, whatever the layout and the tokenizer."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.text import Text

import beam_prep as bp
from beam_prep.cli import main
from beam_prep.config import PipelineConfig
from beam_prep.core.ragged import Ragged
from beam_prep.core.tokenizer import Tokenizer
from beam_prep.errors import BeamPrepError
from beam_prep.inspect import cat, inspect, render
from beam_prep.pipeline import Pipeline
from beam_prep.readers.dataset import Dataset
from tests.conftest import ROOT, shared

TEXTS = [
    "Hello 😀 world, 你好 𠮷野家! naïve café",
    "👩‍👩‍👧‍👦 family ☕️ नमस्ते  two  spaces\n\n\ttabs\r\nend ",
    "def f(x):\n    return x ** 2  # 平方\n",
    "x",
    "",
]
MARKED = re.compile("⟦(.*?)⟧", re.DOTALL)


def make(folder: Path, config: str, data: Path, tokenizer: Path | None = None, **changes: dict[str, Any]) -> Dataset:
    """The output of a config of the project; `changes`: parts of the config."""
    settings = json.loads((ROOT / "configs" / f"{config}.json").read_text()) | changes
    Pipeline(
        PipelineConfig.from_dict(settings),
        [str(data)],
        output_dir=folder / "out",
        tokenizer_path=tokenizer or ROOT / "examples" / "tokenizer",
    ).run(["--runner=FnApiRunner"])
    return bp.open(folder / "out")


def example(name: str) -> Path:
    return ROOT / "examples" / "data" / f"{name}.jsonl"


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").split("\n") if line]


@pytest.fixture(scope="session")
def chats(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return make(tmp_path_factory.mktemp("chats"), "sft_chat", example("chat"))


@pytest.fixture(scope="session")
def by_domain(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    output = {"domain_key": "domain", "max_tokens_per_shard": 5_000}
    return make(tmp_path_factory.mktemp("domains"), "sft_chat", example("chat"), output=output)


@pytest.fixture(scope="session")
def preferences(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return make(tmp_path_factory.mktemp("preferences"), "dpo", example("preference"))


@pytest.fixture(scope="session")
def rollouts(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return make(tmp_path_factory.mktemp("rollouts"), "grpo", example("rollouts"))


def with_manifest(dataset: Dataset, folder: Path, change: Callable[[dict[str, Any]], None]) -> Dataset:
    """A copy of an output with another manifest."""
    copy = shutil.copytree(dataset.path, folder / "copy")
    manifest = json.loads((copy / "manifest.json").read_bytes())
    change(manifest)
    (copy / "manifest.json").write_text(json.dumps(manifest))
    return bp.open(copy)


def body(text: Text) -> str:
    """What stands behind the header."""
    return text.plain.partition("\n")[2]


def unmarked(text: str) -> str:
    return text.replace("⟦", "").replace("⟧", "")


def in_style(text: Text, style: str) -> str:
    return "".join(text.plain[span.start : span.end] for span in text.spans if style in str(span.style))


# One record


def test_what_is_trained_stands_between_marks(chats: Dataset) -> None:
    assert chats.tokenizer is not None
    for index, row in enumerate(chats[:60]):
        text = render(chats, index, marks=True)
        assert unmarked(body(text)) == chats.decode(index)
        trained = row["sequence"][row["loss_mask"]]
        assert "".join(MARKED.findall(body(text))) == chats.tokenizer.decode(trained)
        share = f"{len(trained) / len(row['sequence']):.1%}"
        header = (
            f"━━ record {index} · domain __default__ · {len(row['sequence'])} tokens, {len(trained)} trained ({share})"
        )
        assert text.plain.startswith(header + "\n")


def test_each_run_has_its_own_marks(chats: Dataset) -> None:
    record = next(i for i, record in enumerate(records(example("chat"))) if len(record["messages"]) == 4)
    roles = [message["role"] for message in records(example("chat"))[record]["messages"]]
    runs = MARKED.findall(body(render(chats, record, marks=True)))
    assert len(runs) == roles.count("assistant") == 2
    assert all(run.startswith("<|im_start|>assistant\n") and run.endswith("<|im_end|>\n") for run in runs)


def test_colours_say_the_same_as_marks(chats: Dataset) -> None:
    for index in range(20):
        marked, coloured = render(chats, index, marks=True), render(chats, index)
        assert "⟦" not in coloured.plain
        trained = "".join(MARKED.findall(body(marked)))
        assert in_style(coloured, "green").replace("↵", "") == trained
        assert coloured.plain.replace("↵", "") == unmarked(marked.plain)


def test_special_tokens_are_reversed_trained_or_not(chats: Dataset) -> None:
    text = render(chats, 0)
    reversed_ = in_style(text, "reverse")
    assert set(re.findall(r"<\|\w+\|>", reversed_)) == {"<|bos|>", "<|im_start|>", "<|im_end|>"}
    assert re.sub(r"<\|\w+\|>", "", reversed_) == ""
    assert in_style(text, "green reverse") == "<|im_start|><|im_end|>"


def test_a_trained_newline_at_the_end_of_a_run_is_seen_in_colour(chats: Dataset) -> None:
    assert render(chats, 0).plain.endswith("<|im_end|>↵\n")
    assert "system↵" not in render(chats, 0).plain


@pytest.mark.parametrize("shift", [False, True])
def test_labels_are_shown_on_the_tokens_they_belong_to(tmp_path: Path, chats: Dataset, shift: bool) -> None:
    config = {"preprocessing": {"shift": shift}, "output": {"columns": "labels"}}
    labels = make(tmp_path, "sft_chat", example("chat"), **config)
    for index in range(60):
        text = render(labels, index, marks=True)
        assert body(text) == body(render(chats, index, marks=True))
        header = text.plain.split("\n")[0]
        assert ("labels: shifted by one" in header) is shift
        assert ("labels: unshifted" in header) is not shift
        assert ("the last token is a label only" in header) is shift
        assert f"· {len(labels[index]['input_ids'])} tokens" in header
        assert "not the token" not in header


def test_a_shifted_row_whose_last_label_is_masked_shows_what_is_stored(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    messages = [{"role": "assistant", "content": "Yes."}, {"role": "user", "content": "Thanks"}]
    source.write_text(json.dumps({"messages": messages}) + "\n")
    config = {"preprocessing": {"shift": True}, "output": {"columns": "labels"}}
    labels = make(tmp_path, "sft_chat", source, **config)
    text = render(labels, 0, marks=True)
    assert unmarked(body(text)) == labels.decode(0)
    assert MARKED.findall(body(text)) == ["<|im_start|>assistant\nYes.<|im_end|>\n"]
    assert "label only" not in text.plain


def test_labels_shifted_against_the_manifests_word_are_found_out(tmp_path: Path) -> None:
    def deny(manifest: dict[str, Any]) -> None:
        manifest["columns"][1]["shifted"] = False

    (tmp_path / "labels").mkdir()
    config = {"preprocessing": {"shift": True}, "output": {"columns": "labels"}}
    labels = make(tmp_path / "labels", "sft_chat", example("chat"), **config)
    wrong = with_manifest(labels, tmp_path, deny)
    assert re.search(r"\d+ labels are not the token they belong to", render(wrong, 0).plain)


def test_preference_rows_show_both_sides_under_their_names(preferences: Dataset) -> None:
    for index, (row, record) in enumerate(zip(preferences, records(example("preference")), strict=True)):
        header, chosen, rejected = re.split(r"\n── \w+: ", render(preferences, index, marks=True).plain)
        trained = [int(row[name].sum()) for name in ("chosen_mask", "rejected_mask")]
        tokens = [len(row[name]) for name in ("chosen", "rejected")]
        assert f" {sum(tokens)} tokens, {sum(trained)} trained" in header
        for side, name in enumerate(("chosen", "rejected")):
            caption, _, text = (chosen, rejected)[side].partition("\n")
            assert caption.startswith(f"{tokens[side]} tokens, {trained[side]} trained (")
            assert unmarked(text) == preferences.decode(index, name)
            assert record[name][-1]["content"].strip() in "".join(MARKED.findall(text))


def test_rollouts_show_every_response_and_the_rewards(rollouts: Dataset) -> None:
    text = render(rollouts, 0, marks=True).plain
    record = records(example("rollouts"))[0]
    for index, response in enumerate(record["responses"]):
        assert re.search(rf"── responses\[{index}\]: \d+ tokens, .*100\.0%\)\n⟦{re.escape(response)}⟧", text)
    assert "── prompts: " in text
    assert "no mask: nothing is trained\n<|bos|>" in text
    assert text.endswith("── rewards: " + ", ".join(str(np.float32(reward)) for reward in record["rewards"]))


def test_an_output_without_a_mask_is_all_trained_where_the_config_says_so(tmp_path: Path) -> None:
    texts = make(tmp_path / "texts", "pretrain", example("text"))
    text = render(texts, 0, marks=True)
    assert "trained (100.0%) · no mask: all is trained\n" in text.plain
    assert body(text) == f"⟦{texts.decode(0)}⟧"

    unknown = with_manifest(texts, tmp_path, lambda manifest: manifest.pop("config"))
    text = render(unknown, 0, marks=True)
    assert text.plain.startswith(f"━━ record 0 · domain __default__ · {len(texts[0]['sequence'])} tokens · no mask\n")
    assert body(text) == texts.decode(0)


def test_without_a_tokenizer_ids_are_shown(chats: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def forget(manifest: dict[str, Any]) -> None:
        manifest["files"] = []

    bare = with_manifest(chats, tmp_path, forget)
    row = bare[0]
    text = render(bare, 0, marks=True)
    assert [int(token) for token in unmarked(body(text)).split()] == row["sequence"].tolist()
    assert [int(token) for token in MARKED.findall(body(text))[0].split()] == row["sequence"][row["loss_mask"]].tolist()
    inspect(bare.path, count=0)
    assert "no tokenizer is kept in the output" in capsys.readouterr().out


def test_text_neither_steers_the_terminal_nor_is_markup(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    nasty = "a\x1b[31mb\r\x07\x00\x7f\x9b\u202ec [bold]d[/bold] :smile: \te\n" + "long " * 100
    source.write_text(json.dumps({"prompt": nasty, "response": "ok"}) + "\n")
    text = body(render(make(tmp_path, "sft_instruction", source), 0))
    assert not set(text) & {"\x1b", "\r", "\x07", "\x00", "\x7f", "\x9b", "\u202e"}
    assert "a␛[31mb␍␇␀␡\\x9b\\u202ec [bold]d[/bold] :smile: \te\nlong long" in text


# Pieces of tokens


@pytest.mark.parametrize(
    "name", ["gpt2", "qwen2.5", "mistral-v1", "mistral-v3", "tekken-32k", "t5-small", "bpe3k_nobos", "minimind"]
)
def test_pieces_join_to_the_text(name: str) -> None:
    tokenizer = Tokenizer.load(shared("tokenizers", name))
    others = json.loads(shared("tokenizers", "verify_texts.json").read_text("utf-8"))
    texts = [*TEXTS, *(other["text"] for other in others)]
    for text in texts:
        ids = tokenizer.encode([text], True)[0].tolist()
        pieces = tokenizer.pieces(ids)
        assert len(pieces) == len(ids)
        assert "".join(pieces) == tokenizer.decode(ids)


@pytest.mark.parametrize("name", ["gpt2", "mistral-v1", "mistral-v3", "tekken-32k"])
def test_pieces_of_cut_characters(name: str) -> None:
    tokenizer = Tokenizer.load(shared("tokenizers", name))
    before, word = (tokenizer.encode([text], False)[0].tolist() for text in ("So", "word"))
    character = tokenizer.encode(["a𠮷"], False)[0].tolist()[-2:]  # its last bytes alone are no character
    pieces = tokenizer.pieces([*before, *character, *word])
    assert "".join(pieces).startswith("So")
    assert "".join(pieces).endswith("word")
    cut = "".join(pieces[len(before) : -len(word)])
    assert set(cut.strip()) == {"\ufffd"}  # they stay with their own tokens
    # A whole character after a cut one is whole.
    assert "".join(tokenizer.pieces([*character, *word, *tokenizer.encode(["a𠮷"], False)[0].tolist()])).endswith("a𠮷")
    # Many of them take linear time, and none is lost.
    assert len(tokenizer.pieces(character * 2_000)) == 4_000


@pytest.mark.parametrize("name", ["gpt2", "qwen2.5", "mistral-v1"])
def test_masks_of_other_tokenizers(tmp_path: Path, name: str) -> None:
    source = tmp_path / "in.jsonl"
    rows = [{"prompt": one, "response": other} for one in TEXTS[:4] for other in TEXTS[:4]]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = make(tmp_path, "sft_instruction", source, shared("tokenizers", name))
    assert len(data) == len(rows)
    for index, row in enumerate(rows):
        text = body(render(data, index, marks=True)).replace("␍", "\r")
        assert unmarked(text) == data.decode(index)
        assert "".join(MARKED.findall(text)).lstrip(" ") == row["response"].lstrip(" ")


# The commands


def test_inspect_prints_totals_and_the_first_records(chats: Dataset, capsys: pytest.CaptureFixture[str]) -> None:
    inspect(chats.path, count=2)
    out = capsys.readouterr().out
    totals = chats.manifest["totals"]
    assert out.startswith(
        f"{chats.path}: {totals['rows']} rows, {totals['tokens']['sequence']:,} tokens, 1 shard (bin), 1 domain\n"
        "columns: sequence, loss_mask; nothing is shifted\n"
        f"loss_mask: {totals['trained']['loss_mask']:,} trained tokens ("
    )
    assert "what is trained stands between ⟦ and ⟧\n\n━━ record 0 " in out
    assert re.findall("━━ record ([0-9]+)", out) == ["0", "1"]


def test_inspect_says_how_labels_stand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for shift, words in ((False, "labels: unshifted"), (True, "labels: shifted by one")):
        config = {"preprocessing": {"shift": shift}, "output": {"columns": "labels", "storage_format": "tfrecord"}}
        inspect(make(tmp_path / str(shift), "sft_chat", example("chat"), **config).path, count=0)
        out = capsys.readouterr().out
        assert f"columns: input_ids, labels; {words}\n" in out
        assert "(tfrecord)" in out


@pytest.mark.parametrize(("record", "shown"), [(7, 7), (-1, -1), (0, 0)])
def test_inspect_prints_one_record(chats: Dataset, capsys: pytest.CaptureFixture[str], record: int, shown: int) -> None:
    assert main(["inspect", str(chats.path), "--record", str(record)]) == 0
    out = capsys.readouterr().out
    assert re.findall("━━ record ([0-9]+)", out) == [str(shown % len(chats))]
    assert render(chats, record, marks=True).plain in out


def test_inspect_prints_records_of_a_domain(by_domain: Dataset, capsys: pytest.CaptureFixture[str]) -> None:
    inspect(by_domain.path, domain="maths", count=2)
    out = capsys.readouterr().out
    assert re.findall("━━ record ([0-9]+) · domain (.*?) ·", out) == [("0", "maths"), ("1", "maths")]
    assert f"{len(by_domain.domains)} domains\n" in out
    inspect(by_domain.path, domain="maths", record=5)
    assert render(by_domain.domain("maths"), 5, marks=True).plain in capsys.readouterr().out


def test_wrong_numbers_and_names_are_clear_errors(by_domain: Dataset, capsys: pytest.CaptureFixture[str]) -> None:
    path, rows = by_domain.path, len(by_domain)
    cases = {
        f"no record {rows}: {path} has {rows}, numbered 0 to {rows - 1}": {"record": rows},
        f"no record {-rows - 1}: ": {"record": -rows - 1},
        f"no record 99: domain 'maths' of {path} has ": {"record": 99, "domain": "maths"},
        "has no domain 'math'; did you mean 'maths'?": {"domain": "math"},
        "--count is -1, wanted 0 or more": {"count": -1},
    }
    for message, options in cases.items():
        with pytest.raises(BeamPrepError) as caught:
            inspect(path, **options)  # type: ignore[arg-type]
        assert message in str(caught.value)
    for options in ({"count": -1}, {"domain": "math"}):
        with pytest.raises(BeamPrepError):
            cat(path, **options)  # type: ignore[arg-type]
    capsys.readouterr()
    assert main(["inspect", str(path), "--record", str(rows)]) == 1
    assert capsys.readouterr().err.startswith(f"beam-prep: no record {rows}")


def test_more_records_than_there_are_is_all_of_them(by_domain: Dataset, capsys: pytest.CaptureFixture[str]) -> None:
    inspect(by_domain.path, count=10_000, domain="games")
    assert capsys.readouterr().out.count("━━ record") == len(by_domain.domain("games"))


def _inspected(output: Path, **environment: str) -> str:
    command = [sys.executable, "-m", "beam_prep.cli", "inspect", str(output), "--count", "1"]
    clean = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "FORCE_COLOR", "TERM")}
    return subprocess.run(command, env=clean | environment, capture_output=True, check=True, cwd=ROOT).stdout.decode()


def test_colours_only_where_they_are_wanted(chats: Dataset) -> None:
    coloured = _inspected(chats.path, FORCE_COLOR="1", TERM="xterm-256color")
    assert "\x1b[1;32m" in coloured
    assert "⟦" not in coloured
    for environment in ({"TERM": "xterm"}, {"NO_COLOR": "1", "FORCE_COLOR": "1", "TERM": "xterm"}):
        plain = _inspected(chats.path, **environment)
        assert "\x1b" not in plain
        assert render(chats, 0, marks=True).plain in plain


# cat


def test_cat_prints_every_row_as_json(by_domain: Dataset, capsys: pytest.CaptureFixture[str]) -> None:
    cat(by_domain.path)
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(rows) == len(by_domain)
    for index, row in enumerate(rows):
        assert list(row) == ["domain", "sequence", "loss_mask"]
        assert row["domain"] == by_domain.domain_of(index)
        assert row["sequence"] == by_domain[index]["sequence"].tolist()
        assert row["loss_mask"] == by_domain[index]["loss_mask"].tolist()


def test_cat_prints_lists_of_lists_and_numbers(rollouts: Dataset, capsys: pytest.CaptureFixture[str]) -> None:
    cat(rollouts.path, count=5)
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(rows) == 5
    for found, row, record in zip(rows, rollouts[:5], records(example("rollouts"))[:5], strict=True):
        assert isinstance(row["responses"], Ragged)
        assert found["responses"] == row["responses"].to_lists()
        assert found["rewards"] == record["rewards"]  # 0.1, not 0.10000000149


def test_cat_stops_at_the_count_over_domains(by_domain: Dataset, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = len(by_domain.domain(by_domain.domains[0])) + 2
    assert main(["cat", str(by_domain.path), "--count", str(wanted)]) == 0
    domains = [json.loads(line)["domain"] for line in capsys.readouterr().out.splitlines()]
    assert domains == [by_domain.domain_of(index) for index in range(wanted)]
    cat(by_domain.path, count=0)
    assert capsys.readouterr().out == ""
    cat(by_domain.path, count=2, domain="maths")
    assert len(capsys.readouterr().out.splitlines()) == 2


@pytest.mark.parametrize("command", ["cat", "inspect"])
@pytest.mark.parametrize("reader", ["head -n 1", "true"])
def test_a_reader_that_goes_away_is_no_error(chats: Dataset, command: str, reader: str) -> None:
    line = f"'{sys.executable}' -m beam_prep.cli {command} '{chats.path}' --count 260 | {reader}"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", line], capture_output=True, cwd=ROOT, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
