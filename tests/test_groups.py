"""Groups of inputs: files with fields of their own in one job, compared with a job for each."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import beam_prep as bp
from beam_prep.config import PipelineConfig
from beam_prep.dry_run import dry_run
from beam_prep.errors import ConfigError, InputError, RunError
from beam_prep.pipeline import Pipeline
from beam_prep.replay import Replay
from tests.conftest import ROOT, TOKENIZER_PATH, Command, Run, chat_config, text_config, tree, words_of, write_lines
from tests.formats.shards import plain
from tests.test_sources import rows_of, tokens_of, write

RUNNER = ["--runner=FnApiRunner"]
EXAMPLES = ROOT / "examples" / "data"
CHAT, TEXT = chat_config()["input"], text_config()["input"]
PAIR = {"sections": [{"field": "prompt", "action": "mask"}, {"field": "response", "action": "train"}]}
GROUPS: dict[str, dict[str, Any]] = {
    "chat": {**CHAT, "files": str(EXAMPLES / "chat.jsonl")},
    "pairs": {**PAIR, "files": str(EXAMPLES / "instruction.jsonl")},
    "text": {**TEXT, "files": str(EXAMPLES / "text.jsonl")},
    "sharegpt": {**CHAT, "adapter": "sharegpt", "files": str(EXAMPLES / "more" / "sharegpt.jsonl")},
}
Made = Callable[..., bp.Dataset]


def config(groups: list[dict[str, Any]], **parts: Any) -> dict[str, Any]:
    return {"input": {"groups": groups}, "mask": {"assistant": "train"}, **parts}


def named(*names: str) -> list[dict[str, Any]]:
    return [{**GROUPS[name], "domain": name} for name in names or GROUPS]


def in_file(path: Path, lines: list[dict[str, Any]], fields: dict[str, Any]) -> dict[str, Any]:
    """A group of one file, with its name as domain."""
    return {**fields, "files": str(write_lines(path, lines)), "domain": path.stem}


def alone(given: dict[str, Any], number: int) -> list[list[Any]]:
    """The rows of a group as those of a config of its own, without a job."""
    group = dict(given["input"]["groups"][number])
    files, _ = group.pop("files"), group.pop("domain", None)
    rows, _ = tokens_of(files, {**given, "input": {**given["input"], **group, "groups": None}})
    return list(map(list, rows))


@pytest.fixture
def make(run: Run) -> Made:
    def _make(given: dict[str, Any], name: str = "out", **options: Any) -> bp.Dataset:
        made = bp.open(run(given, None, name, **options).output, split="all")
        made.verify()
        return made

    return _make


def rows(made: bp.Dataset) -> list[list[Any]]:
    """The values of each row."""
    return [[*plain(row).values()] for row in made]


def test_a_group_gives_the_rows_that_a_job_of_its_own_gives(make: Made) -> None:
    output = {"columns": "labels", "storage_format": ["bin", "arrow"]}
    given = config(named(), preprocessing={"eos": "if_missing", "min_chars": 20}, output=output)
    together = make(given)
    for number, group in enumerate(given["input"]["groups"]):
        assert rows(together.domain(group["domain"])) == alone(given, number)
    assert together.manifest["ledger"]["dropped"] == {"too_short": 1}
    assert together.manifest["group_files"] == [1, 1, 1, 1]


def test_equal_bytes_in_two_groups_are_two_blocks(make: Made, tmp_path: Path) -> None:
    lines = [{"text": f"a text of its own, number {n}", "prompt": "what?", "response": "that."} for n in range(9)]
    groups = [in_file(tmp_path / f"{name}.jsonl", lines, fields) for name, fields in (("a", TEXT), ("b", PAIR))]
    groups.append(in_file(tmp_path / "c.jsonl", lines, TEXT))
    given = config(groups, preprocessing={"min_chars": 0}, output={"columns": "labels"})
    cache_dir = str(tmp_path / "token_cache")
    made = make(given, cache_dir=cache_dir)
    again = make(given, "again", cache_dir=cache_dir)
    assert tree(tmp_path / "out") == tree(tmp_path / "again")
    assert again.run["blocks_reused"] == 3
    assert rows(made) == [row for number in range(3) for row in alone(given, number)]
    assert len({each["digest"] for each in made.manifest["inputs"]}) == 1  # of the bytes, whatever the group


def test_another_group_leaves_the_blocks_of_a_group(make: Made, tmp_path: Path) -> None:
    cache_dir = str(tmp_path / "token_cache")
    make(config(named("chat", "pairs"), output={"columns": "labels"}), "first", cache_dir=cache_dir)
    changed = named("text", "chat", "pairs")
    changed[2]["sections"] = [{"field": "response", "action": "train"}]
    given = config(changed, output={"columns": "labels"})
    job = Pipeline(PipelineConfig.from_dict(given), None, tmp_path / "out", TOKENIZER_PATH, cache_dir=cache_dir)
    assert "blocks: 3; 1 are in the token cache, 2 would be tokenised" in dry_run(job)
    made = make(given, cache_dir=cache_dir)
    assert made.run["blocks_reused"] == 1
    assert [rows(made.domain(group["domain"])) for group in changed] == [alone(given, number) for number in range(3)]


def test_rules_read_the_fields_of_each_group(make: Made, tmp_path: Path) -> None:
    leak = json.loads((EXAMPLES / "text.jsonl").read_text().splitlines()[5])["text"]
    (tmp_path / "eval.jsonl").write_text(json.dumps({"question": leak}) + "\n")
    texts = [{"text": f"number {n % 3} of three texts that come again"} for n in range(9)] + [{"text": leak}]
    pairs = [{"prompt": "what?", "response": said} for said in ["one.", "two."] * 3 + [leak]]
    groups = [in_file(tmp_path / "p.jsonl", pairs, PAIR), in_file(tmp_path / "t.jsonl", texts, TEXT)]
    rules = {"min_chars": 0, "deduplicate": {}, "decontaminate": {"against": str(tmp_path / "eval.jsonl")}}
    made = make(config(groups, preprocessing=rules, output={"keep_fields": ["text"], "provenance": True}))
    assert made.manifest["ledger"]["dropped"] == {"duplicate": 10, "contaminated": 2}
    assert [(row["text"], int(row["file"])) for row in made.domain("p")] == [("", 0)] * 2
    assert [(row["text"], int(row["file"])) for row in made.domain("t")] == [(row["text"], 1) for row in texts[:3]]


def test_rollouts_may_have_other_names_in_each_group(make: Made, tmp_path: Path) -> None:
    path = EXAMPLES / "more" / "rollout_tokens.jsonl"
    renamed = tmp_path / "renamed.jsonl"
    renamed.write_text(path.read_text().replace('"rewards"', '"score"'))
    one = {"rollouts": {"rewards": "rewards"}, "files": str(path), "domain": "one"}
    other = {"rollouts": {"rewards": "score"}, "files": str(renamed), "domain": "other"}
    given = config([one, other], preprocessing={"truncation_mode": "drop"})
    made = make(given)
    assert rows(made.domain("one")) == rows(made.domain("other")) == alone(given, 0)


# What looks at a config


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A config with two groups whose files are beside it, and some records that are left out."""
    shutil.copy(EXAMPLES / "chat.jsonl", tmp_path / "chat.jsonl")
    text = (EXAMPLES / "text.jsonl").read_text()
    (tmp_path / "text.jsonl").write_text("{broken\n" + text + json.dumps({"text": "short"}) + "\n")
    groups = [
        {**CHAT, "files": str(tmp_path / "chat.jsonl"), "domain": "chat"},
        {**TEXT, "files": str(tmp_path / "te*.jsonl"), "domain": "text"},
    ]
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config(groups, output={"provenance": True})))
    return path


