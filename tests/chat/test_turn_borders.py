"""Where turns begin and end: templates in use and templates written for this, against a list made by hand.

The list (`turn_borders.json`) says of a talk of two questions and answers what the template writes before the first
answer's turn ("header"), and what the model writes of the first ("text") and of the last one ("last"); "or": another
reading that is right, too. Templates that take no text as content are in `turn_borders_parts.json`.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from beam_prep.chat.template import ChatTemplate
from beam_prep.data.block import Reject
from tests.conftest import shared

HERE = Path(__file__).parent
BORDERS: dict[str, dict[str, Any] | None] = {
    **json.loads((HERE / "turn_borders.json").read_text(encoding="utf-8")),
    **json.loads((HERE / "turn_borders_parts.json").read_text(encoding="utf-8")),
}
TALK = [
    {"role": "user", "content": "Uone hello"},
    {"role": "assistant", "content": "Aone hi there"},
    {"role": "user", "content": "Utwo and now?"},
    {"role": "assistant", "content": "Atwo still here"},
]
# What looks like a control token in a template is one of its tokenizer's, as the list takes it.
CONTROL = re.compile(
    r"<\|[^|<>{}\n]{1,40}\|>|<｜[^｜<>\n]{1,40}｜>|</?s>|<(?:start|end)_of_turn>|<bos>|<eos>|"
    r"\[/?(?:INST|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|TOOL_CONTENT|ARGS|CALL_ID|SYSTEM_PROMPT|THINK)\]|"
    r"<turn\|>|<\|turn>|<\|[a-z_]+>|<[a-z_]+\|>|\[\|[a-z]+\|\]|\[gMASK\]|<sop>"
)
ENDS = (
    *("<|im_end|>", "<end_of_turn>", "<|eot_id|>", "<|eot|>", "<|end|>", "<|END_OF_TURN_TOKEN|>", "<turn|>"),
    *("[|endofturn|]", "<|return|>", "<|eom|>", "<|endofturn|>"),
)
OF_ALL = frozenset(("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<s>"))


def source_of(name: str) -> str:
    folder, _, file = name.partition("/")
    path = HERE / "written_templates" / file if folder == "written" else shared("templates", folder, file)
    return path.read_text(encoding="utf-8")


def chat_template(source: str) -> ChatTemplate:
    """The template with the special tokens that its text shows."""
    controls = {*CONTROL.findall(source)}
    end = next((each for each in ENDS if each in controls), None)
    if "eos_token" in source or end is None:
        end = "<｜end▁of▁sentence｜>" if "｜" in source else end or "</s>"
    tokens = {"bos_token": "<s>", "eos_token": end}
    return ChatTemplate(source, tokens, sorted(controls | {end} | OF_ALL), date="2026-11-26")


WITHOUT_PROMPT = {
    *("axolotl/mistral_v1.jinja", "axolotl/mistral_v2v3.jinja", "models/hfjs-llama.jinja", "written/fjord.jinja"),
    *("chat_templates/mistral-instruct.jinja", "written/thistle.jinja", "written/willow.jinja"),
}
"""Templates without a generation prompt: the blanks before an answer are its header's, not the model's as listed."""


@pytest.mark.parametrize("name", [name for name, borders in BORDERS.items() if borders is not None])
def test_an_answers_turn_begins_and_ends_where_the_list_made_by_hand_says(name: str) -> None:
    borders = BORDERS[name]
    assert borders is not None
    rendered = chat_template(source_of(name)).render(TALK)
    assert rendered.marked == borders["marks"]
    assert rendered.not_rendered == []
    found = []
    for index in (1, 3):
        turn = rendered.turns[index]
        assert turn.reason is None
        asked = TALK[index - 1]["content"]
        begin = rendered.text.index(asked) + len(asked)
        header = rendered.text[begin : turn.spans[0][0]]
        found.append((header, "".join(rendered.text[start:stop] for start, stop in turn.spans)))
    (header, first), (_, last) = found
    readings = [borders, *([borders["or"]] if "or" in borders else [])]
    if name in WITHOUT_PROMPT:
        wanted = [borders["header"].rstrip(), borders["text"].lstrip(), borders["last"].lstrip()]
        assert [header.rstrip(), first, last] == wanted
        return
    assert (header, first, last) in [(each["header"], each["text"], each["last"]) for each in readings]


@pytest.mark.parametrize("name", [name for name, borders in BORDERS.items() if borders is None])
def test_a_template_that_writes_no_plain_talk_rejects_it(name: str) -> None:
    template = chat_template(source_of(name))
    with pytest.raises((Reject, AssertionError)):
        assert template.render(TALK).not_rendered == []


def test_the_written_templates_are_all_in_the_list() -> None:
    written = {f"written/{path.name}" for path in (HERE / "written_templates").glob("*.jinja")}
    assert written == {name for name in BORDERS if name.startswith("written/")}
