"""The base class of the parts of a config, the types of values, the meaning of fields, and problems as text."""

import re
from collections.abc import Iterable
from typing import Annotated, Any, Literal, get_args

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator

from beam_prep.formats import FORMATS
from beam_prep.hints import RENAMED_KEYS, did_you_mean, place_of, shown, unknown_name

Location = tuple[str | int, ...]
Problem = tuple[Location, str]


class ProblemsError(ValueError):
    """Several problems, each with its place in the checked object."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__(problems)
        self.problems = problems


def meanings(model: type[BaseModel]) -> dict[str, str]:
    """Field -> its meaning: the docstring below it, in Markdown."""
    return {
        name: " ".join(field.description.split()) for name, field in model.model_fields.items() if field.description
    }


def plain(text: str) -> str:
    """Markdown without its links."""
    return re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", text)


def _describe(schema: dict[str, Any], model: type[BaseModel]) -> None:
    for name, text in meanings(model).items():
        schema["properties"][name]["description"] = plain(text)


class Strict(BaseModel):
    """A part of a config: no unknown keys, no conversions; `_problems` finds what types cannot express."""

    model_config = ConfigDict(
        strict=True,
        frozen=True,
        extra="forbid",
        validate_default=True,
        use_attribute_docstrings=True,
        json_schema_extra=_describe,
    )

    @model_validator(mode="after")
    def _check(self) -> "Strict":
        if problems := list(self._problems()):
            raise ProblemsError(problems)
        return self

    def _problems(self) -> Iterable[Problem]:
        """Finds problems that types cannot express. It runs only if every key is valid by itself."""
        return ()


WANTED = {
    "string_pattern_mismatch": "must be a name of letters, digits and '_' (a split: lower-case), a letter first",
    "tuple_type": "must be a list",
    "dict_type": "must be an object",
    "model_type": "must be an object",
}
"""Kind of a pydantic error -> text in terms of JSON, where pydantic uses terms of Python."""


def problems_of(model: type[BaseModel], error: Any) -> list[Problem]:
    """The problems in one entry of pydantic's `ValidationError.errors()`, for a config of type `model`."""
    kind, found, context = error["type"], error["input"], error.get("ctx", {})
    # pydantic adds steps for the parts of a union; they are removed.
    at = tuple(step for step in error["loc"] if not str(step).startswith(("literal[", "constrained-")))
    if isinstance(raised := context.get("error"), ProblemsError):
        return [((*at, *place), text) for place, text in raised.problems]
    if kind == "too_short" and found:
        return []  # pydantic counts only the valid items; the others are reported separately
    if kind == "value_error":
        return [(at, str(raised))]
    if kind == "missing":
        return [(at, "missing")]
    if kind == "extra_forbidden":
        return [(at, _unknown_key(model, at))]
    wanted = WANTED.get(kind) or re.sub(r"^\w+ should", "must", error["msg"]).partition(" after validation")[0]
    if kind == "literal_error":
        allowed = context["expected"].replace(" or ", ", ").replace("False, True", "false, true")
        wanted = f"{did_you_mean(found, allowed.split(chr(39))[1::2])}allowed: {allowed}"
    return [(at, f"found {shown(found)}; {wanted}")]


def _unknown_key(model: type[BaseModel], at: Location) -> str:
    """The message for an unknown key: its new name, or its place here if other tools use this name, or a near key."""
    key, known = str(at[-1]), _part_at(model, at[:-1]).model_fields
    parts = {name: model_in(field.annotation) for name, field in model.model_fields.items()}
    right = [name for name, part in parts.items() if part is not None and key in part.model_fields]
    place = None if key.lower() in known else place_of(key)
    instead = None if place is None else f"here it is {place}"
    if (new := RENAMED_KEYS.get(".".join(map(str, at)))) is not None:
        instead = f"it is {new} now"
    elif right:
        instead = f"it belongs in {' or '.join(map(repr, right))}"
    return unknown_name("key", key, known, instead)


def _part_at(model: type[BaseModel], at: Location) -> type[BaseModel]:
    """The type of the object at this place of a config; for a list or a mapping, the type of its objects."""
    for step in at:
        if isinstance(step, str) and step in model.model_fields:  # else the index of a section, the name of a source
            model = model_in(model.model_fields[step].annotation) or model
    return model


def model_in(annotation: Any) -> type[BaseModel] | None:
    """The type of the objects in a field, alone, in a list or by name; None if it holds no objects."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for part in get_args(annotation) if (model := model_in(part))), None)


def path_of(at: Location) -> str:
    """A place in a config as text: `input.sections[0].field`."""
    steps = (step for step in at if step != "[key]")  # pydantic's mark for a problem with the key itself
    texts = (f".{step}" if isinstance(step, str) and step.isidentifier() else f"[{shown(step)}]" for step in steps)
    return "".join(texts).removeprefix(".") or "config"


# Types of values

Integer = Literal["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
DType = Literal["bool", Integer, "float16", "float32", "float64"]
FORMAT_NAMES = tuple(FORMATS)
LARGEST = {name: int(np.iinfo(name).max) for name in get_args(Integer)}
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


def _as_formats(value: object) -> tuple[str, ...]:
    """Formats in a fixed order: their order in the config does not change the output."""
    names: Any = [value] if isinstance(value, str) else value
    found = tuple(name for name in FORMAT_NAMES if isinstance(names, list | tuple) and name in names)
    if not found or len(found) != len(names):
        raise ValueError(
            f"found {shown(value)}; allowed: {', '.join(map(repr, FORMAT_NAMES))}, or a list of them, each once"
        )
    return found


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
