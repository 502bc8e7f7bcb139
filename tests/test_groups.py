"""Groups of inputs: files with fields of their own in one job, compared with a job for each."""

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest

import beam_prep as bp
from beam_prep import cli, recipe
from beam_prep.config import PipelineConfig
from beam_prep.dry_run import dry_run
from beam_prep.errors import ConfigError, InputError, RunError
from beam_prep.pipeline import Pipeline
from beam_prep.replay import Replay
from tests.conftest import ROOT, tree
from tests.test_sources import rows_of, write

RUNNER = ["--runner=FnApiRunner"]
EXAMPLES = ROOT / "examples" / "data"
CHAT = {"sections": [{"field": "messages", "action": "$role", "template": "conversation"}]}
TEXT = {"sections": [{"field": "text", "action": "train"}]}
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


def alone(given: dict[str, Any], number: int) -> tuple[dict[str, Any], Any]:
    """The config and the files of a group as a job of its own."""
    group = dict(given["input"]["groups"][number])
    files, _ = group.pop("files"), group.pop("domain", None)
    return {**given, "input": {**given["input"], **group, "groups": None}}, files


@pytest.fixture
def make(tmp_path: Path, tokenizer_path: str) -> Made:
    def _make(given: dict[str, Any], name: str = "out", inputs: Any = None, **options: Any) -> bp.Dataset:
        runner, verify = options.pop("runner", RUNNER), options.pop("verify", True)
        job = Pipeline(PipelineConfig.from_dict(given), inputs, tmp_path / name, tokenizer_path, **options)
        result = job.run(runner)
        made = bp.open(result.output)
        if verify:
            made.verify()
        return made

    return _make


def rows(made: bp.Dataset) -> list[list[list[float]]]:
    """The values of each row; a row of an output without a mask is trained."""
    found = []
    for row in made:
        values = {name: value.tolist() if hasattr(value, "tolist") else value.to_lists() for name, value in row.items()}
        if "loss_mask" not in values and "sequence" in values:
            values["loss_mask"] = [1] * len(values["sequence"])
        found.append(list(values.values()))
    return found


LABELS = {"columns": "labels", "storage_format": ["bin", "arrow"]}


@pytest.mark.parametrize(
    "parts",
    [{"output": LABELS}, pytest.param({"output": {"loss_weights": True}}, marks=pytest.mark.long)],
    ids=["labels", "masks"],
)
def test_a_group_gives_the_rows_that_a_job_of_its_own_gives(parts: dict[str, Any], make: Made) -> None:
    given = config(named(), preprocessing={"eos": "if_missing", "min_chars": 20}, **parts)
    together = make(given)
    ledgers = []
    for number, group in enumerate(given["input"]["groups"]):
        own, files = alone(given, number)
        single = make(own, group["domain"], files)
        assert rows(together.domain(group["domain"])) == rows(single)
        ledgers.append(single.manifest["ledger"])
        (entry,) = single.manifest["inputs"]
        assert together.manifest["inputs"][number] == entry
    assert together.manifest["ledger"]["kept"] == sum(ledger["kept"] for ledger in ledgers)
    assert together.manifest["ledger"]["dropped"] == {"too_short": 1} == ledgers[2]["dropped"]
    assert together.manifest["group_files"] == [1, 1, 1, 1]


def test_rows_without_a_domain_are_in_the_order_of_the_groups(make: Made) -> None:
    given = config([GROUPS[name] for name in ("text", "chat", "pairs")])
    singles = [make(*own) for own in [(alone(given, n)[0], f"o{n}", alone(given, n)[1]) for n in range(3)]]
    assert rows(make(given)) == [row for single in singles for row in rows(single)]


WORKERS = ["--runner=DirectRunner", "--direct_num_workers=2"]


@pytest.mark.parametrize(
    ("packing", "runner"),
    [
        ("none", RUNNER),
        *(pytest.param(*each, marks=pytest.mark.long) for each in (("bfd", WORKERS), ("wrapped", RUNNER))),
    ],
    ids=["none", "bfd, workers", "wrapped"],
)
def test_neither_blocks_nor_workers_change_a_byte(packing: str, runner: Any, make: Made, tmp_path: Path) -> None:
    given = config(
        named(),
        preprocessing={"packing_strategy": packing, "max_seq_len": 512},
        output={"max_tokens_per_shard": 9000, "columns": "labels"},
    )
    make(given, "one")
    make(given, "other", block_bytes=65536, runner=runner)
    assert tree(tmp_path / "one") == tree(tmp_path / "other")


