"""SDK workers as on the user's cluster: with Beam and what our sdist pulls in, and nothing of this checkout."""

import contextlib
import fcntl
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.conftest import ROOT
from tests.engines.build import built
from tests.engines.processes import free_port, listens, serving

_SITE = Path("lib") / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"


def sdist(folder: Path) -> Path:
    """Our sdist, as `--setup_file` makes it."""
    command = [sys.executable, "setup.py", "--quiet", "sdist", "--dist-dir", str(folder)]
    # It puts a folder into the checkout, and takes it away: two processes of the tests take turns.
    with open(ROOT / "setup.py") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        subprocess.run(command, cwd=ROOT, check=True)
    (archive,) = folder.glob("*.tar.gz")
    return archive


def environment(folder: Path, *packages: Path) -> Path:
    """A virtual environment of its own, above the one that was built, which stays as it is.

    Args:
        folder: where to make it.
        packages: to install. Nothing may be missing for them: pip is not let on the network.

    Returns:
        Its Python.
    """
    base = built("python")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (folder / _SITE / "base.pth").write_text(f"{base / _SITE}\n")
    python = folder / "bin" / "python"
    for package in packages:
        command = [str(python), "-m", "pip", "install", "--quiet", "--no-index", "--no-build-isolation", str(package)]
        subprocess.run(command, check=True, env={"PATH": f"{folder / 'bin'}:/usr/bin:/bin"})
    return python


@contextlib.contextmanager
def worker_pool(folder: Path) -> Iterator[list[str]]:
    """A worker pool whose environment has our sdist; gives the options for it.

    It is for one TaskManager: each numbers its workers 1-1, 2-1 ..., so of two at one pool, one that stops a worker of
    its own may stop the other's.

    Args:
        folder: for the environment and logs.
    """
    folder.mkdir(parents=True, exist_ok=True)
    python = environment(folder / "pool", sdist(folder / "dist"))
    port = free_port()
    # It starts "python", whichever comes first in PATH; without Beam there, the job would hang.
    settings = {"PATH": f"{python.parent}:/usr/bin:/bin"}
    command = [str(python), "-m", "apache_beam.runners.worker.worker_pool_main", f"--service_port={port}"]
    with serving(command, folder / "pool.log", lambda: listens(port), settings):
        yield ["--environment_type=EXTERNAL", f"--environment_config=localhost:{port}"]


def boot_process(folder: Path, environment: Mapping[str, str] | None = None) -> list[str]:
    """Options for workers that Beam's boot program starts, as it does in the containers of Dataflow.

    It installs the staged sdist, into an environment of its own a worker. Logs lie in `folder`/worker-*/log.

    Args:
        folder: for the environments and logs.
        environment: variables that the workers get.
    """
    folder.mkdir(parents=True, exist_ok=True)
    variables = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in (environment or {}).items())
    script = folder / "boot.sh"
    script.write_text(f"""#!/bin/sh
here=$(mktemp -d {folder}/worker-XXXXXX)
exec >$here/log 2>&1 || exit 1
{sys.executable} -m venv --without-pip $here/python || exit 1
echo {built("python") / _SITE} >$here/python/{_SITE}/base.pth
export PATH=$here/python/bin:/usr/bin:/bin
{variables}\
# Its own environment would not see the packages of ours.
export RUN_PYTHON_SDK_IN_DEFAULT_ENVIRONMENT=1
# Staged files of two workers would meet in /tmp/staged.
exec {built("boot") / "container"} "$@" --semi_persist_dir=$here
""")
    script.chmod(0o755)
    return [
        "--environment_type=PROCESS",
        f"--environment_config={json.dumps({'command': str(script)})}",
        f"--setup_file={ROOT / 'setup.py'}",
    ]
