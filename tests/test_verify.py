"""`beam-prep verify`: whatever is not as the manifest says is found, and named; in every format."""

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import beam_prep as bp
from beam_prep import cli
from beam_prep.config import FORMAT_NAMES
from beam_prep.data.ragged import Ragged
from beam_prep.data.schema import Column
from beam_prep.errors import FormatError, RunError
from beam_prep.formats.manifest import build_manifest
from beam_prep.shards.plan import LedgerTotals, Plan
from beam_prep.verify import FoundShard, Rows
from tests.conftest import Capture, Command, Folders, chat_config, flip, run_job, says

OUTPUT = {"domain_key": "topic", "max_tokens_per_shard": 400, "storage_format": list(FORMAT_NAMES)}


def chats() -> list[bytes]:
    """Two topics, blank lines, two kinds of rejects."""
    lines = []
    for number in range(24):
        talk = says(user="How far? " * 3, assistant=f"{number} miles. " * 4)
        lines.append(json.dumps({"topic": ["near", "far"][number % 2], "messages": talk}).encode())
        lines += [b"", b"{", b"[1]"] if number % 10 == 0 else []
    return lines


@pytest.fixture(scope="module")
def sound(tmp_path_factory: Folders) -> Path:
    """Two domains of several shards in all formats, with rejects. Not to be changed."""
    folder = tmp_path_factory.mktemp("sound")
    (folder / "in.jsonl").write_bytes(b"\n".join(chats()) + b"\n")
    config = chat_config(True, output=OUTPUT)
    return Path(run_job(config, folder / "in.jsonl", folder / "out", max_reject_rate=0.5).output)


@pytest.fixture
def output(sound: Path, tmp_path: Path) -> Path:
    """A copy, to be damaged."""
    return Path(shutil.copytree(sound, tmp_path / "out"))


Told = Callable[[Path], list[str]]


@pytest.fixture
def told(capsys: Capture) -> Told:
    """What `beam-prep verify` says is wrong, one line each."""

    def _told(output: Path) -> list[str]:
        code = cli.main(["verify", str(output)])
        out, err = capsys.readouterr()
        if code == 0:
            assert (len(out.splitlines()), err) == (1, "")
            return []
        *problems, last = err.splitlines()
        assert (code, out) == (1, "")
        assert last.startswith(f"beam-prep: {output} is not what its manifest.json says: {len(problems)} problem")
        return problems

    return _told


def manifest_of(output: Path) -> dict[str, Any]:
    return dict(json.loads((output / "manifest.json").read_bytes()))


def write(output: Path, manifest: dict[str, Any]) -> None:
    (output / ".slices.json").unlink(missing_ok=True)  # it has the sha256 of the manifest as it was written
    (output / "manifest.json").write_text(json.dumps(manifest))


