"""Signals that end this process, and a filter for Beam's logging during its import."""

import contextlib
import logging
import signal
from collections.abc import Iterator

_received: list[int] = []


class Stopped(BaseException):
    """A signal ends this process. Not an `Exception`, so that no handler of data errors catches it."""


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
    """The signal that this process received. Beam turns `Stopped`, raised within a step, into an error of its own."""
    return _received[0] if _received else None


@contextlib.contextmanager
def quiet_import() -> Iterator[None]:
    """Hides Beam's warnings about extras that are not installed ("apitools not found ..."): no job needs them."""
    root = logging.getLogger()
    root.addFilter(not_of_beam)
    try:
        yield
    finally:
        root.removeFilter(not_of_beam)


def not_of_beam(record: logging.LogRecord) -> bool:
    """A filter of the root logger: drops the records of Beam."""
    return "apache_beam" not in record.pathname
