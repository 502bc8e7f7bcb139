"""Bytes -> blocks -> records, without Beam: every line exactly once, and what is said of each."""

import hashlib
import io
import itertools
import json
import math
import tracemalloc
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import example, given

from beam_prep import testing
from beam_prep.data.block import TEXT_LIMIT, InputFile, Reject
from beam_prep.data.hashing import block_digest, tree_digest, tree_nodes
from beam_prep.errors import UserFunctionError
from beam_prep.reading import blocks as blocks_module
from beam_prep.reading import json_line
from beam_prep.reading.blocks import BOM, RawBlock, read_blocks
from beam_prep.reading.filters import filter_by_chars, filter_records, map_records
from beam_prep.reading.json_line import MAX_DEPTH
from beam_prep.reading.records import Records, parse

SOURCE = InputFile("input.jsonl", 0, 0.0)
WHOLE = 1 << 40


def split(data: bytes, block_bytes: int) -> list[RawBlock]:
    """The splits of a plain file, each read from a stream of its own, positioned as `open_input` does."""
    blocks: list[RawBlock] = []
    for start in range(0, len(data), block_bytes):
        stream = io.BytesIO(data)
        stream.seek(max(0, start - 1))
        blocks += read_blocks(stream, start, min(start + block_bytes, len(data)), block_bytes)
    return blocks


def stream(data: bytes, block_bytes: int) -> list[RawBlock]:
    """The blocks of a compressed file's content."""
    return list(read_blocks(io.BytesIO(data), 0, -1, block_bytes))


Cut = Callable[[bytes, int], list[RawBlock]]


def blocks(data: bytes, block_bytes: int = WHOLE, cut: Cut = stream) -> list[Records]:
    """The blocks of a file, parsed."""
    return [parse(raw, raw.origin(0, SOURCE, block_bytes)) for raw in cut(data, block_bytes)]


def account(data: bytes, block_bytes: int = WHOLE, cut: Cut = stream) -> list[tuple[int, int, bytes, Any]]:
    """(byte offset in the file, line number from 1, bytes of the line, what became of it) of every line."""
    found: list[tuple[int, int, bytes, Any]] = []
    for records in blocks(data, block_bytes, cut):
        ledger = records.ledger
        rows = dict(zip(records.line.tolist(), records.rows, strict=True))
        for line, (start, end) in enumerate(zip(ledger.starts.tolist(), ledger.ends.tolist(), strict=True)):
            what: Any = ledger.outcomes[ledger.status[line] - 1] if ledger.status[line] else rows[line]
            what = (*what, ledger.messages[line]) if line in ledger.messages else what
            found.append((records.origin.first_byte + start, len(found) + 1, ledger.raw[start:end], what))
    return found


def verdict(line: bytes) -> Any:
    """What becomes of one line: the record, or the reason for which it is rejected."""
    (records,) = blocks(line + b"\n")
    assert len(records.ledger.starts) == 1
    return records.rows[0] if records.rows else records.ledger.outcomes[0][1]


def lines_of(data: bytes) -> list[tuple[int, bytes]]:
    """(byte offset, bytes) of every line by definition: LF ends a line, and one CR before it is part of the end."""
    texts = data.split(b"\n")
    starts = itertools.accumulate((len(text) + 1 for text in texts), initial=0)
    lines = [(start, text.removesuffix(b"\r")) for start, text in zip(starts, texts, strict=False)]
    if texts[-1] == b"":
        lines.pop()
    if lines and data.startswith(BOM):
        lines[0] = (len(BOM), lines[0][1].removeprefix(BOM))
    return lines


PIECES = [b"\n", b"\r\n", b"\r", b" ", b"{}", b'{"a":1}', b'{"a":"\\u2028"}', BOM, b'"', b"\xff", b"1" * 25, b"\t\n"]
CONTENT = st.one_of(
    st.binary(max_size=60),
    st.lists(st.one_of(st.sampled_from(PIECES), st.binary(max_size=4)), max_size=25).map(b"".join),
)


# --- lines


