"""What concerns this process: signals that ask it to end, and what Beam logs while it is imported."""

import contextlib
import logging
import signal
from collections.abc import Iterator

_received: list[int] = []


class Stopped(BaseException):
    """A signal asks this process to end. Not an `Exception`: nothing that handles errors of data may catch it."""


def stop_on_signals() -> None:
    """Makes SIGINT and SIGTERM raise `Stopped`."""

    def stop(number: int, frame: object) -> None:
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_IGN)
        _received.append(number)
        raise Stopped(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)


def received_signal() -> int | None:
    """The signal that asked this process to end. Beam makes an error of its own of what is raised within a step."""
    return _received[0] if _received else None


@contextlib.contextmanager
def quiet_import() -> Iterator[None]:
    """Beam warns of every extra that is not installed ("apitools not found ..."), and no job of ours needs one."""
    root = logging.getLogger()
    root.addFilter(not_of_beam)
    try:
        yield
    finally:
        root.removeFilter(not_of_beam)


def not_of_beam(record: logging.LogRecord) -> bool:
    """A filter of the root logger: drops the records of Beam."""
    return "apache_beam" not in record.pathname
