"""`beam-prep verify`: whatever is not as the manifest says is found, and named; in every format."""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import beam_prep as bp
from beam_prep import cli
from beam_prep.config import FORMAT_NAMES, PipelineConfig
from beam_prep.errors import FormatError
from beam_prep.formats import FORMATS, mds
from beam_prep.formats.manifest import output_columns, receipts_of
from beam_prep.pipeline import Pipeline
from tests.conftest import ROOT

CHAT: dict[str, Any] = {
    "input": {"sections": [{"field": "messages", "action": "$role", "template": True}]},
    "mask": {"assistant": "train"},
    "output": {"domain_key": "topic", "max_tokens_per_shard": 400, "storage_format": list(FORMAT_NAMES)},
}
ROLLOUTS = json.loads((ROOT / "configs" / "grpo.json").read_text())
PACKED = json.loads((ROOT / "configs" / "sft_packed.json").read_text())


def chats() -> list[bytes]:
    """Two topics, blank lines, two kinds of rejects."""
    lines = []
    for number in range(24):
        talk = [{"role": "user", "content": "How far? " * 3}, {"role": "assistant", "content": f"{number} miles. " * 4}]
        lines.append(json.dumps({"topic": ["near", "far"][number % 2], "messages": talk}).encode())
        lines += [b"", b"{", b"[1]"] if number % 10 == 0 else []
    return lines


def make(folder: Path, config: dict[str, Any], lines: list[bytes]) -> Path:
    (folder / "in.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    Pipeline(
        PipelineConfig.from_dict(config),
        str(folder / "in.jsonl"),
        output_dir=folder / "out",
        tokenizer_path=ROOT / "examples" / "tokenizer",
        max_reject_rate=0.5,
        max_no_loss_rate=0.5,
    ).run(["--runner=FnApiRunner"])
    return folder / "out"


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two domains of several shards in all formats, with rejects. Not to be changed."""
    return make(tmp_path_factory.mktemp("sound"), CHAT, chats())


@pytest.fixture
def output(sound: Path, tmp_path: Path) -> Path:
    """A copy, to be damaged."""
    return Path(shutil.copytree(sound, tmp_path / "out"))


Told = Callable[[Path], list[str]]


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Told:
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
    (output / "manifest.json").write_text(json.dumps(manifest))


def listed(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    files = [file for shard in manifest["shards"] for file in shard["files"]]
    return [*files, *manifest["rejects"], *manifest["files"]]


def list_again(output: Path) -> None:
    """Puts the sizes and digests of the files as they are into the manifest: only the counts can tell now."""
    manifest = manifest_of(output)
    for file in listed(manifest):
        if file["path"].endswith(f"/{mds.INDEX}"):  # it has digests, too; the shards come first
            folder = file["path"].removesuffix(f"/{mds.INDEX}")
            shards = [each for each in receipts_of(manifest) if manifest["domains"][each.domain] == folder]
            described = FORMATS["mds"].described(output_columns(manifest), manifest["domains"], shards)
            (output / file["path"]).write_bytes(described[file["path"]])
        data = (output / file["path"]).read_bytes()
        file.update(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
    write(output, manifest)


# Sound


@pytest.mark.parametrize(
    ("config", "data"),
    [(PACKED, "chat"), (ROLLOUTS, "rollouts"), (CHAT | {"output": {"columns": "labels"}}, "chat")],
    ids=["packed", "lists", "labels"],
)
@pytest.mark.parametrize("name", FORMAT_NAMES)
def test_what_a_run_made_is_as_its_manifest_says(
    config: dict[str, Any], data: str, name: str, tmp_path: Path, told: Told
) -> None:
    config = config | {"output": config.get("output", {}) | {"storage_format": name}}
    lines = (ROOT / "examples" / "data" / f"{data}.jsonl").read_bytes().splitlines()[:60]
    assert told(make(tmp_path, config, lines)) == []


def test_a_sound_output_takes_one_line(sound: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = manifest_of(sound)
    assert manifest["formats"] == list(FORMAT_NAMES)
    assert len(manifest["shards"]) > len(manifest["domains"]) == 2
    assert manifest["ledger"]["rejected"] == {"bad_json": 3, "not_an_object": 3}
    assert cli.main(["verify", str(sound)]) == 0
    rows, tokens = manifest["totals"]["rows"], manifest["totals"]["tokens"]["sequence"]
    line = f"{sound}: {rows} rows, {tokens:,} tokens in {len(manifest['shards'])} shards, all as manifest.json says\n"
    assert capsys.readouterr().out == line


def test_json_is_for_schedulers(output: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
    assert cli.main(["verify", str(output), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == wanted | {"problems": []}
    (output / "features.json").unlink()
    assert cli.main(["verify", str(output), "--json"]) == 1
    problems = ["features.json: no such file, though manifest.json lists it"]
    assert json.loads(capsys.readouterr().out) == wanted | {"problems": problems}
    assert cli.main(["verify", str(output / "none"), "--json"]) == 1
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert problem.startswith(f"{output / 'none'}: no such directory")


def test_what_is_no_output_is_told(tmp_path: Path, told: Told) -> None:
    (problem,) = told(tmp_path)
    assert "has no manifest.json: not an output of beam_prep" in problem


# Files


def test_every_file_that_is_gone_cut_or_changed_is_named(output: Path, told: Told) -> None:
    files = listed(manifest_of(output))
    endings = {Path(file["path"]).suffix for file in files}
    assert endings >= {".bin", ".tfrecord", ".arrow", ".h5", ".jsonl", ".jinja"}
    wanted = []
    for number, file in enumerate(files):
        path, name = output / file["path"], file["path"]
        data = path.read_bytes()
        if number % 3 == 0:
            path.unlink()
            wanted.append(f"{name}: no such file, though manifest.json lists it")
        elif number % 3 == 1:
            path.write_bytes(data[:-1])
            wanted.append(f"{name}: found {len(data) - 1} bytes, manifest.json says {len(data)}")
        else:
            path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            wanted.append(f"{name} is damaged: found sha256 {digest}, manifest.json says {file['sha256']}")
    found = told(output)
    assert set(wanted) <= set(found)
    with pytest.raises(FormatError) as caught:
        bp.open(output).verify()
    assert str(caught.value).splitlines()[1:] == found


def test_another_tokenizer_than_the_one_that_made_the_output_is_told(output: Path, told: Told) -> None:
    """It decodes to another text, and no file's digest tells."""
    wanted = manifest_of(output)["tokenizer"]["fingerprint"]
    other = bp.Tokenizer.load(output / "tokenizer").with_template("{{ messages }}").save(output / "tokenizer")
    list_again(output)
    assert told(output) == [f"tokenizer: found fingerprint {other.fingerprint}, manifest.json says {wanted}"]


