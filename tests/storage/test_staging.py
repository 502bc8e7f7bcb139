"""Files that are hashed while they are written: whole or not at all."""

import hashlib
from pathlib import Path
from typing import Any

import pytest

from beam_prep.storage.staging import HashedFile


def test_the_digest_and_the_size_are_of_what_lies_on_the_disk(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "file"
    parts: list[bytes | memoryview] = [b"one", memoryview(b"two" * 100_000), b"", b"three"]
    file = HashedFile(str(path), str(tmp_path))
    for part in parts:
        assert file.write(part) == len(part)
        assert not path.exists()
    file.close()
    written = file.written("name")
    assert path.read_bytes() == b"".join(parts)
    assert (written.bytes, written.sha256) == (path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest())


class _Full:
    """A disk without space."""

    def write(self, data: Any) -> int:
        raise OSError(28, "No space left on device")

    def close(self) -> None:
        pass


def test_an_error_of_the_disk_names_the_file(tmp_path: Path) -> None:
    file = HashedFile(str(tmp_path / "file"), str(tmp_path))
    file._file.close()
    file._file = _Full()  # type: ignore[assignment]
    with pytest.raises(OSError, match="No space left") as raised:
        file.write(b"data")
    assert raised.value.filename == str(tmp_path / "file")
    assert not (tmp_path / "file").exists()