@pytest.mark.parametrize(
    ("data", "starts"),
    [
        (b'{"a":1}\n{"b":2}\n', [0, 8]),
        (b'{"a":1}\r\n{"b":2}\r\n', [0, 9]),
        (b'{"a":1}\r\n{"b":2}\n', [0, 9]),
        (b'{"a":1}\n{"b":2}', [0, 8]),
        (b'{"a":1}\n{"b":2}\r', [0, 8]),
        (BOM + b'{"a":1}\n{"b":2}\n', [3, 11]),
        (b'{"a":1} \n\t{"b":2}\n', [0, 9]),
    ],
    ids=["LF", "CRLF", "mixed", "no newline at the end", "CR at the end", "BOM", "white space around"],
)
@pytest.mark.parametrize("block_bytes", [1, 2, 3, 7, 8, 9, WHOLE])
@pytest.mark.parametrize("cut", [split, stream])
def test_two_records_whatever_the_line_ends(cut: Cut, block_bytes: int, data: bytes, starts: list[int]) -> None:
    found = account(data, block_bytes, cut)
    assert [offset for offset, _, _, _ in found] == starts
    assert [number for _, number, _, _ in found] == [1, 2]
    assert [what for _, _, _, what in found] == [{"a": 1}, {"b": 2}]


def test_blank_lines_are_counted_and_are_neither_kept_nor_rejected() -> None:
    data = b"\n" + b'{"a":1}\n' + b" \t \n" + b"\r\n" + b'{"b":2}\n' + b"\n" + b"  "
    what = [what for _, _, _, what in account(data)]
    blank = ("blank", "blank")
    assert what == [blank, {"a": 1}, blank, blank, {"b": 2}, blank, blank]


@pytest.mark.parametrize("data", [b"", b"\n", BOM, BOM + b"\n", BOM + b"\r\n", b"\r\n", b" "])
def test_a_file_without_a_record_has_no_rows_and_no_rejects(data: bytes) -> None:
    found = account(data)
    assert len(found) == (0 if data == b"" else 1)
    assert all(what == ("blank", "blank") for _, _, _, what in found)


def test_a_bom_is_skipped_at_the_start_of_a_file_and_nowhere_else() -> None:
    line = BOM + b'{"a":1}\n'
    for block_bytes in (1, len(line), WHOLE):
        found = account(line * 3, block_bytes, split)
        assert [what if isinstance(what, dict) else what[:2] for _, _, _, what in found] == [
            {"a": 1},
            ("rejected", "bad_json"),
            ("rejected", "bad_json"),
        ]


def test_only_lf_ends_a_line() -> None:
    text = "a\u2028b\u2029c\x85d\x0b\x0c\x1c"
    raw = json.dumps({"text": text}, ensure_ascii=False)
    assert "\u2028" in raw
    assert account(raw.encode() + b"\n") == [(0, 1, raw.encode(), {"text": text})]
    assert verdict(b'{"a":1}\r{"b":2}') == "bad_json"  # CR alone, as on an old Macintosh, is one line


@pytest.mark.parametrize("cut", [split, stream])
def test_a_line_longer_than_blocks_belongs_to_the_block_where_it_begins(cut: Cut) -> None:
    long = b'{"long":"' + b"x" * 200_000 + b'"}\n'
    data = b'{"a":1}\n' + long + b'{"b":2}\n'
    found = blocks(data, 1000, cut)
    rows = [(records.origin.start, *row) for records in found for row in records.rows]
    assert rows == [(0, "a"), (0, "long"), (200_000, "b")]
    assert len(found) == math.ceil(len(data) / 1000)


@given(data=CONTENT, block_bytes=st.integers(1, 70))
@example(data=BOM + b'{"a":1}', block_bytes=1)
@example(data=b"{}\r\n{}", block_bytes=3)
def test_every_line_stands_exactly_once_at_any_block_size(data: bytes, block_bytes: int) -> None:
    whole = account(data)
    assert [(offset, text) for offset, _, text, _ in whole] == lines_of(data)
    assert [number for _, number, _, _ in whole] == list(range(1, len(whole) + 1))
    assert account(data, block_bytes, split) == whole
    assert account(data, block_bytes, stream) == whole


class _Trickle:
    """Gives less than asked, as decompressors do."""

    def __init__(self, data: bytes, sizes: list[int]) -> None:
        self._stream, self._sizes = io.BytesIO(data), sizes

    def read(self, size: int) -> bytes:
        self._sizes.append(self._sizes.pop(0))
        return self._stream.read(min(size, self._sizes[0]))


