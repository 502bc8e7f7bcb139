"""One line of JSON as the standard library's parser sees it: exact numbers, repeated keys, why it is refused."""

import json
import re
from typing import Any

import numpy as np
import orjson

from beam_prep.data.block import Reject

MAX_DEPTH = 512
"""Levels of nesting of a line. The parsers could do more, but not always as many: their limit is the free stack."""
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)


def parse_carefully(line: bytes, error: orjson.JSONDecodeError | None = None) -> Any:
    """The standard library's parser, for what orjson cannot say: exact integers, repeated keys, why it refused."""
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as bad:
        raise Reject("invalid_utf8", f"byte {bad.start} of the line is no UTF-8 ({bad.reason})") from None
    too_deep = Reject("too_deep", f"the line is nested deeper than {MAX_DEPTH} levels")
    if error is not None and "depth limit" in str(error):
        raise too_deep
    half = error is not None and "surrogate" in str(error)
    if error is not None and not half and "infinity" not in str(error):
        raise Reject("bad_json", str(error))
    if _deeper_than(MAX_DEPTH, line):
        raise too_deep
    try:
        row = json.loads(text, object_pairs_hook=unique_keys, parse_int=exact_integer, parse_float=finite_double)
    except json.JSONDecodeError as bad:
        raise Reject("bad_json", str(bad)) from None
    except RecursionError:
        raise too_deep from None
    if error is not None:
        raise Reject("bad_text", f"half of a surrogate pair: {error}") if half else Reject("bad_number", str(error))
    return row


def _deeper_than(levels: int, line: bytes) -> bool:
    if line.count(b"[") + line.count(b"{") <= levels:
        return False
    view = np.frombuffer(_STRING.sub(b"", line), np.uint8)
    opened = (view == ord("[")) | (view == ord("{"))
    closed = (view == ord("]")) | (view == ord("}"))
    return bool(np.cumsum(opened.astype(np.int64) - closed).max(initial=0) > levels)


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise Reject("duplicate_key", f"the key {name!r} is twice in one object")
            seen.add(name)
    return row


def exact_integer(text: str) -> int:
    if len(text) > 308:
        finite_double(text)
    return int(text)


def finite_double(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise Reject("bad_number", f"{text[:40]} is beyond a double")
    return number


def describe(value: Any) -> str:
    """`a number (3)`: what was found, for messages."""
    if value is None:
        return "null"
    kinds = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    kind = kinds.get(type(value), f"a {type(value).__name__}")
    if type(value) not in (str, bool, int, float):
        return kind
    text = json.dumps(value[:50] if type(value) is str else value, ensure_ascii=False)
    return f"{kind} ({text if len(text) <= 40 else text[:40] + '...'})"
