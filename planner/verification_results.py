"""What the jobs of verifications store, and what they refuse beforehand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from calibration.jobs import JobBroken, JobCancelled, JobRefused
from calibration.patience import patiently
from planner.models import Verification
from planner.simulation.outcome import Outcome
from planner.verification.curves import gap_quantiles, quantiles
from planner.verification.feedback import mispriced, step_spread
from planner.verification.loop import Replayed
from planner.verification.partial import ASKED
from planner.verification.pool_steps import PoolSteps
from planner.verification.report import Report

MOST_BUSY_S = 4 * 3600.0


def refuse_the_endless(busy_s: float) -> None:
    if busy_s > MOST_BUSY_S:
        hours = busy_s / 3600.0
        raise JobRefused(f"This would keep the device busy for about {hours:.1f} hours: take fewer requests.")


def write(row: Verification, report: Report, result: dict[str, Any]) -> None:
    store(row, result, holds=report.holds, sentence=report.sentence)


def store(row: Verification, result: dict[str, Any], *, holds: bool | None, sentence: str) -> None:
    """`holds` None: nothing was judged."""
    rows = Verification.objects.filter(pk=row.pk, status=Verification.RUNNING)
    patiently(lambda: rows.update(result=result, holds=holds, sentence=sentence))


def which_replay(number: int, replays: int) -> str:
    """How a sentence begins about the replay `number` (from 0) of `replays`."""
    return "The replay" if replays == 1 else f"Replay {number + 1} of {replays}"


def broken_off(row: Verification, report: dict[str, Any]) -> JobBroken | JobCancelled:
    """Stores a partial report; what the job then ends with: cancelled where it was asked to stop."""
    store(row, report, holds=None, sentence=report["sentence"])
    return JobCancelled() if report["partial"]["ended"] == ASKED else JobBroken(report["sentence"])


def result_of(
    report: Report,
    first: int,
    of: int,
    predicted: Outcome,
    replays: Sequence[Replayed],
    steps: PoolSteps,
) -> dict[str, Any]:
    """What is stored of a replay: the report, where the window lies, both distributions, and what its residuals may
    lead to (verification/feedback.py)."""
    measured = replays[0].outcome
    return report.to_dict() | {
        "step_spread": step_spread(report.residuals),
        "points": [shape.to_dict() for shape in mispriced(replays, steps, report.residuals)],
        "first": first,
        "of": of,
        "curves": {
            "ttft": {
                "predicted_s": quantiles(predicted.ttft_s()),
                "measured_s": quantiles(measured.ttft_s()),
            },
            "itl": {"predicted_s": gap_quantiles(predicted), "measured_s": gap_quantiles(measured)},
        },
    }