@given(data=CONTENT, block_bytes=st.integers(1, 70), sizes=st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_a_stream_that_gives_little_at_a_time_gives_the_same_blocks(
    data: bytes, block_bytes: int, sizes: list[int]
) -> None:
    assert list(read_blocks(_Trickle(data, sizes), 0, -1, block_bytes)) == stream(data, block_bytes)


@given(data=CONTENT, block_bytes=st.integers(1, 70))
def test_a_compressed_file_has_the_blocks_of_the_plain_one(data: bytes, block_bytes: int) -> None:
    assert stream(data, block_bytes) == split(data, block_bytes)
    assert b"".join((raw.head + raw.data)[: raw.size] for raw in stream(data, block_bytes)) == data


# --- digests


def rfc_6962(chunks: list[bytes]) -> bytes:
    """The Merkle tree hash as RFC 6962, section 2.1, defines it."""
    if not chunks:
        return hashlib.sha256(b"").digest()
    if len(chunks) == 1:
        return hashlib.sha256(b"\x00" + chunks[0]).digest()
    left = 1 << (len(chunks) - 1).bit_length() - 1
    return hashlib.sha256(b"\x01" + rfc_6962(chunks[:left]) + rfc_6962(chunks[left:])).digest()


@given(data=st.binary(max_size=200), chunk=st.integers(1, 9), chunks_a_block=st.integers(1, 9))
def test_the_digest_of_a_file_does_not_depend_on_blocks(data: bytes, chunk: int, chunks_a_block: int) -> None:
    step = chunk * chunks_a_block
    nodes = [
        node for start in range(0, len(data), step) for node in tree_nodes(data[start : start + step], start, chunk)
    ]
    assert tree_digest(nodes) == rfc_6962([data[i : i + chunk] for i in range(0, len(data), chunk)]).hex()


@given(data=CONTENT, chunks_a_block=st.integers(1, 6))
def test_the_nodes_of_blocks_give_the_files_digest(data: bytes, chunks_a_block: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks_module, "CHUNK", 4)
        for cut in (split, stream):
            block_bytes = 4 * chunks_a_block
            origins = [raw.origin(0, SOURCE, block_bytes) for raw in cut(data, block_bytes)]
            nodes = [node for origin in origins for node in origin.nodes]
            assert tree_digest(nodes) == rfc_6962([data[i : i + 4] for i in range(0, len(data), 4)]).hex()


def test_a_range_that_begins_within_a_chunk_has_no_nodes() -> None:
    with pytest.raises(ValueError, match="3 is no multiple of 4"):
        tree_nodes(b"abcd", 3, 4)


def digests(data: bytes, block_bytes: int) -> list[str]:
    return [raw.origin(0, SOURCE, block_bytes).digest for raw in split(data, block_bytes)]


def test_equal_blocks_share_a_digest_wherever_they_stand() -> None:
    block = b'{"text":"abc"}\n{"text":"de"}\n'
    assert len(set(digests(block * 3, len(block)))) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b'{"a":1}\n', b'{"a":2}\n'),
        (b'{"a":1,"b":2}\n', b'{"a":1,"b":3}\n'),  # what differs lies behind the range, in its last line
    ],
)
def test_blocks_of_other_bytes_have_other_digests(one: bytes, other: bytes) -> None:
    assert digests(one, 8)[0] != digests(other, 8)[0]


def test_a_line_that_looks_like_a_node_is_told_from_one() -> None:
    first, second = tree_nodes(b"abcdefghijkl", 0, 4)
    as_tail = bytes([second.level]) + second.digest
    assert block_digest((first, second), 0, False, b"") != block_digest((first,), 0, False, as_tail)


def test_the_digest_tells_blocks_apart_whose_bytes_are_equal_but_not_their_lines() -> None:
    # The same digest would let one block take the other's tokens out of the token cache.
    line = BOM + b'{"a":1}\n'
    assert len(set(digests(line * 2, len(line)))) == 2, "a BOM is skipped in the first block only"
    rest = b"12345678\n345678\n"
    fresh, within = digests(b"\n" * 16 + rest, 16)[1], digests(b"x" * 16 + rest, 16)[1]
    assert fresh != within, "the second begins within a line"


# --- what is said of a line


