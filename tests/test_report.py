"""What is trained is said: roles, drops, cuts; a failure says what was found and what was asked for; `report.html`:
the numbers of the manifest, rows with their mask; no texts if none are wanted, nothing that data could make of it."""

import html
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import beam_prep as bp
from beam_prep.errors import RunError
from beam_prep.shards.receipts import BORDERS, histogram, quantile
from beam_prep.shards.report import ConfigView, lines, role_warnings, warnings
from tests.conftest import ROOT, Command, Log, Run, config_of, records_of, run_of, says, words_of

CHATS = records_of(ROOT / "examples/data/chat.jsonl")


def config(name: str, mask: Any = None, **parts: dict[str, Any]) -> dict[str, Any]:
    """A config of the project with another mask, and with other values in some parts."""
    return config_of(name, **parts) | ({} if mask is None else {"mask": mask})


def told(output: Path | str) -> list[str]:
    """The warnings in a `run.json`, but for those that its start gave."""
    found: list[str] = run_of(output)["warnings"]
    return [warning for warning in found if not re.search(r": in \d+ records?, ", warning)]


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
    rows = CHATS * 3
    options = {"cache_dir": str(tmp_path / "token_cache"), "block_bytes": 65536, "max_no_loss_rate": 1}
    settings = config("sft_chat", preprocessing={"max_items": 150})
    run(config("sft_chat"), rows, "whole", **options)
    few = run(settings, rows, "few", **options)
    assert run_of(few.output)["blocks_reused"] > 1
    ledger = few.manifest["ledger"]
    seen = rows[: ledger["lines"] - ledger["not_read"]]
    for role, counts in few.manifest["roles"].items():
        assert counts["messages"] == sum(m["role"] == role for chat in seen for m in chat["messages"])


def test_a_role_of_the_mask_that_no_message_has_is_warned_of(run: Run, caplog: Log) -> None:
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
            [*["speaker"] * 8, "12 "],
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
    counts = {"user": (3, 30, 0), "assistant": (2, 20, 15)}
    roles = {role: dict(zip(("messages", "tokens", "trained"), found, strict=True)) for role, found in counts.items()}
    manifest = {"roles": roles, "counters": {}, "totals": {"tokens": {}}}
    assert lines(manifest, ConfigView(mask={"assistant": "train"})) == [
        "'user': 3 messages, 30 tokens, none trained; not in `mask`, mask_default is 'mask'",
        "'assistant': 2 messages, 15 of 20 tokens trained (100.0% of what is trained in messages)",
    ]


def test_the_share_of_a_role_is_one_of_all_roles_however_often_its_rows_are_written(run: Run) -> None:
    mix = {"shuffle": {"seed": 1}, "domain_key": "domain", "mix": {"python": {"epochs": 3}}}
    manifest = run(config("sft_conversation", output=mix), CHATS).manifest
    assert [line for line in lines(manifest, ConfigView()) if "100.0% of what is trained in" in line]


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


TEXT = {"text": "one two three " * 20}


