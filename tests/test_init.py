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
from beam_prep.config import PipelineConfig
from beam_prep.recipe import prepare
from beam_prep.starter import PLAIN_TEMPLATE, find_shape
from beam_prep.tokens.batch import Batch
from tests.conftest import ROOT, TOKENIZER_PATH, Command, Patch, chats, says, write_lines
from tests.reference import ours
from tests.test_sources import blocks as blocks_in

Start = Callable[..., tuple[dict[str, Any], str, str]]
DATA = ROOT / "examples" / "data"


@pytest.fixture
def start(tmp_path: Path, command: Command) -> Start:
    """Runs the command on records or a file; gives (config, reasons, what it printed)."""

    def _start(records: Any, *options: str, tokenizer: Path | None = TOKENIZER_PATH) -> tuple[dict[str, Any], str, str]:
        path = write_lines(tmp_path / "input.jsonl", records) if isinstance(records, list) else records
        given = [] if tokenizer is None else ["--tokenizer_path", tokenizer]
        target = tmp_path / "made.json"
        told = command("init", path, "-o", target, *given, *options)
        return json.loads(target.read_text("utf-8")), (tmp_path / "made.md").read_text("utf-8"), told

    return _start


def items(**said: str) -> list[dict[str, str]]:
    return [{"from": role, "value": text} for role, text in said.items()]


def texts(**actions: str) -> dict[str, Any]:
    """Sections of texts that no template renders."""
    return {"sections": [{"field": field, "action": action} for field, action in actions.items()]}


def adapted(name: str, **keys: Any) -> dict[str, Any]:
    """Messages that an adapter makes."""
    return {"adapter": {"name": name, **keys}, **chats(messages="$role")}


def sides(prompt: str, made: Callable[..., Any] = chats) -> dict[str, Any]:
    """Sources of preference pairs."""
    return {side: made(**{prompt: "mask", side: "train"}) for side in ("chosen", "rejected")}


def blocks(path: Path, config: dict[str, Any]) -> list[Batch]:
    """The rows that a run with the config makes of the records."""
    loaded, parsed = ours(TOKENIZER_PATH), PipelineConfig.from_dict(config)
    return [prepare(block, parsed, loaded) for block in blocks_in(str(path))]


@pytest.mark.parametrize("name", ["chat", "text", "rollouts", "more/rlvr", "more/rollout_tokens"])
def test_every_sample_of_the_project_gets_a_config_that_runs(name: str, start: Start) -> None:
    path = DATA / f"{name}.jsonl"
    config, reasons, told = start(path)
    for block in blocks(path, config):
        assert bp.testing.rejects(block) == []
        assert len(block.line) >= 0.95 * len(block.ledger.status)
    for part in ("input", "preprocessing", "output"):
        for field in config.get(part, {}):
            assert f"`{part}.{field}`" in reasons  # each line has its reason
    assert f"beam-prep run -o out {path} \\\n" in told