@pytest.mark.parametrize(
    "line",
    [
        b'{"text":"a\\u2028b"}',
        b'{"text":"\\ud83d\\ude00"}',
        b'{"text":"nul \\u0000"}',
        '{"text":"\ufffe\uffff\U0010ffff\ufeff\ufffd"}'.encode(),
        b'{"":0,"a b":[],"__class__":null}',
        b' {"a":-0.0,"b":1E-2,"c":1e308} ',
        b'{"a":1e-999}',  # a double holds it, as nearly as it can: 0
    ],
)
def test_what_json_allows_is_a_record(line: bytes) -> None:
    assert verdict(line) == json.loads(line)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"a":', "bad_json"),
        (b'{"a":1}{"b":2}', "bad_json"),
        (b'{"a":1},', "bad_json"),
        (b'{"a":1} x', "bad_json"),
        (b'{"a":1}\x00', "bad_json"),
        (b"{'a':1}", "bad_json"),
        (b"{a:1}", "bad_json"),
        (b'{"a":1,}', "bad_json"),
        (b'{"a":01}', "bad_json"),
        (b'{"a":"tab\there"}', "bad_json"),
        (b'{"a":NaN}', "bad_json"),
        (b'{"a":Infinity}', "bad_json"),
        (b'{"a":-Infinity}', "bad_json"),
        (b'{"a":"\\ud800"}', "bad_text"),
        (b'{"a":"\\udc00\\ud800"}', "bad_text"),
        (b'{"\\ud800":1}', "bad_text"),
        (b'{"a":"\\ud800\\u0041"}', "bad_text"),
        (b'{"a":"\\ud800" 1}', "bad_json"),
        (b'{"a":"\\ud800","a":1}', "duplicate_key"),
        (b'{"a":"\\ud800","n":12345678901234567890123}', "bad_text"),
        (b"\x00" * 64, "bad_json"),
        (b'{"a":"\xff"}', "invalid_utf8"),
        (b'{"a":"\xc0\xaf"}', "invalid_utf8"),
        (b'{"a":"\xed\xa0\x80"}', "invalid_utf8"),
        (b'{"a":"\xf5\x80\x80\x80"}', "invalid_utf8"),
        (b'{"a":"cut \xe4\xb8"}', "invalid_utf8"),
        ('{"a":"é"}'.encode("latin-1"), "invalid_utf8"),
        (b'{"a":1e999}', "bad_number"),
        (b'{"a":-1e999}', "bad_number"),
        (b'{"a":[{"b":1e400}]}', "bad_number"),
        (b'{"a":1' + b"0" * 309 + b"}", "bad_number"),
        (b'{"a":-' + b"9" * 5000 + b"}", "bad_number"),
        (b'{"a":1e999,"b":NaN}', "bad_number"),
        (b"null", "not_an_object"),
        (b"42", "not_an_object"),
        (b'"a string"', "not_an_object"),
        (b"[1,2]", "not_an_object"),
        (b"true", "not_an_object"),
        (b"12345678901234567890123", "not_an_object"),
    ],
)
def test_a_line_that_is_no_record_is_rejected_with_its_reason(line: bytes, reason: str) -> None:
    assert verdict(line) == reason
    between = account(b'{"a":1}\n' + line + b'\n{"b":2}\n')
    assert [(offset, number) for offset, number, _, _ in between] == [(0, 1), (8, 2), (9 + len(line), 3)]
    assert (between[0][3], between[2][3]) == ({"a": 1}, {"b": 2})
    kind, found, message = between[1][3]
    assert (kind, found) == ("rejected", reason)
    assert 10 < len(message) <= TEXT_LIMIT


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"[1,2]", "the line is a list, wanted a JSON object"),
        (b"3", "the line is a number (3), wanted a JSON object"),
        (b"null", "the line is null, wanted a JSON object"),
        (b'"' + b"x" * 90 + b'"', 'the line is a string ("' + "x" * 39 + "...), wanted a JSON object"),
        (b'{"a":1e999}', "1e999 is beyond a double"),
        (b'{"a":"\xff"}', "byte 6 of the line is no UTF-8 (invalid start byte)"),
        (b'{"k":1,"k":2}', "the key 'k' is twice in one object"),
        (b'{"a":01}', "number with leading zero is not allowed: line 1 column 6 (char 5)"),
    ],
)
def test_the_message_of_a_reject_says_what_was_found(line: bytes, message: str) -> None:
    assert blocks(line)[0].ledger.messages == {0: message}


