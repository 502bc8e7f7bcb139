"""200,000 rows of real text, of which a tenth are copies, and what a plain Python set leaves of them."""

import gzip
import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tests.conftest import shared

ROWS, COPIES = 200_000, 20_000
CONFIG: dict[str, Any] = {
    "input": {"sections": [{"field": "text", "action": "train"}]},
    "preprocessing": {"min_chars": 0, "deduplicate": {"by": ["text"]}},
    "output": {"storage_format": "parquet", "keep_fields": {"id": "int64"}, "max_tokens_per_shard": 2_000_000},
}


def write(folder: Path) -> tuple[list[Path], list[int]]:
    """Two files, and the numbers of the rows that a set leaves, in order."""
    source = random.Random(19)
    texts: list[str] = []
    for text in dict.fromkeys(_texts()):
        texts.append(text)
        if len(texts) == ROWS - COPIES:
            break
    assert len(texts) == ROWS - COPIES
    for copy in source.choices(texts, k=COPIES):
        texts.insert(source.randrange(len(texts)), copy)
    seen: set[str] = set()
    left = [number for number, text in enumerate(texts) if text not in seen and not seen.add(text)]  # type: ignore[func-returns-value]
    files = [folder / "0.jsonl", folder / "1.jsonl"]
    for first, path in zip((0, ROWS // 2), files, strict=True):
        rows = ({"id": first + number, "text": text} for number, text in enumerate(texts[first : first + ROWS // 2]))
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
    return files, left


def _texts() -> Iterator[str]:
    """Each question of the chats with what answers it, then each line of the texts."""
    with gzip.open(shared("data", "chat_messages_sgd.jsonl.gz"), "rt", encoding="utf-8") as lines:
        for line in lines:
            said = [message["content"] for message in json.loads(line)["messages"]]
            yield from (f"{one}\n{other}" for one, other in itertools.pairwise(said))
    for name in ("text_python_docs_en", "text_libreoffice_help_ru", "text_libreoffice_help_zh-cn"):
        with gzip.open(shared("data", f"{name}.jsonl.gz"), "rt", encoding="utf-8") as lines:
            yield from (part for line in lines for part in json.loads(line)["text"].splitlines() if part.strip())


def check(output: Path, manifest: dict[str, Any], left: list[int]) -> None:
    """That an output has exactly these rows, in this order."""
    ids = [
        id_
        for shard in manifest["shards"]
        for file in shard["files"]
        for id_ in pq.read_table(output / file["path"], columns=["id"])["id"].to_pylist()
    ]
    assert ids == left
    assert manifest["ledger"]["dropped"] == {"duplicate": ROWS - len(left)}
    assert manifest["ledger"]["kept"] == len(left)
    assert len(left) == ROWS - COPIES
