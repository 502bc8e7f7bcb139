"""Domain names as folders: nothing leaves the output, no two domains meet, on any file system."""

import re
import string

import hypothesis.strategies as st
import pytest
from hypothesis import example, given

from beam_prep.data.rendered import DEFAULT_DOMAIN
from beam_prep.shards.domains import folder_of

PLAIN = ["wiki", "a.b", "2024", "en-us", "_x", "a" * 60, "x-0123456789abcde", "shards", DEFAULT_DOMAIN]

# The names of the output's own files and folders.
RESERVED = "rejects tokenizer latest latest.json manifest.json run.json report.html features.json".split()


RESERVED += ["dataset_dict.json", "shard_0000", "shard_"]

UNSAFE = ["", ".", "..", "../x", "/etc/passwd", "a/b", "a\\b", "C:\\x", "a\0b", "a\nb", ".hidden", "-rf", "~", "$HOME"]


UNSAFE += ["%2e%2e%2f", "a b", " a", "a ", "a.", "*", "Wiki", "ＷＩＫＩ", "wiki\u200b", "é", "e\u0301"]

names = st.one_of(
    st.text(max_size=12), st.text(alphabet="aA/._- \\0b", max_size=4), st.sampled_from([*PLAIN, *RESERVED, *UNSAFE])
)


def assert_one_safe_component(folder: str) -> None:
    assert re.fullmatch(r"[a-z0-9_][a-z0-9_.-]*", folder), folder
    assert len(folder.encode()) <= 64
    assert not folder.endswith(".")
    assert folder not in RESERVED
    assert not re.fullmatch(r"shard_[0-9]+", folder)


@pytest.mark.parametrize("name", PLAIN)
def test_a_plain_name_is_its_own_folder(name: str) -> None:
    assert folder_of(name) == name
    assert_one_safe_component(name)


def test_any_other_name_is_a_slug_and_a_hash() -> None:
    for name in [*RESERVED, *UNSAFE]:
        folder = folder_of(name)
        assert_one_safe_component(folder)
        assert re.fullmatch(r"[a-z0-9_]{1,40}-[0-9a-f]{16}", folder)


@given(st.sets(names, max_size=8))
@example({"a/b", "a_b", "A/B", "A_B", folder_of("a/b"), "A", "a", "ß", "ss", "é", "e\u0301", "", "domain", "a ", "a."})
def test_distinct_domains_have_distinct_folders_on_any_file_system(domains: set[str]) -> None:
    found = [*map(folder_of, domains)]
    assert len({folder.casefold() for folder in found}) == len(domains)
    for folder in found:
        assert_one_safe_component(folder)


def test_the_folder_is_the_same_in_every_run() -> None:
    """Written down once: a changed rule would move every output."""
    assert folder_of("a/b") == "a_b-c14cddc033f64b9d"
    assert folder_of("Wiki") == "wiki-63ec69fde300e6d6"
    assert folder_of("日本語").startswith("domain-")


@pytest.mark.parametrize("name", ["state.json", "dataset_info.json"])
def test_in_splits_the_files_of_datasets_lie_beside_domains(name: str) -> None:
    assert folder_of(name) == name != folder_of(name, in_splits=True)


def test_every_ascii_character_alone() -> None:
    assert len({folder_of(chr(code)).casefold() for code in range(128)}) == 128
    own = {character for character in map(chr, range(128)) if folder_of(character) == character}
    assert own == set(string.ascii_lowercase + string.digits + "_")


UNSAFE += ["\N{KELVIN SIGN}", "ſ", "ß", "\ud800", "日本語", "x" * 61, "日" * 500, "b-0123456789abcdef"]
