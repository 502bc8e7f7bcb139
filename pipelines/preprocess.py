"""Runs a config on JSONL files and writes an output directory.

    python -m pipelines.preprocess 'data/*.jsonl' -o out/ -c configs/sft_chat.json --tokenizer_path path/to/tokenizer

It does the same as `beam-prep run`. Options of Beam may follow, for instance two worker processes:

    python -m pipelines.preprocess 'data/*.jsonl' -o out/ -c configs/sft_chat.json --tokenizer_path path/to/tokenizer \
        --direct_running_mode=multi_processing --direct_num_workers=2
"""

import sys

from beam_prep.cli import main

if __name__ == "__main__":
    sys.argv.insert(1, "run")
    sys.exit(main())
