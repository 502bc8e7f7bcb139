"""The contract of a format (one shard <-> bytes), and the checks that all formats share."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, Protocol

import numpy as np

from beam_prep.data.ragged import Array, Ragged
from beam_prep.data.schema import Column
from beam_prep.errors import FormatError, StorageError

if TYPE_CHECKING:
    from beam_prep.formats.manifest import ShardReceipt

OpenFile = Callable[[str], BinaryIO]
"""Opens a new file for writing, by its path relative to the domain's folder; "/" separates, folders are made.

The file has `write` and `close` only: its bytes are hashed as they come. A library that seeks writes a temporary file
first, inside `in_temporary_folder`, which is then copied: `hdf5.py` does so.
"""

Row = dict[str, Any]
"""Column name to a row's values: an array [length], or a `Ragged` (its lists) where the column's depth is 2.

Metadata (`Column.metadata`) is an array, too: the bytes of a string, or one number; of a packed row a
`Ragged` of strings, or the numbers. `bp.open` gives strings and numbers for them.

`Any`, since only the schema says which of the two: a trainer's type checker would complain at every use.
"""


SizeUnit = Literal["values", "bytes"]


class ShardWriter(Protocol):
    """Writes one shard, slice by slice. After an exception the files are worthless: nothing more may be called."""

    def write(self, columns: Mapping[str, Ragged]) -> None:
        """Appends rows.

        Args:
            columns: the next rows of the shard: the declared columns, no more and no less, of equal row count and of
                the declared depth. Values may be views (of Arrow memory, too); they are not kept after the call.

        Raises:
            ValueError: the columns are not as declared, or a value does not fit its column's dtype.
        """
        ...

    def close(self) -> None:
        """Writes what comes last and closes the files. Only then is the shard complete."""
        ...


class ShardReader(Protocol):
    """Reads one shard. It pickles as its path, not as its content, so it may cross to a data loader's processes.

    A reader may also have one of two things that readers of many rows use, which else read row after row:
    `columns: dict[str, Ragged]`, every column over its mapped file; or `lengths(name) -> Array`, int64 [rows], the
    length of each row of a column.
    """

    def __len__(self) -> int:
        """Rows.

        Raises:
            FormatError: the file that holds the rows' borders is damaged.
        """
        ...

    def row(self, index: int) -> Row:
        """One row in the columns' dtypes; arrays may be read-only views of the file. Negative: from the end.

        Raises:
            IndexError: there is no such row.
            FormatError: the row is damaged; the message names the file (and the record, where the format can tell).
        """
        ...

    def sizes(self) -> Array:
        """int64 [rows]: values of each row, of all columns but metadata; or its bytes: see
        `Format.sizes_in`.

        Raises:
            FormatError: see `len`.
        """
        ...


FilesOfShard = dict[str, bytes | None]
"""The files of a shard, by path relative to the domain's folder: their content; None where that is a function of the
rows and the columns alone. Always in the same order."""


class Format:
    """A way to keep one shard in files: a class derived from this, of which `FORMATS` has an object.

    Attributes:
        name: as a config and a manifest say it, and the key in `FORMATS`.
        sizes_in: the unit of `ShardReader.sizes`: bytes where the values of a row are not known without reading it.
        unknown_dtypes: that it cannot hold. (bool may be kept as uint8.)
        strings: which it can hold: none, one a row, or lists of them, as packed rows have.
        largest: bytes of the values of a shard; None: any.
        libraries: those besides numpy and pyarrow on whose versions its bytes depend.
    """

    name: str
    sizes_in: SizeUnit = "values"
    unknown_dtypes: tuple[str, ...] = ()
    strings: Literal["none", "single", "lists"] = "lists"
    largest: int | None = None
    libraries: tuple[str, ...] = ()

    def require(self) -> None:
        """Is called before anything runs.

        Raises:
            ImportError: something is not installed; the message says what to type.
        """

    def warnings(self, holds: Collection[str]) -> Iterator[str]:
        """What users of a config may not expect of an output that holds "labels", "masks" ..."""
        yield from ()

    def stored(self, column: Column) -> str:
        """The dtype of a column's values in its files."""
        return column.dtype

    def files(self, columns: Sequence[Column], shard: int, shards: int) -> FilesOfShard | None:
        """The files of a shard. None: it does not name them; then a shard is written even if its rows did not change,
        and not linked from the output that is replaced."""
        return None

    def described(
        self, columns: Sequence[Column], domains: Mapping[str, str], shards: "Sequence[ShardReceipt]"
    ) -> dict[str, bytes]:
        """Name -> content (JSON) of the files that describe an output as a whole.

        Args:
            columns: of the output.
            domains: domain -> folder.
            shards: all, in order.

        Raises:
            FormatError: a shard has not the files of this format.
        """
        return {}

    def writer(self, open_file: OpenFile, columns: Sequence[Column], shard: int, shards: int) -> ShardWriter:
        """Opens shard number `shard` (from 0) of the domain's `shards` for writing. Same rows, same bytes."""
        raise NotImplementedError

    def read(self, folder: Path, columns: Sequence[Column], shard: int, shards: int) -> ShardReader:
        """Opens a shard of the domain in the local `folder`, as `writer` left it.

        Raises:
            FormatError: a file is missing, cut, or does not hold these columns.
        """
        raise NotImplementedError


