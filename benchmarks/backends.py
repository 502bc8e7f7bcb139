"""Compares gigatoken with `tokenizers`: are the ids equal, and how many times as fast is it?

    python benchmarks/backends.py --tokenizer DIR... --texts FILE... [--only NAME...] [--megabytes 20] [--rounds 3]

It needs `pip install gigatoken`; without gigatoken only `beam_prep` is compared. To add a library, write a function
that returns an `Encode`. Texts are compared one by one: texts of the files (JSONL, also `.gz`: `text` of a row, or all
its texts joined by line feeds), the probes of the backend check, added tokens inside of text, and seeded random
Unicode. Times are medians of alternating rounds in one process, with batches of 1,000 texts. They are shown as ratios,
because the machine may be shared.

`beam_prep` is the backend that --tokenizer_backend auto chooses, with the texts that it leaves to the reference.
"""

import argparse
import gzip
import importlib.metadata
import itertools
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"

import numpy as np

from beam_prep.tokens.backends import choose, encoder_of
from beam_prep.tokens.resolver import PROBES
from beam_prep.tokens.tokenizer import Tokenizer

Rows = tuple[np.ndarray, np.ndarray]
"""(int64 ids of all texts, int64 [texts + 1] offsets of the texts)."""
Encode = Callable[[list[str]], Rows]


def _rows(lists: Sequence[Sequence[int]]) -> Rows:
    offsets = np.cumsum([0, *map(len, lists)])
    return np.fromiter(itertools.chain.from_iterable(lists), np.int64, offsets[-1]), offsets


def tokenizers(folder: Path) -> Encode:
    from tokenizers import Tokenizer

    loaded = Tokenizer.from_file(str(folder / "tokenizer.json"))
    loaded.no_truncation()
    loaded.no_padding()
    return lambda texts: _rows([found.ids for found in loaded.encode_batch_fast(texts, add_special_tokens=False)])


def gigatoken(folder: Path) -> Encode:
    from gigatoken import Tokenizer

    loaded = Tokenizer(str(folder / "tokenizer.json"))

    def encode(texts: list[str]) -> Rows:
        rows = [loaded.encode(text) for text in texts]
        return np.concatenate(rows).astype(np.int64), np.cumsum([0, *map(len, rows)])

    return encode


def beam_prep(folder: Path) -> Encode:
    tokenizer = Tokenizer.load(folder)
    backend, problem = choose(tokenizer, "auto")
    print(f"  beam_prep: {backend}{f' ({problem})' if problem else ''}")
    encoder = encoder_of(tokenizer, backend)

    def encode(texts: list[str]) -> Rows:
        found = encoder.encode(texts, False)
        return found.flat.astype(np.int64), found.offsets

    return encode


LIBRARIES: dict[str, Callable[[Path], Encode]] = {
    library.__name__: library for library in (tokenizers, gigatoken, beam_prep)
}


def texts_of(path: Path) -> Iterator[str]:
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            yield row["text"] if "text" in row else "\n".join(_leaves(row))


