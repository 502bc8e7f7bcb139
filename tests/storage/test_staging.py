"""Files that are hashed while they are written: whole or not at all."""

import hashlib
from pathlib import Path

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
