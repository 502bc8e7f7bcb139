"""A format of your own: every row is a line of JSON. `python examples/custom_format.py out/lines`

A format that a script registers is known only in its own process. docs/extending.md says how to add one for all.
"""

import argparse
import json
from pathlib import Path

import apache_beam as beam
import numpy as np

import beam_prep as bp
from beam_prep.formats import FORMATS, Format
from beam_prep.recipe import Prepare

HERE = Path(__file__).resolve().parent


class JsonLines(Format):
    name = "my_lines"
    sizes_in = "bytes"

    def writer(self, open_file, columns, shard, shards):
        return Writer(open_file(f"shard_{shard:04d}.jsonl"))

    def read(self, folder, columns, shard, shards):
        return Reader((folder / f"shard_{shard:04d}.jsonl").read_bytes().splitlines(), columns)


class Writer:
    def __init__(self, file):
        self.file, self.close = file, file.close

    def write(self, columns):
        for row in zip(*(rows.to_lists() for rows in columns.values()), strict=True):
            self.file.write(json.dumps(dict(zip(columns, row, strict=True))).encode() + b"\n")


class Reader(list):  # a list of lines, so that it has a length
    def __init__(self, lines, columns):
        super().__init__(lines)
        self.columns = columns

    def sizes(self):
        return np.array([len(line) for line in self], np.int64)

    def row(self, index):
        row = json.loads(self[index])
        return {c.name: bp.Ragged.from_lists([row[c.name]], c.dtype, c.depth)[0] for c in self.columns}


FORMATS["my_lines"] = JsonLines()

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", help="the directory to make")
    output = parser.parse_args().output
    config = bp.PipelineConfig.from_json(HERE.parent / "configs" / "grpo.json")
    tokenizer = bp.Tokenizer.load(HERE / "tokenizer")
    with beam.Pipeline("FnApiRunner") as pipeline:
        batches = pipeline | bp.ReadJSONL([str(HERE / "data" / "rollouts.jsonl")]) | Prepare(config, tokenizer)
        _ = batches | bp.Shard(output, formats=["my_lines"], tokenizer=tokenizer)
    print(bp.open(output)[0])
