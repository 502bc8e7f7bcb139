"""Every config in configs/ loads, runs on its sample, gives exactly its columns, and reads back; what those for whole
conversations and for prompts with completions train in their samples, as text.
"""

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import beam_prep as bp
from beam_prep.config import PipelineConfig
from beam_prep.formats.manifest import UNLISTED
from tests.conftest import ROOT, records_of
from tests.engines.jobs import JOBS, run

LABELS = {"input_ids": "int32", "labels": "int32"}
SIDES = {"chosen": "int32", "chosen_mask": "int32", "rejected": "int32", "rejected_mask": "int32"}

ROLLOUTS = {"response_ids": "int32", "loss_mask": "int32", "logprobs": "float32", "prompt_ids": "int32"}
ROLLOUTS |= {"rewards": "float32", "policy_version": "int64"}

# Config -> sample in examples/data, columns with dtypes. The first five are those of seed document 001.
CONFIGS = {
    "sft_chat": ("chat", {"sequence": "int32", "loss_mask": "bool"}),
    "sft_instruction": ("instruction", {"sequence": "int32", "loss_mask": "int32"}),
    "pretrain": ("text", {"sequence": "int32"}),
    "pretrain_chunks": ("text", {"sequence": "int32"}),
    "dpo": ("preference", SIDES),
    "grpo": ("rollouts", {"prompts": "int32", "responses": "int32", "masks": "int32", "rewards": "float32"}),
    "sft_conversation": ("chat", LABELS),
    "sft_prompt_completion": ("more/prompt_completion", LABELS),
    "sft_last_turn_shifted": ("chat", LABELS),
    "sft_padded": ("chat", {**LABELS, "attention_mask": "int32"}),
    "sft_packed": ("chat", {**LABELS, "position_ids": "int32", "seq_lengths": "int32"}),
    "sharegpt": ("more/sharegpt", LABELS),
    "tools": ("more/tools", LABELS),
    "dpo_conversation": ("preference", SIDES),
    "grpo_tokens": ("more/rollout_tokens", ROLLOUTS),
    "rlvr": ("more/rlvr", {"prompt_ids": "int32", "answer": "uint8", "verifier": "uint8"}),
}
Outputs = Callable[[str], bp.Dataset]

DROPPED = {"pretrain": {"too_short": 3}, "pretrain_chunks": {"too_short": 3}}


def lengths(values: np.ndarray | bp.Ragged) -> list[int]:
    return values.lengths.tolist() if isinstance(values, bp.Ragged) else [len(values)]


def sample(name: str) -> Path:
    return ROOT / "examples" / "data" / f"{CONFIGS[name][0]}.jsonl"


DIGESTS = ROOT / "tests" / "digests.json"


def digest(output: Path) -> str:
    """sha256 over the names and bytes of an output's data files: all but what names versions, places and times."""
    files = [path for path in sorted(output.rglob("*")) if path.is_file() and path.parent.name != "tokenizer"]
    data = [path for path in files if path.name not in ("manifest.json", *UNLISTED)]
    # Their bytes are those of a version of their library.
    data = [path for path in data if path.suffix not in (".array_record", ".h5", ".parquet")]
    assert data
    return hashlib.sha256(b"".join(path.name.encode() + b"\0" + path.read_bytes() for path in data)).hexdigest()


@pytest.fixture(scope="module", params=CONFIGS)
def name(request: pytest.FixtureRequest) -> str:
    """Of the module: the tests of a config follow each other, so that one process runs it for all of them."""
    return str(request.param)


def test_the_bytes_are_those_of_earlier_versions(output: Outputs, name: str) -> None:
    """A change of these digests is a change of every user's data: it belongs into CHANGELOG.md, with the reason."""
    assert digest(Path(output(name).path)) == json.loads(DIGESTS.read_text())[name]


@pytest.mark.parametrize("name", JOBS)
def test_the_bytes_of_the_jobs_that_all_engines_run_are_those_of_earlier_versions(name: str, tmp_path: Path) -> None:
    """The jobs of docs/runners.md. On each engine they give the bytes of this process: tests/engines/test_table.py."""
    job = JOBS[name]
    run(job.config, job.write_input(tmp_path), tmp_path / "out", ["--runner=FnApiRunner"])
    assert digest(tmp_path / "out") == json.loads(DIGESTS.read_text())[name]


