"""Makes small faults (mutants) in the data path, one at a time, and reports which of them the tests catch.

    python -m tools.mutants            # all mutants; prints a table in Markdown
    python -m tools.mutants 3 7        # only mutants 3 and 7

Each mutant is written into this working tree, its tests run, and the file is restored. It is an error if the text of a
mutant is no longer in the code: then update the mutant.
"""

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent


class Mutant(NamedTuple):
    """A fault in the code, and the tests that should catch it."""

    what: str
    file: str
    old: str
    new: str
    tests: str


MUTANTS = [
    Mutant(
        "a span ends a character early",
        "chat/turns.py",
        "spans += [(begin, end)] if end > begin and not silent",
        "spans += [(begin, end - 1)] if end > begin and not silent",
        "tests/chat/test_spans.py",
    ),
    Mutant(
        "a message's own `train` is read the other way round",
        "tokens/rows.py",
        "np.where(own, segments.own == 1, trained)",
        "np.where(own, segments.own != 1, trained)",
        "tests/tokens/test_mask.py",
    ),
    Mutant(
        "`last` trains every message of the role",
        "tokens/rows.py",
        "last[segments.role] & segments.is_last_of_role()",
        "last[segments.role]",
        "tests/tokens/test_mask.py",
    ),
    Mutant(
        "a message's own `train` wins in a section that is masked",
        "tokens/rows.py",
        "own = (segments.own != UNSET) & (segments.action != MASK)",
        "own = segments.own != UNSET",
        "tests/tokens/test_mask.py",
    ),
    Mutant(
        "a message with the weight 0 is trained",
        "tokens/rows.py",
        "trained & (segments.weight > 0)",
        "trained & (segments.weight >= 0)",
        "tests/test_loss_weights.py",
    ),
    Mutant(
        "ids lose their first token in a shift, labels their last",
        "tokens/rows.py",
        'rows.cut(0 if each == "input_ids" else 1, shorter)',
        'rows.cut(1 if each == "input_ids" else 0, shorter)',
        "tests/tokens/test_shift.py",
    ),
    Mutant(
        "labels of padding are 0",
        "tokens/rows.py",
        '{"ids": self.pad_id, "labels": IGNORE_INDEX}.get(',
        '{"ids": self.pad_id}.get(',
        "tests/shards/test_layout.py",
    ),
    Mutant(
        "a row is lost between two parts of padded rows",
        "tokens/rows.py",
        "            start = stop\n",
        "            start = stop + 1\n",
        "tests/shards/test_layout.py",
    ),
    Mutant(
        "`keep_start` keeps the end",
        "tokens/rows.py",
        'rows.cut(0 if mode == "keep_start" else rows.lengths - kept, kept)',
        'rows.cut(0 if mode != "keep_start" else rows.lengths - kept, kept)',
        "tests/tokens/test_truncate.py",
    ),
    Mutant(
        "a row that is one token too long is not cut",
        "tokens/rows.py",
        "if rows.lengths.max(initial=0) <= length:",
        "if rows.lengths.max(initial=0) <= length + 1:",
        "tests/tokens/test_truncate.py",
    ),
    Mutant(
        "the columns of chosen and rejected completions are swapped",
        "tokens/rows.py",
        "zip(PROMPT_COMPLETION[:2], SIDES, strict=True)",
        "zip(PROMPT_COMPLETION[:2], SIDES[::-1], strict=True)",
        "tests/test_preference.py",
    ),
    Mutant(
        "a carriage return stays in the text of its line",
        "reading/records.py",
        "ends[filled] -= view[ends[filled] - 1] == 13",
        "ends[filled] -= view[ends[filled] - 1] == 12",
        "tests/reading/test_records.py",
    ),
    Mutant(
        "three bytes are skipped at the start of every block that begins with a mark of the byte order",
        "reading/records.py",
        "if len(starts) and file_start and data.startswith(BOM):",
        "if len(starts) and data.startswith(BOM):",
        "tests/reading/test_records.py",
    ),
    Mutant(
        "a shard takes one more row where its tokens are reached exactly",
        "shards/slices.py",
        "rows = int(np.searchsorted(until, goal)) + 1",
        'rows = int(np.searchsorted(until, goal, "right")) + 1',
        "tests/compose/test_naive.py -k input_order",
    ),
    Mutant(
        "`max_items` ends a row late",
        "shards/slices.py",
        "max_items - int(kept[block] - receipts.rows[block])",
        "max_items + 1 - int(kept[block] - receipts.rows[block])",
        "tests/shards/test_plan.py",
    ),
    Mutant(
        "a piece of a row that is split over packs loses its last token",
        "shards/pack.py",
        "stop = np.minimum((cut + 1) * capacity, end[row])",
        "stop = np.minimum((cut + 1) * capacity - 1, end[row])",
        "tests/shards/test_pack.py",
    ),
    Mutant(
        "a block that was cached with another config is used",
        "storage/token_cache.py",
        "{digest[2:32]}-{self.recipe[:16]}",
        "{digest[2:32]}-{self.recipe[:0]}0123456789abcdef",
        "tests/test_hostile.py -k cached_with_another_limit",
    ),
    Mutant(
        "equal bytes of two groups are one block",
        "storage/token_cache.py",
        "        if group is None:\n            return origin.digest\n",
        "        if group is None or group:\n            return origin.digest\n",
        "tests/test_groups.py -k equal_bytes",
    ),
    Mutant(
        "of equal records the first is left out, and named as its own copy",
        "transforms/shard.py",
        "found.take(copies), found.take(first[copies])",
        "found.take(first[copies]), found.take(copies)",
        "tests/compose/test_jobs.py -k sequential_program",
    ),
    Mutant(
        "a mix takes one more row where the tokens are reached exactly",
        "shards/runs.py",
        "np.searchsorted(np.cumsum(tokens[order]), wanted)",
        'np.searchsorted(np.cumsum(tokens[order]), wanted, "right")',
        "tests/compose/test_naive.py -k cutoff",
    ),
    Mutant(
        "the seed of splits is ignored",
        "shards/compose.py",
        "mixed(digests ^ np.uint64(mixed_number(self.seed)))",
        "mixed(digests)",
        "tests/compose/test_naive.py -k naive_program_says",
    ),
    Mutant(
        "positions run on from row to row where rows are not packed",
        "shards/layout.py",
        "rows.with_flat(pack.positions(rows.lengths))",
        "rows.with_flat(np.arange(len(rows.flat), dtype=np.int32))",
        "tests/shards/test_layout.py",
    ),
    Mutant(
        "a batch of a file holds a row more than its bytes allow",
        "formats/arrow.py",
        'ends[start] + self._format.batch_bytes, "right")) - 1',
        'ends[start] + self._format.batch_bytes, "right"))',
        "tests/formats/test_tables.py",
    ),
    Mutant(
        "the borders of rows lose their last number",
        "formats/mmap_bin.py",
        "{key: borders.tolist() for",
        "{key: borders.tolist()[:-1] for",
        "tests/formats/test_flat.py tests/formats/test_all.py",
    ),
]


def tried(mutant: Mutant) -> bool:
    """True if its tests fail with the mutant."""
    path = ROOT / "beam_prep" / mutant.file
    source = path.read_text("utf-8")
    if source.count(mutant.old) != 1:
        raise SystemExit(f"{mutant.what}: found {mutant.old!r} {source.count(mutant.old)} times in {path}, wanted once")
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", "-m", "not long", *mutant.tests.split()]
    try:
        path.write_text(source.replace(mutant.old, mutant.new), "utf-8")
        return subprocess.run(command, cwd=ROOT, capture_output=True).returncode == 1
    finally:
        path.write_text(source, "utf-8")


def main() -> None:
    """Prints a row of the table for each mutant."""
    numbers = [int(word) for word in sys.argv[1:]] or range(1, len(MUTANTS) + 1)
    for number in numbers:
        mutant = MUTANTS[number - 1]
        caught = "caught" if tried(mutant) else "**survives**"
        print(f"| {number} | {mutant.what} | `{mutant.file}` | {caught} | `{mutant.tests}` |", flush=True)


if __name__ == "__main__":
    main()