def listed(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    files = [file for shard in manifest["shards"] for file in shard["files"]]
    return [*files, *manifest["rejects"], *manifest["files"]]


def list_again(output: Path) -> None:
    """Puts the sizes and digests of the files as they are into the manifest: only the counts can tell now."""
    manifest = manifest_of(output)
    for file in listed(manifest):
        data = (output / file["path"]).read_bytes()
        file.update(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
    write(output, manifest)


# Sound


def test_json_is_for_schedulers(output: Path, command: Command) -> None:
    manifest, text = manifest_of(output), (output / "manifest.json").read_bytes()
    wanted = {
        "output": str(output),
        "manifest_sha256": hashlib.sha256(text).hexdigest(),
        "shards": len(manifest["shards"]),
        "rows": 24,
        "tokens": manifest["totals"]["tokens"],
        "trained": manifest["totals"]["trained"],
        "read": 30,
        "rejected": {"bad_json": 3, "not_an_object": 3},
    }
    (output / "features.json").unlink()
    found = json.loads(command("verify", output, "--json", code=1))
    problems = ["features.json: no such file, though manifest.json lists it"]
    assert found == wanted | {"problems": problems}


# Files


def test_every_file_that_is_gone_cut_or_changed_is_named(output: Path, told: Told) -> None:
    manifest = manifest_of(output)
    gone, cut, changed = manifest["shards"][0]["files"][0], manifest["rejects"][0], manifest["files"][0]
    (output / gone["path"]).unlink()
    (output / cut["path"]).write_bytes((output / cut["path"]).read_bytes()[:-1])
    flip(output / changed["path"])
    digest = hashlib.sha256((output / changed["path"]).read_bytes()).hexdigest()
    wanted = [
        f"{gone['path']}: no such file, though manifest.json lists it",
        f"{cut['path']}: found {cut['bytes'] - 1} bytes, manifest.json says {cut['bytes']}",
        f"{changed['path']} is damaged: found sha256 {digest}, manifest.json says {changed['sha256']}",
    ]
    found = told(output)
    assert set(wanted) <= set(found)
    with pytest.raises(FormatError) as caught:
        bp.open(output).verify()
    assert str(caught.value).splitlines()[1:] == found


def test_files_that_a_trainers_glob_would_find_are_named(output: Path, told: Told) -> None:
    names = ["far/data-00009-of-00010.arrow", "near/shard_0009.tfrecord", "near/shard_0009/sequence.bin", "other/x.h5"]
    for name in names:
        (output / name).parent.mkdir(exist_ok=True)
        (output / name).write_bytes(b"old")
    (output / "near" / ".DS_Store").write_bytes(b"")
    assert told(output) == [f"{name}: found, though manifest.json does not list it: remove it" for name in names]


# Inputs


def test_inputs_are_read_again_where_they_are(sound: Path, command: Command) -> None:
    source = sound.parent / "in.jsonl"
    text = source.read_bytes()
    source.write_bytes(text.replace(b"miles", b"MILES", 1))
    digest = manifest_of(sound)["inputs"][0]["digest"]
    problem = command("verify", sound, "--inputs", code=1).splitlines()[0]
    assert re.fullmatch(rf"input {source}: found digest \w{{64}}, manifest.json says {digest}", problem)
    source.write_bytes(text + b"\n")
    wanted = f"input {source}: found {len(text) + 1} bytes, manifest.json says {len(text)}"
    assert command("verify", sound, "--inputs", code=1).splitlines()[0] == wanted
    source.unlink()
    (why,) = json.loads(command("verify", sound, "--inputs", "--json"))["inputs"]["not_found"]
    assert f"no such input: '{source}'" in why
    source.write_bytes(text)


# Counts


def test_rows_and_tokens_are_counted_in_every_format(output: Path, told: Told) -> None:
    manifest = manifest_of(output)
    shard = manifest["shards"][0]
    rows, tokens, trained = shard["rows"], shard["tokens"]["sequence"], shard["trained"]["loss_mask"]
    shard.update(rows=rows + 1, tokens={"sequence": tokens + 1}, trained={"loss_mask": trained - 1})
    write(output, manifest)
    wanted = [
        f"far: shard 0 ({name}): found {text}"
        for name in FORMAT_NAMES
        for text in (
            f"{rows} rows, manifest.json says {rows + 1}",
            f"tokens {tokens} of 'sequence', manifest.json says {tokens + 1}",
            f"trained {trained} of 'loss_mask', manifest.json says {trained - 1}",
        )
    ]
    assert told(output) == wanted


def test_a_shard_that_its_reader_cannot_read_is_named(output: Path, told: Told) -> None:
    path = output / "far" / "shard_0000.h5"
    path.write_bytes(path.read_bytes()[:-9])
    list_again(output)
    (problem,) = told(output)
    assert problem.startswith(f"far: shard 0 (h5): {path}")


def test_rejects_are_counted_by_reason(output: Path, told: Told) -> None:
    path = output / "rejects" / "rejects-00000.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[1:]).replace(b'"not_an_object"', b'"not_an_objekt"', 1) + b"{\n")
    list_again(output)
    assert told(output) == [
        "rejects/rejects-00000.jsonl: line 6 is no reject: b'{\\n'",
        "rejects: found 2 lines of 'bad_json', the ledger says 3",
        "rejects: found 2 lines of 'not_an_object', the ledger says 3",
        "rejects: found 1 lines of 'not_an_objekt', the ledger says 0",
    ]


@pytest.mark.parametrize("key", ["manifest_version", "bytes", "shard", "read", "domains", "packing_strategy"])
def test_a_manifest_with_a_flipped_bit_is_told(key: str, output: Path, told: Told) -> None:
    path = output / "manifest.json"
    path.write_text(path.read_text().replace(f'"{key}"', f'"{key[:-1]}~"', 1))
    assert any("manifest.json is damaged" in problem for problem in told(output))


def test_a_manifest_that_lacks_a_part_is_told(output: Path, told: Told) -> None:
    manifest = manifest_of(output)
    del manifest["columns"]
    write(output, manifest)
    assert "manifest.json is damaged (KeyError('columns'" in told(output)[-1]


def test_no_manifest_is_made_whose_counts_do_not_add_up() -> None:
    plan = Plan((), (), LedgerTotals(lines=2, kept=2), {}, [], (), {}, {}, blocks=1, reused=0, made={})
    with pytest.raises(RunError, match=r"a bug of beam_prep; no output is made: totals say rows 0, the ledger .* 2"):
        build_manifest(plan, [], [], [], ["bin"], {})


# Rows


SFT = (Column("ids", "int32", 1, "ids"), Column("mask", "uint8", 1, "mask", of="ids"))
SHIFTED = (SFT[0], Column("labels", "int32", 1, "labels", of="ids", shifted=True))
LISTS = (Column("ids", "int32", 2, "ids"), Column("mask", "uint8", 2, "mask", of="ids"))
PACKS = (SFT[0], Column("pos", "int32", 1, "position", of="ids"), Column("lens", "int32", 1, "lengths", of="ids"))
PLACES = (SFT[0], PACKS[2], Column("offset", "int64", 1, "offset"))
IDS, NESTED = [[5, 6, 7], [8, 9]], [[[5, 6], [7]], [[8]]]
IMPOSSIBLE = {
    "row 1 of 'ids' holds 10, wanted ids from 0 to 9": (SFT, [[[5], [10]], [[0], [1]]]),
    "row 0 of 'ids' holds -1, wanted ids from 0 to 9 (2 rows)": (SFT, [[[-1], [-1]], [[0], [1]]]),
    "row 0 of 'ids' holds 10, wanted ids from 0 to 9": (LISTS, [[[[5], [10]]], [[[0], [1]]]]),
    "row 0 of 'labels' holds -7, wanted -100 or ids from 0 to 9": (SHIFTED, [[[5]], [[-7]]]),
    "row 1 has 1 and 2 values of 'mask' and 'ids', wanted as many of each": (SFT, [IDS, [[0, 1, 1], [1]]]),
    "row 0 has lists of 'mask' of other lengths than those of 'ids'": (LISTS, [NESTED, [[[0], [1, 1]], [[0]]]]),
    "row 0 of 'lens' adds up to 2 tokens, wanted 3": (PACKS, [IDS, [[0, 1, 2], [0, 1]], [[2], [2]]]),
    "row 1 of 'lens' holds 0, wanted lengths above 0": (PACKS, [IDS, [[0, 1, 0], [0, 1]], [[2, 1], [2, 0]]]),
    "row 1 has 2 of 'offset' for 1 documents, wanted one each": (PLACES, [IDS, [[2, 1], [2]], [[0, 70], [140, 0]]]),
}


def found_in(columns: tuple[Column, ...], rows: list[Any]) -> list[str]:
    lists = zip(columns, rows, strict=True)
    part = {column.name: Ragged.from_lists(found, column.dtype, column.depth) for column, found in lists}
    shard = FoundShard()
    shard.add(Rows(part, columns, 9))
    return [text if count == 1 else f"{text} ({count} rows)" for count, text in shard.wrong.values()]


@pytest.mark.parametrize(("columns", "rows"), IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_impossible_rows_are_named(columns: tuple[Column, ...], rows: list[Any], request: Any) -> None:
    assert found_in(columns, rows) == [next(text for text, each in IMPOSSIBLE.items() if each == (columns, rows))]


def test_impossible_rows_are_found_in_an_output(output: Path, told: Told) -> None:
    path = output / "near" / "shard_0000" / "sequence.bin"
    ids = np.fromfile(path, np.int32)
    ids[-1] = 1_000_000
    ids.tofile(path)
    list_again(output)
    most = json.loads((output / "tokenizer" / "beam_prep.json").read_text())["max_id"]
    (problem,) = told(output)
    said = rf"near: shard 0 \(bin\): row \d+ of 'sequence' holds 1000000, wanted ids from 0 to {most}"
    assert re.fullmatch(said, problem)
