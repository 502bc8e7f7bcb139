r"""Trains a tiny model on an output: packed on the fly, in one process or several (DDP), from where it stopped.

    beam-prep run -o out/chat examples/data/chat.jsonl -c configs/sft_conversation.json \
        --tokenizer_path examples/tokenizer
    python examples/train_tiny.py out/chat --checkpoint out/tiny.pt
    torchrun --nproc_per_node=2 examples/train_tiny.py out/chat --checkpoint out/tiny.pt --epochs 4

The second start goes on from the checkpoint, with another number of processes: no sample of an epoch is seen twice, and
none is left out, but those at its end that the processes cannot share equally.
"""

import argparse
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

import beam_prep as bp


def tiny_model(vocabulary: int) -> Any:
    """With random weights, the same in every process. Yours: AutoModelForCausalLM.from_pretrained(...)."""
    torch.manual_seed(1)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    return LlamaForCausalLM(LlamaConfig(vocab_size=vocabulary, **sizes))


def step_loss(model: Any, batch: dict[str, Any]) -> tuple[Any, Any]:
    """The loss of the trained tokens of all processes: this one's part of it, and the number of tokens."""
    labels = batch["labels"][0, 1:]  # the model's output at a token foretells the next one
    count = (labels != -100).sum()
    if dist.is_initialized():
        dist.all_reduce(count)
    # Without a cache and a mask, transformers finds the documents by positions that begin again.
    logits = model(input_ids=batch["input_ids"], position_ids=batch["position_ids"], use_cache=False).logits[0, :-1]
    return cross_entropy(logits.float(), labels, reduction="sum") / count.clamp(min=1), count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", help="an output of beam_prep: one document a row, with labels that are not shifted")
    parser.add_argument("--checkpoint", type=Path, help="a file: written at the end; where it is, training goes on")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--steps", type=int, help="stop after so many")
    parser.add_argument("--length", type=int, default=256, help="tokens of a packed row")
    parser.add_argument("--batch_size", type=int, default=4, help="packed rows of a process in a step")
    args = parser.parse_args()

    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if world_size > 1:
        dist.init_process_group("gloo")  # for graphics cards: "nccl"
    model: Any = tiny_model(len(AutoTokenizer.from_pretrained(f"{args.output}/tokenizer")))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    rows = bp.open(args.output).packed(args.length, seed=1, rank=rank, world_size=world_size, tail="drop")
    if not any(column.name == "labels" and not column.shifted for column in rows.schema):
        parser.error(f"{args.output} has no labels, or shifted ones: make it with configs/sft_conversation.json")
    if args.checkpoint and args.checkpoint.exists():
        saved = torch.load(args.checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        rows.load_state_dict(saved["rows"])
    if world_size > 1:
        model = DistributedDataParallel(model)

    step = taken = 0
    while True:
        for batch in DataLoader(rows, args.batch_size, collate_fn=bp.collate(rows, arrays="torch")):
            if step == args.steps:
                break
            loss, count = step_loss(model, batch)
            (loss * world_size).backward()  # DDP takes the mean of the processes' gradients
            optimizer.step()
            optimizer.zero_grad()
            if world_size > 1:
                dist.all_reduce(loss)
            step, taken = step + 1, min(taken + args.batch_size, len(rows))
            if rank == 0:
                print(f"epoch {rows.epoch} step {step} loss {loss.item():.6f} trained_tokens {count}", flush=True)
        if step == args.steps or rows.epoch + 1 >= args.epochs:
            break
        rows.set_epoch(rows.epoch + 1)
        taken = 0
    if args.checkpoint and rank == 0:
        plain = model.module if world_size > 1 else model
        state = {"model": plain.state_dict(), "optimizer": optimizer.state_dict(), "rows": rows.state_dict(taken)}
        torch.save(state, args.checkpoint)
    if world_size > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