ASKED, SAID = says(user="Where is {n}?"), says(user="Where is {n}?", assistant="At {n}.")
REFUSED = says(user="Where is {n}?", assistant="No.")
ROLLOUT = {"prompt_ids": "prompt_ids", "response_ids": "response_ids", "rewards": "rewards", "grouped": False}
TRAINERS = {"response_ids": "completion_ids", "loss_mask": "completion_mask", "rewards": "reward"}
SHAPES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "messages under another name": ({"dialog": SAID}, chats(dialog="$role")),
    "messages beside a system text": ({"system": "Be brief.", "dialog": SAID}, adapted("sharegpt", field="dialog")),
    "messages beside the text parts of a system prompt": (
        {"system": [{"type": "text", "text": "Be brief."}], "messages": SAID},
        adapted("sharegpt", field="messages"),
    ),
    "messages of a prompt, and the answer as a text": (
        {"input": says(system="Be brief.", user="Where is {n}?"), "output": "<think>\nHm.\n</think>\nAt {n}."},
        chats(input="mask", output="train"),
    ),
    "messages that end with a question, and their answer": (
        {"messages": says(user="Hi", assistant="Hello.") + ASKED, "answer": "At {n}."},
        chats(messages="mask", answer="train"),
    ),
    "a chat, and its answer once more": ({"messages": SAID, "answer": "At {n}."}, chats(messages="$role")),
    "a source and its translation": (
        {"src": "Where is {n}?", "tgt": "Wo ist {n}?"},
        adapted("alpaca", instruction="src", output="tgt"),
    ),
    "messages of a prompt, and the answers of an agent among the results of its tools": (
        {"prompt": ASKED, "completion": says(assistant="I look.", tool="{n}") + says(assistant="At {n}.")},
        chats(prompt="mask", completion="$role"),
    ),
    "ShareGPT with other speakers": (
        {"conversations": items(human="Where is {n}?", bing="At {n}.")},
        adapted("sharegpt", roles={"bing": "assistant"}),
    ),
    "roles in another case": (
        {"messages": says(System="Be brief.", User="Where is {n}?", Chatbot="At {n}.")},
        adapted("sharegpt", field="messages", roles={"System": "system", "User": "user", "Chatbot": "assistant"}),
    ),
    "a question and an answer": (
        {"question": "Where is {n}?", "answer": "At {n}."},
        adapted("alpaca", instruction="question", output="answer"),
    ),
    "a system prompt, and the result beside the solution": (
        {"system_prompt": "Be brief.", "question": "Where is {n}?", "solution": "Left: {n}.", "answer": "{n}"},
        adapted("alpaca", instruction="question", output="solution", system="system_prompt"),
    ),
    "names in another case, and a context": (
        {"Question": "Where is {n}?", "Context": "A map of {n}.", "Answer": "At {n}."},
        adapted("alpaca", instruction="Question", output="Answer", input="Context"),
    ),
    "speakers as fields": (
        {"user": "Where is {n}?", "assistant": "At {n} is a long street, with trees and lamps on both sides. " * 3},
        adapted("alpaca", instruction="user", output="assistant"),
    ),
    "a text under another name": ({"page_text": "At {n} there is a long page of text, " * 5}, texts(page_text="train")),
    "ids": ({"input_ids": [5, 6, 7], "labels": [-100, 6, 7], "note": "{n}"}, {"adapter": "tokenized"}),
    "a rollout a record": (
        {"prompt_ids": [5, 6], "response_ids": [7, 2], "rewards": 1.0, "note": "{n}"},
        {"rollouts": ROLLOUT},
    ),
    "a rollout with a trainer's names": (
        {"prompt_ids": [5, 6], "completion_ids": [7, 2], "completion_mask": [1, 0], "reward": 1.0, "note": "{n}"},
        {"rollouts": ROLLOUT | TRAINERS},
    ),
    "preference of texts with a prompt": (
        {"prompt": "Where is {n}?", "chosen": " At {n}.", "rejected": " No."},
        {"sources": sides("prompt", texts)},
    ),
    "preference that repeats its prompt": (
        {"prompt": ASKED, "chosen": SAID, "rejected": REFUSED},
        {"sources": sides("prompt")},
    ),
    "preference of texts with nothing between them": (
        {"prompt": "Where is {n}?", "chosen": "At {n}.", "rejected": "No."},
        {"adapter": {"name": "alpaca", "to": "preference", "instruction": "prompt"}, "sources": sides("prompt")},
    ),
    "preference with a system text beside messages": (
        {"system": "Be brief.", "prompt": "Where is {n}?", "chosen": SAID, "rejected": REFUSED},
        {"adapter": {"name": "alpaca", "to": "preference", "instruction": "prompt"}, "sources": sides("prompt")},
    ),
    "preference of ShareGPT, a side being one item": (
        {
            "conversations": items(human="Where is {n}?"),
            "chosen": {"from": "gpt", "value": "At {n}."},
            "rejected": {"from": "gpt", "value": "No."},
        },
        {"adapter": "sharegpt", "sources": sides("messages")},
    ),
}


