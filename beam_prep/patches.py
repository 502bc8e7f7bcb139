"""Everything that we change in other libraries while a process runs. No other file does that.

| what | why | where | until |
|---|---|---|---|
| `frequent_sampling` | a bundle ends 0.2 s sooner | our worker processes, and `Pipeline.run` in-process | Beam has an \
option for the sampling period: not in 2.77 |
| `without_unused_libraries` | Beam is imported in two thirds of the time | the command line, while it imports | Beam \
imports pandas, pymongo and BigQuery on demand: not in 2.77 |
| `register_environment` | the local runner can use workers that we forked | the command line | Beam can start workers \
by a Python function: not in 2.77 |

The first two are undone at the end of their `with`. The third adds an entry, under a name of ours, to registries of
Beam; it is made in no process but the command line's own. Importing beam_prep, or running a chain in a pipeline of your
own, does none of this.
"""

import contextlib
import functools
import importlib.abc
import sys
from collections.abc import Iterator
from typing import Any

SAMPLING_MS = 10
UNUSED_LIBRARIES = ("pandas", "pymongo", "apache_beam.io.gcp.bigquery")


@contextlib.contextmanager
def frequent_sampling() -> Iterator[None]:
    """Beam looks every few milliseconds at what a bundle does. Its default is a fifth of a second.

    Each bundle ends with the next look, so in a run of a few seconds the default would cost a tenth.
    """
    from apache_beam.runners.worker.statesampler import StateSampler

    original = StateSampler.__init__
    if isinstance(StateSampler.__dict__["__init__"], functools.partialmethod):  # a run in another thread undoes it
        yield
        return
    StateSampler.__init__ = functools.partialmethod(original, sampling_period_ms=SAMPLING_MS)
    try:
        yield
    finally:
        StateSampler.__init__ = original


class _NotInstalled(importlib.abc.MetaPathFinder):
    """Reports that a few libraries are not installed."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname in UNUSED_LIBRARIES:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)


@contextlib.contextmanager
def without_unused_libraries() -> Iterator[None]:
    """Imports find no pandas, no pymongo and no BigQuery connector, as where these are not installed.

    No job of ours uses them. pyarrow looks for pandas once, when it makes its first array.
    """
    finder = _NotInstalled()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def register_environment(urn: str, environment: Any, handler: Any) -> None:
    """Tells the local runner of a kind of worker environment.

    Args:
        urn: its name.
        environment: its class, a subclass of Beam's `Environment`.
        handler: the class that starts and stops its workers, a subclass of Beam's `WorkerHandler`.
    """
    from apache_beam.runners.portability.fn_api_runner import worker_handlers
    from apache_beam.transforms import environments

    environments.Environment.register_urn(urn, None, lambda payload, *given: environment(*given[:-1]))
    worker_handlers.WorkerHandler.register_environment(urn, bytes)(handler)
