"""What `.ci/run` says at its end, with a `make` that only pretends."""

import os
import re
import subprocess
from pathlib import Path

from tests.conftest import ROOT

MAKE = """#!/bin/sh
echo "making $1"
case $1 in
    test) printf -- '--- 3 skipped ---\\n     2 no test material\\n     1 no Chromium\\n4 passed, 3 skipped in 1s\\n' ;;
    test-long) echo '1 failed, 2 passed in 3s'; exit 2 ;;
esac
"""


def test_the_last_lines_say_what_ran_what_was_skipped_and_what_did_not_run(tmp_path: Path) -> None:
    make = tmp_path / "make"
    make.write_text(MAKE)
    make.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run([ROOT / ".ci/run"], env=environment, capture_output=True, text=True)
    told = re.sub(r" +\d+ s ", " 0 s", done.stdout.partition("What ran")[2]).splitlines()[1:]
    assert [line.rstrip() for line in told] == [
        "check          passed 0 s",
        "test           passed 0 s 4 passed, 3 skipped in 1s",
        "    skipped:     2 no test material",
        "    skipped:     1 no Chromium",
        "test-long      FAILED 0 s 1 failed, 2 passed in 3s",
        "not run: docs test-engines test-faults test-browser test-trainers",
    ]
    assert done.returncode == 1
