"""One shard <-> bytes. A new format is a file that keeps the contract of `Format`, its test, and a line here."""

from beam_prep.formats.array_record import ArrayRecord
from beam_prep.formats.arrow import Arrow
from beam_prep.formats.contract import Format, OpenFile, Row, ShardReader, ShardWriter
from beam_prep.formats.hdf5 import HDF5
from beam_prep.formats.mds import MDS
from beam_prep.formats.megatron import Megatron
from beam_prep.formats.mmap_bin import Bin
from beam_prep.formats.npy import Npy
from beam_prep.formats.parquet import Parquet
from beam_prep.formats.tfrecord import TFRecord

__all__ = [
    "FORMATS",
    "HDF5",
    "MDS",
    "ArrayRecord",
    "Arrow",
    "Bin",
    "Format",
    "Megatron",
    "Npy",
    "OpenFile",
    "Parquet",
    "Row",
    "ShardReader",
    "ShardWriter",
    "TFRecord",
]

FORMATS: dict[str, Format] = {
    "bin": Bin(),
    "tfrecord": TFRecord(),
    "arrow": Arrow(),
    "h5": HDF5(),
    "parquet": Parquet(),
    "megatron": Megatron(),
    "mds": MDS(),
    "npy": Npy(),
    "array_record": ArrayRecord(),
}