@pytest.mark.parametrize(
    ("settings", "record", "start", "words"),
    [
        (
            config("sft_chat"),
            {"messages": says(human="a", gpt="b")},
            "nothing is kept of 5 records (5 rows_without_loss): no token of any record is trained",
            "`mask` names the role 'assistant' (train), which no message has; found: 'gpt' (5 messages), 'human' (5 ",
        ),
        (
            config("sft_chat"),
            {"messages": [*says(user="a"), {"role": "assistant", "content": "b", "weight": 0}]},
            "nothing is kept of 5 records (5 rows_without_loss): no token of any record is trained",
            "'messages': untrained by `mask`, by an action, by `train` or `weight` of its messages, or by a cut",
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
            config("sft_chat", preprocessing={"rows_without_loss": "keep", "max_seq_len": 4}),
            CHATS[0],
            "nothing is trained on: ",
            "check `mask` in the config, or raise preprocessing.max_seq_len: ",
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
def test_an_output_of_nothing_says_what_was_found(run: Run, settings: Any, record: Any, start: str, words: str) -> None:
    problem = failing(run, settings, [record] * 5)
    assert problem.startswith(start)
    assert words in problem


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


# Before a run


def test_a_preview_warns_as_the_run_does(tmp_path: Path, command: Command, run: Run) -> None:
    settings = config("sft_chat", mask={"asistant": "train", "user": "train"}, preprocessing={"max_seq_len": 90})
    result = run(settings, CHATS, max_no_loss_rate=1)
    out = command("inspect", tmp_path / "input.jsonl", *words_of(settings, tmp_path), "--no_pager")
    assert len(told(result.output)) == 3
    for warning in told(result.output):
        assert f"warning: {warning}\n" in out


def test_each_side_of_a_pair_counts_as_a_conversation_with_tools() -> None:
    (said,) = warnings(
        {"counters": {"tools_not_written": 6}, "totals": {"tokens": {}}, "ledger": {"rejected": {}}}, ConfigView()
    )
    assert said.startswith("the chat template does not write the tools of 6 conversations: ")


@pytest.mark.parametrize(
    ("last", "told"),
    [
        (0, ["the history lacks the reasoning of 2 messages: "]),
        (1, ["the history lacks the reasoning of 1 message: ", "the chat template does not write the reasoning of 1 "]),
        (2, ["the chat template does not write the reasoning of 2 last answers: "]),
    ],
)
def test_turns_are_proposed_for_the_reasoning_that_they_give_back(last: int, told: list[str]) -> None:
    counters = {"reasoning_written": 1, "reasoning_not_written": 2, "last_reasoning_not_written": last}
    found: Any = {"counters": counters, "totals": {"tokens": {}}, "ledger": {"rejected": {}}}
    said = [*lines(found, ConfigView()), *warnings(found, ConfigView())]
    assert [text.startswith(begin) for text, begin in zip(said, told, strict=True)] == [True] * len(told)


# The page


OUTSIDE = re.compile(r"<(?:script|link|img|iframe|object|embed)\b|\son\w+=|(?:src|href)=.(?!#)")
"""What a page would fetch or run."""


def text_of(path: Path) -> str:
    """What a page says; it fetches nothing and runs nothing."""
    page = path.read_text("utf-8")
    assert OUTSIDE.findall(page) == []
    return html.unescape(re.sub(r"<style.*?</style>|<[^>]*>", "", page, flags=re.DOTALL))


def test_the_page_has_the_numbers_of_the_manifest_and_needs_nothing_else(run: Run) -> None:
    records = [{**chat, "topic": str(place % 3)} for place, chat in enumerate(CHATS)]
    result = run(config("sft_chat", output={"domain_key": "topic"}), records)
    text = text_of(Path(result.output, "report.html"))
    totals = result.manifest["totals"]
    for number in (
        totals["rows"],
        *totals["tokens"].values(),
        *totals["trained"].values(),
        *(count for role in result.manifest["roles"].values() for count in role.values()),
        *(shard["tokens"]["sequence"] for shard in result.manifest["shards"]),
    ):
        assert f"{number:,}" in text


def test_lengths_are_those_of_the_rows_before_and_after_they_were_cut(run: Run) -> None:
    short, long = (
        run(config("sft_chat", preprocessing={"max_seq_len": length}), CHATS, name=str(length), max_no_loss_rate=1.0)
        for length in (64, 100_000)
    )
    found = run_of(short.output)["report"]["lengths"]
    rows, whole = (bp.open(each.output) for each in (short, long))
    assert found["kept"] == list(histogram(np.array([len(row["sequence"]) for row in rows])))
    known = histogram(np.array([len(row["sequence"]) for row in whole]))
    left_out = len(whole) - len(rows)  # nothing is left to train on
    assert sum(found["uncut"]) == sum(known) - left_out
    assert run_of(long.output)["report"]["lengths"]["uncut"] == list(known)


def test_classes_of_lengths_bound_their_quantiles() -> None:
    lengths = np.random.default_rng(1).lognormal(5, 2, 5_000).astype(np.int64)
    assert quantile((), 0.5) == 0
    assert [BORDERS[len(histogram(np.array([length]))) - 1] for length in range(7)] == [0, 1, 2, 3, 4, 4, 6]
    for share in (0.01, 0.5, 0.9, 1.0):
        exact = int(np.quantile(lengths, share, method="higher"))
        found = quantile(histogram(lengths), share)
        assert exact <= found
        assert found + 1 in BORDERS
        assert found <= max(1, 2 * exact)


def test_the_first_records_that_were_left_out_are_listed_with_their_place(run: Run, tmp_path: Path) -> None:
    lines = [json.dumps(chat).encode() for chat in CHATS]
    lines[3], lines[7] = b'{"messages": [', b'{"messages": 5}'
    for place in range(20, 45):
        lines[place] = json.dumps({"messages": [], "number": place}).encode()
    result = run(config("sft_chat"), b"\n".join(lines) + b"\n", max_reject_rate=1.0, max_no_loss_rate=1.0)
    report = run_of(result.output)["report"]
    source = (tmp_path / "input.jsonl").read_bytes()
    assert [entry["line"] for entry in report["rejected"]] == [4, 8]
    assert [entry["line"] for entry in report["dropped"]] == list(range(21, 41))
    for entry in (*report["rejected"], *report["dropped"]):
        there = source[entry["offset"] :].split(b"\n")[0].decode()
        assert there == lines[entry["line"] - 1].decode()
        assert entry["text"] == there[:200]
    text = text_of(Path(result.output, "report.html"))
    assert f"{report['rejected'][0]['message']}" in text
    assert f"(byte offset {report['dropped'][-1]['offset']})" in text


@pytest.mark.parametrize(("responses", "cut"), [([300, 300], False), ([3] * 5, True), ([513], True)])
def test_a_drawn_row_is_said_to_be_cut_if_and_only_if_it_is(run: Run, responses: list[int], cut: bool) -> None:
    row = {"prompt_ids": [5, 6], "response_ids": [[7] * size for size in responses], "rewards": [1.0] * len(responses)}
    row["loss_mask"] = [[1] * size for size in responses]
    config = {"input": {"rollouts": {name: name for name in row}}, "preprocessing": {"truncation_mode": "drop"}}
    assert [sample["cut"] for sample in run_of(run(config, [row]).output)["report"]["samples"]] == [cut]


def test_without_reject_text_nothing_of_a_record_is_in_the_report(run: Run) -> None:
    records = [*CHATS, {"messages": [], "secret": "SECRET"}, {"messages": "SECRET"}]
    records[5] = {"messages": says(user="SECRET", assistant="SECRET")}
    closed = run(config("sft_chat"), records, max_reject_chars=0, max_reject_rate=1.0)
    assert "SECRET" not in Path(closed.output, "report.html").read_text()
    assert "SECRET" not in Path(closed.output, "run.json").read_text()
    assert run_of(closed.output)["report"]["samples"] == []
    assert [entry["line"] for entry in run_of(closed.output)["report"]["dropped"]] == [261]


def test_what_is_trained_is_marked_and_data_stays_text(run: Run) -> None:
    answer = "</div><script>alert(1)</script> \u202e \x1b[31m <!-- {{ 1 + 1 }}"
    records = [{"messages": says(user="<b>q", assistant=answer), "id": place} for place in range(3)]
    result = run(config("sft_chat"), records)
    path = Path(result.output, "report.html")
    assert "<b>q" in text_of(path)
    text = path.read_text("utf-8")
    assert "\u202e" not in text
    assert "\x1b" not in text
    marked = [html.unescape(part) for part in re.findall(r"<mark>(.*?)</mark>", text, re.DOTALL)]
    assert any("<script>alert(1)</script> \\u202e ␛[31m <!-- {{ 1 + 1 }}" in part for part in marked)
    assert not any("<b>q" in part for part in marked)


@pytest.mark.parametrize("name", sorted(path.stem for path in (ROOT / "configs").glob("*.json")))
def test_every_config_of_the_project_has_a_page(output: Callable[[str], Any], name: str) -> None:
    made = output(name)
    made.verify()
    assert f"{made.manifest['totals']['rows']:,}" in text_of(made.path / "report.html")
    report = run_of(made.path)["report"]
    assert len(report["samples"]) == min(6, made.manifest["ledger"]["kept"])


def test_the_page_can_be_made_again_and_verify_does_not_mind(run: Run, tmp_path: Path, command: Command) -> None:
    result = run(config("sft_chat"), CHATS)
    path = Path(result.output, "report.html")
    before = path.read_bytes()
    path.unlink()
    command("verify", result.output)
    link = tmp_path / "link.html"
    link.symlink_to(tmp_path / "other.html")
    assert "open it in a browser" in command("report", result.output, "-o", link)
    (mine := tmp_path / "mine.txt").write_text("Mine.")
    command("report", result.output, "-o", mine, code=2)  # only a report is replaced
    assert mine.read_text() == "Mine."
    assert (tmp_path / "other.html").read_bytes() == before
    assert "open it in a browser" in command("report", result.output)
    assert path.read_bytes() == before
    command("verify", result.output)
