"""Formats of shards: their contract (one shard <-> bytes), the checks that all share, and `FORMATS`.

A new format needs a module with a subclass of `Format`, a test, and a line in `FORMATS`.
"""

import struct
import zlib
from collections import UserDict
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

import numpy as np

from beam_prep.data.ragged import Array, Ragged
from beam_prep.data.schema import Column
from beam_prep.errors import FormatError, StorageError

if TYPE_CHECKING:
    from beam_prep.formats.manifest import ShardReceipt

OpenFile = Callable[[str], BinaryIO]
"""Opens a new file for writing. The path is relative to the domain's folder, with "/"; folders are made.

Use only `write` and `close`. A library that must seek writes a temporary file first, inside `in_temporary_folder`, and
the temporary file is then copied: see `hdf5.py`.
"""

Row = dict[str, Any]
"""Column name -> a row's values: an array [length], or a `Ragged` (lists of values) if the column's depth is 2.

A metadata column (`Column.metadata`) gives an array, too: the bytes of a string, or one number. In a packed row it is a
`Ragged` of strings, or an array of numbers. `bp.open` turns these into strings and numbers.

The value type is `Any`, because only the schema tells array from `Ragged`: a union would make type checkers complain at
every use.
"""


SizeUnit = Literal["values", "bytes"]


FilesOfShard = dict[str, bytes | None]
"""The files of a shard: path relative to the domain's folder -> content; None if the content depends only on rows and
columns. Always in the same order."""


class ShardWriter:
    """Writes one shard, slice by slice. After an exception the files are unusable: call nothing more.

    A subclass of one file a shard implements `_write`, and `close` if there is more to do.
    """

    def __init__(
        self, format: "Format", open_file: OpenFile, columns: Sequence[Column], shard: int, shards: int
    ) -> None:
        self._format: Any = format
        self._columns = tuple(columns)
        self._file = open_file(format.file(shard, shards))

    def write(self, columns: Mapping[str, Ragged]) -> None:
        """Appends rows.

        Args:
            columns: the next rows of the shard: exactly the declared columns, with equal row counts and the declared
                depths. Values may be views (of Arrow memory, too); the writer does not keep them after the call.

        Raises:
            ValueError: the columns are not as declared, or a value does not fit its column's dtype.
        """
        check_rows(self._columns, columns)
        self._write(columns)

    def _write(self, columns: Mapping[str, Ragged]) -> None:
        """Appends rows, which were checked."""
        raise NotImplementedError

    def close(self) -> None:
        """Writes the end of the shard and closes the files. Only then is the shard complete."""
        self._file.close()


class ShardReader:
    """Reads one shard. It pickles as its path, not as its content, so it can be sent to a data loader's processes.

    A subclass implements `_open`, `__len__`, `_row` and `sizes`. It may have one of two more members, which make
    reading many rows faster: `columns: dict[str, Ragged]`, every column over its mapped file; or `lengths(name) ->
    Array`, int64 [rows], the length of each row of a column. Without them readers read row by row.

    Raises:
        FormatError: see `expected`. (A changed value shows only in the manifest's sha256.)
    """

    def __init__(self, format: "Format", folder: Path, columns: Sequence[Column], shard: int, shards: int) -> None:
        self._given = format, folder, tuple(columns), shard, shards
        self._columns = tuple(columns)
        self._path = folder / next(iter(format.files(columns, shard, shards) or ()))
        with expected(self._path):
            self._open()

    def __reduce__(self) -> tuple[Any, ...]:
        # To pickle the memory map would copy the file.
        return type(self), self._given

    def _open(self) -> None:
        """Opens the file. For its errors see `expected`."""
        raise NotImplementedError

    def __len__(self) -> int:
        """The number of rows.

        Raises:
            FormatError: the file that holds the offsets of rows is damaged.
        """
        raise NotImplementedError

    def row(self, index: int) -> Row:
        """One row in the columns' dtypes; arrays may be read-only views of the file. A negative index is from the end.

        Raises:
            IndexError: there is no such row.
            FormatError: the row is damaged. The message names the file, and the record if the format can tell.
        """
        number = index + len(self) if index < 0 else index
        if not 0 <= number < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        try:
            return self._row(number)
        except (IndexError, RuntimeError, ValueError) as error:
            raise FormatError(f"{self._path}: row {number} is damaged: {error}") from None

    def _row(self, number: int) -> Row:
        """A row, by its number from 0.

        Raises:
            ValueError: the row is damaged.
        """
        raise NotImplementedError

    def sizes(self) -> Array:
        """int64 [rows]: the size of each row, in values (of all columns but metadata) or bytes: see `Format.sizes_in`.

        Raises:
            FormatError: see `__len__`.
        """
        raise NotImplementedError


