"""Which steps are timed, how, and until when.

envelope.py     the region a user plans in       points.py       the steps to measure there
fits.py         what fits the device, in bytes   running.py      warm-up, passes, repeats, sentinels
environment.py  what it was measured with
"""

from calibration.experiment.envelope import DEMO_ENVELOPE, BadEnvelope, Envelope
from calibration.experiment.environment import environment_record
from calibration.experiment.fits import DoesNotFit, check_envelope, check_fits
from calibration.experiment.points import (
    Point,
    Region,
    held_out,
    neighbour,
    points,
    sentinels,
    warm_up,
    with_points,
)
from calibration.experiment.running import (
    RULES,
    ExperimentResult,
    Rules,
    Stopped,
    describe,
    run_experiment,
    run_step,
)

__all__ = [
    "DEMO_ENVELOPE",
    "RULES",
    "BadEnvelope",
    "DoesNotFit",
    "Envelope",
    "ExperimentResult",
    "Point",
    "Region",
    "Rules",
    "Stopped",
    "check_envelope",
    "check_fits",
    "describe",
    "environment_record",
    "held_out",
    "neighbour",
    "points",
    "run_experiment",
    "run_step",
    "sentinels",
    "warm_up",
    "with_points",
]
