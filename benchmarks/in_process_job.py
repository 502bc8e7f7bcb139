"""CPU seconds of a small job that `Pipeline.run` works on in this process, after one that warms it up.

    python benchmarks/in_process_job.py

The sample data of `examples/`, 10 jobs; prints their median and the least.
"""

import statistics
import tempfile
import time
from pathlib import Path

from beam_prep.config import PipelineConfig
from beam_prep.pipeline import Pipeline

ROOT = Path(__file__).resolve().parent.parent
JOBS = 10


def main() -> None:
    config = PipelineConfig.from_json(ROOT / "configs" / "sft_conversation.json")
    tokenizer, times = str(ROOT / "examples" / "tokenizer"), []
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "chat.jsonl")
        lines = (ROOT / "examples" / "data" / "chat.jsonl").read_bytes().splitlines(keepends=True)
        source.write_bytes(b"".join(lines[:20]))
        for number in range(JOBS + 1):
            started = time.process_time()
            Pipeline(config, [source], Path(folder, str(number)), tokenizer).run(["--runner=FnApiRunner"])
            times.append(time.process_time() - started)
    print(f"{statistics.median(times[1:]):.2f} s of CPU time, at least {min(times[1:]):.2f}")


if __name__ == "__main__":
    main()
