"""Our output beside that of transformers, TRL and datasets, on material of our own: needs neither of the last two."""

import functools
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

import beam_prep as bp
from beam_prep.errors import TokenizerError
from tests.conftest import records_of, run_job, run_of, text_config

MATERIAL = Path(__file__).with_name("material")
DATA, EXPECTED, FOLDER = (MATERIAL / name for name in ("data", "expected", "tokenizers"))
TOKENIZERS = ("byte_bpe", "llama_bpe", "unigram")

Row = dict[str, Any]
Case = tuple[str, str, str]
"""Tokenizer, file of records, name of the run."""

MESSAGES: Row = {"field": "messages", "template": "conversation"}
PROMPT: Row = {"field": "prompt", "action": "mask"}
TEXTS: Row = text_config(output={})
JOINED: Row = {"encode": "joint", "eos": "if_missing"}


@functools.cache
def expected(library: str) -> dict[Case, list[Row]]:
    """The rows of every case of a library; those that it refuses are None."""
    with gzip.open(EXPECTED / f"{library}.jsonl.gz", "rt", encoding="utf-8") as lines:
        next(lines)  # the versions
        cases = map(json.loads, lines)
        return {(case["tokenizer"], case["file"], case["run"]): case["rows"] for case in cases}


def cases_of(library: str, run: str) -> list[Case]:
    return [case for case in expected(library) if case[2] == run]


def records(file: str) -> list[Row]:
    return records_of(DATA / f"{file}.jsonl")


def made(config: Row, inputs: Any, output: Path, tokenizer: Path, **options: Any) -> bp.Dataset:
    """A run; labels in place of masks unless the config has an output of its own."""
    given = {"mask": {"assistant": "train"}, "output": {"columns": "labels"}, **config}
    given["preprocessing"] = {"max_seq_len": 1_000_000, "min_chars": 0, **config.get("preprocessing", {})}
    return bp.open(run_job(given, inputs, output, tokenizer, max_reject_rate=1, max_no_loss_rate=1, **options).output)


def run(tokenizer: str, files: tuple[str, ...], config: Row, output: Path, **options: Any) -> bp.Dataset:
    """A run over files of records."""
    return made(config, [DATA / f"{file}.jsonl" for file in files], output, FOLDER / tokenizer, **options)


# Conversations, beside transformers.

SWALLOWED = {
    "an answer of white space": "</s>",
    "white space at both ends": "an answer with edges </s>",
    "an answer that begins with a space": "gone</s> on</s>",
}
"""Answers whose first character `unigram` normalises away: transformers finds no token for it, and masks nothing from
there on. Ours train the answer."""


@pytest.mark.parametrize(("template", "backend"), [("chat_template", "gigatoken"), ("without_marks", "transformers")])
@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_ids_and_masks_of_conversations(tokenizer: str, template: str, backend: str, tmp_path: Path) -> None:
    files = ("chats", "odd_chats", "tool_chats")
    source = (FOLDER / tokenizer / f"{template}.jinja").read_text()
    config = {
        # transformers does not mind a call that the template of unigram leaves out.
        "input": {"sections": [{**MESSAGES, "action": "$role"}], "chat_template": source, "not_rendered": "keep"},
        "preprocessing": {"rows_without_loss": "keep"},
        "output": {},
    }
    used = "transformers" if tokenizer == "unigram" else backend  # gigatoken does not take it
    dataset = run(tokenizer, files, config, tmp_path / "out", tokenizer_backend=used)
    wanted = [row for file in files for row in expected("transformers")[tokenizer, file, "assistant_masks"]]
    about = [record for file in files for record in records(file)]
    refused = sum(row is None for row in wanted)
    assert dataset.manifest["ledger"]["rejected"] == ({"template_error": refused} if refused else {})
    kept = [(row, record.get("what")) for row, record in zip(wanted, about, strict=True) if row is not None]
    swallowed = SWALLOWED if tokenizer == "unigram" else {}
    for found, (want, what) in zip(dataset, kept, strict=True):
        assert found["sequence"].tolist() == want["input_ids"], what
        if what in swallowed:
            assert dataset.tokenizer is not None
            assert dataset.tokenizer.decode(found["sequence"][found["loss_mask"] == 1]) == swallowed[what]
            assert sum(want["assistant_masks"]) < found["loss_mask"].sum()
        else:
            assert found["loss_mask"].astype(int).tolist() == want["assistant_masks"], what


