"""Worker processes of the local runner: Beam's own, silent, since the launcher reports what went wrong.

The command line forks them from itself, where it can: they need not import Beam again (a second and a half), and share
the memory of what they do not change. Elsewhere they are started: `python -m beam_prep.worker`.
"""

import gc
import json
import logging
import os
import shlex
import sys
import threading
from collections.abc import Mapping
from typing import Any

_SETTINGS = {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}
"""The Rust tokenizers would start a thread a core in every worker."""

_URN = "beam_prep:env:forked:v1"
_waiting: list["_Forked"] = []
_program = False


def own_program() -> None:
    """Told by the command line: nothing but it runs in this process, so it may fork."""
    global _program
    _program = True


def environment(workers: int) -> Any:
    """Of this many worker processes, for `FnApiRunner`. To be called before anything in this process starts threads."""
    from apache_beam.transforms import environments

    # What resolves tokenizers is large, and no worker needs it.
    if _program and sys.platform == "linux" and threading.active_count() == 1 and "transformers" not in sys.modules:
        return _forked(workers)
    settings = " ".join(f"{name}=${{{name}:-{value}}}" for name, value in _SETTINGS.items())
    command = f"export {settings}; exec {shlex.quote(sys.executable)} -m beam_prep.worker"
    return environments.SubprocessSDKEnvironment.from_command_string(command)


def _forked(workers: int) -> Any:
    # Imported here, so that the forked ones have it.
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
            self.worker = _waiting.pop()
            self.worker.start(settings)

        def stop_worker(self) -> None:
            self.worker.wait()

    while _waiting:  # of a run that failed before it began
        unused = _waiting.pop()
        unused.start({})
        unused.wait()
    environments.Environment.register_urn(_URN, None, lambda payload, *given: Environment(*given[:-1]))
    worker_handlers.WorkerHandler.register_environment(_URN, bytes)(Handler)
    gc.freeze()  # a collection would write to, and so copy, all that is shared
    _waiting.extend(_Forked(sdk_worker_main.main) for _ in range(workers))
    return Environment(capabilities=environments.python_sdk_capabilities(), artifacts=())


class _Forked:
    """A process that waits for its work."""

    def __init__(self, main: Any) -> None:
        reading, self._writing = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                os.dup2(reading, 3)
                os.closerange(4, os.sysconf("SC_OPEN_MAX"))  # the pipes of the others, the lock of the launcher
                with open(3, "rb") as pipe:
                    given = pipe.read()
                if given and (settings := json.loads(given)):
                    os.environ.update(settings)
                    _be_silent()
                    _work(main)
            finally:
                os._exit(0)
        os.close(reading)

    def start(self, settings: Mapping[str, str]) -> None:
        """Tells it what to work for; nothing: it ends."""
        with open(self._writing, "wb") as pipe:
            pipe.write(json.dumps(settings).encode())

    def wait(self) -> None:
        """Waits for its end."""
        os.waitpid(self._pid, 0)


def _be_silent() -> None:
    # Beam adds a handler that shows everything, unless there is one.
    logging.getLogger().handlers[:] = [logging.NullHandler()]
    # Beam prints tracebacks there too. What dies below Python still writes to the real one.
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115


def _work(main: Any) -> None:
    """Works until the launcher says that all is done."""
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    # Rows by the hundred thousand are no garbage: to look for it among them takes as long as to parse them.
    gc.freeze()
    gc.set_threshold(200_000, 20, 100)
    main(None)


if __name__ == "__main__":
    _be_silent()
    from apache_beam.runners.worker import sdk_worker_main

    _work(sdk_worker_main.main)
    os._exit(0)  # to take apart all that was imported takes a third of a second
