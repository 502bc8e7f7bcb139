"""`beam-prep init` writes a config with which records run, whatever shape they have, and replaces nothing."""

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import beam_prep as bp
from beam_prep.audit import audit
from beam_prep.cli import main
from beam_prep.config import PipelineConfig
from beam_prep.sample import prepare
from beam_prep.starter import PLAIN_TEMPLATE, find_shape
from beam_prep.tokens.batch import Batch
from tests.conftest import ROOT
from tests.test_sources import blocks as blocks_in

Start = Callable[..., tuple[dict[str, Any], str, str]]
DATA = ROOT / "examples" / "data"


@pytest.fixture
def start(tmp_path: Path, capsys: pytest.CaptureFixture[str], tokenizer_path: str) -> Start:
    """Runs the command on records or a file; gives (config, reasons, what it printed)."""

    def _start(records: Any, *options: str, tokenizer: str | None = tokenizer_path) -> tuple[dict[str, Any], str, str]:
        path = records
        if isinstance(records, list):
            path = tmp_path / "input.jsonl"
            path.write_text("".join(f"{json.dumps(record)}\n" for record in records), encoding="utf-8")
        given = [] if tokenizer is None else ["--tokenizer_path", tokenizer]
        target = tmp_path / "made.json"
        assert main(["init", str(path), "-o", str(target), *given, *options]) == 0
        reasons = (tmp_path / "made.md").read_text("utf-8")
        return json.loads(target.read_text("utf-8")), reasons, capsys.readouterr().out

    return _start


def says(**said: str) -> list[dict[str, str]]:
    return [{"role": role, "content": text} for role, text in said.items()]


def items(**said: str) -> list[dict[str, str]]:
    return [{"from": role, "value": text} for role, text in said.items()]


def sides(prompt: str, **template: str) -> dict[str, Any]:
    """Sources of preference pairs."""
    return {
        side: {
            "sections": [
                {"field": prompt, "action": "mask", **template},
                {"field": side, "action": "train", **template},
            ]
        }
        for side in ("chosen", "rejected")
    }


def blocks(path: Path, config: dict[str, Any], tokenizer: str) -> list[Batch]:
    """The rows that a run with the config makes of the records."""
    loaded, parsed = bp.Tokenizer.load(tokenizer), PipelineConfig.from_dict(config)
    return [prepare(block, parsed, loaded) for block in blocks_in(str(path))]


@pytest.mark.parametrize("name", ["chat", "text", "rollouts", "more/rlvr", "more/rollout_tokens"])
def test_every_sample_of_the_project_gets_a_config_that_runs(name: str, start: Start, tokenizer_path: str) -> None:
    path = DATA / f"{name}.jsonl"
    config, reasons, told = start(path)
    for block in blocks(path, config, tokenizer_path):
        assert bp.testing.rejects(block) == []
        assert len(block.line) >= 0.95 * len(block.ledger.status)
    for part in ("input", "preprocessing", "output"):
        for field in config.get(part, {}):
            assert f"`{part}.{field}`" in reasons  # each line has its reason
    assert f"beam-prep run -o out {path} \\\n" in told