@pytest.mark.parametrize("case", cases_of("transformers", "prompts"), ids="-".join)
def test_prompts_and_responses(case: Case, tmp_path: Path) -> None:
    tokenizer, file, _ = case
    sources = {
        "prompts": {"sections": [{**PROMPT, "template": "conversation"}]},
        "responses": {"sections": [{"field": "responses", "action": "train"}], "list_field": True},
        "rewards": {"sections": [{"field": "rewards", "action": "value"}]},
    }
    dataset = run(tokenizer, (file,), {"input": {"sources": sources}, "output": {}}, tmp_path / "out")
    for found, want, record in zip(dataset, expected("transformers")[case], records(file), strict=True):
        assert found["prompts"].tolist() == want["prompts"]
        assert [response.tolist() for response in found["responses"]] == want["responses"]
        assert found["rewards"].tolist() == pytest.approx(record["rewards"], rel=1e-6)


# Texts, beside datasets.


@pytest.mark.parametrize("backend", ["gigatoken", "transformers"])
@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_ids_of_texts(tokenizer: str, backend: str, tmp_path: Path) -> None:
    if (tokenizer, backend) == ("unigram", "gigatoken"):
        with pytest.raises(TokenizerError, match="Unsupported model type"):
            run(tokenizer, ("texts",), TEXTS, tmp_path / "out", tokenizer_backend=backend)
        return
    dataset = run(tokenizer, ("texts",), TEXTS, tmp_path / "out", tokenizer_backend=backend)
    wanted = expected("datasets")[tokenizer, "texts", "map"]
    # Texts of white space are left out.
    kept = [want for want, record in zip(wanted, records("texts"), strict=True) if record["text"].strip()]
    assert dataset.manifest["ledger"]["dropped"] == {"empty": len(wanted) - len(kept)}
    assert [row["sequence"].tolist() for row in dataset] == [want["input_ids"] for want in kept]
    told = run_of(tmp_path / "out")
    # Under NFC, letters that Unicode 3.2 does not have are the reference's: one text has a hieroglyph.
    left = int((tokenizer, backend) == ("byte_bpe", "gigatoken"))
    assert told[f"encoded_by_{backend}"] == len(kept) - left
    assert left == 0 or told["encoded_by_transformers"] == left


def test_padded_texts(tmp_path: Path) -> None:
    config = {
        "input": TEXTS["input"],
        "preprocessing": {"padding": "max_length", "max_seq_len": 64},
        "output": {"columns": "labels"},
    }
    dataset = run("byte_bpe", ("texts",), config, tmp_path / "out")
    wanted = expected("datasets")["byte_bpe", "texts", "padded_64"]
    kept = [want for want, record in zip(wanted, records("texts"), strict=True) if record["text"].strip()]
    for found, want in zip(dataset, kept, strict=True):
        assert found["input_ids"].tolist() == want["input_ids"]
        assert found["attention_mask"].tolist() == want["attention_mask"]
        assert ((found["labels"] != -100) == found["attention_mask"]).all()


# TRL.


