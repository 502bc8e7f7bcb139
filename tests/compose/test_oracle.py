"""The oracle of deduplication says what a person would say, and its inputs have what they promise."""

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, find, given, settings

from tests.compose.oracle import File, Normalize, Place, copies_of, corpora, deduplicated, key_of, records_of


def write(folder: Path, *lines: str, name: str = "a.jsonl") -> Path:
    return File(name, tuple(line.encode() for line in lines)).write(folder)


@pytest.mark.parametrize(
    ("normalize", "copies"),
    [
        ("none", {Place(0, 2): Place(0, 1), Place(1, 1): Place(0, 1)}),
        ("whitespace", {place: Place(0, 1) for place in (Place(0, 2), Place(0, 4), Place(1, 1))}),
        ("nfkc_casefold", {place: Place(0, 1) for place in (Place(0, 2), Place(0, 4), Place(0, 5), Place(1, 1))}),
    ],
)
def test_the_first_of_equal_records_is_kept(normalize: Normalize, copies: dict[Place, Place], tmp_path: Path) -> None:
    paths = [
        write(
            tmp_path, *(json.dumps({"t": text, "n": n}) for n, text in enumerate(["a ﬁ", "a ﬁ", "b", " a\tﬁ ", "A fi"]))
        ),
        write(tmp_path, "", '{"t": "a ﬁ"}', "[]", name="b.jsonl.gz"),
    ]
    copies = {Place(1, 2) if place.file else place: first for place, first in copies.items()}
    found = deduplicated(paths, ["t"], normalize)
    assert found.copies == copies
    assert len(found.kept) + len(copies) == 6
    assert deduplicated(paths, None, normalize).copies == {}  # their numbers differ


def test_the_order_of_keys_is_no_difference_and_types_are() -> None:
    assert key_of({"a": 1, "b": {"c": 2, "d": 3}}, None, "none") == key_of(
        {"b": {"d": 3, "c": 2}, "a": 1}, None, "none"
    )
    values = [1, 1.0, True, "1", None, [1], {"a": 1}]
    assert len({key_of({"a": value}, ["a"], "none") for value in values}) == len(values)
    assert key_of({}, ["a"], "none") == key_of({"a": None}, ["a"], "none")


@given(files=corpora())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_coarser_rule_finds_more_and_what_is_kept_has_no_copies(files: list[File], tmp_path: Path) -> None:
    paths = [file.write(tmp_path) for file in files]
    assert sum(1 for _ in records_of(paths)) <= sum(len(file.lines) for file in files)
    before: set[Place] = set()
    for normalize in ("none", "whitespace", "nfkc_casefold"):
        found = deduplicated(paths, ["text", "messages"], normalize)
        assert before <= found.copies.keys()
        before = {*found.copies}
        rest = write(tmp_path, *(json.dumps(record) for _, record in found.kept), name="rest.jsonl")
        assert deduplicated([rest], ["text", "messages"], normalize).copies == {}


def test_inputs_have_copies_across_files_equal_files_and_blocks(tmp_path: Path) -> None:
    def crosses(files: list[File]) -> bool:
        copies = deduplicated([file.write(tmp_path) for file in files], None, "none").copies
        return any(place.file != first.file for place, first in copies.items())

    find(corpora(), crosses)
    find(corpora(), lambda files: any(a.lines == b.lines != () for a in files for b in files if a is not b))
    blocks = find(corpora(equal_blocks=1024), lambda files: any(len(file.lines) > 12 for file in files))
    data = next(b"".join(line + b"\n" for line in file.lines) for file in blocks if len(file.lines) > 12)
    assert (len(data), data[:1024]) == (2048, data[1024:])
    find(copies_of({"a": "x", "b": 1}), lambda line: line.index(b'"b"') < line.index(b'"a"'))
