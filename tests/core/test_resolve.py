"""A resolved tokenizer that is used again: only where asking would give the same."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from beam_prep.core import resolve

Ask = Callable[[], str]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delitem(sys.modules, "transformers", raising=False)
    made = tmp_path / "tokenizer"
    made.mkdir()
    (made / "tokenizer.json").write_text("{}")
    return made


@pytest.fixture
def ask(folder: Path) -> Ask:
    """Resolves the folder; the answer says how often it was worked out."""
    count = 0

    def work() -> tuple[str, list[str]]:
        nonlocal count
        count += 1
        bundle = resolve.bundles() / f"{count}"
        bundle.mkdir(parents=True, exist_ok=True)
        (bundle / "tokenizer.json").write_text("{}")
        return f"{count}", ["tokenizer.json"]

    return lambda: resolve.remembered(str(folder), work)


def test_the_second_time_nobody_is_asked(ask: Ask) -> None:
    assert [ask(), ask()] == ["1", "1"]


def test_a_changed_file_is_another_tokenizer(folder: Path, ask: Ask) -> None:
    assert ask() == "1"
    (folder / "tokenizer.json").write_text("{ }")
    assert ask() == "2"


def test_a_file_more_is_another_tokenizer(folder: Path, ask: Ask) -> None:
    assert ask() == "1"
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tools.jinja").write_text("")
    assert ask() == "2"


def test_weights_beside_it_do_not_matter(folder: Path, ask: Ask) -> None:
    assert ask() == "1"
    (folder / "model.safetensors").write_text("x")
    assert ask() == "1"


def test_another_version_of_a_library_is_asked(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask() == "1"
    monkeypatch.setattr("beam_prep.core.resolve._version", lambda name: "0")
    assert ask() == "2"


@pytest.mark.parametrize("damage", [lambda path: path.unlink(), lambda path: path.write_text("[]")])
def test_a_damaged_bundle_is_made_again(ask: Ask, damage: Callable[[Path], None]) -> None:
    assert ask() == "1"
    damage(resolve.bundles() / "1" / "tokenizer.json")
    assert ask() == "2"


def test_a_damaged_note_is_none(ask: Ask) -> None:
    assert ask() == "1"
    (note,) = (resolve.bundles().parent / "resolved").iterdir()
    note.write_text("{")
    assert ask() == "2"


def test_transformers_in_use_is_asked_each_time(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may know classes that another process does not."""
    assert ask() == "1"
    monkeypatch.setitem(sys.modules, "transformers", sys)
    assert ask() == "2"


def test_a_file_that_changes_meanwhile_is_not_remembered(folder: Path) -> None:
    def work() -> tuple[str, list[str]]:
        (folder / "tokenizer.json").write_text("{ }")
        return "new", []

    assert resolve.remembered(str(folder), work) == "new"
    assert not (resolve.bundles().parent / "resolved").exists()


def test_a_name_on_the_hub_is_asked_each_time(folder: Path) -> None:
    answers = iter(["1", "2"])
    assert [resolve.remembered("org/name", lambda: (next(answers), [])) for _ in range(2)] == ["1", "2"]
