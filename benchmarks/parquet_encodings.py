"""Sizes and times of token ids and their mask in Parquet, by compression and encoding: why ours is as it is.

    python ../shared/bench/make_corpus.py chat 40 chat.jsonl
    with="-c benchmarks/configs/chat_last.json --tokenizer_path ../shared/tokenizers/qwen2.5"
    beam-prep run chat.jsonl -o out/chat $with
    python benchmarks/parquet_encodings.py out/chat

Each file is written and read three times in one thread; the least seconds of the processor count.
"""

import sys
import time
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import beam_prep as bp

ROWS = 4000
ENCODINGS = {"plain": "PLAIN", "delta": "DELTA_BINARY_PACKED", "byte stream split": "BYTE_STREAM_SPLIT"}


def table(output: str) -> pa.Table:
    """The ids of an output with labels, and which of them are trained."""
    rows = list(bp.open(output))
    borders = pa.array(np.cumsum([0, *(len(row["labels"]) for row in rows)]), pa.int32())
    ids, labels = (np.concatenate([row[name] for row in rows]) for name in ("input_ids", "labels"))
    columns = {"sequence": ids, "loss_mask": labels != -100}
    return pa.table({name: pa.ListArray.from_arrays(borders, pa.array(flat)) for name, flat in columns.items()})


def written(rows: pa.Table, compression: str, level: int | None, encoding: str) -> pa.Buffer:
    """A file."""
    how: dict[str, Any] = {"use_dictionary": encoding == "dictionary", "write_page_checksum": True}
    if encoding in ENCODINGS:
        how["column_encoding"] = {"sequence.list.element": ENCODINGS[encoding], "loss_mask.list.element": "PLAIN"}
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink, rows.schema, compression=compression, compression_level=level, write_statistics=False, **how
    ) as writer:
        for start in range(0, len(rows), ROWS):
            writer.write_table(rows.slice(start, ROWS))
    return sink.getvalue()


def least(call: Any) -> float:
    """Seconds of the processor, of three calls."""
    found = []
    for _ in range(3):
        start = time.process_time()
        call()
        found.append(time.process_time() - start)
    return min(found)


def main() -> None:
    rows = table(sys.argv[1])
    values = len(rows["sequence"].combine_chunks().values)
    print(f"{len(rows)} rows, {values} tokens, {5 * values / 1e6:.1f} MB of ids and masks")
    for compression, level in (("zstd", 1), ("zstd", 3), ("lz4", None), ("snappy", None), ("none", None)):
        for encoding in ("plain", "dictionary", "byte stream split", "delta"):
            data = written(rows, compression, level, encoding)
            wrote = least(lambda: written(rows, compression, level, encoding))  # noqa: B023
            read = least(lambda: pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False))  # noqa: B023
            name = f"{compression} {level or ''}".strip()
            print(f"{name:8} {encoding:18} {data.size / 1e6:6.1f} MB  written {wrote:.2f} s  read {read:.2f} s")


if __name__ == "__main__":
    main()
