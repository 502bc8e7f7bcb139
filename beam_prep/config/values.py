"""Types of the values in a config: dtypes, formats, dates."""

import contextlib
import re
from datetime import date as Date
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field, WithJsonSchema

from beam_prep.formats import FORMATS
from beam_prep.hints import shown

Integer = Literal["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
DType = Literal["bool", Integer, "float16", "float32", "float64"]
FORMAT_NAMES = tuple(FORMATS)
LARGEST = {name: 2 ** (int(name.lstrip("uint")) - (name[0] == "i")) - 1 for name in get_args(Integer)}
ALLOWED_DTYPES = {
    "token ids": tuple(LARGEST),
    "masks": ("bool", *LARGEST),
    "labels": tuple(name for name in LARGEST if name[0] == "i"),  # -100 where nothing is trained
    "loss weights": ("float32",),
    "numbers of tokens": ("float16", "float32", "float64"),
    "texts": ("uint8",),
    "values": tuple(name for name in get_args(DType) if name != "bool"),
}

LARGEST_WHOLE = 1 << 53
"""All readers of JSON and all columns hold whole numbers up to this."""
Whole = Annotated[int, Field(le=LARGEST_WHOLE)]


def one_of(*allowed: object) -> BeforeValidator:
    """A validator that allows only these values, with these types."""

    def check(value: object) -> object:
        if not any(type(value) is type(item) and value == item for item in allowed):  # 1 == True == 1.0
            raise ValueError(f"found {shown(value)}; allowed: {', '.join(map(shown, allowed))}")
        return value

    return BeforeValidator(check)


def _as_formats(value: object) -> tuple[str, ...]:
    """Formats in a fixed order: their order in the config does not change the output."""
    names: Any = [value] if isinstance(value, str) else value
    known = isinstance(names, list | tuple) and len(names) > 0 and all(name in FORMAT_NAMES for name in names)
    if not known or any(names.count(name) > 1 for name in names):
        raise ValueError(
            f"found {shown(value)}; allowed: {', '.join(map(repr, FORMAT_NAMES))}, or a list of them, each once"
        )
    return tuple(name for name in FORMAT_NAMES if name in names)


def as_date(value: object) -> str | None:
    """A date as `2026-11-22`; null stays null."""
    if value is None:
        return None
    if isinstance(value, str) and re.fullmatch(r"[1-9][0-9]{3}-[0-9]{2}-[0-9]{2}", value):
        with contextlib.suppress(ValueError):
            return Date.fromisoformat(value).isoformat()
    raise ValueError(f"found {shown(value)}; must be a date such as '2026-11-22'")


def _several(value: object) -> object:
    """One text, or a list of them."""
    return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value


Text = Annotated[str, Field(min_length=1)]
Texts = Annotated[
    tuple[Text, ...],
    Field(min_length=1),
    BeforeValidator(_several, json_schema_input_type=Text | Annotated[list[Text], Field(min_length=1)]),
]
"""One text, or a list of them."""
Name = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_]*$")]
_ONE_FORMAT = {"enum": list(FORMAT_NAMES)}
_FORMAT_LIST = {"type": "array", "items": _ONE_FORMAT, "minItems": 1, "uniqueItems": True}
_SCHEMA = WithJsonSchema({"anyOf": [_ONE_FORMAT, _FORMAT_LIST]})
Formats = Annotated[tuple[str, ...], BeforeValidator(_as_formats), _SCHEMA]
