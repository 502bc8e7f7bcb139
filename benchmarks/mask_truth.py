"""Checks that every trained character belongs to the answer, with generated chat templates whose truth is known.

    python benchmarks/mask_truth.py --pairs 100000 --processes 2      # some minutes
    python benchmarks/mask_truth.py --pairs 6000 --seed 7

A pair is a template and a conversation. The span of a message is right, refused, not rendered, or wrong. It prints
counts and the first examples. The exit code is 1 if a span is wrong, if a span of a plain template is refused, or if
more than 8 % of the answers are refused whose begin and end follow from prefixes rendered by transformers.
`tests/chat/mask_judge.py` decides what is right.
"""

import argparse
import concurrent.futures
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.chat.generated_templates import Seeded  # noqa: E402
from tests.chat.mask_judge import Report, chat_template, draw_cases, judge  # noqa: E402

CONVERSATIONS = 24  # for each template
TEMPLATES = 20  # for each task
MOST_REFUSED = 0.08


def work(task: tuple[int, int, int]) -> Report:
    """Judges the templates of a range of numbers."""
    seed, first, stop = task
    report = Report()
    for number in range(first, stop):
        chat = None
        for case in draw_cases(Seeded(f"{seed}/{number}"), CONVERSATIONS):
            chat = chat or chat_template(case.template)
            judge(case, report, chat)
    return report


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=100_000, help="templates x conversations")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--show", default="wrong", help="print examples of kinds that begin with this")
    given = parser.parse_args()
    began = time.monotonic()
    templates = -(-given.pairs // CONVERSATIONS)
    tasks = [(given.seed, at, min(at + TEMPLATES, templates)) for at in range(0, templates, TEMPLATES)]
    report = Report()
    with concurrent.futures.ProcessPoolExecutor(given.processes) as pool:
        for done in pool.map(work, tasks):
            report.add(done)
    print(f"{report.pairs:,} pairs, {templates:,} templates, seed {given.seed}, {time.monotonic() - began:.0f} s")
    print(*(f"  {number:>9,}  {name}" for name, number in report.counts.most_common()), sep="\n")
    for kind, texts in sorted(report.examples.items()):
        if kind.startswith(given.show):
            print("", *texts, sep="\n\n")
    counts = report.counts
    share = counts["refused of decided"] / max(counts["decided"], 1)
    print(f"{100 * share:.1f} % refused of the turns that prefixes decide")
    return int(bool(counts["wrong"] or counts["refused of plain"] or share > MOST_REFUSED))


if __name__ == "__main__":
    sys.exit(main())
