"""`beam-prep inspect --html`: the data in the page. What a browser makes of it: tests/browser."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import beam_prep as bp
from beam_prep.errors import BeamPrepError
from beam_prep.hints import VISIBLE
from beam_prep.inspect.draw import Head, write_page
from beam_prep.inspect.output import inspect
from beam_prep.inspect.row import LeftOut
from beam_prep.preview import preview
from beam_prep.readers.dataset import Dataset
from tests.conftest import ROOT, TOKENIZER_PATH, Command, Folders, Run, config_of, records_of, says, write_lines


def examples(name: str, count: int = 20) -> list[dict[str, Any]]:
    return records_of(ROOT / "examples" / "data" / f"{name}.jsonl")[:count]


class Page:
    """A page as its script reads it."""

    def __init__(self, path: Path) -> None:
        self.text = path.read_bytes().decode("utf-8")
        scripts = dict(re.findall(r'<script[^>]* id="([\w-]+)"[^>]*>(.*?)</script>', self.text, re.S))
        self.head, self.rows, self.tokens = (json.loads(scripts[name]) for name in ("head", "row-data", "tokens"))

    def of(self, kind: str | None) -> list[dict[str, Any]]:
        return [row for row in self.rows if row.get("kind") == kind]

    def text_of(self, part: dict[str, Any]) -> str:
        return "".join(self.tokens[token][1] for token in part["t"])

    def ids_of(self, part: dict[str, Any]) -> list[int]:
        return [self.tokens[token][0] for token in part["t"]]

    def trained(self, part: dict[str, Any]) -> list[int]:
        return [value for value, size in part["m"] for _ in range(size)]

    def roles(self, part: dict[str, Any]) -> list[str | None]:
        """The role of each token."""
        known = [*self.head["roles"], None]  # -1 is none
        return [known[role] for role, size in part["r"] for _ in range(size)]


@pytest.fixture
def paged(run: Run, tmp_path: Path) -> Callable[..., tuple[Dataset, Page]]:
    """Makes an output, and the page of it."""

    def _paged(settings: dict[str, Any], records: Any, **options: Any) -> tuple[Dataset, Page]:
        output = bp.open(run(settings, records, max_reject_rate=1.0, max_no_loss_rate=1.0).output)
        inspect(output.path, html=tmp_path / "page.html", **options)
        return output, Page(tmp_path / "page.html")

    return _paged


def previewed(settings: dict[str, Any], records: list[Any], folder: Path, **options: Any) -> Page:
    source = write_lines(folder / "before.jsonl", records)
    preview(str(source), bp.PipelineConfig.from_dict(settings), TOKENIZER_PATH, html=folder / "before.html", **options)
    return Page(folder / "before.html")


def test_a_page_has_the_tokens_masks_and_numbers_of_the_output(paged: Callable[..., Any]) -> None:
    records = [*examples("chat"), {"messages": 3}, {"messages": []}]
    output, page = paged(config_of("sft_conversation", output={"columns": "loss_mask"}), records)
    rows = page.of(None)
    assert len(rows) == len(output) == 20
    for number, (row, shown) in enumerate(zip(output, rows, strict=True)):
        (part,) = shown["parts"]
        assert page.text_of(part) == output.decode(number)
        assert page.ids_of(part) == row["sequence"].tolist()
        assert page.trained(part) == row["loss_mask"].astype(int).tolist()
        assert (shown["tokens"], shown["trained"]) == (len(row["sequence"]), int(row["loss_mask"].sum()))
        assert "r" not in part
    totals, ledger = output.manifest["totals"], output.manifest["ledger"]
    assert {label: value for label, value, _ in page.head["numbers"]} == {
        "rows": totals["rows"],
        "tokens in sequence": totals["tokens"]["sequence"],
        "trained in loss_mask": totals["trained"]["loss_mask"],
        "records read": ledger["read"],
        "dropped: empty": ledger["dropped"]["empty"],
        "rejected: wrong_type": ledger["rejected"]["wrong_type"],
    }
    (reject,) = page.of("rejected")
    assert reject["text"] == '{"messages": 3}'
    assert reject["message"].startswith("field 'messages' is a number (3)")
    special = {text for _, text, is_special in page.tokens if is_special}
    assert special == {"<|bos|>", "<|im_start|>", "<|im_end|>"} & {text for _, text, _ in page.tokens}
    assert page.head["roles"] == []


@given(st.lists(st.text(st.characters(exclude_categories=()) | st.sampled_from("<>!-/&\u2028\u202e\ud800\r\n"))))
def test_any_text_comes_back_visible(tmp_path_factory: Folders, texts: list[str]) -> None:
    path = tmp_path_factory.mktemp("any") / "page.html"
    entries = [LeftOut(text, "rejected", text, text, text) for text in texts]
    assert write_page(path, entries, Head("".join(texts), "", [("".join(texts), 1, "")])) == len(texts)
    page = Page(path)
    for row, text in zip(page.rows, texts, strict=True):
        assert {row[name] for name in ("title", "reason", "message", "text")} == {text.translate(VISIBLE)}
    assert page.head["numbers"][0][0] == page.head["title"] == "".join(texts).translate(VISIBLE)
    assert page.text.count("<") == _empty(path).count("<")


def _empty(path: Path) -> str:
    write_page(path, [], Head("", ""))
    return path.read_text("utf-8")


def test_the_page_asks_nothing_of_a_network(tmp_path: Path) -> None:
    text = _empty(tmp_path / "page.html")
    assert not re.search(r"https?:|//[a-z]|@import|url\(", text)
    assert "default-src 'none'" in text


CHAT = says(system="Be short, with times first.", user="How long?", assistant="Nine minutes.")
CHAT += says(user="And for small ones?", assistant="Eight minutes.")


@pytest.mark.parametrize(
    "preprocessing",
    [
        {"padding": 64, "shift": True},
        {"max_seq_len": 40, "truncation_mode": "keep_end"},
        {"truncation_mode": "chunk", "max_seq_len": 30},
        {"packing_strategy": "bfd", "max_packed_len": 100},
    ],
)
def test_a_preview_knows_the_role_of_each_token_in_every_layout(tmp_path: Path, preprocessing: dict[str, Any]) -> None:
    records = [{"messages": 3}, {"messages": CHAT}, {"messages": CHAT[1:3]}]
    page = previewed(config_of("sft_conversation", preprocessing=preprocessing), records, tmp_path)
    told: dict[str | None, str] = {}
    for part in [part for row in page.of(None) for part in row["parts"] if "t" in part]:
        for token, role, is_trained in zip(part["t"], page.roles(part), page.trained(part), strict=True):
            told[role] = told.get(role, "") + page.tokens[token][1]
            assert not is_trained or role == "assistant"
    assert "Eight minutes.<|im_end|>" in told["assistant"]
    assert "And for small ones?" in told["user"]
    assert "Nine" not in told["user"]
    assert "minutes" not in told.get(None, "")
    assert [row["reason"] for row in page.of("rejected")] == ["wrong_type"]
    assert page.head["roles"]


def test_only_pages_are_replaced_and_only_when_they_are_whole(run: Run, tmp_path: Path, command: Command) -> None:
    output = run(config_of("sft_conversation"), examples("chat", 2)).output
    page, other = tmp_path / "page.html", tmp_path / "notes.txt"
    other.write_text("mine")
    assert "is no page of beam-prep inspect" in command("inspect", output, "--html", other, code=2)
    assert other.read_text() == "mine"
    inspect(output, html=page)
    link = tmp_path / "link.html"
    link.symlink_to(page)
    inspect(output, html=link)
    assert link.is_symlink()

    def stops() -> Iterator[LeftOut]:
        yield LeftOut("", "rejected", "", "", "")
        raise BeamPrepError("stopped")

    before = page.read_bytes()
    with pytest.raises(BeamPrepError, match="stopped"):
        write_page(page, stops(), Head("", ""))
    assert page.read_bytes() == before
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".page")]