def test_a_chain_written_by_hand_says_no_fingerprint(output: Path, told: Told) -> None:
    manifest = manifest_of(output)
    del manifest["tokenizer"]
    write(output, manifest)
    assert told(output) == []


@pytest.mark.parametrize("name", ["tokenizer.json", "chat_template.jinja", "beam_prep.json"])
def test_a_tokenizer_whose_own_mark_lies_is_told(name: str, output: Path, told: Told) -> None:
    """As a file that was planted where resolved tokenizers are kept: the fingerprint beside it stayed."""
    wanted = manifest_of(output)["tokenizer"]["fingerprint"]
    path = output / "tokenizer" / name
    text = path.read_text()
    changes = {"tokenizer.json": '"id": 0,', "chat_template.jinja": "<|im_end|>", "beam_prep.json": "<|im_end|>"}
    assert changes[name] in text
    path.write_text(text.replace(changes[name], changes[name].replace("0", "1").replace("end", "END"), 1))
    list_again(output)
    (problem,) = told(output)
    assert re.fullmatch(rf"tokenizer: found fingerprint \w{{64}}, manifest.json says {wanted}", problem)
    path.write_text("{")
    list_again(output)
    (problem,) = told(output)
    assert problem.endswith(f", manifest.json says {wanted}") or name != "chat_template.jinja"
    assert problem.endswith(f", manifest.json says fingerprint {wanted}") or name == "chat_template.jinja"


