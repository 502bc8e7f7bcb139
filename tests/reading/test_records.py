"""Bytes -> blocks -> records, without Beam: every line exactly once, and what is said of each."""

import hashlib
import io
import itertools
import json
import tracemalloc
from collections.abc import Callable
from random import Random
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import example, given

from beam_prep import testing
from beam_prep.data.block import TEXT_LIMIT, InputFile
from beam_prep.data.hashing import block_digest, tree_digest, tree_nodes
from beam_prep.errors import UserFunctionError
from beam_prep.reading import records as records_module
from beam_prep.reading.adapters import filter_by_chars, filter_records, map_records
from beam_prep.reading.records import BOM, MAX_DEPTH, MAX_LINE_BYTES, RawBlock, Records, parse, read_blocks

SOURCE = InputFile("input.jsonl", 0, 0.0)
WHOLE = 1 << 40


def split(data: bytes, block_bytes: int, longest: int = MAX_LINE_BYTES) -> list[RawBlock]:
    """The splits of a plain file, each read from a stream of its own, positioned as `open_input` does."""
    blocks: list[RawBlock] = []
    for start in range(0, len(data), block_bytes):
        stream = io.BytesIO(data)
        stream.seek(max(0, start - 1))
        blocks += read_blocks(stream, start, min(start + block_bytes, len(data)), block_bytes, longest)
    return blocks


def stream(data: bytes, block_bytes: int, longest: int = MAX_LINE_BYTES) -> list[RawBlock]:
    """The blocks of a compressed file's content."""
    return list(read_blocks(io.BytesIO(data), 0, -1, block_bytes, longest))


Cut = Callable[[bytes, int, int], list[RawBlock]]


def blocks(data: bytes, block_bytes: int = WHOLE, cut: Cut = stream, longest: int = MAX_LINE_BYTES) -> list[Records]:
    """The blocks of a file, parsed."""
    return [parse(raw, raw.origin(0, SOURCE, block_bytes, longest)) for raw in cut(data, block_bytes, longest)]


def account(
    data: bytes, block_bytes: int = WHOLE, cut: Cut = stream, longest: int = MAX_LINE_BYTES
) -> list[tuple[int, int, bytes, Any]]:
    """(byte offset in the file, line number from 1, bytes of the line, what became of it) of every line."""
    found: list[tuple[int, int, bytes, Any]] = []
    for records in blocks(data, block_bytes, cut, longest):
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


SIZES = st.lists(st.integers(1, 9), min_size=1, max_size=5)


@given(data=CONTENT, block_bytes=st.integers(1, 70), sizes=SIZES)
@example(data=BOM + b'{"a":1}', block_bytes=1, sizes=[1])
@example(data=b"{}\r\n{}", block_bytes=3, sizes=[2])
@example(data=(BOM + b'{"a":1}\n') * 3, block_bytes=11, sizes=[9])  # a mark at the start of every block
def test_every_line_stands_exactly_once_at_any_block_size(data: bytes, block_bytes: int, sizes: list[int]) -> None:
    whole = account(data)
    assert [(offset, text) for offset, _, text, _ in whole] == lines_of(data)
    assert [number for _, number, _, _ in whole] == list(range(1, len(whole) + 1))
    assert account(data, block_bytes, split) == whole
    blocks = stream(data, block_bytes)
    assert blocks == split(data, block_bytes)
    assert list(read_blocks(_Trickle(data, sizes), 0, -1, block_bytes)) == blocks
    assert b"".join((raw.head + raw.data)[: raw.size] for raw in blocks) == data


class _Trickle:
    """Gives less than asked, as decompressors do."""

    def __init__(self, data: bytes, sizes: list[int]) -> None:
        self._stream, self._sizes = io.BytesIO(data), sizes

    def read(self, size: int) -> bytes:
        self._sizes.append(self._sizes.pop(0))
        return self._stream.read(min(size, self._sizes[0]))


# --- digests


def rfc_6962(chunks: list[bytes]) -> bytes:
    """The Merkle tree hash as RFC 6962, section 2.1, defines it."""
    if not chunks:
        return hashlib.sha256(b"").digest()
    if len(chunks) == 1:
        return hashlib.sha256(b"\x00" + chunks[0]).digest()
    left = 1 << (len(chunks) - 1).bit_length() - 1
    return hashlib.sha256(b"\x01" + rfc_6962(chunks[:left]) + rfc_6962(chunks[left:])).digest()


@given(data=CONTENT, chunks_a_block=st.integers(1, 6))
def test_the_nodes_of_blocks_give_the_files_digest(data: bytes, chunks_a_block: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records_module, "CHUNK", 4)
        for cut in (split, stream):
            block_bytes = 4 * chunks_a_block
            origins = [raw.origin(0, SOURCE, block_bytes) for raw in cut(data, block_bytes)]
            nodes = [node for origin in origins for node in origin.nodes]
            assert tree_digest(nodes) == rfc_6962([data[i : i + 4] for i in range(0, len(data), 4)]).hex()


