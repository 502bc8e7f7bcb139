"""`make flink-demo`: the demo job on a Flink cluster that is started for it, and in this process: the same bytes.

All that it started is stopped, also when something fails. Outputs lie in out/flink-demo.
"""

import contextlib
import hashlib
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.engines.flink import running
from tests.engines.processes import end_on_sigterm
from tests.engines.workers import worker_pool

OUT = Path("out") / "flink-demo"


def _run(output: Path, options: Sequence[str]) -> str:
    """Runs the demo job from the command line, which is shown; gives the sha256 of its manifest."""
    job = ["examples/data/chat.jsonl", "-o", str(output), "-c", "configs/sft_conversation.json"]
    words = ["run", *job, "--tokenizer_path", "examples/tokenizer", *options]
    print(f"\n$ beam-prep {shlex.join(words)}", flush=True)
    subprocess.run([sys.executable, "-m", "beam_prep.cli", *words], cwd=ROOT, check=True)
    return hashlib.sha256((ROOT / output / "manifest.json").read_bytes()).hexdigest()


def main() -> int:
    """Gives the exit code: 0 if the bytes are the same."""
    end_on_sigterm()
    shutil.rmtree(ROOT / OUT, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix="flink-demo-"))
    started = time.monotonic()
    try:
        with contextlib.ExitStack() as stack:
            print(f"starting JobManager, TaskManager, job server and worker pool; logs in {folder}", flush=True)
            flink = stack.enter_context(running(folder))
            pool = stack.enter_context(worker_pool(folder))
            print(f"up in {time.monotonic() - started:.0f} s: http://{flink.cluster.address}", flush=True)
            found = {
                "in this process": _run(OUT / "here", ["--runner=DirectRunner"]),
                "on Flink": _run(OUT / "flink", [*flink.options, *pool]),
            }
    except (pytest.skip.Exception, pytest.fail.Exception) as error:
        print(f"flink-demo: {error}", file=sys.stderr)
        return 1
    except (subprocess.CalledProcessError, RuntimeError) as error:
        print(f"flink-demo: {error}; logs are in {folder}", file=sys.stderr)
        return 1
    finally:
        print(f"\neverything is stopped, after {time.monotonic() - started:.0f} s", flush=True)
    print("sha256 of manifest.json, which holds that of every file:")
    for where, digest in found.items():
        print(f"  {digest}  {where}")
    same = len(set(found.values())) == 1
    print("the same bytes" if same else "DIFFERENT BYTES")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
