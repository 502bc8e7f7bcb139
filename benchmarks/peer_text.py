"""The peer of the text job: JSONL -> ids with EOS after each document, by Hugging Face `datasets.map`.

    python benchmarks/peer_text.py INPUT.jsonl OUTDIR TOKENIZER_DIR PROCESSES

What a user would write: load, map in batches, save. OUTDIR is emptied first. The last line printed is JSON.
"""

import json
import os
import shutil
import sys
import time
from typing import Any


def encode(batch: dict[str, list[str]], tokenizer: Any) -> dict[str, list[list[int]]]:
    ids = tokenizer(batch["text"], return_attention_mask=False, verbose=False)["input_ids"]
    return {"input_ids": [[*row, tokenizer.eos_token_id] for row in ids]}


def main(source: str, output: str, folder: str, processes: int) -> None:
    started = time.perf_counter()
    shutil.rmtree(output, ignore_errors=True)
    os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_CACHE=os.path.join(output, "cache"))
    if processes > 1:  # several processes: one thread each
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
    import datasets
    import pyarrow.compute as pc
    from transformers import AutoTokenizer

    datasets.disable_progress_bars()
    workers = processes if processes > 1 else None
    rows = datasets.load_dataset("json", data_files=source, split="train")
    rows = rows.map(
        encode,
        batched=True,
        num_proc=workers,
        remove_columns=rows.column_names,
        fn_kwargs={"tokenizer": AutoTokenizer.from_pretrained(folder)},
    )
    rows.save_to_disk(os.path.join(output, "data"), num_proc=workers)
    seconds = time.perf_counter() - started
    tokens = sum(pc.sum(pc.list_value_length(chunk)).as_py() for chunk in rows.data.column("input_ids").chunks)
    print(json.dumps({"rows": len(rows), "tokens": tokens, "total_s": round(seconds, 2)}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
