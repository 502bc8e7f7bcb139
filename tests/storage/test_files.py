"""Inputs that are named by paths, globs and lists: which files they are, in which order, and what is refused."""

import gzip
import os
import re
from pathlib import Path

import pytest

from beam_prep.errors import InputError, StorageError
from beam_prep.storage.files import input_at, list_inputs, of_tables, write_file
from tests.conftest import Log, Patch


def listed(*patterns: object) -> list[str]:
    return [os.path.basename(file.path) for file in list_inputs([str(pattern) for pattern in patterns])]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("b.jsonl", "a.jsonl", "B.jsonl", "é.jsonl", "zz.jsonl", "a.jsonl.gz", "deep/er/c.jsonl"):
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(b"") if name.endswith(".gz") else b"")
    return tmp_path / "in"


def test_a_glob_is_sorted_by_bytes_and_arguments_stay_in_order(folder: Path) -> None:
    assert listed(folder / "*.jsonl") == ["B.jsonl", "a.jsonl", "b.jsonl", "zz.jsonl", "é.jsonl"]
    found = listed(folder / "zz.jsonl", folder / "[ab].jsonl", folder / "**/c.jsonl")
    assert found == ["zz.jsonl", "a.jsonl", "b.jsonl", "c.jsonl"]


def test_a_list_names_inputs_in_its_order(folder: Path, monkeypatch: Patch) -> None:
    for name in ("y.jsonl", "x2.jsonl", "x1.jsonl", "@odd.jsonl"):
        (folder / name).write_text('{"text": "x"}\n')
    (folder / "inputs.txt").write_text(f"{folder}/y.jsonl\n\n  # not {folder}/a.jsonl\n  {folder}/x*.jsonl\n")
    found = [os.path.basename(file.path) for file in list_inputs([f"@{folder}/inputs.txt", f"{folder}/@odd.jsonl"])]
    assert found == ["y.jsonl", "x1.jsonl", "x2.jsonl", "@odd.jsonl"]
    monkeypatch.chdir(folder)
    with pytest.raises(InputError, match=r"list of inputs 'odd\.jsonl' cannot be read.*type '\./@odd\.jsonl'"):
        list_inputs("@odd.jsonl")


def test_a_file_named_like_a_glob_is_that_file(folder: Path) -> None:
    (folder / "[ab].jsonl").write_bytes(b"")
    assert listed(folder / "[ab].jsonl") == ["[ab].jsonl"]


@pytest.mark.parametrize("name", ["a.json.GZ", "a.bz2"])
def test_a_compressed_file_of_0_bytes_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"")
    (tmp_path / "plain.jsonl").write_bytes(b"")
    says = f"{name}' has 0 bytes, which no compressed file has: writing or uploading it has failed; make it again, or"
    with pytest.raises(InputError, match=re.escape(says)):
        list_inputs([str(tmp_path / "plain.jsonl"), str(tmp_path / name)])


@pytest.mark.parametrize("again", ["../in/a.jsonl", "*.jsonl", "link.jsonl", "linked/a.jsonl"])
def test_the_same_file_twice_is_refused(folder: Path, again: str, monkeypatch: Patch) -> None:
    monkeypatch.chdir(folder)
    Path("link.jsonl").symlink_to("a.jsonl")
    Path("linked").symlink_to(".")
    with pytest.raises(InputError, match=r"the same input twice: '.*' and 'a\.jsonl'; name each file once"):
        list_inputs(["a.jsonl", again])


def test_inputs_that_are_not_there_or_cannot_be_read(folder: Path, monkeypatch: Patch) -> None:
    monkeypatch.chdir(folder)
    Path("broken.jsonl").symlink_to("gone.jsonl")
    Path("loop.jsonl").symlink_to("loop.jsonl")
    os.mkfifo("pipe.jsonl")
    Path("out").mkdir()
    for name in ("manifest.json", "run.json"):
        Path("out", name).touch()
    for pattern, message in {
        "none.jsonl": f"no such input: 'none.jsonl' (from {folder}); check the path, or quote the glob",
        "none*.jsonl": f"no such input: 'none*.jsonl' (from {folder}); check the path, or quote the glob",
        "deep": "'deep' is a directory: name its files, for instance 'deep/*/*.jsonl'",
        "d*p": "'deep' is a directory: name its files, for instance 'deep/*/*.jsonl'",
        "o*": "'out' is an output of beam_prep, wanted files of records: leave it out of the inputs",
        "broken.jsonl": "cannot read 'broken.jsonl': No such file or directory",
        "loop.jsonl": "cannot read 'loop.jsonl': Too many levels of symbolic links",
        "a.jsonl/x": f"no such input: 'a.jsonl/x' (from {folder}); check the path, or quote the glob",
        "pipe.jsonl": "'pipe.jsonl' is a pipe or a device, which cannot be read twice: write its data to a file first",
        "/dev/null": "'/dev/null' is a pipe or a device, which cannot be read twice: write its data to a file first",
    }.items():
        with pytest.raises(InputError) as caught:
            list_inputs([pattern])
        assert str(caught.value) == message
    with pytest.raises(InputError, match="no input: name at least one JSONL file or glob"):
        list_inputs([])


