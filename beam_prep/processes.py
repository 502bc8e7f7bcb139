"""What the command line's process and its children may do that no library may: fork, choose a heap, end together."""

import contextlib
import ctypes
import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

from beam_prep.errors import BeamPrepError, EngineError

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # malloc.h
_KEPT_FREE, _GIVEN_BACK = 16 << 20, 32 << 20
"""Bytes that a heap keeps; and of an allocation that is given back at once, which arrays of a block seldom have.

With 8 MiB kept, 800 MB of documents have 1.5 times as many page faults, chats twice as many; with 32 MiB workers take
10 to 20 MB more. With 8 MiB given back, chats take 4 % more time, documents 8 %.
"""
_program = False

Answer = TypeVar("Answer")


def cores() -> int:
    """The number of processors that this process may use."""
    if sys.version_info >= (3, 13):
        return os.process_cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def own_program() -> None:
    """Declares that nothing but the command line runs in this process. Then it may fork, and choose for libraries.

    Threads of numpy's linear algebra, of which there is none here, would spin while the first modules are imported.
    """
    global _program
    _program = True
    # Pipes to workers must not get the numbers of streams that were closed, which workers keep open.
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    choose_malloc()


def choose_malloc() -> None:
    """Lets all libraries allocate with the C library, and that keep some freed memory, where it is glibc.

    A step frees megabytes that the next one needs. Those that went back to the system would be cleared page by page:
    half of all page faults were Arrow's own. Kept without a limit, freed memory would grow with the input. All threads
    share one heap: Beam's, which does the work, uses what the first one freed after it had loaded the tokenizer.
    """
    with contextlib.suppress(OSError, AttributeError):  # another C library than glibc
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_TRIM_THRESHOLD, _KEPT_FREE)
        mallopt(_M_MMAP_THRESHOLD, _GIVEN_BACK)
        mallopt(_M_ARENA_MAX, 1)
        if "pyarrow" not in sys.modules:
            os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")


def is_own_program() -> bool:
    """True if `own_program` was called."""
    return _program


@contextlib.contextmanager
def single_threaded_tokenizers() -> Iterator[None]:
    """The Rust tokenizers start no threads: a process that has some cannot be forked, and workers have a core each."""
    before = os.environ.get("TOKENIZERS_PARALLELISM")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    try:
        yield
    finally:
        del os.environ["TOKENIZERS_PARALLELISM"]
        if before is not None:
            os.environ["TOKENIZERS_PARALLELISM"] = before


def may_fork() -> bool:
    """True if workers are forked from this process."""
    # transformers is large, and no worker needs it.
    alone = threading.active_count() == 1 and "transformers" not in sys.modules
    return _program and sys.platform == "linux" and alone


def in_child(call: Callable[[], Answer], what: str) -> Answer:
    """Calls a function in a forked process, which ends then. Only where this process may fork.

    What the function imports, and the threads that it starts, are not in this process, which can be forked again.

    Args:
        call: its answer can be pickled.
        what: for the message of an error: what it did, as in "loaded the tokenizer".

    Raises:
        BeamPrepError, OSError: what the function raised.
        EngineError: the process was killed.
    """
    reading, writing = os.pipe()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        try:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            end_with_parent(parent)
            try:
                answer: Any = call(), None
            except (BeamPrepError, OSError) as error:
                answer = None, error
            data = pickle.dumps(answer)  # all of it or nothing is written
            with open(writing, "wb") as pipe:
                pipe.write(data)
        except Exception:  # otherwise it would end without a message
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(writing)
    try:
        with open(reading, "rb") as pipe:
            found = pipe.read()
    finally:
        os.kill(child, signal.SIGKILL)  # where a signal asks this process to end; otherwise it has ended by itself
        os.waitpid(child, 0)
    if not found:
        raise EngineError(f"a process that {what} was killed, or crashed (out of memory?): run again")
    value, raised = pickle.loads(found)
    if raised is not None:
        raise raised
    return cast(Answer, value)


def end_with_parent(parent: int) -> None:
    """Asks the kernel to kill this process when its parent ends, however that ends. On Linux only.

    Beam's worker ends with its connection, but one that has none yet waits for a launcher that is gone.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it has ended already
            os._exit(0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal: the launcher ends us