class Format:
    """The base class of formats. A format writes and reads the files of a shard; `FORMATS` holds an object of each.

    Attributes:
        name: the name in configs, in manifests and in `FORMATS`.
        file_name: of a format of one file a shard: a template of the file name, with `shard` and `shards`.
        writes, reads: the classes of its writers and readers, see `ShardWriter` and `ShardReader`.
        sizes_in: the unit of `ShardReader.sizes`: bytes if the number of values of a row is not known without reading.
        unknown_dtypes: dtypes that the format cannot hold. (bool may be kept as uint8.)
        strings: which strings it can hold: none, one a row, or lists of strings, as packed rows have.
        largest: most bytes of a shard's values; None: any.
        libraries: libraries besides numpy and pyarrow whose version the bytes depend on.
        extra: the extra of this project that installs them.
    """

    name: str
    file_name = ""
    writes: type[ShardWriter]
    reads: type[ShardReader]
    sizes_in: SizeUnit = "values"
    unknown_dtypes: tuple[str, ...] = ()
    strings: Literal["none", "single", "lists"] = "lists"
    largest: int | None = None
    libraries: tuple[str, ...] = ()
    extra: str = ""

    def require(self) -> None:
        """Checks that its libraries are installed. It is called before a run starts.

        Raises:
            ImportError: a library is not installed; the message says what to type.
        """
        for name in self.libraries:
            try:
                import_module(name)
            except ImportError as error:
                raise ImportError(
                    f"the format {self.name} needs {name} ({error}): pip install 'beam-prep[{self.extra}]'"
                ) from None

    def warnings(self, holds: Collection[str]) -> Iterator[str]:
        """Warnings before a run. `holds`: the columns of the output: "labels", "masks" ..."""
        yield from ()

    def stored(self, column: Column) -> str:
        """The dtype of a column's values in its files."""
        return column.dtype

    def file(self, shard: int, shards: int) -> str:
        """The name of a shard's file."""
        return self.file_name.format(shard=shard, shards=shards)

    def files(self, columns: Sequence[Column], shard: int, shards: int) -> FilesOfShard | None:
        """The files of a shard. None: the format does not name its files; then an unchanged shard is written again,
        not linked from the earlier output."""
        return {self.file(shard, shards): None} if self.file_name else None

    def described(
        self, columns: Sequence[Column], domains: Mapping[str, str], shards: "Sequence[ShardReceipt]"
    ) -> dict[str, bytes]:
        """Name -> content (JSON) of the files that describe the whole output.

        Args:
            columns: the columns of the output.
            domains: domain -> folder.
            shards: all shards, in order.
        """
        return {}

    def writer(self, open_file: OpenFile, columns: Sequence[Column], shard: int, shards: int) -> ShardWriter:
        """Opens shard number `shard` (from 0) of the domain's `shards` for writing. Same rows must give same bytes.

        Raises:
            ImportError: see `require`.
            ValueError: a column holds what the format cannot hold.
        """
        self.require()
        for column in columns:
            held = self.strings == "lists" or (self.strings == "single" and column.depth == 0)
            if column.role == "string" and not held:
                lists = "lists of " if column.depth else ""
                raise ValueError(f"column {column.name!r}: the format {self.name} has no {lists}strings")
            if column.dtype in self.unknown_dtypes:
                raise ValueError(f"column {column.name!r}: the format {self.name} has no {column.dtype}")
        return self.writes(self, open_file, columns, shard, shards)

    def read(self, folder: Path, columns: Sequence[Column], shard: int, shards: int) -> ShardReader:
        """Opens a shard of the domain in the local `folder`, as `writer` left it.

        Raises:
            FormatError: a file is missing, cut, or does not hold these columns.
            ImportError: see `require`.
        """
        self.require()
        return self.reads(self, folder, columns, shard, shards)


