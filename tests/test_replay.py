"""Replays: a run on the inputs of an output with a mended config, and what is told of the two outputs."""

import json
from collections.abc import Container
from pathlib import Path
from typing import Any

import pytest

import beam_prep as bp
from beam_prep.config import PipelineConfig
from beam_prep.errors import ConfigError, InputError, OutputError
from beam_prep.replay import Replay, Replayed, RowsCompared
from tests.conftest import Command, Patch, chat_config, run_job, tree

LOOP = (
    "{%- for message in messages %}CHECK{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}"
)
REFUSES = "{%- if message.role == 'tool' %}{{ raise_exception('tools are not known') }}{%- endif %}"
STRICT = LOOP.replace("CHECK", REFUSES)
MENDED = LOOP.replace("CHECK", "")
LOOSE: dict[str, Any] = {"max_reject_rate": 1.0, "max_no_loss_rate": 1.0}


def config(template: str | None = STRICT, **parts: Any) -> dict[str, Any]:
    """A config of chats; `parts` are merged into it: preprocessing={"max_seq_len": 9}."""
    output = {"storage_format": ["bin"], "domain_key": "topic", "max_tokens_per_shard": 3_000}
    found = chat_config(True, preprocessing={"max_seq_len": 64}, output=output)
    found["input"]["chat_template"] = template
    for part, values in parts.items():
        found[part] = {**found.get(part, {}), **values} if isinstance(values, dict) else values
    return found


def talk(number: int, role: str = "user") -> dict[str, Any]:
    """A chat of four messages, of which this is the role of the third."""
    question, answer = f"Question {number}: " + "how far " * (number % 30), "not far " * (number * 7 % 30)
    texts = [("user", question), ("assistant", f"No, {answer}"), (role, "More?"), ("assistant", "No more.")]
    return {"topic": "one", "messages": [{"role": who, "content": text} for who, text in texts]}


def talks(count: int, tools: Container[int] = ()) -> list[Any]:
    """Chats, of which these have a tool; besides blank lines, broken ones, and some with nothing in them."""
    found: list[Any] = []
    for number in range(count):
        chat = talk(number, "tool" if number in tools else "user")
        found.append(chat if number % 5 else {**chat, "topic": "two/three"})
        found += [""] * (number % 17 == 3) + ['{"topic": "one", '] * (number % 19 == 4)
        found += [{"topic": "two", "messages": []}] * (number % 23 == 5)
    return found


