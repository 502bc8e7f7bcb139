"""A process that answers questions of the launcher and of its workers: see `beam_prep.core.encoding.asking`.

It is forked from the command line, as the workers are, and has a pipe to each process that may ask. A question is a
function and what it is given, an answer is what it returns; both are pickled, after their length. Who asks for much
gets a process of its own, forked from this one, whose memory it shares. All end with the launcher, and when a function
raises an error: those who ask then call it themselves.
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
from beam_prep.memory import give_back_memory
from beam_prep.processes import end_with_parent, single_threaded_tokenizers

Answer = TypeVar("Answer")

_LENGTH = 8  # bytes
_ASKED = 8 << 20
"""Bytes that those whom a process answers may ask it for, each its share. With two workers, the samples of 3 GB."""
_END = object()

_resolved: dict[str, Tokenizer] = {}


def begin(path: str, askers: int) -> "AnsweringProcess | None":
    """Has another process load a tokenizer that was resolved before, and answer for this one from now on.

    Args:
        path: of the tokenizer.
        askers: see `AnsweringProcess`.

    Returns:
        the process; None where too many files are open, or processes run, for one more.
    """
    with contextlib.suppress(TokenizerError, OSError):  # whoever needs it will say what is wrong
        if (tokenizer := Tokenizer.resolved(path)) is not None:
            _resolved[path] = tokenizer
    try:
        process = AnsweringProcess(askers, _load(_resolved.get(path)))
    except OSError:
        return None
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

    Raises:
        OSError: no pipe can be opened, or no process forked.
    """

    def __init__(self, askers: int, first: Iterator[object]) -> None:
        with contextlib.ExitStack() as opened:
            pairs = [tuple(map(opened.enter_context, socket.socketpair())) for _ in range(askers)]
            self._launcher = os.getpid()
            self._pid = os.fork()
            if self._pid == 0:
                try:
                    signal.signal(signal.SIGTERM, signal.SIG_DFL)
                    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no fork of it is left when it has ended
                    end_with_parent(self._launcher)
                    for mine, _ in pairs:
                        mine.close()
                    with single_threaded_tokenizers():
                        _answer([theirs.fileno() for _, theirs in pairs], first)
                finally:  # who asks calls the function itself, and says what is wrong
                    os._exit(0)
            self._pipes = {number: mine.detach() for number, (mine, _) in enumerate(pairs)}
        self._asker = 0

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
        return cast(Answer, pickle.loads(_receive(pipe)))

    def end(self) -> None:
        """See `Answerer`."""
        with contextlib.suppress(ProcessLookupError, ChildProcessError):  # it has ended
            os.kill(self._pid, signal.SIGKILL)
            if os.getpid() == self._launcher:
                os.waitpid(self._pid, 0)


def _answer(pipes: list[int], first: Iterator[object]) -> None:
    """Answers until no pipe is left."""
    waiting = select.poll()
    for pipe in pipes:
        waiting.register(pipe, select.POLLIN)
    asked = dict.fromkeys(pipes, 0)

    def close(*ended: int) -> None:
        for pipe in ended:
            waiting.unregister(pipe)
            os.close(pipe)
            del asked[pipe]

    prepared = False
    while asked:
        asking = waiting.poll(None if prepared else 0)
        if not asking and next(first, _END) is _END:
            prepared = True
            give_back_memory()
            gc.freeze()
            gc.enable()
        for pipe, _ in asking:
            if pipe not in asked:  # of another process now
                continue
            try:
                question = _receive(pipe)
            except (EOFError, ConnectionError):  # who asked has ended
                close(pipe)
                continue
            asked[pipe] += len(question)
            if len(asked) > 1 and asked[pipe] * len(asked) > _ASKED:
                parent = os.getpid()
                if os.fork() != 0:
                    close(pipe)
                    continue
                end_with_parent(parent)
                close(*(asked.keys() - {pipe}))
            call, given = pickle.loads(question)
            with contextlib.suppress(ConnectionError):
                _send(pipe, call(*given))


def _send(pipe: int, what: object) -> None:
    data = pickle.dumps(what, protocol=5)
    for part in (len(data).to_bytes(_LENGTH, "little"), data):
        rest = memoryview(part)
        while rest:
            rest = rest[os.write(pipe, rest) :]


def _receive(pipe: int) -> bytearray:
    return _read(pipe, int.from_bytes(_read(pipe, _LENGTH), "little"))


def _read(pipe: int, size: int) -> bytearray:
    found = bytearray(size)
    rest = memoryview(found)
    while rest:
        count = os.readv(pipe, [rest])
        if count == 0:
            raise EOFError("the other end was closed")
        rest = rest[count:]
    return found
