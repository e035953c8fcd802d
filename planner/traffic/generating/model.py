"""A synthetic model: arrivals x lengths x sessions, as JSON and as the traffic it makes.

{"arrivals": {"kind": "poisson", "rate_per_s": 4}, "lengths": {"kind": "lognormal", ...}, "sessions": {...} or absent}

The same model with the same seed gives the same traffic. Where it draws from stored traffics its recipe names them
with the digest of their arrays, as the recipes of shaping do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from planner.traffic import described
from planner.traffic.arrivals import MAX_REQUESTS
from planner.traffic.errors import TrafficError, TrafficFileError, refuse
from planner.traffic.generating.arrivals import ARRIVALS, Arrivals, starts
from planner.traffic.generating.lengths import LENGTHS, Lengths
from planner.traffic.generating.sessions import Sessions, Turns, block_hashes, grow, turns_per_session
from planner.traffic.identity import arrays_sha256
from planner.traffic.model import Traffic, positive_number
from planner.traffic.shaping import Parent
from planner.traffic.source import Source

_INPUTS = ("requests", "duration_s", "seed")
PARTS: dict[str, dict[str, type[Any]]] = {"arrivals": dict(ARRIVALS), "lengths": dict(LENGTHS)}


@dataclass(frozen=True, slots=True)
class SyntheticModel:
    arrivals: Arrivals
    lengths: Lengths
    sessions: Sessions | None = None

    def to_dict(self) -> dict[str, Any]:
        found = {
            part: {"kind": next(name for name, kind in PARTS[part].items() if kind is type(chosen)),
                   **described.to_dict(chosen)}
            for part, chosen in (("arrivals", self.arrivals), ("lengths", self.lengths))
        }  # fmt: skip
        return found if self.sessions is None else {**found, "sessions": described.to_dict(self.sessions)}

    def in_words(self) -> list[str]:
        """A line for each part: `arrivals, Gamma gaps: Mean rate 2.5 requests/s; CV of the gaps 1.4`."""
        chosen = (("arrivals", self.arrivals), ("lengths", self.lengths))
        lines = [f"{part}, {one.TITLE}: {described.in_words(one)}" for part, one in chosen]
        return lines if self.sessions is None else [*lines, f"sessions: {described.in_words(self.sessions)}"]

    @property
    def traffics(self) -> list[str]:
        """Ids of the stored traffics it draws from."""
        named = (getattr(part, "traffic", None) for part in (self.arrivals, self.lengths))
        return list(dict.fromkeys(one for one in named if one is not None))


def parse_model(data: Any, path: str = "model") -> SyntheticModel:
    """From JSON. TrafficError names every field that is wrong by its path, "model.lengths.prompt_sigma"."""
    if not isinstance(data, Mapping):
        raise refuse("This must be an object with arrivals and lengths.", code="option", field=path)
    problems = [
        TrafficFileError(None, None, "There are arrivals, lengths and sessions.", "option", f"{path}.{key}")
        for key in data
        if key not in (*PARTS, "sessions")
    ]
    found: dict[str, Any] = {}
    for part, kinds in PARTS.items():
        given = data.get(part)
        kind = given.get("kind") if isinstance(given, Mapping) else None
        if not isinstance(given, Mapping) or not isinstance(kind, str) or kind not in kinds:
            message = f"Its kind is one of {', '.join(kinds)}."
            problems.append(TrafficFileError(None, None, message, "option", f"{path}.{part}.kind"))
            continue
        try:
            rest = {key: value for key, value in given.items() if key != "kind"}
            found[part] = described.parse(kinds[kind], rest, f"{path}.{part}")
        except TrafficError as error:
            problems += error.errors
    if data.get("sessions") is not None:
        try:
            found["sessions"] = described.parse(Sessions, data["sessions"], f"{path}.sessions")
        except TrafficError as error:
            problems += error.errors
    if problems:
        raise TrafficError(problems)
    return SyntheticModel(**found)


def generate(
    model: SyntheticModel,
    *,
    requests: int | None = None,
    duration_s: float | None = None,
    seed: int = 0,
    others: Sequence[Parent] = (),
    name: str = "model",
) -> Traffic:
    """Traffic of the model: so many requests, or all within a duration. TrafficError names the field: "requests",
    "duration_s", "seed", or one of the model's ("model.arrivals.traffic")."""
    if (requests is None) == (duration_s is None):
        raise refuse("Give either a number of requests or a duration.", code="option", field="requests")
    if requests is not None and (isinstance(requests, bool) or not 1 <= requests <= MAX_REQUESTS):
        raise refuse(f"requests must be 1 to {MAX_REQUESTS:,}.", code="option", field="requests")
    if duration_s is not None:
        positive_number(duration_s, "duration_s", "seconds")
    if isinstance(seed, bool) or not 0 <= seed < 2**63:
        raise refuse("seed must be a whole number from 0.", code="option", field="seed")
    by_id = {other.id: other.traffic for other in others}
    streams = [Source(rng, by_id) for rng in np.random.default_rng(seed).spawn(3)]
    try:
        made = _made(model, requests, duration_s, streams, seed, name)
    except TrafficError as error:
        raise _placed(error) from error
    used = [other.to_dict() for other in others if other.id in model.traffics]
    recipe = {
        "model": model.to_dict(), "requests": requests, "duration_s": duration_s, "seed": seed,
        "parents": used, "numpy": np.__version__, "arrays_sha256": arrays_sha256(made),
    }  # fmt: skip
    return replace(made, recipe=recipe)


