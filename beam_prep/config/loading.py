"""Makes a config from its text: parses the JSON, reads the chat template, raises one error with all problems."""

import errno
import json
import os
import re
from collections.abc import Callable
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ValidationError

from beam_prep.config.strict import path_of, problems_of
from beam_prep.errors import ConfigError
from beam_prep.formats.manifest import is_outside

MAX_CONFIG_BYTES = 16 * 1024 * 1024
"""Most bytes of a config, and of the file of a chat template."""

TemplateFiles = Literal["beside", "below", "none"]
"""Which files may hold a chat template: any file, relative to the config's folder; only files below it; none."""

Model = TypeVar("Model", bound=BaseModel)


def read_file(path: str) -> bytes:
    """The bytes of a local file.

    Raises:
        OSError: the file cannot be read, or is too large for a config.
    """
    with open(path, "rb") as file:
        found = file.read(MAX_CONFIG_BYTES + 1)
    if len(found) > MAX_CONFIG_BYTES:
        raise OSError(errno.EFBIG, f"it has more than {MAX_CONFIG_BYTES} bytes")
    return found


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"duplicate key {next(key for key in keys if keys.count(key) > 1)!r}; give it once")
    return found


def parsed(text: str, name: str) -> Any:
    """The JSON of a config.

    Raises:
        ConfigError: the text is not JSON.
    """
    try:
        found = json.loads(text, object_pairs_hook=_object)
        json.dumps(found, ensure_ascii=False).encode()  # half of a surrogate pair, which no file can hold
    except json.JSONDecodeError as error:
        raise ConfigError(f"{name}: line {error.lineno}, column {error.colno}: not JSON: {error.msg}") from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, thousands of brackets
        raise ConfigError(f"{name}: not usable as JSON: {error}") from error
    return found


def with_template(
    obj: Any, folder: str, read: Callable[[str], bytes] | None = None, files: TemplateFiles = "beside"
) -> Any:
    """Replaces the path of a chat template by the text of the template, on which outputs depend.

    Args:
        obj: the config's JSON.
        folder: the folder of the config.
        read: reads a file.
        files: the files that may be read.

    Raises:
        ConfigError: the file cannot be read, or `files` does not allow it.
    """
    given = obj.get("input") if isinstance(obj, dict) else None
    if not isinstance(given, dict):
        return obj
    source = given.get("chat_template")
    if not isinstance(source, str) or not source or "{{" in source or "{%" in source or re.fullmatch(r"[\w-]+", source):
        return obj  # a template, or the name of a template of the tokenizer
    found = f"input.chat_template: found {source[:200]!r}, which"
    if files == "none":
        raise ConfigError(f"{found} is no template; a config that is no file must have the template itself")
    if files == "below" and (is_outside(source) or "://" in source or "\\" in source):
        raise ConfigError(f"{found} is not below the config's folder; wanted a template, or the path of one below it")
    path = f"{folder}/{source}" if files == "below" else os.path.join(folder, source)
    try:
        text = (read or read_file)(path).decode("utf-8-sig")  # a BOM would become text of every row
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a path with a NUL
        raise ConfigError(
            f"{found} cannot be read ({error}); wanted a template, the path of one beside the config, or the name of "
            "one of the tokenizer's"
        ) from error
    return {**obj, "input": {**given, "chat_template": text}}


def validated(model: type[Model], obj: object, name: str) -> Model:
    """Makes a config of type `model` from JSON; `name` is its name in error messages.

    Raises:
        ConfigError: the config has problems; the message lists all, one a line.
    """
    try:
        return model.model_validate(obj)
    except ValidationError as error:
        problems = [problem for each in error.errors() for problem in problems_of(model, each)]
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    lines = [f"  {path_of(at)}: {text}" for at, text in problems]
    raise ConfigError("\n".join([f"{name}: {count} in the config", *lines]))
