"""A table, tokenizers x files: are ids and masks of conversations equal to those of transformers?

    python benchmarks/mask_table.py                      # all records of all files: some minutes
    python benchmarks/mask_table.py --records 200        # the first 200 of each file

Each pair has the number of records, of rejected records (and whether transformers fails on the same ones), of records
whose derived spans are not proven, and of records with equal ids and masks. "Marked" is the template with generation
blocks, "derived" the template without. Needs the folder with the test material (`--shared DIR`, or `BEAM_PREP_SHARED`).
"""

import argparse
import collections
import gzip
import itertools
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from beam_prep import testing
from beam_prep.chat.apply import apply_template
from beam_prep.chat.chat_format import ChatFormat, template_of
from beam_prep.data.schema import Output, Section
from beam_prep.reading.adapters import adapter
from beam_prep.tokens.rows import RoleMask, build_mask
from beam_prep.tokens.tokenize import tokenize
from beam_prep.tokens.tokenizer import Tokenizer

SHARED = Path(os.environ.get("BEAM_PREP_SHARED", Path(__file__).resolve().parent.parent.parent / "shared"))
TOKENIZERS = (
    "qwen2.5",
    "gpt2",
    "mistral-v1",
    "mistral-v3",
    "minimind",
    "chatml-12k",
    "tekken-32k",
    "mistral-v1-conversations",
)
FILES = ("chat_messages_sgd", "dpo_hh_messages", "tool_messages_glaive_en", "sharegpt_vicuna_dummy")
ROW = (Output("sequence", "ids", (Section("messages", "$role", "conversation"),), "loss_mask"),)
AT_ONCE = 500

Row = tuple[list[int], list[int]] | str
"""(ids, mask) of a record, or the reason why it has none."""


def read(path: Path, count: int | None) -> Iterator[dict[str, Any]]:
    """Records with `messages`."""
    adapt = adapter("sharegpt")
    with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as lines:
        for line in itertools.islice(lines, count):
            record = json.loads(line)
            yield {"messages": record["chosen"]} if "chosen" in record else adapt(record)


def templates(folder: Path) -> tuple[str, str]:
    """(marked, plain) source. If a folder has only a template with marks, the plain one is made without the marks."""
    own, variant = (folder / "chat_template.jinja").read_text(), folder / "chat_template_generation.jinja"
    if variant.exists():
        return variant.read_text(), own
    mark = re.compile(r"({%-? *)(end)?generation( *-?%})")
    return own, mark.sub(lambda found: found[1] + ("endif" if found[2] else "if true") + found[3], own)


def ours(tokenizer: Tokenizer, source: str, rows: Sequence[dict[str, Any]]) -> list[Row]:
    """The rows of beam_prep."""
    chat_format = ChatFormat(template_of(tokenizer, source))
    rendered = apply_template(testing.records(rows), ROW, chat_format)
    batch = build_mask(tokenize(rendered, tokenizer, tokenizer.bos_id), RoleMask({"assistant": "train"}))
    found: dict[int, Row] = dict(testing.rejects(batch))
    columns = (batch["sequence"].to_lists(), batch["loss_mask"].to_lists())
    found.update(zip(batch.line.tolist(), zip(*columns, strict=True), strict=True))
    return [found[line] for line in range(len(rows))]


def theirs(reference: Any, source: str, rows: Sequence[dict[str, Any]]) -> Iterator[Row]:
    """The rows of transformers."""
    from jinja2 import TemplateError

    for row in rows:
        try:
            encoded = reference.apply_chat_template(
                row["messages"],
                tools=row.get("tools"),
                chat_template=source,
                return_dict=True,
                return_assistant_tokens_mask=True,
            )
        except (TemplateError, TypeError):
            yield "template_error"
        else:
            yield encoded["input_ids"], encoded["assistant_masks"]


def compare(folder: Path, file: Path, count: int | None) -> collections.Counter[str]:
    """Counts of records by result."""
    from transformers import AutoTokenizer

    tokenizer, reference = Tokenizer.load(folder), AutoTokenizer.from_pretrained(folder)
    marked, plain = templates(folder)
    counts: collections.Counter[str] = collections.Counter()
    rows = read(file, count)
    while chunk := list(itertools.islice(rows, AT_ONCE)):
        lists = ours(tokenizer, marked, chunk), theirs(reference, marked, chunk), ours(tokenizer, plain, chunk)
        for mine, wanted, derived in zip(*lists, strict=True):
            counts["records"] += 1
            if isinstance(mine, str) or isinstance(wanted, str):
                counts["both" if mine == wanted else "one"] += 1
                counts[f"reject {mine if isinstance(mine, str) else 'transformers alone'}"] += 1
                continue
            counts["ids"] += mine[0] == wanted[0]
            counts["masks"] += mine[1] == wanted[1]
            counts["unproven"] += isinstance(derived, str) and derived.startswith("turn_")
            counts["derived"] += mine == derived
    return counts


def table(shared: Path, tokenizers: Sequence[str], files: Sequence[str], count: int | None) -> Iterator[str]:
    """The lines of the table."""
    heads = ("tokenizer", "file", "records", "rejected by both", "by one alone", "unproven", "ids equal", "masks equal")
    yield f"| {' | '.join(heads)} | derived = marked |"
    yield "|---|---|--:|---|--:|--:|--:|--:|--:|"
    for name, file in itertools.product(tokenizers, files):
        path = next(shared.glob(f"data/{file}.jsonl*"), shared / "data" / file)
        counts = compare(shared / "tokenizers" / name, path, count)
        reasons = ", ".join(key.removeprefix("reject ") for key in sorted(counts) if key.startswith("reject "))
        rejected = f"{counts['both']:,} ({reasons})" if reasons else "0"
        numbers = [f"{counts[key]:,}" for key in ("one", "unproven", "ids", "masks", "derived")]
        yield f"| {name} | {file} | {counts['records']:,} | {rejected} | " + " | ".join(numbers) + " |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, default=SHARED, help="the folder with the test material")
    parser.add_argument("--records", type=int, help="only the first N records of each file")
    parser.add_argument("--tokenizer", action="append", choices=TOKENIZERS, help="only this one (may be repeated)")
    parser.add_argument("--file", action="append", choices=FILES, help="only this file (may be repeated)")
    given = parser.parse_args()
    if not (given.shared / "tokenizers").is_dir():
        print(f"mask_table.py: no test material at {given.shared}: give --shared, or BEAM_PREP_SHARED", file=sys.stderr)
        return 1
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    for line in table(given.shared, given.tokenizer or TOKENIZERS, given.file or FILES, given.records):
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
