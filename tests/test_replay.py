"""Replays: the rejected records of an output run again, and everything as a run from scratch would make it."""

import bz2
import dataclasses
import gzip
import json
import shutil
from collections.abc import Callable, Container, Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest

import beam_prep as bp
from beam_prep import cli
from beam_prep.config import PipelineConfig
from beam_prep.errors import ConfigError, InputError, OutputError
from beam_prep.formats import FORMATS
from beam_prep.pipeline import Pipeline, Result
from beam_prep.replay import Replay, Replayed
from tests.conftest import tree

pytestmark = pytest.mark.long

KB = 1 << 10
LOOP = (
    "{%- for message in messages %}CHECK{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}"
)
STRICT = LOOP.replace(
    "CHECK", "{%- if message.role == 'tool' %}{{ raise_exception('tools are not known') }}{%- endif %}"
)
MENDED = LOOP.replace("CHECK", "")


def config(template: str = STRICT, **parts: Any) -> dict[str, Any]:
    """A config of chats; `parts` are merged into it: preprocessing={"max_seq_len": 9}."""
    found: dict[str, Any] = {
        "input": {"sections": [{"field": "messages", "action": "$role", "template": True}], "chat_template": template},
        "mask": {"assistant": "train"},
        "preprocessing": {"max_seq_len": 64},
        "output": {"storage_format": ["bin"], "domain_key": "topic", "max_tokens_per_shard": 3_000},
    }
    for part, values in parts.items():
        found[part] = {**found.get(part, {}), **values} if isinstance(values, dict) else values
    return found


def talk(number: int, role: str = "user", topic: str = "one") -> dict[str, Any]:
    """A chat of four messages, of which this is the role of the third."""
    contents = {
        "user": f"Question {number}: " + "how far " * (number % 30),
        "assistant": f"Answer {number}: " + "not far " * (number * 7 % 30),
    }
    messages = [{"role": who, "content": text} for who, text in contents.items()]
    return {
        "topic": topic,
        "messages": [*messages, {"role": role, "content": "More?"}, {"role": "assistant", "content": "No more."}],
    }


def talks(count: int, tools: Container[int] = (), first: int = 0) -> list[Any]:
    """Chats, of which these have a tool; besides blank lines, broken ones, and some with nothing in them."""
    found: list[Any] = []
    for number in range(first, first + count):
        found.append(talk(number, "tool" if number in tools else "user", ("one", "two/three")[number % 5 == 0]))
        found += [""] * (number % 17 == 3) + ['{"topic": "one", '] * (number % 19 == 4)
        found += [{"topic": "two", "messages": []}] * (number % 23 == 5)
    return found


