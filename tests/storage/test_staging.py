"""Files that are written and hashed beside the work: whole or not at all."""

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


@pytest.mark.parametrize("last", [True, False])
def test_an_error_of_the_disk_in_the_background_is_raised_later(tmp_path: Path, last: bool) -> None:
    file = HashedFile(str(tmp_path / "file"), str(tmp_path))
    file._file.close()
    file._file = _Full()  # type: ignore[assignment]
    file.write(b"data" * 100_000)
    with pytest.raises(OSError, match="No space left"):
        file.close() if last else file.write(b"more")
    assert not (tmp_path / "file").exists()


def test_an_error_of_the_disk_at_a_small_write_is_raised_at_once(tmp_path: Path) -> None:
    file = HashedFile(str(tmp_path / "file"), str(tmp_path))
    file._file.close()
    file._file = _Full()  # type: ignore[assignment]
    with pytest.raises(OSError, match="No space left") as raised:
        file.write(b"data")
    assert raised.value.filename == str(tmp_path / "file")
    assert not (tmp_path / "file").exists()


def test_small_and_large_writes_keep_their_order(tmp_path: Path) -> None:
    parts = [bytes([number]) * size for number, size in enumerate([10, 2**20, 10, 2**18, 2**18 + 1, 0, 2**20, 1])]
    file = HashedFile(str(tmp_path / "file"), str(tmp_path))
    for part in parts:
        file.write(part)
    file.close()
    content = (tmp_path / "file").read_bytes()
    assert content == b"".join(parts)
    assert file.written("file").sha256 == hashlib.sha256(content).hexdigest()
