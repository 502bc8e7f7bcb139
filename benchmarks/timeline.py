"""When a run of the command line does what: seconds since the start of the process, worker processes included.

    python benchmarks/timeline.py CORPUS.jsonl --tokenizer DIR [--config benchmarks/configs/chat_last.json]

The job runs as a user runs it. What is noted is patched in from here before the workers are forked, so it needs
Linux and a tokenizer that was resolved before (run it twice: the second time counts).
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

STARTED = time.time()
HERE = Path(__file__).resolve().parent
# In the order in which they happen; of several, the first or the last.
STEPS = {
    "Beam imported": min,
    "first worker forked": min,
    "pipeline made: config, inputs, tokenizer": min,
    "gate done: gigatoken's ids are the reference's": min,
    "first block begins": min,
    "first block spooled": min,
    "last block spooled": max,
    "plan begins": min,
    "shards begin": min,
    "last shard written": max,
    "published": max,
    "end": max,
}


def watch(log: Path) -> None:
    """Puts notes into the functions that do the steps."""
    from beam_prep import cli

    def note(step: str) -> None:
        with open(log, "a") as file:
            file.write(f"{time.time() - STARTED} {step}\n")

    def around(owner: Any, name: str, before: str | None = None, after: str | None = None) -> None:
        function: Callable[..., Any] = getattr(owner, name)

        def noted(*given: Any, **options: Any) -> Any:
            if before is not None:
                note(before)
            result = function(*given, **options)
            if after is not None:
                note(after)
            return result

        setattr(owner, name, noted)

    import_beam = cli._import_beam

    def imported(stores: bool = True, first: Callable[[], object] = lambda: None) -> None:
        import_beam(stores, first)
        note("Beam imported")
        from beam_prep import worker
        from beam_prep.storage import publish as _publish
        from beam_prep.storage import spool as _spool
        from beam_prep.transforms import gate, shard

        around(worker._ForkedWorkers, "__init__", after="first worker forked")
        around(worker._ForkedWorkers, "prepare", before="pipeline made: config, inputs, tokenizer")
        around(gate, "choose", after="gate done: gigatoken's ids are the reference's")  # in the first worker
        around(_spool.Spool, "write", after="last block spooled")
        around(_spool.Spool, "find", before="first block begins")
        around(_spool.Spool, "write", after="first block spooled")
        around(shard, "make_plan", before="plan begins")
        around(shard, "write_shard", before="shards begin", after="last shard written")
        around(_publish.Publisher, "publish", after="published")

    cli._import_beam = imported


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--tokenizer", required=True, help="a tokenizer's folder")
    parser.add_argument("--config", default=str(HERE / "configs" / "chat_last.json"))
    given = parser.parse_args()
    from beam_prep import cli

    with tempfile.TemporaryDirectory(prefix="timeline-") as work:
        log = Path(work, "log")
        watch(log)
        sys.argv = ["beam-prep", "run", str(given.corpus), "-o", os.path.join(work, "out")]
        sys.argv += ["-c", given.config, "--tokenizer_path", given.tokenizer]
        code = cli.main()
        times: dict[str, list[float]] = {"end": [time.time() - STARTED]}
        for line in log.read_text().splitlines():
            seconds, _, step = line.partition(" ")
            times.setdefault(step, []).append(float(seconds))
    for step, which in STEPS.items():
        if step in times:
            print(f"{which(times[step]):6.2f} s  {step}")
    return code


if __name__ == "__main__":
    sys.exit(main())