SHAPES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "messages under another name": (
        {"dialog": says(user="Where is {n}?", assistant="At {n}.")},
        {"sections": [{"field": "dialog", "action": "$role", "template": "conversation"}]},
    ),
    "messages beside a system text": (
        {"system": "Be brief.", "dialog": says(user="Where is {n}?", assistant="At {n}.")},
        {
            "adapter": {"name": "sharegpt", "field": "dialog"},
            "sections": [{"field": "messages", "action": "$role", "template": "conversation"}],
        },
    ),
    "messages beside the text parts of a system prompt": (
        {"system": [{"type": "text", "text": "Be brief."}], "messages": says(user="Where is {n}?", assistant="{n}.")},
        {
            "adapter": {"name": "sharegpt", "field": "messages"},
            "sections": [{"field": "messages", "action": "$role", "template": "conversation"}],
        },
    ),
    "messages of a prompt, and the answer as a text": (
        {"input": says(system="Be brief.", user="Where is {n}?"), "output": "<think>\nHm.\n</think>\nAt {n}."},
        {
            "sections": [
                {"field": "input", "action": "mask", "template": "conversation"},
                {"field": "output", "action": "train", "template": "conversation"},
            ]
        },
    ),
    "messages that end with a question, and their answer": (
        {"messages": says(user="Hi", assistant="Hello.") + says(user="Where is {n}?"), "answer": "At {n}."},
        {
            "sections": [
                {"field": "messages", "action": "mask", "template": "conversation"},
                {"field": "answer", "action": "train", "template": "conversation"},
            ]
        },
    ),
    "a chat, and its answer once more": (
        {"messages": says(user="Where is {n}?", assistant="At {n}."), "answer": "At {n}."},
        {"sections": [{"field": "messages", "action": "$role", "template": "conversation"}]},
    ),
    "a source and its translation": (
        {"src": "Where is {n}?", "tgt": "Wo ist {n}?"},
        {
            "adapter": {"name": "alpaca", "instruction": "src", "output": "tgt"},
            "sections": [{"field": "messages", "action": "$role", "template": "conversation"}],
        },
    ),
    "messages of a prompt, and the answers of an agent among the results of its tools": (
        {
            "prompt": says(user="Where is {n}?"),
            "completion": [*says(assistant="I look."), *says(tool="{n}"), *says(assistant="At {n}.")],
        },
        {
            "sections": [
                {"field": "prompt", "action": "mask", "template": "conversation"},
                {"field": "completion", "action": "$role", "template": "conversation"},
            ]
        },
    ),
    "ShareGPT with other speakers": (
        {"conversations": items(human="Where is {n}?", bing="At {n}.")},
        {
            "adapter": {"name": "sharegpt", "roles": {"bing": "assistant"}},
            "sections": [{"field": "messages", "action": "$role", "template": "conversation"}],
        },
    ),
    "roles in another case": (
        {"messages": says(System="Be brief.", User="Where is {n}?", Chatbot="At {n}.")},
        {
            "adapter": {
                "name": "sharegpt",
                "field": "messages",
                "roles": {"System": "system", "User": "user", "Chatbot": "assistant"},
            },
            "sections": [{"field": "messages", "action": "$role", "template": "conversation"}],
        },
    ),
    "a question and an answer": (
        {"question": "Where is {n}?", "answer": "At {n}."},
        {
            "adapter": {"name": "alpaca", "instruction": "question", "output": "answer"},
            "sections": [{"field": "messages", "action": "$role", "template": "conversation"}],
        },
    ),
    "a system prompt, and the result beside the solution": (
        {"system_prompt": "Be brief.", "question": "Where is {n}?", "solution": "Left: {n}.", "answer": "{n}"},
        {
            "adapter": {
                "name": "alpaca", "instruction": "question", "output": "solution", "system": "system_prompt"
            },
            "sections": [{"field": "messages", "action": "$role", "template": "conversation"}],
        },
    ),
    "names in another case, and a context": (
        {"Question": "Where is {n}?", "Context": "A map of {n}.", "Answer": "At {n}."},
        {
            "adapter": {"name": "alpaca", "instruction": "Question", "output": "Answer", "input": "Context"},
            "sections": [{"field": "messages", "action": "$role", "template": "conversation"}],
        },
    ),
    "speakers as fields": (
        {"user": "Where is {n}?", "assistant": "At {n} is a long street, with trees and lamps on both sides. " * 3},
        {
            "adapter": {"name": "alpaca", "instruction": "user", "output": "assistant"},
            "sections": [{"field": "messages", "action": "$role", "template": "conversation"}],
        },
    ),
    "a text under another name": ({"page_text": "At {n} there is a long page of text, " * 5}, {
        "sections": [{"field": "page_text", "action": "train"}],
    }),
    "ids": ({"input_ids": [5, 6, 7], "labels": [-100, 6, 7], "note": "{n}"}, {"adapter": "tokenized"}),
    "a rollout a record": (
        {"prompt_ids": [5, 6], "response_ids": [7, 2], "rewards": 1.0, "note": "{n}"},
        {
            "rollouts": {
                "prompt_ids": "prompt_ids",
                "response_ids": "response_ids",
                "rewards": "rewards",
                "grouped": False,
            }
        },
    ),
    "a rollout with a trainer's names": (
        {"prompt_ids": [5, 6], "completion_ids": [7, 2], "completion_mask": [1, 0], "reward": 1.0, "note": "{n}"},
        {
            "rollouts": {
                "prompt_ids": "prompt_ids",
                "response_ids": "completion_ids",
                "loss_mask": "completion_mask",
                "rewards": "reward",
                "grouped": False,
            }
        },
    ),
    "preference of texts with a prompt": (
        {"prompt": "Where is {n}?", "chosen": " At {n}.", "rejected": " No."},
        {
            "sources": {
                side: {"sections": [{"field": "prompt", "action": "mask"}, {"field": side, "action": "train"}]}
                for side in ("chosen", "rejected")
            }
        },
    ),
    "preference that repeats its prompt": (
        {
            "prompt": says(user="Where is {n}?"),
            "chosen": says(user="Where is {n}?", assistant="At {n}."),
            "rejected": says(user="Where is {n}?", assistant="No."),
        },
        {"sources": sides("prompt", template="conversation")},
    ),
    "preference of texts with nothing between them": (
        {"prompt": "Where is {n}?", "chosen": "At {n}.", "rejected": "No."},
        {
            "adapter": {"name": "alpaca", "to": "preference", "instruction": "prompt"},
            "sources": sides("prompt", template="conversation"),
        },
    ),
    "preference with a system text beside messages": (
        {
            "system": "Be brief.",
            "prompt": "Where is {n}?",
            "chosen": says(user="Where is {n}?", assistant="At {n}."),
            "rejected": says(user="Where is {n}?", assistant="No."),
        },
        {
            "adapter": {"name": "alpaca", "to": "preference", "instruction": "prompt"},
            "sources": sides("prompt", template="conversation"),
        },
    ),
    "preference of ShareGPT, a side being one item": (
        {
            "conversations": items(human="Where is {n}?"),
            "chosen": {"from": "gpt", "value": "At {n}."},
            "rejected": {"from": "gpt", "value": "No."},
        },
        {"adapter": "sharegpt", "sources": sides("messages", template="conversation")},
    ),
}  # fmt: skip


