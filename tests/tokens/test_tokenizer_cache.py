"""A resolved tokenizer that is used again: only where asking would give the same."""

import functools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from beam_prep.errors import TokenizerError
from beam_prep.tokens import resolver as resolve
from tests.conftest import Log, Patch

Ask = Callable[[], str]
Said = Callable[[], list[str]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: Patch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delitem(sys.modules, "transformers", raising=False)
    made = tmp_path / "tokenizer"
    made.mkdir()
    (made / "tokenizer.json").write_text("{}")
    return made


@pytest.fixture
def ask(folder: Path) -> Ask:
    """Resolves the folder; the answer says how often it was worked out."""
    count = 0

    def work() -> dict[str, bytes]:
        nonlocal count
        count += 1
        return files(str(count))

    return lambda: answer(resolve.remembered(resolve.state_of_folder(str(folder)), work))


def files(text: str) -> dict[str, bytes]:
    return {"tokenizer.json": text.encode(), "beam_prep.json": b"{}"}


def answer(found: Path) -> str:
    return (found / "tokenizer.json").read_text()


def test_a_folder_that_another_process_made_meanwhile_is_never_without_its_files(folder: Path) -> None:
    def slow() -> dict[str, bytes]:
        other = resolve.kept("same", lambda: files("1"))
        (other / "in use").touch()
        return files("1")

    found = resolve.kept("same", slow)
    assert (found / "in use").exists()
    assert resolve.read(found) == files("1")


def test_another_file_is_another_tokenizer_and_weights_are_none_of_it(folder: Path, ask: Ask) -> None:
    assert [ask(), ask()] == ["1", "1"]
    (folder / "model.safetensors").write_text("x")
    assert ask() == "1"
    (folder / "tokenizer.json").write_text("{ }")
    assert ask() == "2"
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tools.jinja").write_text("")
    assert ask() == "3"


def test_another_version_of_a_library_is_asked(ask: Ask, monkeypatch: Patch) -> None:
    assert ask() == "1"
    with monkeypatch.context() as other:
        other.setattr("importlib.metadata.version", lambda name: "0")
        assert ask() == "2"
    assert ask() == "1"  # each is kept


@pytest.mark.parametrize("names", [("tokenizer.json",), ("beam_prep.json",), ("tokenizer.json", "beam_prep.json")])
def test_a_folder_whose_files_are_gone_is_made_again(names: tuple[str, ...], ask: Ask) -> None:
    """By a cleaner of the disk, for instance."""
    assert (ask(), ask()) == ("1", "1")
    (folder,) = (resolve.cache() / "tokenizers").iterdir()
    for name in names:
        (folder / name).unlink()
    assert (ask(), ask()) == ("2", "2")


def test_transformers_in_use_is_asked_each_time(ask: Ask, monkeypatch: Patch) -> None:
    """It may know classes that another process does not."""
    assert ask() == "1"
    monkeypatch.setitem(sys.modules, "transformers", sys)
    assert ask() == "2"


def test_a_name_on_the_hub_is_asked_each_time(folder: Path) -> None:
    for wanted in ("1", "2"):
        found = resolve.remembered(resolve.state_of_folder("org/name"), functools.partial(files, wanted))
        assert answer(found) == wanted


# The folder


def forget() -> None:
    resolve.usable.cache_clear()


@pytest.fixture
def said(caplog: Log, monkeypatch: Patch, tmp_path: Path) -> Iterator[Said]:
    """The messages of a process of its own, whose temporary files lie in `tmp`."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    forget()
    yield lambda: caplog.messages
    forget()


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_it_is_the_users_alone(folder: Path, tmp_path: Path, said: Said) -> None:
    before = os.umask(0)
    try:
        found = resolve.cache()
    finally:
        os.umask(before)
    assert (found, mode(found)) == (tmp_path / "cache" / "beam_prep", 0o700)
    assert said() == []


def assert_private(said: Said) -> None:
    """Another folder is used, of this user alone, that nobody could have made before; and that is said once."""
    first, second = resolve.cache(), resolve.cache()
    assert first == second
    assert first.parent.name == "tmp"
    assert (mode(first), first.stat().st_uid) == (0o700, os.geteuid())
    assert str(resolve.kept("x", dict)).startswith(str(first))
    (message,) = said()
    assert "XDG_CACHE_HOME" in message


def test_without_a_home_folder_there_is_still_one(folder: Path, said: Said, monkeypatch: Patch) -> None:
    """Workers on Flink and Dataflow may have none, or one that cannot be written."""
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/proc/nowhere")
    assert_private(said)


def test_a_home_folder_that_is_not_known_is_not_the_current_one(folder: Path, said: Said, monkeypatch: Patch) -> None:
    """A user without an entry in /etc/passwd, as containers have, may get `~/.cache` as it stands."""
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda *names, **options: "~/.cache/beam_prep")
    assert_private(said)


def test_a_full_disk_is_an_error_that_says_what_to_set(folder: Path, said: Said, monkeypatch: Patch) -> None:
    def write(path: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", write)
    with pytest.raises(TokenizerError, match=r"No space left on device.+set XDG_CACHE_HOME"):
        resolve.kept("x", lambda: {"tokenizer.json": b"{}"})


def test_the_folder_of_a_process_goes_with_it(tmp_path: Path) -> None:
    code = """
from beam_prep.tokens import resolver as resolve
made = resolve.cache()
assert made.is_dir()
print(made)
"""
    environment = {**os.environ, "XDG_CACHE_HOME": "", "HOME": "/proc/nowhere", "TMPDIR": str(tmp_path)}
    made = subprocess.run([sys.executable, "-c", code], env=environment, check=True, stdout=subprocess.PIPE).stdout
    assert Path(made.decode().strip()).parent == tmp_path
    assert list(tmp_path.iterdir()) == []


def test_writers_at_once_leave_whole_files(folder: Path) -> None:
    contents = {name: name.encode() * 100_000 for name in resolve.FILES}
    with ThreadPoolExecutor(8) as pool:
        places = list(pool.map(lambda _: resolve.kept("f", lambda: contents), range(32)))
    assert len(set(places)) == 1
    assert {path.name: path.read_bytes() for path in places[0].iterdir()} == contents
    assert [path.name for path in places[0].parent.iterdir()] == ["f"]
