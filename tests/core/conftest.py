"""Hypothesis without a clock, so that a slow moment of the machine is no failure; and fixtures of these tests."""

from hypothesis import HealthCheck, settings

settings.register_profile("no clock", suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("no clock")