def numbered(value: Any, number: int) -> Any:
    """A record with `{n}` filled in."""
    return json.loads(json.dumps(value).replace("{n}", f"place {number}"))


@pytest.mark.parametrize("shape", SHAPES)
def test_a_shape_gets_its_config_and_nothing_of_it_is_lost(
    shape: str, start: Start, tmp_path: Path, tokenizer_path: str
) -> None:
    record, expected = SHAPES[shape]
    records = [numbered(record, number) for number in range(40)]
    config, _, _ = start(records)
    assert config["input"] == expected
    found = audit(str(tmp_path / "input.jsonl"), PipelineConfig.from_dict(config), tokenizer_path)[None]
    assert "field_not_read" not in {each.name for each in found.findings}
    assert found.sample.outcomes() == {"dropped": {}, "rejected": {}}
    assert found.sample.kept[2] > 0
    made = PipelineConfig.from_dict(start(records, "--overwrite", tokenizer=None)[0])
    assert made.input == PipelineConfig.from_dict(config).input


def test_rewards_that_a_run_rejects_are_not_read_and_a_missing_generation_prompt_is_said(start: Start) -> None:
    good = [True, False]
    records = [{"prompt": says(user=f"{n}?"), "responses": [f"{n}.", "No."], "rewards": good} for n in range(9)]
    config, _, told = start(records)
    assert [*config["input"]["sources"]] == ["prompts", "responses"]
    for said in ("9 kept", "rewards are not written", "without the generation prompt"):
        assert said in told


@pytest.mark.parametrize("role", ["function", "ipython"])  # ToolBench, Llama 3
def test_a_speaker_that_is_a_tool_is_no_user(start: Start, role: str) -> None:
    said = {"human": "Where is {n}?", "gpt": "look({n})", role: "In {n}."}
    config, _, told = start([numbered({"conversations": items(**said)}, n) for n in range(9)])
    assert config["input"]["adapter"] == "sharegpt"
    assert "not among the usual names" not in told


def test_messages_of_the_role_tool_call_are_calls_of_the_assistant(start: Start) -> None:
    call = '{"name": "f", "arguments": {}}'
    config, _, _ = start([{"messages": says(user="Where?", tool_call=call, tool_response="3", assistant="At 3.")}])
    assert config["input"]["adapter"] == {"name": "sharegpt", "field": "messages"}


def test_records_of_two_shapes_are_said(start: Start) -> None:
    chats = [{"messages": says(user=f"Where is {n}?", assistant=f"At {n}."), "text": "More."} for n in range(30)]
    texts = [{"text": f"A page about {n}."} for n in range(10)]
    config, reasons, told = start(chats + texts)
    assert config["input"]["sections"][0]["field"] == "messages"
    for text in (told, reasons):
        assert "10 of 40 records have another shape: texts in 'text'" in text
        assert "30 records have texts in 'text', too" in text