def at_borders(count: int) -> list[int]:
    """The first and the last of the chats that begin in each block. (One with a tool has the size of one without.)"""
    chats, place, found = 0, 0, dict[int, list[int]]()
    for record in talks(count):
        line = record if isinstance(record, str) else json.dumps(record)
        if isinstance(record, dict) and record["messages"]:
            found.setdefault(place // (64 * KB), []).append(chats)
            chats += 1
        place += len(line) + 1
    assert len(found) > 3
    return [number for numbers in found.values() for number in (numbers[0], numbers[-1])]


class Jobs:
    """Runs, replays and runs from scratch, in one folder and in this process. All kept rows of a block are reused."""

    small: int | None = 0
    runner: tuple[str, ...] = ("--runner=FnApiRunner",)

    def __init__(self, folder: Path, tokenizer: str) -> None:
        self.folder, self.tokenizer = folder, tokenizer
        self.names: list[str] = []
        self.options: dict[str, Any] = {"max_reject_rate": 1.0, "max_no_loss_rate": 1.0, "block_bytes": 64 * KB}

    def write(self, records: Sequence[Any] | bytes, name: str = "a.jsonl") -> Path:
        path = self.folder / name
        if not isinstance(records, bytes):
            lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
            records = "".join(f"{line}\n" for line in lines).encode()
        path.write_bytes(records)
        self.names += [name] * (name not in self.names)
        return path

    def run(self, config: dict[str, Any], output: str = "out", **options: Any) -> Result:
        inputs = [str(self.folder / name) for name in self.names]
        options = {"tokenizer_path": self.tokenizer, **self.options, **options}
        return Pipeline(PipelineConfig.from_dict(config), inputs, self.folder / output, **options).run(self.runner)

    def first(self, config: dict[str, Any], **options: Any) -> Result:
        return self.run(config, cache_dir=str(self.folder / "token_cache"), **options)

    def replay(self, config: dict[str, Any] | None, **options: Any) -> Replayed:
        given = {
            "cache_dir": str(self.folder / "token_cache"), "output_dir": self.folder / "new", **self.options,
            "tokenizer_path": self.tokenizer, "check": "sample", **options,
        }  # fmt: skip
        given = {name: value for name, value in given.items() if value is not None}
        new = None if config is None else PipelineConfig.from_dict(config)
        replay = Replay(self.folder / "out", new, **given)
        if self.small is not None and replay.job is not None:
            assert replay.job.earlier is not None
            replay.job.earlier = dataclasses.replace(replay.job.earlier, small=self.small)
        return replay.run(self.runner)

    def told(self, name: str, output: str = "new") -> Any:
        return json.loads((self.folder / output / "run.json").read_text()).get(name, 0)

    def check(self, config: dict[str, Any], output: str = "new", **options: Any) -> None:
        """The replayed output is what a run from scratch makes elsewhere."""
        self.run(config, "scratch", **options)
        assert tree(self.folder / output) == tree(self.folder / "scratch")


@pytest.fixture
def jobs(tmp_path: Path, tokenizer_path: str) -> Jobs:
    return Jobs(tmp_path, tokenizer_path)


SOME = (0, 3, 4, 5, 77, 78, 79, 300, 599)
PLACES = {"one": [300], "some": SOME, "borders of blocks": at_borders(600), "almost all": range(1, 600)}


@pytest.mark.parametrize("places", PLACES.values(), ids=PLACES)
def test_records_that_a_mended_template_renders_are_at_their_place(jobs: Jobs, places: Sequence[int]) -> None:
    jobs.write(talks(600, places))
    before = jobs.first(config()).manifest
    done = jobs.replay(config(MENDED))
    assert before is not None
    assert before["ledger"]["rejected"]["template_error"] == len(places)
    assert done.before == before["ledger"]
    assert "template_error" not in done.after["rejected"]
    assert done.before["kept"] < done.after["kept"] == 500
    # Of some blocks the earlier run kept nothing.
    assert jobs.told("blocks") - (1 if len(places) < 100 else 4) <= jobs.told("blocks_replayed") > 0
    assert jobs.told("rows_compared") < before["ledger"]["kept"] / 4 or len(places) > 100
    jobs.check(config(MENDED))


PADDED = config(preprocessing={"padding": "max_length"})
OTHERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "larger limit": (
        config(preprocessing={"max_seq_len": 90, "truncation_mode": "drop"}),
        config(preprocessing={"max_seq_len": 120, "truncation_mode": "drop"}),
    ),
    "untrained kept": (config(), config(MENDED, preprocessing={"rows_without_loss": "keep"})),
    "packed": (
        config(preprocessing={"packing_strategy": "bfd", "max_packed_len": 64}),
        config(MENDED, preprocessing={"packing_strategy": "bfd", "max_packed_len": 64}),
    ),
    "packed otherwise": (
        config(preprocessing={"packing_strategy": "wrapped", "max_packed_len": 96}),
        config(MENDED, preprocessing={"packing_strategy": "bfd_split", "max_packed_len": 64}),
    ),
    "padded": (PADDED, {**PADDED, "input": config(MENDED)["input"]}),
    "max_items": (config(preprocessing={"max_items": 350}), config(MENDED, preprocessing={"max_items": 350})),
    "every format": (
        config(output={"storage_format": list(FORMATS)}),
        config(MENDED, output={"storage_format": list(FORMATS)}),
    ),
    "labels": (config(output={"columns": "labels"}), config(MENDED, output={"columns": "labels"})),
    "dtypes": (
        config(output={"dtype": {"loss_mask": "bool", "sequence": "uint16"}}),
        config(MENDED, output={"dtype": {"loss_mask": "bool", "sequence": "uint16"}, "storage_format": ["arrow"]}),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("before", "after"), OTHERS.values(), ids=OTHERS)
def test_every_change_that_keeps_the_kept_records_gives_what_a_run_from_scratch_gives(
    jobs: Jobs, before: dict[str, Any], after: dict[str, Any]
) -> None:
    jobs.write(talks(300, (0, 5, 77, 299)))
    only_tools = [{"messages": [{"role": "tool", "content": "The tool alone"}] * 2}] * 3
    jobs.write([*talks(300, (1, 7), first=300), *only_tools, *talks(3)], "b.jsonl")
    jobs.first(before)
    jobs.replay(after)
    assert jobs.told("blocks_replayed") > 3
    jobs.check(after)


def test_a_new_role_in_the_mask_keeps_records_that_had_nothing_to_train_on(jobs: Jobs) -> None:
    tools = [{"messages": [{"role": "tool", "content": f"The tool alone, {number}"}]} for number in range(9)]
    records = talks(600)
    for place, record in zip((0, 1, 7, 100, 300, 301, 400, 500, len(records)), tools, strict=True):
        records.insert(place, record)
    jobs.write(records)
    jobs.first(config(MENDED))
    new = config(MENDED, mask={"assistant": "train", "tool": "train"})
    done = jobs.replay(new)
    assert done.after["kept"] == done.before["kept"] + 9
    assert jobs.told("blocks_replayed") == jobs.told("blocks")
    jobs.check(new)


def test_an_adapter_with_more_roles(jobs: Jobs) -> None:
    names = {"user": "human", "assistant": "gpt", "tool": "bing"}
    records = talks(500, (3, 4, 250, 499))
    for record in records:
        if isinstance(record, dict):
            record["conversations"] = [
                {"from": names[message["role"]], "value": message["content"]} for message in record.pop("messages")
            ]
    jobs.write(records)
    old = config(MENDED, input={"adapter": "sharegpt"})
    new = config(MENDED, input={"adapter": {"name": "sharegpt", "roles": {"bing": "tool"}}})
    jobs.first(old)
    done = jobs.replay(new)
    assert (done.before["rejected"]["unknown_role"], done.after["rejected"].get("unknown_role")) == (4, None)
    jobs.check(new)


def test_a_larger_limit_of_lines(jobs: Jobs) -> None:
    jobs.write([*talks(300, SOME), {**talk(300), "more": "more " * 2000}, *talks(300, first=300)])
    jobs.first(config(), max_line_bytes=5000)
    done = jobs.replay(config(), max_line_bytes=90_000)
    assert (done.before["rejected"]["line_too_long"], done.after["rejected"].get("line_too_long")) == (1, None)
    assert jobs.told("blocks_replayed") >= 3
    jobs.check(config(), max_line_bytes=90_000)
    again = jobs.replay(config(MENDED), output_dir=jobs.folder / "again")
    assert again.after["rejected"]["line_too_long"] == 1


def as_list(records: Sequence[Any]) -> bytes:
    """A `.json` file of one list."""
    return json.dumps([record for record in records if isinstance(record, dict)], indent=1).encode()


def as_lines(records: Sequence[Any]) -> bytes:
    return "".join(f"{record if isinstance(record, str) else json.dumps(record)}\r\n" for record in records).encode()


FILES: dict[str, Callable[[Sequence[Any]], bytes]] = {
    "a.jsonl": lambda records: b"\xef\xbb\xbf" + as_lines(records).rstrip(b"\r\n"),
    "a.jsonl.gz": lambda records: gzip.compress(as_lines(records)),
    "a.jsonl.bz2": lambda records: bz2.compress(as_lines(records)),
    "a.json": as_list,
    "a.json.gz": lambda records: gzip.compress(as_list(records)),
}


@pytest.mark.parametrize(
    ("name", "block_bytes"), [*((name, 64 * KB) for name in FILES), ("a.jsonl", 128 * KB), ("a.json.gz", 8 << 20)]
)
def test_all_kinds_of_files_at_all_block_sizes(jobs: Jobs, name: str, block_bytes: int) -> None:
    jobs.write(FILES[name](talks(500, SOME)), name)
    jobs.options["block_bytes"] = block_bytes
    jobs.first(config())
    jobs.replay(config(MENDED))
    assert jobs.told("blocks_replayed") > 0
    jobs.check(config(MENDED), block_bytes=64 * KB)


def test_the_rejects_of_a_replay_are_those_of_a_run_from_scratch(jobs: Jobs) -> None:
    broken = ['{"topic": "one", "messages": 5}', '{"messages": [{"role": "user"}]}', "[1, 2]", "\x00"]
    jobs.write([*broken, *talks(200, SOME), *broken, *talks(200, first=200), *broken])
    jobs.first(config())
    half = LOOP.replace(
        "CHECK",
        "{%- if message.role == 'tool' and '300' in messages[0].content %}{{ raise_exception('300') }}{%- endif %}",
    )
    done = jobs.replay(config(half), max_reject_chars=12)
    assert done.failing["wrong_type"]["line"] == 1
    assert done.failing["wrong_type"]["text"] == '{"topic": "o'
    assert "  6 not_an_object" not in done.lines()
    jobs.check(config(half), max_reject_chars=12)


# Refused


RARE = LOOP.replace("CHECK", "{%- if message.content == 'Question 77: far' %}!{%- endif %}")
CHANGES = {
    "mask": (config(MENDED, mask={"assistant": "train", "user": "train"}), "column 'loss_mask'"),
    "mask of a rare role": (config(MENDED, mask={"assistant": "train", "system": "train"}), "column 'loss_mask'"),
    "limit": (config(MENDED, preprocessing={"max_seq_len": 63}), "column '"),
    "dropped": (config(MENDED, preprocessing={"truncation_mode": "drop"}), "it would be dropped (too_long)"),
    "columns": (config(MENDED, output={"columns": "labels"}), "found the columns"),
    "dtype": (config(MENDED, output={"dtype": {"loss_mask": "bool"}}), "found the columns"),
    "domains": (config(MENDED, output={"domain_key": "none"}), "found the domain '__default__', wanted 'one'"),
    "rejected": (config(STRICT.replace("'tool'", "'system'")), "it would be rejected (template_error)"),
    "template": (config(MENDED.replace("\\n", " ", 1)), "column '"),
}


@pytest.mark.parametrize(("new", "what"), CHANGES.values(), ids=CHANGES)
def test_a_change_of_kept_records_is_refused(jobs: Jobs, new: dict[str, Any], what: str) -> None:
    records = talks(600, SOME)
    records[500]["messages"].insert(0, {"role": "system", "content": "The only one"})  # its kind is compared
    jobs.write(records)
    jobs.first(config())
    before = tree(jobs.folder / "out", ())
    with pytest.raises(ConfigError) as caught:
        jobs.replay(new)
    assert what in str(caught.value)
    assert "a.jsonl (byte offset " in str(caught.value)
    assert "make everything again: beam-prep run " in str(caught.value)
    assert tree(jobs.folder / "out", ()) == before
    assert not (jobs.folder / "new").exists()


def test_a_small_job_is_compared_entirely(jobs: Jobs) -> None:
    jobs.small = None
    jobs.write([*talks(400, SOME), {"topic": "one", "messages": [{"role": "user", "content": "Question 77: far"}]}])
    jobs.first(config(preprocessing={"rows_without_loss": "keep"}))
    offset = (jobs.folder / "a.jsonl").read_bytes().rindex(b'{"topic"')
    with pytest.raises(ConfigError, match=rf"byte offset {offset}\): this record was kept, and would change: column"):
        jobs.replay(config(RARE, preprocessing={"rows_without_loss": "keep"}))
    jobs.replay(config(MENDED, preprocessing={"rows_without_loss": "keep"}))
    assert (jobs.told("blocks_replayed"), jobs.told("blocks_compared")) == (0, jobs.told("blocks"))
    jobs.check(config(MENDED, preprocessing={"rows_without_loss": "keep"}))


def test_check_full_compares_every_kept_record_of_large_jobs(jobs: Jobs) -> None:
    records = talks(400, SOME)
    records.insert(
        200, {**talk(1), "messages": [{"role": "user", "content": "Question 77: far"}, *talk(1)["messages"]]}
    )
    jobs.write(records)
    jobs.first(config())
    with pytest.raises(ConfigError, match="would change: column '"):
        jobs.replay(config(RARE), check=None)
    with pytest.raises(ConfigError, match="would change: column '"):
        jobs.replay(config(RARE), check="full")
    jobs.replay(config(MENDED), check="full")
    assert jobs.told("blocks_checked_in_full") == jobs.told("blocks") == jobs.told("blocks_compared")
    jobs.check(config(MENDED))


def test_another_tokenizer_is_compared_entirely(jobs: Jobs, tmp_path: Path) -> None:
    other = shutil.copytree(jobs.tokenizer, tmp_path / "tokenizer")
    text = (other / "tokenizer.json").read_text()
    added = json.loads(text)
    added["added_tokens"].append(
        {**added["added_tokens"][-1], "id": 1 + max(t["id"] for t in added["added_tokens"]), "content": "77: how"}
    )
    (other / "tokenizer.json").write_text(json.dumps(added))
    jobs.write(talks(400, SOME))
    jobs.first(config())
    with pytest.raises(ConfigError, match="would change: column '"):
        jobs.replay(config(MENDED), tokenizer_path=str(other))


def test_inputs_that_changed_are_refused(jobs: Jobs) -> None:
    path = jobs.write(talks(100, SOME))
    jobs.first(config())
    was = path.read_bytes()
    for changed in (was + b"\n", was.replace(b"No more", b"No MORE", 1)):
        path.write_bytes(changed)
        with pytest.raises(InputError, match=r"a\.jsonl' is not what .* make everything again: beam-prep run"):
            jobs.replay(config(MENDED))
    path.unlink()
    with pytest.raises(InputError, match="no such input"):
        jobs.replay(config(MENDED))


def test_nothing_is_replaced_without_leave(jobs: Jobs) -> None:
    jobs.write(talks(100, SOME))
    jobs.first(config())
    with pytest.raises(OutputError, match=r"pass -o NEW .*, or --overwrite"):
        jobs.replay(config(MENDED), output_dir=None)
    with pytest.raises(OutputError, match=r"no manifest.json"):
        Replay(jobs.folder / "nothing")
    jobs.replay(config(MENDED), output_dir=None, overwrite=True)
    jobs.check(config(MENDED), "out")


# What is left of the token cache


def test_blocks_that_are_gone_or_damaged_are_made_again(jobs: Jobs, caplog: pytest.LogCaptureFixture) -> None:
    jobs.write(talks(800, SOME))
    jobs.first(config())
    one, other, *_ = sorted((jobs.folder / "token_cache").glob("*/*.arrow"))
    for path in (jobs.folder / "token_cache").glob(f"*/{one.name.partition('.')[0]}*"):
        path.unlink()
    other = next(path for path in sorted((jobs.folder / "token_cache").glob("*/*[0-9a-f].arrow")))
    other.write_bytes(other.read_bytes()[:-100])
    jobs.replay(config(MENDED))
    assert jobs.told("blocks_replayed") == jobs.told("blocks") - 2
    assert "is damaged" in caplog.text
    jobs.check(config(MENDED))


def test_without_a_cache_everything_is_made_again(jobs: Jobs, caplog: pytest.LogCaptureFixture) -> None:
    jobs.write(talks(200, SOME))
    jobs.run(config())
    jobs.replay(config(MENDED), cache_dir=None)
    assert "there is no token cache at" in caplog.text
    jobs.check(config(MENDED))


def test_blocks_that_were_made_in_a_way_that_is_not_trusted_are_made_again(jobs: Jobs) -> None:
    jobs.write(talks(200, SOME))
    jobs.first(config(), tokenizer_backend="gigatoken")
    jobs.replay(config(MENDED), tokenizer_backend="transformers")
    assert (jobs.told("blocks_replayed"), jobs.told("encoded_by_gigatoken")) == (0, 0)
    jobs.check(config(MENDED))


def test_a_replayed_block_is_as_good_as_one_that_was_made_in_full(jobs: Jobs) -> None:
    jobs.write(talks(400, SOME))
    jobs.first(config())
    jobs.replay(config(MENDED))
    again = config(MENDED, output={"storage_format": ["arrow"]})
    jobs.first(again, output="again")
    assert jobs.told("blocks_reused", "again") == jobs.told("blocks", "again")
    jobs.check(again, "again")


def test_a_replay_of_a_replay(jobs: Jobs) -> None:
    jobs.write(talks(400, SOME))
    jobs.first(config())
    jobs.replay(config(MENDED))
    shutil.rmtree(jobs.folder / "out")
    (jobs.folder / "new").rename(jobs.folder / "out")
    last = config(MENDED, preprocessing={"rows_without_loss": "keep"})
    jobs.replay(last)
    assert jobs.told("blocks_replayed") > 2
    jobs.check(last)


def test_blocks_of_another_run_with_the_new_config_are_compared_too(jobs: Jobs) -> None:
    jobs.write(talks(400, SOME))
    jobs.first(config())
    changed, mended = config(MENDED, mask={"user": "train"}), config(MENDED)
    jobs.first(changed, output="changed")
    with pytest.raises(ConfigError, match=r"a\.jsonl \(byte offset \d+\): this record was kept, and would change: col"):
        jobs.replay(changed)
    jobs.first(mended, output="mended")
    jobs.replay(mended)
    assert jobs.told("blocks_reused") == jobs.told("blocks")
    jobs.check(mended)


def test_an_output_of_a_chain_by_hand_has_no_config(jobs: Jobs) -> None:
    path = jobs.write([{"text": "Hello"}])
    output = bp.Output("ids", "ids", (bp.Section("text", "train"),))
    tokenizer = bp.Tokenizer.load(jobs.tokenizer)
    with beam.Pipeline("FnApiRunner") as pipeline:
        records = pipeline | bp.ReadJSONL(str(path))
        batches = records | bp.ApplyTemplate([output], tokenizer) | bp.Tokenize(tokenizer) | bp.BuildMask(bp.RoleMask())
        _ = batches | bp.Shard(str(jobs.folder / "out"))
    with pytest.raises(OutputError, match="was not made from a config"):
        Replay(jobs.folder / "out")


# Nothing to do


def test_an_output_without_rejects(jobs: Jobs) -> None:
    jobs.write([talk(number) for number in range(40)])
    jobs.first(config())
    done = jobs.replay(config(MENDED))
    assert done.result is None
    assert not (jobs.folder / "new").exists()


def test_nothing_changed(jobs: Jobs) -> None:
    jobs.write(talks(40, SOME))
    jobs.first(config())
    done = jobs.replay(None, tokenizer_path=None)
    assert done.result is None
    assert done.lines()[0].startswith("nothing was replayed: config, template and tokenizer are those of")
    assert any(line.startswith("  4 template_error, the first: ") for line in done.lines())


# Versions, the command line, worker processes


def test_a_folder_of_versions_gets_a_new_one(jobs: Jobs) -> None:
    jobs.write(talks(300, SOME))
    jobs.first(config(preprocessing={"max_items": 9}), keep_versions=2, version_name="1-1")
    jobs.first(config(), keep_versions=2, version_name="1-2")
    out = jobs.folder / "out"
    done = jobs.replay(config(MENDED), output_dir=None, version_name="1-3")
    assert done.result is not None
    assert done.result.output == str(out / "1-3")
    assert (out / "latest").readlink() == Path("1-3")
    assert sorted(path.name for path in out.iterdir() if path.name[0] != ".") == ["1-1", "1-2", "1-3", "latest"]
    assert jobs.told("replay_of", "out/1-3")["output"] == str(out / "1-2")
    jobs.check(config(MENDED), "out/1-3")
    jobs.replay(config(MENDED, preprocessing={"rows_without_loss": "keep"}), output_dir=None, keep_versions=1)
    assert len([path for path in out.iterdir() if path.is_dir() and path.name[0] not in ".l"]) == 1


@pytest.fixture
def command(
    jobs: Jobs, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, str, str]]:
    """Runs `beam-prep` in the folder of the jobs; gives the exit code, and what it printed."""
    monkeypatch.chdir(jobs.folder)

    def _run(*words: str) -> tuple[int, str, str]:
        code = cli.main(words)
        told = capsys.readouterr()
        return code, told.out, told.err

    return _run


