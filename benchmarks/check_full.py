"""A table: what the fast ways give, compared with the reference, for every tokenizer and every file of test material.

    python benchmarks/check_full.py                          # all: an hour of one core
    python benchmarks/check_full.py --megabytes 1            # the first MB of each file: some minutes
    python benchmarks/check_full.py --tokenizer qwen2.5      # one of them

Of each file, damaged ones too, each job that its records fit: chats by role and by last turn, with and without marked
answers, each message rendered alone; preference pairs, rollouts, prompts with answers, texts. Each block goes through
gigatoken (where its gate is passed) and byte lengths, and then through what `--check full` does: everything from the
bytes to the masks is made by the reference too, and compared. Exit code 1: something differs. Needs the folder with the
test material (`--shared DIR`, or `BEAM_PREP_SHARED`).
"""

import argparse
import gzip
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from beam_prep import recipe
from beam_prep.config import PipelineConfig
from beam_prep.errors import BeamPrepError, InputError, RunError, TokenizerError
from beam_prep.storage.files import list_inputs
from beam_prep.storage.splits import BLOCK_BYTES, read_split, split_file
from beam_prep.tokens.backends import choose, encoder_of
from beam_prep.tokens.mask import RoleMask, build_mask
from beam_prep.tokens.tokenize import tokenize
from beam_prep.tokens.tokenizer import Tokenizer

SHARED = Path(os.environ.get("BEAM_PREP_SHARED", Path(__file__).resolve().parent.parent.parent / "shared"))


def conversation(action: str, **given: Any) -> dict[str, Any]:
    """A config of entire conversations."""
    return {"sections": [{"field": "messages", "action": action, "template": "conversation"}], **given}


def side(name: str) -> dict[str, Any]:
    """A side of a preference pair."""
    return {"sections": [{"field": name, "action": "$last", "template": "conversation"}]}


PARTS = [{"field": "prompt", "action": "mask"}, {"field": "response", "action": "train"}]
CHATS = {
    "chat, roles": {"input": conversation("$role")},
    "chat, last": {"input": conversation("$last")},
    "chat, BOS by the tokenizer": {"input": conversation("$role"), "preprocessing": {"bos": "tokenizer"}},
    "chat, escaped": {"input": conversation("$role"), "preprocessing": {"control_tokens": "escape"}},
    "messages": {"input": {"sections": [{"field": "messages", "action": "$role", "template": True}]}},
}
TEXTS = {
    "text": {"input": {"sections": [{"field": "text", "action": "train"}]}},
    "text, whole": {
        "input": {"sections": [{"field": "text", "action": "train", "add_special_tokens": False}]},
        "preprocessing": {"min_chars": 0},
    },
}
PAIRS = {"pair": {"input": {"sources": {name: side(name) for name in ("chosen", "rejected")}}}}
ANSWERS = {
    "prompt, answer": {"input": {"sections": PARTS}},
    "prompt, answer, joint": {"input": {"sections": PARTS}, "preprocessing": {"encode": "joint"}},
}
ROLLOUTS = {
    "rollouts": {
        "input": {
            "sources": {
                "prompts": {"sections": [{"field": "prompt", "action": "mask"}]},
                "responses": {"sections": [{"field": "responses", "action": "train"}], "list_field": True},
                "rewards": {"sections": [{"field": "rewards", "action": "value"}]},
            }
        }
    }
}
SHAREGPT = {"sharegpt": {"input": conversation("$role", adapter="sharegpt")}}
JOBS: dict[str, dict[str, Any]] = {
    "chat": CHATS,
    "tool": CHATS,
    "text": TEXTS,
    "dpo": PAIRS,
    "prompt": ANSWERS,
    "grpo": ROLLOUTS,
    "sharegpt": SHAREGPT,
    "bad": {"chat, roles": CHATS["chat, roles"], "text, whole": TEXTS["text, whole"], **PAIRS, **ROLLOUTS, **SHAREGPT},
}
"""How the name of a file begins, or of its folder -> its jobs."""


def files(shared: Path, megabytes: float | None, work: Path) -> Iterator[tuple[str, Path]]:
    """(what its jobs are called, file)."""
    for path in sorted((shared / "data").iterdir()):
        if path.suffix in (".jsonl", ".gz"):
            yield path.name.split("_")[0], path if megabytes is None else head(path, int(megabytes * 1e6), work)
    for path in sorted((shared / "data" / "bad").iterdir()):
        if path.suffix in (".jsonl", ".gz", ".txt"):
            yield "bad", path