def digests(data: bytes, block_bytes: int) -> list[str]:
    return [raw.origin(0, SOURCE, block_bytes).digest for raw in split(data, block_bytes)]


def test_blocks_of_other_bytes_have_other_digests() -> None:
    # What differs lies behind the range, in its last line.
    assert digests(b'{"a":1,"b":2}\n', 8)[0] != digests(b'{"a":1,"b":3}\n', 8)[0]


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


NOT_FINITE = (b"NaN", b"Infinity", b"-Infinity")


@pytest.mark.parametrize(
    ("line", "reason", "says"),
    [
        (b'{"a":', "bad_json", "unexpected end of data: line 1 column 6 (char 5)"),
        (b'{"a":01}', "bad_json", "number with leading zero is not allowed: line 1 column 6 (char 5)"),
        (b'{"a":1}{"b":2}', "bad_json", ""),
        (b'{"a":1}\x00', "bad_json", ""),
        *((b'{"a":%s}' % each, "bad_json", "JSON has no NaN and no Infinity: write null") for each in NOT_FINITE),
        (b'{"a":"\\ud800"}', "bad_text", ""),
        (b'{"\\ud800":1}', "bad_text", ""),
        (b'{"a":"\\ud800","n":12345678901234567890123}', "bad_text", ""),
        (b'{"a":"\xff"}', "invalid_utf8", "byte 6 of the line is no UTF-8 (invalid start byte)"),
        (b'{"a":"\xed\xa0\x80"}', "invalid_utf8", ""),
        (b'{"a":[{"b":1e400}]}', "bad_number", "1e400 is beyond a double"),
        (b'{"a":1' + b"0" * 309 + b"}", "bad_number", ""),
        (b'{"a":-' + b"9" * 5000 + b"}", "bad_number", ""),
        (b'{"a":1e999,"b":NaN}', "bad_number", ""),
        (b'{"x":[[{"a":1,"a":{}}]]}', "duplicate_key", "the key 'a' is twice in one object"),
        # The escapes' quotes must not stand in for those of the lost key.
        (b'{"a":"\\u0022\\u0022","b":1,"b":2}', "duplicate_key", ""),
        (b'{"n":123456789012345678901,"a":1,"a":2}', "duplicate_key", ""),
        (b"[1,2]", "not_an_object", "the line is a list, wanted a JSON object"),
        (b'"' + b"x" * 90 + b'"', "not_an_object", f'the line is a string ("{"x" * 39}...), wanted a JSON object'),
        (b"12345678901234567890123", "not_an_object", ""),
        (BOM + b"{}", "bad_json", "line 1 column 1 (char 0)"),
    ],
)
def test_a_line_that_is_no_record_is_rejected_with_its_reason(line: bytes, reason: str, says: str) -> None:
    first, blank, (offset, number, _, found), last = account(b'{"a":1}\n\t\n' + line + b'\n{"b":2}\n')
    assert (first[3], blank[3], last[3]) == ({"a": 1}, ("blank", "blank"), {"b": 2})
    assert (offset, number, last[0]) == (10, 3, 11 + len(line))
    assert found[:2] == ("rejected", reason)
    assert found[2].endswith(says)
    assert 10 < len(found[2]) <= TEXT_LIMIT


INTEGERS = st.integers(-(10**308), 10**308)


@example(row={"a": [2**64, -(2**63) - 1, 2**53 + 1, {str(10**308): 10**308}]}, ascii_only=False)
@given(
    row=st.dictionaries(
        st.text(max_size=5),
        st.recursive(
            st.one_of(st.none(), st.booleans(), INTEGERS, st.floats(allow_nan=False, allow_infinity=False), st.text()),
            lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
            max_leaves=12,
        ),
        max_size=5,
    ),
    ascii_only=st.booleans(),
)
def test_any_record_is_read_as_the_standard_library_reads_it(row: dict[str, Any], ascii_only: bool) -> None:
    line = json.dumps(row, ensure_ascii=ascii_only)
    assert repr(verdict(line.encode())) == repr(json.loads(line))


@given(st.lists(st.text('"\\u02', max_size=4), max_size=4), st.booleans(), st.randoms(use_true_random=False))
def test_a_repeated_key_is_found_whatever_is_escaped(keys: list[str], inside: bool, random: Random) -> None:
    def string(text: str) -> str:
        ways = ((json.dumps(character)[1:-1], f"\\u{ord(character):04x}") for character in text)
        return '"' + "".join(map(random.choice, ways)) + '"'

    line = "{" + ",".join(f"{string(key)}:{string(key)}" for key in keys) + "}"
    line = f'{{"in":[{line}]}}' if inside else line
    assert verdict(line.encode()) == ("duplicate_key" if len({*keys}) < len(keys) else json.loads(line))


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
    message = f"the line is nested deeper than {MAX_DEPTH} levels"
    assert blocks(nested(100_000))[0].ledger.messages == {0: message}


