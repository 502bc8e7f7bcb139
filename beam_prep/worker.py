"""Worker processes of the local runner. They are Beam's own, but silent: the launcher reports errors.

The command line forks them from itself where it can: then they need not import Beam again (half a second), and share
the memory that they do not change. The first worker loads the tokenizer, while the launcher reads the config and makes
the pipeline, and then forks the others. In other processes workers are started with `python -m beam_prep.worker`.
"""

import contextlib
import gc
import json
import logging
import os
import pickle
import select
import shlex
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from beam_prep import errors, memory, patches, processes
from beam_prep.errors import BeamPrepError

SMALL_INPUT = 32 << 20
"""Bytes of input below which worker processes take longer to start than they save."""

_SETTINGS = {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}
"""Otherwise the Rust tokenizers start a thread for each core in every worker."""

_LAUNCHER = "BEAM_PREP_LAUNCHER"
"""Environment variable: the process that started a worker."""
_DIED = "Worker subprocess exited in the middle of its work"
_MILLISECONDS = 100
_URN = "beam_prep:env:forked:v1"
_waiting: "_ForkedWorkers | None" = None
_begun: "_ForkedWorkers | None" = None

log = logging.getLogger("beam_prep")

WorkerSetup = Callable[[], str | None]
"""Loads what all workers of a run need. Returns a message for the user, or None. It can be pickled."""


def begin(load: Callable[[], object]) -> None:
    """Forks the first worker process of a job that the launcher still reads. Only where this process may fork.

    `environment` takes it, if it is to make as many workers as there are cores.

    Args:
        load: what it does first. It raises no errors.
    """
    global _begun
    from apache_beam.runners.worker import sdk_worker_main

    _begun = _ForkedWorkers(processes.cores(), sdk_worker_main.main, load)


def end_begun() -> None:
    """Ends what `begin` began, unless `environment` took it."""
    global _begun
    if _begun is not None:
        _begun.kill()
        _begun.wait()
        _begun = None


def environment(workers: int, prepare: WorkerSetup | None = None) -> Any:
    """An environment of worker processes for `FnApiRunner`. Call it before anything in this process starts threads.

    Args:
        workers: the number of processes.
        prepare: called in the first of them, if they are forked (`are_forked`); the others are forked from that one.
            Its message is logged here, and the `BeamPrepError` that it raises is raised when the run begins.
    """
    from apache_beam.transforms import environments

    if processes.may_fork():
        return _forked(workers, prepare)
    settings = " ".join(f"{name}=${{{name}:-{value}}}" for name, value in _SETTINGS.items())
    command = f"export {settings} {_LAUNCHER}={os.getpid()}; exec {shlex.quote(sys.executable)} -m beam_prep.worker"
    return environments.SubprocessSDKEnvironment.from_command_string(command)


def are_forked() -> bool:
    """True if forked workers wait for a run."""
    return _waiting is not None


def kill() -> None:
    """Kills the forked workers, if there are any."""
    for each in (_waiting, _begun):
        if each is not None:
            each.kill()


def _forked(workers: int, prepare: WorkerSetup | None) -> Any:
    global _waiting, _begun
    # Imported before the fork, so that the workers have it.
    from apache_beam.runners.portability.fn_api_runner import worker_handlers
    from apache_beam.runners.worker import sdk_worker_main
    from apache_beam.transforms import environments

    class Environment(environments.Environment):  # type: ignore[misc]
        def to_runner_api_parameter(self, context: Any) -> tuple[str, bytes]:
            return _URN, b""

    class Handler(worker_handlers.GrpcWorkerHandler):  # type: ignore[misc]
        def __init__(self, payload: bytes, *given: Any) -> None:
            super().__init__(*given)

        def start_worker(self) -> None:
            from google.protobuf import json_format, text_format

            settings = {
                "WORKER_ID": self.worker_id,
                "CONTROL_API_SERVICE_DESCRIPTOR": text_format.MessageToString(self.control_api_service_descriptor()),
                "PIPELINE_OPTIONS": json_format.MessageToJson(self.provision_info.provision_info.pipeline_options),
            }
            if logging.getLogger("beam_prep").isEnabledFor(logging.DEBUG):
                log = self.logging_api_service_descriptor()
                settings["LOGGING_API_SERVICE_DESCRIPTOR"] = text_format.MessageToString(log)
            forked.start(settings, lambda: patches.fail_requests(self.control_conn, _DIED))

        def stop_worker(self) -> None:
            forked.stop()

    if _waiting is not None:  # workers of a run that failed before it began
        _waiting.wait()
    patches.register_environment(_URN, Environment, Handler)
    if _begun is not None and _begun.count != workers:
        end_begun()
    forked = _waiting = _begun or _ForkedWorkers(workers, sdk_worker_main.main)
    _begun = None
    forked.prepare(prepare)
    return Environment(capabilities=environments.python_sdk_capabilities(), artifacts=())


