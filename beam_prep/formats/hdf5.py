"""`h5`: one HDF5 file a shard, `<domain>/shard_0000.h5`, `shard_0001.h5` ...

    /<key>                 the values of all rows, one row after the other, in the column's dtype (bool: h5py's enum)
    /offsets/<key>         int64: row i is values[offsets[i]:offsets[i + 1]]
    /list_offsets/<key>    of a column of lists of lists: row borders, in inner lists
    /inner_offsets/<key>   of a column of lists of lists: borders of the inner lists, in values

    with h5py.File("out/wiki/shard_0000.h5") as file:
        borders = file["offsets/sequence"]
        row = file["sequence"][borders[7] : borders[8]]

The borders mean what they mean in `bin`. Every dataset is one-dimensional, little-endian, neither chunked nor
compressed: its values lie in one piece of the file, which our reader maps. (Chunks would pad every small shard to
complete chunks.)

HDF5 needs a file to seek in, and a dataset in one piece needs its size before its values. So values wait in temporary
files; at the end the HDF5 library lays out a file without values (temporary, too, and sparse), and our writer copies
that file and the values, each in its place, to the output. The bytes are a function of the rows: no times, no order of
creation, and `libver` begins with the oldest version, in which groups have no times either.

Source: HDF5 File Format Specification 3.0, IV.A.2.i "The Data Layout Message", contiguous storage.
"""

import os
import tempfile
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np

from beam_prep.data.ragged import Array, Ragged
from beam_prep.data.schema import Column
from beam_prep.errors import FormatError
from beam_prep.formats.contract import (
    ColumnsReader,
    FilesOfShard,
    Format,
    OpenFile,
    cast,
    check_rows,
    map_file,
)

__all__ = ["HDF5", "HDF5Reader", "HDF5Writer"]

PIECE = 1 << 20
"""Bytes that are copied at once, and that a dataset may take before it moves from memory to disk."""

_OFFSETS, _LISTS, _INNER = "offsets", "list_offsets", "inner_offsets"


class HDF5(Format):
    """The format `h5`; see the module."""

    name = "h5"
    libraries = ("h5py",)

    def writer(self, open_file: OpenFile, columns: Sequence[Column], shard: int, shards: int) -> "HDF5Writer":
        """See `Format.writer`. Takes the shard's size in the folder of temporary files (`TMPDIR`).

        Raises:
            ImportError: h5py is not installed.
            ValueError: a column has the name of one of the format's own groups.
        """
        _h5py()
        return HDF5Writer(open_file, columns, _file_name(shard))

    def files(self, columns: Sequence[Column], shard: int, shards: int) -> FilesOfShard:
        """See `Format`."""
        return {_file_name(shard): None}

    def read(self, folder: Path, columns: Sequence[Column], shard: int, shards: int) -> "HDF5Reader":
        """See `Format.read`. Maps the datasets; values are read when they are touched.

        Raises:
            ImportError: h5py is not installed.
        """
        return HDF5Reader(folder / _file_name(shard), columns)


def _file_name(shard: int) -> str:
    return f"shard_{shard:04d}.h5"


def _h5py() -> Any:
    """The module h5py: it is an extra, and it is large."""
    try:
        return import_module("h5py")
    except ImportError as error:
        raise ImportError(f"the format h5 needs h5py ({error}): pip install 'beam-prep[hdf5]'") from None


class HDF5Writer:
    """Keeps every dataset in a temporary file until `close`; 1 MB of each is in memory. See `ShardWriter`."""

    def __init__(self, open_file: OpenFile, columns: Sequence[Column], name: str) -> None:
        taken = sorted({column.name for column in columns} & {_OFFSETS, _LISTS, _INNER})
        if taken:
            raise ValueError(f"the format h5 has groups of its own named {', '.join(taken)}: rename these columns")
        self._columns = tuple(columns)
        self._file = open_file(name)
        self._values = {column.name: _Dataset(column.name, column.dtype) for column in columns}
        self._borders = {
            (group, column.name): _Borders(f"{group}/{column.name}")
            for column in columns
            for group in ([_OFFSETS] if column.levels == 1 else [_OFFSETS, _LISTS, _INNER])
        }

    def write(self, columns: Mapping[str, Ragged]) -> None:
        """See `ShardWriter.write`."""
        check_rows(self._columns, columns)
        for column in self._columns:
            name, rows = column.name, columns[column.name]
            self._values[name].append(cast(rows.flat, column.dtype, name))
            self._borders[_OFFSETS, name].append_lengths(rows.flat_lengths)
            if isinstance(rows.values, Ragged):
                self._borders[_LISTS, name].append_lengths(rows.lengths)
                self._borders[_INNER, name].append_lengths(rows.values.lengths)

    def close(self) -> None:
        """Writes the file and closes it; removes the temporary files."""
        datasets: list[_Dataset] = [*self._values.values(), *self._borders.values()]
        with tempfile.TemporaryFile() as empty:
            at = 0
            for offset, dataset in _lay_out(empty, datasets):
                self._copy(empty, at, offset)
                self._copy(dataset.file, 0, dataset.bytes)
                at = offset + dataset.bytes
            self._copy(empty, at, empty.seek(0, os.SEEK_END))
        for dataset in datasets:
            dataset.file.close()
        self._file.close()

    def _copy(self, source: IO[bytes], start: int, stop: int) -> None:
        """Copies bytes `start` to `stop` of a temporary file into the output."""
        source.seek(start)
        for at in range(start, stop, PIECE):
            self._file.write(source.read(min(PIECE, stop - at)))


