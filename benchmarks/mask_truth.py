"""Is every trained token the answer's? Generated chat templates, with the truth known, against the library's masks.

    python benchmarks/mask_truth.py --pairs 100000 --processes 2      # about ten minutes
    python benchmarks/mask_truth.py --pairs 2000 --seed 7

A pair is a template and a conversation. Each is rendered by plans, as columns, and by jinja alone; every eighth
template also with a real tokenizer, by both backends. A mask is right, or the record is refused (`spans_unproven`), or
it is wrong. Where template and conversation are plain, a refusal is wrong too. Prints counts and the first wrong masks,
with what was right; exits with 1 if any is wrong. `tests/core/generated_templates.py` says what is right.
"""

import argparse
import concurrent.futures
import functools
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from beam_prep.core.chat.recorded import plans  # noqa: E402
from tests.core.generated_templates import Seeded  # noqa: E402
from tests.core.mask_judge import POINTS, Reading, Real, Report, draw_cases, judge  # noqa: E402

CONVERSATIONS = 24  # a template
TEMPLATES = 40  # a task
EVERY = 8
KEPT = 50


@functools.cache
def real() -> tuple[Reading, ...]:
    folder = ROOT / "examples" / "tokenizer"
    return Real(folder, "transformers"), Real(folder, "gigatoken")


def work(task: tuple[int, int, int]) -> Report:
    """Judges the templates of a range of numbers."""
    seed, first, stop = task
    # A plan from the first conversation of a pattern on.
    plans.SIGHTINGS_BEFORE_TRACE = 1
    report = Report()
    for number in range(first, stop):
        tokens = ("<|im_start|>", "<|im_end|>") if number % EVERY == EVERY - 1 else None
        readings = (POINTS, *(real() if tokens else ()))
        for case in draw_cases(Seeded(f"{seed}/{number}"), CONVERSATIONS, tokens=tokens):
            judge(case, report, readings)
    return report


def table(report: Report) -> str:
    """The counts by path."""
    lines = [f"{'path':<24}{'proven':>10}{'refused':>10}{'refused though plain':>22}{'of plain':>10}{'wrong':>10}"]
    paths = sorted({*report.proven, *report.refused, *report.wrong, *report.plain})
    for path in paths:
        counts = (report.proven, report.refused, report.refused_though_plain, report.plain, report.wrong)
        each = [f"{count[path]:,}" for count in counts]
        lines.append(f"{path:<24}{each[0]:>10}{each[1]:>10}{each[2]:>22}{each[3]:>10}{each[4]:>10}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=100_000, help="templates x conversations")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--show", type=int, default=5, help="wrong masks to print, of as many classes")
    given = parser.parse_args()
    began = time.monotonic()
    templates = -(-given.pairs // CONVERSATIONS)
    tasks = [(given.seed, at, min(at + TEMPLATES, templates)) for at in range(0, templates, TEMPLATES)]
    report = Report()
    with concurrent.futures.ProcessPoolExecutor(given.processes) as pool:
        for done in pool.map(work, tasks):
            report.add(done, keep=given.show * KEPT)
    print(f"{report.pairs:,} pairs, {templates:,} templates, seed {given.seed}, {time.monotonic() - began:.0f} s")
    print(table(report))
    print("rendered:", ", ".join(f"{name} {count:,}" for name, count in sorted(report.made.items())))
    print("refusals:", ", ".join(f"{name} {count:,}" for name, count in report.reasons.most_common()) or "none")
    for kind, counts in report.classes.items():
        print(f"{kind}:")
        for name, count in counts.most_common():
            print(f"  {count:>7,}  {name}")
    seen: set[tuple[str, tuple[str, ...]]] = set()
    for wrong in report.wrongs:
        if wrong[:2] not in seen and len(seen) < given.show:
            seen.add(wrong[:2])
            print(f"\n{wrong.text}")
    return int(bool(sum(report.wrong.values()) + sum(report.refused_though_plain.values())))


if __name__ == "__main__":
    sys.exit(main())