@pytest.mark.parametrize("gpt", ["gpt", "GPT", "Assistant"])
def test_a_stranger_among_known_speakers_is_not_trained(start: Start, gpt: str) -> None:
    said = {"human": "Where is {n}?", "narrator": "Rain.", gpt: "At {n}."}
    talks = [{"conversations": items(**{who: text.format(n=n) for who, text in said.items()})} for n in range(9)]
    config, _, told = start(talks)
    assert config["input"]["adapter"]["roles"] == {"narrator": "user"} | ({} if gpt == "gpt" else {gpt: "assistant"})
    assert "'narrator'" in told
    assert "no message has the role" not in told


@pytest.mark.parametrize("key", ["messages", "conversations"])
def test_of_two_strangers_none_is_trained(start: Start, key: str) -> None:
    said = {"Context": "It rains.", "User": "Where is {n}?", "Agent": "At {n}."}
    talk = [{"role": who, "content": text} for who, text in said.items()]
    talk = talk if key == "messages" else items(**said)
    config, _, told = start([{key: json.loads(json.dumps(talk).replace("{n}", str(n)))} for n in range(9)])
    assert config["input"]["adapter"]["roles"] == {"Context": "user", "User": "user", "Agent": "user"}
    assert "'Context', 'User', 'Agent' are not among the usual names" in told
    assert "no message has the role 'assistant'" in told


def test_lists_of_roles_without_contents_are_no_conversations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], tokenizer_path: str
) -> None:
    turns = [{"role": "user", "parts": [{"text": "Hi"}]}, {"role": "model", "parts": [{"text": "Hello."}]}]
    path = tmp_path / "gemini.jsonl"
    path.write_text(json.dumps({"contents": turns}) + "\n", encoding="utf-8")
    made = tmp_path / "made.json"
    assert main(["init", str(path), "-o", str(made), "--tokenizer_path", tokenizer_path]) == 3
    assert "'contents' (a list of objects with 'role', 'parts')" in capsys.readouterr().err
    assert not made.exists()


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """The folder of a tokenizer without a chat template."""
    folder = tmp_path / "bare"
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(ROOT / "examples" / "tokenizer" / name, folder)
    return folder


def test_a_tokenizer_without_a_template_gets_one_that_can_be_proven(start: Start, bare: Path) -> None:
    config, reasons, told = start(DATA / "chat.jsonl", tokenizer=str(bare))
    assert config["input"]["chat_template"] == PLAIN_TEMPLATE
    assert "the tokenizer has no chat template" in reasons
    assert "tried on these records:\n260 kept" in told


def test_a_template_that_asks_for_the_date_gets_one(start: Start, bare: Path) -> None:
    (bare / "chat_template.jinja").write_text("{{- strftime_now('%Y') -}}" + PLAIN_TEMPLATE)
    config, reasons, _ = start(DATA / "chat.jsonl", tokenizer=str(bare))
    assert len(config["input"]["date"]) == 10
    assert "`input.date`" in reasons


def test_lengths_are_those_of_the_records(start: Start) -> None:
    long = [
        {"messages": says(user=f"Count from {n}.", assistant=" ".join(map(str, range(n, n + 700))))} for n in range(9)
    ]
    config, reasons, _ = start(long)
    assert config["preprocessing"]["max_seq_len"] == 4096
    assert "0.0% of all are cut off" in reasons


def test_odd_records_among_good_ones_are_no_trouble(start: Start, tmp_path: Path) -> None:
    good = [{"messages": says(user=f"Where is {n}?", assistant=f"At {n}.")} for n in range(20)]
    odd: list[dict[str, Any]] = [{"messages": value} for value in (None, 7, "text", [], [1], [{"role": 3}], {"a": 1})]
    odd += [
        {},
        {"chosen": "a", "rejected": []},
        {"prompt_ids": [True]},
        {f"name {n}": says(user="x") for n in range(9)},
    ]
    (tmp_path / "input.jsonl").write_bytes(
        b"".join(json.dumps(record).encode() + b"\n" for record in [*good, *odd]) + b'{"messages": "\x1b[31m'
    )
    config, reasons, told = start(tmp_path / "input.jsonl")
    assert config["input"]["sections"][0]["field"] == "messages"
    assert "a run on these would fail: " in told
    assert "\x1b" not in told
    assert len(reasons) < 6000


# Files.


