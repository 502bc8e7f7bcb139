"""What an audit says of the project's own data, of texts and pairs, and how the command ends."""

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from beam_prep.audit import CHECKS, Audit, audit
from beam_prep.config import PipelineConfig
from tests.audit.faults import FAULTS
from tests.conftest import (
    ROOT,
    TOKENIZER_PATH,
    Command,
    Patch,
    chats,
    config_of,
    records_of,
    says,
    shared,
    text_config,
    write_lines,
)

CHATS = "examples/data/chat.jsonl"
ENDED = text_config(preprocessing={"eos": "if_missing"})
OWN = {
    "sft_conversation": (CHATS, set()),
    "sft_chat": (CHATS, set()),
    "sft_packed": (CHATS, set()),
    "sft_padded": (CHATS, set()),
    "sft_last_turn_shifted": (CHATS, set()),
    "sharegpt": ("examples/data/more/sharegpt.jsonl", set()),
    "tools": ("examples/data/more/tools.jsonl", set()),
    "pretrain_chunks": ("examples/data/text.jsonl", set()),
    "sft_prompt_completion": ("examples/data/more/prompt_completion.jsonl", set()),
    "dpo": ("examples/data/preference.jsonl", set()),
    "dpo_conversation": ("examples/data/preference.jsonl", set()),
    "grpo_tokens": ("examples/data/more/rollout_tokens.jsonl", set()),
    "rlvr": ("examples/data/more/rlvr.jsonl", set()),
    # These write no EOS: docs/which_config.md says so.
    "pretrain": ("examples/data/text.jsonl", {"no_end"}),
    "sft_instruction": ("examples/data/instruction.jsonl", {"no_end", "config"}),
    "grpo": ("examples/data/rollouts.jsonl", {"no_end"}),
}


def names(found: Audit) -> set[str]:
    return {finding.name for finding in found.findings}


def of_records(folder: Path, records: list[Any], config: dict[str, Any], tokenizer: Path = TOKENIZER_PATH) -> Audit:
    path = write_lines(folder / "input.jsonl", records)
    return audit(str(path), PipelineConfig.from_dict(config), tokenizer)[None]


@pytest.mark.parametrize("name", OWN)
def test_nothing_wrong_is_said_of_the_projects_own_data(name: str, tokenizer_path: str) -> None:
    data, expected = OWN[name]
    found = audit(str(ROOT / data), ROOT / "configs" / f"{name}.json", tokenizer_path)[None]
    assert names(found) == expected


# Thresholds have this share of a real data set in mind; a finding here is true, and was looked at.
REAL = {
    ("sft_conversation", "qwen2.5", "chat_messages_gsm8k_system.jsonl"): set(),
    ("sft_conversation", "gpt2", "chat_messages_sgd.jsonl.gz"): set(),
    ("sharegpt", "qwen2.5", "sharegpt_vicuna_dummy.jsonl"): set(),
    ("tools", "qwen2.5", "tool_messages_glaive_en.jsonl"): {"duplicates", "dropped_rows_without_loss"},
    ("dpo_conversation", "qwen2.5", "dpo_hh_messages.jsonl"): {"empty_turns"},
    ("pretrain_chunks", "t5-small", "text_libreoffice_help_ru.jsonl.gz"): {"double_end", "unknown_tokens"},
}


@pytest.mark.long
@pytest.mark.parametrize(("config", "tokenizer", "data"), REAL)
def test_of_real_data_only_what_is_true_is_said(config: str, tokenizer: str, data: str) -> None:
    path = shared("data", data)
    found = audit(str(path), ROOT / "configs" / f"{config}.json", shared("tokenizers", tokenizer))[None]
    assert names(found) == REAL[config, tokenizer, data]


# Texts and pairs.


def test_a_text_without_eos_and_a_doubled_one(tmp_path: Path) -> None:
    records = [{"text": f"Page {number} is about the sea, the wind and the {number} ships."} for number in range(40)]
    assert names(of_records(tmp_path, records, text_config())) == {"no_end"}
    assert names(of_records(tmp_path, records, ENDED)) == set()
    ended = [{"text": record["text"] + "<|im_end|>"} for record in records]
    (found,) = of_records(tmp_path, ended, text_config(preprocessing={"eos": "always"})).findings
    assert (found.name, found.count) == ("double_end", 40)
    assert '"eos": "if_missing"' in found.mend


def test_a_vocabulary_of_four_letters_is_audited(tmp_path: Path) -> None:
    letters = tokenizers.Tokenizer(tokenizers.models.BPE({"<s>": 0, "A": 1, "C": 2, "G": 3, "T": 4}, []))
    letters.add_special_tokens(["<s>"])
    letters.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"bos_token": "<s>"}')
    records = [{"text": "GATTACA" * (8 + number)} for number in range(9)]
    assert names(of_records(tmp_path, records, text_config(), tmp_path)) == {"no_end"}


