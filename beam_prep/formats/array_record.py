"""`array_record`: one `tf.train.Example` a row, in `<domain>/shard_0000.array_record`, `shard_0001.array_record` ...

The Examples are the same as in `tfrecord`, with the same dtypes and lists of lists. Rows can be read in any order:

    source = grain.sources.ArrayRecordDataSource(sorted(glob.glob("out/wiki/*.array_record")))
    tf.train.Example.FromString(source[7]).features.feature["sequence"].int64_list.value

* The library `array_record`, an extra, writes the files. A group holds one record, so reading a random row reads one
  record. Compression is zstd, level 1. The bytes depend only on the rows and the library's version. The size is a
  multiple of 64 KB, because the library pads the file's end.
* The library writes to a path, so a shard is written to a temporary file first, and copied at the end.
* The files have checksums, which the library's reader checks. For a truncated file the library reports no records and
  no error, so our reader asks whether the file opened.

Source: github.com/google/array_record, README and python/array_record_module.cc.
"""

import os
import shutil
import tempfile
from collections.abc import Mapping
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from beam_prep.data.ragged import Array, Ragged
from beam_prep.formats import Row, ShardReader, ShardWriter, expected, in_temporary_folder
from beam_prep.formats.tfrecord import OfExamples, decode_example, encode_examples

MODULE = "array_record.python.array_record_module"
WRITE = "group_size:1,zstd:1,max_parallelism:1"
READ = "readahead_buffer_size:0,max_parallelism:0"

_OPEN = 64
"""Most files open at a time: an output may have more shards than a process may have open files."""


class ArrayRecordWriter(ShardWriter):
    """Writes rows to a temporary file, which `close` copies to the output."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        with in_temporary_folder():
            self._made = tempfile.NamedTemporaryFile()  # noqa: SIM115  (closed in `close`)
            self._writer = import_module(MODULE).ArrayRecordWriter(self._made.name, WRITE)

    def _write(self, columns: Mapping[str, Ragged]) -> None:
        with in_temporary_folder():
            for example in encode_examples(self._columns, columns):
                self._writer.write(example)

    def close(self) -> None:
        """Completes the temporary file, copies it to the output, and removes it.

        Raises:
            StorageError: the temporary file cannot be written, for instance because the disk is full.
        """
        with in_temporary_folder():
            self._writer.close()
        shutil.copyfileobj(self._made, self._file, self._format.piece)
        self._made.close()
        self._file.close()


class ArrayRecordReader(ShardReader):
    """Rows of one shard, read and decoded one by one."""

    def _open(self) -> None:
        status = self._path.stat()
        self._version = (status.st_ino, status.st_mtime_ns, status.st_size)
        self._rows = int(self._library().num_records())

    def __len__(self) -> int:
        return self._rows

    def _row(self, number: int) -> Row:
        return decode_example(self._record(number), self._columns)

    def sizes(self) -> Array:
        """See `ShardReader.sizes`. Reads the file."""
        with expected(self._path):
            return np.array([len(self._record(number)) for number in range(self._rows)], np.int64)

    def _record(self, number: int) -> bytes:
        (record,) = self._library().read([number])
        return bytes(record)

    def _library(self) -> Any:
        # A forked process opens the file itself. Otherwise it would share the read position of its parent.
        return opened_file(self._path, self._version, os.getpid())


@lru_cache(maxsize=_OPEN)
def opened_file(path: Path, version: tuple[int, int, int], process: int) -> Any:
    """The library's reader of a file.

    Raises:
        RuntimeError, ValueError, OSError: the file cannot be opened.
        ImportError: array_record is not installed.
    """
    reader = import_module(MODULE).ArrayRecordReader(str(path), READ)
    if not reader.ok():
        reader.close()  # raises the reason if there is one
        raise ValueError("it is empty")
    return reader


class ArrayRecord(OfExamples):
    """The format `array_record`; see the module. A writer needs room for the shard in `TMPDIR`."""

    name = "array_record"
    file_name = "shard_{shard:04d}.array_record"
    libraries = ("array_record",)
    extra = "array_record"
    writes = ArrayRecordWriter
    reads = ArrayRecordReader