@pytest.mark.parametrize(
    "name", ["near/shard_0009.tfrecord", "near/shard_0009/sequence.bin", "far/data-00009-of-00010.arrow", "other/x.h5"]
)
def test_a_file_that_a_trainers_glob_would_find_is_named(name: str, output: Path, told: Told) -> None:
    (output / name).parent.mkdir(exist_ok=True)
    (output / name).write_bytes(b"old")
    (output / "near" / ".DS_Store").write_bytes(b"")
    assert told(output) == [f"{name}: found, though manifest.json does not list it: remove it"]


@pytest.mark.parametrize("name", ["/etc/hostname", "../in.jsonl", "near/../../x"])
def test_a_path_out_of_the_output_is_refused(name: str, output: Path, told: Told) -> None:
    manifest = manifest_of(output)
    manifest["files"][0]["path"] = name
    write(output, manifest)
    assert told(output) == [f"manifest.json: lists {name!r}, which is not a path in the output"]


# Links


def test_a_file_that_is_a_link_out_of_the_output_is_named(output: Path, told: Told, tmp_path: Path) -> None:
    name = "near/shard_0000.tfrecord"
    (output / name).rename(tmp_path / "elsewhere")
    (output / name).symlink_to(tmp_path / "elsewhere")
    where = f"a link to '{tmp_path / 'elsewhere'}', which is not in the output: put the files themselves there"
    assert told(output) == [f"{name}: {where}"]
    (tmp_path / "elsewhere").write_bytes(b"changed")
    size = next(file["bytes"] for file in listed(manifest_of(output)) if file["path"] == name)
    assert told(output) == [f"{name}: {where}", f"{name}: found 7 bytes, manifest.json says {size}"]
    (tmp_path / "elsewhere").unlink()
    assert told(output)[:2] == [f"{name}: {where}", f"{name}: no such file, though manifest.json lists it"]


def test_a_folder_that_is_a_link_out_of_the_output_is_named(output: Path, told: Told, tmp_path: Path) -> None:
    (output / "near").rename(tmp_path / "elsewhere")
    (output / "near").symlink_to("../elsewhere")
    where = "a link to '../elsewhere', which is not in the output: put the files themselves there"
    # It stands in the output as a file that is not listed; those that are listed are read through it.
    assert told(output) == [f"near: {where}", "near: found, though manifest.json does not list it: remove it"]


def test_what_is_in_a_linked_folder_is_seen(output: Path, told: Told) -> None:
    (output / "near").rename(output / ".kept")
    (output / "near").symlink_to(".kept")
    assert told(output) == []
    (output / ".kept" / "shard_0009.tfrecord").write_bytes(b"old")
    assert told(output) == ["near/shard_0009.tfrecord: found, though manifest.json does not list it: remove it"]


def test_links_in_a_circle_end(output: Path, told: Told) -> None:
    (output / "near" / "again").symlink_to("..")
    (output / "near" / "far").symlink_to("../far")
    (output / "far" / "itself").symlink_to("itself")
    assert told(output) == ["far/itself: found, though manifest.json does not list it: remove it"]


def test_an_output_that_is_reached_by_a_link_is_sound(output: Path, told: Told, tmp_path: Path) -> None:
    (tmp_path / "latest").symlink_to("out")
    assert told(tmp_path / "latest") == []


def test_a_pipe_does_not_block(output: Path, told: Told) -> None:
    (output / "features.json").unlink()
    os.mkfifo(output / "features.json")
    size = next(file["bytes"] for file in listed(manifest_of(output)) if file["path"] == "features.json")
    assert told(output) == [
        f"features.json: found a folder, a pipe or a device, manifest.json says a file of {size} bytes"
    ]


# Inputs


