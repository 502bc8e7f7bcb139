"""Files through Beam's FileSystems: found once, read as streams, written whole."""

import bz2
import glob
import gzip
import os
import stat
import uuid
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO

import pyarrow as pa
from apache_beam.io.filesystem import BeamIOError, CompressionTypes, FileMetadata
from apache_beam.io.filesystems import FileSystems

from beam_prep.core.block import InputFile
from beam_prep.core.json_list import ListAsLines, is_json_file
from beam_prep.core.records import Readable
from beam_prep.errors import InputError

_COMPRESSION = {".gz": "gzip", ".bz2": "bzip2", ".zst": "zstd"}
_PACKED_BYTES = 256 * 1024
_MAGIC = {b"\x1f\x8b": ".gz", b"BZh": ".bz2", b"\x28\xb5\x2f\xfd": ".zst"}


def is_local(path: str) -> bool:
    """Whether a path lies on this machine's disk."""
    return "://" not in path


def list_inputs(patterns: Sequence[str | os.PathLike[str]] | str | os.PathLike[str]) -> list[InputFile]:
    """The files of a job: arguments in the order given, each glob sorted by bytes.

    Raises:
        InputError: nothing there, a directory, a file that cannot be read, the same file twice.
    """
    if isinstance(patterns, str | os.PathLike):
        patterns = [patterns]
    files: list[InputFile] = []
    seen: dict[str, str] = {}
    for pattern in patterns:
        for path in _match(os.fspath(pattern)):
            place = os.path.realpath(path) if is_local(path) else path
            if place in seen:
                raise InputError(f"the same input twice: {path!r} and {seen[place]!r}; name each file once")
            seen[place] = path
            size, updated = file_stat(path)
            files.append(InputFile(path, size, updated, _COMPRESSION.get(os.path.splitext(path)[1].lower())))
    if not files:
        raise InputError("no input: name at least one JSONL file or glob, for instance 'data/*.jsonl'")
    return files


def _match(pattern: str) -> list[str]:
    if is_local(pattern):
        if os.path.lexists(pattern):
            return [pattern]
        found = glob.glob(pattern, recursive=True) if glob.has_magic(pattern) else []
        if not found:
            raise InputError(f"no such input: {pattern!r} (from {os.getcwd()}); check the path, or quote the glob")
        return sorted(found, key=os.fsencode)
    found = [metadata.path for metadata in _stored(pattern)]
    if not found:
        raise InputError(f"no such input: {pattern!r}; check the bucket and the path")
    return sorted(found, key=str.encode)


def _stored(pattern: str) -> Sequence[FileMetadata]:
    try:
        found: Sequence[FileMetadata] = FileSystems.match([pattern])[0].metadata_list
    except (BeamIOError, ValueError) as error:  # no rights, no such bucket; a store that Beam does not know
        raise InputError(f"cannot look up {pattern!r}: {error}") from None
    return found


def file_stat(path: str) -> tuple[int, float]:
    """(size in bytes, time of the last change).

    Raises:
        InputError: the file cannot be read.
    """
    if not is_local(path):
        metadata = _stored(path)
        if not metadata:
            raise InputError(f"no such input: {path!r}")
        return metadata[0].size_in_bytes, metadata[0].last_updated_in_seconds
    try:
        found = os.stat(path)
    except FileNotFoundError:
        broken = f" (a link to {os.readlink(path)!r}, which is not there)" if os.path.islink(path) else ""
        raise InputError(f"no such input: {path!r}{broken}") from None
    except OSError as error:
        raise InputError(f"cannot read {path!r}: {error.strerror}") from None
    if stat.S_ISDIR(found.st_mode):
        raise InputError(f"{path!r} is a directory: name its files, for instance {os.path.join(path, '*.jsonl')!r}")
    if not stat.S_ISREG(found.st_mode):
        raise InputError(f"{path!r} is a pipe or a device, which cannot be read twice: write its data to a file first")
    if not os.access(path, os.R_OK):
        raise InputError(f"cannot read {path!r}: permission denied; make it readable (chmod u+r)")
    return found.st_size, found.st_mtime


