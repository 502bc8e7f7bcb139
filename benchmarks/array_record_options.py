"""Sizes and times of Examples in ArrayRecord files, by options of the library: why ours are as they are.

    python ../shared/bench/make_corpus.py chat 20 chat.jsonl
    with="-c benchmarks/configs/chat_last.json --tokenizer_path ../shared/tokenizers/qwen2.5"
    beam-prep run chat.jsonl -o out/chat $with
    python benchmarks/array_record_options.py out/chat

Of each, the least of three: seconds of the processor for all records, and microseconds for a random one of 2,000.
"""

import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

import beam_prep as bp
from beam_prep.data.ragged import Ragged
from beam_prep.formats.array_record import READ, WRITE
from beam_prep.formats.example import encode_examples

OPTIONS = (WRITE, "group_size:1,zstd:3", "group_size:1,snappy", "group_size:1,uncompressed", "group_size:16,zstd:1")


def records(dataset: Any) -> list[bytes]:
    """The Examples of all rows."""
    return [
        example
        for row in dataset
        for example in encode_examples(
            dataset.schema, {name: Ragged.from_lengths(row[name], [len(row[name])]) for name in row}
        )
    ]


def main() -> None:
    library: Any = import_module("array_record.python.array_record_module")
    rows = records(bp.open(sys.argv[1]))
    drawn = np.random.default_rng(0).integers(0, len(rows), 2000).tolist()
    print(f"{len(rows)} records, {sum(map(len, rows)) / 1e6:.1f} MB")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "records"
        for options in OPTIONS:
            wrote, read = [], []
            for _ in range(3):
                start = time.process_time()
                writer = library.ArrayRecordWriter(str(path), options)
                for row in rows:
                    writer.write(row)
                writer.close()
                middle = time.process_time()
                reader = library.ArrayRecordReader(str(path), READ)
                for number in drawn:
                    reader.read([number])
                wrote.append(middle - start)
                read.append(time.process_time() - middle)
            size, each = path.stat().st_size / 1e6, min(read) / len(drawn) * 1e6
            print(f"{options:40} {size:5.1f} MB  written {min(wrote):.2f} s  a random row {each:.0f} us")


if __name__ == "__main__":
    main()