def test_the_command(jobs: Jobs, command: Callable[..., tuple[int, str, str]]) -> None:
    jobs.write(talks(100, SOME))
    for name, template in (("old.json", STRICT), ("new.json", MENDED), ("other.json", MENDED.replace("im_end", "end"))):
        (jobs.folder / name).write_text(json.dumps(config(template)))
    many = ("--max_reject_rate", "1", "--max_no_loss_rate", "1", "--runner=FnApiRunner")
    tokenizer = ("--tokenizer_path", jobs.tokenizer)
    assert (
        command("run", "a.jsonl", "-o", "out", "-c", "old.json", "--cache_dir", "cache_dir", *tokenizer, *many)[0] == 0
    )

    code, printed, _ = command("replay", "out", "-c", "new.json", "-o", "new", "--dry_run")
    assert code == 0
    assert printed.splitlines()[0] == f"would replay 13 rejected records of {jobs.folder}/out"
    assert "  7 template_error, the first: a.jsonl:1: 'messages[2]': the chat template raised: tools are not" in printed
    assert not (jobs.folder / "new").exists()

    code, printed, errors = command("replay", "out", "-c", "other.json", "-o", "new", "--cache_dir", "cache_dir", *many)
    assert (code, printed) == (2, "")
    assert "would change: column " in errors

    code, printed, _ = command("replay", "out", "-c", "new.json", "-o", "new", "--cache_dir", "cache_dir", *many)
    assert code == 0
    assert "\nreplayed: 13 rejected records; kept: " in printed
    assert printed.endswith(
        "still rejected:\n  6 bad_json, the first: a.jsonl:7: unexpected end of data: line 1 column 18 (char 17)\n"
    )

    code, _, errors = command("replay", "out", "-c", "new.json")
    assert code == 4
    assert "pass -o NEW" in errors
    assert command("run", "a.jsonl", "-o", "scratch", "-c", "new.json", *tokenizer, *many)[0] == 0
    assert tree(jobs.folder / "new") == tree(jobs.folder / "scratch")

    jobs.write([talk(1)])
    assert command("run", "a.jsonl", "-o", "clean", "-c", "old.json", *tokenizer, *many)[0] == 0
    assert command("replay", "clean", "-c", "new.json")[:2] == (0, "clean has no rejected records: nothing to replay\n")


def test_two_worker_processes(jobs: Jobs) -> None:
    jobs.write(talks(800, SOME))
    jobs.write(gzip.compress(as_lines(talks(300, SOME))), "b.jsonl.gz")
    jobs.first(config())
    jobs.runner = ("--runner=FnApiRunner", "--direct_running_mode=multi_processing", "--direct_num_workers=2")
    jobs.replay(config(MENDED))
    assert jobs.told("blocks_replayed") > 4
    jobs.check(config(MENDED))
    with pytest.raises(ConfigError, match="would change: column '"):
        jobs.replay(config(MENDED, mask={"user": "train"}), output_dir=jobs.folder / "other")