def test_the_command_line_takes_no_inputs(files: Path, command: Command) -> None:
    out = files.parent / "out"
    job = ["-c", files, "--tokenizer_path", TOKENIZER_PATH]
    command("run", "-o", out, *job, "--max_reject_rate=0.1", *RUNNER)
    command("verify", out, "--inputs")
    assert '{"text": ' in command("inspect", out, "--record", "265", "--source", "--no_pager")
    assert "rejected_bad_json" in command("audit", *job, code=1).partition("input.groups[1]:")[2]
    audits = json.loads(command("audit", *job, "--json", code=1))["groups"]
    findings = [[each["name"] for each in audits[number]["findings"]] for number in "01"]
    assert findings == [[], ["no_end", "dropped_too_short", "rejected_bad_json"]]


def test_a_preview_looks_at_every_group(tmp_path: Path, command: Command) -> None:
    """An empty one is no fault."""
    for number in range(40):
        write_lines(tmp_path / f"{number}.jsonl", [{"text": f"text number {number}"}])
    groups = [
        {**TEXT, "files": str(write_lines(tmp_path / "empty.jsonl", []))},
        {**TEXT, "files": str(tmp_path / "[0-9]*.jsonl")},
        in_file(tmp_path / "last.jsonl", [{"prompt": "the last", "response": "group"}], PAIR),
    ]
    job = words_of(config(groups, preprocessing={"min_chars": 0}), tmp_path)
    assert "domain last" in command("inspect", *job, "--no_pager", "--grep", "last")
    assert command("audit", *job, code=1).startswith("input.groups[1]:")


def test_a_replay_reads_the_same_groups(files: Path, make: Made) -> None:
    given = json.loads(files.read_text())
    options: dict[str, Any] = {"cache_dir": str(files.parent / "token_cache"), "max_reject_rate": 0.1}
    make(given, **options)
    out, mended = files.parent / "out", {**given, "mask": {"assistant": "train", "tool": "train"}}
    Replay(out, PipelineConfig.from_dict(mended), output_dir=files.parent / "new", **options).run(RUNNER)
    make(mended, "scratch", max_reject_rate=0.1)
    assert tree(files.parent / "new") == tree(files.parent / "scratch")
    (files.parent / "text2.jsonl").write_text('{"text": "one more"}\n')
    with pytest.raises(ConfigError, match="a replay reads the same inputs in the same groups"):
        Replay(out, PipelineConfig.from_dict(given), output_dir=files.parent / "no", cache_dir=options["cache_dir"])


