"""`arrow`: a domain's folder has the layout that `Dataset.save_to_disk` of Hugging Face's `datasets` writes.

    <domain>/data-00000-of-00003.arrow  ...            one file a shard
    <domain>/state.json  <domain>/dataset_info.json    describe the domain; written with shard 0

    rows = datasets.load_from_disk("out/wiki")     # memory-mapped; rows["sequence"] are list columns

* A shard is an Arrow IPC *stream*, uncompressed: a schema, record batches, the end marker. Columns are
  `list<item: dtype>` (depth 2: `list<item: list<item: dtype>>`) without nulls; bool values are bits.
* A record batch holds the next `batch_rows` rows, or fewer if their values exceed `batch_bytes`. So batches, and the
  bytes of the file, depend only on the rows.
* Features are written as `Sequence`, which every version of datasets reads; the `List` of version 4 fails in version 3.
* `_fingerprint` is null, so datasets makes one from the paths and times of the files. `map` names its caches by the
  fingerprint. Shard 0 does not know the rows of other shards, so a fingerprint written with it could stay the same
  although the rows changed, and `map` would use the cache of another dataset.

Sources: arrow.apache.org/docs/format/Columnar.html, "IPC Streaming Format"; datasets/arrow_dataset.py, `save_to_disk`
and `load_from_disk`; datasets/arrow_writer.py, `_build_metadata` (the schema's key `huggingface`).
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow as pa

from beam_prep.data.ragged import Ragged
from beam_prep.data.schema import Column
from beam_prep.formats.batches import Batches, BatchReader, check_types, features
from beam_prep.formats.contract import FileFormat, FilesOfShard, OpenFile
from beam_prep.formats.manifest import DATASET_DICT, ShardReceipt, dump

__all__ = ["Arrow", "ArrowReader", "ArrowWriter"]

STATE, INFO = "state.json", "dataset_info.json"

_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"


class Arrow(FileFormat):
    """The format `arrow`; see the module."""

    name = "arrow"
    file_name = "data-{shard:05d}-of-{shards:05d}.arrow"
    batch_rows = 1000
    """Most rows of a record batch: the default of datasets."""
    batch_bytes = 1 << 22
    """Most bytes of the values of a record batch (a bool counts as one byte). A larger row gets a batch of its own."""

    def writer(self, open_file: OpenFile, columns: Sequence[Column], shard: int, shards: int) -> "ArrowWriter":
        """See `Format.writer`. Shard 0 also writes the domain's `state.json` and `dataset_info.json`."""
        return ArrowWriter(self, open_file, columns, shard, shards)

    def files(self, columns: Sequence[Column], shard: int, shards: int) -> FilesOfShard:
        """See `Format`."""
        return {self.file(shard, shards): None, **_described(columns, shard, shards)}

    def described(
        self, columns: Sequence[Column], domains: Mapping[str, str], shards: Sequence[ShardReceipt]
    ) -> dict[str, bytes]:
        """See `Format`. The folder of a split opens as one dataset with all domains of the split."""
        splits = list(dict.fromkeys(shard.split for shard in shards if shard.split is not None))
        # With this file, `datasets.load_from_disk` opens the parent folder as a `DatasetDict` of these folders.
        found = {DATASET_DICT: dump({"splits": splits or sorted(domains.values())})}
        of_part = Counter(shard.part for shard in shards)
        for split in splits:
            names = [
                f"{domains[shard.domain]}/{self.file(shard.shard, of_part[shard.part])}"
                for shard in shards
                if shard.split == split
            ]
            state = {**_state(0), "_data_files": [{"filename": name} for name in names]}
            found |= {f"{split}/{STATE}": dump(state), f"{split}/{INFO}": dump(_info(columns))}
        return found

    def read(self, folder: Path, columns: Sequence[Column], shard: int, shards: int) -> "ArrowReader":
        """See `Format.read`. Reads the heads of the record batches; values are mapped into memory."""
        return ArrowReader(folder / self.file(shard, shards), columns)


def _state(shards: int) -> dict[str, Any]:
    return {
        "_data_files": [{"filename": Arrow.file_name.format(shard=shard, shards=shards)} for shard in range(shards)],
        "_fingerprint": None,
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": None,
    }


def _info(columns: Sequence[Column]) -> dict[str, Any]:
    return {"citation": "", "description": "", "features": features(columns), "homepage": "", "license": ""}


def _described(columns: Sequence[Column], shard: int, shards: int) -> dict[str, bytes]:
    """The files that describe a domain; only shard 0 has them."""
    described = {STATE: _state(shards), INFO: _info(columns)} if shard == 0 else {}
    return {name: json.dumps(content, indent=2).encode() for name, content in described.items()}


class ArrowWriter:
    """Writes each record batch when it is full; at most one batch is in memory. See `ShardWriter`."""

    def __init__(self, format: Arrow, open_file: OpenFile, columns: Sequence[Column], shard: int, shards: int) -> None:
        self._open_file, self._described = open_file, _described(columns, shard, shards)
        self._file = open_file(format.file(shard, shards))
        self._batches = Batches(columns, format.batch_rows, format.batch_bytes, self._put)
        self._file.write(memoryview(self._batches.schema.serialize()))

    def write(self, columns: Mapping[str, Ragged]) -> None:
        """See `ShardWriter.write`."""
        self._batches.add(columns)

    def _put(self, batch: pa.RecordBatch) -> None:
        self._file.write(memoryview(batch.serialize()))

    def close(self) -> None:
        """Writes the last batch and closes the file; then, for shard 0, the files that describe the domain."""
        self._batches.flush()
        self._file.write(_END)
        self._file.close()
        for name, content in self._described.items():
            # No `with`: an exception must not close, and thereby publish, a cut file on an object store.
            file = self._open_file(name)
            file.write(content)
            file.close()


class ArrowReader(BatchReader):
    """Rows of one shard, as views of its memory-mapped file (bools are copied); see `ShardReader`."""

    def _open(self) -> None:
        # The mapped memory outlives the file. An open file would keep a file descriptor.
        with pa.memory_map(str(self._path)) as source:
            stream = pa.ipc.open_stream(source)
            check_types(stream.schema, self._columns)
            self._batches, end = list[pa.RecordBatch](), source.tell()
            for batch in stream:
                batch.validate()
                self._batches.append(batch.select([column.name for column in self._columns]))
                end = source.tell()
            # Arrow takes a file that is cut between two batches for a complete one.
            if source.size() != end + len(_END) or source.read_at(len(_END), end) != _END:
                raise ValueError("its end is missing")
        self._starts = list(accumulate((batch.num_rows for batch in self._batches), initial=0))

    def _batch(self, number: int) -> pa.RecordBatch:
        return self._batches[number]
