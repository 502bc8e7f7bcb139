"""Every change that we make to other libraries in a running process. No other file makes one.

* `frequent_sampling`, in our worker processes, and in `Pipeline.run` while it works in this process;
* `arguments_found_once`, in our worker processes, and in `Pipeline.run`;
* `views_made_once`, `plain_labels` and `ipython_if_imported`, in `Pipeline.run`;
* `without_unused_libraries`, in the command line's own process, while it imports Beam;
* `numpy_for_awkward`, there, too: takes the place of awkward, of which gigatoken calls a few functions;
* `quiet_import`, while a public name is imported;
* `register_environment`, in the command line's own process: adds an entry of ours to registries of Beam;
* `fail_requests`, there, too: ends requests to a worker process that is no more;
* `quiet_threads`, there, too: errors of Beam's own threads are not printed.

Those of a `with` are undone at its end. Importing beam_prep, or running a chain in a pipeline of your
own, changes nothing. Each function says why it is needed, and until when: written for Beam 2.77, to be looked at with
every new version.
"""

import contextlib
import functools
import importlib
import importlib.abc
import inspect
import logging
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

SAMPLING_MS = 10
UNUSED_LIBRARIES = ("pandas", "pymongo", "bson", "pyarrow.parquet", "apache_beam.io.gcp.bigquery")
STORE_CLIENTS = (
    "apache_beam.io.gcp.gcsfilesystem",
    "apache_beam.io.aws.s3filesystem",
    "apache_beam.io.azure.blobstoragefilesystem",
    "apitools",
    "google.cloud.dataflow",
)
"""What Beam imports of the clouds, where they are installed: two fifths of the time that it takes."""


@contextlib.contextmanager
def frequent_sampling() -> Iterator[None]:
    """Beam samples the state of a bundle every few milliseconds. Its default is a fifth of a second.

    Why: each bundle ends with the next sample, so in a run of a few seconds the default costs a tenth.
    Until: Beam has an option for the sampling period.
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


@contextlib.contextmanager
def views_made_once() -> Iterator[None]:
    """Each view of a pipeline's options is made once, where this thread asks for it.

    Why: Beam asks for one some 400 times while it makes a pipeline and launches it, and each time makes a parser, and
    reads the command line. A view has nothing of its own: all views of an object share the dict of its values.
    Until: Beam keeps them.
    """
    from apache_beam.options.pipeline_options import PipelineOptions

    original = PipelineOptions.view_as
    if getattr(original, "__module__", None) == __name__:  # a run in another thread undoes it
        yield
        return
    made: dict[tuple[int, type], tuple[object, Any]] = {}
    mine = threading.get_ident()

    def view_as(self: Any, cls: type) -> Any:
        if threading.get_ident() != mine:  # options of somebody else
            return original(self, cls)
        values = self._all_options
        key = id(values), cls
        if key not in made:
            made[key] = values, original(self, cls)  # the values, so that no others get their id
        return made[key][1]

    PipelineOptions.view_as = view_as
    try:
        yield
    finally:
        PipelineOptions.view_as = original


@contextlib.contextmanager
def arguments_found_once() -> Iterator[None]:
    """The arguments of each method of a step are found once.

    Why: for every step Beam looks six times at the signatures of thirty methods, nearly all of them those of `DoFn`.
    Until: Beam keeps them.
    """
    from apache_beam.transforms import core

    original = core.get_function_args_defaults
    if original.__module__ == __name__:  # a run in another thread undoes it
        yield
        return
    found: dict[tuple[int, bool], tuple[object, list[str], list[Any]]] = {}

    def get_function_args_defaults(f: Any) -> tuple[list[str], list[Any]]:
        bound = inspect.ismethod(f)  # then without the first one
        function = f.__func__ if bound else f
        key = id(function), bound
        if key not in found:
            found[key] = function, *original(f)  # the function, so that no other gets its id
        _, names, defaults = found[key]
        return [*names], [*defaults]

    core.get_function_args_defaults = get_function_args_defaults
    try:
        yield
    finally:
        core.get_function_args_defaults = original


@contextlib.contextmanager
def plain_labels() -> Iterator[None]:
    """In IPython, Beam puts the number of the cell in front of a step's label; here it does not.

    Why: for that it imports pandas. Where pandas is absent, or is version 3, no pipeline can be built in a notebook.
    Until: Beam imports its data frames when they are used.
    """
    from apache_beam import pipeline

    original = pipeline.alter_label_if_ipython
    if original is _same_label:  # a run in another thread undoes it
        yield
        return
    pipeline.alter_label_if_ipython = _same_label
    try:
        yield
    finally:
        pipeline.alter_label_if_ipython = original


@contextlib.contextmanager
def ipython_if_imported() -> Iterator[None]:
    """Beam asks IPython whether a pipeline runs in it only where IPython has been imported.

    Why: it imports IPython for the question, after the last step of a run: 0.04 s.
    Until: Beam looks whether it was imported.
    """
    from apache_beam import pipeline

    original = pipeline.is_in_ipython
    if isinstance(original, functools.partial):  # a run in another thread undoes it
        yield
        return
    pipeline.is_in_ipython = functools.partial(_asked_if_imported, original)
    try:
        yield
    finally:
        pipeline.is_in_ipython = original


def _asked_if_imported(original: Callable[[], bool]) -> bool:
    return "IPython" in sys.modules and original()


def _same_label(transform: Any, pvalueish: Any) -> None:
    """Takes the place of Beam's function."""


