"""What a running server did against what was predicted of it: the load generator's view beside the simulation's.

The clock is the wall's and the distance is the client's: front end and network are in the measured times and, unless
the plan was told of them, not in the predicted ones. A percentile is of the requests that were answered; that others
failed is said first, because a server that refuses half its load is fast for the rest. Where the client itself was
late, or the server's stream does not show single tokens, the report says so (measured.py) and claims no more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from planner.search.seconds import percent_text, seconds_text
from planner.simulation.outcome import Outcome
from planner.verification.lines import BARS, PERCENTILES, Line, bars_text, bootstrap_interval, line_of
from planner.verification.measured import Measured

FAILED_SHARE: Final = 0.01  # of the requests: beyond it the server does not serve this load
METRICS: Final = ("ttft", "itl", "tpot", "e2e")


@dataclass(frozen=True, slots=True)
class EndpointReport:
    """`measured`: Measured.to_dict. `failed`: of the requests that were to be sent. `device_kind`: whose bars the lines
    are held to, "cpu" or "gpu"; `bars`: those in words."""

    lines: tuple[Line, ...]
    requests: int
    failed: int
    measured: Mapping[str, Any]
    sentence: str
    advice: tuple[str, ...]
    device_kind: str
    bars: str

    @property
    def holds(self) -> bool:
        return self.failed <= FAILED_SHARE * self.requests and bool(self.lines) and all(
            line.holds for line in self.lines
        )  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        lines = [line.to_dict() for line in self.lines]
        return asdict(self) | {"lines": lines, "holds": self.holds}


def compare_endpoint(
    predicted: Outcome,
    refits: Sequence[Outcome],
    measured: Measured,
    kind: str,
    *,
    extra_s: float = 0.0,
    seed: int = 0,
) -> EndpointReport:
    """`kind`: "cpu" or "gpu", whose bars apply. `extra_s`: what the plan was told of front end and network, on average;
    it is added to the predicted TTFT and E2E."""
    bars = BARS[kind]
    lines = []
    for metric in METRICS:
        values = measured.values_s.get(metric)
        if values is None or not len(values) or not _has(predicted, metric):
            continue
        more = extra_s if metric in ("ttft", "e2e") else 0.0
        for percentile in PERCENTILES:
            interval = bootstrap_interval(_drawn_from(measured, metric), percentile, seed)
            own = float(np.percentile(values, percentile))
            if own <= 0.0:
                continue  # chunks that came at once: measured.py says so
            lines.append(
                line_of(
                    metric, percentile, predicted.percentile(metric, percentile) + more,
                    [outcome.percentile(metric, percentile) + more for outcome in refits], [own],
                    _around(own, interval, _drawn_from(measured, metric), percentile), bars.get((metric, percentile)),
                )
            )  # fmt: skip
    failed = measured.requests - measured.answered
    return EndpointReport(
        lines=tuple(lines), requests=measured.requests, failed=failed, measured=measured.to_dict(),
        sentence=_sentence(lines, measured, failed), advice=tuple(_advice(lines, measured, failed)),
        device_kind=kind, bars=bars_text(kind),
    )  # fmt: skip


def _has(outcome: Outcome, metric: str) -> bool:
    return bool(outcome.gap_counts.sum()) if metric == "itl" else len(outcome.values_s(metric)) > 0


def _drawn_from(measured: Measured, metric: str) -> Any:
    """Requests are drawn: gaps of one request belong together, so those of ITL stand for their mean."""
    tpot = measured.values_s["tpot"]
    return tpot if metric == "itl" and len(tpot) else measured.values_s[metric]


def _around(own: float, interval: tuple[float, float], values: Any, percentile: float) -> tuple[float, float]:
    """An interval as wide, relative to its middle, around the metric's own percentile."""
    middle = float(np.percentile(values, percentile))
    return (own * interval[0] / middle, own * interval[1] / middle) if middle > 0.0 else (own, own)


def _sentence(lines: Sequence[Line], measured: Measured, failed: int) -> str:
    if failed > FAILED_SHARE * measured.requests:
        reason, count = next(iter(measured.errors.items()))
        many = "all" if count == failed else f"{count:,} of them"
        return (
            f"{failed:,} of {measured.requests:,} requests failed, {many} with \u201c{reason}\u201d: this server does "
            "not serve the plan's load."
        )
    judged = [line for line in lines if line.bar is not None]
    worst = max(judged, key=lambda line: abs(line.error), default=None)
    if worst is None:
        return "Nothing could be judged: no request was answered with tokens that can be told apart."
    told = f"predicted {seconds_text(worst.predicted_s)}, measured {seconds_text(worst.measured_s)}"
    if all(line.holds for line in judged):
        inside = "within the stated intervals" if all(line.within for line in judged) else "within the bars"
        return (
            f"The server did what was predicted, {inside}: the largest error is {percent_text(abs(worst.error))}, at "
            f"{worst.label} ({told})."
        )
    way = "optimistic" if worst.error < 0 else "pessimistic"
    return f"The plan is {way} by {percent_text(abs(worst.error))} at {worst.label} on this server: {told}."


def _advice(lines: Sequence[Line], measured: Measured, failed: int) -> list[str]:
    found = list(measured.doubts)
    if failed:
        found.append(
            f"{failed:,} requests failed; the percentiles are of the {measured.answered:,} that did not."
        )
    by_key = {(line.metric, line.percentile): line for line in lines}
    ttft, itl = by_key.get(("ttft", 50.0)), by_key.get(("itl", 50.0)) or by_key.get(("tpot", 50.0))
    if ttft and itl and not ttft.holds and abs(itl.error) <= 0.1 and ttft.error < 0:
        found.append(
            "Gaps are as predicted and first tokens are late: measure the front end and the network, and tell the plan."
        )
    elif itl and itl.bar is not None and not itl.holds:
        found.append(
            "Gaps are not as predicted: the step times are another engine's or device's. Calibrate from this server's "
            "own log (import_vllm_log) and plan again."
        )
    if measured.achieved_per_s < 0.9 * measured.offered_per_s and not failed:
        found.append(
            f"The server fell behind: {measured.offered_per_s:.3g} requests a second were sent, "
            f"{measured.achieved_per_s:.3g} answered."
        )
    return found
