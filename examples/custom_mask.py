"""A mask of your own: trains the last answer of every conversation, if it is not longer than 64 tokens.

    python examples/custom_mask.py out/masked

Any option of Beam may follow.
"""

import argparse
from pathlib import Path

import apache_beam as beam
import numpy as np

import beam_prep as bp

HERE = Path(__file__).resolve().parent


def short_last_answer(segments: bp.Segments) -> np.ndarray:
    """Takes arrays with one entry per segment (a message); returns one bool per segment: True if it is trained."""
    # A message may be several segments, of the same sequence and turn: their tokens are added up.
    _, message = np.unique([segments.sequence, segments.turn], axis=1, return_inverse=True)
    message = message.ravel()
    tokens = np.bincount(message, segments.stop - segments.start)
    return segments.is_role("assistant") & segments.is_last_of_role() & (tokens[message] <= 64)


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
            | bp.ApplyTemplate(config.input, tokenizer)
            | bp.Tokenize(tokenizer)
            | bp.BuildMask(short_last_answer)
            | bp.Truncate(config.preprocessing.max_seq_len)
            # Conversations whose last answer is longer have nothing to train on: they are dropped and counted. More
            # than max_no_loss_rate of them would fail the run; here many are dropped on purpose.
            | bp.Shard(
                args.output, dtype=config.columns(), rows_without_loss="drop", max_no_loss_rate=1.0, tokenizer=tokenizer
            )
        )
    dataset = bp.open(args.output)
    print(f"kept {len(dataset)}; dropped {dataset.manifest['ledger']['dropped']}")


if __name__ == "__main__":
    main()
