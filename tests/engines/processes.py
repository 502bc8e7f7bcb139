"""Servers of the tests: started with a log, awaited, and stopped with all that they started."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import psutil


class Server:
    """A process in a session of its own, with a log.

    Args:
        command: what to run.
        log: the file for what it says.
        environment: of the process, on top of ours.
    """

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> None:
        # This checkout must not be found there by chance, nor from the current folder.
        settings = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
        settings.update(environment or {})
        self.log = log
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=settings,
                cwd=log.parent,
                start_new_session=True,
            )

    def family(self) -> list[psutil.Process]:
        """The processes of its session: what it started counts, in whatever process group that is."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(ProcessLookupError):
                if os.getsid(process.pid) == self.process.pid:
                    found.append(process)
        return found

    def kill(self) -> None:
        """-9 to the process itself."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """Asks all of them to end, and soon insists."""
        for number, wait in ((signal.SIGTERM, 10), (signal.SIGKILL, 10)):
            family = self.family()
            for process in family:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(number)
            if not psutil.wait_procs(family, timeout=wait)[1]:
                break
        self.process.wait()

    def tail(self, size: int = 3000) -> str:
        """The end of its log."""
        return self.log.read_bytes()[-size:].decode(errors="replace")


def end_on_sigterm() -> None:
    """From now on SIGTERM, with which a CI gives up, ends this process as an exception does: servers are stopped."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))


@contextlib.contextmanager
def serving(
    command: Sequence[str],
    log: Path,
    ready: Callable[[], object] | None = None,
    environment: Mapping[str, str] | None = None,
    timeout: float = 300,
) -> Iterator[Server]:
    """A server while the block lasts.

    Args:
        command: what to run.
        log: the file for what it says.
        ready: asked until it gives something true; by default the server counts as up at once.
        environment: of the process, on top of ours.
        timeout: seconds until it has to be up.

    Raises:
        RuntimeError: it ended, or was not up in time; with the end of its log.
    """
    server = Server(command, log, environment)
    try:
        if ready is not None:
            await_(ready, f"{Path(command[0]).name} to be up", timeout, server)
        yield server
    finally:
        server.stop()


def await_(condition: Callable[[], object], what: str, timeout: float = 300, server: Server | None = None) -> None:
    """Asks until something is true.

    Raises:
        RuntimeError: it was not in time, or the server that it depends on ended.
    """
    deadline = time.monotonic() + timeout
    while not condition():
        if server is not None and server.process.poll() is not None:
            raise RuntimeError(f"waited for {what}, which ended with code {server.process.returncode}: {server.tail()}")
        if time.monotonic() > deadline:
            raise RuntimeError(f"waited {timeout} s for {what} in vain: {server.tail() if server else ''}")
        time.sleep(0.1)


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as one:
        one.bind(("localhost", 0))
        return int(one.getsockname()[1])


def listens(port: int) -> bool:
    """Whether somebody does."""
    with socket.socket() as one:
        return one.connect_ex(("localhost", port)) == 0