def test_tables_and_compressed_files_may_be_groups(make: Made, tmp_path: Path) -> None:
    packed = tmp_path / "text.jsonl.gz"
    packed.write_bytes(gzip.compress((EXAMPLES / "text.jsonl").read_bytes()))
    table = write(rows_of(EXAMPLES / "chat.jsonl"), tmp_path / "chat")
    other = config([{**GROUPS["chat"], "files": table}, {**GROUPS["text"], "files": [str(packed)]}, GROUPS["pairs"]])
    assert rows(make(other, "other")) == rows(make(config([GROUPS[name] for name in ("chat", "text", "pairs")])))


def test_equal_bytes_in_two_groups_are_two_blocks(make: Made, tmp_path: Path) -> None:
    lines = [{"text": f"a text of its own, number {n}", "prompt": "what?", "response": "that."} for n in range(9)]
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    groups = [
        {**TEXT, "files": str(tmp_path / "a.jsonl"), "domain": "a"},
        {**PAIR, "files": str(tmp_path / "b.jsonl"), "domain": "b"},
        {**TEXT, "files": str(tmp_path / "c.jsonl"), "domain": "c"},
    ]
    given = config(groups, preprocessing={"min_chars": 0})
    cache_dir = str(tmp_path / "token_cache")
    made = make(given, cache_dir=cache_dir)
    again = make(given, "again", cache_dir=cache_dir)
    assert tree(tmp_path / "out") == tree(tmp_path / "again")
    assert again.run["blocks_reused"] == 3
    texts, pairs, others = (rows(made.domain(name)) for name in "abc")
    assert texts == others != pairs
    assert len(texts) == len(pairs) == 9
    assert [row[1][0] for row in pairs] == [0] * 9  # the prompt is masked
    assert len({each["digest"] for each in made.manifest["inputs"]}) == 1  # of the bytes, whatever the group


