"""A tokenizer that puts a BOS in front, and the files of a corpus."""

import gzip
import shutil
from pathlib import Path

import pytest
import tokenizers
from tokenizers.processors import TemplateProcessing

from tests.conftest import ROOT, Folders


@pytest.fixture(scope="session")
def with_bos(tmp_path_factory: Folders) -> str:
    """Our own tokenizer, adding its BOS by itself."""
    folder = tmp_path_factory.mktemp("tokenizer")
    shutil.copytree(ROOT / "examples" / "tokenizer", folder, dirs_exist_ok=True)
    made = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    bos = made.token_to_id("<|bos|>")
    made.post_processor = TemplateProcessing(single="<|bos|> $A", special_tokens=[("<|bos|>", bos)])
    made.save(str(folder / "tokenizer.json"))
    return str(folder)


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
