"""The peer of `marginal.py`: makes rows of ids and masks from JSONL with Hugging Face `datasets.map`.

    python benchmarks/peer_datasets.py SHAPE INPUT.jsonl OUTDIR TOKENIZER_DIR PROCESSES [--longest 2048]

It is what a user would write with transformers: load, one map in batches, save. If only answers are trained, the
tokenizer's template must mark the assistant's text ({% generation %}). OUTDIR is emptied first. The last printed line
is JSON. It does less than beam-prep if a user would need more steps: `domains` keeps the domain as a column and writes
no folders, `packed` saves Arrow files and no TFRecord.
"""

import argparse
import bisect
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

IGNORED = -100

Batch = dict[str, list[Any]]


def labelled(ids: Sequence[list[int]], masks: Sequence[list[int]]) -> Batch:
    labels = [[i if kept else IGNORED for i, kept in zip(*row, strict=True)] for row in zip(ids, masks, strict=True)]
    return {"input_ids": list(ids), "labels": labels}


# Conversations: the template marks the trained text.


def chats(batch: Batch, tokenizer: Any, longest: int) -> Batch:
    return _conversations(batch["messages"], tokenizer, longest)


def domains(batch: Batch, tokenizer: Any, longest: int) -> Batch:
    return {**chats(batch, tokenizer, longest), "domain": batch["domain"]}


def alpaca(batch: Batch, tokenizer: Any, longest: int) -> Batch:
    found = []
    for asked, given, answer in zip(batch["instruction"], batch["input"], batch["output"], strict=True):
        user = {"role": "user", "content": f"{asked}\n{given}" if given.strip() else asked}
        found.append([user, {"role": "assistant", "content": answer}])
    return _conversations(found, tokenizer, longest)


def tools(batch: Batch, tokenizer: Any, longest: int) -> Batch:
    """Renders each record alone, because transformers takes one list of tools a batch."""
    ids, masks = [], []
    for messages, schemas in zip(batch["messages"], batch["tools"], strict=True):
        row = _rendered(messages, tokenizer, longest, tools=schemas)
        ids.append(row["input_ids"])
        masks.append(row["assistant_masks"])
    return labelled(ids, masks)


def packed(batch: Batch, tokenizer: Any, longest: int) -> Batch:
    """The documents of a batch are packed together."""
    rows = chats(batch, tokenizer, longest)
    lengths = [len(ids) for ids in rows["input_ids"]]
    bins = best_fit(lengths, longest)
    found = {name: [[i for row in rows_of for i in rows[name][row]] for rows_of in bins] for name in rows}
    return {**found, "seq_lengths": [[lengths[row] for row in rows_of] for rows_of in bins]}


def best_fit(lengths: Sequence[int], longest: int) -> list[list[int]]:
    """The documents of each bin: the longest document first, each into the bin with the least room that holds it."""
    bins: list[list[int]] = []
    free: list[tuple[int, int]] = []  # (tokens, bin), sorted
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        place = bisect.bisect_left(free, (lengths[row], -1))
        if place == len(free):
            space, number = longest, len(bins)
            bins.append([])
        else:
            space, number = free.pop(place)
        bins[number].append(row)
        bisect.insort(free, (space - lengths[row], number))
    return bins


def _conversations(messages: list[Any], tokenizer: Any, longest: int) -> Batch:
    found = _rendered(messages, tokenizer, longest)
    return labelled(found["input_ids"], found["assistant_masks"])


def _rendered(messages: list[Any], tokenizer: Any, longest: int, **options: Any) -> Any:
    return tokenizer.apply_chat_template(
        messages, return_dict=True, return_assistant_tokens_mask=True, truncation=True, max_length=longest, **options
    )


# A prompt and its answer: the prompt is also encoded alone, to find its end.


def preference(batch: Batch, tokenizer: Any, longest: int) -> Batch:
    """The common beginning of both sides is the prompt."""
    begun = _prompts([_common(*sides) for sides in zip(batch["chosen"], batch["rejected"], strict=True)], tokenizer)
    found: Batch = {}
    for side in ("chosen", "rejected"):
        found[side], found[f"{side}_mask"] = _followed(begun, batch[side], tokenizer, longest)
    return found


def _common(left: list[Any], right: list[Any]) -> list[Any]:
    number = 0
    while number < min(len(left), len(right)) and left[number] == right[number]:
        number += 1
    return left[:number]