def numbered(value: Any, number: int) -> Any:
    """A record with `{n}` filled in."""
    return json.loads(json.dumps(value).replace("{n}", f"place {number}"))


@pytest.mark.parametrize("shape", SHAPES)
def test_a_shape_gets_its_config_and_nothing_of_it_is_lost(shape: str, start: Start, tmp_path: Path) -> None:
    record, expected = SHAPES[shape]
    records = [numbered(record, number) for number in range(40)]
    config, _, _ = start(records)
    assert config["input"] == expected
    found = audit(str(tmp_path / "input.jsonl"), PipelineConfig.from_dict(config), TOKENIZER_PATH)[None]
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


CALL = '{"name": "f", "arguments": {}}'
TOOLS = json.dumps([{"name": "find", "description": "Finds a thing. " * 10, "parameters": {}}])


@pytest.mark.parametrize(
    ("record", "adapter", "said"),
    [
        ({"conversations": items(human="Where?", gpt="look()", function="In Rome.")}, "sharegpt", ""),  # ToolBench
        ({"conversations": items(human="Where?", gpt="look()", ipython="In Rome.")}, "sharegpt", ""),  # Llama 3
        (
            {"messages": says(user="Where?", tool_call=CALL, tool_response="3", assistant="At 3.")},
            {"name": "sharegpt", "field": "messages"},
            "",
        ),
        (
            {"query": "Where is it?", "answers": f"[{CALL}]", "tools": TOOLS},
            {"name": "alpaca", "instruction": "query", "output": "answers"},
            "'query' and 'answers'",
        ),
    ],
)
def test_tools_and_calls_are_neither_users_nor_texts(record: Any, adapter: Any, said: str, start: Start) -> None:
    config, _, told = start([record] * 9)
    assert config["input"]["adapter"] == adapter
    assert "not among the usual names" not in told
    assert said in told


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
    config, _, told = start([numbered({"conversations": items(**said)}, n) for n in range(9)])
    assert config["input"]["adapter"]["roles"] == {"narrator": "user"} | ({} if gpt == "gpt" else {gpt: "assistant"})
    assert "'narrator'" in told
    assert "no message has the role" not in told


@pytest.mark.parametrize(("key", "made"), [("messages", says), ("conversations", items)])
def test_of_two_strangers_none_is_trained(start: Start, key: str, made: Callable[..., Any]) -> None:
    talk = {key: made(Context="It rains.", User="Where is {n}?", Agent="At {n}.")}
    config, _, told = start([numbered(talk, n) for n in range(9)])
    assert config["input"]["adapter"]["roles"] == {"Context": "user", "User": "user", "Agent": "user"}
    assert "'Context', 'User', 'Agent' are not among the usual names" in told
    assert "no message has the role 'assistant'" in told


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """The folder of a tokenizer without a chat template."""
    folder = tmp_path / "bare"
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(ROOT / "examples" / "tokenizer" / name, folder)
    return folder


def test_a_tokenizer_without_a_template_gets_one_that_can_be_proven(start: Start, bare: Path) -> None:
    config, reasons, told = start(DATA / "chat.jsonl", tokenizer=bare)
    assert config["input"]["chat_template"] == PLAIN_TEMPLATE
    assert "the tokenizer has no chat template" in reasons
    assert "tried on these records:\n260 kept" in told


def test_a_template_that_asks_for_the_date_gets_one(start: Start, bare: Path) -> None:
    (bare / "chat_template.jinja").write_text("{{- strftime_now('%Y') -}}" + PLAIN_TEMPLATE)
    config, reasons, _ = start(DATA / "chat.jsonl", tokenizer=bare)
    assert len(config["input"]["date"]) == 10
    assert "`input.date`" in reasons


def test_lengths_are_those_of_the_records(start: Start) -> None:
    counted = [" ".join(map(str, range(n, n + 700))) for n in range(9)]
    config, reasons, _ = start([{"messages": says(user="Count.", assistant=said)} for said in counted])
    assert config["preprocessing"]["max_seq_len"] == 4096
    assert "0.0% of all are cut off" in reasons


