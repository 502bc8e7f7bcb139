"""Compares beam_prep with transformers on random tokenizer folders.

    python benchmarks/tokenizer_folders.py --folders 500 --shared ../shared       # half an hour

It prints how many of the folders that transformers loads give the same ids and texts; and for each other folder the
first difference, with the random settings. The exit code is 1 below 95 %, or if something differs without an error.
"""

import argparse
import collections
import random
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.tokens.folders import differences, folder_of, load_reference  # noqa: E402

WANTED = 0.95
BASES = {"bpe3k_nobos": 3, "chatml-12k": 4, "minimind": 4, "gpt2": 2, "mistral-v1": 3, "tekken-32k": 2, "t5-small": 3}
BASES |= {"mistral-v3": 2, "qwen2.5": 1}
"""Folder -> its weight in the draw. Large folders take seconds each."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folders", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--shared", type=Path, required=True, help="the folder with tokenizers/")
    given = parser.parse_args()
    loaded, refused, wrong = 0, 0, 0
    kinds: collections.Counter[str] = collections.Counter()
    for number in range(given.folders):
        rng = random.Random(f"{given.seed}/{number}")
        base = rng.choices(list(BASES), list(BASES.values()))[0]
        with tempfile.TemporaryDirectory() as made:
            path = Path(made) / "tokenizer"
            names = folder_of(rng, given.shared / "tokenizers" / base, path)
            reference = load_reference(path)
            if reference is None:
                continue
            loaded += 1
            found = differences(path, reference, rng)
        if found:
            refused += found[0].startswith("refused")
            wrong += not found[0].startswith("refused")
            kinds.update(names)
            print(f"{number} {base} {', '.join(names)}: {len(found)} differ; {found[0][:300]}", flush=True)
    print(
        f"{loaded} of {given.folders} folders load in transformers; equal {loaded - refused - wrong}, "
        f"refused with an error {refused}, wrong {wrong}"
    )
    print("settings of those that differ:", ", ".join(f"{name} {count}" for name, count in kinds.most_common()))
    return int(wrong > 0 or loaded - refused - wrong < WANTED * loaded)


if __name__ == "__main__":
    raise SystemExit(main())
