"""Rows of columns, rendered all at once: the same texts and spans as one by one."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from beam_prep.core.chat.template import ChatTemplate
from beam_prep.core.pieces import checks, collector
from beam_prep.core.pieces.apply import apply_template
from beam_prep.core.pieces.bulk import Bulk
from beam_prep.core.pieces.rendered import Pieces, Rendered
from beam_prep.core.pieces.voice import Voice
from hypothesis import given

from beam_prep.core.data.schema import Action, Output, Section, TextRules
from beam_prep.core.reading.filters import filter_by_chars
from beam_prep.core.reading.records import MostLines, Records
from tests.core.chat.test_conversation import CONTROLS, TOKENS
from tests.core.chat.test_fixed_spans import ROLES, SOURCES
from tests.core.data.test_columns import CHATS, SPACED, TEXTS, USER, lines, read

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("at_once")]

STRIPS = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content | trim + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
KEYS = (
    "{% for m in messages %}{{ '<|im_start|>' }}{% for key in m %}{{ m[key] + '\n' }}{% endfor %}{{ '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CLOCK = "{{ strftime_now('%Y')[:2] }}" + STRIPS
BOS = "{{ bos_token }}" + STRIPS
TEMPLATES = {**SOURCES, "strips": STRIPS, "keys": KEYS, "clock": CLOCK, "bos": BOS}
VOICES = {
    name: Voice(ChatTemplate(source, TOKENS, True, "2026-11-22"), CONTROLS, "<s>", "</s>")
    for name, source in TEMPLATES.items()
}


def render(records: Records, voice: Voice, action: Action, domain: str | None = None) -> Rendered:
    output = Output("sequence", "ids", (Section("messages", action, "conversation"),), "loss_mask")
    return apply_template(records, (output,), voice, domain)


def assert_same_rendered(found: Rendered, wanted: Rendered) -> None:
    assert found.line.tolist() == wanted.line.tolist()
    assert found.domain == wanted.domain
    assert found.ledger.status.tolist() == wanted.ledger.status.tolist()
    assert found.ledger.messages == wanted.ledger.messages
    mine, theirs = found.pieces["sequence"], wanted.pieces["sequence"]
    assert list(mine.texts) == list(theirs.texts)
    assert with_names(mine) == with_names(theirs)
    assert mine.prompts == theirs.prompts
    for name in ("special", "prompt_end", "borders", "sequences", "rows", "bos"):
        assert np.array_equal(getattr(mine, name), getattr(theirs, name)), name
    assert sum(found.made.values()) == sum(wanted.made.values())


def with_names(pieces: Pieces) -> list[Any]:
    """Segments with the names of roles, whose numbers are those of their first use."""
    names = (*pieces.roles, "")
    return [(*each[:3], names[each[3]], *each[4:]) for each in pieces.segments.tolist()]


def assert_same_texts(data: bytes, voice: Voice, action: Action, domain: str | None = None) -> dict[str, int]:
    """Gives what was made in which way."""
    wanted, found = (render(read(data, kind), voice, action, domain) for kind in (None, CHATS))
    assert_same_rendered(found, wanted)
    return found.made


@pytest.mark.parametrize("rule", ["keep", "escape", "reject"])
@pytest.mark.parametrize("action", ["$role", "$last", "train"])
@pytest.mark.parametrize("name", TEMPLATES)
@given(
    roles=ROLES,
    said=st.lists(st.lists(st.sampled_from(SPACED), min_size=5, max_size=5), min_size=2, max_size=4),
    content_first=st.booleans(),
)
def test_the_same_texts_and_spans(
    name: str, action: Action, rule: Any, roles: list[str], said: list[list[str]], content_first: bool
) -> None:
    rows = []
    for contents in said:
        pairs = list(zip(roles, contents, strict=False))
        messages = [{"role": role, "content": text} for role, text in pairs]
        rows.append({"messages": [dict(reversed(m.items())) for m in messages] if content_first else messages})
    voice = replace(VOICES[name], rules=TextRules(control_tokens=rule))
    assert_same_texts(lines(*rows), voice, action)


def talk(*contents: str) -> dict[str, Any]:
    return {"messages": [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(contents)]}


@pytest.mark.parametrize("rule", ["keep", "template", "tokenizer"])
def test_rows_of_all_kinds_stand_in_the_order_of_their_lines(rule: Any) -> None:
    rows = [
        {**talk("a", "b"), "d": "one"}, {**talk("a"), "d": None}, {"messages": []}, {**talk("a ", " b"), "d": "x"}, {},
        {**talk("a", "b", "c", "d"), "d": ""}, {**talk(*["x"] * 258), "d": "y"}, {**talk("e", "f"), "d": "one"},
        {"messages": [USER, {"role": "assistant"}]}, {**talk("g", "h"), "d": "two"}, talk("", ""),
    ]  # fmt: skip
    voice = replace(VOICES["bos"], rules=TextRules(bos=rule))
    for _ in range(2):
        made = assert_same_texts(lines(*rows), voice, "$role", "d")
        assert_same_texts(lines(*rows), voice, "$last", "d")
    assert set(made) == {"rendered_as_columns", "rendered_by_plans", "rendered_by_jinja"}


ODD: list[Any] = [
    {"messages": 3},
    {},
    {"messages": [USER, {"role": "assistant", "content": None}]},
    {"messages": [{**USER, "name": "n"}, {"role": "assistant", "content": "x"}]},
    {"messages": [{"content": "x", "role": "user"}, {"content": "y", "role": "assistant"}], "d": "odd"},
    {**talk("a", "b"), "d": 5},
    {**talk("a", "b"), "d": "odd", "more": {"a": 1}},
    {**talk("a", "b"), "d": "odd", "number": 10**25},
    {**talk("a", "b"), "number": 1.5},
    b"not JSON",
    b'  {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}], "d": "odd"}',
    b'{"d": "twice", "d": "twice"}',
    b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
    b"",
]


def mixed(odd: list[tuple[int, Any]], plain: list[Any]) -> bytes:
    """Lines of plain records, with odd ones among them."""
    found = [lines(row) for row in plain]
    for place, each in odd:
        found.insert(place, each + b"\n" if isinstance(each, bytes) else lines(each))
    return b"".join(found)


def every_second(records: Records) -> Records:
    ledger = records.ledger.copy()
    ledger.drop(records.line[::2], "filtered")
    return records.keep(np.arange(1, len(records), 2), ledger)


PLACED = st.lists(st.tuples(st.integers(0, 400), st.sampled_from(ODD)), min_size=1, max_size=6)


@pytest.mark.parametrize("name", ["strips", "bos", "chatml unmarked"])
@given(odd=PLACED)
def test_odd_records_do_not_make_objects_of_the_others(name: str, odd: list[tuple[int, Any]]) -> None:
    data = mixed(odd, [{**talk(f"question {at}", "yes"), "d": "xy"[at % 2], "none": None} for at in range(400)])
    records = read(data, CHATS)
    made = assert_same_texts(data, VOICES[name], "$role", "d")
    assert_same_texts(data, VOICES[name], "$last", "d")
    if isinstance(records.rows, MostLines):
        assert list(records.rows) == list(read(data, None).rows)
        kept, wanted = (every_second(each) for each in (records, read(data, None)))
        assert isinstance(kept.rows, MostLines)
        assert_same_rendered(*(render(each, VOICES[name], "$role", "d") for each in (kept, wanted)))
    # The block is read in 6 parts, and each odd record is in one of them.
    assert len(odd) > 1 or made["rendered_as_columns"] >= 330


@given(odd=PLACED)
def test_nor_of_texts(odd: list[tuple[int, Any]]) -> None:
    data = mixed(odd, [{"text": f"words of {at}", "d": "xy"[at % 2]} for at in range(40)])
    voice = Voice(None, CONTROLS, "<s>", "</s>", TextRules(eos="always"))
    output = Output("sequence", "ids", (Section("text", "train"),), "loss_mask")
    found, wanted = (apply_template(read(data, kind), (output,), voice, "d") for kind in (TEXTS, None))
    assert_same_rendered(found, wanted)


def test_a_block_whose_columns_give_something_else_is_rendered_again_from_objects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The sample is taken of what was made, in whatever way."""
    data = lines(*({**talk(f"question {at}", "yes"), "d": "xy"[at % 2]} for at in range(40)))
    plain = ChatTemplate(TEMPLATES["strips"], TOKENS, date="2026-11-22")
    voice = replace(VOICES["strips"], reference=plain)
    wanted = render(read(data, None), replace(voice, template=plain, reference=None), "$role", "d")
    found = render(read(data, CHATS), voice, "$role", "d")
    assert (found.made["compared_with_jinja"], "blocks_rendered_again" in found.made) == (16, False)
    whole: Any = Bulk.add
    wrong: dict[str, Any] = {"domains": lambda self, _: ["x"] * 40, "add": lambda self: whole(self)[::-1]}
    for name, function in wrong.items():
        with monkeypatch.context() as patch:
            patch.setattr(Bulk, name, function)
            found = render(read(data, CHATS), voice, "$role", "d")
        assert found.made["blocks_rendered_again"] == 1
        assert "rendered_as_columns" not in found.made
        assert found.domain == wanted.domain
        assert list(found.pieces["sequence"].texts) == list(wanted.pieces["sequence"].texts)


