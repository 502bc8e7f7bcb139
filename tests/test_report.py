"""What is trained is said: roles, drops, cuts; and a failure says what was found and what was asked for."""

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from beam_prep.config import PipelineConfig
from beam_prep.errors import RunError
from beam_prep.preview import preview
from beam_prep.shards.report import ConfigView, Findings, lines, role_warnings, warnings
from tests.conftest import ROOT

Run = Callable[..., Any]
CHATS = [json.loads(line) for line in (ROOT / "examples/data/chat.jsonl").read_text("utf-8").splitlines()]
CONFIGS = {path.stem: json.loads(path.read_text()) for path in (ROOT / "configs").glob("*.json")}


def config(name: str, **parts: dict[str, Any]) -> dict[str, Any]:
    """A config of the project with other values in some parts."""
    made = copy.deepcopy(CONFIGS[name])
    for part, values in parts.items():
        made[part] = values if part == "mask" else {**made.get(part, {}), **values}
    return made


def with_roles(**names: str) -> list[dict[str, Any]]:
    """The sample chats; every second one with other names of roles."""
    return [
        {**chat, "messages": [{**m, "role": names.get(m["role"], m["role"])} for m in chat["messages"]]}
        if place % 2
        else chat
        for place, chat in enumerate(CHATS)
    ]


def told(output: Path | str) -> list[str]:
    """The warnings in a `run.json`, but for those that its first records gave."""
    found: list[str] = json.loads(Path(output, "run.json").read_text())["warnings"]
    return [warning for warning in found if not re.search(r": in the first (\d+ )?records?, ", warning)]


def failing(run: Run, *arguments: Any, **options: Any) -> str:
    with pytest.raises(RunError) as caught:
        run(*arguments, **options)
    return str(caught.value)


# Roles


def test_roles_stand_in_the_manifest_and_add_up(output: Callable[[str], Any]) -> None:
    result = output("sft_conversation")
    roles, totals = result.manifest["roles"], result.manifest["totals"]
    messages = [message["role"] for chat in CHATS for message in chat["messages"]]
    assert {role: counts["messages"] for role, counts in roles.items()} == {
        role: messages.count(role) for role in ("assistant", "system", "user")
    }
    assert sum(counts["trained"] for counts in roles.values()) == roles["assistant"]["trained"]
    assert roles["assistant"]["trained"] == totals["trained"]["labels"]
    assert roles["user"]["tokens"] > 0
    assert told(result.path) == []


def test_roles_survive_the_reuse_of_blocks_and_end_where_max_items_ends(run: Run, tmp_path: Path) -> None:
    rows = with_roles(assistant="gpt") * 3
    options = {"cache_dir": str(tmp_path / "token_cache"), "block_bytes": 65536, "max_no_loss_rate": 1}
    settings = config("sft_chat", preprocessing={"max_items": 150})
    run(config("sft_chat"), rows, "whole", **options)
    few = run(settings, rows, "few", **options)
    assert json.loads(Path(few.output, "run.json").read_text())["blocks_reused"] > 1
    ledger = few.manifest["ledger"]
    seen = rows[: ledger["lines"] - ledger["not_read"]]
    assert few.manifest["roles"].keys() == {"assistant", "gpt", "system", "user"}
    for role, counts in few.manifest["roles"].items():
        assert counts["messages"] == sum(m["role"] == role for chat in seen for m in chat["messages"])