def test_a_token_that_reaches_over_the_border_of_prompt_and_answer(tmp_path: Path) -> None:
    records = [{"prompt": f"Question {n}: what is it?\nAnswer: ", "completion": f"word {n}"} for n in range(9)]
    (found,) = of_records(tmp_path, records, config_of("sft_prompt_completion")).findings
    assert found.name == "prompt_not_prefix"
    assert "is trained whole" in found.says
    assert "beginning of the answer" in found.mend


def test_a_border_that_the_template_writes_is_no_mistake_of_the_data(tmp_path: Path) -> None:
    template = "{% for m in messages %}{{ m.role + ': ' }}{{ m.content + eos_token }}{% endfor %}"
    template += "{{ 'assistant: ' if add_generation_prompt }}"
    records = [{"prompt": says(user=f"What is {number}?"), "completion": f"word {number}"} for number in range(9)]
    given = {"input": {**chats(prompt="mask", completion="train"), "chat_template": template}}
    found = {each.name: each.mend for each in of_records(tmp_path, records, given).findings}
    assert found["prompt_not_prefix"].startswith("nothing, where the template writes the border")


def test_a_space_of_width_zero_between_words_of_khmer_is_no_control_character(tmp_path: Path) -> None:
    words = "\u1797\u17b6\u179f\u17b6\u200b\u1781\u17d2\u1798\u17c2\u179a\u200b"
    for text, wanted in ((f"{words}7\u200b" * 9 + words, False), (f"\u200bword {words * 9}", True)):
        found = names(of_records(tmp_path, [{"text": text}], text_config()))
        assert ("control_characters" in found) == wanted


def test_what_the_config_drops_is_a_finding_if_it_is_much(tmp_path: Path) -> None:
    long = "A text about the sea, the wind, and the ships that come home, number "
    records: list[Any] = [{"text": f"{long}{number}"} for number in range(90)] + [{"text": "short"}] * 10
    found = of_records(tmp_path, records, ENDED)
    assert names(found) == {"dropped_too_short", "duplicates"}
    records = records[:90] + [{"text": f"short {number}"} for number in range(4)]
    assert names(of_records(tmp_path, records, ENDED)) == set()


def test_records_that_differ_in_an_id_that_is_kept_are_copies(tmp_path: Path) -> None:
    records = [{"text": f"Page {n % 50} is about the sea, the wind and the harbour.", "id": n} for n in range(90)]
    config = text_config(preprocessing={"eos": "if_missing"}, output={"keep_fields": ["id"]})
    assert names(of_records(tmp_path, records, config)) == {"duplicates"}


@pytest.mark.parametrize(("pairs", "frequent", "share"), [(600, 0, 0.06), (20, 20, 0.0)])
def test_the_share_of_copies_is_that_of_the_input(pairs: int, frequent: int, share: float, tmp_path: Path) -> None:
    written = [f"Page {number} is about the sea, the wind and the {number} ships." for number in range(10_000)]
    written[:pairs] = written[5000 : 5000 + pairs]
    written[2000 : 2000 + frequent] = ["This page has moved. Go to the new address, please."] * frequent
    texts_of = [written[number * 7919 % 10_000] for number in range(10_000)]  # in no order
    found = of_records(tmp_path, [{"text": text} for text in texts_of], ENDED)
    assert names(found) == ({"duplicates"} if share else set())
    if share:
        said = re.search(r"that is ([\d.]+)% of the input", found.findings[0].says)
        assert said is not None
        assert float(said[1]) / 100 == pytest.approx(share, rel=0.4)


def test_unread_fields_that_repeat_what_is_read_are_no_finding(tmp_path: Path) -> None:
    talks = records_of(ROOT / CHATS)
    config = config_of("sft_conversation")
    for chat in talks:
        chat["prompt"] = next(message["content"] for message in chat["messages"] if message["role"] == "user")
    found = of_records(tmp_path, talks, config)
    assert found.findings == ()
    assert "'prompt'" in found.notes[0]


def test_system_messages_results_and_answers_of_reasoning_may_have_no_text(tmp_path: Path) -> None:
    config = config_of("sft_conversation")
    head, asked, result = says(system="", user="When?", tool="")
    silent = [{**says(assistant="")[0], key: "So"} for key in ("reasoning", "thinking")]
    silent += [result, {"role": "assistant", "parts": [{"text": "At noon."}]}]
    assert "empty_turns" not in names(of_records(tmp_path, [{"messages": [head, asked, *silent]}], config))
    assert "empty_turns" in names(of_records(tmp_path, [{"messages": [asked, {**asked, "content": ""}]}], config))
    of_another_type = {**asked, "role": "assistant", "content": {"thinking": "so", "answer": "Yes."}}
    found = names(of_records(tmp_path, [{"messages": [asked, of_another_type]}], config))
    assert ("empty_turns" in found, "rejected_wrong_type" in found) == (False, True)


