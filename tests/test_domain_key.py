"""`output.domain_key`: texts are domains; numbers and booleans are none, and said; lists and objects are rejects."""

from pathlib import Path
from typing import Any

import pytest

from beam_prep.inspect.output import summary
from tests.chars import outcomes
from tests.conftest import Log, Run, prepared, text_config, write_lines

TEXTS = text_config(preprocessing={"min_chars": 1})
IDS: dict[str, Any] = {"input": {"adapter": "tokenized"}}
ROLLOUTS: dict[str, Any] = {"input": {"rollouts": {"response_ids": None}}, "preprocessing": {"truncation_mode": "drop"}}
PARTS: dict[str, Any] = {"text": "Good evening.", "input_ids": [5, 6, 7], "prompt_ids": [5, 6]}
VALUES = [2024, 2024.5, 10**30, True, "2024", "2024.5", "", None]
DOMAINS = [*["__default__"] * 4, "2024", "2024.5", "", "__default__"]


@pytest.mark.parametrize("config", [TEXTS, IDS, ROLLOUTS], ids=["texts", "ids", "rollouts"])
def test_a_text_is_a_domain_and_what_is_no_value_a_reject(config: dict[str, Any]) -> None:
    records = [PARTS, *({**PARTS, "d": value} for value in [*VALUES, [2024], {"year": 2024}])]
    batch = prepared({**config, "output": {"domain_key": "d"}}, records)
    assert batch.domain == ["__default__", *DOMAINS]
    assert outcomes(batch)[-2:] == ["wrong_type"] * 2
    assert next(iter(batch.ledger.messages.values())) == (
        "field 'd' is a list, wanted a text: it names the record's domain (output.domain_key)"
    )


def test_what_is_no_domain_is_said(run: Run, caplog: Log) -> None:
    records = [{**PARTS, "d": value} for value in VALUES]
    done = run({**TEXTS, "output": {"domain_key": "d"}}, records)
    assert {shard["domain"]: shard["rows"] for shard in done.manifest["shards"]} == {
        name: DOMAINS.count(name) for name in DOMAINS
    }
    assert "\n  4 domains: , 2024, 2024.5, __default__" in "\n".join(summary(done.output, done.manifest))
    assert "output.domain_key 'd' is a number or a boolean (as 2024) in 4 of 8 records: " in caplog.text


def test_a_key_that_no_record_has_is_said(run: Run, caplog: Log) -> None:
    given = {"domain_key": "meta.d", "keep_fields": ["idd", "id"]}
    run({**TEXTS, "output": given}, [{**PARTS, "id": "a", "meta": {"d": "web", "id": "a"}}] * 2)
    assert "output.domain_key 'meta.d' is in none of 2 records: they are in the domain '__default__'" in caplog.text
    assert "output.keep_fields 'idd' is in none of 2 records: the column is empty" in caplog.text
    assert "keep_fields 'id'" not in caplog.text


def test_the_domain_of_a_group_comes_before_that_of_a_record(run: Run, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [{"text": "Good evening.", "d": [1]}])
    group = {"files": [str(path)], "domain": "mine", **TEXTS["input"]}
    done = run({**TEXTS, "input": {"groups": [group]}, "output": {"domain_key": "d"}}, None)
    assert list(done.manifest["domains"]) == ["mine"]