def test_inputs_are_read_again_where_they_are(sound: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = sound.parent / "in.jsonl"
    text = source.read_bytes()
    assert cli.main(["verify", str(sound), "--inputs"]) == 0
    assert capsys.readouterr().out.endswith(", all as manifest.json says; 1 input read again\n")
    source.write_bytes(text.replace(b"miles", b"MILES", 1))
    assert cli.main(["verify", str(sound), "--inputs"]) == 1
    digest = manifest_of(sound)["inputs"][0]["digest"]
    problem = capsys.readouterr().err.splitlines()[0]
    assert re.fullmatch(rf"input {source}: found digest \w{{64}}, manifest.json says {digest}", problem)
    source.write_bytes(text + b"\n")
    assert cli.main(["verify", str(sound), "--inputs"]) == 1
    wanted = f"input {source}: found {len(text) + 1} bytes, manifest.json says {len(text)}"
    assert capsys.readouterr().err.splitlines()[0] == wanted
    source.unlink()
    assert cli.main(["verify", str(sound), "--inputs", "--json"]) == 0
    (why,) = json.loads(capsys.readouterr().out)["inputs"]["not_found"]
    assert f"no such input: '{source}'" in why
    source.write_bytes(text)


# Counts


@pytest.mark.parametrize("name", FORMAT_NAMES)
def test_rows_and_tokens_are_counted_in_every_format(name: str, output: Path, told: Told) -> None:
    """A shard takes the place of another one, in one format, and the manifest is written to fit its files."""
    shards = [shard for shard in manifest_of(output)["shards"] if shard["domain"] == "near"]
    first, last = shards[0], shards[-1]
    assert first["rows"] != last["rows"]
    columns = output_columns(manifest_of(output))
    named = [FORMATS[name].files(columns, each["shard"], len(shards)) or {} for each in (first, last)]
    for old, new in zip(*([file for file, text in files.items() if text is None] for files in named), strict=True):
        shutil.copy(output / "near" / old, output / "near" / new)
    list_again(output)
    where = f"near: shard {last['shard']} ({name}): found"
    assert told(output) == [
        f"{where} {first['rows']} rows, manifest.json says {last['rows']}",
        f"{where} tokens {first['tokens']['sequence']} of 'sequence', manifest.json says {last['tokens']['sequence']}",
        f"{where} trained {first['trained']['loss_mask']} of 'loss_mask', "
        f"manifest.json says {last['trained']['loss_mask']}",
    ]


@pytest.mark.parametrize("name", FORMAT_NAMES)
def test_a_shard_that_its_reader_cannot_read_is_named(name: str, output: Path, told: Told) -> None:
    ends = {"bin": ".json", "h5": ".h5", "megatron": "-sequence.idx", "npy": "sequence/shard_0000.npy"}
    suffix = ends.get(name, f".{name}")
    shard = manifest_of(output)["shards"][0]
    (path,) = [output / file["path"] for file in shard["files"] if is_main(file["path"], suffix)]
    path.write_bytes(path.read_bytes()[:-9])
    list_again(output)
    (problem,) = told(output)
    assert problem.startswith(f"far: shard 0 ({name}): {path}: ")


def is_main(path: str, suffix: str) -> bool:
    """Whether a file of the shard is the one that its reader opens first."""
    name = Path(path).name
    return path.endswith(suffix) and name not in ("state.json", "dataset_info.json")


def test_a_mask_that_lost_a_one_is_found(output: Path, told: Told) -> None:
    shard = manifest_of(output)["shards"][0]
    path = output / next(file["path"] for file in shard["files"] if file["path"].endswith("/loss_mask.bin"))
    path.write_bytes(path.read_bytes().replace(b"\x01", b"\x00", 1))
    list_again(output)
    trained = shard["trained"]["loss_mask"]
    assert told(output) == [
        f"far: shard 0 (bin): found trained {trained - 1} of 'loss_mask', manifest.json says {trained}"
    ]


@pytest.mark.parametrize(
    ("old", "new"), [('"samples": ', '"samples": 1'), ("ndarray:int32", "ndarray:int64"), ('"bytes": ', '"bytes": 1')]
)
def test_an_index_that_says_something_else_is_found(old: str, new: str, output: Path, told: Told) -> None:
    manifest = manifest_of(output)
    (file,) = [file for file in manifest["files"] if file["path"] == "near/index.json"]
    text = (output / file["path"]).read_text()
    changed = text.replace(old, new, 1).encode()
    (output / file["path"]).write_bytes(changed)
    file.update(bytes=len(changed), sha256=hashlib.sha256(changed).hexdigest())
    write(output, manifest)
    (problem,) = told(output)
    assert problem.startswith("near/index.json: found 'shards': ")


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


@pytest.mark.parametrize("key", ["lines", "blank", "read", "kept", "not_read"])
def test_a_ledger_that_does_not_add_up_is_told(key: str, output: Path, told: Told) -> None:
    manifest = manifest_of(output)
    manifest["ledger"][key] += 1
    write(output, manifest)
    found = told(output)
    ledger = {"lines": 33, "read": 30, "sum": 33, "records": 30, "kept": 24}
    if key in ("lines", "read"):
        ledger[key] += 1
    else:
        ledger["sum"] += 1
    if key == "kept":
        ledger["records"] += 1
    lines = (
        f"manifest.json: the ledger says lines {ledger['lines']}, "
        f"but blank + kept + dropped + rejected + not_read are {ledger['sum']}"
    )
    records = f"but kept + dropped + rejected are {ledger['records']}"
    read = f"manifest.json: the ledger says read {ledger['read']}, {records}"
    kept = "manifest.json: totals say rows 24, the ledger says kept 25"
    items = "manifest.json: the ledger says kept 24 and not_read 1, max_items is None"
    wanted = {
        "lines": [lines],
        "blank": [lines],
        "read": [read],
        "kept": [read, lines, kept],
        "not_read": [lines, items],
    }
    assert found == wanted[key]


def test_totals_are_the_sums_of_the_shards(output: Path, told: Told) -> None:
    manifest = manifest_of(output)
    totals = json.loads(json.dumps(manifest["totals"]))
    manifest["totals"]["tokens"]["sequence"] += 1
    manifest["totals"]["trained"] = {}
    write(output, manifest)
    assert told(output) == [
        f"manifest.json: totals say tokens {manifest['totals']['tokens']}, the shards add up to {totals['tokens']}",
        f"manifest.json: totals say trained {{}}, the shards add up to {totals['trained']}",
    ]


def test_a_shard_that_is_not_listed_is_missed(output: Path, told: Told) -> None:
    manifest = manifest_of(output)
    gone = next(index for index, shard in enumerate(manifest["shards"]) if shard["domain"] == "near")
    shard = manifest["shards"].pop(gone)
    count = sum(other["domain"] == "near" for other in manifest["shards"])
    write(output, manifest)
    found = told(output)
    assert f"{shard['files'][0]['path']}: found, though manifest.json does not list it: remove it" in found
    assert f"manifest.json: the shards of 'near' are numbered {list(range(1, count + 1))}, wanted 0 to {count - 1}" in (
        found
    )


@pytest.mark.parametrize("key", ["ledger", "totals", "shards", "rejects", "files", "columns", "domains", "formats"])
def test_a_manifest_that_lacks_a_part_is_told(key: str, output: Path, told: Told) -> None:
    manifest = manifest_of(output)
    del manifest[key]
    write(output, manifest)
    (problem,) = told(output)
    assert f"manifest.json is damaged (KeyError('{key}'" in problem


def test_packs_are_counted_as_packs(tmp_path: Path, told: Told) -> None:
    lines = (ROOT / "examples" / "data" / "chat.jsonl").read_bytes().splitlines()[:60]
    output = make(tmp_path, PACKED, lines)
    manifest = manifest_of(output)
    assert manifest["totals"]["rows"] < manifest["totals"]["packing"]["rows"] == manifest["ledger"]["kept"]
    manifest["shards"][0]["packing"]["rows"] -= 1
    write(output, manifest)
    problem, *others = told(output)
    assert problem.startswith("manifest.json: totals say packing {'capacity'")
    assert len(others) == 1
    assert "documents in packed rows, manifest.json says" in others[0]


def test_a_format_of_a_later_version_is_named_and_the_others_are_compared(output: Path, told: Told) -> None:
    manifest = manifest_of(output)
    manifest["formats"] = [*manifest["formats"], "future"]
    write(output, manifest)
    found = told(output)
    assert any(
        "(future): this version cannot read the format: pip install --upgrade beam-prep" in line for line in found
    )
    assert not any("is damaged" in line for line in found), found
