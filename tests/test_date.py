"""The date that a chat template asks for: fixed by the config, or a refusal before anything runs."""

from datetime import date
from pathlib import Path
from typing import Any

import pytest

import beam_prep as bp
from beam_prep.errors import TokenizerError
from tests.conftest import TOKENIZER_PATH, Run, run_of, says

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ strftime_now('%d %B') }}{{ m.content }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
RULES = bp.TextRules(date="2024-02-29")
CHATS = [{"messages": says(user=f"q{n}", assistant=f"a{n}")} for n in range(9)]


def config(day: str | None, mode: Any = "conversation", action: str = "train") -> dict[str, Any]:
    section = {"field": "messages", "action": action, "template": mode}
    return {"input": {"chat_template": TEMPLATE, "sections": [section], **({"date": day} if day else {})}}


@pytest.mark.parametrize("mode", ["message", "conversation"])
def test_a_run_writes_the_date_of_its_config(mode: str, run: Run) -> None:
    result = run(config("2024-02-29", mode), CHATS)
    dataset = bp.open(result.output)
    assert str(dataset.decode(0)).removeprefix("<|bos|>") == (
        "<|im_start|>user\n29 Februaryq0<|im_end|>\n<|im_start|>assistant\n29 Februarya0<|im_end|>\n"
    )
    assert len(dataset) == 9
    assert result.manifest["config"]["input"]["date"] == "2024-02-29"


def test_without_a_date_nothing_runs(run: Run, tmp_path: Path) -> None:
    line = f'add "date": "{date.today()}" to "input" in the config'
    with pytest.raises(TokenizerError, match=line):
        run(config(None), CHATS)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["input.jsonl"]


def test_a_chain_by_hand_follows() -> None:
    tokenizer = bp.Tokenizer.load(TOKENIZER_PATH).with_template(TEMPLATE)
    given = bp.PipelineConfig.from_dict(config("2024-02-29")).input
    undated = bp.PipelineConfig.from_dict(config(None)).input
    with pytest.raises(TokenizerError, match=r'TextRules\(date="'):
        bp.ApplyTemplate(undated, tokenizer)
    for made in (bp.ApplyTemplate(given, tokenizer), bp.ApplyTemplate(undated, tokenizer, rules=RULES)):
        rows = bp.Tokenize(tokenizer).step()(made.step()(bp.testing.records(CHATS)))["sequence"].to_lists()
        assert tokenizer.decode(rows[8]).endswith("assistant\n29 Februarya8<|im_end|>\n")


def test_the_date_names_the_blocks_of_a_cache(run: Run, tmp_path: Path) -> None:
    cache_dir = str(tmp_path / "token_cache")
    for day in ("2024-02-29", "2024-03-01"):
        result = run(config(day), CHATS, day, cache_dir=cache_dir)
        assert run_of(result.output)["blocks_reused"] == 0
        assert f"user\n{day[-2:]} " in bp.open(result.output).decode(0)
