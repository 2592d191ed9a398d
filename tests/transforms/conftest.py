"""Hypothesis without its clock: a property does not fail because the machine was busy."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("wideload", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("wideload")
