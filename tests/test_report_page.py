"""`report.html`: the numbers of the manifest, the first records that were left out, rows with their mask; no texts if
none are wanted, and nothing that data could make of the page."""

import copy
import html
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import beam_prep as bp
from beam_prep.cli import main
from beam_prep.data.receipts import BORDERS, add, histogram, quantile
from tests.conftest import ROOT

Run = Callable[..., Any]
CHAT = json.loads((ROOT / "configs/sft_chat.json").read_text())
CHATS = [json.loads(line) for line in (ROOT / "examples/data/chat.jsonl").read_text("utf-8").splitlines()]


OUTSIDE = re.compile(r"<(?:script|link|img|iframe|object|embed)\b|\son\w+=|(?:src|href)=.(?!#)")
"""What a page would fetch or run."""


def text_of(path: Path) -> str:
    """What a page says; it fetches nothing and runs nothing."""
    page = path.read_text("utf-8")
    assert OUTSIDE.findall(page) == []
    return html.unescape(re.sub(r"<style.*?</style>|<[^>]*>", "", page, flags=re.DOTALL))


def chats(**changes: Any) -> dict[str, Any]:
    made: dict[str, Any] = copy.deepcopy(CHAT)
    for part, values in changes.items():
        made[part] = {**made.get(part, {}), **values}
    return made


def run_of(result: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(result.output, "run.json").read_text())
    return found


def test_the_page_has_the_numbers_of_the_manifest_and_needs_nothing_else(run: Run) -> None:
    records = [{**chat, "topic": str(place % 3)} for place, chat in enumerate(CHATS)]
    result = run(chats(output={"domain_key": "topic"}), records)
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
        run(chats(preprocessing={"max_seq_len": length}), CHATS, name=str(length), max_no_loss_rate=1.0)
        for length in (64, 100_000)
    )
    found = run_of(short)["report"]["lengths"]
    rows, whole = (bp.open(each.output) for each in (short, long))
    assert found["kept"] == list(histogram(np.array([len(row["sequence"]) for row in rows])))
    known = histogram(np.array([len(row["sequence"]) for row in whole]))
    left_out = len(whole) - len(rows)  # nothing is left to train on
    assert sum(found["uncut"]) == sum(known) - left_out
    assert run_of(long)["report"]["lengths"]["uncut"] == list(known)


def test_classes_of_lengths_add_up_and_bound_their_quantiles() -> None:
    lengths = np.random.default_rng(1).lognormal(5, 2, 5_000).astype(np.int64)
    one, other = histogram(lengths[:2_000]), histogram(lengths[2_000:])
    assert add(one, other) == histogram(lengths)
    assert quantile((), 0.5) == 0
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
    result = run(CHAT, b"\n".join(lines) + b"\n", max_reject_rate=1.0, max_no_loss_rate=1.0)
    report = run_of(result)["report"]
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
    assert [sample["cut"] for sample in run_of(run(config, [row]))["report"]["samples"]] == [cut]


def test_without_reject_text_nothing_of_a_record_is_in_the_report(run: Run) -> None:
    records = [*CHATS, {"messages": [], "secret": "SECRET"}, {"messages": "SECRET"}]
    records[5] = {"messages": [{"role": "user", "content": "SECRET"}, {"role": "assistant", "content": "SECRET"}]}
    open_, closed = (
        run(CHAT, records, name=str(limit), max_reject_chars=limit, max_reject_rate=1.0) for limit in (1000, 0)
    )
    assert "SECRET" in Path(open_.output, "report.html").read_text()
    assert "SECRET" not in Path(closed.output, "report.html").read_text()
    assert "SECRET" not in Path(closed.output, "run.json").read_text()
    assert run_of(closed)["report"]["samples"] == []
    assert [entry["line"] for entry in run_of(closed)["report"]["dropped"]] == [261]


def test_what_is_trained_is_marked_and_data_stays_text(run: Run) -> None:
    answer = "</div><script>alert(1)</script> \u202e \x1b[31m <!-- {{ 1 + 1 }}"
    records = [{"messages": [{"role": "user", "content": "<b>q"}, {"role": "assistant", "content": answer}]}] * 3
    result = run(CHAT, [{**each, "id": place} for place, each in enumerate(records)])
    path = Path(result.output, "report.html")
    assert "<b>q" in text_of(path)
    text = path.read_text("utf-8")
    assert "\u202e" not in text
    assert "\x1b" not in text
    marked = [html.unescape(part) for part in re.findall(r"<mark>(.*?)</mark>", text, re.DOTALL)]
    assert any("<script>alert(1)</script> \\u202e ␛[31m <!-- {{ 1 + 1 }}" in part for part in marked)
    assert not any("<b>q" in part for part in marked)


@pytest.mark.parametrize("config", sorted(path.stem for path in (ROOT / "configs").glob("*.json")))
def test_every_config_of_the_project_has_a_page(output: Callable[[str], Any], config: str) -> None:
    made = output(config)
    assert f"{made.manifest['totals']['rows']:,}" in text_of(made.path / "report.html")
    report = json.loads((made.path / "run.json").read_text())["report"]
    assert len(report["samples"]) == min(6, made.manifest["ledger"]["kept"])


def test_the_page_can_be_made_again_and_verify_does_not_mind(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run(CHAT, CHATS)
    path = Path(result.output, "report.html")
    before = path.read_bytes()
    path.unlink()
    assert main(["verify", result.output]) == 0
    assert main(["report", result.output, "-o", str(tmp_path / "other.html")]) == 0
    assert (tmp_path / "other.html").read_bytes() == before
    assert main(["report", result.output]) == 0
    assert path.read_bytes() == before
    assert main(["verify", result.output]) == 0
    assert capsys.readouterr().out.count("open it in a browser") == 2
