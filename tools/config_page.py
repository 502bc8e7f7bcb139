"""The tables of docs/config.md, made of the config's model: `python -m tools.config_page` writes them into the page."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from beam_prep.config import PipelineConfig
from beam_prep.config.strict import Strict, meanings

PAGE = Path(__file__).resolve().parent.parent / "docs" / "config.md"
HEAD = "| path | type | default | meaning |\n|---|---|---|---|"
_TABLE = re.compile(r"(<!-- table: (?P<objects>.*) -->\n)(?:\|.*\n)*")
_DEFS = PipelineConfig.json_schema()["$defs"]
_LISTS = {"SectionConfig": "list of sections", "GroupConfig": "list of groups"}


def with_tables(text: str) -> str:
    """The page with its tables made anew.

    A table has the fields of the objects that the comment before it names: `<!-- table: input, input.rollouts -->`;
    `config` is the config itself.
    """
    found = rows()

    def table(match: re.Match[str]) -> str:
        objects = match["objects"].split(", ")
        lines = [line for path, line in found.items() if (path.rpartition(".")[0] or "config") in objects]
        return match[1] + "\n".join([HEAD, *lines]) + "\n"

    return _TABLE.sub(table, text)


def rows() -> dict[str, str]:
    """Path to row, of every field of a config; what several objects have stands at the first."""
    schema = PipelineConfig.json_schema()
    link = schema["properties"]["$schema"]
    first = {"$schema": _row("$schema", link, link["description"], required=False)}
    return first | dict(_of_object(schema, PipelineConfig, "", set()))


def _of_object(part: dict[str, Any], model: type[Strict], at: str, seen: set[str]) -> Iterator[tuple[str, str]]:
    told = meanings(model)
    for name, field in part["properties"].items():
        path = f"{at}.{name}".removeprefix(".")
        if name in told:
            yield path, _row(path, field, told[name], name in part.get("required", ()))
            yield from _within(field, path, seen)


def _within(field: dict[str, Any], path: str, seen: set[str]) -> Iterator[tuple[str, str]]:
    if (name := field.get("$ref", "").rpartition("/")[2]) and name not in seen:
        seen.add(name)
        yield from _of_object(_DEFS[name], _models()[name], path, seen)
    for each in field.get("anyOf", ()):
        yield from _within(each, path, seen)
    if "items" in field:
        yield from _within(field["items"], f"{path}[]", seen)
    for key in ("additionalProperties", "patternProperties"):
        inner = field.get(key)
        for each in (inner.values() if key == "patternProperties" else [inner]) if isinstance(inner, dict) else ():
            yield from _within(each, f"{path}.<name>", seen)


def _models(base: type[Strict] = Strict) -> dict[str, type[Strict]]:
    found: dict[str, type[Strict]] = {}
    for model in base.__subclasses__():
        found |= {model.__name__: model, **_models(model)}
    return found


def _row(path: str, field: dict[str, Any], meaning: str, required: bool) -> str:
    default = "none" if "default" not in field else f"`{json.dumps(field['default'])}`"
    if "$ref" in field:
        default = "all its defaults"
    cells = (f"`{path}`", _kind(field), "required" if required else default, meaning.replace("|", r"\|"))
    return f"| {' | '.join(cells)} |"


def _kind(field: dict[str, Any]) -> str:
    """The type of a field in words."""
    *kinds, last = dict.fromkeys(_kinds(field))
    if not kinds:
        return last
    return f"{', '.join(kinds)}{',' if last in ('null', 'list of them') else ''} or {last}"


def _kinds(field: dict[str, Any]) -> Iterator[str]:
    kind = field.get("type")
    if "anyOf" in field:
        for each in field["anyOf"]:
            yield from _kinds(each)
    elif "enum" in field or "const" in field:
        values = field.get("enum", [field.get("const")])
        yield from ("boolean" if isinstance(value, bool) else f"`{json.dumps(value)}`" for value in values)
    elif kind == "array":
        items = field.get("items", {})
        plural = f"list of {len(field['prefixItems'])} strings" if "prefixItems" in field else "list of them"
        plural = "list of strings" if items.get("type") == "string" else plural
        yield _LISTS.get(items.get("$ref", "").rpartition("/")[2], plural)
    elif kind in ("integer", "number"):
        yield ", ".join([kind, *_bounds(field, step=1 if kind == "integer" else None)])
    else:
        yield field.get("format") or kind or "object"


def _bounds(field: dict[str, Any], step: int | None) -> Iterator[str]:
    if (above := field.get("exclusiveMinimum")) is not None:
        yield f"at least {above + step}" if step else f"above {above}"
    for key, word in (("minimum", "at least"), ("maximum", "at most"), ("exclusiveMaximum", "below")):
        if key in field:
            yield f"{word} {field[key]:,}"


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text("utf-8")), "utf-8")