class _ForkedWorkers:
    """Processes that wait for their work. All but the first are children of the first.

    Args:
        workers: how many.
        main: Beam's worker.
        load: what the first one does before it asks for its setup, see `prepare`.
    """

    def __init__(self, workers: int, main: Any, load: Callable[[], object] = lambda: None) -> None:
        self.count = workers
        pipes = [os.pipe() for _ in range(workers)]
        self._settings = [writing for _, writing in pipes]
        self._at_work = 0
        self._report: int | None
        self._report, reporting = os.pipe()
        self._setup: int | None
        setup, self._setup = os.pipe()
        # Each worker holds one of these open, so that its end tells of the worker's.
        living = [os.pipe() for _ in range(workers)]
        self._living = [reading for reading, _ in living]
        alive = [writing for _, writing in living]
        self._on_death: dict[int, Callable[[], None]] = {}
        self._watch: threading.Thread | None = None
        self._ended = os.eventfd(0)
        launcher = os.getpid()
        gc.freeze()  # a collection would write to all shared memory, and so copy it
        self._pid: int | None = os.fork()
        if self._pid == 0:
            try:
                processes.end_with_parent(launcher)
                _run_first_worker([reading for reading, _ in pipes], setup, reporting, alive, main, load)
            except Exception:  # otherwise it would end without a message
                traceback.print_exc()
            finally:
                os._exit(0)
        for reading, _ in pipes:
            os.close(reading)
        for other in (setup, reporting, *alive):
            os.close(other)

    def prepare(self, prepare: WorkerSetup | None) -> None:
        """Gives the first worker its setup, after which it forks the others. Call it once."""
        assert self._setup is not None
        with contextlib.suppress(BrokenPipeError), open(self._setup, "wb") as pipe:  # `start` says that it is gone
            pipe.write(pickle.dumps(prepare))
        self._setup = None

    def start(self, settings: Mapping[str, str], on_death: Callable[[], None]) -> None:
        """Starts the next worker.

        Args:
            settings: its environment.
            on_death: called every now and then when the worker is no more.

        Raises:
            BeamPrepError: the error of the first worker's preparation.
        """
        self._at_work += 1
        self._check_first_worker()
        self._on_death[self._living[len(self._settings) - 1]] = on_death
        if self._watch is None:
            self._watch = threading.Thread(target=self._watch_workers, daemon=True, name="beam_prep-workers")
            self._watch.start()
        # A worker that has died meanwhile is told of by `on_death`, as one that dies later.
        with contextlib.suppress(BrokenPipeError), open(self._settings.pop(), "wb") as pipe:
            pipe.write(json.dumps(settings).encode())

    def _check_first_worker(self) -> None:
        if self._report is None:
            return
        with open(self._report, "rb") as pipe:
            text = pipe.read()
        self._report = None
        if not text:
            raise RuntimeError("Worker subprocess exited while it loaded the tokenizer")
        report = json.loads(text)
        if report["raised"] is not None:
            raise getattr(errors, report["raised"])(report["words"])
        if report["words"] is not None:
            log.info("%s", report["words"])

    def _watch_workers(self) -> None:
        waiting = select.poll()
        for each in (self._ended, *self._living):
            waiting.register(each, select.POLLIN)
        dead: set[int] = set()
        while True:
            found = {number for number, _ in waiting.poll(_MILLISECONDS if dead else None)}
            if self._ended in found:
                return
            for number in found:
                waiting.unregister(number)
            dead |= found
            # Again and again: the runner may make its next request only now.
            for number in dead & self._on_death.keys():
                self._on_death[number]()

    def stop(self) -> None:
        """Counts a worker that has no more to do. After the last one, waits for the end of all."""
        self._at_work -= 1
        if self._at_work == 0:
            self.wait()

    def wait(self) -> None:
        """Waits for the end of all workers. Those that were not started end at once."""
        global _waiting
        _waiting = None
        while self._settings:
            os.close(self._settings.pop())
        if self._pid is not None:
            os.waitpid(self._pid, 0)
            if self._watch is not None:
                os.eventfd_write(self._ended, 1)
                self._watch.join()
            for each in (self._ended, *self._living):
                os.close(each)
            if self._setup is not None:
                os.close(self._setup)
            self._pid = None

    def kill(self) -> None:
        """Kills all workers at once, and waits until none is left."""
        if self._pid is not None:
            os.kill(self._pid, signal.SIGKILL)  # the others end with it
            for each in self._living:
                os.read(each, 1)


