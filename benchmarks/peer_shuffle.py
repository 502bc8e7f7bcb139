"""The peer of a shuffle: chats in JSONL -> shuffled rows with labels, by Hugging Face `datasets`.

    python benchmarks/peer_shuffle.py INPUT.jsonl OUTDIR TOKENIZER_DIR PROCESSES

What a user would write: load, map in batches, shuffle, flatten the indices, save. The last message is trained. OUTDIR
is emptied first. The last line printed is JSON.
"""

import json
import os
import shutil
import sys
import time
from typing import Any

MAX_LENGTH = 2048
IGNORED = -100


def encode(batch: dict[str, list[Any]], tokenizer: Any) -> dict[str, list[list[int]]]:
    chats = batch["messages"]
    texts = tokenizer.apply_chat_template(chats, tokenize=False)
    before = [chat[:-1] for chat in chats]
    prompts = tokenizer.apply_chat_template(before, tokenize=False, add_generation_prompt=True)
    options = {"add_special_tokens": False, "truncation": True, "max_length": MAX_LENGTH}
    ids = tokenizer(texts, return_attention_mask=False, **options)["input_ids"]
    known = tokenizer(prompts, return_attention_mask=False, **options)["input_ids"]
    labels = [
        [*[IGNORED] * min(len(prompt), len(row)), *row[len(prompt) :]] for row, prompt in zip(ids, known, strict=True)
    ]
    return {"input_ids": ids, "labels": labels}


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
    tokenizer = AutoTokenizer.from_pretrained(folder)
    rows = rows.map(
        encode, batched=True, num_proc=workers, remove_columns=rows.column_names, fn_kwargs={"tokenizer": tokenizer}
    )
    rows = rows.shuffle(seed=17).flatten_indices(num_proc=workers)
    rows.save_to_disk(os.path.join(output, "data"), num_proc=workers)
    seconds = time.perf_counter() - started
    tokens = sum(pc.sum(pc.list_value_length(chunk)).as_py() for chunk in rows.data.column("input_ids").chunks)
    shutil.rmtree(os.path.join(output, "cache"))
    print(json.dumps({"rows": len(rows), "tokens": tokens, "total_s": round(seconds, 2)}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
