"""Questions about a tokenizer, which another process may answer.

The reference takes a third of a second to load, in which Python's lock is held. The command line has a process do that
while others load what encodes (`beam_prep.answering`). It then answers the few questions that these have: the ids of a
sample of each block. Where there is no such process, the one that asks loads the reference, and gives the same answer.
"""

import threading
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

Answer = TypeVar("Answer")


class Answerer(Protocol):
    """Another process."""

    def ask(self, call: Callable[..., Answer], *given: Any) -> Answer:
        """What a function of a module returns there.

        Raises:
            EOFError, OSError: the process is no more.
        """
        ...

    def end(self) -> None:
        """Ends it, for all that ask."""
        ...


_answerer: Answerer | None = None
_unasked: Answerer | None = None
_lock = threading.Lock()


def answered_by(answerer: Answerer) -> None:
    """Says who answers from now on."""
    global _answerer
    _answerer = answerer


def answer_here() -> None:
    """This process asks no more: it has loaded the reference itself."""
    global _answerer, _unasked
    _unasked, _answerer = _answerer or _unasked, None


def end_unasked() -> None:
    """Ends the process that this one asks no more. Call it where nobody else will ask: before workers are forked."""
    if _unasked is not None:
        _unasked.end()


def is_another() -> bool:
    """True if another process answers."""
    return _answerer is not None


def answer(call: Callable[..., Answer], *given: Any) -> Answer:
    """What a function of a module returns, called by the process that answers, or here.

    What it raises there is raised here, since it is called again.
    """
    with _lock:
        if _answerer is not None:
            try:
                return _answerer.ask(call, *given)
            except (EOFError, OSError):
                answer_here()
            except BaseException:  # a signal: its answer would be taken for that of the next question
                answer_here()
                raise
    return call(*given)