def test_every_config_is_here() -> None:
    assert {path.stem for path in (ROOT / "configs").glob("*.json")} == CONFIGS.keys()


def test_config_runs_on_its_sample(name: str, output: Outputs) -> None:
    columns = CONFIGS[name][1]
    config = bp.PipelineConfig.from_json(ROOT / "configs" / f"{name}.json")
    assert config.written() == columns
    assert len(config.warnings) == (name == "sft_instruction")  # no separator, no EOS

    ds = output(name)

    ds.verify()
    ledger = ds.manifest["ledger"]
    assert ledger["lines"] == len(sample(name).read_bytes().splitlines())
    assert ledger["kept"] == ledger["lines"] - sum(ledger["dropped"].values())
    assert (ledger["dropped"], ledger["rejected"]) == (DROPPED.get(name, {}), {})
    if config.preprocessing.packing_strategy == "none":
        assert len(ds) == ledger["kept"]
    assert {column.name: column.dtype for column in ds.schema} == columns
    for row in ds:
        for column in ds.schema:
            values = row[column.name]
            assert (values.flat if isinstance(values, bp.Ragged) else values).dtype == column.dtype
            if column.role in ("mask", "labels"):
                assert lengths(values) == lengths(row[str(column.of)])


# What is trained

END = "<|im_end|>"
COLUMN = re.compile(r"`(\w+)`")

Record = dict[str, Any]


def answers(record: Record) -> str:
    """Every turn of the assistant, with its end token."""
    return "".join(message["content"] + END for message in record["messages"] if message["role"] == "assistant")


def last_answer(record: Record) -> str:
    return f"{record['messages'][-1]['content']}{END}"


def sharegpt_answers(record: Record) -> str:
    return "".join(item["value"] + END for item in record["conversations"] if item["from"] == "gpt")


# Config -> the text that a record of its sample trains.
CASES: dict[str, Callable[[Record], str]] = {
    "sft_conversation": answers,
    "sft_prompt_completion": lambda record: str(record["completion"]) + END,
    # What follows the prompt is trained, so the line end that the template writes behind the answer too.
    "sft_last_turn_shifted": lambda record: f"{last_answer(record)}\n",
    # The prompt ends in "ASSISTANT:", so the space belongs to the answer.
    "sft_padded": lambda record: f" {last_answer(record)}",
    "sharegpt": sharegpt_answers,
}


@pytest.mark.parametrize("name", CASES)
def test_what_the_assistant_says_is_trained_of_every_row(name: str, output: Outputs) -> None:
    dataset = output(name)
    wanted = [CASES[name](record) for record in records_of(sample(name))]
    assert [dataset.decode(index, "labels") for index in range(len(dataset))] == wanted
    # Nothing cut, every prompt the beginning of its row, no second BOS.
    assert dataset.manifest["counters"] == {}
    for row in dataset if name != "sft_last_turn_shifted" else ():
        trained = row["labels"] != -100
        assert np.array_equal(row["labels"][trained], row["input_ids"][trained])


def test_packed_rows_hold_every_conversation_once(output: Outputs) -> None:
    dataset = output("sft_packed")
    assert dataset.tokenizer is not None
    found = []
    for row in dataset:
        assert len(row["input_ids"]) == row["seq_lengths"].sum() <= 2048
        assert row["position_ids"].tolist() == [place for length in row["seq_lengths"] for place in range(length)]
        for labels in np.split(row["labels"], np.cumsum(row["seq_lengths"])[:-1]):
            found.append(dataset.tokenizer.decode(labels[labels != -100]))
    assert sorted(found) == sorted(map(answers, records_of(sample("sft_packed"))))
    assert len(dataset) < len(found) / 10


def test_the_page_on_configs_lists_every_config_with_its_columns() -> None:
    page = (ROOT / "docs" / "which_config.md").read_text("utf-8")
    rows = [line.strip("|").split("|") for line in page.splitlines() if line.startswith("| ") and ".json`" in line]
    listed = {config.strip(" `"): COLUMN.findall(names) for _, config, _, names, _ in rows}
    configs = sorted((ROOT / "configs").glob("*.json"))
    assert listed == {path.name: list(PipelineConfig.from_json(path).written()) for path in configs}
