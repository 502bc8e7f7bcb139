"""`mds`, read back by a few lines of json and numpy, and by its own reader. `StreamingDataset`: tests/trainers."""

from functools import partial
from pathlib import Path

import pytest

from beam_prep.formats import mds
from tests.formats.shards import (
    MASK,
    SEQUENCE,
    read_as,
    sft,
    write_as,
)

write, read = partial(write_as, "mds"), partial(read_as, "mds")


def test_a_shard_that_its_offsets_cannot_count_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    size = write(tmp_path, [SEQUENCE, MASK], [sft()]).stat().st_size
    monkeypatch.setattr(mds, "MAX_BYTES", size)
    write(tmp_path, [SEQUENCE, MASK], [sft()], shard=1)
    monkeypatch.setattr(mds, "MAX_BYTES", size - 1)
    with pytest.raises(ValueError, match=r"more than .* lower output\.max_tokens_per_shard"):
        write(tmp_path, [SEQUENCE, MASK], [sft()], shard=2)