def test_a_message_is_cut_like_the_text() -> None:
    key = b'"' + b"k" * 5000 + b'"'
    ledger = blocks(b"{" + key + b":1," + key + b":2}")[0].ledger
    assert len(ledger.messages[0]) == TEXT_LIMIT
    assert ledger.messages[0].startswith("the key 'kkk")


@given(number=st.integers(-(10**308), 10**308), before=st.text("ab1", max_size=12), key=st.booleans())
@example(number=2**64, before="", key=False)
@example(number=-(2**63) - 1, before="", key=False)
@example(number=2**53 + 1, before="", key=False)
@example(number=10**308, before="", key=True)
def test_integers_stay_exact(number: int, before: str, key: bool) -> None:
    line = json.dumps({"before": before, "number": [number, {"again": number}]} | ({str(number): 1} if key else {}))
    found = verdict(line.encode())
    assert found["number"] == [number, {"again": number}]
    assert [type(found["number"][0]), type(found["number"][1]["again"])] == [int, int]


@pytest.mark.parametrize("pad", range(11))
@pytest.mark.parametrize("number", [2**64, -(2**63) - 1, 18446744073709551617])
def test_a_long_integer_is_found_wherever_it_stands_in_the_block(number: int, pad: int) -> None:
    lines = [b'{"a":1}', b" " * pad + json.dumps({"n": number}).encode(), b'{"b":2}']
    rows = blocks(b"\n".join(lines))[0].rows
    assert rows == [{"a": 1}, {"n": number}, {"b": 2}]
    assert type(rows[1]["n"]) is int


@given(
    row=st.dictionaries(
        st.text(max_size=5),
        st.recursive(
            st.one_of(st.none(), st.booleans(), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=9)),
            lambda inner: st.one_of(
                st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=3), inner, max_size=4)
            ),
            max_leaves=12,
        ),
        max_size=5,
    ),
    ascii_only=st.booleans(),
)
def test_any_record_is_read_as_the_standard_library_reads_it(row: dict[str, Any], ascii_only: bool) -> None:
    line = json.dumps(row, ensure_ascii=ascii_only)
    assert repr(verdict(line.encode())) == repr(json.loads(line))


@pytest.mark.parametrize(
    "line",
    [
        b'{"a":1,"a":2}',
        b'{"a":1,"a":1}',
        b'{"x":{"a":1,"b":2,"a":3}}',
        b'{"x":[[{"a":1,"a":{}}]]}',
        b'{"a":{"deep":[1,2,{"k":"v"}]},"a":0}',
        b'{"a":1,"\\u0061":2}',
        b'{"\\u0022":1,"\\"":2}',
        b'{"a":"\\u0022","a":"\\u0022"}',
        b'{"a":"said \\u0022","b":1,"a":"\\u0022"}',
        b'{"a":"\\u0022\\u0022","b":1,"b":2}',  # the escapes' quotes must not stand in for those of the lost key
        b'{"a":"\\u0022","b":"","b":""}',
        b'{"a":"\\\\u0022","b":1,"b":2}',
        b'{"":1,"":2}',
        b'{"n":123456789012345678901,"a":1,"a":2}',
    ],
)
def test_a_repeated_key_is_rejected(line: bytes) -> None:
    assert verdict(line) == "duplicate_key"


@pytest.mark.parametrize(
    "line",
    [
        b'{"a":{"a":1},"b":{"a":2}}',
        b'{"a":[{"a":1},{"a":2}]}',
        b'{"a":"\\u0022","b":"\\"","c":"\\\\u0022","d":"\\\\\\u0022","e":"\\\\\\\\u0022"}',
        b'{"\\u0022":1,"\\\\u0022":2}',
        b'{"a":"{\\"a\\":1,\\"a\\":2}"}',
    ],
)
def test_keys_that_only_look_repeated_are_kept(line: bytes) -> None:
    assert verdict(line) == json.loads(line)