def test_a_role_of_the_mask_that_no_message_has_is_warned_of(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    result = run(config("sft_chat", mask={"asistant": "train", "user": "train"}), CHATS)
    assert told(result.output) == [
        "`mask` names the role 'asistant' (train), which no message has: did you mean 'assistant'?; found: 'assistant' "
        "(364 messages), 'user' (364 messages), 'system' (135 messages)",
        "364 messages with the role 'assistant', which `mask` does not name: mask_default is 'mask', 0 tokens of "
        "'assistant' are trained",
    ]
    assert all(f"warning: {warning}" in caplog.messages for warning in told(result.output))


@pytest.mark.parametrize(
    ("mask", "default", "roles", "warned"),
    [
        ({"assistant": "train"}, "mask", ["assistant", "user", "system", "tool", "developer"], []),
        ({"assistant": "train", "tool": "mask"}, "mask", ["assistant", "user"], ["tool"]),
        ({"user": "mask"}, "train", ["assistant", "user", "system"], ["system"]),
        ({"assistant": "last"}, "mask", ["Assistant", "user"], ["assistant", "Assistant"]),
        ({}, "train", ["assistant", "user"], ["user"]),
        (
            {"assistant": "train"},
            "mask",
            ["assistant", *(f"speaker {n}" for n in range(20))],
            ["speaker"] * 8 + ["12 "],
        ),
    ],
)
def test_which_roles_are_warned_of(mask: Any, default: str, roles: list[str], warned: list[str]) -> None:
    table = {role: {"messages": 3, "tokens": 9, "trained": 0} for role in roles}
    found = role_warnings(table, ConfigView(mask=mask, mask_default=default))
    assert len(found) == len(warned)
    assert all(name in warning for name, warning in zip(warned, found, strict=True))
    assert role_warnings(table, ConfigView(mask=None)) == []


def test_roles_that_the_default_rules_are_said_without_a_warning() -> None:
    roles = {
        "user": {"messages": 3, "tokens": 30, "trained": 0},
        "assistant": {"messages": 2, "tokens": 20, "trained": 15},
    }
    assert lines(Findings(roles, 60, 20, 0), ConfigView(mask={"assistant": "train"})) == [
        "'user': 3 messages, 30 tokens, none trained; not in `mask`, mask_default is 'mask'",
        "'assistant': 2 messages, 15 of 20 tokens trained (75.0% of what is trained)",
    ]


# Drops


def test_a_third_of_the_records_with_another_field_fails_the_run(run: Run, tmp_path: Path) -> None:
    rows = [{"id": n, "message": chat["messages"]} if n % 3 == 1 else chat for n, chat in enumerate(CHATS)]
    offset = len(json.dumps(rows[0])) + 1
    problem = failing(run, config("sft_chat"), rows)
    assert "87 of 260 records were dropped with nothing to train on (33.46%; 87 empty)" in problem
    assert (
        f"the first record of 'empty' is {tmp_path / 'input.jsonl'} (byte offset {offset}), with the fields 'id', "
        "'message'; the config asks for 'messages': 'messages' is not there, did you mean 'message'?"
    ) in problem


def test_the_limit_is_a_share_of_the_records_that_are_read(run: Run) -> None:
    good = {"prompt": "Say a.", "response": "a"}
    rows = [{}, {"prompt": "a"}] * 3 + [good] * 94
    assert "(6.00%; " in failing(run, config("sft_instruction"), rows)
    assert run(config("sft_instruction"), rows, max_no_loss_rate=0.06).manifest["ledger"]["kept"] == 94
    assert run(config("sft_instruction"), rows[2:], "fewer").manifest["ledger"]["kept"] == 94


def test_drops_that_the_config_asks_for_do_not_count(run: Run) -> None:
    rows = [{"text": "short"}] * 50 + [{"text": "long enough " * 20}] * 50
    assert run(config("pretrain"), rows).manifest["ledger"]["dropped"] == {"too_short": 50}
    settings = config("sft_chat", preprocessing={"max_seq_len": 100, "truncation_mode": "drop"})
    assert run(settings, CHATS, "cut").manifest["ledger"]["dropped"]["too_long"] > 100


# Failures say what was found


WRONG_ROLES = [{"role": "human", "content": "a"}, {"role": "gpt", "content": "b"}]
TEXT = {"text": "one two three " * 20}


@pytest.mark.parametrize(
    ("settings", "record", "start", "words"),
    [
        (
            config("sft_chat"),
            {"messages": WRONG_ROLES},
            "nothing is kept of 5 records (5 rows_without_loss): no token of any record is trained",
            "`mask` names the role 'assistant' (train), which no message has; found: 'gpt' (5 messages), 'human' (5 ",
        ),
        (
            config("sft_chat"),
            {"messages": [], "id": 1},
            "nothing is kept of 5 records (5 empty)",
            "the config asks for 'messages': 'messages' holds nothing",
        ),
        (
            config("sft_chat", mask={"asistant": "train"}, preprocessing={"rows_without_loss": "keep"}),
            CHATS[0],
            "nothing is trained on: ",
            "`mask` names the role 'asistant' (train), which no message has: did you mean 'assistant'?",
        ),
        (
            config("pretrain", preprocessing={"max_seq_len": 5, "truncation_mode": "drop"}),
            TEXT,
            "nothing is kept of 5 records (5 too_long): raise preprocessing.max_seq_len",
            "",
        ),
        (
            config("pretrain", preprocessing={"min_chars": 5000}),
            TEXT,
            "nothing is kept of 5 records (5 too_short): lower preprocessing.min_chars",
            "",
        ),
    ],
)
def test_an_output_of_nothing_says_what_was_found_and_asked_for(
    run: Run, settings: dict[str, Any], record: dict[str, Any], start: str, words: str
) -> None:
    problem = failing(run, settings, [record] * 5)
    assert problem.startswith(start)
    assert words in problem


@pytest.mark.parametrize(
    ("name", "bad", "message"),
    [
        (
            "sft_chat",
            {"messages": [{"role": "user", "content": [{"type": "image", "url": "x"}]}]},
            "not_text: 'messages[0].content[0]' is an image (type 'image'): beam_prep is for text",
        ),
        ("grpo", {"prompt": "a", "responses": ["b"], "rewards": [1]}, "wrong_type: field 'prompt' is a string"),
    ],
)
def test_a_failure_has_the_first_rejects_message_with_file_and_offset(
    run: Run, tmp_path: Path, name: str, bad: dict[str, Any], message: str
) -> None:
    good = CHATS[:3] if name == "sft_chat" else []
    problem = failing(run, config(name), [*good, bad, bad])
    offset = sum(len(json.dumps(each)) + 1 for each in good)
    where = f"the first reject is {tmp_path / 'input.jsonl'}, line {len(good) + 1} (byte offset {offset}): "
    assert where + message in problem


# Cuts


def test_tokens_that_are_cut_off_are_a_share_and_above_5_percent_a_warning(run: Run) -> None:
    text = {"text": "one two three four five six seven eight nine ten " * 20}
    whole = run(config("pretrain"), [text] * 3, "whole")
    tokens = whole.manifest["totals"]["tokens"]["sequence"]
    assert told(whole.output) == []
    length = tokens // 3 * 3 // 4
    lost = tokens - 3 * length
    said = f"{lost:,} tokens were cut off, {lost / tokens:.1%} of all: raise preprocessing."
    cut = run(config("pretrain", preprocessing={"max_seq_len": length}), [text] * 3, "cut")
    (warning,) = told(cut.output)
    assert warning.startswith(f"{said}max_seq_len ")
    assert "truncation_mode 'chunk'" in warning
    packing = {"packing_strategy": "bfd", "max_packed_len": length}
    packed = run(config("pretrain", preprocessing=packing), [text] * 3, "packed")
    (warning,) = told(packed.output)
    assert warning.startswith(f"{said}max_packed_len (now {length:,})")  # what packing cuts is counted once


def test_small_shares_are_no_warning() -> None:
    manifest = {"totals": {"rows": 1, "tokens": {"x": 960}, "trained": {}}, "counters": {"truncated_tokens": 40}}
    assert warnings(Findings.of(manifest), ConfigView()) == []
    assert lines(Findings.of(manifest), ConfigView()) == ["cut off: 40 tokens, 4.0% of all"]


# Before a run


def test_a_preview_warns_as_the_run_does(tmp_path: Path, capsys: pytest.CaptureFixture[str], run: Run) -> None:
    settings = config("sft_chat", mask={"asistant": "train", "user": "train"}, preprocessing={"max_seq_len": 90})
    result = run(settings, CHATS, max_no_loss_rate=1)
    preview(str(tmp_path / "input.jsonl"), PipelineConfig.from_dict(settings), str(ROOT / "examples/tokenizer"))
    out = capsys.readouterr().out
    assert len(told(result.output)) == 3
    for warning in told(result.output):
        assert f"warning: {warning}\n" in out


def test_each_side_of_a_pair_counts_as_a_conversation_with_tools() -> None:
    (said,) = warnings(Findings(counters={"tools_not_written": 6}), ConfigView())
    assert said.startswith("the chat template does not write the tools of 6 conversations: ")
