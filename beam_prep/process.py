"""Signals that end this process, and silence for Beam."""

import contextlib
import logging
import os
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


def lives(process: int) -> bool:
    """True if there is a process of this number on this machine."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # a process of another user
    return True


def received_signal() -> int | None:
    """The signal that this process received. Beam turns `Stopped`, raised within a step, into an error of its own."""
    return _received[0] if _received else None


@contextlib.contextmanager
def quiet_beam() -> Iterator[None]:
    """Silences Beam, unless everything is logged.

    Its import warns of extras that are not installed ("apitools not found ..."): no job needs them. A run logs the
    traceback of a failed bundle several times; the error is raised anyway.
    """
    if logging.getLogger("beam_prep").isEnabledFor(logging.DEBUG):
        yield
        return
    beam, root = logging.getLogger("apache_beam"), logging.getLogger()
    before = beam.level
    beam.setLevel(logging.CRITICAL)
    root.addFilter(_not_of_beam)  # messages of job servers come from other loggers
    try:
        yield
    finally:
        beam.setLevel(before)
        root.removeFilter(_not_of_beam)


def _not_of_beam(record: logging.LogRecord) -> bool:
    return "apache_beam" not in record.pathname
