"""Ranges that many knobs share."""

from __future__ import annotations


def at_least(knobs: object, least: int, *names: str) -> None:
    """ValueError naming the first of the knobs that is smaller."""
    for name in names:
        if getattr(knobs, name) < least:
            raise ValueError(f"{name} must be at least {least}, not {getattr(knobs, name)}")


def one_of(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, not {value!r}")


def share(name: str, value: float) -> None:
    if not 0.0 < value < 1.0:
        raise ValueError(f"{name} must be between 0 and 1, not {value}")


def not_simulated(knobs: object, engine: str, name: str) -> None:
    """Speculative decoding of an engine for which it is missing here."""
    if getattr(knobs, name):
        raise ValueError(f"{name}: speculative decoding is not simulated for {engine}, only for vLLM")
