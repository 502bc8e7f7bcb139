"""Records as columns: the same ones as line by line; whatever else a block holds is not taken."""

import json
import pickle
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given

from beam_prep.core.data.block import InputFile
from beam_prep.core.data.columns import Texts, Wanted, join, merge
from beam_prep.core.data.ragged import Ragged
from beam_prep.core.encoding.backends import FastEncoder
from beam_prep.core.encoding.spans import CharSpans
from beam_prep.core.reading.blocks import RawBlock
from beam_prep.core.reading.filters import filter_by_chars
from beam_prep.core.reading.records import Records, parse
from beam_prep.errors import RunError
from tests.core.chat.test_fixed_spans import SAID
from tests.core.encoding.test_backends import ours

pytestmark = pytest.mark.long

USER = {"role": "user", "content": "hi"}
CHAT = {"messages": [USER, {"role": "assistant", "content": "x"}]}
GOOD = json.dumps(CHAT).encode()


CHATS, TEXTS = Wanted("chats", "messages"), Wanted("texts", "text")


def read(data: bytes, wanted: Wanted | None) -> Records:
    raw = RawBlock(0, len(data), 0, data, b"")
    return parse(raw, raw.origin(0, InputFile("x.jsonl", len(data), 0.0), 65536), wanted)


def lines(*rows: Any) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def assert_same_records(data: bytes) -> bool:
    """Says whether the block was taken."""
    wanted, found = read(data, None), read(data, CHATS)
    assert found.ledger.status.tolist() == wanted.ledger.status.tolist()
    assert found.ledger.messages == wanted.ledger.messages
    assert found.line.tolist() == wanted.line.tolist()
    assert json.dumps(list(found.rows)) == json.dumps(
        list(wanted.rows)
    )  # keys in order, and NaN is not equal to itself
    if found.columns is None:
        return False
    chats = found.columns
    contents, codes = chats.text.array.to_pylist(), chats.role.tolist()
    names: dict[int, str] = {}
    for row, record in enumerate(wanted.rows):
        messages = record.get("messages") or []
        first, stop = chats.offsets[row : row + 2].tolist()
        assert stop - first == len(messages)
        plain = all(type(m.get("role")) is str and type(m.get("content")) is str for m in messages)
        seen = [record.get(name) for name in ("tools", "chat_template_kwargs")]
        assert bool(chats.plain[row]) == (plain and seen == [None, None])
        if chats.plain[row]:
            assert contents[first:stop] == [message["content"] for message in messages]
            for code, message in zip(codes[first:stop], messages, strict=True):
                assert names.setdefault(code, message["role"]) == message["role"]
    assert len(set(names.values())) == len(names)
    return True


@pytest.mark.parametrize(
    "data",
    [
        GOOD,
        GOOD + b"\r\n\n  \t\n" + GOOD + b"\n",
        b"\xef\xbb\xbf" + GOOD,
        json.dumps(CHAT, separators=(",", ":")).encode(),
        lines({"messages": [{"content": "a", "role": "user"}]}, {"messages": [{"content": "", "role": "x"}]}),
        lines({"id": "2020-01-01", "n": 1, "ok": None, **CHAT}, {"n": 2.5, "ok": True, **CHAT}, CHAT),
        lines({"n": 123456789012345678901234567890, **CHAT}, {**CHAT, "n": -0.0}),
        lines({"messages": None}, {}, {"messages": []}, CHAT, {"messages": [{"role": "user"}, USER]}),
        lines({"tools": None, **CHAT}, {"tools": "[]", **CHAT}, {"chat_template_kwargs": None, **CHAT}),
        lines({"messages": [{"role": "user", "content": "} nul {\u2028\ud83d\ude00 null\u0000 \"{\\"}]}, CHAT),
        json.dumps({"messages": [{"role": "r", "content": "\u4f60 \u00e9\u0301"}]}, ensure_ascii=False).encode(),
    ],
)  # fmt: skip
def test_plain_chats_are_taken(data: bytes) -> None:
    assert assert_same_records(data)


SWAPPED = {"messages": [dict(reversed(message.items())) for message in CHAT["messages"]]}


