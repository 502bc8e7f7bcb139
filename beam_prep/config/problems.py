"""The problems of a config as text: all of them in one `ConfigError`, each with its place."""

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from beam_prep.errors import ConfigError
from beam_prep.hints import did_you_mean, nearest, option_of, place_of, shown, unknown_name
from beam_prep.renamed import CONFIG_KEYS

Location = tuple[str | int, ...]
Problem = tuple[Location, str]
Model = TypeVar("Model", bound=BaseModel)


class ProblemsError(ValueError):
    """Several problems at once, each with its place in the checked object (`rooted`: in the entire config)."""

    def __init__(self, problems: list[Problem], rooted: bool = False) -> None:
        super().__init__(problems, rooted)
        self.problems = problems
        self.rooted = rooted


def validated(model: type[Model], obj: object, name: str, problems: list[Problem]) -> Model:
    """Builds a config of type `model`.

    Args:
        model: the type.
        obj: the JSON.
        name: the config's name in error messages.
        problems: those found already.

    Raises:
        ConfigError: with all problems, one per line.
    """
    problems = [*problems, *_half_pairs(obj)]
    try:
        config = model.model_validate(obj)
    except ValidationError as error:
        problems = problems + [problem for details in error.errors() for problem in _explain(model, details)]
    if problems:
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        lines = [f"  {path_of(at)}: {text}" for at, text in problems]
        raise ConfigError("\n".join([f"{name}: {count} in the config", *lines]))
    return config


def _half_pairs(value: object, at: Location = ()) -> Iterator[Problem]:
    """Finds texts with half of a surrogate pair, which no file can hold."""
    if isinstance(value, str) and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            yield at, f"found {ascii(value)[:80]}, which has half of a surrogate pair"
    for step, inner in (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    ):
        yield from _half_pairs(step, (*at, "[key]"))
        yield from _half_pairs(inner, (*at, step))


WANTED = {
    "int_type": "an integer",
    "bool_type": "true or false",
    "string_type": "a string",
    "string_too_short": "a string that is not empty",
    "string_pattern_mismatch": "a name of letters, digits and '_' that starts with a letter",
    "tuple_type": "a list",
    "too_short": "a list that is not empty",
    "dict_type": "an object",
    "model_type": "an object",
}


def _explain(model: type[BaseModel], details: Any) -> list[Problem]:
    """The problems in one entry of pydantic's `ValidationError.errors()`."""
    at, kind, context = details["loc"], details["type"], details.get("ctx", {})
    if at and str(at[-1]).startswith(("literal[", "constrained-")):  # pydantic's marks for the parts of a union
        at = at[:-1]
    found = f"found {shown(details['input'])}; "
    if isinstance(error := context.get("error"), ProblemsError):
        return [(place if error.rooted else (*at, *place), text) for place, text in error.problems]
    if kind == "too_short" and details["input"]:
        return []  # pydantic counts only the valid items; the others are reported separately
    if kind == "value_error":
        return [(at, str(error))]
    if kind == "extra_forbidden":
        parts = {name: _model_in(field.annotation) for name, field in model.model_fields.items()}
        right = [name for name, part in parts.items() if part and at[-1] in part.model_fields]
        known = _fields(model, at[:-1])
        # A word that is close by chance must not hide what the name means: `packing` is no misspelt `padding`.
        if (new := CONFIG_KEYS.get(".".join(map(str, at)))) is not None:
            return [(at, f"unknown key {shown(at[-1])}; it is {new} now")]
        meant, near = _elsewhere(str(at[-1])), nearest(at[-1], known)
        if meant is not None and not right and (near is None or f".{near}" not in meant):
            return [(at, f"unknown key {shown(at[-1])}; {meant}; known: {', '.join(known)}")]
        text = unknown_name("key", at[-1], known)
        return [(at, text + "".join(f"; it belongs in {name!r}" for name in right))]
    if kind == "missing":
        return [(at, f"missing. {_fields(model, at[:-1])[at[-1]].description}")]
    if kind == "literal_error":
        allowed = context["expected"].replace(" or ", ", ")
        return [
            (at, f"{found}{did_you_mean(details['input'], allowed.replace(chr(39), '').split(', '))}allowed: {allowed}")
        ]
    wanted = f"must be {WANTED[kind]}" if kind in WANTED else details["msg"].replace("Input should", "must")
    field = _fields(model, at[:-1]).get(str(at[-1])) if kind.startswith("greater_than") else None
    return [(at, f"{found}{wanted}{'' if field is None else f'. {field.description}'}")]


def _elsewhere(name: str) -> str | None:
    """Where a setting is that other tools have under this name; None if that is not known."""
    if (place := place_of(name)) is not None:
        return f"here it is {place}"
    option = option_of(name)
    written = {"inputs": "the INPUT of beam-prep run", "output_dir": "-o"}.get(str(option), f"--{option}")
    return None if option is None else f"it is no part of the config: give {written} on the command line"


def _fields(model: type[BaseModel], at: Location) -> Mapping[str, Any]:
    """The fields of the object at this place of a config of type `model`."""
    found: Any = model
    steps = iter(at)
    for step in steps:
        annotation = found.model_fields[step].annotation
        found = _model_in(annotation)
        if found is None:
            return {}
        if found is not annotation:
            next(steps, None)  # the index of a section, the name of a source
    fields: Mapping[str, Any] = found.model_fields
    return fields


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for part in get_args(annotation) if (model := _model_in(part))), None)


def path_of(at: Location) -> str:
    """A place in a config as text: `input.sections[0].field`."""
    steps = (step for step in at if step != "[key]")  # pydantic's mark for a problem with the key itself
    texts = (f".{step}" if isinstance(step, str) and step.isidentifier() else f"[{shown(step)}]" for step in steps)
    return "".join(texts).removeprefix(".") or "config"
