"""The requests a candidate serves: the traffic under the plan's conditions, without those that can never finish."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.search.conditions import ConditionError, Conditions
from planner.search.excluded import Excluded
from planner.search.objectives import Objective, ObjectiveError
from planner.simulation.prefix import PrefixBlocks, blocks_of
from planner.traffic import Traffic

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
LISTED_EXCLUSIONS: Final = 20


@dataclass(frozen=True, slots=True)
class Requests:
    """The requests that are served: arrival_s float64[N] sorted, prompt_tokens and output_tokens int64[N].

    max_tokens, priority int64[N] or None; `prefix` names the blocks that prompts share; extra_s float64[N]: what
    front end and network add to the time of a request's first token. group int64[N], where classes have objectives of
    their own: 1 + position in `classes`, which are those; 0: of another class.
    """

    arrival_s: Floats
    prompt_tokens: Ints
    output_tokens: Ints
    max_tokens: Ints | None = None
    priority: Ints | None = None
    prefix: PrefixBlocks | None = None
    extra_s: Floats | None = None
    group: Ints | None = None
    classes: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        return len(self.arrival_s)

    def share(self, replica: int, replicas: int) -> Requests:
        """What the round-robin router sends to one replica."""
        return self.take(slice(replica, None, replicas))

    def first(self, count: int) -> Requests:
        return self.take(slice(0, count))

    def take(self, part: slice) -> Requests:
        def some(array: NDArray[np.generic] | None) -> NDArray[np.generic] | None:
            return None if array is None else np.ascontiguousarray(array[part])

        chosen = np.arange(self.count)[part] if self.prefix else None
        return Requests(
            np.ascontiguousarray(self.arrival_s[part]),
            np.ascontiguousarray(self.prompt_tokens[part]),
            np.ascontiguousarray(self.output_tokens[part]),
            some(self.max_tokens),  # type: ignore[arg-type]
            some(self.priority),  # type: ignore[arg-type]
            self.prefix.take(chosen) if self.prefix and chosen is not None else None,
            some(self.extra_s),  # type: ignore[arg-type]
            some(self.group),  # type: ignore[arg-type]
            self.classes,
        )

    def reordered(self, order: Ints, arrival_s: Floats) -> Requests:
        """The requests at these positions (repeats allowed), arriving at `arrival_s`."""
        return Requests(
            arrival_s,
            self.prompt_tokens[order],
            self.output_tokens[order],
            None if self.max_tokens is None else self.max_tokens[order],
            None if self.priority is None else self.priority[order],
            self.prefix.take(order) if self.prefix else None,
            None if self.extra_s is None else self.extra_s[order],
            None if self.group is None else self.group[order],
            self.classes,
        )

    def faster(self, factor: float) -> Requests:
        """The same requests at `factor` times the rate."""
        return replace(self, arrival_s=self.arrival_s / factor)

    def group_of(self, o: Objective) -> int | None:
        """Which of `group` an objective is for; None: all requests."""
        if self.group is None:
            return None
        return 0 if o.request_class is None else 1 + self.classes.index(o.request_class)

    def samples(self, o: Objective) -> int:
        """How many values of its metric the requests of an objective yield."""
        if o.metric == "itl":
            return int((self._outputs(o) - 1).sum())
        return self.requests_behind(o)

    def requests_behind(self, o: Objective) -> int:
        """How many requests contribute to it: those with two output tokens or more have gaps."""
        outputs = self._outputs(o)
        return int((outputs >= 2).sum()) if o.metric in ("itl", "tpot") else len(outputs)

    def _outputs(self, o: Objective) -> Ints:
        number = self.group_of(o)
        return self.output_tokens if number is None else self.output_tokens[self.group == number]


def requests_of(
    traffic: Traffic,
    conditions: Conditions,
    max_model_len: int,
    block_tokens: int,
    objectives: Sequence[Objective] = (),
) -> tuple[Requests, Excluded]:
    """The requests that can finish, at the load the plan must carry, and those that cannot.

    Raises ConditionError for a window without requests, or for prefix hashes that are not there; ObjectiveError for
    an objective that none of these requests can have a value for.
    """
    chosen = _window(traffic, conditions)
    long = chosen & (traffic.prompt_tokens + traffic.output_tokens > max_model_len)
    first = np.flatnonzero(long)[:LISTED_EXCLUSIONS].tolist()
    listed = tuple((i, int(traffic.prompt_tokens[i]), int(traffic.output_tokens[i])) for i in first)
    kept = np.flatnonzero(chosen & ~long)
    excluded = Excluded(int(long.sum()), max_model_len, listed)
    prompt = np.ascontiguousarray(traffic.prompt_tokens[kept])
    output = np.ascontiguousarray(traffic.output_tokens[kept])
    arrival_s = traffic.arrival_s[kept] - (traffic.arrival_s[np.flatnonzero(chosen)[0]] if len(kept) else 0)
    requests = Requests(
        np.ascontiguousarray(arrival_s) / conditions.load,
        prompt,
        output,
        _limits(traffic, conditions, kept, prompt, output, max_model_len),
        None if traffic.priority is None else np.ascontiguousarray(traffic.priority[kept], dtype=np.int64),
        _prefix(traffic, conditions, kept, prompt, block_tokens),
        _extra_s(conditions, prompt),
        *_groups(traffic, kept, objectives),
    )
    if requests.count:
        check_values(requests, objectives)
    return requests, excluded


def _groups(
    traffic: Traffic, kept: Ints, objectives: Iterable[Objective]
) -> tuple[Ints | None, tuple[str, ...]]:
    """`Requests.group` and `Requests.classes`."""
    named = tuple(dict.fromkeys(o.request_class for o in objectives if o.request_class is not None))
    check_classes(named, traffic.class_names)
    if not named or traffic.request_class is None:
        return None, ()
    number = np.array([1 + named.index(n) if n in named else 0 for n in traffic.class_names], dtype=np.int64)
    return number[traffic.request_class[kept]], named


def check_classes(named: Iterable[str], class_names: Sequence[str]) -> None:
    """Raises ObjectiveError for a class that the traffic does not have."""
    for name in named:
        if name not in class_names:
            has = f"it has {', '.join(class_names)}" if class_names else "its requests have no classes"
            raise ObjectiveError("objectives", f"the traffic has no class {name[:80]!r}: {has}")


def check_values(requests: Requests, objectives: Iterable[Objective]) -> None:
    """Raises ObjectiveError for an objective that no request of these has a value for."""
    for o in objectives:
        if requests.samples(o) > 0:
            continue
        number = requests.group_of(o)
        if number is not None and not np.any(requests.group == number):
            who = "every class has objectives of its own" if number == 0 else "no request is of this class"
            raise ObjectiveError("objectives", f"{o.label} is for nobody: {who}")
        raise ObjectiveError("objectives", f"{o.label}: no request has a second token, so there are no gaps")


def _window(traffic: Traffic, conditions: Conditions) -> NDArray[np.bool_]:
    if conditions.window_s is None:
        return np.ones(traffic.requests, dtype=np.bool_)
    start, end = conditions.window_s
    chosen: NDArray[np.bool_] = (traffic.arrival_s >= start) & (traffic.arrival_s < end)
    if not chosen.any():
        raise ConditionError("window", f"no request arrives from {start:g} s to {end:g} s")
    return chosen


def _limits(
    traffic: Traffic, conditions: Conditions, kept: Ints, prompt: Ints, output: Ints, max_model_len: int
) -> Ints | None:
    """What clients allow their outputs to be; an engine cuts it to what still fits max_model_len."""
    if traffic.max_tokens is not None:
        asked = np.maximum(traffic.max_tokens[kept], output)
    elif conditions.assumed_max_tokens is not None:
        asked = np.maximum(np.int64(conditions.assumed_max_tokens), output)
    else:
        return None
    return np.ascontiguousarray(np.minimum(asked, max_model_len - prompt), dtype=np.int64)


def _prefix(
    traffic: Traffic, conditions: Conditions, kept: Ints, prompt: Ints, block_tokens: int
) -> PrefixBlocks | None:
    if conditions.prefix != "trace":
        return None
    hashes = traffic.prefix_hashes
    if hashes is None or hashes.block_tokens is None:
        raise ConditionError("prefix", "the traffic does not say which prompts begin alike")
    return blocks_of(hashes.take(kept), prompt, block_tokens)


def _extra_s(conditions: Conditions, prompt: Ints) -> Floats | None:
    if not (conditions.front_end_s or conditions.front_end_s_per_token or conditions.network_s):
        return None
    extra: Floats = np.full(len(prompt), conditions.front_end_s + conditions.network_s)
    extra += conditions.front_end_s_per_token * prompt
    return extra


def median_tokens(lengths: Sequence[int] | Ints) -> int:
    return int(np.median(lengths))
