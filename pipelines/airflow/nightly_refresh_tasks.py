"""Functions of the tasks of `nightly_refresh`. They run in Airflow's own environment, which need not have beam_prep.

Paths are those of `ObjectStoragePath`: local, or `gs://` and `s3://` where their providers are installed.
"""

import json
import os
import re
import subprocess
import uuid
from datetime import datetime
from typing import Any

from airflow.sdk import ObjectStoragePath
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

ENDINGS = (".jsonl", ".json", ".gz", ".bz2", ".zst")
PERMANENT = (2, 3, 4)
"""Exit codes of jobs that would end in the same way if they were run again."""


def day_inputs(root: str, day: str) -> list[str]:
    """Lists the files of a day and of all days before it, oldest first: `<root>/2026-01-31/*.jsonl` and so on.

    Args:
        root: a folder that has one folder per day.
        day: as 2026-01-31.

    Raises:
        AirflowException: the day has no folder yet, or no file in it.
        AirflowFailException: the job cannot take one of the names.
    """
    base = ObjectStoragePath(root)
    days = sorted(path.name for path in base.iterdir() if re.fullmatch(r"\d{4}-\d\d-\d\d", path.name))
    found = {one: _files(base / one) for one in days if one <= day}
    if not found.get(day):
        there = f"it has the days {days[0]} to {days[-1]}" if days else "it has no folder of a day"
        raise AirflowException(f"{root}/{day} holds no file that ends in {', '.join(ENDINGS)}; {there}")
    names = [name for one in sorted(found) for name in found[one]]
    if wrong := [name for name in names if name.splitlines() != [name]]:
        raise AirflowFailException(f"{wrong[0]!r} has a line break in its name: rename it")
    return names


def keep_list(outputs: str, day: str, names: list[str]) -> str:
    """Writes the inputs of a day into `<outputs>/inputs/<day>.txt`, and returns the job's option `inputs`.

    A command line has room for a few thousand names, and years have more files.
    """
    path = ObjectStoragePath(f"{outputs}/inputs/{day}.txt")
    _put(path, "".join(f"{name}\n" for name in names))
    return f"@{_plain(path)}"


def _files(folder: ObjectStoragePath) -> list[str]:
    """Paths as a job takes them, sorted by bytes."""
    names = [_plain(path) for path in folder.iterdir() if path.name.endswith(ENDINGS) and path.name[0] != "."]
    return sorted(names, key=str.encode)


def _plain(path: ObjectStoragePath) -> str:
    """The path without the connection that `gs://connection@bucket/...` may name."""
    return path.path if path.protocol in ("", "file") else f"{path.protocol}://{path.path}"


class KnowsExitCodes:
    """For an operator that runs the job: its failure says what the job rejected, and is retried only if that may help.

    Exit code 2 is a wrong config, 3 are the data, 4 is an output that is refused: the next try would end in the same
    way. Others (5: storage or engine, 6: another job holds the output, signals) are tried again.
    """

    options: dict[str, Any]
    """The options of the job."""

    def execute(self, context: Any) -> Any:
        """See the operator."""
        try:
            return super().execute(context)  # type: ignore[misc]
        except AirflowException as error:
            self._tell(context, error)
            raise

    def execute_complete(self, context: Any, event: dict[str, Any]) -> Any:
        """See the operator."""
        try:
            return super().execute_complete(context, event)  # type: ignore[misc]
        except AirflowException as error:
            self._tell(context, error)
            raise

    def _tell(self, context: Any, error: AirflowException) -> None:
        report = reject_summary(self.options["output_dir"], context["ti"].start_date)
        code = re.search(r"return code (\d+)", str(error))
        if report is not None or (code is not None and int(code[1]) in PERMANENT):
            raise AirflowFailException(f"{error}\n{report}" if report else str(error)) from error


def reject_summary(output: str, since: datetime) -> str | None:
    """A summary of the `<output>.failed/failure.json` of a job that failed by a rule; None if there is none.

    Args:
        output: the job's output.
        since: when this attempt began; an older file is from another one.
    """
    path = ObjectStoragePath(f"{output}.failed/failure.json")
    if not path.exists() or path.fs.modified(path.path) < since:
        return None
    failure = json.loads(path.read_text())
    ledger = failure["ledger"]
    lines = [failure["problem"], f"records read: {ledger['read']:,}, kept: {ledger['kept']:,}"]
    for kind in ("dropped", "rejected"):
        if ledger[kind]:
            counts = ", ".join(f"{count:,} {reason}" for reason, count in sorted(ledger[kind].items()))
            lines.append(f"{kind}: {counts}")
    if ledger["rejected"]:
        lines.append(f"each of them, with file, line and reason: {output}.failed/rejects/")
    return "\n".join(lines)


def verified(python: str, data: str, version_name: str) -> dict[str, Any]:
    """Compares every file and count of an output with its manifest; returns the result of `beam-prep verify --json`.

    Args:
        python: an interpreter that has beam_prep.
        data: the folder of versions.
        version_name: the one that was to be made. If the latest one was up to date it was not: then that is verified.

    Raises:
        AirflowException: the message has every problem.
    """
    made = ObjectStoragePath(f"{data}/{version_name}/manifest.json").exists()
    output = f"{data}/{version_name if made else latest(data)}"
    command = [python, "-m", "beam_prep.cli", "verify", output, "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    if not done.stdout.startswith("{"):
        raise AirflowException(f"{' '.join(command)} ended with code {done.returncode}:\n{done.stderr[-4000:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    if problems := found.pop("problems"):
        advice = f"remove {output} and clear the task `prepare`: the token cache still has its blocks"
        raise AirflowException("\n".join([f"{output} is not what its manifest says:", *problems, advice]))
    return found


def latest(data: str) -> str:
    """The name of the latest version.

    Raises:
        AirflowException: there is none.
    """
    path = ObjectStoragePath(f"{data}/latest.json")
    if path.protocol in ("", "file"):
        link = f"{path.path.removesuffix('.json')}"
        if os.path.islink(link):
            return os.readlink(link)
    elif path.exists():
        return str(json.loads(path.read_text())["generation"])
    raise AirflowException(f"{data} has no latest version: clear the task `prepare`")


def still_latest(data: str, found: dict[str, Any]) -> dict[str, Any]:
    """`found`, if it is of the version that `latest` names.

    Raises:
        AirflowSkipException: it names a later one, as in a backfill.
    """
    if found["output"] != f"{data}/{(name := latest(data))}":
        raise AirflowSkipException(f"latest stays at {name}: {found['output']} is older")
    return found


def _put(path: ObjectStoragePath, text: str) -> None:
    """Writes a file in one step: on a local disk by a rename, on an object store by one PUT."""
    if path.protocol not in ("", "file"):
        path.write_text(text)
        return
    os.makedirs(os.path.dirname(path.path), exist_ok=True)
    made = f"{path.path}.{uuid.uuid4().hex}"
    with open(made, "w") as file:
        file.write(text)
    os.replace(made, path.path)