@st.composite
def _objects(draw: st.DrawFn) -> tuple[str, bool]:
    """(an object as JSON, whether a key is repeated in it or in an object inside)."""

    def string(text: str) -> str:
        return '"' + "".join(draw(st.sampled_from(escapes[char])) for char in text) + '"'

    escapes = {'"': ['\\"', "\\u0022"], "\\": ["\\\\", "\\u005c"], "u": ["u", "\\u0075"], "0": ["0"], "2": ["2"]}
    text = st.text('"\\u02', max_size=4)

    def build(depth: int) -> tuple[str, bool]:
        keys = draw(st.lists(text, max_size=4))
        repeated = len(set(keys)) < len(keys)
        parts = []
        for key in keys:
            if depth and draw(st.booleans()):
                value, inside = build(depth - 1)
                repeated |= inside
            else:
                value = string(draw(text))
            parts.append(f"{string(key)}:{value}")
        return "{" + ",".join(parts) + "}", repeated

    return build(2)


@given(_objects())
def test_a_repeated_key_is_found_whatever_is_escaped(drawn: tuple[str, bool]) -> None:
    line, repeated = drawn
    assert verdict(line.encode()) == ("duplicate_key" if repeated else json.loads(line))


def test_a_repeated_key_among_many_is_found_in_linear_time() -> None:
    compared = 0

    class Key(str):
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

    pairs = [(Key(f"key {i}"), 0) for i in range(3000)]
    with pytest.raises(Reject, match="'key 2999' is twice"):
        json_line.unique_keys([*pairs, (Key("key 2999"), 0)])
    assert compared < 10 * len(pairs)


def nested(depth: int) -> bytes:
    return b'{"d":' + b"[" * (depth - 1) + b"]" * (depth - 1) + b"}"


@pytest.mark.parametrize("frames", [0, 250])
def test_the_limit_of_nesting_does_not_depend_on_the_stack(frames: int) -> None:
    def deeper(frames: int) -> list[Any]:
        if frames:
            return deeper(frames - 1)
        return [verdict(nested(depth)) for depth in (MAX_DEPTH, MAX_DEPTH + 1, 700, 980, 1024, 1025)]

    kept, *rejected = deeper(frames)
    assert isinstance(kept, dict)
    assert rejected == ["too_deep"] * 5


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 1025, 100_000])
def test_deep_nesting_is_rejected_with_one_message(depth: int) -> None:
    assert blocks(nested(depth))[0].ledger.messages == {0: f"the line is nested deeper than {MAX_DEPTH} levels"}


def test_brackets_side_by_side_or_in_strings_are_no_depth() -> None:
    wide = {"a": [[]] * 2000, "n": 2**70}
    assert verdict(json.dumps(wide).encode()) == wide
    text = {"a": '[{"\\' * 2000, "n": 2**70}
    assert verdict(json.dumps(text).encode()) == text
    assert verdict(b'{"a":' + b'{"a":' * 5000 + b"1" + b"}" * 5001) == "too_deep"


# --- texts of rejects


def test_the_text_of_a_reject_is_cut_at_characters_not_at_bytes() -> None:
    for char in ("x", "é", "字", "😀"):
        line = char * (TEXT_LIMIT + 5)
        ledger = blocks(f"{line}\n{char}\n".encode())[0].ledger
        assert ledger.text(0) == char * TEXT_LIMIT
        assert ledger.text(0, 7) == char * 7
        assert ledger.text(1) == char


def test_the_text_of_a_reject_shows_bytes_that_are_no_utf8() -> None:
    ledger = blocks(BOM + b'{"a":"\xff\x00"}\r\n' + b"\xff" * 2000)[0].ledger
    assert ledger.text(0) == '{"a":"\ufffd\x00"}'
    assert ledger.text(1) == "\ufffd" * TEXT_LIMIT


def test_a_byte_order_mark_in_the_middle_of_a_file_says_what_to_type() -> None:
    ledger = blocks((BOM + b'{"a":1}\n') * 2)[0].ledger
    assert ledger.status.tolist() == [0, 1]
    (message,) = ledger.messages.values()
    assert message.startswith("the record begins with a byte order mark (BOM), which only a file may: files that have")
    assert message.endswith(r"take it out: sed -i 's/^\xEF\xBB\xBF//' FILE")


# --- filters and maps


def outcomes(records: Records) -> list[str]:
    ledger = records.ledger
    names = ["kept", *(f"{kind} {reason}" for kind, reason in ledger.outcomes)]
    return [names[code] for code in ledger.status.tolist()]


