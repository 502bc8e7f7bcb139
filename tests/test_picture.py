"""Pictures of rows: they show every token, mark what is trained in two ways, and are those in the docs."""

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

import beam_prep as bp
from beam_prep.hints import VISIBLE
from beam_prep.inspect.picture import LIGHT, lines_of, picture
from beam_prep.inspect.row import RowKind, ShownRow
from tests.conftest import TOKENIZER_PATH, Run, chat_config, says
from tests.reference import ours
from tools import notebook, pictures

SVG = "{http://www.w3.org/2000/svg}"


def texts_of(svg: str, trained: bool | None = None) -> list[str]:
    """The texts of a picture; `trained`: those that are bold and underlined, or the others."""
    marked = re.findall(r"\.(\S+) \{ fill: #\w+;font-weight: bold;text-decoration: underline", svg)
    found = [
        each.text or ""
        for each in ElementTree.fromstring(svg).iter(f"{SVG}text")
        if trained is None or (each.get("class") in marked) == trained
    ]
    return [text.replace("\xa0", " ") for text in found if text.strip("\n")]


@pytest.mark.long
def test_the_pictures_in_the_docs_are_those_of_the_sample_data(tmp_path: Path) -> None:
    made = pictures.pictures(tmp_path)
    kept = {path.name: path.read_text(encoding="utf-8") for path in pictures.FOLDER.glob("*.svg")}
    assert kept == made, "make pictures"


@pytest.mark.long
def test_the_notebook_holds_what_its_cells_give(tmp_path: Path) -> None:
    pytest.importorskip("nbclient", reason="no nbclient here: pip install '.[dev]'")
    pytest.importorskip("ipykernel", reason="no ipykernel here: pip install '.[dev]'")
    text = notebook.NOTEBOOK.read_text(encoding="utf-8")
    assert text == notebook.executed(notebook.NOTEBOOK, tmp_path)
    assert re.search(r"/tmp/|/home/|/work/", text) is None


@given(
    text=st.text(st.characters(exclude_categories=["Cs"]), max_size=120),
    drawn=st.randoms(use_true_random=False),
    columns=st.integers(8, 40),
)
def test_lines_hold_every_character_and_what_is_trained(text: str, drawn: Any, columns: int) -> None:
    tokenizer = ours(TOKENIZER_PATH)
    ids = tokenizer.encode([text], add_special_tokens=False).flat
    trained = np.array([drawn.random() < 0.5 for _ in ids], bool)
    columns_of_row = (bp.Column("ids", "int32", 1, "ids"), bp.Column("mask", "bool", 1, "mask", of="ids"))
    row = ShownRow(RowKind(columns_of_row, tokenizer, {}), {"ids": ids, "mask": trained}, ())
    lines = lines_of(row, columns, 1000)
    assert all(line.cell_len <= columns for line in lines)

    def is_trained(line: Text, place: int) -> bool:
        return any(span.start <= place < span.end and str(span.style).startswith("trained") for span in line.spans)

    pieces = tokenizer.pieces(ids.tolist())
    for wanted in (True, False):
        chars = ((line, place, char) for line in lines for place, char in enumerate(line.plain))
        runs = "".join(char for line, place, char in chars if is_trained(line, place) == wanted)
        expected = "".join(piece for piece, given in zip(pieces, trained, strict=True) if given == wanted)
        assert "".join(runs.replace("↵", "").split()) == "".join(expected.translate(VISIBLE).split())


def test_texts_of_the_data_cannot_break_the_picture(run: Run) -> None:
    odd = "</text><script>alert(1)</script> & \x00\x1b[31m \u202e \ufffe \t <|im_end|> ]]>"
    messages = says(user=odd, assistant=f"{odd}\n\n")
    svg = picture(bp.open(run(chat_config(), [{"messages": messages}]).output), 0)
    assert [each.tag for each in ElementTree.fromstring(svg).iter() if "script" in each.tag] == []
    assert "<script>alert(1)</script>" in "".join(texts_of(svg, trained=True))
    messages = says(user="Why?", assistant="Because.")
    svg = picture(bp.open(run(chat_config(), [{"messages": messages}], name="plain").output), 0)
    assert texts_of(svg, trained=True) == ["Because.", "<|im_end|>", "trained"]  # the last is the legend's
    shapes = [each.get("fill") for each in ElementTree.fromstring(svg).iter(f"{SVG}rect")]
    assert (shapes.count(LIGHT["marker"]), shapes.count(LIGHT["trained"])) == (2, 1)