def test_the_sample_may_be_as_large_as_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "MAX_TEXT", 4000)
    plain = ChatTemplate(TEMPLATES["strips"], TOKENS, date="2026-11-22")
    voice = replace(VOICES["strips"], reference=plain)
    found = render(read(lines(*[talk("word " * 300, "yes")] * 4), None), voice, "$role")
    assert (len(found), found.made["compared_with_jinja"]) == (4, 4)


def test_a_block_that_is_odd_from_the_beginning_is_objects() -> None:
    plain = [talk("a", "b")] * 10
    assert isinstance(read(mixed([(0, ODD[3])], plain * 16), CHATS).rows, MostLines)
    assert isinstance(read(b"".join([mixed([(5, ODD[3])], plain)] * 16), CHATS).rows, list)


def test_a_run_says_how_many_records_were_objects(run: Callable[..., Any]) -> None:
    config = {
        "input": {"sections": [{"field": "messages", "action": "$role", "template": "conversation"}]},
        "mask": {"assistant": "train"},
    }
    rows = [talk(f"question {at}", "yes") for at in range(640)]
    rows[5]["more"] = {"a": 1}
    made = json.loads(Path(run(config, rows).output, "run.json").read_bytes())
    assert (made["parsed_as_columns"], made["parsed_as_objects"]) == (576, 64)  # one of ten parts