def test_nothing_is_replaced_without_overwrite(
    start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("made.json", "made.md"):
        (tmp_path / name).write_text("mine")
        assert main(["init", str(DATA / "chat.jsonl"), "-o", str(tmp_path / "made.json")]) == 4
        assert f"{name} is there already: pass --overwrite" in capsys.readouterr().err
        assert [path.name for path in tmp_path.iterdir()] == [name]
        assert (tmp_path / name).read_text() == "mine"
        (tmp_path / name).unlink()
    assert main(["init", str(DATA / "chat.jsonl"), "-o", str(tmp_path / "made.md")]) == 4  # beside it, the same file
    assert "give a name that ends in .json" in capsys.readouterr().err
    for no_file in ("", ".", "/", str(tmp_path)):
        assert main(["init", str(DATA / "chat.jsonl"), "-o", no_file, "--overwrite"]) == 4
        assert f"-o is {no_file!r}, wanted a file" in capsys.readouterr().err
    (tmp_path / "made.json").write_text("mine")
    config, _, _ = start(DATA / "chat.jsonl", "--overwrite")
    assert config["mask"] == {"assistant": "train"}


def test_an_input_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text('{"text": "A page about the sea."}\n')
    assert main(["init", str(data), "-o", str(data), "--overwrite"]) == 4
    assert "is an input" in capsys.readouterr().err
    assert data.read_text() == '{"text": "A page about the sea."}\n'


def test_what_is_no_jsonl_or_fits_nothing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, content, wanted in [
        ("a.json", '{"data": [{"text": "a"}]}', "one object with its records in the list 'data'"),
        ("a.csv", "text,n\nhello,1\nworld,2\n", "'a.csv' is a table (CSV)"),
        ("x.jsonl", "a,b\n1,2\n", "has no record that can be read: its lines are rejected as bad_json"),
        ("a.jsonl", "", "has no record"),
        ("a.jsonl", '{"nothing": null, "q": [1, 2]}\n', "'nothing' (null), 'q' (a list)"),
        (
            "a.jsonl",
            '{"preferred_output": [{"role": "assistant", "content": "a"}]}\n',
            "(pairs: 'chosen' and 'rejected')",
        ),
        ("a.jsonl", f'{{"role": "user", "text": "{"How? " * 50}"}}\n', "'role' (a string (\"user\")), 'text'"),
        ("a.jsonl", '{"a": [{"by": "x", "said": "y"}]}\n', "'a' (a list of objects with 'by', 'said')"),
        ("a.jsonl", '{"prompt": "a", "completions": ["b", "c"], "labels": [true, false]}\n', "'labels' (a list)"),
        ("a.jsonl", '{"prompt": [{"role": "user", "content": "a"}]}\n', "are given as ids (docs/rollouts.md)"),
    ]:
        Path(name).write_text(content)
        assert main(["init", name]) == 3
        assert wanted in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["texts with a space", "messages"])
def test_unpaired_preference_keeps_its_label(kind: str, start: Start) -> None:
    answers = [("2", True), ("3", False), ("two", True), ("4", False)]
    asked: Any = "1 + 1 =" if kind == "texts with a space" else says(user="1 + 1 =")
    records = [
        {"prompt": asked, "completion": f" {text}" if isinstance(asked, str) else says(assistant=text), "label": good}
        for text, good in answers
    ]
    config, reasons, told = start(records)
    assert "chosen: answers that are good or bad (unpaired preference) in 'prompt' and 'completion' and 'label'" in told
    assert config["output"] == {"preset": "trl_kto"}
    assert "`output.preset`" in reasons
    assert "`output.columns`" not in reasons
    assert "'label' marks answers as good or bad (true 2, false 2); the config keeps it beside the tokens" in told


def test_tools_in_a_text_are_not_taken_for_the_text(start: Start) -> None:
    tools = json.dumps([{"name": "find", "description": "Finds a thing. " * 10, "parameters": {}}])
    record = {"query": "Where is it?", "answers": '[{"name": "find", "arguments": {}}]', "tools": tools}
    config, _, told = start([record])
    assert config["input"]["adapter"] == {"name": "alpaca", "instruction": "query", "output": "answers"}
    assert "'query' and 'answers'" in told


def test_a_document_by_guess_says_which_texts_stand_beside_it(start: Start) -> None:
    record = {"Frage": "Wo ist die Post?", "Antwort": "Die Post ist am Markt, neben der Apotheke. " * 5, "url": "x"}
    _, reasons, told = start([record])
    assert "to decide: 'Antwort', the only long text, is trained as a document, without 'Frage'. If it answers" in told
    assert '"instruction": "Frage", "output": "Antwort"' in reasons