def config_of(file: str, run: str) -> Row:
    """What SFTTrainer does with a file's records by itself, and what a run changes."""
    action = "$role" if run == "assistant_only" else "train"
    template = {"template": "conversation"} if file.startswith("chat_") else {}
    pair = [{**PROMPT, **template}, {"field": "completion", "action": action, **template}]
    forms: dict[str, Row] = {
        "pairs": {"input": {"sections": pair}, "preprocessing": JOINED},
        "chat_pairs": {"input": {"sections": pair}},
        "texts": {"input": {"sections": [{"field": "text", "action": action}]}, "preprocessing": {"eos": "if_missing"}},
    }
    form = forms.get(file, {"input": {"sections": [{**MESSAGES, "action": action}]}})
    if file == "sharegpt":
        form["input"]["adapter"] = {"name": "sharegpt", "roles": "keep"}
    return {**form, "preprocessing": {**form.get("preprocessing", {}), **rules_of(run)}}


def rules_of(run: str) -> Row:
    strategy, _, length = run.rpartition("_")
    if not length.isdigit():
        return {}
    rules: Row = {"max_seq_len": int(length)}
    if strategy == "keep_end":
        rules["truncation_mode"] = "keep_end"
    elif strategy != "cut":
        rules |= {"packing_strategy": strategy, "packing_group": 1000, "rows_without_loss": "keep"}
        # bfd sorts by the lengths after the cut; the others cut nothing.
        rules |= {"max_packed_len": int(length), **({} if strategy == "bfd" else {"max_seq_len": 1_000_000})}
    return rules


@pytest.mark.parametrize("case", [one for one in expected("trl") if one[2] not in ("dpo", "reward_128")], ids="-".join)
def test_rows_of_sft_trainer(case: Case, tmp_path: Path) -> None:
    tokenizer, file, name = case
    dataset = run(tokenizer, (file,), config_of(file, name), tmp_path / "out")
    for found, want in zip(dataset, expected("trl")[case], strict=True):
        assert found["input_ids"].tolist() == want["input_ids"]
        assert found["labels"].tolist() == want.get("labels", want["input_ids"])
        if "seq_lengths" in want:
            assert found["seq_lens"].tolist() == want["seq_lengths"]


def preference_config(chat: bool, implicit: bool = False, **rules: Any) -> Row:
    template = {"template": "conversation"} if chat else {}
    sources = {
        side: {"sections": [{**PROMPT, **template}, {"field": side, "action": "train", **template}]}
        for side in ("chosen", "rejected")
    }
    return {
        "input": {"sources": sources, "implicit_prompt": implicit},
        "preprocessing": {"rows_without_loss": "keep", **({} if chat else JOINED), **rules},
        "output": {},
    }


def assert_sides(found: Row, want: Row) -> None:
    """The sides of a pair are a prompt that is not trained, and an answer that is."""
    for side in ("chosen", "rejected"):
        prompt, answer = want["prompt_ids"], want[f"{side}_ids"]
        assert found[side].tolist() == prompt + answer, want.get("row_id")
        assert found[f"{side}_mask"].astype(int).tolist() == [0] * len(prompt) + [1] * len(answer), want.get("row_id")


@pytest.mark.parametrize("case", cases_of("trl", "dpo"), ids="-".join)
def test_rows_of_dpo_trainer(case: Case, tmp_path: Path) -> None:
    tokenizer, file, _ = case
    dataset = run(tokenizer, (file,), preference_config("chat" in file, file.startswith("implicit")), tmp_path / "out")
    for found, want in zip(dataset, expected("trl")[case], strict=True):
        assert_sides(found, want)


def test_rows_of_reward_trainer(tmp_path: Path) -> None:
    wanted = expected("trl")["byte_bpe", "chat_preferences", "reward_128"]
    config = preference_config(True, max_seq_len=128, truncation_mode="drop")
    dataset = run("byte_bpe", ("chat_preferences",), config, tmp_path / "out")
    assert 0 < len(wanted) < len(records("chat_preferences"))
    for found, want in zip(dataset, wanted, strict=True):
        assert [found[side].tolist() for side in ("chosen", "rejected")] == [want["chosen_ids"], want["rejected_ids"]]