def test_odd_records_among_good_ones_are_no_trouble(start: Start, tmp_path: Path) -> None:
    good = [{"messages": says(user=f"Where is {n}?", assistant=f"At {n}.")} for n in range(20)]
    odd: list[dict[str, Any]] = [{"messages": value} for value in (None, 7, "text", [], [1], [{"role": 3}], {"a": 1})]
    odd += [{}, {"chosen": "a", "rejected": []}, {"prompt_ids": [True]}]
    odd += [{f"name {n}": says(user="x") for n in range(9)}]
    (tmp_path / "input.jsonl").write_bytes(
        b"".join(json.dumps(record).encode() + b"\n" for record in [*good, *odd]) + b'{"messages": "\x1b[31m'
    )
    config, reasons, told = start(tmp_path / "input.jsonl")
    assert config["input"]["sections"][0]["field"] == "messages"
    assert "a run on these would fail: " in told
    assert "\x1b" not in told
    assert len(reasons) < 6000


# Files.


def test_nothing_is_replaced_without_overwrite(start: Start, tmp_path: Path, command: Command) -> None:
    for name in ("made.json", "made.md"):
        (tmp_path / name).write_text("mine")
        said = command("init", DATA / "chat.jsonl", "-o", tmp_path / "made.json", code=4)
        assert f"{name} is there already: pass --overwrite" in said
        assert [path.name for path in tmp_path.iterdir()] == [name]
        assert (tmp_path / name).read_text() == "mine"
        (tmp_path / name).unlink()
    said = command("init", DATA / "chat.jsonl", "-o", tmp_path / "made.md", code=4)  # beside it, the same file
    assert "give a name that ends in .json" in said
    for no_file in ("", ".", "/", str(tmp_path)):
        said = command("init", DATA / "chat.jsonl", "-o", no_file, "--overwrite", code=4)
        assert f"-o is {no_file!r}, wanted a file" in said
    (tmp_path / "made.json").write_text("mine")
    config, _, _ = start(DATA / "chat.jsonl", "--overwrite")
    assert config["mask"] == {"assistant": "train"}


def test_an_input_is_not_overwritten(tmp_path: Path, command: Command) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text('{"text": "A page about the sea."}\n')
    assert "is an input" in command("init", data, "-o", data, "--overwrite", code=4)
    assert data.read_text() == '{"text": "A page about the sea."}\n'


GEMINI = [{"role": "user", "parts": [{"text": "Hi"}]}, {"role": "model", "parts": [{"text": "Hello."}]}]


def test_what_is_no_jsonl_or_fits_nothing_is_named(tmp_path: Path, monkeypatch: Patch, command: Command) -> None:
    monkeypatch.chdir(tmp_path)
    for name, content, wanted in [
        ("a.json", '{"data": [{"text": "a"}]}', "one object with its records in the list 'data'"),
        ("a.csv", "text,n\nhello,1\nworld,2\n", "'a.csv' is a table (CSV)"),
        ("x.jsonl", "a,b\n1,2\n", "has no record that can be read: its lines are rejected as bad_json"),
        ("a.jsonl", "", "has no record"),
        ("a.jsonl", '{"nothing": null, "q": [1, 2]}\n', "'nothing' (null), 'q' (a list)"),
        ("a.jsonl", json.dumps({"preferred_output": says(assistant="a")}), "(pairs: 'chosen' and 'rejected')"),
        ("a.jsonl", f'{{"role": "user", "text": "{"How? " * 50}"}}\n', "'role' (a string (\"user\")), 'text'"),
        ("a.jsonl", '{"a": [{"by": "x"}, {"said": "y"}]}\n', "'a' (a list of objects with 'by', 'said')"),
        ("a.jsonl", '{"prompt": "a", "completions": ["b", "c"], "labels": [true, false]}\n', "'labels' (a list)"),
        ("a.jsonl", '{"prompt": [{"role": "user", "content": "a"}]}\n', "are given as ids (docs/rollouts.md)"),
        ("a.jsonl", json.dumps({"contents": GEMINI}), "'contents' (a list of objects with 'role', 'parts')"),
    ]:
        Path(name).write_text(content)
        assert wanted in command("init", name, code=3)
        Path(name).unlink()
        assert list(tmp_path.iterdir()) == []


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


