"""The JSON text of a config: finds repeated keys, and reads the file of a chat template."""

import errno
import os
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Literal

from beam_prep.config.problems import Location, Problem
from beam_prep.errors import ConfigError

MAX_CONFIG_BYTES = 16 * 1024 * 1024
"""Bytes of a config, and of a chat template's file."""

TemplateFiles = Literal["beside", "below", "none"]
"""The files that a chat template may be in: any, in relation to the config's folder; those below that; none."""


def with_template(
    obj: Any, folder: str, read: Callable[[str], bytes] | None = None, files: TemplateFiles = "beside"
) -> Any:
    """Replaces the path of a chat template by the template itself: outputs depend on its text.

    Args:
        obj: the config's JSON.
        folder: the folder of the config.
        read: reads a file.
        files: the files that may be read.

    Raises:
        ConfigError: it cannot be read, or may not be.
    """
    given = obj.get("input") if isinstance(obj, dict) else None
    if not isinstance(given, dict):
        return obj
    source = given.get("chat_template")
    if not isinstance(source, str) or not source or "{{" in source or "{%" in source:
        return obj
    found = f"input.chat_template: found {source[:200]!r}, which"
    if files == "none":
        raise ConfigError(f"{found} is no template; a config that is no file must have the template itself")
    steps = source.split("/")
    if files == "below" and (not steps[0] or ".." in steps or "://" in source or "\\" in source):
        raise ConfigError(f"{found} is not below the config's folder; wanted a template, or the path of one below it")
    path = f"{folder}/{source}" if files == "below" else os.path.join(folder, source)
    try:
        text = (read or read_file)(path).decode("utf-8")
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a path with a NUL
        raise ConfigError(
            f"{found} cannot be read ({error}); wanted a template, or the path of one beside the config"
        ) from error
    return {**obj, "input": {**given, "chat_template": text}}


def read_file(path: str) -> bytes:
    """The bytes of a local file.

    Raises:
        OSError: it cannot be read, or is too large for a config.
    """
    with open(path, "rb") as file:
        found = file.read(MAX_CONFIG_BYTES + 1)
    if len(found) > MAX_CONFIG_BYTES:
        raise OSError(errno.EFBIG, f"it has more than {MAX_CONFIG_BYTES} bytes")
    return found


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