def test_char_limits_are_inclusive_and_count_code_points() -> None:
    rows = [{"text": char * n} for char in ("x", "字", "😀", "e\u0301") for n in (2, 3, 4, 5, 6)]
    found = filter_by_chars(testing.records(rows), 3, 5, ("text",))
    short, long = "dropped too_short", "dropped too_long"
    assert outcomes(found) == [short, "kept", "kept", "kept", long] * 3 + ["kept", long, long, long, long]
    assert [len(row["text"]) for row in found.rows] == [3, 4, 5] * 3 + [4]


def test_a_field_outside_the_limits_counts_as_absent() -> None:
    rows: list[dict[str, Any]] = [
        {"a": "x", "b": "long enough", "c": "untouched"},
        {"a": "x", "b": "y"},
        {"a": "x", "b": None},
        {"a": "x" * 99, "b": "y"},
        {"a": "x" * 99},
        {"a": " ", "b": ""},
        {"c": "has none of them"},
        {"a": None},
        {"a": "x", "b": 5},
    ]
    found = filter_by_chars(testing.records(rows), 5, 50, ("a", "b"))
    assert outcomes(found) == [
        "kept",
        "dropped too_short",
        "dropped too_short",
        "dropped too_short",
        "dropped too_long",
        "dropped empty",
        "kept",
        "kept",
        "kept",  # ApplyTemplate rejects the number
    ]
    assert found.rows == [{"b": "long enough", "c": "untouched"}, {"c": "has none of them"}, {"a": None}, {"b": 5}]
    assert found.line.tolist() == [0, 6, 7, 8]


def test_filter_records_keeps_drops_and_rejects() -> None:
    answers: dict[str, bool | str] = {"keep": True, "drop": False, "bad": "no licence"}
    found = filter_records(
        testing.records([{"k": k} for k in ("keep", "drop", "bad", "keep")]), lambda r: answers[r["k"]]
    )
    assert outcomes(found) == ["kept", "dropped filtered", "rejected no licence", "kept"]
    assert found.rows == [{"k": "keep"}, {"k": "keep"}]
    assert found.ledger.messages[2].endswith("refused the record")


def test_map_records_replaces_and_rejects() -> None:
    def rename(row: dict[str, Any]) -> dict[str, Any] | str:
        return {"text": row["body"]} if "body" in row else "no body"

    found = map_records(testing.records([{"body": "x"}, "not json", {"other": 1}]), rename)
    assert found.rows == [{"text": "x"}]
    assert testing.rejects(found) == [(1, "bad_json"), (2, "no body")]
    assert "rename" in found.ledger.messages[2]


def boom(row: dict[str, Any]) -> Any:
    if row.get("n") == 2:
        raise KeyError("two\nlines")
    return True if row.get("n") == 0 else row


@pytest.mark.parametrize(
    ("step", "function", "says"),
    [
        (map_records, lambda row: boom(row | {"n": 2}), r"raised KeyError: 'two\\nlines'"),
        (map_records, lambda row: None, "gave null; MapRecords wants a dict or a reason"),
        (map_records, lambda row: True, r"gave a boolean \(true\); MapRecords wants"),
        (map_records, lambda row: {1, 2}, "gave a set; MapRecords wants"),
        (map_records, lambda row: "", r'gave a string \(""\); MapRecords wants'),
        (filter_records, lambda row: boom(row | {"n": 2}), "raised KeyError"),
        (filter_records, lambda row: None, "gave null; FilterRecords wants True, False or a reason"),
        (filter_records, lambda row: 1, r"gave a number \(1\); FilterRecords wants"),
        (filter_records, lambda row: row, "gave an object; FilterRecords wants"),
        (filter_records, lambda row: "", r'gave a string \(""\); FilterRecords wants'),
    ],
)
def test_a_users_mistake_names_the_file_and_the_offset(step: Callable[..., Records], function: Any, says: str) -> None:
    block = blocks(b'{"a":1}\n\n{"first":1}\n{"a":3}\n', 8, split)[1]
    with pytest.raises(UserFunctionError, match=says) as caught:
        step(block, function)
    assert str(caught.value).endswith(", at input.jsonl (byte offset 9)")
    assert "\n" not in str(caught.value)


def test_an_exception_over_many_lines_still_ends_with_its_place() -> None:
    def check(row: dict[str, Any]) -> bool:
        raise ValueError("1 validation error\n  text\n    too short")

    with pytest.raises(UserFunctionError) as caught:
        filter_records(testing.records([{}]), check)
    assert "raised ValueError: 1 validation error text too short, at test.jsonl (byte offset 0)" in str(caught.value)
    assert isinstance(caught.value.__cause__, ValueError)


