"""`beam-prep template`: what a template takes, what it leaves out, what is trained; printed, as JSON, on a page."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from beam_prep.chat.conversations import CONVERSATIONS
from tests.chat.trained import CHATML as PLAIN
from tests.conftest import TOKENIZER_PATH, Command

CALLS = PLAIN.replace("{{ m.content }}", "{{ m.content }}{% if m.tool_calls %}{{ m.tool_calls | tojson }}{% endif %}")
REFUSES = "{% if messages[0].role == 'system' %}{{ raise_exception('no system message, please') }}{% endif %}" + PLAIN


def asked(command: Command, *words: object) -> Any:
    return json.loads(command("template", *words, "--json"))


def by_name(template: Any) -> dict[str, Any]:
    return {each["name"]: each for each in template["conversations"]}


@pytest.fixture
def of(tmp_path: Path, command: Command) -> Any:
    """What is found of a template's text, by conversation."""

    def _of(source: str) -> dict[str, Any]:
        path = tmp_path / "chat.jinja"
        path.write_text(source)
        found = asked(command, TOKENIZER_PATH, "--chat_template", path)
        assert found["tokenizer"] == str(TOKENIZER_PATH)
        assert [*by_name(found["templates"][0])] == [*CONVERSATIONS]
        return by_name(found["templates"][0])

    return _of


def test_results_name_their_calls() -> None:
    for conversation in CONVERSATIONS.values():
        messages = conversation["messages"]
        calls = [call["id"] for message in messages for call in message.get("tool_calls", ())]
        assert calls == [message["tool_call_id"] for message in messages if message["role"] == "tool"]


def test_tools_and_reasoning_that_are_left_out_are_named_and_the_record_is_taken(of: Any) -> None:
    found = of(CALLS)
    assert {name: each["not_written"] for name, each in found.items() if each["not_written"]} == {
        "call, arguments as object": ["tools"],
        "call, arguments as string": ["tools"],
        "call with words": ["tools"],
        "parallel calls": ["tools"],
        "reasoning in a field": ["messages[1].reasoning"],
        "reasoning of earlier answers": ["messages[1].reasoning", "messages[3].reasoning"],
        "reasoning before a call": ["tools", "messages[1].reasoning"],
    }
    assert {each["outcome"] for each in found.values()} == {"taken"}


def test_a_call_that_is_left_out_is_not_written_and_drawn_all_the_same(of: Any) -> None:
    found = of(PLAIN)["call with words"]
    assert (found["outcome"], found["reason"]) == ("not written", "not_rendered")
    calls = [f"messages[1].tool_calls[0].{key}" for key in ("name", "arguments")]
    assert found["not_written"] == ["tools", *calls]
    assert found["trained"] == ["I look it up.<|im_end|>", "It leaves at 9:14.<|im_end|>", "Bye.<|im_end|>"]


def test_a_template_that_refuses_is_said_with_its_words(of: Any, tmp_path: Path, command: Command) -> None:
    found = of(REFUSES)
    raised = {name: each for name, each in found.items() if each["outcome"] == "raises"}
    assert [*raised] == ["system message"]
    assert raised["system message"]["reason"] == "template_error"
    assert raised["system message"]["message"] == "the chat template raised: no system message, please"
    assert "tokens" not in raised["system message"]
    out = command("template", TOKENIZER_PATH, "--chat_template", tmp_path / "chat.jinja")
    assert "  system message                raises       no system message, please\n" in out
    assert max(map(len, out.partition("\n\n")[0].splitlines()[1:])) <= 100


def test_what_a_run_leaves_out_for_another_reason_is_refused(of: Any) -> None:
    found = of(PLAIN.replace("<|im_start|>assistant", "<|im_start|>model"))
    assert {each["reason"] for each in found.values()} == {"turn_begin"}
    assert {each["outcome"] for each in found.values()} == {"refused"}


def with_templates(folder: Path, templates: list[dict[str, str]]) -> Path:
    """A copy of our tokenizer, with these chat templates."""
    shutil.copytree(TOKENIZER_PATH, folder)
    (folder / "chat_template.jinja").unlink()
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["chat_template"] = templates or None
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def test_each_named_template_has_a_heading(tmp_path: Path, command: Command) -> None:
    named = [{"name": "default", "template": PLAIN}, {"name": "strict", "template": REFUSES}]
    folder = with_templates(tmp_path / "named", named)
    both = asked(command, folder)["templates"]
    assert [each["name"] for each in both] == ["default", "strict"]
    assert [by_name(each)["system message"]["outcome"] for each in both] == ["taken", "raises"]
    assert asked(command, folder, "--chat_template", "strict")["templates"] == [both[1]]
    said = command("template", folder, "--no_pager")
    assert f"{folder}, template 'strict': 14 taken, 5 not written, 0 refused, 1 raises\n" in said


def test_without_a_template_it_says_how_to_give_one(tmp_path: Path, command: Command) -> None:
    bare = with_templates(tmp_path / "bare", [])
    assert "in `beam-prep template`: --chat_template FILE" in command("template", bare, code=2)
