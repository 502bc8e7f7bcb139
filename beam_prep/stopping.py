"""SIGINT and SIGTERM, in the command line's own process."""

import signal

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
