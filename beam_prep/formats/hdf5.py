"""`h5`: one HDF5 file a shard, `<domain>/shard_0000.h5`, `shard_0001.h5` ...

    /<key>                 the values of all rows, one row after the other, in the column's dtype (bool: h5py's enum)
    /offsets/<key>         int64: row i is values[offsets[i]:offsets[i + 1]]
    /list_offsets/<key>    for lists of lists: offsets of rows, in inner lists
    /inner_offsets/<key>   for lists of lists: offsets of inner lists, in values

    with h5py.File("out/wiki/shard_0000.h5") as file:
        borders = file["offsets/sequence"]
        row = file["sequence"][borders[7] : borders[8]]

The offsets mean the same as in `bin`. Every dataset is one-dimensional, little-endian, neither chunked nor compressed.
So its values lie in one piece of the file, which our reader maps. (Chunks would pad every small shard to complete
chunks.)

HDF5 must seek in its file, and a dataset in one piece needs its size before its values. So values are kept in temporary
files. At the end the HDF5 library writes them to a temporary HDF5 file, which is copied to the output. The bytes depend
only on the rows: no times and no order of creation are stored, and `libver` begins with the oldest version, in which
groups have no times.

Source: HDF5 File Format Specification 3.0, IV.A.2.i "The Data Layout Message", contiguous storage.
"""

import io
import shutil
import tempfile
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import IO, Any

import numpy as np

from beam_prep.data.ragged import Array, Ragged
from beam_prep.data.schema import Column
from beam_prep.formats import OpenFile, in_temporary_folder, map_file
from beam_prep.formats.flat import INNER, LISTS, OFFSETS, FlatFormat, FlatWriter, rows_over

_GROUPS = (OFFSETS, LISTS, INNER)
"""The groups, in their order in a file."""


class HDF5Writer(FlatWriter):
    """Keeps the values of each column in a temporary file until `close`; up to 1 MB of each column is in memory."""

    def __init__(self, format: "HDF5", open_file: OpenFile, columns: Sequence[Column], shard: int, shards: int) -> None:
        self._file, self._piece = open_file(format.file(shard, shards)), format.piece
        super().__init__(format, self._waiting, columns, shard, shards)

    def _waiting(self, name: str) -> IO[bytes]:
        return tempfile.SpooledTemporaryFile(max_size=self._piece)  # closed by `close`

    def close(self) -> None:
        """Writes the HDF5 file to a temporary file, copies it to the output, and removes the temporary files."""
        # Alignment for mapped arrays of 8-byte numbers.
        how = {"libver": ("earliest", "v110"), "alignment_threshold": 1, "alignment_interval": 8}
        with in_temporary_folder():
            made = tempfile.TemporaryFile()  # noqa: SIM115
        with made:
            with in_temporary_folder(), import_module("h5py").File(made, "w", track_order=False, **how) as file:
                for each in self._flat:
                    _add(file, each.column.name, each.column.dtype, each.size, each.file, self._piece)
                    each.file.close()
                for each in self._flat:
                    found = each.borders()
                    for group in (name for name in _GROUPS if name in found):
                        if group not in file:
                            file.create_group(group, track_order=False)
                        values = io.BytesIO(found[group].astype("<i8", copy=False).data)
                        _add(file, f"{group}/{each.column.name}", "int64", len(found[group]), values, self._piece)
            made.seek(0)
            shutil.copyfileobj(made, self._file, self._piece)
        self._file.close()


def _add(file: Any, name: str, dtype: str, size: int, values: IO[bytes], piece: int) -> None:
    """Adds a contiguous dataset to an HDF5 file, `piece` values at a time."""
    h5py, stored = import_module("h5py"), np.dtype(dtype).newbyteorder("<")
    storage = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    storage.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    tracked = {"track_times": False, "track_order": False}
    dataset = file.create_dataset(name, (size,), stored, dcpl=storage, fill_time="never", **tracked)
    values.seek(0)
    for at in range(0, size, piece):
        dataset[at : at + piece] = np.frombuffer(values.read(piece * stored.itemsize), stored)


def _open_column(data: Array, file: Any, column: Column) -> Ragged:
    """The column over `data`, the mapped bytes of `file`.

    Raises:
        ValueError: our writer does not store the column like this.
    """
    values = _values(data, file, column.name, column.dtype)
    return rows_over(values, column, lambda group: _values(data, file, f"{group}/{column.name}", "int64"))


def _values(data: Array, file: Any, name: str, dtype: str) -> Array:
    """The values of a dataset with this dtype and one dimension."""
    dataset, stored = file[name], np.dtype(dtype).newbyteorder("<")
    if getattr(dataset, "dtype", None) != stored or getattr(dataset, "ndim", None) != 1:  # a group, a named type
        raise ValueError(f"{name}: found {dataset}, wanted a list of {dtype}")
    if dataset.size == 0:
        return np.zeros(0, stored)
    offset = dataset.id.get_offset()
    if offset is None:
        raise ValueError(f"{name}: its values do not lie in one piece: another program stored them")
    return data[offset : offset + dataset.size * stored.itemsize].view(stored)


class HDF5(FlatFormat):
    """The format `h5`; see the module. A writer needs room for the shard in `TMPDIR`."""

    name = "h5"
    file_name = "shard_{shard:04d}.h5"
    libraries = ("h5py",)
    extra = "hdf5"
    writes = HDF5Writer
    piece = 1 << 20
    """Bytes that are copied, and values that are written, at a time; a dataset of more bytes moves to disk."""

    def values_file(self, column: Column, shard: int, shards: int) -> str:
        return column.name

    def open_columns(self, folder: Path, columns: Sequence[Column], shard: int, shards: int) -> dict[str, Ragged]:
        """See `FlatFormat`. The file is open only during this call, so processes may fork."""
        path = folder / self.file(shard, shards)
        with import_module("h5py").File(path, "r") as file:
            data = map_file(path)
            return {column.name: _open_column(data, file, column) for column in columns}
