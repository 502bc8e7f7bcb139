"""The steps of a config, written by hand: chat records -> shifted labels, as bin and as TFRecord.

    python examples/hand_written_chain.py out/by_hand

Any option of Beam may follow, for instance --direct_running_mode=multi_processing --direct_num_workers=2.
"""

import argparse
from pathlib import Path
from typing import Any

import apache_beam as beam

import beam_prep as bp

HERE = Path(__file__).resolve().parent


def is_short(record: dict[str, Any]) -> bool:
    """Keeps conversations of at most five messages."""
    return len(record["messages"]) <= 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", help="the directory to make")
    parser.add_argument("--input", default=str(HERE / "data" / "chat.jsonl"), help="JSONL files, or a quoted glob")
    parser.add_argument("--tokenizer", default=str(HERE / "tokenizer"), help="a tokenizer's folder, or its Hub name")
    args, beam_options = parser.parse_known_args()

    tokenizer = bp.Tokenizer.load(args.tokenizer)
    chat = bp.Output("sequence", "ids", (bp.Section("messages", "$role", template="message"),), mask_name="loss_mask")
    # The runner is named: Beam's default would first try to download one.
    with beam.Pipeline(argv=["--runner=FnApiRunner", *beam_options]) as pipeline:
        _ = (
            pipeline
            | bp.ReadJSONL([args.input])
            | bp.FilterRecords(is_short)
            | bp.ApplyTemplate([chat], tokenizer, domain_key="domain")
            | bp.Tokenize(tokenizer)
            | bp.BuildMask({"assistant": "train"})
            | bp.Truncate(2048)
            | bp.Shift()
            | bp.Shard(args.output, formats=["bin", "tfrecord"], tokenizer=tokenizer)
        )
    print(bp.open(args.output))


if __name__ == "__main__":
    main()
