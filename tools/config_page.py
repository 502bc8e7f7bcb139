"""Generates tables of the docs from the code: `python -m tools.config_page` writes them into their pages.

The tables list the fields of a config and the options of a run (docs/config.md), the files of each format, the reasons
and the checks of `verify` (docs/formats.md), and old names (docs/renamed.md).
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from beam_prep import hints
from beam_prep.config import PipelineConfig
from beam_prep.config.strict import LARGEST_WHOLE, Strict, meanings
from beam_prep.data.block import REASONS
from beam_prep.data.schema import Column
from beam_prep.formats import FORMATS
from beam_prep.options import OPTIONS
from beam_prep.verify import CHECKS

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGES = ("config.md", "formats.md", "renamed.md")
HEAD = "| path | type | default | meaning |\n|---|---|---|---|"
_TABLE = re.compile(r"(<!-- table: (?P<objects>.*) -->\n)(?:\|.*\n)*")
_DEFS = PipelineConfig.json_schema()["$defs"]
_LISTS = {"SectionConfig": "list of sections", "GroupConfig": "list of groups"}


def with_tables(text: str) -> str:
    """The page with new tables.

    A comment before a table of fields names the objects: `<!-- table: input, input.rollouts -->`; `config` is the
    config itself. Other tables are between a `begin` and an `end` comment.
    """
    found = rows()

    def table(match: re.Match[str]) -> str:
        objects = match["objects"].split(", ")
        lines = [line for path, line in found.items() if (path.rpartition(".")[0] or "config") in objects]
        return match[1] + "\n".join([HEAD, *lines]) + "\n"

    text = _TABLE.sub(table, text)
    made_of = {
        "options": _options(),
        "rejected": _reasons(REASONS["rejected"]),
        "dropped": _reasons(REASONS["dropped"]),
        "checks": _checks(),
        "renamed": _renamed(),
        "files": _files(),
    }
    for name, lines in made_of.items():
        begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
        before, found_begin, rest = text.partition(begin)
        if found_begin:
            made = "".join(f"{line}\n" for line in lines)
            text = f"{before}{begin}{made}{end}{rest.partition(end)[2]}"
    return text


def _options() -> Iterator[str]:
    """Every option of a run, with its default."""
    yield from ("| option | default | meaning |", "|---|---|---|")
    for option in OPTIONS:
        names = ", ".join(f"`{name}`" for name in (f"--{option.name}", option.short) if name)
        default = "none" if option.default is None else f"`{json.dumps(option.default).strip(chr(34))}`"
        meaning = f"{option.help[0].upper()}{option.help[1:]}"
        meaning = meaning.replace("<", "&lt;").replace("|", r"\|")
        yield f"| {names} | {'required' if option.required else default} | {meaning}. |"


def _reasons(reasons: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """Every reason to leave out a record, with advice."""
    yield from ("| reason | the record | what to do |", "|---|---|---|")
    for name, found in reasons.items():
        see = f" See {found['see']}." if "see" in found else ""
        yield f"| `{name}` | {found['record']}.{see} | {found.get('advice', '').replace('<', '&lt;')} |"


def rows() -> dict[str, str]:
    """Path -> row of the table, for every field of a config. Objects of one type are listed once, at the first path."""
    schema = PipelineConfig.json_schema()
    link = schema["properties"]["$schema"]
    first = {"$schema": _row("$schema", link, link["description"], required=False)}
    return first | dict(_of_object(schema, PipelineConfig, "", set()))


def _checks() -> Iterator[str]:
    """Every check of `beam-prep verify`."""
    yield from ("| check | reads | it holds if |", "|---|---|---|")
    for check, cost in CHECKS.items():
        yield f"| `{check.__name__}` | {cost} | {str(check.__doc__).partition(chr(10))[0]} |"


def _renamed() -> Iterator[str]:
    """Every name that changed, and what to write instead."""
    yield from ("| old | new |", "|---|---|")
    for mark, names in (("--", hints.RENAMED_OPTIONS), ("", hints.RENAMED_KEYS), ("bp.", hints.RENAMED_NAMES)):
        yield from (f"| `{mark}{old}` | `{mark}{new}` |" for old, new in names.items())
    yield from (f"| `--{old}` | {what} |" for old, what in hints.GONE_OPTIONS.items())


def _files() -> Iterator[str]:
    """The files of a domain of one shard, and of two, for every format."""
    yield from (
        "| format | one shard with a column `ids` | the first of two | bytes depend on numpy, pyarrow, and |",
        "|---|---|---|---|",
    )
    for name, made in FORMATS.items():
        one, two = (made.files([Column("ids", "int32", 1, "ids")], 0, shards) or {} for shards in (1, 2))
        yield f"| `{name}` | {_named(one)} | {_named(two)} | {_named(made.libraries)} |"


def _named(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


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
        if key in field and field[key] != LARGEST_WHOLE:  # the page says it once
            yield f"{word} {field[key]:,}"


if __name__ == "__main__":
    for each in PAGES:
        (DOCS / each).write_text(with_tables((DOCS / each).read_text("utf-8")), "utf-8")
