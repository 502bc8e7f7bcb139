"""Paths that cannot be written, and disks that are full: one line that says which and what to do, and an exit code.

Outputs that are named through links: the link stays, the data go to the disk that it names, and the lock is one.
"""

import errno
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import beam_prep as bp
from beam_prep import cli
from beam_prep.errors import LockedError, OutputError, StorageError, of_the_system
from tests.conftest import ROOT, Capture, Command, Patch, Run, config_of, text_config, write_lines

SAMPLE = ["run", str(ROOT / "examples/data/text.jsonl"), "-c", str(ROOT / "configs/pretrain.json")]
SAMPLE += ["--tokenizer_path", str(ROOT / "examples/tokenizer")]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["-o", "file/out"], "/file/.beam_prep: Not a directory: choose another path"),
        (["-o", "file"], "file is no output of beam_prep"),
        (["-o", "a" * 256], "a/manifest.json: File name too long: choose another path"),
        (["-o", "out", "--staging", "file"], ": Not a directory: choose another path"),
        (["-o", "out", "--cache_dir", "loop"], ": Too many levels of symbolic links: choose another path"),
        (["-o", "out", "--cache_dir", "/proc/beam_prep"], ": No such file or directory: choose another path"),
    ],
    ids=["below a file", "a file", "long", "staging", "loop", "/proc"],
)
def test_a_path_that_cannot_be_written_is_named(
    options: list[str], words: str, tmp_path: Path, monkeypatch: Patch, command: Command
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    Path("loop").symlink_to("loop")
    said = command(*SAMPLE, "--runner=FnApiRunner", *options, code=4).splitlines()[-1]
    assert said.startswith("beam-prep: ")
    assert words in said


def test_a_runner_that_does_not_take_a_job_is_told_in_a_line(tmp_path: Path, command: Command) -> None:
    job = [*SAMPLE, "-o", str(tmp_path / "out"), "--runner=PrismRunner", f"--prism_location={tmp_path}/prism"]
    said = command(*job, code=2).splitlines()[-1]
    assert said.startswith("beam-prep: PrismRunner did not take the job (ValueError: Unable to parse binary URL")
    assert said.endswith(": check its options (docs/runners.md), and run again")


def test_a_machine_without_a_folder_for_temporary_files_says_what_to_set() -> None:
    error = FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp', '/var/tmp']")
    assert str(of_the_system(error)) == "no folder for temporary files can be written: set TMPDIR to one that can"


def test_the_command_behind_a_run_can_be_typed_for_any_path(tmp_path: Path, command: Command) -> None:
    said = command(*SAMPLE, "--runner=FnApiRunner", "-o", tmp_path / "a b")
    assert f"beam-prep inspect '{tmp_path}/a b'; its report" in said


def test_a_folder_without_rights_is_told_before_the_run(tmp_path: Path, monkeypatch: Patch, command: Command) -> None:
    make = os.mkdir

    def mkdir(path: str, mode: int = 0o777) -> None:  # root may write everywhere
        if str(path).startswith(str(tmp_path)):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        make(path, mode)

    monkeypatch.setattr(os, "mkdir", mkdir)
    words = f"{tmp_path}/below: Permission denied: the user of this process (id {os.geteuid()}) may not read or write"
    assert words in command(*SAMPLE, "-o", tmp_path / "below" / "out", code=4)
    assert not any(tmp_path.iterdir())


def test_verify_tells_who_may_not_read_the_manifest(tmp_path: Path, monkeypatch: Patch, command: Command) -> None:
    def denied(path: Path) -> bytes:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", denied)
    said = command("verify", tmp_path, code=1)
    assert f"{tmp_path}/manifest.json: Permission denied: the user of this process (id" in said


def test_an_output_may_have_the_longest_name_that_a_file_can_have(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.chdir(tmp_path)
    name = "é" * 127 + "e"
    assert cli.main([*SAMPLE, "-o", name]) == 0
    Path("bad.jsonl").write_text("{\n")
    assert cli.main(["run", "bad.jsonl", *SAMPLE[2:], "-o", name, "--overwrite"]) == 3
    assert Path(f"{'é' * 100}.failed/failure.json").exists()


@pytest.mark.parametrize("option", ["-o", "--cache_dir", "--staging"])
def test_a_folder_whose_name_is_not_utf8_is_refused_before_a_run(option: str, tmp_path: Path, command: Command) -> None:
    folder = os.fsdecode(bytes(tmp_path / "caf") + b"\xe9")
    said = command(*SAMPLE, "-o", tmp_path / "out", option, folder, code=2)
    assert said.endswith("caf\\udce9: this path is not UTF-8: choose another, or rename its folders\n")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(disk)], capture_output=True).returncode:
        pytest.skip("needs the right to mount a file system")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


