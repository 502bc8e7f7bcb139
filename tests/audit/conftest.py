"""A tokenizer that puts a BOS in front, and the clean corpora."""

import gzip
import shutil
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers.processors import TemplateProcessing

from tests.conftest import ROOT

PLACES = (
    *("Ghent", "Liège", "Bruges", "Namur", "Mons", "Ostend", "Arlon", "Tournai", "Hasselt", "Leuven", "Dinant"),
    *("Spa", "Ypres", "Aalst", "Genk", "Eupen", "Huy", "Ath", "Binche", "Lier", "Mol", "Geel", "Diest", "Halle"),
)
THINGS = ("the station", "a museum", "the market", "a quiet café", "the canal", "an old bridge", "the post office")


@pytest.fixture(scope="session")
def with_bos(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Our own tokenizer, adding its BOS by itself."""
    folder = tmp_path_factory.mktemp("tokenizer")
    shutil.copytree(ROOT / "examples" / "tokenizer", folder, dirs_exist_ok=True)
    made = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    bos = made.token_to_id("<|bos|>")
    made.post_processor = TemplateProcessing(single="<|bos|> $A", special_tokens=[("<|bos|>", bos)])
    made.save(str(folder / "tokenizer.json"))
    return str(folder)


def own_records() -> list[dict[str, Any]]:
    """264 conversations about places in Belgium; no two are equal."""
    records = []
    for number, place in enumerate(place for place in PLACES for _ in range(11)):
        thing, hour = THINGS[number % len(THINGS)], 7 + number // 7 % 12
        messages = [
            {"role": "user", "content": f"How do I get from {thing} in {place} to the river before {hour} o'clock?"},
            {"role": "assistant", "content": f"Leave {thing} by the south gate and walk downhill; {place} is small, "
             f"so you are at the water by {hour - 1}:{number % 60:02}."},
            {"role": "user", "content": f"And back, when it rains (plan {number})?"},
            {"role": "assistant", "content": f"Take bus {number + 10}. It stops at {thing} and leaves each quarter "
             "of an hour until midnight."},
        ]  # fmt: skip
        if number % 3 == 0:
            messages.insert(0, {"role": "system", "content": f"You are the guide of {place}. Be brief."})
        records.append({"id": number, "messages": messages})
    return records


def write(folder: Path, lines: list[str], files: int = 3) -> list[str]:
    """The lines in some files, one of them compressed."""
    paths = []
    for number in range(files):
        part = lines[len(lines) * number // files : len(lines) * (number + 1) // files]
        data = "".join(f"{line}\n" for line in part).encode("utf-8", "surrogatepass")
        path = folder / (f"part-{number}.jsonl.gz" if number == 1 else f"part-{number}.jsonl")
        path.write_bytes(gzip.compress(data, 1) if number == 1 else data)
        paths.append(str(path))
    return paths
