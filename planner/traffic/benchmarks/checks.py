"""Can the figures of a run be true together? Two identities catch most lies.

**Time**: a request is its first token and then output - 1 gaps, so mean(E2E - TTFT) = mean TPOT x (mean output
- 1), up to how lengths and gaps go together. A tool that counts chunks, not tokens, or half the gaps, fails it.
**Little's law**: requests in flight = throughput x mean E2E, whatever the distribution, as long as the run is
long against its requests. A unit read wrongly fails it by a thousand.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from planner.traffic.benchmarks.run import Run

HOLDS = 0.05
HOLDS_FOR_MEDIANS = 0.25
"""The identities are of means; medians of skewed figures keep them only roughly."""
HOLDS_FOR_A_CAP = 0.25
"""A cap on requests in flight is reached at most, less while a run starts and ends."""
OFFERED = 0.95
FEW = 20


@dataclass(frozen=True, slots=True)
class Check:
    """One statement about a run. `ratio` is left / right for the identities. verdict: holds, fails, cannot
    be checked (a figure is missing) or warns."""

    name: str
    verdict: str
    message: str
    left: float | None = None
    right: float | None = None

    @property
    def ratio(self) -> float | None:
        return self.left / self.right if self.left is not None and self.right else None

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "ratio": self.ratio}


def check_run(run: Run) -> list[Check]:
    """The two identities, and what else a reader of this run must know."""
    found = [_time(run), _little(run), _offered(run), _zeros(run), _gaps(run)]
    found += [Check("remark", "warns", remark) for remark in run.remarks]
    return [check for check in found if check is not None]


def implied_tpot_s(run: Run) -> float | None:
    """(E2E - TTFT) / (output - 1): what the TPOT must be if the other figures are right."""
    if run.e2e_s is None or run.ttft_s is None or not run.output_tokens or run.output_tokens <= 1:
        return None
    return (run.e2e_s - run.ttft_s) / (run.output_tokens - 1)


def _time(run: Run) -> Check:
    name = "mean(E2E - TTFT) = mean TPOT x (mean output - 1)"
    implied = implied_tpot_s(run)
    if implied is None:
        missing = [
            word
            for word, value in (
                ("E2E", run.e2e_s),
                ("TTFT", run.ttft_s),
                ("output length", run.output_tokens),
            )
            if value is None
        ]
        return Check(
            name, "cannot be checked", f"No {' and no '.join(missing) or 'second token'} in the file."
        )
    gaps = (run.output_tokens or 0) - 1
    span_s = implied * gaps
    if run.tpot_s is None:
        message = f"The file states no TPOT; its other figures make it {_ms(implied)}."
        if run.e2e_per_token_s is None:
            return Check(name, "cannot be checked", message, span_s)
        message += (
            f" What it calls so, {_ms(run.e2e_per_token_s)}, counts the first token: it is E2E / output."
        )
        near = abs(implied / run.e2e_per_token_s - 1) <= HOLDS if run.e2e_per_token_s else False
        return Check(name, "holds" if near else "warns", message, span_s, run.e2e_per_token_s * gaps)
    stated_s = run.tpot_s * gaps
    within = HOLDS if run.statistic == "mean" else HOLDS_FOR_MEDIANS
    of = f"the {run.statistic}s" if run.statistic != "mean" else "the means"
    if run.tpot_s > 0 and abs(implied / run.tpot_s - 1) <= within:
        message = f"From {of}: {_ms(implied)} a token, stated {_ms(run.tpot_s)}."
        return Check(name, "holds", message, span_s, stated_s)
    factor = f", a factor of {implied / run.tpot_s:.2g}" if run.tpot_s > 0 else ""
    message = (
        f"From {of} the TPOT is {_ms(implied)}, but the file states {_ms(run.tpot_s)}{factor}: its TPOT and ITL "
        f"are not gaps between tokens and are not used; take {_ms(implied)}."
    )
    chunks = [
        f"{word} {_ms(value)}" for word, value in (("median", run.itl_p50_s), ("p99", run.itl_p99_s)) if value
    ]
    if chunks:
        message += f" Its ITL ({', '.join(chunks)}) is of chunks that carry several tokens, or none."
    return Check(name, "fails", message, span_s, stated_s)


def _little(run: Run) -> Check:
    name = "concurrency = throughput x E2E"
    if run.rate_per_s is None or run.e2e_s is None:
        return Check(name, "cannot be checked", "No throughput or no E2E in the file.")
    in_flight = run.rate_per_s * run.e2e_s
    made = f"{run.rate_per_s:.4g}/s x {run.e2e_s:.4g} s = {in_flight:.4g} in flight"
    stated = run.concurrency if run.concurrency is not None else run.concurrency_cap
    if stated is None:
        return Check(name, "cannot be checked", f"{made}; the file does not say how many were.", in_flight)
    if run.concurrency is not None:
        within = HOLDS if run.statistic == "mean" else HOLDS_FOR_MEDIANS
        good = abs(in_flight - stated) <= within * max(stated, 1e-12)
    else:
        good = (1 - HOLDS_FOR_A_CAP) * stated <= in_flight <= (1 + HOLDS) * stated
    kind = "stated" if run.concurrency is not None else "allowed"
    if good:
        return Check(name, "holds", f"{made}, {kind} {stated:.4g}.", in_flight, stated)
    if run.concurrency is None and in_flight < stated:
        message = (
            f"{made}, {stated:.4g} allowed: the client did not keep as many in flight as it was allowed."
        )
        return Check(name, "warns", message, in_flight, stated)
    why = " A unit is read wrongly." if not 0.1 < in_flight / max(stated, 1e-12) < 10 else ""
    if (factor := _whole_factor(in_flight, stated)) and not (why and factor > 64):
        why = (
            f" That is a factor of {factor}: is one of the two of a single replica, and the other of a cluster of "
            f"{factor}?"
        )
    short = " The run is short against its requests, whose start and end are not steady."
    brief = run.duration_s is not None and run.duration_s < 10 * run.e2e_s
    message = f"{made}, but {kind} are {stated:.4g}.{why}{short if brief and not why else ''}"
    return Check(name, "fails", message, in_flight, stated)


def _whole_factor(first: float, second: float) -> int:
    """2 to 64 where one of the two is so many times the other; 0 otherwise."""
    larger, smaller = max(first, second), min(first, second)
    factor = round(larger / smaller) if smaller > 0 and larger < 1_000 * smaller else 0
    near = 2 <= factor <= 64 and abs(larger / smaller / factor - 1) <= min(HOLDS, 0.25 / factor)
    return factor if near else 0


def _offered(run: Run) -> Check | None:
    """A run that did not send what it was asked for waited for its answers: a closed loop."""
    asked, sent = run.requested_rate_per_s, run.rate_per_s
    if asked and run.requests is not None and run.requests < FEW:
        message = f"{run.requests} requests are too few to tell whether {asked:.4g}/s were offered."
        return Check("offered load", "cannot be checked", message, sent, asked)
    if asked and sent is not None and sent < OFFERED * asked:
        share = 100 * sent / asked
        tail = f" (TTFT p99 {run.ttft_p99_s:.3g} s)" if run.ttft_p99_s else ""
        cap = f" with at most {run.concurrency_cap:.0f} in flight" if run.concurrency_cap else ""
        message = (
            f"The client did not offer the stated load: {sent:.4g} of {asked:.4g} requests/s ({share:.0f} %){cap}. "
            f"Its percentiles{tail} are closed-loop numbers and may not be compared with an open-loop SLO."
        )
        return Check("offered load", "fails", message, sent, asked)
    if run.unlimited_rate and run.concurrency_cap:
        message = (
            f"Sent as fast as {run.concurrency_cap:.0f} in flight allow (request rate unlimited): a closed loop, "
            "whose percentiles may not be compared with an open-loop SLO."
        )
        return Check("offered load", "warns", message)
    return None


def _gaps(run: Run) -> Check | None:
    """What is called ITL, where that is not the gap between two tokens."""
    if run.itl_of_requests:
        message = (
            "What this tool calls inter-token latency is one mean a request, which is TPOT: its p99 is of requests, "
            "and cannot give an ITL p99, which is of all gaps and larger."
        )
        return Check("ITL", "warns", message)
    implied = implied_tpot_s(run)
    if run.itl_s and implied and run.itl_s > (1 + HOLDS) * implied and run.statistic == "mean":
        tokens = run.itl_s / implied
        message = (
            f"Its mean ITL, {_ms(run.itl_s)}, is {tokens:.2f} times the time a token takes: the chunks that were timed "
            "carry several tokens, as with speculative decoding or a server that streams them together. It is no ITL."
        )
        return Check("ITL", "warns", message, run.itl_s, implied)
    return None


def _zeros(run: Run) -> Check | None:
    """Times of exactly 0, or no token found again in the text: nothing was measured."""
    zeros = [
        word for word, value in (("TTFT", run.ttft_s), ("ITL", run.itl_s), ("TPOT", run.tpot_s)) if value == 0
    ]
    if run.retokenized_output_tokens == 0:
        zeros.append("the output tokens counted again in the text")
    if not zeros:
        return None
    are = "is" if len(zeros) == 1 else "are"
    message = f"{', '.join(zeros)} {are} 0: nothing was measured there; refused as a measurement."
    return Check("zeros", "fails", message)


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.4g} ms"