@contextmanager
def expected(path: Path) -> Iterator[None]:
    """Wraps the opening of a shard, which lies at `path`.

    Raises:
        FormatError: a file is missing, cut or damaged, or does not hold the wanted columns.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise FormatError(f"{error.filename or path}: no such file") from None
    except (EOFError, KeyError, OSError, RuntimeError, TypeError, ValueError, struct.error, zlib.error) as error:
        why = f"missing: {error}" if isinstance(error, KeyError) else error
        raise FormatError(f"{path}: not a complete shard of these columns: {why}") from None


@contextmanager
def in_temporary_folder() -> Iterator[None]:
    """Wraps writes to a temporary file. Its error names the folder, and how to choose another.

    Raises:
        StorageError: the file cannot be written, for instance because the disk is full. (Libraries in C raise
            RuntimeError.)
    """
    try:
        yield
    except (OSError, RuntimeError) as error:
        import tempfile  # imported here, because every reader imports this module

        raise StorageError(
            f"cannot write a shard to the folder of temporary files, {tempfile.gettempdir()} ({error}): "
            "make room there, or name another folder in TMPDIR, and run again"
        ) from None


def check_rows(columns: Sequence[Column], data: Mapping[str, Ragged]) -> int:
    """The number of rows in `data`.

    Raises:
        ValueError: the columns of `data` differ from the declared ones, in name or depth, or have unequal row counts.
    """
    names = {column.name for column in columns}
    if names != data.keys():
        raise ValueError(f"found columns {sorted(data)}, declared are {sorted(names)}")
    for column in columns:
        if data[column.name].depth != column.levels:
            raise ValueError(f"column {column.name!r}: found depth {data[column.name].depth}, declared {column.levels}")
        if column.depth == 0 and column.role != "string" and (data[column.name].lengths != 1).any():
            raise ValueError(f"column {column.name!r}: a row does not have exactly one value")
    counts = {name: len(ragged) for name, ragged in data.items()}
    if len(set(counts.values())) > 1:
        raise ValueError(f"columns of different row counts: {counts}")
    return max(counts.values(), default=0)


def joined(rows: Sequence[Any], dtype: str, depth: int) -> Ragged:
    """One `Ragged` of rows, with a copy of their values."""
    if depth == 1:
        values: Array | Ragged = np.concatenate([np.zeros(0, dtype), *rows], dtype=dtype)
    else:
        values = joined([each for row in rows for each in row], dtype, depth - 1)
    return Ragged.from_lengths(values, [len(row) for row in rows])


def cast(values: Array, dtype: str, name: str) -> Array:
    """`values` in `dtype`, contiguous and little-endian; the same array if it is that already.

    Floats are rounded to a narrower float type (beyond its range: infinite). Other values must stay the same.

    Raises:
        ValueError: a value does not fit. The message names the column, `name`.
    """
    target = np.dtype(dtype).newbyteorder("<")
    with np.errstate(invalid="ignore", over="ignore"):
        stored = np.ascontiguousarray(values, dtype=target)
    if target.kind != "f" and not np.can_cast(values.dtype, target) and not np.array_equal(stored, values):
        first = values[np.flatnonzero(stored != values)[0]]
        raise ValueError(f"column {name!r}: {first} does not fit {dtype}")
    return stored


def map_file(path: Path) -> Array:
    """A file's bytes, read-only uint8, mapped into memory.

    Arrow maps it: a map of numpy keeps a file descriptor, and an output may have more shards than a process may have
    file descriptors.

    Raises:
        FileNotFoundError: there is no such file.
    """
    import pyarrow as pa

    if not path.stat().st_size:
        return np.zeros(0, np.uint8)  # an empty file cannot be mapped
    with pa.memory_map(str(path)) as file:
        return np.frombuffer(file.read_buffer(), np.uint8)


class _Formats(UserDict[str, Any]):
    """Built-in formats are imported lazily."""

    def __getitem__(self, name: str) -> Format:
        found = self.data[name]
        if isinstance(found, str):
            module, _, kind = found.partition(".")
            found = self.data[name] = getattr(import_module(f"{__name__}.{module}"), kind)()
        format: Format = found
        return format


FORMATS: MutableMapping[str, Format] = _Formats(
    {
        "bin": "mmap_bin.Bin",
        "tfrecord": "tfrecord.TFRecord",
        "arrow": "arrow.Arrow",
        "h5": "hdf5.HDF5",
        "parquet": "parquet.Parquet",
        "megatron": "megatron.Megatron",
        "mds": "mds.MDS",
        "npy": "npy.Npy",
        "array_record": "array_record.ArrayRecord",
    }
)