def test_reasons_that_differ_by_record_end_in_a_clear_error() -> None:
    many = testing.records([{"n": n} for n in range(300)])
    with pytest.raises(UserFunctionError, match="more than 255 different reasons"):
        filter_records(many, lambda row: f"too long by {row['n']}")


def test_numpy_booleans_are_booleans() -> None:
    import numpy as np

    found = filter_records(testing.records([{"n": 1}, {"n": 2}]), lambda row: np.bool_(row["n"] > 1))  # type: ignore[arg-type, return-value]
    assert found.rows == [{"n": 2}]


def test_a_step_after_a_step_keeps_lines_and_rows_together() -> None:
    found = testing.records([{"n": n, "text": "x" * n} for n in range(20)])
    found = filter_records(found, lambda row: row["n"] % 2 == 0)
    found = filter_by_chars(found, 4, 14, ("text",))
    found = map_records(found, lambda row: "twelve" if row["n"] == 12 else {"n": row["n"]})
    assert found.rows == [{"n": n} for n in (4, 6, 8, 10, 14)]
    assert found.line.tolist() == [4, 6, 8, 10, 14]
    assert sum(outcome == "kept" for outcome in outcomes(found)) == 5


LONG_LINES = b"".join(
    [
        b'{"a": 1}\n',
        b'{"b": "' + b"x" * 40 + b'"}\r\n',  # 50 bytes before the line feed, 49 without the carriage return
        b" " * 300 + b"\n",
        b"\n",
        b'{"c": "' + b"y" * 70_000 + b'"}\n',
        b'{"d": "' + b"z" * 39 + b'"}\r\n',  # 49 and 48
        b'{"e": 2}\n',
        b"w" * 70_000,
    ]
)


@pytest.mark.parametrize("cut", [split, stream])
@pytest.mark.parametrize("block_bytes", [7, 64, 300, 4096, 65_536, 1 << 20])
def test_a_line_that_is_too_long_is_the_same_reject_at_every_block_size(cut: Cut, block_bytes: int) -> None:
    def read(data: bytes, block_bytes: int, cut: Any) -> list[Any]:
        found = []
        for start in range(0, len(data), block_bytes) if cut is split else [0]:
            stream = io.BytesIO(data)
            stream.seek(max(0, start - 1))
            stop = min(start + block_bytes, len(data)) if cut is split else -1
            for raw in read_blocks(stream, start, stop, block_bytes, 49):
                records = parse(raw, raw.origin(0, SOURCE, block_bytes, 49))
                ledger, rows = records.ledger, dict(zip(records.line.tolist(), records.rows, strict=True))
                for line in range(len(ledger.starts)):
                    place = records.origin.first_byte + int(ledger.starts[line])
                    what = ledger.outcomes[ledger.status[line] - 1] if ledger.status[line] else rows[line]
                    found.append((place, what, ledger.messages.get(line), ledger.text(line, 1 << 20)))
        return found

    found = read(LONG_LINES, block_bytes, cut)
    assert found == read(LONG_LINES, WHOLE, stream)
    outcomes = [what for _, what, _, _ in found]
    long = ("rejected", "line_too_long")
    assert outcomes == [{"a": 1}, long, long, ("blank", "blank"), long, {"d": "z" * 39}, {"e": 2}, long]
    assert [len(text) for _, what, _, text in found if what == long] == [49, 300, 65_536, 65_536]


@pytest.mark.parametrize("filler", [b" ", b"x", b"\0"])
def test_of_a_line_that_is_too_long_little_is_held(filler: bytes) -> None:
    class Endless:
        read_so_far = 0

        def read(self, size: int, /) -> bytes:
            Endless.read_so_far += size
            return filler * size

    tracemalloc.start()
    blocks = read_blocks(Endless(), 0, -1, 65_536, 1 << 20)
    sizes = [len(raw.data) for raw, _ in zip(blocks, range(100), strict=False)]
    assert sizes[0] == 65_536
    assert set(sizes[1:]) == {0}
    assert tracemalloc.get_traced_memory()[1] < 6 << 20
    tracemalloc.stop()
    assert Endless.read_so_far < 10 << 20  # a line is not read on to find its end
