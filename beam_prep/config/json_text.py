"""The JSON text of a config: finds repeated keys, and reads the file of a chat template."""

import os
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from beam_prep.config.problems import Location, Problem
from beam_prep.errors import ConfigError


def with_template(obj: Any, folder: str, read: Callable[[str], bytes] | None = None) -> Any:
    """Replaces the path of a chat template by the template itself: outputs depend on its text."""
    given = obj.get("input") if isinstance(obj, dict) else None
    if not isinstance(given, dict):
        return obj
    source = given.get("chat_template")
    if not isinstance(source, str) or not source or "{{" in source or "{%" in source:
        return obj
    path = os.path.join(folder, source)
    try:
        text = (read or _read)(path).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"input.chat_template: found {source!r}, which cannot be read ({error}); wanted a template, "
            "or the path of one beside the config"
        ) from error
    return {**obj, "input": {**given, "chat_template": text}}


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


class JSONObject(dict[str, Any]):
    """A JSON object that remembers which of its keys were given more than once."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.repeated = [key for key, count in Counter(key for key, _ in pairs).items() if count > 1]


def repeated_keys(value: object, at: Location = ()) -> Iterator[Problem]:
    """Finds the keys that an object of the JSON has more than once."""
    if isinstance(value, JSONObject):
        yield from (((*at, key), "duplicate key; give it once") for key in value.repeated)
    steps = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, inner in steps:
        yield from repeated_keys(inner, (*at, step))
