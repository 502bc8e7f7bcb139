"""A process that answers questions of the launcher and of its workers: see `beam_prep.core.encoding.asking`.

It is forked from the command line, as the workers are, and has a pipe to each process that may ask. A question is a
function and what it is given, an answer is what it returns; both are pickled, after their length. The process ends with
the launcher, and also when a function raises an error: those who ask then call it themselves.
"""

import contextlib
import gc
import os
import pickle
import select
import signal
import socket
from collections.abc import Callable, Collection, Iterator
from typing import Any, TypeVar, cast

from beam_prep.core.encoding.asking import answered_by
from beam_prep.core.encoding.token_bytes import token_bytes
from beam_prep.core.encoding.tokenizer import Tokenizer
from beam_prep.errors import TokenizerError
from beam_prep.processes import end_with_parent, give_back_memory, single_threaded_tokenizers

Answer = TypeVar("Answer")

_LENGTH = 8  # bytes
_END = object()
_SERVED = 8
"""Processes that one process answers. To encode a sample takes it a few hundredths of the time of a block."""


_resolved: dict[str, Tokenizer] = {}


def begin(path: str, askers: int) -> "AnsweringProcess":
    """Has another process load a tokenizer that was resolved before, and answer for this one from now on.

    Args:
        path: of the tokenizer.
        askers: see `AnsweringProcess`.
    """
    with contextlib.suppress(TokenizerError, OSError):  # whoever needs it will say what is wrong
        if (tokenizer := Tokenizer.resolved(path)) is not None:
            _resolved[path] = tokenizer
    process = AnsweringProcess(askers, _load(_resolved.get(path)))
    answered_by(process)
    return process


def resolved(path: str) -> Tokenizer | None:
    """`Tokenizer.resolved`, as it was found by `begin`."""
    return _resolved.get(path) or Tokenizer.resolved(path)


def _load(tokenizer: Tokenizer | None) -> Iterator[None]:
    if tokenizer is not None:
        _ = tokenizer.makeup
        yield
        token_bytes(tokenizer)


class AnsweringProcess:
    """An `Answerer`, forked from this process: see `beam_prep.processes.may_fork`. Its forks may ask it, too.

    Args:
        askers: how many processes may ask. This one is number 0.
        first: what the process does before it is asked, in steps: it answers between them.
    """

    def __init__(self, askers: int, first: Iterator[object]) -> None:
        pairs = [tuple(end.detach() for end in socket.socketpair()) for _ in range(askers)]
        self._pipes = {number: mine for number, (mine, _) in enumerate(pairs)}
        self._asker = 0
        launcher = os.getpid()
        if os.fork() == 0:
            try:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                end_with_parent(launcher)
                for mine, _ in pairs:
                    os.close(mine)
                with single_threaded_tokenizers():
                    _answer([theirs for _, theirs in pairs], first)
            finally:  # who asks calls the function itself, and says what is wrong
                os._exit(0)
        for _, theirs in pairs:
            os.close(theirs)

    def become(self, asker: int, heirs: Collection[int] = ()) -> None:
        """From now on this process asks as another number. It closes the pipes of all others but those of its heirs."""
        self._asker = asker
        for other in self._pipes.keys() - {asker, *heirs}:
            os.close(self._pipes.pop(other))

    def pipes(self) -> list[int]:
        """The pipes that this process has open."""
        return [*self._pipes.values()]

    def ask(self, call: Callable[..., Answer], *given: Any) -> Answer:
        """See `Answerer`."""
        pipe = self._pipes.get(self._asker)
        if pipe is None:
            raise EOFError("no pipe is left")
        _send(pipe, (call, given))
        return cast(Answer, _receive(pipe))

    def end(self) -> None:
        """See `Answerer`."""
        with contextlib.suppress(EOFError, OSError):
            self.ask(os._exit, 0)


def _answer(pipes: list[int], first: Iterator[object]) -> None:
    """Answers until no pipe is left."""
    waiting = select.poll()
    for pipe in pipes:
        waiting.register(pipe, select.POLLIN)
    prepared = False
    while pipes:
        asking = waiting.poll(None if prepared else 0)
        if not asking and next(first, _END) is _END:
            prepared, pipes = True, _share(pipes, waiting)
        for pipe, _ in asking:
            try:
                call, given = _receive(pipe)
            except (EOFError, ConnectionError):  # who asked has ended
                waiting.unregister(pipe)
                os.close(pipe)
                pipes.remove(pipe)
                continue
            answer = call(*given)
            with contextlib.suppress(ConnectionError):
                _send(pipe, answer)


def _share(pipes: list[int], waiting: select.poll) -> list[int]:
    """Forks processes that answer some of the pipes, and share this one's memory. Returns those that are left."""
    give_back_memory()
    gc.freeze()
    gc.enable()
    parent = os.getpid()
    mine, *others = (pipes[first : first + _SERVED] for first in range(0, len(pipes), _SERVED))
    for some in others:
        if os.fork() == 0:
            end_with_parent(parent)
            mine = some
            break
    for pipe in set(pipes) - set(mine):
        waiting.unregister(pipe)
        os.close(pipe)
    return mine


def _send(pipe: int, what: object) -> None:
    data = pickle.dumps(what, protocol=5)
    rest = memoryview(len(data).to_bytes(_LENGTH, "little") + data)
    while rest:
        rest = rest[os.write(pipe, rest) :]


def _receive(pipe: int) -> Any:
    size = int.from_bytes(_read(pipe, _LENGTH), "little")
    return pickle.loads(_read(pipe, size))


def _read(pipe: int, size: int) -> bytearray:
    found = bytearray()
    while len(found) < size:
        part = os.read(pipe, size - len(found))
        if not part:
            raise EOFError("the other end was closed")
        found += part
    return found
