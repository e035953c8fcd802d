"""Whom this installation may ask: the guarded client (sources/outbound.py) with the operator's networks."""

from __future__ import annotations

from typing import Any

from django.conf import settings

from calibration.sources.outbound import Guard


def guard(**limits: Any) -> Guard:
    """Public addresses, and what OUTBOUND_NETWORKS names."""
    return Guard.of(settings.OUTBOUND_NETWORKS, **limits)
