"""`output.domain_key`: texts are domains; numbers and booleans are none, and said; lists and objects are rejects."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import beam_prep as bp
from beam_prep.cli import summary

TEXTS: dict[str, Any] = {
    "input": {"sections": [{"field": "text", "action": "train"}]},
    "preprocessing": {"min_chars": 1},
}
IDS: dict[str, Any] = {"input": {"adapter": "tokenized"}}
ROLLOUTS: dict[str, Any] = {"input": {"rollouts": {"response_ids": None}}, "preprocessing": {"truncation_mode": "drop"}}
PARTS: dict[str, Any] = {"text": "Good evening.", "input_ids": [5, 6, 7], "prompt_ids": [5, 6]}

NAMED = [
    (2024, "__default__"),
    (2024.5, "__default__"),
    (10**30, "__default__"),
    (True, "__default__"),
    ("2024", "2024"),
    ("2024.5", "2024.5"),
    ("", ""),
    (None, "__default__"),
]


@pytest.mark.parametrize("config", [TEXTS, IDS, ROLLOUTS], ids=["texts", "ids", "rollouts"])
def test_a_text_is_a_domain_and_what_is_no_value_a_reject(
    config: dict[str, Any], run: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    records = [{**PARTS, "d": value} for value, _ in NAMED]
    records += [PARTS, {**PARTS, "d": [2024]}, {**PARTS, "d": {"year": 2024}}]
    done = run({**config, "output": {"domain_key": "d"}}, records, max_reject_rate=1)
    names = [name for _, name in NAMED]
    wanted = {name: names.count(name) for name in names}
    wanted["__default__"] += 1
    assert {shard["domain"]: shard["rows"] for shard in done.manifest["shards"]} == wanted
    assert done.manifest["domains"]["2024.5"] == "2024.5"  # its folder
    assert "\n  4 domains: , 2024, 2024.5, __default__" in summary(done.output, done.manifest)
    rejects = {reject["line"]: reject["reason"] for reject in bp.open(done.output).rejects()}
    assert rejects == {len(NAMED) + 2: "wrong_type", len(NAMED) + 3: "wrong_type"}
    said = (
        "output.domain_key 'd' is a number or a boolean (as 2024) in 4 of the first 11 records: these are in the domain"
    )
    assert said in caplog.text


def test_the_message_names_the_key_and_what_it_is_for() -> None:
    block = bp.testing.records([{**PARTS, "d": [2024]}])
    tokenizer = bp.Tokenizer.load("examples/tokenizer")
    output = bp.Output("ids", "ids", (bp.Section("text", "train"),))
    made = bp.ApplyTemplate([output], tokenizer, domain_key="d").step()(block)
    assert list(made.ledger.messages.values()) == [
        "field 'd' is a list, wanted a text: it names the record's domain (output.domain_key)"
    ]


def test_the_domain_of_a_group_comes_before_that_of_a_record(tmp_path: Path, tokenizer_path: str) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "Good evening.", "d": [1]}\n')
    group = {"files": [str(tmp_path / "a.jsonl")], "domain": "mine", **TEXTS["input"]}
    config = {**TEXTS, "input": {"groups": [group]}, "output": {"domain_key": "d"}}
    job = bp.Pipeline(
        bp.PipelineConfig.from_dict(config), None, output_dir=tmp_path / "out", tokenizer_path=tokenizer_path
    )
    manifest = job.run(["--runner=FnApiRunner"]).manifest
    assert manifest is not None
    assert list(manifest["domains"]) == ["mine"]
