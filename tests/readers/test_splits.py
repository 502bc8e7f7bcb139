"""Views of splits and domains against plain lists, for any shards and any slice."""

import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

import beam_prep as bp
from beam_prep.readers.dataset import Dataset
from tests.readers.conftest import IDS, Rows, split_up, write

SPLITS, DOMAINS = ("train", "test", "other"), ("a", "b", "train")


@st.composite
def outputs(draw: st.DrawFn) -> dict[tuple[str, str], list[int]]:
    """(split, domain) -> rows of each of its shards, in the order of a manifest."""
    parts = [(split, domain) for split in SPLITS for domain in DOMAINS]
    here = draw(st.lists(st.sampled_from(parts), min_size=1, unique=True))
    return {part: draw(st.lists(st.integers(1, 3), min_size=1, max_size=3)) for part in parts if part in here}


def firsts(rows: Dataset) -> list[int]:
    return [int(row["input_ids"][0]) for row in rows]


@given(outputs(), st.slices(40))
def test_views_have_the_rows_that_a_list_has(shards: dict[tuple[str, str], list[int]], part: slice) -> None:
    model: list[tuple[str, str, int]] = []
    written: dict[str, list[Rows]] = {}
    for (split, domain), counts in shards.items():
        written[f"{split}/{domain}"] = []
        for count in counts:
            numbers = range(len(model), len(model) + count)
            model += [(split, domain, number) for number in numbers]
            written[f"{split}/{domain}"].append([{"input_ids": [number]} for number in numbers])
    with tempfile.TemporaryDirectory() as folder:
        split_up(write(Path(folder) / "out", [IDS], written))
        path = Path(folder) / "out"
        every = bp.open(path, split="all")
        view, wanted = every[part], model[part]
        assert firsts(view) == [number for _, _, number in wanted]
        places = [(view.split_of(place), view.domain_of(place)) for place in range(len(view))]
        assert places == [(split, domain) for split, domain, _ in wanted]
        assert view.splits == tuple(dict.fromkeys(split for split, _, _ in wanted))
        assert view.domains == tuple(dict.fromkeys(domain for _, domain, _ in wanted))
        for split in dict.fromkeys(split for split, _ in shards):
            mine = view.split(split)
            assert firsts(mine) == [number for name, _, number in wanted if name == split]
            opened = bp.open(path, split=split)
            assert firsts(opened) == firsts(every.split(split))
            for domain in opened.domains:
                of_domain = [number for name, its, number in wanted if (name, its) == (split, domain)]
                assert firsts(mine.domain(domain)) == of_domain
                assert firsts(bp.open(path, [domain], split=split)) == firsts(opened.domain(domain))
