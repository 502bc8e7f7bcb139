"""A process that has everything imported, and runs a job of the command line in a child of it, as often as it is told.

Started by `harness.Jobs`. A line of JSON on its standard input is a job; it answers with one when the job has ended.
Its arguments are modules that it imports, too.
"""

import importlib
import json
import os
import signal
import sys
from contextlib import suppress

from beam_prep import cli


def main() -> None:
    cli.import_beam()
    importlib.import_module("tokenizers")
    for name in sys.argv[1:]:
        importlib.import_module(name)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        child = os.fork()
        if child == 0:
            os.setpgid(0, 0)
            _run(job)
        _, status, used = os.wait4(child, 0)
        # Workers whose launcher is gone end by themselves: `harness` looks whether they do.
        answer = {"code": os.waitstatus_to_exitcode(status), "group": child, "memory": used.ru_maxrss * 1024}
        print(json.dumps(answer), flush=True)


def _run(job: dict[str, object]) -> None:
    """Never comes back."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, name in ((0, os.devnull), (1, job["stdout"]), (2, job["stderr"])):
        opened = os.open(str(name), os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(opened, number)
    sys.argv = ["beam-prep", *job["arguments"]]  # type: ignore[misc]
    code = 1
    try:
        code = cli.main()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