def head(path: Path, size: int, work: Path) -> Path:
    """The first lines of a file, up to so many bytes."""
    made = work / path.name.removesuffix(".gz")
    if not made.exists():
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as source:
            made.write_bytes(source.read(size).rpartition(b"\n")[0] + b"\n")
    return made


def configs(job: dict[str, Any], folder: Path) -> Iterator[PipelineConfig]:
    """A job's config, with the template that marks answers too, where the tokenizer has such a variant."""
    job = {"mask": {"assistant": "train"}, **job} if "$role" in str(job) else job
    yield PipelineConfig.from_dict(job)
    marked = folder / "chat_template_generation.jinja"
    if marked.exists() and "conversation" in str(job):
        given = {**job["input"], "chat_template": marked.read_text(encoding="utf-8")}
        yield PipelineConfig.from_dict({**job, "input": given})


def compare(config: PipelineConfig, tokenizer: Tokenizer, backend: str, path: Path) -> Counter[str]:
    """What came of the blocks of a file: rows, and how they were made.

    Raises:
        RunError: something differs.
        BeamPrepError: the file, or the job, is refused.
    """
    if config.input.chat_template is not None:
        tokenizer = tokenizer.with_template(config.input.chat_template)
    encoder = encoder_of(tokenizer, backend)
    steps = recipe.text_steps(config, tokenizer)
    found = Counter[str]()
    for split in split_file((0, list_inputs([path])[0]), BLOCK_BYTES):
        for records in read_split(split, BLOCK_BYTES):
            rendered: Any = records
            for step in steps:
                rendered = step(rendered)
            before = encoder.fell_back
            batch = build_mask(
                tokenize(rendered, encoder, tokenizer.bos_id), RoleMask(config.mask, config.mask_default)
            )
            recipe.check_in_full(batch, config, tokenizer)
            theirs = min(encoder.fell_back - before, len(batch)) if encoder.backend == "gigatoken" else len(batch)
            found.update({"blocks": 1, "rows": len(batch), "gigatoken": len(batch) - theirs})
    return found


def table(material: list[tuple[str, Path]], folders: list[Path]) -> Iterator[tuple[str, int]]:
    """(line, differences in it)."""
    yield "| tokenizer | jobs | blocks | rows | encoded by gigatoken | differences |", 0
    yield "|---|--:|--:|--:|--:|--:|", 0
    for folder in folders:
        name = folder.name
        tokenizer = Tokenizer.load(folder)
        backend, _ = choose(tokenizer, "auto")
        counts, wrong = Counter[str](), []
        for kind, path in material:
            for job, given in JOBS[kind].items():
                for config in configs(given, folder):
                    try:
                        counts.update(compare(config, tokenizer, backend, path))
                        counts["jobs"] += 1
                    except (InputError, TokenizerError):  # a damaged file; no template
                        counts["refused"] += 1
                    except RunError as error:
                        wrong.append(f"{name}, {job}, {path.name}: {error}")
        yield from ((f"DIFFERS: {each}", 1) for each in wrong)
        keys = ("jobs", "blocks", "rows", "gigatoken")
        numbers = " | ".join(f"{counts[key]:,}" for key in keys)
        yield f"| {name} | {numbers} | {len(wrong)} |", 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, default=SHARED, help="the folder with the test material")
    parser.add_argument("--tokenizer", action="append", help="only this one (may be repeated)")
    parser.add_argument("--megabytes", type=float, metavar="MB", help="only the first ones of each file")
    given = parser.parse_args()
    if not (given.shared / "tokenizers").is_dir():
        print(f"check_full.py: no test material at {given.shared}: give --shared, or BEAM_PREP_SHARED", file=sys.stderr)
        return 1
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    folders = sorted(path.parent for path in given.shared.glob("tokenizers/*/tokenizer.json"))
    folders = [folder for folder in folders if not given.tokenizer or folder.name in given.tokenizer]
    differences = 0
    try:
        with tempfile.TemporaryDirectory() as work:
            for line, wrong in table(list(files(given.shared, given.megabytes, Path(work))), folders):
                print(line, flush=True)
                differences += wrong
    except BeamPrepError as error:
        print(f"check_full.py: {error}", file=sys.stderr)
        return 1
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