class _Dataset:
    """A dataset that grows; its values wait in `file`."""

    def __init__(self, name: str, dtype: str) -> None:
        self.name = name
        self.dtype = np.dtype(dtype).newbyteorder("<")
        self.size = 0
        self.file: IO[bytes] = tempfile.SpooledTemporaryFile(max_size=PIECE)  # noqa: SIM115  (closed by the writer)

    @property
    def bytes(self) -> int:
        return self.size * self.dtype.itemsize

    def append(self, values: Array) -> None:
        """Adds values, which are contiguous and of the dataset's dtype."""
        self.size += len(values)
        if len(values):
            self.file.write(values.view(np.uint8).data)


class _Borders(_Dataset):
    """The running sum of lengths."""

    def __init__(self, name: str) -> None:
        super().__init__(name, "int64")
        self._end = np.zeros(1, self.dtype)
        self.append(self._end)

    def append_lengths(self, lengths: Array) -> None:
        ends = np.cumsum(lengths, dtype=self.dtype) + self._end
        self.append(ends)
        self._end = np.append(self._end, ends)[-1:]


def _lay_out(file: BinaryIO | IO[bytes], datasets: Sequence[_Dataset]) -> list[tuple[int, _Dataset]]:
    """Makes `file` an HDF5 file with these datasets, without their values.

    Returns:
        Where values belong (in bytes from the file's start), in order. Datasets without values have no place.
    """
    h5py = _h5py()
    storage = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    storage.set_layout(h5py.h5d.CONTIGUOUS)
    storage.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    storage.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    storage.set_obj_track_times(False)
    link = h5py.h5p.create(h5py.h5p.LINK_CREATE)
    link.set_create_intermediate_group(True)
    places = []
    # Aligned for mapped arrays of 8-byte numbers.
    aligned = {"alignment_threshold": 1, "alignment_interval": 8}
    with h5py.File(file, "w", libver=("earliest", "v110"), track_order=False, **aligned) as made:
        for dataset in datasets:
            kind = h5py.h5t.py_create(dataset.dtype, logical=True)
            space = h5py.h5s.create_simple((dataset.size,))
            offset = h5py.h5d.create(made.id, dataset.name.encode(), kind, space, storage, link).get_offset()
            if dataset.size:
                places.append((offset, dataset))
    return sorted(places, key=lambda place: place[0])


class HDF5Reader(ColumnsReader):
    """Rows of one shard, as views of its memory-mapped file; see `ShardReader`.

    Attributes:
        columns: every column, by name.
    """

    def __init__(self, path: Path, columns: Sequence[Column]) -> None:
        """Maps the datasets; the file is open for the time of this call only, so processes may fork.

        Raises:
            FormatError: the file is missing, cut, or does not hold these columns as our writer leaves them. (A changed
                value shows only in the manifest's sha256.)
            ImportError: h5py is not installed.
        """
        self._given = (path, tuple(columns))
        h5py = _h5py()
        try:
            with h5py.File(path, "r") as file:
                data = map_file(path)
                opened = {column.name: _open_column(data, file, column) for column in columns}
        except FileNotFoundError:
            raise FormatError(f"{path}: no such file") from None
        except (OSError, RuntimeError, KeyError, TypeError, ValueError) as error:
            raise FormatError(f"{path}: not a complete HDF5 file of these columns: {error}") from None
        super().__init__(opened, f"{path}: columns of different row counts", columns)

    def __reduce__(self) -> tuple[type["HDF5Reader"], tuple[Path, tuple[Column, ...]]]:
        # A pickled memmap is a copy of the file.
        return HDF5Reader, self._given


def _open_column(data: Array, file: Any, column: Column) -> Ragged:
    """The column over `data`, the mapped bytes of `file`.

    Raises:
        ValueError: it is not as the writer leaves it.
    """
    values = _values(data, file, column.name, column.dtype)
    offsets = _rising(data, file, f"{_OFFSETS}/{column.name}", len(values))
    if column.levels == 1:
        return Ragged(values, offsets)
    lists = Ragged(values, _rising(data, file, f"{_INNER}/{column.name}", len(values)))
    rows = Ragged(lists, _rising(data, file, f"{_LISTS}/{column.name}", len(lists)))
    if not np.array_equal(lists.offsets[rows.offsets], offsets):
        raise ValueError(f"column {column.name!r}: {_LISTS} and {_INNER} give other rows than {_OFFSETS}")
    return rows


def _rising(data: Array, file: Any, name: str, end: int) -> Array:
    """The borders in the dataset `name`, which must rise from 0 to `end`."""
    borders = _values(data, file, name, "int64")
    if len(borders) == 0 or borders[0] != 0 or borders[-1] != end or (np.diff(borders) < 0).any():
        raise ValueError(f"{name} do not rise from 0 to {end}")
    return borders


def _values(data: Array, file: Any, name: str, dtype: str) -> Array:
    """A dataset of the given dtype and one dimension."""
    dataset = file.get(name)
    found, shape = getattr(dataset, "dtype", None), getattr(dataset, "shape", None)
    if found != np.dtype(dtype) or shape is None or len(shape) != 1:
        raise ValueError(f"{name}: found dtype {found}, shape {shape}, wanted a list of {dtype}")
    stored = np.dtype(dtype).newbyteorder("<")
    if dataset.size == 0:
        return np.zeros(0, stored)
    offset = dataset.id.get_offset()
    if offset is None:
        raise ValueError(f"{name}: its values do not lie in one piece: another program stored them")
    values = data[offset : offset + dataset.size * stored.itemsize].view(stored)
    if len(values) != dataset.size:
        raise ValueError(f"{name}: found {len(values)} values, wanted {dataset.size}")
    return values