@pytest.mark.parametrize(
    ("output", "words"), [("disk/out", "make room"), ("out", "TMPDIR")], ids=["of the output", "of temporary files"]
)
def test_a_full_disk_is_one_line_with_the_file(
    output: str, words: str, small_disk: Path, monkeypatch: Patch, capfd: Capture
) -> None:
    """Shards of HDF5 wait in the folder of temporary files."""
    monkeypatch.chdir(small_disk.parent)
    Path("config.json").write_text(json.dumps(config_of("pretrain") | {"output": {"storage_format": "h5"}}))
    Path("in.jsonl").write_bytes((ROOT / "examples/data/text.jsonl").read_bytes() * 20)
    if words == "TMPDIR":
        monkeypatch.setenv("TMPDIR", str(small_disk))
        monkeypatch.setattr(tempfile, "tempdir", None)
    assert cli.main(["run", "in.jsonl", "-o", output, "-c", "config.json", *SAMPLE[-2:], "--runner=FnApiRunner"]) == 5
    said = capfd.readouterr().err
    assert "Traceback" not in said
    assert str(small_disk) in said
    assert words in said


def test_errors_of_the_system_are_known_from_their_text() -> None:
    """Libraries in C and workers give no more than that."""
    cases = {
        "OSError: [Errno 28] No space left on device: '/a/b'": ("/a/b: No space left on device: make room", 5),
        "OSError: [Errno 5] Input/output error [while running 'Write']": ("a file: Input/output error: run again", 5),
        "Can't write (file write failed: errno = 28, error message = 'No space left on device')": ("make room", 5),
        "PermissionError: [Errno 13] Permission denied: '/a/b'\\n": (
            "/a/b: Permission denied: the user of this process (id ",
            4,
        ),
        "[Errno 20] Not a directory: '/a' -> '/b'": (": Not a directory: choose another path", 4),
    }
    for text, (words, code) in cases.items():
        found = of_the_system(RuntimeError(text))
        assert found is not None, text
        assert words in str(found)
        assert (found.exit_code, type(found)) == (code, {4: OutputError, 5: StorageError}[code])
    assert of_the_system(RuntimeError("something else 28")) is None
    assert of_the_system(OSError("cannot identify")) is None


# Links

TEXT = text_config()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "disk").mkdir()
    return write_lines(tmp_path / "in.jsonl", [{"text": f"record {number}. " * 10} for number in range(9)])


def test_an_output_that_is_a_link_is_followed(run: Run, source: Path, tmp_path: Path) -> None:
    link = tmp_path / "out"
    link.symlink_to(tmp_path / "disk" / "data")
    assert run(TEXT, source).output == str(tmp_path / "disk" / "data")
    source.write_text(source.read_text() * 2)
    run(TEXT, source, overwrite=True)
    assert link.is_symlink()
    assert len(bp.open(link)) == 18
    assert sorted(path.name for path in (tmp_path / "disk").iterdir()) == [".beam_prep", "data"]
    assert not (tmp_path / ".beam_prep").exists()


def test_a_job_through_a_linked_folder_finds_the_lock(run: Run, source: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    config = bp.PipelineConfig.from_dict(TEXT)
    first = bp.Pipeline(config, source, tmp_path / "disk" / "out", ROOT / "examples/tokenizer")
    with first.claim().claims.locked(), pytest.raises(LockedError, match=r"another job is writing .*/disk/out"):
        run(TEXT, source, "link/out")
    run(TEXT, source, "link/out")