def _leaves(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _leaves(part)


def odd_texts(folder: Path, number: int = 4000) -> list[str]:
    """Probes, added tokens inside of text, and random Unicode with characters that tokenizers often get wrong."""
    source = json.loads((folder / "tokenizer.json").read_bytes())
    added = [token["content"] for token in source["added_tokens"]][:40]
    found = [*PROBES, "".join(added), " ".join(added)]
    found += [f"{one}{token}{two} {token}\n{token}" for token in added for one, two in itertools.pairwise(PROBES[1:6])]
    dice = random.Random(0)
    ranges = [
        (0x20, 0x7F), (0x20, 0x7F), (0, 0x20), (0x7F, 0x100), (0x100, 0x250), (0x300, 0x370), (0x370, 0x530),
        (0x590, 0x700), (0x900, 0xE00), (0x1100, 0x1200), (0x2000, 0x2070), (0x2100, 0x2200), (0x3000, 0x3100),
        (0x4E00, 0x9FFF), (0xAC00, 0xD7A4), (0xE000, 0xE010), (0xF900, 0xFFFF), (0x1F300, 0x1F700), (0x10000, 0x10FFFF),
    ]  # fmt: skip
    for _ in range(number):
        parts = []
        for _ in range(dice.randint(1, 6)):
            low, high = dice.choice(ranges)
            word = "".join(chr(dice.randrange(low, high)) for _ in range(dice.choice([1, 2, 5, 20])))
            parts.append(dice.choice([word, word, dice.choice(["e\u0301", "\u0344", "a" * 120, *added])]))
        found.append(dice.choice(["", " ", "  ", "\t", "\n"]).join(parts))
    return found


def differing(mine: Rows, theirs: Rows) -> list[int]:
    """The numbers of the texts whose ids differ."""
    sizes = len(theirs[1]) - 1
    return [
        place
        for place in range(sizes)
        if mine[0][mine[1][place] : mine[1][place + 1]].tolist()
        != theirs[0][theirs[1][place] : theirs[1][place + 1]].tolist()
    ]


def shortest(encode: Encode, reference: Encode, text: str) -> str:
    """A short text whose ids still differ, made by leaving out halves, quarters ... of the text."""
    step = max(len(text) // 2, 1)
    while True:
        for start in range(0, len(text), step):
            part = text[:start] + text[start + step :]
            try:
                if part and differing(encode([part]), reference([part])):
                    text = part
                    break
            except Exception:  # a failure on a part says nothing about the difference
                continue
        else:
            if step == 1:
                return text
            step = max(step // 2, 1)


def compare(name: str, encode: Encode, reference: Encode, groups: dict[str, list[str]]) -> bool:
    exact = True
    for group, texts in groups.items():
        try:
            wrong = differing(encode(texts), reference(texts))
        except BaseException as error:  # Rust panics are no Exceptions
            if isinstance(error, KeyboardInterrupt):
                raise
            print(f"  {name}: {group}: fails: {type(error).__name__}: {str(error)[:200]}")
            exact = False
            continue
        if wrong:
            exact = False
            print(f"  {name}: {group}: {len(wrong)} of {len(texts)} texts differ")
            shown = set()
            for place in sorted(wrong, key=lambda place: len(texts[place]))[:3]:
                text = shortest(encode, reference, texts[place][:2000]) if len(texts[place]) < 20_000 else ""
                if text and text not in shown:
                    shown.add(text)
                    ids = [way([text])[0].tolist()[:12] for way in (encode, reference)]
                    print(f"    {text[:80]!r}: {ids[0]}, wanted {ids[1]}")
    return exact


def times(ways: dict[str, Encode], texts: list[str], rounds: int) -> dict[str, float]:
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, encode in ways.items():
            started = time.perf_counter()
            for first in range(0, len(texts), 1000):
                encode(texts[first : first + 1000])
            found[name].append(time.perf_counter() - started)
    return {name: statistics.median(seconds) for name, seconds in found.items()}


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokenizer", nargs="+", type=Path, required=True)
    parser.add_argument("--texts", nargs="+", type=Path, required=True)
    parser.add_argument("--only", nargs="+", choices=list(LIBRARIES))
    parser.add_argument("--megabytes", type=float, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args(arguments)
    files = {path.name: list(texts_of(path)) for path in given.texts}
    timed, size = [], 0
    for text in itertools.chain.from_iterable(itertools.zip_longest(*files.values())):
        if text is not None and size < given.megabytes * 1e6:
            timed.append(text)
            size += len(text.encode())
    for folder in given.tokenizer:
        print(folder.name)
        reference = tokenizers(folder)
        ways = {"tokenizers": reference}
        for name, library in LIBRARIES.items():
            if name == "tokenizers" or (given.only and name not in given.only):
                continue
            try:
                ways[name] = library(folder)
            except ImportError as error:
                print(f"  {name}: not installed ({error})")
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    raise
                print(f"  {name}: does not take it: {type(error).__name__}: {str(error)[:200]}")
        groups = {**files, "odd texts": odd_texts(folder)}
        same = {name: compare(name, way, reference, groups) for name, way in ways.items() if name != "tokenizers"}
        seconds = times(ways, timed, given.rounds)
        for name, exact in same.items():
            ratio = seconds["tokenizers"] / seconds[name]
            version = "" if name == "beam_prep" else f" {importlib.metadata.version(name)}"
            print(f"  {name}{version}: {'exact' if exact else 'NOT exact'}, {ratio:.1f} times as fast", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