def test_a_chain_of_ones_own_makes_two_blocks_of_equal_bytes_too(tmp_path: Path, tokenizer_path: str) -> None:
    lines = [{"text": f"a text of its own, number {n}", "prompt": "what?", "response": "that."} for n in range(9)]
    groups = []
    for name, fields in (("a", TEXT), ("b", PAIR)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        groups.append({**fields, "files": str(tmp_path / f"{name}.jsonl"), "domain": name})
    given = PipelineConfig.from_dict(config(groups, preprocessing={"min_chars": 0}))
    tokenizer = bp.Tokenizer.load(tokenizer_path)
    with beam.Pipeline(runner="FnApiRunner") as pipeline:
        records = pipeline | bp.ReadJSONL(recipe.inputs_of(given, None))
        _ = records | bp.Prepare(given, tokenizer) | bp.Shard(str(tmp_path / "out"), tokenizer=tokenizer)
    made = bp.open(tmp_path / "out")
    assert len(made.domain("a")) == len(made.domain("b")) == 9
    assert rows(made.domain("a")) != rows(made.domain("b"))


def test_another_group_leaves_the_blocks_of_a_group(make: Made, tmp_path: Path) -> None:
    cache_dir = str(tmp_path / "token_cache")
    make(config(named("chat", "pairs")), "first", cache_dir=cache_dir)
    changed = named("text", "chat", "pairs")
    changed[2]["sections"] = [{"field": "response", "action": "train"}]
    job = Pipeline(
        PipelineConfig.from_dict(config(changed)),
        None,
        tmp_path / "out",
        ROOT / "examples/tokenizer",
        cache_dir=cache_dir,
    )
    plan = dry_run(job)
    assert (plan.blocks, plan.reused) == (3, 1)
    assert job.run(RUNNER).manifest is not None
    assert bp.open(tmp_path / "out").run["blocks_reused"] == 1
    make(config(changed), "scratch")
    assert tree(tmp_path / "out") == tree(tmp_path / "scratch")


def test_a_budget_is_of_the_domain_of_a_group(make: Made) -> None:
    mix = {"chat": {"epochs": 2}, "text": {"share": 0.05}}
    whole = make(config(named("chat", "pairs", "text")), "whole")
    mixed = make(config(named("chat", "pairs", "text"), output={"shuffle": {"seed": 1}, "mix": mix}), verify=False)
    assert sorted(rows(mixed.domain("chat"))) == sorted(2 * rows(whole.domain("chat")))
    assert sorted(rows(mixed.domain("pairs"))) == sorted(rows(whole.domain("pairs")))
    tokens = {name: sum(len(row["sequence"]) for row in mixed.domain(name)) for name in ("chat", "pairs", "text")}
    assert 0.04 < tokens["text"] / sum(tokens.values()) < 0.06


def test_a_shuffle_and_splits_are_over_all_groups(make: Made, tmp_path: Path, tokenizer_path: str) -> None:
    chats = config(named("chat", "text"), output={"shuffle": {"seed": 3}})
    whole = make(config([GROUPS["chat"], GROUPS["text"]]), "whole")
    mixed = make(config([GROUPS["chat"], GROUPS["text"]], output={"shuffle": {"seed": 3}}), "mixed")
    assert rows(mixed) != rows(whole)
    assert sorted(rows(mixed)) == sorted(rows(whole))
    chats["output"]["splits"] = {"train": 0.8, "validation": 0.2}
    for name, block_bytes in (("one", 8 << 20), ("small", 65536)):
        job = Pipeline(PipelineConfig.from_dict(chats), None, tmp_path / name, tokenizer_path, block_bytes=block_bytes)
        made = job.run(RUNNER).manifest
        assert made is not None
        assert made["totals"]["rows"] == len(whole)
        assert {(shard["split"], shard["domain"]) for shard in made["shards"]} == {
            (split, domain) for split in ("train", "validation") for domain in ("chat", "text")
        }
    assert tree(tmp_path / "one") == tree(tmp_path / "small")


def test_records_are_deduplicated_by_the_fields_of_their_group(make: Made, tmp_path: Path) -> None:
    texts = [{"text": f"number {n % 3} of three texts that come again"} for n in range(9)]
    pairs = [{"prompt": "what?", "response": f"that, {n % 2}."} for n in range(6)]
    groups = []
    for name, lines, fields in (("t", texts, TEXT), ("p", pairs, PAIR)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        groups.append({**fields, "files": str(tmp_path / f"{name}.jsonl"), "domain": name})
    made = make(config(groups, preprocessing={"min_chars": 0, "deduplicate": {}}))
    assert [len(made.domain(name)) for name in "tp"] == [3, 2]
    assert made.manifest["ledger"]["dropped"] == {"duplicate": 10}
    with pytest.raises(RunError, match="6 no_key"):
        make(config(groups, preprocessing={"min_chars": 0, "deduplicate": {"by": ["text"]}}), "other")


def test_evaluation_data_is_looked_for_in_the_fields_of_each_group(make: Made, tmp_path: Path) -> None:
    wanted = json.loads((EXAMPLES / "text.jsonl").read_text().splitlines()[5])["text"]
    (tmp_path / "eval.jsonl").write_text(json.dumps({"question": wanted}) + "\n")
    lines = [{"prompt": "Say it.", "response": wanted}, {"prompt": "Say it.", "response": "Something else."}]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    groups = [{**PAIR, "files": str(tmp_path / "p.jsonl"), "domain": "p"}, *named("text")]
    rule = {"against": str(tmp_path / "eval.jsonl")}
    made = make(config(groups, preprocessing={"decontaminate": rule}), max_no_loss_rate=1.0)
    assert made.manifest["ledger"]["dropped"]["contaminated"] == 2
    assert len(made.domain("p")) == 1


def test_what_is_carried_is_of_each_group(make: Made) -> None:
    made = make(config(named("chat", "text"), output={"keep_fields": ["text"], "provenance": True}))
    assert {row["text"] for row in made.domain("chat")} == {""}
    texts = [json.loads(line)["text"] for line in (EXAMPLES / "text.jsonl").read_text().splitlines()]
    assert {row["text"] for row in made.domain("text")} <= set(texts)
    assert [int(row["file"]) for row in made.domain("text")] == [1] * len(made.domain("text"))


def test_rollouts_may_have_other_names_in_each_group(make: Made, tmp_path: Path) -> None:
    path = EXAMPLES / "more" / "rollout_tokens.jsonl"
    renamed = tmp_path / "renamed.jsonl"
    renamed.write_text(path.read_text().replace('"rewards"', '"score"'))
    one = {"rollouts": {"rewards": "rewards"}, "files": str(path), "domain": "one"}
    other = {"rollouts": {"rewards": "score"}, "files": str(renamed), "domain": "other"}
    given = config([one, other], preprocessing={"truncation_mode": "drop"})
    if "rewards" not in PipelineConfig.from_dict(given).columns():
        pytest.fail("the rollouts have no rewards")
    made = make(given)
    assert rows(made.domain("one")) == rows(made.domain("other"))
    own, files = alone(given, 0)
    assert rows(made.domain("one")) == rows(make(own, "alone", files))


def test_preference_pairs_of_two_shapes(make: Made) -> None:
    def side(name: str, template: Any) -> dict[str, Any]:
        return {"sections": [{"field": name, "action": "$role", "template": template}]}

    files = str(EXAMPLES / "preference.jsonl")
    one = {name: side(name, "conversation") for name in ("chosen", "rejected")}
    other = {name: side(name, True) for name in ("chosen", "rejected")}
    copy = [{"files": files, "sources": one, "domain": "one"}]
    whole = config(copy)
    own, inputs = alone(whole, 0)
    assert rows(make(whole)) == rows(make(own, "alone", inputs))
    with pytest.raises(InputError, match=r"is in input\.groups\[0\] and in input\.groups\[1\]: name each file once"):
        make(config([*copy, {"files": files, "sources": other}]), "twice")


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


def call(*words: str) -> int:
    return cli.main([*words])


def test_the_command_line_takes_no_inputs(files: Path, tokenizer_path: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(files.parent / "out")
    job = ["-c", str(files), "--tokenizer_path", tokenizer_path]
    assert call("run", "-o", out, *job, "--max_reject_rate=0.1", *RUNNER) == 0
    assert call("run", "-o", out, *job, "--max_reject_rate=0.1", "--dry_run") == 0
    assert "is up to date" in capsys.readouterr().out
    assert call("verify", out, "--inputs") == 0
    assert call("inspect", out, "--no_pager") == 0
    assert call("inspect", out, "--record", "265", "--source", "--no_pager") == 0
    assert '{"text": ' in capsys.readouterr().out
    assert call("audit", *job) == 1
    told = capsys.readouterr().out
    assert told.count("records looked at (all of it), in 1 file") == 2
    one, _, other = told.partition("input.groups[1]:")
    assert one.startswith("input.groups[0]:")
    assert "rejected_bad_json" in other
    assert call("audit", *job, "--json") == 1
    audits = json.loads(capsys.readouterr().out)["groups"]
    findings = [audits[number]["findings"] for number in "01"]
    assert [[each["name"] for each in some] for some in findings] == [
        [],
        ["no_end", "dropped_too_short", "rejected_bad_json"],
    ]
    assert call("inspect", *job, "--no_pager") == 0
    told = capsys.readouterr().out
    assert "1 bad_json" in told
    assert "domain chat" in told
    assert call("inspect", *job, "--no_pager", "--html", str(files.parent / "page.html")) == 0


def test_a_preview_looks_at_every_group(
    tmp_path: Path, tokenizer_path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(40):
        (tmp_path / f"{number}.jsonl").write_text(json.dumps({"text": f"text number {number}"}) + "\n")
    (tmp_path / "last.jsonl").write_text('{"other": "the last group"}\n')
    groups = [
        {**TEXT, "files": str(tmp_path / "[0-9]*.jsonl")},
        {"sections": [{"field": "other", "action": "train"}], "files": str(tmp_path / "last.jsonl"), "domain": "last"},
    ]
    given = tmp_path / "config.json"
    given.write_text(json.dumps(config(groups, preprocessing={"min_chars": 0})))
    assert call("inspect", "-c", str(given), "--tokenizer_path", tokenizer_path, "--no_pager", "--grep", "last") == 0
    assert "domain last" in capsys.readouterr().out


def test_an_empty_group_is_no_fault(tmp_path: Path, tokenizer_path: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty.jsonl").write_text("")
    given = tmp_path / "config.json"
    given.write_text(json.dumps(config([{**TEXT, "files": str(tmp_path / "empty.jsonl")}, *named("chat")])))
    job = ["-c", str(given), "--tokenizer_path", tokenizer_path]
    assert call("audit", *job) == 0
    assert capsys.readouterr().out.startswith("input.groups[1]:")
    assert call("inspect", *job, "--no_pager") == 0
    assert call("run", "-o", str(tmp_path / "out"), *job, *RUNNER) == 0
    assert len(bp.open(tmp_path / "out")) == 260


def test_inputs_beside_groups_are_refused(files: Path, tokenizer_path: str, capsys: pytest.CaptureFixture[str]) -> None:
    job = ["-c", str(files), "--tokenizer_path", tokenizer_path]
    chats = str(files.parent / "chat.jsonl")
    for command in (["run", "-o", str(files.parent / "out")], ["inspect"], ["audit"]):
        assert call(*command, chats, *job) == 2
        assert f"found the input {chats!r} beside input.groups of the config" in capsys.readouterr().err


def test_a_replay_reads_the_same_groups(files: Path, tokenizer_path: str, make: Made) -> None:
    given = json.loads(files.read_text())
    cache_dir = str(files.parent / "token_cache")
    make(given, max_reject_rate=0.1, cache_dir=cache_dir)
    out = files.parent / "out"
    mended = json.loads(json.dumps(given))
    mended["mask"]["tool"] = "train"
    replay = Replay(
        out, PipelineConfig.from_dict(mended), output_dir=files.parent / "new", cache_dir=cache_dir, max_reject_rate=0.1
    )
    replay.run(RUNNER)
    make(mended, "scratch", max_reject_rate=0.1)
    assert tree(files.parent / "new") == tree(files.parent / "scratch")
    (files.parent / "text2.jsonl").write_text('{"text": "one more"}\n')
    with pytest.raises(ConfigError, match="a replay reads the same inputs in the same groups"):
        Replay(out, PipelineConfig.from_dict(given), output_dir=files.parent / "no", cache_dir=cache_dir)


def test_a_file_that_moves_to_another_group_is_another_job(make: Made, tmp_path: Path, tokenizer_path: str) -> None:
    for name in "abc":
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"text": "a text", "prompt": "p", "response": name}) + "\n")

    def lists(*groups: str) -> Pipeline:
        for number, names in enumerate(groups):
            (tmp_path / f"{number}.txt").write_text("\n".join(str(tmp_path / f"{name}.jsonl") for name in names))
        given = [{**TEXT, "files": f"@{tmp_path}/0.txt"}, {**PAIR, "files": f"@{tmp_path}/1.txt"}]
        parts = config(given, preprocessing={"min_chars": 0})
        return Pipeline(PipelineConfig.from_dict(parts), None, tmp_path / "out", tokenizer_path, overwrite=True)

    assert not lists("a", "bc").run(RUNNER).up_to_date
    assert lists("a", "bc").run(RUNNER).up_to_date
    moved = lists("ab", "c").run(RUNNER)
    assert not moved.up_to_date
    assert moved.manifest is not None
    assert moved.manifest["group_files"] == [2, 1]


def test_a_failure_names_the_fields_of_the_group(make: Made, tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"content": "a text under another name"}\n' * 400)
    groups = [*named("chat"), {**TEXT, "files": str(tmp_path / "x.jsonl")}]
    with pytest.raises(RunError) as raised:
        make(config(groups))
    assert "with the fields 'content'; the config asks for 'text': 'text' is not there, did you mean 'content'?" in str(
        raised.value
    )


@pytest.mark.parametrize("most", [None, 300, 20])
def test_a_group_of_which_nothing_is_kept_fails_the_run(most: int | None, make: Made, tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"content": "a text under another name"}\n' * 4)
    groups = [*named("chat"), {**TEXT, "files": str(tmp_path / "x.jsonl")}, *named("text")]
    given = config(groups, preprocessing={"max_items": most})
    if most == 20:  # the group is not read
        assert make(given).manifest["ledger"]["not_read"] > 300
        return
    problem = (
        r"nothing is kept of input\.groups\[1\], of 4 records: .* the first record of 'empty' .*x\.jsonl .*'content'\?"
    )
    with pytest.raises(RunError, match=problem):
        make(given)


def test_a_table_of_a_group_must_have_its_fields(make: Made, tmp_path: Path) -> None:
    table = write(rows_of(EXAMPLES / "chat.jsonl"), tmp_path / "chat")
    with pytest.raises(InputError, match=r"none of the fields that the config reads \('text'\)"):
        make(config([*named("chat"), {**TEXT, "files": table}]))


def test_a_chain_of_ones_own_is_told_that_groups_name_their_files(tokenizer_path: str) -> None:
    given = PipelineConfig.from_dict(config(named("chat", "text")))
    (step,) = recipe.chain(given, bp.Tokenizer.load(tokenizer_path))
    with pytest.raises(ConfigError, match=r"is of no group: the config has input\.groups"):
        step.step()(bp.testing.records([{"text": "x"}]))


# Configs


def problem_of(given: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as raised:
        PipelineConfig.from_dict(given)
    return str(raised.value)


PROMPTS = {"x": PAIR, "p": {"sections": PAIR["sections"][:1]}}
LISTS = {"sources": {"sequence": {"sections": [{"field": "t", "action": "train"}], "list_field": True}}}


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (config([]), "input.groups: found []; must be a list that is not empty"),
        (config([{**TEXT}]), "input.groups[0].files: missing. The files of the group: paths and globs"),
        (config([{**TEXT, "files": []}]), "input.groups[0].files: found []; must be a list that is not empty"),
        (config([{"files": "a"}]), "input.groups[0]: found neither sections nor sources"),
        (config([{**TEXT, "file": "a"}]), "input.groups[0].file: unknown key 'file'; did you mean 'files'?"),
        (config([{"files": "a", "sections": [{"field": "x"}]}]), "input.groups[0].sections[0].action: missing."),
        (config([{**TEXT, "files": "a", "domain": ""}]), "input.groups[0].domain: found ''; must be a string"),
        (
            {"input": {"groups": [{**TEXT, "files": "a"}], **CHAT}},
            "input.sections: found sections beside groups; give each group its own, and leave it out here",
        ),
        (
            {"input": {"groups": [{**TEXT, "files": "a"}], "adapter": "sharegpt"}},
            "input.adapter: found adapter beside groups",
        ),
        (
            config([{**TEXT, "files": "a"}, {**LISTS, "files": "b"}]),
            "input.groups[1]: its rows are sources with 'sequence' (lists of token ids, int32)",
        ),
        (
            config([{**TEXT, "files": "a"}, {"rollouts": {}, "files": "b"}]),
            "and those of input.groups[0] are sequences with 'sequence' (token ids, int32): one output has rows of one",
        ),
        (
            config([{"files": "a", "sources": PROMPTS}, {"files": "b", "sources": {**PROMPTS, "p": TEXT}}]),
            "and those of input.groups[0] are sources with 'x' (token ids, int32), 'x_mask' (mask), 'p' (token ids, "
            "int32, none is trained)",
        ),
        (
            config([{**TEXT, "files": "a"}, {**CHAT, "files": "b"}], output={"fim": {"rate": 0.5}}),
            "output.fim: found an object; it works only with one section in input.sections: text that trains; this is "
            "of input.groups[1]",
        ),
        (
            config([{**TEXT, "files": "a"}], preprocessing={"bos": "strip"}),
            "preprocessing.bos: found 'strip'; it works only with template: 'conversation'",
        ),
        (
            config([{**TEXT, "files": "a"}], mask_options={}),
            "mask_options: found an object; it works only with template: 'conversation'",
        ),
        (
            config(named("chat", "text"), output={"shuffle": {"seed": 0}, "mix": {"chats": {"share": 0.5}}}),
            "output.mix.chats: unknown domain 'chats'; did you mean 'chat'? known: chat, text",
        ),
        (
            {**config(named("text")), "input": {"groups": named("text"), "implicit_prompt": True}},
            "found true; it works only with input.sources (chosen and rejected), in input.groups[0]",
        ),
        (
            config(named("chat", "text"), output={"preset": "maxtext"}),
            "input.groups: found sections that are not trained in full; the preset 'maxtext' trains every token",
        ),
    ],
)
def test_what_groups_cannot_be(given: dict[str, Any], problem: str) -> None:
    assert problem in problem_of(given)


def test_settings_that_only_some_groups_need_are_allowed(make: Made) -> None:
    given = config(named("chat", "text"), preprocessing={"bos": "strip"}, mask_options={"eos": "mask"})
    together = make(given)
    own, files = alone(given, 0)
    assert rows(together.domain("chat")) == rows(make(own, "chat", files))
    own, files = alone(config(named("text")), 0)
    assert rows(together.domain("text")) == rows(make(own, "text", files))


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
    assert list(PipelineConfig.from_dict(config(named())).canonical()["input"]["groups"][0]) == [
        "sections",
        "files",
        "domain",
    ]


def test_a_group_that_is_not_compared_with_evaluation_data_is_said() -> None:
    rule = {"against": "eval.jsonl", "fields": ["text", "other"]}
    parsed = PipelineConfig.from_dict(config(named("chat", "text"), preprocessing={"decontaminate": rule}))
    (warning,) = parsed.warnings
    assert warning.startswith(
        "input.groups[0]: preprocessing.decontaminate.fields names none of the fields that it reads ('messages')"
    )


def test_a_domain_key_that_no_group_needs_is_said() -> None:
    parsed = PipelineConfig.from_dict(config(named("text"), output={"domain_key": "topic"}))
    assert parsed.warnings == ["output.domain_key is ignored, because every one of input.groups has a domain"]