def _prompts(prompts: list[Any], tokenizer: Any) -> list[list[int]]:
    """The ids of prompts with the generation prompt."""
    ids: list[list[int]] = tokenizer.apply_chat_template(prompts, add_generation_prompt=True)["input_ids"]
    return ids


def _followed(
    prompts: list[list[int]], whole: list[Any], tokenizer: Any, longest: int
) -> tuple[list[list[int]], list[list[int]]]:
    """(ids, masks) of conversations; tokens after the prompt's ids are trained."""
    ids = tokenizer.apply_chat_template(whole, truncation=True, max_length=longest)["input_ids"]
    return ids, [_after(len(prompt), row) for prompt, row in zip(prompts, ids, strict=True)]


def _after(border: int, row: list[int]) -> list[int]:
    return [int(place >= border) for place in range(len(row))]


def rollouts(batch: Batch, tokenizer: Any, longest: int) -> Batch:
    prompts = tokenizer.apply_chat_template(batch["prompt"], truncation=True, max_length=longest)["input_ids"]
    texts = [text for row in batch["responses"] for text in row]
    encoded = iter(tokenizer(texts, add_special_tokens=False, truncation=True, max_length=longest)["input_ids"])
    responses = [[next(encoded) for _ in row] for row in batch["responses"]]
    masks = [[[1] * len(ids) for ids in row] for row in responses]
    return {"prompts": prompts, "responses": responses, "masks": masks, "rewards": batch["rewards"]}


# Documents.


def documents(batch: Batch, tokenizer: Any, longest: int) -> Batch:
    """Texts with EOS, not cut."""
    ids = tokenizer(batch["text"], return_attention_mask=False, verbose=False)["input_ids"]
    return {"input_ids": [[*row, tokenizer.eos_token_id] for row in ids]}


SHAPES: dict[str, Callable[[Batch, Any, int], Batch]] = {
    function.__name__: function for function in (chats, domains, alpaca, tools, packed, preference, rollouts, documents)
}
_IDS = ("input_ids", "chosen", "rejected", "prompts", "responses")
_MASKS = ("chosen_mask", "rejected_mask", "masks")


def main() -> None:
    started = time.perf_counter()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=SHAPES)
    for name in ("input", "output", "tokenizer"):
        parser.add_argument(name)
    parser.add_argument("processes", type=int)
    parser.add_argument("--longest", type=int, default=2048)
    given = parser.parse_args()
    shutil.rmtree(given.output, ignore_errors=True)
    os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_CACHE=os.path.join(given.output, "cache"))
    if given.processes > 1:  # several processes: one thread each
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
    import datasets
    from transformers import AutoTokenizer

    datasets.disable_progress_bars()
    workers = given.processes if given.processes > 1 else None
    read = datasets.load_dataset("json", data_files=given.input, split="train")
    rows = read.map(
        SHAPES[given.shape],
        batched=True,
        num_proc=workers,
        remove_columns=read.column_names,
        fn_kwargs={"tokenizer": AutoTokenizer.from_pretrained(given.tokenizer), "longest": given.longest},
    )
    rows.save_to_disk(os.path.join(given.output, "data"), num_proc=workers)
    found = {"total_s": round(time.perf_counter() - started, 2), "rows_in": len(read), "rows": len(rows)}
    print(json.dumps({**found, **counts(rows.data)}))


def counts(table: Any) -> dict[str, int]:
    """The numbers of tokens and trained tokens."""
    import pyarrow.compute as pc

    def flat(name: str) -> Iterator[Any]:
        for chunk in table.column(name).chunks:
            while hasattr(chunk.type, "value_type"):
                chunk = chunk.flatten()
            yield chunk

    names = table.column_names
    tokens = sum(len(chunk) for name in _IDS if name in names for chunk in flat(name))
    trained = sum(pc.sum(chunk).as_py() or 0 for name in _MASKS if name in names for chunk in flat(name))
    if "labels" in names:
        trained = sum(pc.sum(pc.not_equal(chunk, IGNORED)).as_py() or 0 for chunk in flat("labels"))
    elif not any(name in names for name in _MASKS):
        trained = tokens
    return {"tokens": tokens, "label_tokens": trained}


if __name__ == "__main__":
    main()