class _NotInstalled(importlib.abc.MetaPathFinder):
    """Reports that a few libraries are not installed."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname in self._names:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)


class _BeartypeError(Exception):
    """Takes the place of beartype's own, which Beam catches."""


def _is_subhint(sub: Any, base: Any) -> bool:
    """beartype's answer; that of Python, which is the same, where both are classes."""
    if type(sub) is type(base) is type:
        return issubclass(sub, base)
    door, roar = _imported("beartype.door"), _imported("beartype.roar")
    try:
        return bool(door.is_subhint(sub, base))
    except roar.BeartypeDoorException as error:
        raise _BeartypeError(str(error)) from None


def _called_late(module: str, name: str) -> Callable[..., Any]:
    def call(*given: Any, **options: Any) -> Any:
        return getattr(_imported(module), name)(*given, **options)

    return call


_LATE: dict[str, dict[str, Any]] = {
    "beartype": {},
    "beartype.door": {"is_subhint": _is_subhint},
    "beartype.roar": {"BeartypeDoorException": _BeartypeError},
    "cryptography.fernet": {"Fernet": _called_late("cryptography.fernet", "Fernet")},
    "yaml": {},
    "apache_beam.internal.http_client": {
        "get_new_http": _called_late("apache_beam.internal.http_client", "get_new_http")
    },
}
"""What Beam takes of modules that are imported when it calls this, or asks for anything else of them."""
_stand_ins: dict[str, ModuleType] = {}


def _imported(module: str) -> ModuleType:
    """The module itself, also while Beam is being imported. Then no other one has a stand-in any more."""
    _remove_stand_ins()
    return importlib.import_module(module)


def _remove_stand_ins() -> None:
    for name, made in _stand_ins.items():
        if sys.modules.get(name) is made:
            del sys.modules[name]
    _stand_ins.clear()


@contextlib.contextmanager
def _late_imports() -> Iterator[None]:
    if not sys.modules.keys().isdisjoint(_LATE):
        yield
        return
    for name, content in _LATE.items():
        made = sys.modules[name] = _stand_ins[name] = ModuleType(name)
        vars(made).update(__getattr__=functools.partial(_attribute, name), **content)
    try:
        yield
    finally:
        _remove_stand_ins()


def _attribute(module: str, name: str) -> Any:
    if name.startswith("__"):  # the import itself asks, for `__path__` and others
        raise AttributeError(name)
    return getattr(_imported(module), name)