def test_a_file_that_moves_to_another_group_is_another_job(make: Made, tmp_path: Path) -> None:
    for name in "abc":
        write_lines(tmp_path / f"{name}.jsonl", [{"text": "a text", "prompt": "p", "response": name}])
    given = [{**TEXT, "files": f"@{tmp_path}/0.txt"}, {**PAIR, "files": f"@{tmp_path}/1.txt"}]

    def lists(*groups: str) -> bp.Dataset:
        for number, names in enumerate(groups):
            (tmp_path / f"{number}.txt").write_text("\n".join(str(tmp_path / f"{name}.jsonl") for name in names))
        return make(config(given, preprocessing={"min_chars": 0}), overwrite=True)

    assert lists("a", "bc").manifest["group_files"] == [1, 2]
    assert lists("ab", "c").manifest["group_files"] == [2, 1]


def test_a_group_of_which_nothing_is_kept_fails_the_run(make: Made, tmp_path: Path) -> None:
    group = in_file(tmp_path / "x.jsonl", [{"content": "a text under another name"}] * 4, TEXT)
    groups = [*named("chat"), group, *named("text")]
    assert make(config(groups, preprocessing={"max_items": 20})).manifest["ledger"]["not_read"] > 300  # nor the group
    problem = (
        r"nothing is kept of input\.groups\[1\], of 4 records: .* the first record of 'empty' .*x\.jsonl .*"
        "with the fields 'content'; the config asks for 'text': 'text' is not there"
    )
    with pytest.raises(RunError, match=problem):
        make(config(groups), "other")


def test_what_is_refused_before_a_run(tmp_path: Path, make: Made) -> None:
    table = write(rows_of(EXAMPLES / "chat.jsonl"), tmp_path / "chat")
    twice = r"is in input\.groups\[0\] and in input\.groups\[1\]: name each file once"
    with pytest.raises(InputError, match=twice):
        make(config([GROUPS["text"], GROUPS["text"]]))
    with pytest.raises(InputError, match=r"none of the fields that the config reads \('text'\)"):
        make(config([{**TEXT, "files": table}]))


@pytest.mark.parametrize("name", ["inspect", "audit"])
def test_inputs_beside_groups_are_refused(name: str, files: Path, command: Command) -> None:
    said = command(name, "chat.jsonl", "-c", files, "--tokenizer_path", TOKENIZER_PATH, code=2)
    assert "found the input 'chat.jsonl' beside input.groups of the config" in said


# Configs


A_TEXT = {**TEXT, "files": "a"}
PROMPTS = {"x": PAIR, "p": {"sections": PAIR["sections"][:1]}}


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (config([]), "input.groups: found []; must have at least 1 item"),
        (config([{"files": "a"}]), "input.groups[0]: found neither sections nor sources"),
        ({"input": {"groups": [A_TEXT], **CHAT}}, "input.sections: found sections beside groups; give each group"),
        (
            config([A_TEXT, {"rollouts": {}, "files": "b"}]),
            "and those of input.groups[0] are sequences with 'sequence' (ids, int32, trained, no mask): one output",
        ),
        (
            config([{"files": "a", "sources": PROMPTS}, {"files": "b", "sources": {**PROMPTS, "p": TEXT}}]),
            "are sources with 'x' (ids, int32, trained, mask 'x_mask'), 'p' (ids, int32, not trained, no mask)",
        ),
        (
            config(named("chat", "text"), output={"shuffle": {"seed": 0}, "mix": {"chats": {"share": 0.5}}}),
            "output.mix.chats: unknown domain 'chats'; did you mean 'chat'? known: chat, text",
        ),
        (
            config(named("chat", "text"), output={"preset": "maxtext"}),
            "input.sections: found sections that are not trained in full; the preset 'maxtext' trains every token",
        ),
    ],
)
def test_what_groups_cannot_be(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as raised:
        PipelineConfig.from_dict(given)
    assert problem in str(raised.value)


def test_the_canonical_config_is_a_config_and_leaves_out_what_has_no_effect() -> None:
    sources = {"a": {"sections": [{"field": "x", "action": "$role", "template": True}]}}
    given = config([{**TEXT, "sources": sources, "files": "a"}, {"files": ["b"], "sources": sources}])
    parsed = PipelineConfig.from_dict(given)
    assert parsed.warnings[0] == "input.groups[0]: input.sections is ignored, because input.sources is set"
    canonical = parsed.canonical()
    one, other = canonical["input"]["groups"]
    assert one == {**other, "files": ["a"]}
    assert other["sources"]["a"]["mask_key"] == "a_mask"
    assert PipelineConfig.from_text(json.dumps(canonical)).canonical() == canonical


def test_a_group_that_is_not_compared_with_evaluation_data_is_said() -> None:
    rule = {"against": "eval.jsonl", "fields": ["text", "other"]}
    (warning,) = PipelineConfig.from_dict(config(named("chat", "text"), preprocessing={"decontaminate": rule})).warnings
    assert warning.startswith("input.groups[0]: preprocessing.decontaminate.fields names no field that this group ")
