"""All errors that beam_prep raises on purpose.

    BeamPrepError
    BeamPrepError
     |-- ConfigError        the config is wrong; also a ValueError
     |-- InputError         an input cannot be read: missing, a directory, damaged gzip, changed during the run
     |-- TokenizerError     the tokenizer cannot be loaded, or does not work as its files say
     |-- OutputError        the output may not be written: it exists and belongs to another job
     |    `-- LockedError   another job is writing the output
     |-- StorageError       a disk is full, a path cannot be written, a store does not answer or refuses
     |-- RunError           the run failed by a rule: too many rejects, nothing kept, nothing trained
     |-- EngineError        the runner lost the job, a worker, or a part of its data
     |-- TokenCacheError    a tokenised block is damaged or missing: run again, which makes it again
     |-- FormatError        a file is not what its reader expects
     `-- UserFunctionError  a user's function raised on a record; the message names file and offset

Each takes exactly one message, so that pickle carries it to another process unchanged. `exit_code` is the exit code of
the command line: 2: usage, config or tokenizer; 3: data; 4: the output is refused; 5: storage or engine, which may
recover; 6: another job holds the output. A scheduler should run again only after 5 and 6.
"""

import errno
import os
import re


class BeamPrepError(Exception):
    """The base class: ``except BeamPrepError`` catches everything that beam_prep raises on purpose.

    The class itself is raised for an argument that names a missing row, domain or column.
    """

    exit_code = 2


class ConfigError(BeamPrepError, ValueError):
    """The config is wrong; the message lists every problem with its place in the config."""


class InputError(BeamPrepError):
    """An input cannot be read: it is missing, a directory, damaged, or it changed during the run."""

    exit_code = 3


class TokenizerError(BeamPrepError):
    """The tokenizer cannot be loaded or used."""


class OutputError(BeamPrepError):
    """The output may not be written: it belongs to another job, or another job holds it (`LockedError`)."""

    exit_code = 4


class LockedError(OutputError):
    """Another job is writing the output; the message says which, since when, and how to break its lock."""

    exit_code = 6


class StorageError(BeamPrepError):
    """A disk is full, a path cannot be written; a store does not answer, refuses, or needs libraries."""

    exit_code = 5


class RunError(BeamPrepError):
    """The run failed by a rule: too many rejects, nothing kept, or nothing to train on."""

    exit_code = 3


class EngineError(BeamPrepError):
    """The runner lost the job, a worker, or a part of its data. Run again: finished blocks are not made again."""

    exit_code = 5


class TokenCacheError(BeamPrepError):
    """A tokenised block is damaged or missing. Run the same job again: it makes the block again."""

    exit_code = 5


class FormatError(BeamPrepError):
    """A file is not what its reader expects."""

    exit_code = 3


class UserFunctionError(BeamPrepError):
    """A user's function raised on a record; the message names the file and the offset."""

    exit_code = 3


def check_planned(what: str, found: int, planned: int) -> None:
    """Raises EngineError if the runner gave more or fewer than were planned."""
    if found != planned:
        raise EngineError(f"the runner gave {found:,} {what}, {planned:,} were planned: run again")


_NAMES = "EACCES EPERM EROFS ENOTDIR EEXIST EISDIR ENAMETOOLONG ELOOP ENOENT EINVAL ENOTSUP"
_REFUSED = {getattr(errno, name) for name in _NAMES.split()}
"""Errors of a path that the user chose. Other errors are the disk's, and may pass."""
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NUMBER = re.compile(r"\[?[Ee]rrno\]?[ =]+(\d+)\]?")
_PATH = re.compile(r"'([^']*)'(?: -> |$|\n|\\n| \[while)")


def of_the_system(error: BaseException) -> BeamPrepError | None:
    """The error that a user gets for an error of the operating system: a full disk, a path that cannot be written.

    Also for errors of C libraries and of workers, of which only the text is known. None for other errors.

    >>> of_the_system(OSError(28, "No space left on device", "out/x"))
    StorageError('out/x: No space left on device: make room, or choose another disk, and run again')
    """
    number, path = (error.errno, error.filename) if isinstance(error, OSError) else (None, None)
    words = str(error)
    if "No usable temporary directory" in words:
        return OutputError("no folder for temporary files can be written: set TMPDIR to one that can")
    if number is None:
        numbers = _NUMBER.findall(words)
        if not numbers:
            return None
        number = int(numbers[-1])
    if path is None:
        paths = _PATH.findall(words)
        path = paths[-1] if paths else None
    found = f"{'a file' if path is None else os.fsdecode(path)}: {os.strerror(number)}"
    if number in (errno.EACCES, errno.EPERM):
        who = f"the user of this process (id {os.geteuid()}) may not read or write it"
        return OutputError(f"{found}: {who}: change its rights (`ls -ld` shows them), or choose another path")
    if number in _REFUSED:
        return OutputError(f"{found}: choose another path")
    advice = "make room, or choose another disk, and run again" if number in _FULL else "run again"
    return StorageError(f"{found}: {advice}")
