"""All errors that beam_prep raises on purpose.

    BeamPrepError
     |-- ConfigError        a config that makes no sense; also a ValueError
     |-- InputError         an input that cannot be read: missing, a directory, damaged gzip, changed during the run
     |-- TokenizerError     a tokenizer that cannot be loaded, or that does not do what it says
     |-- OutputError        an output that cannot be written: it exists and belongs to another job, its lock is held
     |-- StorageError       an object store that does not answer, or refuses
     |-- RunError           a run that failed by a rule: too many rejects, nothing kept, nothing trained
     |-- SpoolError         a tokenised block is damaged or missing: run again, and it is made again
     |-- FormatError        a file that is not what its reader expects
     `-- UserFunctionError  a user's function raised on a record; the message names file and offset

Each takes one message and nothing else, so that pickle carries it to another process unchanged.
"""


class BeamPrepError(Exception):
    """The base class: ``except BeamPrepError`` catches everything that beam_prep raises on purpose."""


class ConfigError(BeamPrepError, ValueError):
    """The config is wrong; the message lists every problem with its place in the config."""


class InputError(BeamPrepError):
    """An input cannot be read: it is missing, a directory, damaged, or it changed during the run."""


class TokenizerError(BeamPrepError):
    """The tokenizer cannot be loaded or used."""


class OutputError(BeamPrepError):
    """The output cannot be written: it belongs to another job, or another run holds its lock."""


class StorageError(BeamPrepError):
    """An object store does not answer, refuses, or needs libraries that are not installed."""


class RunError(BeamPrepError):
    """The run failed by a rule: too many rejects, nothing kept, or nothing to train on."""


class SpoolError(BeamPrepError):
    """A tokenised block is damaged or missing. Run the same job again: it makes the block again."""


class FormatError(BeamPrepError):
    """A file is not what its reader expects."""


class UserFunctionError(BeamPrepError):
    """A user's function raised on a record; the message names the file and the offset."""
