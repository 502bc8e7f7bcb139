"""Strings that know where their characters come from: as `str` in all it does, and each character's origin kept."""

from itertools import accumulate
from typing import Any

import hypothesis.strategies as st
import jinja2
import pytest
from hypothesis import example, given

from beam_prep.chat.environment import compile_template
from beam_prep.chat.origins import MIXED, Origin, Text, concat, derived, joined, one, parts_of, text_of

A, B = Origin(0, ("content",)), Origin(1, ("content",))
MARK = Origin(1, None)
Model = list[tuple[str, Origin | None]]
"""The characters of a string, each with its origin."""

LETTERS = st.text("aB <\n\u00df", max_size=4)
PARTS = st.lists(st.tuples(LETTERS, st.sampled_from([A, B, None])), min_size=1, max_size=4)
TEXTS = PARTS.map(lambda parts: text_of("".join(value for value, _ in parts), tuple(parts)))
STRINGS = TEXTS | LETTERS
PLACES = st.none() | st.integers(-6, 6)


def model(value: str) -> Model:
    parts = parts_of(value)
    assert "".join(piece for piece, _ in parts) == value
    return [(character, origin) for piece, origin in parts for character in piece]


def plain(value: Any) -> Any:
    """A value with strings of `str`."""
    if isinstance(value, str):
        return "".join((value,))
    if isinstance(value, list | tuple):
        return type(value)(map(plain, value))
    return value


@given(TEXTS, STRINGS)
def test_sums_keep_origins(one: Text, other: str) -> None:
    for made, wanted in (
        (one + other, model(one) + model(other)),
        (other + one, model(other) + model(one)),
        (concat([other, one, "", one]), model(other) + model(one) * 2),
        (concat(map(str, [one, 7, other])), [*model(one), ("7", None), *model(other)]),
    ):
        assert model(made) == wanted


@given(TEXTS, PLACES, PLACES, st.sampled_from([None, 1, 2, -1]))
def test_slices_keep_origins(text: Text, begin: int | None, end: int | None, step: int | None) -> None:
    cut = slice(begin, end, step)
    assert plain(text[cut]) == plain(text)[cut]
    if step in (None, 1):
        assert model(text[cut]) == model(text)[cut]


TRIMMED = st.sampled_from([None, "a", " \n", ""])


@given(TEXTS, TRIMMED)
def test_trimming_keeps_origins(text: Text, characters: str | None) -> None:
    whole, right = model(text), plain(text).rstrip(characters)
    begin = len(text) - len(plain(text).lstrip(characters))
    assert model(text.rstrip(characters)) == whole[: len(right)]
    assert model(text.lstrip(characters)) == whole[begin:]
    assert model(text.strip(characters)) == whole[begin : max(len(right), begin)]


@given(TEXTS, st.none() | LETTERS.filter(bool), st.integers(-1, 2))
def test_pieces_keep_origins(text: Text, separator: str | None, most: int) -> None:
    found, wanted = text.split(separator, most), plain(text).split(separator, most)
    assert plain(found) == wanted
    whole = model(text)
    if separator is not None:  # each stands where `str` found it
        ends = list(accumulate(len(piece) + len(separator) for piece in wanted))
        places = [end - len(separator) for end in ends]
        wanted_origins = [whole[end - len(piece) : end] for piece, end in zip(wanted, places, strict=True)]
        assert [model(piece) for piece in found] == wanted_origins
        return
    at = 0  # each piece stands in the text, behind the one before it
    for piece in found:
        at = next(place for place in range(at, len(whole) + 1) if whole[place : place + len(piece)] == model(piece))
        at += len(piece)


@example(text_of("<<<", (("<<", A), ("<", None))), "<<", "", -1)
@given(TEXTS, LETTERS, STRINGS, st.sampled_from([-1, 0, 1, 2]))
def test_what_is_replaced_keeps_origins_where_it_can_be_told(text: Text, old: str, new: str, count: int) -> None:
    found = text.replace(old, new, count)
    assert plain(found) == plain(text).replace(old, plain(new), count)
    if len(parts_of(text)) > 1 and old:
        whole, wanted, at, left = model(text), [], 0, count
        while left and (place := plain(text).find(old, at)) >= 0:
            wanted += whole[at:place] + model(new)
            at, left = place + len(old), left - 1
        assert model(found) == wanted + whole[at:]


@given(TEXTS, st.lists(STRINGS, max_size=3))
def test_joined_texts_keep_origins(separator: Text, values: list[str]) -> None:
    wanted: Model = []
    for place, value in enumerate(values):
        wanted += (model(separator) if place else []) + model(value)
    assert model(joined(separator, values)) == wanted


@pytest.mark.parametrize(
    "way",
    ["'<%s|%d>' % (text, 1)", "'<%s|1>' | format(text)", "'<{}|{n}>'.format(text, n=1)", "'<{t}|1>'.format(t=text)"],
)
@given(text=TEXTS)
def test_texts_that_are_put_into_a_format_as_they_are_keep_origins(way: str, text: Text) -> None:
    made = compile_template(f"{{{{ {way} }}}}", None)
    found = concat(made.root_render_func(made.new_context({"text": text})))
    assert model(found) == [*model("<"), *model(text), *model("|1>")]


WHOLE = [
    *("text.upper()", "text | lower", "text.title()", "text | title", "text.swapcase()", "text.center(9)", "text * 2"),
    *("text.partition('B') | join", "text.rsplit('a', 1) | join", "text.splitlines() | join"),
    *("text.removeprefix('a')", "'%19s.' % text", "'{!r}.'.format(text)", "'.'.replace('.', text)"),
]


@given(TEXTS | LETTERS.map(lambda value: one(value, A)), st.sampled_from(WHOLE))
def test_what_is_not_followed_comes_from_all_that_it_was_made_of(text: Text, way: str) -> None:
    made = compile_template(f"{{{{ {way} }}}}", None)
    found = concat(made.root_render_func(made.new_context({"text": text})))
    assert plain(found) == jinja2.Template(f"{{{{ {way} }}}}").render(text=plain(text))
    origins = {origin for _, origin in model(found)}
    if parts_of(text) == ((text, A),):
        assert origins <= {A}
    assert origins <= {*(origin for _, origin in parts_of(text)), Origin(MIXED, ())}


def marked() -> Text:
    """A mark between two texts."""
    return text_of(" ab ", ((" a", A), ("", MARK), ("b ", None)))


@pytest.mark.parametrize(
    ("made", "wanted"),
    [
        (marked().strip(), [("a", A), ("", MARK), ("b", None)]),
        (marked()[1:], [("a", A), ("", MARK), ("b ", None)]),
        (marked()[2:], [("", MARK), ("b ", None)]),
        (marked()[:2], [(" a", A), ("", MARK)]),
        (text_of("  a", ((" ", None), ("", MARK), (" ", None), ("a", A))).lstrip(), [("", MARK), ("a", A)]),
    ],
)
def test_marks_stay_where_they_are_or_move_to_the_border_of_what_is_trimmed(made: Text, wanted: Any) -> None:
    assert list(parts_of(made)) == wanted


def test_a_derived_string_comes_from_its_sources() -> None:
    for sources, origin in (
        ((one("a", A), "b", 7, [one("c", A)]), A),
        ((one("a", A), {"k": one("b", B)}), Origin(MIXED, ())),
        ((one("a", A), one("b", Origin(0, ("name",)))), Origin(0, ("content", "name"))),
        (("a", None, []), None),
    ):
        assert list(parts_of(derived("made", sources))) == [("made", origin)]
