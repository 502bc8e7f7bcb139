"""A filter of your own: long conversations are dropped, those with a code block are rejected with a reason.

    python examples/custom_filter.py out/filtered

Dropped records are counted in the manifest. Rejected ones are also in out/filtered/rejects, with file and byte offset,
and too many of them fail the run: max_reject_rate. Any option of Beam may follow.
"""

import argparse
from pathlib import Path
from typing import Any

import apache_beam as beam

import beam_prep as bp

HERE = Path(__file__).resolve().parent


def short_and_plain(record: dict[str, Any]) -> bool | str:
    """True keeps a record, False drops it, and a string rejects it with that reason."""
    if any("```" in message["content"] for message in record["messages"]):
        return "code_block"
    return len(record["messages"]) <= 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", help="the directory to make")
    args, beam_options = parser.parse_known_args()

    config = bp.PipelineConfig.from_json(HERE.parent / "configs" / "sft_chat.json")
    tokenizer = bp.Tokenizer.load(HERE / "tokenizer")
    # The runner is named: Beam's default would first try to download one.
    with beam.Pipeline(argv=["--runner=FnApiRunner", *beam_options]) as pipeline:
        _ = (
            pipeline
            | bp.ReadJSONL([str(HERE / "data" / "chat.jsonl")])
            | bp.FilterRecords(short_and_plain)
            | bp.ApplyTemplate(config.input, tokenizer)
            | bp.Tokenize(tokenizer)
            | bp.BuildMask(config.mask, config.mask_default)
            | bp.Truncate(config.preprocessing.max_seq_len)
            | bp.Shard(args.output, dtype=config.columns(), max_reject_rate=0.2, tokenizer=tokenizer)
        )
    ledger = bp.open(args.output).manifest["ledger"]
    print(f"kept {ledger['kept']} of {ledger['read']}; dropped {ledger['dropped']}; rejected {ledger['rejected']}")


if __name__ == "__main__":
    main()