def test_brackets_side_by_side_or_in_strings_are_no_depth() -> None:
    wide = {"a": [[]] * 2000, "n": 2**70}
    assert verdict(json.dumps(wide).encode()) == wide
    text = {"a": '[{"\\' * 2000, "n": 2**70}
    assert verdict(json.dumps(text).encode()) == text
    assert verdict(b'{"a":' + b'{"a":' * 5000 + b"1" + b"}" * 5001) == "too_deep"


# --- texts of rejects


def test_the_text_of_a_reject_is_cut_at_characters_not_at_bytes() -> None:
    for char in ("x", "字", "😀"):
        ledger = blocks(f"{char * (TEXT_LIMIT + 5)}\n".encode())[0].ledger
        assert (ledger.text(0), ledger.text(0, 7)) == (char * TEXT_LIMIT, char * 7)
    ledger = blocks(BOM + b'{"a":"\xff\x00"}\r\n' + b"\xff" * 2000)[0].ledger
    assert ledger.text(0) == '{"a":"\ufffd\x00"}'
    assert ledger.text(1) == "\ufffd" * TEXT_LIMIT


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
    short = "dropped too_short"
    rows: list[tuple[dict[str, Any], str]] = [
        ({"a": "x", "b": "long enough", "c": "untouched"}, "kept"),
        ({"a": "x", "b": "y"}, short),
        ({"a": "x" * 99, "b": "y"}, short),
        ({"a": "x" * 99}, "dropped too_long"),
        ({"a": " ", "b": ""}, "dropped empty"),
        ({"c": "has none of them"}, "kept"),
        ({"a": "x", "b": 5}, "kept"),  # ApplyTemplate rejects the number
    ]
    found = filter_by_chars(testing.records([row for row, _ in rows]), 5, 50, ("a", "b"))
    assert outcomes(found) == [outcome for _, outcome in rows]
    assert found.rows == [{"b": "long enough", "c": "untouched"}, {"c": "has none of them"}, {"b": 5}]
    assert found.line.tolist() == [0, 5, 6]


def test_filter_records_keeps_drops_and_rejects() -> None:
    answers: dict[str, bool | str] = {"keep": True, "drop": False, "bad": "no licence"}
    records = testing.records([{"k": k} for k in ("keep", "drop", "bad", "keep")])
    found = filter_records(records, lambda record: answers[record["k"]])
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


def fails() -> bool:
    raise ValueError("1 error\n  text\n    too short")


@pytest.mark.parametrize(
    ("step", "function", "says"),
    [
        (map_records, lambda row: row["no"], "raised KeyError: 'no'"),
        (filter_records, lambda row: fails(), "raised ValueError: 1 error text too short"),
        (map_records, lambda row: None, "gave null; MapRecords wants a dict or a reason"),
        (filter_records, lambda row: None, "gave null; FilterRecords wants True, False or a reason"),
    ],
)
def test_a_users_mistake_names_the_file_and_the_offset(step: Callable[..., Records], function: Any, says: str) -> None:
    block = blocks(b'{"a":1}\n\n{"first":1}\n{"a":3}\n', 8, split)[1]
    with pytest.raises(UserFunctionError, match=says) as caught:
        step(block, function)
    assert str(caught.value).endswith(", at input.jsonl (byte offset 9)")
    assert "\n" not in str(caught.value)


def test_reasons_that_differ_by_record_end_in_a_clear_error() -> None:
    many = testing.records([{"n": n} for n in range(300)])
    with pytest.raises(UserFunctionError, match="more than 255 different reasons"):
        filter_records(many, lambda row: f"too long by {row['n']}")


LONG_LINES = b"".join(
    [
        b'{"a": 1}\n',
        b'{"b": "' + b"x" * 41 + b'"}\r\n',  # 50 bytes without the line end
        b" " * 300 + b"\n",
        b"\n",
        b'{"c": "' + b"y" * 70_000 + b'"}\n',
        b'{"d": "' + b"z" * 40 + b'"}\r\n',  # 49
        b'{"e": 2}\n',
        b"w" * 70_000,
    ]
)


@pytest.mark.parametrize("cut", [split, stream])
@pytest.mark.parametrize("block_bytes", [64, 300, 65_536])
def test_a_line_that_is_too_long_is_the_same_reject_at_every_block_size(cut: Cut, block_bytes: int) -> None:
    found = account(LONG_LINES, block_bytes, cut, 49)
    assert found == account(LONG_LINES, longest=49)
    long = ("rejected", "line_too_long")
    outcomes = [what[:2] if long[0] in what else what for _, _, _, what in found]
    assert outcomes == [{"a": 1}, long, long, ("blank", "blank"), long, {"d": "z" * 40}, {"e": 2}, long]
    assert [len(text) for _, _, text, what in found if long[0] in what] == [50, 300, 65_536, 65_536]


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
