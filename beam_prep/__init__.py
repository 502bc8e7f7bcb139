"""beam_prep: raw JSONL -> tokenised, loss-masked, sharded training data, as an Apache Beam pipeline."""

import ast
import importlib
from pathlib import Path
from typing import Any

from beam_prep._version import __version__ as __version__
from beam_prep.hints import RENAMED_NAMES
from beam_prep.process import quiet_beam

# Imported at first use: a trainer that opens an output needs numpy, not Beam.
_PUBLIC = {
    alias.asname or "open": f"{node.module}"
    for node in ast.parse(Path(__file__).with_suffix(".pyi").read_bytes()).body
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
}
"""Public name -> its module, as `__init__.pyi` lists them. `open` is `open_dataset` there."""

__all__ = sorted(_PUBLIC.keys() - {"__version__"})


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        new = f"; it is bp.{RENAMED_NAMES[name]} now" if name in RENAMED_NAMES else ""
        raise AttributeError(f"module 'beam_prep' has no attribute {name!r}{new}")
    with quiet_beam():
        if name == "testing":
            return importlib.import_module("beam_prep.testing")
        module = importlib.import_module(_PUBLIC[name])
    value = getattr(module, "open_dataset" if name == "open" else name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