@pytest.mark.parametrize("spaces", [(", ", ": "), (",", ":")])
def test_a_record_that_begins_like_a_message_is_not_counted_as_one(spaces: tuple[str, str]) -> None:
    """Objects that begin with a message's first key are counted: so messages with swapped keys are found."""
    rows = [{"role": "x", **CHAT}, {**CHAT, "role": "x"}]
    assert assert_same_records(b"".join(json.dumps(row, separators=spaces).encode() + b"\n" for row in rows))
    rows += [{"role": "x", "messages": [SWAPPED["messages"][0], CHAT["messages"][1]]}]
    assert not assert_same_records(b"".join(json.dumps(row, separators=spaces).encode() + b"\n" for row in rows))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n \n",
        GOOD + b"\nnull\n",  # of a null between records Arrow's parser dies
        GOOD + b" null " + GOOD,
        GOOD + b"null",
        GOOD + b"\t\r null{}",
        GOOD + b" " + GOOD + b"\n",
        GOOD + b" " + GOOD + b"\n\n",
        b'{"messages":\n[]}',
        GOOD[:-1] + b"\n}",
        GOOD + b"\x00",
        GOOD + b"\n[1]",
        GOOD[:-1] + b',"n":NaN}',
        GOOD[:-1] + b',"n":1.5}\n' + GOOD[:-1] + b',"n":-Infinity}',
        GOOD[:-1] + b',"n":1e999}',
        GOOD[:-1] + b',"n":1,"n":2}',
        GOOD[:-1] + b',"n":null,"n":null}',
        GOOD[:-1] + b',"messages":null}',
        GOOD[:-1] + b',"n":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        GOOD + b"\n" + GOOD[:-1] + b',"n":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}",
        GOOD.replace(b"hi", b"\xff"),
        GOOD.replace(b"hi", b"\\ud800"),
        GOOD.replace(b"hi", b"\\udc00"),
        GOOD.replace(b"hi", b"\t"),
        GOOD.replace(b'"hi"', b'"hi", "role": "x"'),
        GOOD.replace(b"}]", b'}, null]'),
        lines({"messages": [{**USER, "train": True}]}),
        lines(CHAT, {"messages": [{**USER, "tool_calls": []}]}),
        lines(CHAT, {"messages": [{"content": "x", "role": "user"}]}),  # a template may write keys in their order
        lines(CHAT, {"messages": "x"}),
        lines(CHAT, {"messages": ["x"]}),
        lines(CHAT, {"messages": [{"role": "user", "content": ["x"]}]}),
        lines(*[CHAT] * 64, {"source": "x", **CHAT}),
        lines({"messages": [{"role": "user", "content": "} null"}]}),
        lines({"tools": [], **CHAT}),
        lines({"n": True, **CHAT}, {"n": "x", **CHAT}),
    ],
)  # fmt: skip
def test_what_may_be_something_else_is_not_taken(data: bytes) -> None:
    assert not assert_same_records(data)


VALUE: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, 1, -2.5, 10**30, "", "x", "\u00e9", "2020-01-01", [], {}, [1]]
)
MESSAGE = st.one_of(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant"]), "content": st.sampled_from(SAID)}),
    st.fixed_dictionaries({"role": st.just("user")}, optional={"content": VALUE, "name": VALUE}),
)
RECORD = st.fixed_dictionaries(
    {"messages": st.lists(MESSAGE, max_size=3)}, optional={"id": VALUE, "tools": VALUE, "messages ": VALUE}
)
BYTES = [
    b"null", b"{", b"}", b'"', b",", b" ", b"\n", b"\t", b"\\", b"\xff", b"[", b"]", b":", b"1", b"e999", b"-", b"NaN",
    b"\\ud800", b"\x01", b"\r", b"\xef\xbb\xbf", b"{}", b"} {", b"} null {", b'"role"', b"\x0b",
]  # fmt: skip


@given(
    rows=st.lists(RECORD, min_size=1, max_size=4),
    ascii_only=st.booleans(),
    changes=st.lists(st.tuples(st.integers(0, 400), st.sampled_from(BYTES), st.integers(0, 2)), max_size=3),
)
@example(rows=[CHAT, CHAT], ascii_only=True, changes=[(76, b" null ", 0)])
def test_any_block_gives_the_same_records(rows: list[Any], ascii_only: bool, changes: list[Any]) -> None:
    data = b"".join(json.dumps(row, ensure_ascii=ascii_only).encode() + b"\n" for row in rows)
    for place, text, gone in changes:
        place = min(place, len(data))
        data = data[:place] + text + data[place + gone :]
    assert_same_records(data)


# Texts

SPACED = [
    *SAID,
    "\u3000x",
    "x\u3000",
    "\u00a0",
    "x\u00a0",
    "\u2028x\u2029",
    "\u30a2",
    "x\u4e80",
    "\x1fx",
    "x\x85",
    "\u1680",
]