@contextmanager
def open_input(source: InputFile, start: int = 0) -> Iterator[Readable]:
    """A stream of a file's content, positioned one byte before `start` (at 0 for 0). Compressed files begin at 0.

    Raises:
        InputError: the file changed since it was listed, is damaged, or is not what its ending says.
    """
    _check_unchanged(source)
    try:
        stream = FileSystems.open(source.path, compression_type=CompressionTypes.UNCOMPRESSED)
    except OSError as error:
        raise InputError(f"cannot read {source.path!r}: {error}") from None
    try:
        if source.compression is None:
            _refuse_compressed(source, stream, start)
        content = _Input(source, stream)
        yield ListAsLines(content, source.path) if is_json_file(source.path) else content
        if is_local(source.path):  # written over while it was read? (Objects of a store are replaced as a whole.)
            _check_unchanged(source)
    finally:
        stream.close()


def _check_unchanged(source: InputFile) -> None:
    if file_stat(source.path) != (source.size, source.updated):
        raise InputError(f"{source.path!r} changed while the job ran: run again on files that stay as they are")


class _Input:
    """Reads, and turns what goes wrong into an error that names the file."""

    def __init__(self, source: InputFile, stream: BinaryIO) -> None:
        self._source = source
        packed = source.compression is not None and source.size > 0
        self._stream: Any = _decompressed(str(source.compression), stream) if packed else stream

    def read(self, size: int) -> bytes:
        source = self._source
        try:
            data: bytes = self._stream.read(size)
        except (OSError, EOFError, zlib.error) as error:  # BadGzipFile is an OSError
            if source.compression is None:
                raise InputError(f"cannot read {source.path!r}: {error}") from error
            raise InputError(
                f"{source.path!r} cannot be read as {source.compression} ({error}): mend it, rename it, or leave it out"
            ) from None
        return data


def _decompressed(compression: str, stream: BinaryIO) -> Any:
    if compression == "gzip":
        return gzip.GzipFile(fileobj=stream)
    if compression == "bzip2":
        return _Bzip2(stream)
    # Unlike the zstandard package, Arrow notices a frame that is cut.
    return pa.CompressedInputStream(pa.PythonFile(stream, mode="r"), "zstd")


class _Bzip2:
    """Reads bzip2 streams, one behind the other.

    `bz2.BZ2File` takes a damaged stream behind the first for padding and ends there, silently; here it is an error.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._decompressor = bz2.BZ2Decompressor()

    def read(self, size: int) -> bytes:
        """Up to `size` bytes; none only at the end."""
        while True:
            packed = b""
            if self._decompressor.eof:
                packed = self._decompressor.unused_data or self._stream.read(_PACKED_BYTES)
                if not packed:
                    return b""
                self._decompressor = bz2.BZ2Decompressor()
            elif self._decompressor.needs_input:
                packed = self._stream.read(_PACKED_BYTES)
                if not packed:
                    raise EOFError("it ends in the middle")
            if data := self._decompressor.decompress(packed, size):
                return data


def _refuse_compressed(source: InputFile, stream: BinaryIO, start: int) -> None:
    if start == 0:
        head = stream.read(4)
        for magic, ending in _MAGIC.items():
            if head.startswith(magic):
                raise InputError(f"{source.path!r} is compressed, but its name does not end in {ending}: rename it")
    stream.seek(max(0, start - 1))


def read_file(path: str) -> Any:
    """A file for Arrow: mapped into memory where it is local, else opened."""
    if is_local(path):
        return pa.memory_map(path)
    return pa.PythonFile(FileSystems.open(path, compression_type=CompressionTypes.UNCOMPRESSED), mode="r")


def write_file(path: str, data: bytes | memoryview) -> None:
    """Writes a file whole: under another name first, then renamed (object stores: one PUT)."""
    if not is_local(path):
        _put(path, data)
        return
    folder = os.path.dirname(path)
    os.makedirs(folder, exist_ok=True)
    made = f"{path}.{uuid.uuid4().hex}"
    with open(made, "wb") as file:
        file.write(data)
    os.replace(made, path)


def _put(path: str, data: bytes | memoryview) -> None:
    with FileSystems.create(path, compression_type=CompressionTypes.UNCOMPRESSED) as file:
        file.write(bytes(data))


def exists(path: str) -> bool:
    """Whether a file is there."""
    return os.path.exists(path) if is_local(path) else bool(FileSystems.exists(path))


def join(folder: str, *names: str) -> str:
    """A path below a folder, local or not."""
    return str(FileSystems.join(folder, *names))


def total_size(files: Iterable[InputFile]) -> int:
    """Bytes of all files in their stores."""
    return sum(file.size for file in files)