def _run_first_worker(
    readings: Sequence[int],
    setup: int,
    reporting: int,
    alive: Sequence[int],
    main: Any,
    load: Callable[[], object],
) -> None:
    """Loads, gets its setup, forks the other workers, reports to the launcher, and works as one of them."""
    gc.disable()
    _close_all_but([*readings, setup, reporting, *alive])
    report: dict[str, str | None] = {"raised": None, "words": None}
    with processes.single_threaded_tokenizers():
        load()
        with open(setup, "rb") as pipe:
            given = pipe.read()
        if not given:  # the launcher has ended with an error
            return
        prepare: WorkerSetup | None = pickle.loads(given)
        if prepare is not None:
            try:
                report["words"] = prepare()
            except BeamPrepError as error:
                report = {"raised": type(error).__name__, "words": str(error)}
    memory.give_back_memory()
    mine, *others = readings
    first = os.getpid()
    gc.freeze()
    children = []
    for number, reading in enumerate(others, 1):
        child = os.fork()
        if child == 0:
            processes.end_with_parent(first)
            _close_all_but([reading, alive[number]])
            _work_when_told(reading, main)
            os._exit(0)
        children.append(child)
    _close_all_but([mine, reporting, alive[0]])
    with contextlib.suppress(BrokenPipeError):  # the launcher has ended with an error
        os.write(reporting, json.dumps(report).encode())
    os.close(reporting)
    _work_when_told(mine, main)
    for child in children:
        os.waitpid(child, 0)


def _close_all_but(kept: Sequence[int]) -> None:
    """Closes the pipes of other workers and the lock of the launcher, which this process would keep open."""
    for name in os.listdir("/proc/self/fd"):
        if (number := int(name)) > 2 and number not in kept:
            with contextlib.suppress(OSError):  # the descriptor of the listing itself
                os.close(number)


def _work_when_told(reading: int, main: Any) -> None:
    with open(reading, "rb") as pipe:
        settings = json.loads(pipe.read() or b"{}")
    if settings:
        os.environ.update(settings)
        _silence()
        _work(main)


def _silence() -> None:
    # Without a handler, Beam adds one that shows everything.
    logging.getLogger().handlers[:] = [logging.NullHandler()]
    # Beam prints tracebacks to it, too. Crashes below Python still write to the real stderr.
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115


def _work(main: Any) -> None:
    """Runs Beam's worker until the launcher ends it."""
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    # Rarely: the rows of a block are not garbage, and a collection takes as long as it takes to parse them. With
    # 200,000, garbage takes 20 MB of every worker.
    gc.freeze()
    gc.enable()
    gc.set_threshold(50_000, 10, 10)
    with patches.frequent_sampling(), patches.arguments_found_once():
        main(None)


if __name__ == "__main__":
    processes.end_with_parent(int(os.environ[_LAUNCHER]))
    _silence()
    processes.choose_malloc()
    from apache_beam.runners.worker import sdk_worker_main

    _work(sdk_worker_main.main)
    os._exit(0)  # a normal exit, which clears all modules, takes a third of a second
