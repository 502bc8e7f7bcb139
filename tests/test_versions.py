"""Versions: each output complete, `latest` moves in one step, the oldest go, and not while somebody reads them."""

import gc
import json
import os
import pickle
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

import beam_prep as bp
from beam_prep import cli
from beam_prep.errors import ConfigError, FormatError, OutputError, RunError
from beam_prep.readers.shards import ReaderLease
from beam_prep.storage import stores
from beam_prep.storage.versions import Versions
from tests.conftest import ROOT, Log, Patch, Run, run_job, text_config, words_of
from tests.storage.conftest import store as store
from tests.storage.memory import MemoryStore

TEXT = text_config()


def rows(count: int) -> str:
    texts = (f"record {number} of {count}, as long as a record has to be to be kept" for number in range(count))
    return "".join(json.dumps({"text": text}) + "\n" for text in texts)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs a job of so many records."""

    def run(count: int, config: dict[str, Any] = TEXT, **options: Any) -> Any:
        (tmp_path / "in.jsonl").write_text(rows(count))
        return run_job(config, tmp_path / "in.jsonl", options.pop("output_dir", tmp_path / "out"), **options)

    return run


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_latest_never_moves_to_an_earlier_name_and_a_run_says_so(run: Run, tmp_path: Path, caplog: Log) -> None:
    run(3, keep_versions=3, version_name="20260102")
    assert "`latest` stays" not in caplog.text
    late = run(2, keep_versions=3, version_name="20260101")
    assert "version 20260101 comes before 20260102 by name, so `latest` stays there" in caplog.text
    assert len(bp.open(late.output)) == 2
    assert len(bp.open(tmp_path / "out")) == 3
    assert names(tmp_path / "out") == ["20260101", "20260102", "latest"]


@pytest.mark.parametrize("name", ["", "latest", "a"])
def test_a_reader_keeps_what_it_opened(name: str, run: Run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(3, keep_versions=1, version_name="a")
    reader = bp.open(out / name)
    run(4, keep_versions=1, version_name="b")
    run(5, keep_versions=1, version_name="c")
    assert names(out) == [".beam_prep", "a", "c", "latest"]
    assert [len(row["sequence"]) > 0 for row in reader] == [True] * 3
    del reader
    gc.collect()
    run(6, keep_versions=1, version_name="d")
    assert names(out) == ["d", "latest"]


def test_a_version_that_is_removed_while_it_is_opened_is_not_read(run: Run, tmp_path: Path, monkeypatch: Patch) -> None:
    run(3, keep_versions=1, version_name="a")

    def late(version: str) -> ReaderLease:
        if version.endswith("a"):
            run(4, keep_versions=1, version_name="b")
        return ReaderLease(version)

    monkeypatch.setattr("beam_prep.readers.dataset.ReaderLease", late)
    assert len([*bp.open(tmp_path / "out")]) == 4


def test_a_copy_in_another_process_renews_the_lease(run: Run, tmp_path: Path, monkeypatch: Patch) -> None:
    run(3, keep_versions=1, version_name="a")
    reader = bp.open(tmp_path / "out")
    copy = pickle.loads(pickle.dumps(reader))
    (lease,) = (tmp_path / "out/.beam_prep/readers/a").iterdir()
    os.utime(lease, (0, 0))
    hour_later = time.time() + 3601
    monkeypatch.setattr(time, "time", lambda: hour_later)
    assert len([*copy]) == 3
    assert lease.stat().st_mtime > 0
    del copy
    assert lease.exists()


def test_the_lease_of_a_reader_that_was_killed_lasts_a_day(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(3, keep_versions=1, version_name="a")
    code = f"import os, beam_prep; ds = beam_prep.open({str(out)!r}); os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT)
    (lease,) = (out / ".beam_prep/readers/a").iterdir()
    os.utime(lease, (day_ago := time.time() - 24 * 3600 + 60, day_ago))
    run(4, keep_versions=1, version_name="b")
    assert names(out) == [".beam_prep", "a", "b", "latest"]
    os.utime(lease, (day_ago - 60, day_ago - 60))
    run(5, keep_versions=1, version_name="c")
    assert names(out) == ["c", "latest"]


def test_a_folder_that_cannot_be_written_is_read_without_a_lease(run: Run, tmp_path: Path) -> None:
    run(3, keep_versions=1, version_name="a")
    (tmp_path / "out/.beam_prep").write_text("")  # root writes to folders without the right, too
    assert len(bp.open(tmp_path / "out")) == 3


def test_what_makes_no_sense_is_refused(run: Run) -> None:
    for name in ("", "latest", ".beam_prep", "a/b", "é", "a" * 101, "-a"):
        with pytest.raises(ConfigError, match="version_name is "):
            run(3, keep_versions=1, version_name=name)
    with pytest.raises(ConfigError, match="version_name is 'a' without keep_versions"):
        run(3, version_name="a")
    with pytest.raises(ConfigError, match="keep_versions is 0, wanted greater than or equal to 1"):
        run(3, keep_versions=0)
    with pytest.raises(ConfigError, match="lease is 1, wanted greater than or equal to 60"):
        run(3, lease=1)


def test_an_output_with_and_one_without_versions_are_not_mixed(run: Run, tmp_path: Path) -> None:
    run(3)
    with pytest.raises(OutputError, match="holds an output without versions: choose another -o"):
        run(4, keep_versions=1)
    run(3, output_dir=tmp_path / "other", keep_versions=1)
    with pytest.raises(OutputError, match="holds versions: pass --keep_versions N"):
        run(4, output_dir=tmp_path / "other", overwrite=True)


def test_a_failed_run_moves_nothing_and_reports_beside_the_folder(run: Run, tmp_path: Path) -> None:
    run(3, keep_versions=2, version_name="a")
    nothing = {"input": {"sections": [{"field": "no", "action": "train"}]}}
    with pytest.raises(RunError, match=r"see .*/out.failed/failure.json"):
        run(3, nothing, keep_versions=2)
    assert names(tmp_path / "out") == ["a", "latest"]
    assert (tmp_path / "out.failed/failure.json").exists()
    run(4, keep_versions=2)
    assert not (tmp_path / "out.failed").exists()


# In a store that lies in memory


OUT = "mem://bucket/out"


def stored() -> set[str]:
    return {found.path.removeprefix("mem://bucket/").split("/shard_")[0] for found in stores.listed("mem://bucket/")}


def test_a_store_has_a_pointer_and_removes_the_oldest(store: MemoryStore, run: Run) -> None:
    for count, name in enumerate("abc", 1):
        run(count, output_dir=OUT, keep_versions=2, version_name=name)
    assert Versions(OUT).latest() == "c"
    assert {name.split("/")[1] for name in stored()} == {"b", "c", "latest.json"}
    assert run(3, output_dir=OUT, keep_versions=2).up_to_date
    assert cli.main(["verify", OUT]) == 0


def remove(name: str) -> None:
    stores.delete(found.path for found in stores.listed(f"{OUT}/{name}/"))


def test_a_version_in_a_store_that_was_removed_by_hand_is_not_counted(store: MemoryStore, run: Run) -> None:
    for count, name in enumerate("abc", 1):
        run(count, output_dir=OUT, keep_versions=3, version_name=name)
    remove("b")
    remove("c")
    run(4, output_dir=OUT, keep_versions=2, version_name="ba")
    assert Versions(OUT).names() == ["a", "ba"]
    assert Versions(OUT).latest() == "ba"


def test_the_next_run_ends_the_removal_of_a_stored_version(store: MemoryStore, run: Run, monkeypatch: Patch) -> None:
    run(1, output_dir=OUT, keep_versions=1, version_name="a")
    delete = store.delete

    def killed(path: str) -> None:
        if path.startswith(f"{OUT}/a/") and not path.endswith("manifest.json"):
            raise RuntimeError("killed")
        delete(path)

    with monkeypatch.context() as patch:
        patch.setattr(store, "delete", killed)
        with pytest.raises(RuntimeError, match="killed"):
            run(2, output_dir=OUT, keep_versions=1, version_name="b")
    assert any(name.startswith("out/a/") for name in stored())
    assert run(2, output_dir=OUT, keep_versions=1, version_name="b").up_to_date
    assert {name.split("/")[1] for name in stored()} == {"b", "latest.json"}


def test_a_version_of_inputs_in_a_store_is_up_to_date_by_its_own_checksum(store: MemoryStore) -> None:
    stores.put("mem://bucket/in.jsonl", rows(3).encode())
    for again in (False, True):
        assert run_job(TEXT, "mem://bucket/in.jsonl", OUT, keep_versions=2).up_to_date is again


def test_a_local_output_may_have_its_unfinished_files_in_a_store(store: MemoryStore, run: Run, tmp_path: Path) -> None:
    assert len(bp.open(run(3, staging="mem://bucket/staging").output)) == 3
    assert run(3, staging="mem://bucket/staging").up_to_date
    assert not stores.listed("mem://bucket/staging/")


@pytest.mark.parametrize("is_copied", [True, False], ids=["a copy of a version", "removed"])
def test_latest_that_is_no_link_is_told(is_copied: bool, run: Run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(3, keep_versions=2, version_name="one")
    (out / "latest").unlink()
    if is_copied:
        (out / "latest").mkdir()
        with pytest.raises(OutputError, match=r"out/latest is a file or a folder, wanted a link to a version: remove"):
            run(4, keep_versions=2)
    with pytest.raises(FormatError, match=f"no link `latest`: open {out}/one; if it is a version, type: ln -sfn one"):
        bp.open(out)
    if not is_copied:
        with pytest.raises(OutputError, match=f"if these are versions, type: ln -sfn one {out}/latest"):
            run(4, keep_versions=2)
        (out / "latest").symlink_to("one")
        run(4, keep_versions=2, version_name="two")
        assert len(bp.open(out)) == 4


def test_a_version_of_which_a_file_could_not_be_removed_is_removed_by_the_next_run(
    run: Run, tmp_path: Path, monkeypatch: Patch
) -> None:
    """`rm` of one file fails with an input/output error."""
    out = tmp_path / "out"
    run(3, keep_versions=1, version_name="v1")
    with monkeypatch.context() as patched:
        patched.setattr("beam_prep.storage.versions.remove_folder", lambda path: None)
        run(4, keep_versions=1, version_name="v2")
        assert names(out) == [".beam_prep", "latest", "v1", "v2"]
        run(5, keep_versions=1, version_name="v3")  # it is no reason to refuse the folder
        with pytest.raises(OutputError, match="it holds 'v1'"):  # the mark would remove the new one
            run(6, keep_versions=1, version_name="v1")
    assert run(5, keep_versions=1, version_name="v3").up_to_date
    assert names(out) == ["latest", "v3"]


@pytest.mark.parametrize("root", ["mem://bucket/outs", "outs"])
def test_outputs_of_their_own_are_no_old_versions(root: str, store: MemoryStore, run: Run, tmp_path: Path) -> None:
    outs = root if "://" in root else str(tmp_path / root)
    for name in ("chats", "tools"):
        run(3, output_dir=f"{outs}/{name}")
    for version in (None, "chats"):
        with pytest.raises(OutputError, match="outs holds 'tools', which no `latest` makes a version"):
            run(3, output_dir=outs, keep_versions=1, version_name=version)
    with pytest.raises(OutputError, match="outs is no output of beam_prep"):
        run(3, output_dir=outs)
    assert Versions(outs).names() == ["chats", "tools"]


def test_a_first_version_whose_launch_was_killed_before_latest_is_one(run: Run, tmp_path: Path) -> None:
    code = """
        import os, sys
        from beam_prep import cli
        from beam_prep.storage.versions import Versions
        Versions.point = lambda self, name: os.kill(os.getpid(), 9)
        cli.main(sys.argv[1:])
    """
    (tmp_path / "in.jsonl").write_text(rows(3))
    words = ["run", "in.jsonl", "-o", "out", "--keep_versions=2", "--version_name=a", *words_of(TEXT, tmp_path)]
    settings = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", textwrap.dedent(code), *words], cwd=tmp_path, env=settings)
    assert names(tmp_path / "out") == ["a"]
    run(4, keep_versions=2, version_name="b")
    assert names(tmp_path / "out") == ["a", "b", "latest"]
