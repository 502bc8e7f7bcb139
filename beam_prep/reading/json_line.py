"""Parses one line of JSON exactly: integers of any size, no repeated keys, a reason for each refusal."""

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import orjson

from beam_prep.data.block import Reason, Reject

MAX_DEPTH = 512
"""Most levels of nesting of a line. The parsers may take more, but their limit depends on the free stack."""
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)


_DIGITS = bytes.maketrans(b"123456789", b"0" * 9)
_LONG_NUMBER = b"0" * 19
"""In a line whose digits are replaced by zeros: a number that orjson may turn into another double."""
_NESTED = {dict, list}
_BOM = (
    "the record begins with a byte order mark (BOM), which only a file may: files that have one were put together; "
    "take it out: sed -i 's/^\\xEF\\xBB\\xBF//' FILE"
)


def parse_json(line: bytes, constants: Callable[[str], float] | None = None) -> Any:
    """The value of a line.

    Args:
        line: the line.
        constants: converts `NaN`, `Infinity` and `-Infinity`; None: they are refused.

    Raises:
        Reject: the line is no JSON, or repeats a key: see `records.parse`.
    """
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        return _parse_carefully(line, error, constants)
    if _quotes(value) != line.count(b'"') + line.count(b"\\u0022") or _LONG_NUMBER in line.translate(_DIGITS):
        return _parse_carefully(line)
    return value


def _quotes(value: Any) -> int:
    """Number of quotes of a value as JSON. A repeated key, which the parser dropped, had at least two more."""
    if type(value) is dict and _NESTED.isdisjoint(map(type, value.values())):  # faster than to write a long text
        texts: list[str] = [*value, *(each for each in value.values() if type(each) is str)]
        return 2 * len(texts) + sum([text.count('"') for text in texts])
    try:
        return orjson.dumps(value).count(b'"')
    except TypeError:  # nested deeper than orjson writes
        return -1


def _parse_carefully(
    line: bytes, error: orjson.JSONDecodeError | None = None, constants: Callable[[str], float] | None = None
) -> Any:
    """Parses with the standard library: exact integers, repeated keys, and why orjson refused the line."""
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as bad:
        raise Reject("invalid_utf8", f"byte {bad.start} of the line is no UTF-8 ({bad.reason})") from None
    too_deep = Reject("too_deep", f"the line is nested deeper than {MAX_DEPTH} levels")
    found = None  # what orjson found; the other parser may find something worse
    if error is not None:
        if "depth limit" in str(error):
            raise too_deep
        if "surrogate" in str(error):
            found = Reject("bad_text", f"half of a surrogate pair: {error}")
        elif "infinity" in str(error):
            found = Reject("bad_number", str(error))
        elif constants is None:
            is_constant = text.startswith(("NaN", "Infinity"), error.pos)
            lacks = "; JSON has no NaN and no Infinity: write null" if is_constant else ""
            raise Reject("bad_json", _BOM if text.startswith("\ufeff") else f"{error}{lacks}")
    if _deeper_than(MAX_DEPTH, line):
        raise too_deep
    try:
        row = json.loads(
            text,
            object_pairs_hook=unique_keys,
            parse_int=exact_integer,
            parse_float=finite_double,
            parse_constant=constants,
        )
    except json.JSONDecodeError as bad:
        raise Reject("bad_json", str(bad)) from None
    except RecursionError:
        raise too_deep from None
    if found is not None:
        raise found
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


def _is_binary(value: Any) -> bool:
    return type(value) is dict and len(value) == 1 and type(value.get("binary")) is int


def describe(value: Any) -> str:
    """A value for messages, such as `a number (3)`."""
    if value is None:
        return "null"
    if _is_binary(value):
        return f"binary ({value['binary']:,} bytes)"
    kinds = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    kind = kinds.get(type(value), f"a {type(value).__name__}")
    if type(value) not in (str, bool, int, float):
        return kind
    text = json.dumps(value[:50] if type(value) is str else value, ensure_ascii=False)
    return f"{kind} ({text if len(text) <= 40 else text[:40] + '...'})"


def check_type(value: Any, kinds: Any, where: str, wanted: str, reason: Reason = "wrong_type") -> None:
    """Raises Reject if a value has none of these types; `where` and `wanted` are for the message."""
    if not isinstance(value, kinds):
        raise Reject(reason, f"{where} is {describe(value)}, wanted {wanted}")


BINARY = b'{"binary" :%d}'
"""Stands for bytes of a table, with their number. The blank before the colon marks that no column held this object."""
BEYOND = re.compile(rb'NaN|Infinity|\{"binary" :')
"""Matches rows of tables with values that JSON lacks, and some others."""


def check_values(record: Mapping[str, Any], fields: Iterable[str]) -> None:
    """Checks the fields of a table's row that the run reads.

    Raises:
        Reject: `not_json`: a field holds a number that is not finite, or bytes.
    """
    todo = [(name, record.get(name)) for name in fields]
    for where, value in todo:  # without recursion: a record may be nested deeper than Python's stack allows
        if (type(value) is float and not math.isfinite(value)) or _is_binary(value):
            raise Reject("not_json", f"'{where}' is {describe(value)}, which JSON does not have")
        if isinstance(value, dict):
            todo += [(f"{where}.{name}", each) for name, each in value.items()]
        elif isinstance(value, list):
            todo += [(f"{where}[{place}]", each) for place, each in enumerate(value)]
