"""What a launch does with its output, wherever that is: see `LocalOutput` and `StoredOutput`."""

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from beam_prep.formats.manifest import ShardReceipt, WrittenFile
from beam_prep.storage.claims import Claims
from beam_prep.storage.reuse import EarlierShard
from beam_prep.storage.staging import HashedFiles

_KEYS = {"manifest_version", "ledger", "shards", "rejects"}


class OutputTarget(Protocol):
    """An output that a launch is making.

    Attributes:
        path: where it is.
        failed: where a failed run leaves its report and its rejects.
    """

    @property
    def path(self) -> str: ...

    @property
    def failed(self) -> str: ...

    @property
    def claims(self) -> Claims:
        """The claim on the output."""
        ...

    def check_claim(self) -> None:
        """Makes sure that the output is this launch's, or that this launch has published it and a step runs again.

        Raises:
            LockedError: it is another's.
        """
        ...

    def fails(self) -> None:
        """Gives up the claim of a launch that fails."""
        ...

    def manifest(self) -> bytes | None:
        """The current manifest, or None."""
        ...

    def is_published(self) -> bool:
        """True if this launch has published the output, and one of its steps runs again."""
        ...

    def is_complete(self, manifest: Mapping[str, Any]) -> bool:
        """True if every file that a manifest lists is there and has the size that it lists."""
        ...

    def is_empty(self) -> bool:
        """True if nothing is there, or only unfinished files of a job of ours."""
        ...

    def prepare(self, is_ours: Callable[[Mapping[str, Any]], bool], overwrite: bool) -> None:
        """Removes the manifest of the output that will be replaced. Called before the first file is written.

        Args:
            is_ours: tells whether a manifest is of the same job as this launch.
            overwrite: allows to replace another job's output.

        Raises:
            OutputError: another job's output may not be replaced.
            LockedError: another launch has claimed the output.
        """
        ...

    def files(self) -> contextlib.AbstractContextManager[HashedFiles]:
        """New files of a shard. They are kept if the context ends without an error."""
        ...

    def reuse(self, earlier: EarlierShard) -> ShardReceipt | None:
        """Puts the files of an earlier shard in the place of a new one. None if that cannot be done here.

        Raises:
            Damaged: they are not what they were.
        """
        ...

    def rejects(self) -> contextlib.AbstractContextManager[HashedFiles]:
        """The same for files of rejects, which a failed run keeps, too."""
        ...

    def publish(
        self, manifest: Mapping[str, Any], text: bytes, others: Mapping[str, bytes], run: Mapping[str, Any], page: bytes
    ) -> None:
        """Puts everything in place, the manifest last.

        Args:
            manifest, text: the manifest, and its bytes.
            others: the files that belong to no shard: `tokenizer/...`, `features.json`.
            run: the content of `run.json`.
            page: the content of `report.html`.
        """
        ...

    def write_run(self, run: Mapping[str, Any], page: bytes) -> None:
        """Replaces `run.json` and `report.html` alone, when a run made the same output again."""
        ...

    def remove_replaced(self, manifest: Mapping[str, Any]) -> None:
        """Removes the files of the replaced output that the new one does not have."""
        ...

    def fail(self, report: bytes, rejects: Sequence[WrittenFile]) -> None:
        """Writes the rejects, and then `failure.json`, to `failed`."""
        ...


def is_manifest(text: bytes | None) -> bool:
    """Tells a manifest of ours from other programs' files of that name (a web page's, a browser extension's)."""
    try:
        found = json.loads(text or b"")
    except ValueError:
        return False
    return isinstance(found, dict) and found.keys() >= _KEYS


def listed_files(manifest: Mapping[str, Any]) -> list[dict[str, Any]]:
    """All files that a manifest lists: path, bytes, sha256."""
    of_shards: list[dict[str, Any]] = [file for shard in manifest["shards"] for file in shard["files"]]
    return [*of_shards, *manifest["rejects"], *manifest["files"]]
