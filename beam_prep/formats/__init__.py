"""Formats of shards. A new format needs a module with a subclass of `Format`, a test, and a line in `FORMATS`."""

from collections import UserDict
from collections.abc import MutableMapping
from importlib import import_module
from typing import Any

from beam_prep.formats.contract import Format, OpenFile, Row, ShardReader, ShardWriter

__all__ = ["FORMATS", "Format", "OpenFile", "Row", "ShardReader", "ShardWriter"]


class _Formats(UserDict[str, Any]):
    """Built-in formats are imported lazily."""

    def __setitem__(self, name: str, format: Any) -> None:
        if not isinstance(format, str | Format):
            raise TypeError(
                f"the format {name!r} is a {type(format).__name__}, wanted an object of a subclass of Format"
            )
        super().__setitem__(name, format)

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
