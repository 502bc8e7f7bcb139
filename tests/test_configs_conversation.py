"""The configs for whole conversations and for prompts with completions: what each trains in its sample, as text."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import beam_prep as bp
from beam_prep.config import PipelineConfig
from tests.conftest import ROOT, records_of
from tests.test_configs import sample

END = "<|im_end|>"
COLUMN = re.compile(r"`(\w+)`")

Record = dict[str, Any]
Outputs = Callable[[str], bp.Dataset]


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
