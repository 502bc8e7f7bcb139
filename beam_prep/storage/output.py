"""An output's path, and the target for it."""

import os

from beam_prep.errors import OutputError
from beam_prep.storage.files import join
from beam_prep.storage.local_output import LocalOutput
from beam_prep.storage.output_target import OutputTarget
from beam_prep.storage.paths import is_local, shortened
from beam_prep.storage.staging import Staging
from beam_prep.storage.stored_output import StoredOutput


def output_at(path: str, staging: Staging, failed: str | None = None) -> OutputTarget:
    """The target for an output on a local disk or in an object store.

    Args:
        path: the output.
        staging: the launch that makes it.
        failed: where a failed run leaves its report and rejects; by default see `failed_at`.
    """
    made = LocalOutput if is_local(path) else StoredOutput
    return made(path, staging, failed or failed_at(path))


def failed_at(output: str) -> str:
    """Where a failed run leaves its report and its rejects: `OUTPUT.failed`, next to the output."""
    folder, _, name = output.rpartition("/")
    return join(folder, f"{shortened(name)}.failed")


def normalise_path(path: str) -> str:
    """An output's path in its one normal form: links are followed, so that all jobs on it find the same lock.

    Raises:
        OutputError: it names a bucket and no folder.
    """
    if is_local(path):
        return os.path.realpath(path)
    path = path.rstrip("/")
    if path.count("/") < 3:
        raise OutputError(f"{path}: wanted a folder in the bucket, for instance {path}/out")
    return path