@contextlib.contextmanager
def without_unused_libraries(stores: bool = True) -> Iterator[None]:
    """Imports find a few libraries not, as where they are not installed: pandas, pymongo ...

    Why: no job of ours uses them by way of Beam, and they add half to the time of the import. pyarrow looks for pandas
    once, when it makes its first array.
    Until: Beam imports them when they are used.

    Args:
        stores: the job may use a store, or another runner than the local one. Otherwise what Beam has for these is not
            found, either. Our own clients import what they need at their first use, so that a store which only a config
            or a list names is reached all the same. And beartype, httplib2, cryptography and yaml are then imported
            only when Beam calls them.
    """
    finder = _NotInstalled(UNUSED_LIBRARIES if stores else (*UNUSED_LIBRARIES, *STORE_CLIENTS))
    sys.meta_path.insert(0, finder)
    try:
        with contextlib.nullcontext() if stores else _late_imports():
            yield
    finally:
        sys.meta_path.remove(finder)


def numpy_for_awkward() -> None:
    """gigatoken finds a module `awkward` of ours, with what it calls of that library, and arrays of numpy.

    Why: it gives ids as arrays of awkward, and the import of that takes 0.1 s and 15 MB.
    Until: gigatoken gives arrays of numpy or Arrow. Written for 0.10.0, the only version that is used
    (`with_gigatoken.VERSION`).
    """
    if "awkward" in sys.modules:
        return
    import numpy as np

    class Array:
        def __init__(self, values: Any, counts: Any) -> None:
            offsets = np.zeros(len(counts) + 1, np.int64)
            np.cumsum(counts, out=offsets[1:])
            self.layout = SimpleNamespace(offsets=SimpleNamespace(data=offsets), content=SimpleNamespace(data=values))

    made = ModuleType("awkward", numpy_for_awkward.__doc__)
    vars(made).update(Array=Array, unflatten=Array)
    sys.modules["awkward"] = made


@contextlib.contextmanager
def quiet_import() -> Iterator[None]:
    """The warnings that Beam logs while it is imported are dropped.

    Why: it warns of every cloud extra that is not installed ("apitools not found ..."), and no job of ours needs one.
    Until: Beam warns when an extra is used.
    """
    root = logging.getLogger()
    root.addFilter(not_of_beam)
    try:
        yield
    finally:
        root.removeFilter(not_of_beam)


def not_of_beam(record: logging.LogRecord) -> bool:
    """A filter of the root logger: drops the records of Beam."""
    return "apache_beam" not in record.pathname


def register_environment(urn: str, environment: Any, handler: Any) -> None:
    """Adds a kind of worker environment to the local runner.

    Why: so that the runner uses worker processes that we have forked.
    Until: Beam can start workers by a Python function.

    Args:
        urn: its name.
        environment: its class, a subclass of Beam's `Environment`.
        handler: the class that starts and stops its workers, a subclass of Beam's `WorkerHandler`.
    """
    from apache_beam.runners.portability.fn_api_runner import worker_handlers
    from apache_beam.transforms import environments

    environments.Environment.register_urn(urn, None, lambda payload, *given: environment(*given[:-1]))
    worker_handlers.WorkerHandler.register_environment(urn, bytes)(handler)


def fail_requests(connection: Any, message: str) -> None:
    """Gives all requests to a worker that are without an answer this error as their answer.

    Why: a worker that is killed before it has connected leaves the local runner waiting for ever.
    Until: Beam notices that. (It notices the end of a worker that has connected.)

    Args:
        connection: the local runner's `ControlConnection` with the worker.
        message: the error.
    """
    from apache_beam.portability.api import beam_fn_api_pb2

    for number, future in list(connection._futures_by_id.items()):
        if not future.is_done():
            future.set(beam_fn_api_pb2.InstructionResponse(instruction_id=number, error=message))


def quiet_threads() -> None:
    """Does not print the errors of threads that Beam has started.

    Why: where a worker is killed, a thread that reads from it may end with an error and print its traceback, sometimes.
    The run ends with an error of its own anyway.
    Until: Beam's threads end quietly.
    """
    before = threading.excepthook

    def hook(found: threading.ExceptHookArgs) -> None:
        trace, files = found.exc_traceback, []
        while trace is not None:
            files.append(trace.tb_frame.f_code.co_filename)
            trace = trace.tb_next
        if not any("apache_beam" in file for file in files):
            before(found)

    threading.excepthook = hook
