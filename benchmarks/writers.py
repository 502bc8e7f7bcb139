"""Our writers of TFRecord, Arrow and HDF5 beside the libraries that usually write these formats: seconds for one shard.

    python benchmarks/writers.py                  # needs TensorFlow, pyarrow and h5py
    python benchmarks/writers.py --rows 500       # a smoke test

The shard has ids (int32) and a mask (bool), in rows of log-normal lengths. Both sides write the same rows to a local
disk, in turns; the table has the medians, and says whether both files have the same bytes.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
from _measure import say
from _page import machine, table

from beam_prep.data.ragged import Array, Ragged, offsets_of
from beam_prep.data.schema import Column
from beam_prep.formats import FORMATS
from beam_prep.formats.arrow import BATCH_ROWS
from beam_prep.formats.batches import schema_of

COLUMNS = (Column("sequence", "int32", 1, "ids"), Column("loss_mask", "bool", 1, "mask", of="sequence"))
Shard = dict[str, Ragged]


def make(rows: int) -> Shard:
    """A shard of random ids; the second half of each row is trained."""
    random = np.random.default_rng(0)
    offsets = offsets_of(random.lognormal(5.5, 0.7, rows).astype(np.int64) + 1)
    ids = Ragged(random.integers(0, 150_000, offsets[-1]).astype(np.int32), offsets)
    trained = np.arange(offsets[-1]) - np.repeat(offsets[:-1], ids.lengths) >= np.repeat(ids.lengths // 2, ids.lengths)
    return {"sequence": ids, "loss_mask": Ragged(trained.astype(np.uint8), offsets)}


def ours(name: str) -> Callable[[Shard, Path], Path]:
    """Writes a shard with the format of that name."""

    def write(shard: Shard, folder: Path) -> Path:
        paths = []

        def open_file(path: str) -> BinaryIO:
            paths.append(folder / path)
            return open(paths[-1], "xb")

        writer = FORMATS[name].writer(open_file, COLUMNS, 0, 1)
        writer.write(shard)
        writer.close()
        return paths[0]

    return write


def by_tensorflow(shard: Shard, folder: Path) -> Path:
    tf: Any = import_module("tensorflow")

    path = folder / "theirs"
    with tf.io.TFRecordWriter(str(path)) as file:
        for row in range(len(shard["sequence"])):
            feature = {
                name: tf.train.Feature(int64_list=tf.train.Int64List(value=values[row]))
                for name, values in shard.items()
            }
            example = tf.train.Example(features=tf.train.Features(feature=feature))
            file.write(example.SerializeToString(deterministic=True))
    return path


def by_pyarrow(shard: Shard, folder: Path) -> Path:
    path = folder / "theirs"
    schema = schema_of(COLUMNS)  # with the metadata that `datasets` reads
    with open(path, "wb") as file, pa.ipc.new_stream(pa.PythonFile(file), schema) as writer:
        for start in range(0, len(shard["sequence"]), BATCH_ROWS):
            part = {name: values[start : start + BATCH_ROWS] for name, values in shard.items()}
            arrays = [
                pa.ListArray.from_arrays(pa.array(rows.offsets.astype(np.int32)), pa.array(_stored(name, rows)))
                for name, rows in part.items()
            ]
            writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
    return path


def by_h5py(shard: Shard, folder: Path) -> Path:
    h5py: Any = import_module("h5py")

    path = folder / "theirs"
    with h5py.File(path, "w") as file:
        for name, values in shard.items():
            file.create_dataset(name, data=_stored(name, values))
            file.create_dataset(f"offsets/{name}", data=values.offsets)
    return path


def _stored(name: str, rows: Ragged) -> Array:
    return rows.flat.view(bool) if name == "loss_mask" else rows.flat


PEERS: dict[str, tuple[str, Callable[[Shard, Path], Path]]] = {
    "tfrecord": ("tensorflow", by_tensorflow),
    "arrow": ("pyarrow, new_stream", by_pyarrow),
    "h5": ("h5py, all values in memory", by_h5py),
}


def measure(name: str, shard: Shard, repeats: int) -> Sequence[str]:
    """A row of the table."""
    peer, theirs = PEERS[name]
    seconds: list[list[float]] = [[], []]
    equal = True
    for _ in range(repeats):
        written = []
        for write, found in ((ours(name), seconds[0]), (theirs, seconds[1])):
            with tempfile.TemporaryDirectory() as folder:
                started = time.perf_counter()
                path = write(shard, Path(folder))
                found.append(time.perf_counter() - started)
                written.append(path.read_bytes())
        equal = equal and written[0] == written[1]
    mine, other = map(statistics.median, seconds)
    return [f"`{name}`", f"{mine:.3f}", peer, f"{other:.3f}", f"{other / mine:.1f}", "yes" if equal else "no"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    shard = make(given.rows)
    rows = []
    for name in PEERS:
        say(name)
        measure(name, make(10), 1)  # libraries are imported
        rows.append(measure(name, shard, given.repeats))
    print(f"{machine()}\n\n{given.rows:,} rows, {len(shard['sequence'].flat):,} tokens.\n")
    print(table(["format", "ours, s", "usual writer", "s", "ratio", "same bytes"], rows, left=[0, 2, 5]))


if __name__ == "__main__":
    main()