def test_tools_beside_messages_that_are_rendered_alone_are_not_read(tmp_path: Path) -> None:
    tools = [{"type": "function", "function": {"name": "clock", "description": "Says the time."}}]
    records = [{"messages": says(user="When?", assistant="At nine."), "tools": tools}]
    found = of_records(tmp_path, records, config_of("sft_chat"))
    (finding,) = (each for each in found.findings if each.name == "field_not_read")
    assert finding.mend.startswith('give "template": "conversation" to the section of the messages')


def test_keys_and_variables_that_the_template_leaves_out_are_named(tmp_path: Path) -> None:
    config = config_of("sft_conversation")
    asked, plan = says(user="When?", assistant="At nine.")
    plan |= {"plan": "Look at the clock", "again": ["At  nine."], "n": "x", "steps": [{"name": "look"}]}
    said = {"messages": [{**asked, "agent": "main"}, plan]}
    kwargs = {"instructions": "Be very brief.", "thinking": True}
    found = of_records(tmp_path, [{**said, "chat_template_kwargs": kwargs}], config)
    unread = "'messages[].plan', 'messages[].steps', 'chat_template_kwargs.instructions'"
    assert found.notes == (f"fields that nothing reads: {unread}",)
    assert of_records(tmp_path, [{**said, "chat_template_kwargs": json.dumps(kwargs)}], config).notes == found.notes
    written = "{{ m.role ~ m.content ~ m.plan ~ m.steps ~ eos_token }}"
    config["input"]["chat_template"] = "{{ instructions }}{% for m in messages %}" + written + "{% endfor %}"
    assert of_records(tmp_path, [{**said, "chat_template_kwargs": kwargs}], config).notes == ()


# The command.


def test_the_exit_code_says_whether_something_was_found(command: Command) -> None:
    good = ["audit", ROOT / CHATS, "-c", ROOT / "configs/sft_conversation.json", "--tokenizer_path", TOKENIZER_PATH]
    assert command(*good).endswith("nothing found\n")
    bad = ["audit", ROOT / "examples/data/text.jsonl", "-c", ROOT / "configs/pretrain.json", *good[4:]]
    assert "1. no_end: " in command(*bad, code=1)
    (finding,) = json.loads(command(*bad, "--json", code=1))["findings"]
    assert finding["name"] == "no_end"
    assert finding["example"]["offset"] == 0
    assert finding["share_of_tokens"] > 0.9
    command(*good, "--sample", "0", code=2)
    command("audit", "nowhere.jsonl", *good[2:], code=3)
    command(*good[:-1], ROOT / "docs", code=2)


def test_a_terminal_gets_lines_that_fit_and_the_tokens_of_all_columns(command: Command, monkeypatch: Patch) -> None:
    monkeypatch.chdir(ROOT)  # a path is not broken
    monkeypatch.setenv("COLUMNS", "50")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    job = ["-c", "configs/grpo.json", "--tokenizer_path", TOKENIZER_PATH]
    lines = command("audit", "examples/data/rollouts.jsonl", *job, code=1).splitlines()
    assert "43 kept, 2,182 tokens (50.0% trained)" in lines
    assert [line for line in lines if len(line) > 50 and " " in line.strip()] == []


def test_the_docs_name_every_finding_and_every_check_is_tested() -> None:
    page = (ROOT / "docs" / "audit.md").read_text("utf-8")
    for name in {fault.finding for fault in FAULTS} | {name for _, expected in OWN.values() for name in expected}:
        shown = "rejected_<reason>" if name.startswith("rejected_") else name
        assert f"`{shown}`" in page or f"`{shown.replace('dropped_empty', 'dropped_<reason>')}`" in page, name
    assert len({fault.finding for fault in FAULTS}) >= 25
    assert len(CHECKS) == len(set(CHECKS))


@pytest.mark.parametrize(
    ("content", "mend"),
    [("<tool_call>{}</tool_call>", "nothing, if"), ("<think>Hm.</think>It", "nothing, if"), ("<|im_end|>", '"pre')],
)
def test_calls_and_reasoning_that_are_written_out_are_no_mistake(content: str, mend: str, tmp_path: Path) -> None:
    folder = shutil.copytree(ROOT / "examples" / "tokenizer", tmp_path / "tokenizer")
    parsed = json.loads((folder / "tokenizer.json").read_text())
    rules = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    first = len(parsed["model"]["vocab"]) + 8
    for number, token in enumerate(("<tool_call>", "</tool_call>", "<think>", "</think>"), first):
        parsed["added_tokens"].append({"id": number, "content": token, **rules})
    (folder / "tokenizer.json").write_text(json.dumps(parsed))
    template = folder / "chat_template.jinja"
    template.write_text(template.read_text() + "{% if false %}<tool_call></tool_call>{% endif %}")
    records = [{"messages": says(user="What is it?", assistant=content)}]
    found = of_records(tmp_path, records, config_of("sft_conversation"), folder)
    (finding,) = (each for each in found.findings if each.name == "control_tokens")
    assert finding.mend.startswith(mend)