class Jobs:
    """Runs, replays and runs from scratch, in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, records: list[Any]) -> Path:
        path = self.folder / "a.jsonl"
        path.write_text("".join(f"{each if isinstance(each, str) else json.dumps(each)}\n" for each in records))
        return path

    def run(self, config: dict[str, Any], output: str = "out", **options: Any) -> Any:
        return run_job(config, self.folder / "a.jsonl", self.folder / output, **LOOSE, **options)

    def replay(self, config: dict[str, Any] | None, output: str | None = "new", **options: Any) -> Replayed:
        new = None if config is None else PipelineConfig.from_dict(config)
        target = None if output is None else self.folder / output
        return Replay(self.folder / "out", new, output_dir=target, **LOOSE, **options).run(["--runner=FnApiRunner"])

    def check(self, config: dict[str, Any], output: str = "new", **options: Any) -> None:
        """The replayed output is what a run from scratch makes elsewhere."""
        self.run(config, "scratch", **options)
        assert tree(self.folder / output) == tree(self.folder / "scratch")


@pytest.fixture
def jobs(tmp_path: Path) -> Jobs:
    return Jobs(tmp_path)


PACKED = {"packing_strategy": "bfd", "max_packed_len": 64}
PLACES: dict[str, Any] = {"output": {"provenance": True}}


# What is told


def test_rejects_are_compared_by_file_and_line(jobs: Jobs) -> None:
    jobs.write([talk(0, "tool"), talk(1), "{", talk(2, "system"), {"topic": "one", "messages": []}, talk(3, "system")])
    jobs.run(config())
    done = jobs.replay(config(STRICT.replace("'tool'", "'system'")))
    assert done.still["bad_json"][1]["line"] == 3
    count, first = done.newly["template_error"]
    assert (count, first["line"]) == (2, 4)
    where = f"{jobs.folder / 'a.jsonl'}"
    assert done.lines() == [
        "replayed: 2 rejected records, of which 1 are rejected no more",
        "kept: 2, which were 3",
        "kept records were not compared: docs/replay.md says what that takes",
        "rejected now, and not before:",
        f"  2 template_error, the first: {where}:4: 'messages[2]': the chat template raised: tools are not known",
        "still rejected:",
        f"  1 bad_json, the first: {where}:3: unexpected end of data: line 1 column 2 (char 1)",
    ]


def test_kept_records_are_compared_by_their_place(jobs: Jobs) -> None:
    system = talk(3)
    system["messages"].insert(0, {"role": "system", "content": "Be brief"})
    jobs.write([talk(0), talk(1, "tool"), talk(2), "{", system, *(talk(number) for number in (4, 5, 6))])
    jobs.run(config(preprocessing=PACKED, **PLACES))
    mask = {"assistant": "train", "system": "train"}
    done = jobs.replay(config(MENDED, preprocessing=PACKED, mask=mask, **PLACES))
    offset = sum(map(len, (jobs.folder / "a.jsonl").read_bytes().splitlines(True)[:4]))
    first = f"{jobs.folder / 'a.jsonl'} (byte offset {offset})"
    assert done.rows == RowsCompared(5, 1, first)
    assert done.lines()[2] == f"records that both keep: 5 as they were, 1 changed, the first: {first}"
    order = jobs.replay(config(MENDED, preprocessing=PACKED, output={"provenance": True, "domain_key": None}), "order")
    assert order.rows == RowsCompared(6, 0, "")


def test_an_output_that_is_replaced_is_compared_with_what_it_was(jobs: Jobs) -> None:
    jobs.write([talk(0), talk(1, "tool"), talk(2)])
    jobs.run(config(**PLACES))
    with pytest.raises(OutputError, match="another -o, or pass --overwrite"):
        jobs.replay(config(MENDED, **PLACES), None)
    done = jobs.replay(config(MENDED, mask_default="train", **PLACES), None, overwrite=True)
    assert (done.after["kept"], done.rows) == (3, RowsCompared(0, 2, f"{jobs.folder / 'a.jsonl'} (byte offset 0)"))
    jobs.check(config(MENDED, mask_default="train", **PLACES), "out")


# Refused


def test_inputs_that_changed_are_refused(jobs: Jobs) -> None:
    path = jobs.write(talks(20, (3,)))
    jobs.run(config())
    was = path.read_bytes()
    for changed in (was + b"\n", was.replace(b"No more", b"No MORE", 1)):
        path.write_bytes(changed)
        with pytest.raises(InputError, match=r"a\.jsonl' is not what .* make everything again: beam-prep run"):
            jobs.replay(config(MENDED))
    path.unlink()
    with pytest.raises(InputError, match="no such input"):
        jobs.replay(config(MENDED))


def test_a_template_that_was_in_the_config_is_not_taken_for_the_tokenizers(jobs: Jobs) -> None:
    jobs.write(talks(20, (3,)))
    jobs.run(config())
    with pytest.raises(ConfigError, match=r"has the chat template of the earlier config, .*: pass --tokenizer_path"):
        jobs.replay(config(None))


# Limits, versions, the command line


def test_a_folder_of_versions_gets_a_new_one(jobs: Jobs) -> None:
    jobs.write(talks(30, (3,)))
    jobs.run(config(preprocessing={"max_items": 9}), keep_versions=2, version_name="1-1")
    jobs.run(config(), keep_versions=2, version_name="1-2")
    out = jobs.folder / "out"
    done = jobs.replay(config(MENDED), None, version_name="1-3")
    assert done.result is not None
    assert done.result.output == str(out / "1-3")
    assert (out / "latest").readlink() == Path("1-3")
    assert sorted(path.name for path in out.iterdir() if path.name[0] != ".") == ["1-1", "1-2", "1-3", "latest"]
    assert bp.open(out).run["replay_of"]["output"] == str(out / "1-2")
    jobs.check(config(MENDED), "out/1-3")


def test_the_command_has_the_earlier_limits_unless_given(jobs: Jobs, command: Command, monkeypatch: Patch) -> None:
    monkeypatch.chdir(jobs.folder)
    jobs.write([*talks(9, (0, 3)), {**talk(9), "more": "more " * 2000}])
    jobs.run(config(), max_line_bytes=5000, max_reject_chars=12)
    Path("new.json").write_text(json.dumps(config(MENDED)))
    replay = ["replay", "out", "-c", "new.json", "--max_reject_rate=1", "--max_no_loss_rate=1"]
    told = command(*replay, "-o", "new", "--dry_run")
    assert told.startswith(f"would replay 4 rejected records of {jobs.folder}/out\n")
    assert not Path("new").exists()
    assert "\nreplayed: 4 rejected records, of which 2 are rejected no more\n" in command(*replay, "-o", "new")
    assert next(bp.open("new").rejects())["text"] == '{"topic": "o'
    told = command(*replay, "-o", "more", "--max_line_bytes=90000")
    assert "\nreplayed: 4 rejected records, of which 3 are rejected no more\n" in told
    assert "or pass --overwrite" in command(*replay, code=4)
