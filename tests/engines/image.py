"""The Dataflow image without Docker: the steps of its Dockerfile, in their order, in a clean virtual environment."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import ROOT
from tests.engines.build import built

NAME = "europe-docker.pkg.dev/project/beam/beam-prep:1"
DOCKERFILE = ROOT / "pipelines" / "dataflow" / "Dockerfile"


@dataclass(frozen=True)
class Image:
    """What a build gave.

    Attributes:
        root: the folder that stands for the root of the image's file system.
        python: the interpreter of its virtual environment.
        environment: what the image sets, its paths below `root`, and PATH; nothing of ours.
        entrypoint: the command of a container.
        copied_from: other images' paths, which are not here.
    """

    root: Path
    python: Path
    environment: Mapping[str, str]
    entrypoint: list[str]
    copied_from: dict[str, str]

    def run(self, *command: str, **environment: str) -> "subprocess.CompletedProcess[str]":
        """Runs a command as in a container."""
        settings = {**self.environment, **environment}
        return subprocess.run(command, cwd=self.root, env=settings, capture_output=True, text=True)

    def workers(self, folder: Path, **environment: str) -> list[str]:
        """Options of Beam for SDK workers that are containers of this image: its entrypoint starts them.

        Args:
            folder: for the log of each.
            environment: of the containers, on top of the image's.
        """
        assert self.entrypoint == ["/opt/apache/beam/boot"]
        settings = {**self.environment, **environment, "RUN_PYTHON_SDK_IN_DEFAULT_ENVIRONMENT": "1"}
        words = " ".join(shlex.quote(f"{name}={value}") for name, value in settings.items())
        script = folder / "container.sh"
        script.write_text(f"""#!/bin/sh
here=$(mktemp -d {folder}/worker-XXXXXX)
exec >$here/log 2>&1
exec env -i {words} {built("boot") / "container"} "$@" --semi_persist_dir=$here
""")
        script.chmod(0o755)
        return ["--environment_type=PROCESS", f"--environment_config={json.dumps({'command': str(script)})}"]


def instructions() -> Iterator[tuple[str, str]]:
    """(instruction, its text) of the Dockerfile."""
    text = re.sub(r"^#.*\n", "", DOCKERFILE.read_text(), flags=re.M).replace("\\\n", " ")
    for line in filter(None, text.splitlines()):
        name, _, rest = line.partition(" ")
        yield name, rest.strip()


def build(folder: Path, **arguments: str) -> Image:
    """Follows the Dockerfile.

    Args:
        folder: where to.
        arguments: of the build, `--build-arg`.

    Raises:
        RuntimeError: a step failed, or is of a kind that is not known here.
    """
    root = folder / "root"
    subprocess.run([sys.executable, "-m", "venv", str(folder / "python")], check=True)
    python = folder / "python" / "bin" / "python"
    environment = {"PATH": f"{python.parent}:/usr/bin:/bin", "HOME": os.environ.get("HOME", "/")}
    given = dict(arguments)
    entrypoint: list[str] = []
    copied_from: dict[str, str] = {}
    workdir = root

    def inside(path: str) -> Path:
        return root / path.lstrip("/") if path.startswith("/") else workdir / path

    for name, text in instructions():
        if name == "WORKDIR":
            workdir = inside(text)
            workdir.mkdir(parents=True)
        elif name == "ENV":
            key, _, value = text.partition("=")
            value = re.sub(r"\$(\w+)", lambda match: {**environment, **given}.get(match[1], ""), value)
            environment[key] = str(inside(value)) if value.startswith("/") else value
        elif name == "ARG":
            given.setdefault(text, "")
        elif name == "COPY":
            *sources, target = shlex.split(text)
            if sources[0].startswith("--from="):
                copied_from[target] = sources[0].removeprefix("--from=")
                continue
            for source in sources:
                _copy(ROOT / source, inside(target) / Path(source).name if target.endswith("/") else inside(target))
        elif name == "RUN":
            settings = {**environment, **given}
            # What pip has downloaded before is used again: requirements.txt says by hash what it must be. (The value
            # "0" would not do: pip takes any value for yes.)
            settings.pop("PIP_NO_CACHE_DIR", None)
            done = subprocess.run(["/bin/sh", "-c", text], cwd=workdir, env=settings, capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError(f"RUN {text}\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
        elif name == "ENTRYPOINT":
            entrypoint = json.loads(text)
        elif name != "FROM":
            raise RuntimeError(f"{name} {text}: not known to tests/engines/image.py")
    return Image(root, python, environment, entrypoint, copied_from)


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    else:
        shutil.copy(source, target)