class FileFormat(Format):
    """A format of one file a shard.

    Attributes:
        file_name: of a shard, to be formatted with `shard` and `shards`.
    """

    file_name: str

    def file(self, shard: int, shards: int) -> str:
        """The name of a shard's file."""
        return self.file_name.format(shard=shard, shards=shards)

    def files(self, columns: Sequence[Column], shard: int, shards: int) -> FilesOfShard:
        """See `Format`."""
        return {self.file(shard, shards): None}


class FileReader:
    """A `ShardReader` over one file. A subclass opens it, reads one row, and says the sizes of all.

    Args:
        path, columns: the file, and the columns that it must hold.

    Attributes:
        kind: of file, for the message.

    Raises:
        FormatError: it is missing, cut, damaged in what describes its rows, or does not hold these columns. (A changed
            value shows only in the manifest's sha256.)
    """

    kind: str

    def __init__(self, path: Path, columns: Sequence[Column]) -> None:
        self._path, self._columns = path, tuple(columns)
        try:
            self._open()
        except FileNotFoundError:
            raise FormatError(f"{path}: no such file") from None
        except (OSError, RuntimeError, ValueError) as error:
            raise FormatError(f"{path}: not a complete {self.kind} file of these columns: {error}") from None

    def __reduce__(self) -> tuple[Any, tuple[Path, tuple[Column, ...]]]:
        # A pickled map is a copy of the file.
        return type(self), (self._path, self._columns)

    def _open(self) -> None:
        """Opens the file.

        Raises:
            OSError, RuntimeError, ValueError: it is not as a writer leaves it.
        """
        raise NotImplementedError

    def __len__(self) -> int:
        """Rows."""
        raise NotImplementedError

    def row(self, index: int) -> Row:
        """See `ShardReader.row`."""
        number = row_number(index, len(self))
        try:
            return self._row(number)
        except ValueError as error:
            raise FormatError(f"{self._path}: row {number} is damaged: {error}") from None

    def _row(self, number: int) -> Row:
        """A row, by its number from 0 on.

        Raises:
            ValueError: it is damaged.
        """
        raise NotImplementedError


@contextmanager
def in_temporary_folder() -> Iterator[None]:
    """Around writes to a temporary file: says where it is, and how another folder is given.

    Raises:
        StorageError: it cannot be written, because the disk is full, for instance. (Libraries in C raise RuntimeError.)
    """
    try:
        yield
    except (OSError, RuntimeError) as error:
        import tempfile  # here, as every reader imports this module

        raise StorageError(
            f"a shard waits in the folder of temporary files, {tempfile.gettempdir()}, which cannot be written "
            f"({error}): make room there, or name another folder in TMPDIR, and run again"
        ) from None


def check_rows(columns: Sequence[Column], data: Mapping[str, Ragged]) -> int:
    """The number of rows in `data`.

    Raises:
        ValueError: `data` has other columns, or columns of another depth, than declared, or of different row counts.
    """
    names = {column.name for column in columns}
    if names != data.keys():
        raise ValueError(f"found columns {sorted(data)}, declared are {sorted(names)}")
    for column in columns:
        if data[column.name].depth != column.levels:
            raise ValueError(f"column {column.name!r}: found depth {data[column.name].depth}, declared {column.levels}")
        if column.depth == 0 and column.role != "string" and (data[column.name].lengths != 1).any():
            raise ValueError(f"column {column.name!r}: a row has not one value")
    counts = {name: len(ragged) for name, ragged in data.items()}
    if len(set(counts.values())) > 1:
        raise ValueError(f"columns of different row counts: {counts}")
    return max(counts.values(), default=0)


def joined(rows: Sequence[Any], dtype: str, depth: int) -> Ragged:
    """Rows as one `Ragged` over a copy of their values."""
    if depth == 1:
        values: Array | Ragged = np.concatenate([np.zeros(0, dtype), *rows], dtype=dtype)
    else:
        values = joined([each for row in rows for each in row], dtype, depth - 1)
    return Ragged.from_lengths(values, [len(row) for row in rows])


def cast(values: Array, dtype: str, name: str) -> Array:
    """`values` in `dtype`, contiguous and little-endian; the very array where it is so already.

    Floats are rounded to a narrower float type (beyond its range: infinite); anything else must keep its value.

    Raises:
        ValueError: a value does not fit; the message names the column, `name`.
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

    Not by numpy: its maps keep a file descriptor each, and an output may have more shards than a process has those.

    Raises:
        FileNotFoundError: there is no such file.
    """
    import pyarrow as pa

    if not path.stat().st_size:
        return np.zeros(0, np.uint8)  # an empty file cannot be mapped
    with pa.memory_map(str(path)) as file:
        return np.frombuffer(file.read_buffer(), np.uint8)


def row_number(index: int, rows: int) -> int:
    """`index` counted from the front.

    Raises:
        IndexError: there is no such row.
    """
    number = index + rows if index < 0 else index
    if not 0 <= number < rows:
        raise IndexError(f"row {index} of {rows}")
    return number
