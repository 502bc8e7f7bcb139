"""Hypothesis without a clock, so that a slow moment of the machine is no failure; and fixtures of these tests."""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from beam_prep.core.chat.recorded import plans
from beam_prep.core.pieces import bulk_chats

settings.register_profile("no clock", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("no clock")


@pytest.fixture(scope="module")
def at_once() -> Iterator[None]:
    """Layouts are known from the second conversation of a pattern on, and used for every one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plans, "SIGHTINGS_BEFORE_TRACE", 1)
        patch.setattr(plans, "COMPARED_USES", 1)
        patch.setattr(bulk_chats, "_FEW", 1)
        yield