def test_rows_that_a_step_changes_are_no_columns() -> None:
    data = mixed([(0, ODD[3])], [talk("a", "b")] * 30)
    records = read(data, CHATS)
    changed = replace(records, rows=[{"messages": [USER]} for _ in records.rows])
    found = render(changed, VOICES["strips"], "train")
    assert "rendered_as_columns" not in found.made
    assert set(map(str, found.pieces["sequence"].texts)) == {VOICES["strips"].template.render([USER])}  # type: ignore[union-attr]


def test_chats_of_known_patterns_are_not_looked_at_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    data = lines(*(talk(f"question {at}", f"answer {at}") for at in range(50)))
    looked_at = []
    add = collector.TextCollector.add

    def counted(texts: Any, record: Any) -> bool:
        looked_at.append(record)
        return bool(add(texts, record))

    render(read(data, CHATS), VOICES["chatml unmarked"], "$role")
    monkeypatch.setattr(collector.TextCollector, "add", counted)
    found = render(read(data, CHATS), VOICES["chatml unmarked"], "$role")
    assert (len(found), looked_at, found.made) == (50, [], {"rendered_as_columns": 50})


def test_a_block_of_chats_is_the_same_output_as_line_by_line(run: Callable[..., Any]) -> None:
    config = {
        "input": {"sections": [{"field": "messages", "action": "$role", "template": "conversation"}]},
        "mask": {"assistant": "train"},
        "output": {"domain_key": "d"},
    }
    rows = [{**talk(f"question {at}", "yes"), "d": "xy"[at % 2]} for at in range(100)]
    odd = [*rows[:50], {"messages": 3}, *rows[50:]]
    kept, gone = (run(config, data, name) for name, data in (("rows", rows), ("odd", odd)))
    one, other = (result.manifest for result in (kept, gone))
    assert [shard["files"] for shard in one["shards"]] == [shard["files"] for shard in other["shards"]]
    assert (one["ledger"]["rejected"], other["ledger"]["rejected"]) == ({}, {"wrong_type": 1})


@pytest.mark.parametrize("special", [None, True, False])
@pytest.mark.parametrize("eos", ["never", "if_missing", "always"])
@pytest.mark.parametrize("rule", ["keep", "escape", "reject"])
@given(
    said=st.lists(st.one_of(st.none(), st.sampled_from([*SPACED, "a</s>"])), min_size=1, max_size=6),
    limits=st.sampled_from([(0, 100), (1, 3), (2, 100), (0, 0)]),
)
def test_texts_are_the_same_texts(
    special: bool | None, eos: Any, rule: Any, said: list[str | None], limits: tuple[int, int]
) -> None:
    data = lines(*({"text": text, "d": "xy"[at % 2]} for at, text in enumerate(said)))
    voice = Voice(None, CONTROLS, "<s>", "</s>", TextRules(eos=eos, control_tokens=rule))
    output = Output("sequence", "ids", (Section("text", "train", add_special_tokens=special),), "loss_mask")
    found, wanted = (
        apply_template(filter_by_chars(read(data, kind), *limits, ("text",)), (output,), voice, "d")
        for kind in (TEXTS, None)
    )
    assert_same_rendered(found, wanted)
