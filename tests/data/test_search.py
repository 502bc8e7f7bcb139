"""Searches for bytes."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from beam_prep.data import ragged
from beam_prep.data.ragged import places_of


@given(st.binary(max_size=40), st.integers(1, 50))
def test_places_are_found_whatever_the_parts(data: bytes, part: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ragged, "_PART", part)
        found = places_of(np.frombuffer(data, np.uint8), lambda some: some < 0x40)
    assert found.dtype == np.int64
    assert found.tolist() == [place for place, byte in enumerate(data) if byte < 0x40]