@pytest.mark.parametrize(
    ("files", "advised"),
    [
        ("a.jsonl.gz", "'table/*.jsonl.gz'"),
        ("0.json 1.json.gz _SUCCESS .0.json.crc README.md", "'table/*.json' 'table/*.json.gz'"),
        ("lang=en/part-0.parquet", "'table/*/*.parquet'"),
        ("year=2026/lang=en/part-0.snappy.parquet", "'table/*/*/*.parquet'"),
        ("_delta_log/0.json", None),
        ("events/_delta_log/0.json", None),
        ("metadata/v1.metadata.json", None),
        ("metadata/notes.jsonl", "'table/*/*.jsonl'"),
    ],
)
def test_what_is_advised_names_the_files(tmp_path: Path, monkeypatch: Patch, files: str, advised: str | None) -> None:
    monkeypatch.chdir(tmp_path)
    made = [Path("table") / file for file in files.split()]
    for path in made:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"PAR1")
    kind = "Iceberg" if "metadata" in files else "Delta"
    holds = f"holds tables of {kind}" if files.startswith("events") else f"is a table of {kind}"
    says = f"is a directory: name its files, for instance {advised}" if advised else f"{holds}, whose files also hold"
    with pytest.raises(InputError, match=re.escape(f"'table' {says}")):
        list_inputs(["table"])
    if advised:
        globs = [glob.strip("'") for glob in advised.split()]
        assert [each.path for each in list_inputs(globs)] == [str(path) for path in made[: len(globs)]]


@pytest.mark.parametrize(
    ("file", "log", "kind"),
    [
        ("part-0.parquet", "_delta_log/0.json", "Delta"),
        ("year=2026/lang=en/part-0.parquet", "_delta_log/0.json", "Delta"),
        ("data/0.parquet", "metadata/v1.metadata.json", "Iceberg"),
        ("data/year=2026/0.parquet", "metadata/v1.metadata.json", "Iceberg"),
        ("data/0.parquet", "metadata/columns.json", None),
        ("data/0.parquet", "_delta_log/0.json", None),
        ("part-0.jsonl", "_delta_log/0.json", None),
    ],
)
def test_parquet_files_of_a_table_with_a_log_are_told(tmp_path: Path, file: str, log: str, kind: str | None) -> None:
    for name in (file, log):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"PAR1")
    path = str(tmp_path / file)
    says = f"{path!r} belongs to a table of {kind}, whose files also hold removed rows"
    assert of_tables(list_inputs([path])) == ([f"{says}: write its rows to a Parquet file first"] if kind else [])


def test_no_right_to_list_what_stands_beside_parquet_files_is_needed(tmp_path: Path, monkeypatch: Patch) -> None:
    def refused(folder: str) -> set[str]:
        raise StorageError(f"{folder}: the store refuses")

    (tmp_path / "0.parquet").write_bytes(b"PAR1")
    monkeypatch.setattr("beam_prep.storage.files.names_in", refused)
    assert of_tables(list_inputs([tmp_path / "0.parquet"])) == []


def test_a_file_without_permission_is_refused(folder: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: not str(path).endswith("b.jsonl"))  # root may read all
    with pytest.raises(InputError, match=r"cannot read '.*/b\.jsonl': permission denied; make it readable"):
        list_inputs([str(folder / "*.jsonl")])


@pytest.mark.parametrize(
    ("pattern", "open_files"),
    [("*/a.jsonl", 1), ("*/*.jsonl", 1), ("**/*.jsonl", 1), ("closed/a.jsonl", 0), ("closed/*", 0), ("open/*", 1)],
)
def test_a_folder_without_permission_is_not_passed_over_in_silence(
    pattern: str, open_files: int, tmp_path: Path, monkeypatch: Patch, caplog: Log
) -> None:
    for name in ("open", "closed"):
        (tmp_path / name).mkdir()
    (tmp_path / "open" / "a.jsonl").touch()
    monkeypatch.setattr(os, "access", lambda path, mode: "closed" not in str(path))  # root may read all
    said = ""
    try:
        assert len(list_inputs([str(tmp_path / pattern)])) == open_files
    except InputError as error:
        assert not open_files
        said = str(error)
    assert ("/closed" in said + caplog.text) == ("open" not in pattern)
    assert ("permission denied; to read its files, type: chmod" in said + caplog.text) == ("open" not in pattern)


def test_a_file_that_is_written_has_its_content_and_the_usual_rights(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    (tmp_path / "usual").write_bytes(b"")
    for content in (b"one", b"another"):
        write_file(str(path), content[:1], content[1:])
        assert path.read_bytes() == content
        assert path.stat().st_mode == (tmp_path / "usual").stat().st_mode
    assert os.listdir(path.parent) == ["file"]


def test_the_path_of_a_manifest_is_neither_a_list_nor_a_glob(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("@a.jsonl", "[1].jsonl", "1.jsonl"):
        Path(name).write_text("{}\n")
        assert input_at(name).path == name
    Path("[1].jsonl").unlink()
    with pytest.raises(InputError, match="no such input"):  # and not 1.jsonl
        input_at("[1].jsonl")
