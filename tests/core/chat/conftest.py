import pytest
from beam_prep.core.chat.recorded import plans


@pytest.fixture
def plans_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan from the first conversation of a pattern on."""
    monkeypatch.setattr(plans, "SIGHTINGS_BEFORE_TRACE", 1)