ADDS = {"prompt": "Write a function that adds two numbers. " * 4}
A_QUESTION = "'prompt', the only long text, is trained as a document, though its name is a question's. If"


@pytest.mark.parametrize(
    ("record", "said", "advice"),
    [
        (
            {"Frage": "Wo ist die Post?", "Antwort": "Die Post ist am Markt, neben der Apotheke. " * 5, "url": "x"},
            "to decide: 'Antwort', the only long text, is trained as a document, without 'Frage'. If it answers",
            '"instruction": "Frage", "output": "Antwort"',
        ),
        (
            {"article": "A ship has left the port. " * 9, "highlights": "A ship sailed off.", "title": "On a ship"},
            "to decide: 'article' is trained as a document, without 'highlights'. If another field answers it",
            '"instruction": "article", "output": "highlights"',
        ),
        (
            {"messages": says(user="Where is the post?"), "ground_truth": "4"},
            "found: 1 of 'user'. Put answers in other fields behind them",
            "prompts without answers, for reinforcement learning, are given as ids",
        ),
        (
            {**ADDS, "canonical_solution": "    return a + b\n"},
            A_QUESTION,
            '"instruction": "prompt", "output": "canonical_solution"',
        ),
        ({**ADDS, "answers": []}, A_QUESTION, '"instruction": "prompt", "output": "..."'),
    ],
)
def test_what_the_user_has_to_decide_is_said(record: Any, said: str, advice: str, start: Start) -> None:
    _, reasons, told = start([record])
    for text in (reasons, told):
        assert said in text
        assert advice in text


def test_records_of_another_shape_that_the_config_reads_are_not_told(start: Start) -> None:
    messages, turns = says(user="Hi", assistant="Hello."), items(human="Hi", gpt="Hello.")
    sides = {"chosen": messages[1:], "rejected": says(assistant="No.")}
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


def test_what_is_said_of_a_document_by_guess_makes_a_config_that_trains_answers(start: Start, tmp_path: Path) -> None:
    record = {"gold_text": "At the market.", "prompt": "Where is the post?", "llm_response": "At the market. " * 9}
    config, _, told = start([record])
    line = next(line for line in told.splitlines() if line.startswith("to decide: 'llm_response'"))
    adapter, section, mask = (
        json.JSONDecoder().raw_decode(line, line.index(begin) + len(begin))[0]
        for begin in ('"adapter": ', "the section ", '"mask": ')
    )
    assert adapter["instruction"] == "prompt"
    advised = {**config, "input": {"adapter": adapter, "sections": [section]}, "mask": mask}
    (block,) = blocks(tmp_path / "input.jsonl", advised)
    (mask,) = block.columns["loss_mask"].to_lists()
    assert 0 < sum(mask) < len(mask)


def test_a_disk_that_is_full_leaves_no_part_of_a_config(tmp_path: Path, monkeypatch: Patch, command: Command) -> None:
    chats = write_lines(tmp_path / "chats.jsonl", [{"messages": says(assistant="It wades.")}])

    def full(path: str, _: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", path)

    monkeypatch.setattr(os, "replace", full)
    assert "config.json" in command("init", chats, "-o", tmp_path / "config.json", code=5)
    assert list(tmp_path.iterdir()) == [chats]


def test_a_link_to_a_config_is_followed(tmp_path: Path, command: Command) -> None:
    chats = write_lines(tmp_path / "chats.jsonl", [{"messages": says(assistant="It wades.")}])
    config, link = tmp_path / "config.json", tmp_path / "link.json"
    config.write_text("{}", encoding="utf-8")
    link.symlink_to(config)
    command("init", chats, "-o", link, "--overwrite")
    assert link.is_symlink()
    assert "input" in json.loads(config.read_text())