@pytest.mark.parametrize(
    "data",
    [
        lines({"text": "a"}, {"text": None}, {"id": 1, "text": ""}, {}, {"text": " "}),
        lines({"text": '\u4f60\n"} nul {\u00e9'}, {"text": "2020-01-01"}),
    ],
)
def test_plain_texts_are_taken(data: bytes) -> None:
    wanted, found = read(data, None), read(data, TEXTS)
    assert found.columns is not None
    assert list(found.rows) == list(wanted.rows)
    assert found.columns.text.array.to_pylist() == [row.get("text") for row in wanted.rows]


@pytest.mark.parametrize("row", [{"text": ["x"]}, {"text": 1}, {"text": "x", "meta": {}}, {"other": "x"}])
def test_other_records_are_not_taken_for_texts(row: dict[str, Any]) -> None:
    assert read(lines(row), TEXTS).columns is None
    if "text" in row:
        assert read(lines({"text": "x"}, row), TEXTS).columns is None


@given(
    said=st.lists(st.text("a\u00e9\u4f60\U0001f600 ", max_size=12), min_size=1, max_size=6),
    limits=st.tuples(st.integers(0, 12), st.integers(0, 12)),
)
def test_the_limits_count_characters_not_bytes(said: list[str], limits: tuple[int, int]) -> None:
    data = lines(*({"text": text} for text in said))
    found, wanted = (filter_by_chars(read(data, kind), *limits, ("text",)) for kind in (TEXTS, None))
    assert found.columns is not None
    assert list(found.rows) == list(wanted.rows)
    assert found.columns.text == [text for text in said if limits[0] <= len(text) <= limits[1]]
    assert found.ledger.status.tolist() == wanted.ledger.status.tolist()
    assert found.ledger.outcomes == wanted.ledger.outcomes


def test_ids_of_one_array_are_those_of_its_texts() -> None:
    tokenizer = ours()
    texts = [*SPACED, *SAID, "", "a" * 2000]
    array = pa.concat_arrays([pa.array(["before"]), pa.array(texts)])[1:]
    spans = CharSpans.of((at, 0, len(text)) for at, text in enumerate(texts) if text)
    for encoder in (FastEncoder(tokenizer, "gigatoken"), FastEncoder(tokenizer, "transformers"), tokenizer):
        for special in (False, True):
            one, other = (encoder.encode(each, special) for each in (Texts(array), texts))
            assert one.to_lists() == other.to_lists()
            (one, at), (other, there) = (encoder.encode_spans(each, special, spans) for each in (Texts(array), texts))
            assert one.to_lists() == other.to_lists()
            assert at.to_list() == there.to_list()


def test_texts_are_a_sequence() -> None:
    texts = Texts(pa.array(["a", "\u00e9", ""]))
    assert (list(texts), texts[1], texts[1:], len(texts)) == (["a", "\u00e9", ""], "\u00e9", ["\u00e9", ""], 3)
    assert list(texts.take(np.array([2, 0]))) == ["", "a"]
    assert texts == ["a", "\u00e9", ""]
    assert texts != ["a"]


@pytest.mark.parametrize(("data", "kind"), [(lines(CHAT, CHAT), CHATS), (lines({"text": "a"}, {"text": "b"}), TEXTS)])
def test_columns_go_from_worker_to_worker(data: bytes, kind: Wanted) -> None:
    there = pickle.loads(pickle.dumps(read(data, kind)))
    assert there.columns is not None
    assert list(there.rows) == list(read(data, None).rows)
    assert there.columns.text == read(data, kind).columns.text  # type: ignore[union-attr]


def test_texts_that_no_array_holds_are_refused_before_they_are_made() -> None:
    """Arrow's `take` gives 2 GB of texts borders that fall below 0, and says nothing."""
    long = "x" * (1 << 20)
    pieces = Ragged.from_lengths(np.ones(2048, np.int64), [1024, 1024])
    characters = np.full(2, 1024 << 20)
    with pytest.raises(RunError, match=r"2147483648 bytes of text in one column of a block, .+--block_bytes"):
        join(Texts(pa.array(["a"])), [long], pieces, characters)
    fits = join(Texts(pa.array(["a"])), [long], pieces[:0], characters[:0])
    assert list(fits) == []


def test_texts_behind_others_are_refused_where_no_array_holds_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("beam_prep.core.data.ragged.MAX_NARROW", 5)
    assert list(merge(["ab"], Texts(pa.array(["\u00e9", "d"])))) == ["ab", "\u00e9", "d"]
    with pytest.raises(RunError, match="6 bytes of text"):
        merge(["ab"], Texts(pa.array(["\u00e9", "de"])))