def test_a_document_beside_its_summary_says_so(start: Start) -> None:
    told = start(
        [{"article": "A ship has left the port. " * 9, "highlights": "A ship sailed off.", "title": "On a ship"}]
    )[2]
    assert "to decide: 'article' is trained as a document, without 'highlights'. If another field answers it" in told
    assert '"instruction": "article", "output": "highlights"' in told


def test_prompts_alone_are_no_conversations(start: Start) -> None:
    told = start([{"messages": says(user="Where is the post?"), "ground_truth": "4"}])[2]
    assert "found: 1 of 'user'. Put answers in other fields behind them" in told
    assert "prompts without answers, for reinforcement learning, are given as ids" in told


@pytest.mark.parametrize(
    ("beside", "answer"),
    [({"canonical_solution": "    return a + b\n"}, "canonical_solution"), ({"answers": []}, "...")],
)
def test_a_question_that_is_taken_for_a_document_is_told(beside: dict[str, Any], answer: str, start: Start) -> None:
    told = start([{"prompt": "Write a function that adds two numbers. " * 4, **beside}])[2]
    assert "'prompt', the only long text, is trained as a document, though its name is a question's. If" in told
    assert f'"instruction": "prompt", "output": "{answer}"' in told


def test_records_of_another_shape_that_the_config_reads_are_not_told(start: Start) -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}]
    turns = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello."}]
    sides = {"chosen": messages[1:], "rejected": [{"role": "assistant", "content": "No."}]}
    for most, few in (
        ({"conversations": turns}, {"messages": messages}),
        ({"conversations": turns}, {"conversations": messages}),
        ({"prompt": messages[:1], **sides}, {"prompt": "Hi", "chosen": "Hello.", "rejected": "No."}),
    ):
        told = start([most] * 3 + [few], "--overwrite")[2]
        assert "4 kept" in told
        assert "another shape" not in told


def test_a_text_that_others_mostly_stand_beside_is_no_document_by_guess() -> None:
    long, short = ("USER: Where is it? ASSISTANT: At the market. " * 5, "You are helpful.")
    glaive = [{"system": system, "chat": long} for system in (long, long, short)]
    assert find_shape(glaive) is None
    found = find_shape(glaive[1:] + glaive[2:])
    assert found is not None
    assert found.shape.fields == ("chat",)


def test_what_is_said_of_a_document_by_guess_makes_a_config_that_trains_the_answer(
    start: Start, tmp_path: Path, tokenizer_path: str
) -> None:
    record = {"gold_text": "At the market.", "prompt": "Where is the post?", "llm_response": "At the market. " * 9}
    config, _, told = start([record])
    line = next(line for line in told.splitlines() if line.startswith("to decide: 'llm_response'"))
    adapter, section, mask = (
        json.JSONDecoder().raw_decode(line, line.index(begin) + len(begin))[0]
        for begin in ('"adapter": ', "the section ", '"mask": ')
    )
    assert adapter["instruction"] == "prompt"
    advised = {**config, "input": {"adapter": adapter, "sections": [section]}, "mask": mask}
    (block,) = blocks(tmp_path / "input.jsonl", advised, tokenizer_path)
    (mask,) = block.columns["loss_mask"].to_lists()
    assert 0 < sum(mask) < len(mask)


def test_a_disk_that_is_full_leaves_no_part_of_a_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    chats = tmp_path / "chats.jsonl"
    chats.write_text('{"messages": [{"role": "assistant", "content": "It wades."}]}\n', encoding="utf-8")

    def full(path: str, _: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", path)

    monkeypatch.setattr(os, "replace", full)
    assert main(["init", str(chats), "-o", str(tmp_path / "config.json")]) == 5
    assert "config.json" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [chats]


def test_a_link_to_a_config_is_followed(tmp_path: Path) -> None:
    chats, config, link = (tmp_path / name for name in ("chats.jsonl", "config.json", "link.json"))
    chats.write_text('{"messages": [{"role": "assistant", "content": "It wades."}]}\n', encoding="utf-8")
    config.write_text("{}", encoding="utf-8")
    link.symlink_to(config)
    assert main(["init", str(chats), "-o", str(link), "--overwrite"]) == 0
    assert link.is_symlink()
    assert "input" in json.loads(config.read_text())
