"""A role that is trained without an end token is told at the start of a run, and an end token that is there twice."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

import beam_prep as bp
from beam_prep.audit.of_tokens import roles_without_end
from beam_prep.config import PipelineConfig
from beam_prep.sample import sample_of
from tests.chat.trained import CHATML
from tests.conftest import TOKENIZER_PATH, Log, Run, chat_config, run_of, says, shared, text_config

MARKED = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
    "{% endgeneration %}{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
)
BARE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
BARE += "{% if add_generation_prompt %}assistant: {% endif %}"
ROWS = [{"messages": says(user="Why?", assistant="For the sea.")}] * 3
SAYS = "no end token is trained behind what {!r} says, so a model does not learn to stop: "


def config(template: str | None, mask: Any = None, **more: Any) -> dict[str, Any]:
    given = chat_config(output={"columns": "labels"})
    given["mask"] = mask or given["mask"]
    given["input"] |= {} if template is None else {"chat_template": template}
    return given | more


def found(tokenizer: Path, template: str | None, mask: Any = None, rows: Any = ROWS, **more: Any) -> list[str]:
    given = PipelineConfig.from_dict(config(template, mask, **more))
    sample = sample_of([bp.testing.records(rows)], given, bp.Tokenizer.load(tokenizer), [])
    return [f"{finding.says}. To mend it: {finding.mend}" for finding in roles_without_end(sample)]


@pytest.mark.parametrize(
    ("tokenizer", "template", "roles", "says"),
    [
        ("gpt2", CHATML, ["assistant"], "if that text is meant as the end: make it a special token"),
        (None, BARE, ["user", "assistant"], "a template that writes '<|im_end|>' behind each of its turns"),
        (None, MARKED, ["assistant"], "behind that {% endgeneration %}"),
    ],
    ids=["a mark that is plain text", "no end", "a mark before the end token"],
)
def test_each_role_without_an_end_is_told(tokenizer: str | None, template: str, roles: list[str], says: str) -> None:
    folder = shared("tokenizers", tokenizer) if tokenizer else TOKENIZER_PATH
    lines = found(folder, template, dict.fromkeys((*roles, "system"), "train"))
    assert len(lines) == len(roles)
    for line, role in zip(lines, roles, strict=True):
        assert line.startswith(SAYS.format(role) + "its turns end with '")
        assert says in line.partition("To mend it: ")[2]


def test_nothing_is_told_of_turns_that_end_or_whose_ends_are_masked_on_purpose() -> None:
    assert found(TOKENIZER_PATH, None) == []
    assert found(TOKENIZER_PATH, CHATML, mask_options={"eos": "mask"}) == []
    sections = [{"field": "text", "action": "train"}, {"field": "messages", "action": "$role", "template": "message"}]
    rows = [{"text": "Said:", "messages": ROWS[0]["messages"][::-1]}]
    assert found(TOKENIZER_PATH, None, rows=rows, input={"sections": sections, "chat_template": CHATML}) == []


def test_an_end_token_need_not_be_flagged_special(tmp_path: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_text(shared("tokenizers", "chatml-12k", name).read_text(encoding="utf-8"))
    parsed = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))
    for token in parsed["added_tokens"]:
        token["special"] = token["special"] and token["content"] not in ("<|im_start|>", "<|im_end|>")
    (tmp_path / "tokenizer.json").write_text(json.dumps(parsed))
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text(encoding="utf-8"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**settings, "eos_token": "<|endoftext|>"}))
    assert found(tmp_path, CHATML) == []


def test_an_eos_token_that_is_only_found_behind_a_blank_is_told_with_the_setting_that_mends_it(tmp_path: Path) -> None:
    """tokenizer.json of 2023: the normaliser writes a blank in front of a `normalized` token, too."""
    parsed = json.loads(shared("tokenizers", "mistral-v1", "tokenizer.json").read_text(encoding="utf-8"))
    blank = [{"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]
    tokens = [{**token, "normalized": True} for token in parsed["added_tokens"]]
    made = {**parsed, "added_tokens": tokens, "pre_tokenizer": None}
    made["normalizer"] = {"type": "Sequence", "normalizers": blank}
    (tmp_path / "tokenizer.json").write_text(json.dumps(made))
    (tmp_path / "tokenizer_config.json").write_text('{"bos_token": "<s>", "eos_token": "</s>"}')
    template = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{{ eos_token }}{% endfor %}"
    (line,) = found(tmp_path, template + "{% if add_generation_prompt %}[assistant]{% endif %}")
    assert "its turns end with 'For the sea.</s>'" in line
    assert "with its normalized, single_word and split_special_tokens" in line


def test_a_run_says_it_at_its_start_and_in_run_json(run: Run, tmp_path: Path, caplog: Log) -> None:
    run(config(BARE), ROWS)
    (told,) = [record.getMessage() for record in caplog.records if "no end token" in record.getMessage()]
    assert f"input.jsonl: in 3 records, {SAYS.format('assistant')}" in told
    assert run_of(tmp_path / "out")["warnings"][0] == told.removeprefix("warning: ")


def test_a_run_says_which_fields_nothing_reads(run: Run, caplog: Log) -> None:
    caplog.set_level("INFO", "beam_prep")
    blocks = {"thinking_blocks": [{"thinking": "So."}]}
    rows = [{**row, "id": 7, "messages": [message | blocks for message in row["messages"]]} for row in ROWS]
    run(config(CHATML), rows)
    assert "fields that nothing reads: 'id', 'messages[].thinking_blocks'" in caplog.messages


def test_a_run_says_that_the_tokenizer_adds_the_eos_that_the_config_adds_too(run: Run, caplog: Log) -> None:
    given = text_config(preprocessing={"min_chars": 1, "eos": "if_missing"})
    run(given, [{"text": "By the sea."}], tokenizer_path=str(shared("tokenizers", "t5-small")))
    (told,) = [record.getMessage() for record in caplog.records if "follows itself" in record.getMessage()]
    assert '"eos": "never"}: this tokenizer adds its EOS by itself' in told


def test_a_file_beside_its_compressed_form_is_told(run: Any, tmp_path: Path) -> None:
    for name, packed in (("a.jsonl", bytes), ("a.jsonl.gz", gzip.compress), ("b.jsonl", bytes)):
        (tmp_path / name).write_bytes(packed(json.dumps(ROWS[0]).encode()))
    told = run(config(None), tuple(sorted(tmp_path.glob("*.jsonl*")))).output
    warnings = run_of(told)["warnings"]
    assert f"{tmp_path}/a.jsonl is read plain and compressed: leave out a copy" in warnings
    assert not any("b.jsonl is" in warning for warning in warnings)