def _made(
    model: SyntheticModel,
    requests: int | None,
    duration_s: float | None,
    streams: list[Source],
    seed: int,
    name: str,
) -> Traffic:
    arrivals, lengths, turns_source = streams
    if model.sessions is None:
        with _part("arrivals", model.arrivals):
            arrival_s = model.arrivals.draw(arrivals, requests, duration_s)
        with _part("lengths", model.lengths):
            prompt, output = model.lengths.draw(lengths, len(arrival_s))
        return Traffic(arrival_s, prompt, output, name, "synthetic")
    sessions = model.sessions
    rng = turns_source.rng
    # The arrival process says when sessions begin; its rate is that of requests, so fewer of them do.
    with _part("arrivals", model.arrivals):
        rate_per_s = model.arrivals.mean_rate_per_s(arrivals)
    if rate_per_s <= 0:
        raise refuse("The arrivals have no rate.", code="option", field="model.arrivals.traffic")
    wanted_s = duration_s if duration_s is not None else (requests or 0) / rate_per_s
    span_s = 1.15 * wanted_s + sessions.warm_up_s + 20 * sessions.mean_pause_s
    begin = int(span_s * rate_per_s / sessions.mean_turns) + 20
    if begin > MAX_REQUESTS:
        message = "Sessions would have to begin long before: too many for so short a traffic."
        raise refuse(message, code="option", field="requests")
    process = starts(model.arrivals, sessions.mean_turns, sessions.warm_up_s)
    for _ in range(6):
        with _part("arrivals", process):
            starts_s = process.draw(arrivals, begin, None) - sessions.warm_up_s
        turns = turns_per_session(sessions, begin, rng)
        if int(turns.sum()) > 4 * MAX_REQUESTS:
            raise refuse(f"More than {MAX_REQUESTS:,} requests.", code="option", field="requests")
        with _part("lengths", model.lengths):
            new, output = model.lengths.draw(lengths, int(turns.sum()))
        grown = grow(sessions, starts_s, turns, new, output, rng)
        order = np.argsort(grown.arrival_s, kind="stable")
        # After the last start the mix of turns is no longer whole: what comes later is not used.
        inside = (grown.arrival_s[order] >= 0) & (grown.arrival_s[order] <= starts_s[-1])
        order = order[inside]
        if len(order) and requests is not None:
            enough = len(order) >= requests
            order = order[:requests]
        else:
            enough = bool(len(order)) and starts_s[-1] >= (duration_s or 0.0)
            order = order[
                grown.arrival_s[order] <= (grown.arrival_s[order[0]] if len(order) else 0) + (duration_s or 0)
            ]
        if enough:
            break
        begin = min(2 * begin, MAX_REQUESTS)
    else:
        raise refuse("Too few requests come of these sessions.", code="empty", field="requests")
    picked = Turns(*(getattr(grown, column)[order] for column in Turns.__slots__))
    return Traffic(
        picked.arrival_s - picked.arrival_s[0], picked.prompt_tokens, picked.output_tokens, name, "synthetic",
        prefix_hashes=block_hashes(sessions, picked, seed),
    )  # fmt: skip


def _placed(error: TrafficError) -> TrafficError:
    """What concerns none of the inputs or parts concerns the model as a whole."""
    moved = [
        one if one.field in _INPUTS or one.field.startswith("model.") else replace(one, field="model")
        for one in error.errors
    ]
    return TrafficError(moved, error.total)


@contextmanager
def _part(name: str, part: Any) -> Iterator[None]:
    """Problems of a part of the model stand under the part's path, as far as they name a field of it."""
    try:
        yield
    except TrafficError as error:
        known = {entry.name for entry, _ in described.described_fields(type(part))}
        raise described.problem_of(error, f"model.{name}", known) from error
