"""Runs any config: JSONL files -> an output directory.

    python -m pipelines.preprocess 'data/*.jsonl' -o out/ -c configs/sft_chat.json --tokenizer_path path/to/tokenizer

The same as `beam-prep run`. Every option of Beam may follow; two worker processes, for instance:

    python -m pipelines.preprocess 'data/*.jsonl' -o out/ -c configs/sft_chat.json --tokenizer_path path/to/tokenizer \
        --direct_running_mode=multi_processing --direct_num_workers=2
"""

import sys

from beam_prep.cli import main

if __name__ == "__main__":
    sys.argv.insert(1, "run")
    sys.exit(main())
