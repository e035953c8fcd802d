"""Under which conditions a plan must hold: engine, load, link, prices, and what is assumed where nothing was measured.

The load that a plan must carry is the traffic's times `rate_multiplier`, times 1 + `growth`, times 1 + `headroom`:
all three squeeze the arrivals together and leave the requests as they are. What no trace tells is an input here, with
the value that adds nothing as its default, and is shown as assumed: time in the front end and on the network,
prompts found in a prefix cache, and the output limit that clients ask for, on which SGLang and TensorRT-LLM admit.
Seconds, tokens, decimal bytes per second, shares of 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Literal, get_args

from calibration.transfer import TransferTable
from planner.search.engines import ENGINES, Engine

DEFAULT_HEADROOM: Final = 0.2
DEFAULT_LINK_UNCERTAINTY: Final = 0.1
PrefixUse = Literal["none", "trace", "share"]

_RANGES: Final[Mapping[str, tuple[float, float]]] = {
    "rate_multiplier": (1e-3, 1e3),
    "growth": (-0.9, 100.0),
    "headroom": (0.0, 10.0),
    "price_per_gpu_hour": (0.0, 1e6),
    "gpus_per_replica": (1, 1024),
    "max_gpus": (1, 1_000_000),
    "second_price_per_gpu_hour": (0.0, 1e6),
    "second_gpus_per_replica": (1, 1024),
    "second_max_gpus": (1, 1_000_000),
    "host_gap_s": (0.0, 1.0),
    "front_end_s": (0.0, 3600.0),
    "front_end_s_per_token": (0.0, 1.0),
    "network_s": (0.0, 3600.0),
    "message_s": (0.0, 60.0),
    "hit_share": (0.0, 1.0),
    "assumed_max_tokens": (1, 10_000_000),
    "step_uncertainty": (0.0, 1.0),
}


class ConditionError(ValueError):
    """A condition that cannot be: `.field` names it, `.message` says why."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message


@dataclass(frozen=True, slots=True)
class Link:
    """What carries KV caches between the pools; `table.uncertainty` says how far off it may be. Every replica has a
    card that carries what the table reaches at best; transfers share cards."""

    table: TransferTable

    @classmethod
    def entered(
        cls, gb_per_s: float, latency_s: float = 0.0, uncertainty: float = DEFAULT_LINK_UNCERTAINTY
    ) -> Link:
        """A speed in decimal gigabytes per second and a latency, as somebody who measured nothing knows them."""
        for name, value, low, high in (
            ("link_gb_per_s", gb_per_s, 1e-3, 1e5),
            ("link_latency_s", latency_s, 0.0, 60.0),
            ("link_uncertainty", uncertainty, 0.0, 0.9),
        ):
            if not low <= value <= high:
                raise ConditionError(name, f"lies in {low:g}..{high:g}, not {value:g}")
        label = f"{gb_per_s:g} GB/s, {latency_s * 1e3:g} ms, as entered"
        return cls(TransferTable.link(gb_per_s, latency_s, uncertainty, label))

    @property
    def sigma(self) -> float:
        """Standard deviation of the logarithm of its speed: the table's range is taken to hold nine times of ten."""
        return math.log1p(self.table.uncertainty) / 1.645

    def scaled(self, factor: float) -> Link:
        """The same link at `factor` times its speed."""
        rates = tuple(rate * factor for rate in self.table.bytes_per_s)
        return Link(replace(self.table, bytes_per_s=rates))

    def to_dict(self) -> dict[str, Any]:
        return self.table.to_dict()

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Link:
        return cls(TransferTable.from_dict(dict(values)))


@dataclass(frozen=True, slots=True)
class Conditions:
    """See the module. `window_s`: only the requests that arrive from its start to before its end, None for all.

    `price_per_gpu_hour` None: cost is counted in GPUs; `max_gpus` None: as many as the most replicas need; with
    `second_`, of a second kind of hardware. `host_gap_s`: added to every step. `message_s`: a request's way between the
    pools.
    `prefix`: prompts are found again in the cache never, as the trace's hashes say, or for `hit_share` of their
    tokens. `assumed_max_tokens`: the output limit of every client where the traffic has none (None: each client
    asks for exactly what it gets, the most favourable case). `step_uncertainty`: how far steps were off in a replay,
    beyond what the calibration knows of its own error: one standard deviation, in every draw of the confidence.
    """

    engine: Engine = "vllm"
    link: Link | None = None
    message_s: float = 0.0
    rate_multiplier: float = 1.0
    growth: float = 0.0
    headroom: float = 0.0
    window_s: tuple[float, float] | None = None
    price_per_gpu_hour: float | None = None
    gpus_per_replica: int = 1
    max_gpus: int | None = None
    second_price_per_gpu_hour: float | None = None
    second_gpus_per_replica: int = 1
    second_max_gpus: int | None = None
    host_gap_s: float = 0.0
    front_end_s: float = 0.0
    front_end_s_per_token: float = 0.0
    network_s: float = 0.0
    prefix: PrefixUse = "none"
    hit_share: float = 0.0
    assumed_max_tokens: int | None = None
    step_uncertainty: float = 0.0

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise ConditionError("engine", f"unknown engine {self.engine!r}: use one of {', '.join(ENGINES)}")
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and low <= value <= high):
                raise ConditionError(name, f"lies in {low:g}..{high:,.10g}, not {value:g}")
        if self.prefix not in get_args(PrefixUse):
            raise ConditionError("prefix", f"one of {', '.join(get_args(PrefixUse))}, not {self.prefix!r}")
        if (self.prefix == "share") != (self.hit_share > 0.0):
            raise ConditionError("hit_share", "goes with prefix 'share', and that with a share above 0")
        if self.prefix != "none" and self.engine != "vllm":
            raise ConditionError("prefix", "the prefix cache is simulated for vLLM only")
        given = (self.price_per_gpu_hour, self.second_price_per_gpu_hour)
        if self.second_price_per_gpu_hour is not None and not all(given):
            name = "price_per_gpu_hour" if not given[0] else "second_price_per_gpu_hour"
            raise ConditionError(name, "two kinds of hardware are compared by both prices, each above 0")
        if self.window_s is not None:
            start, end = self.window_s
            if not (math.isfinite(start) and math.isfinite(end) and 0.0 <= start < end):
                raise ConditionError("window", f"ends after it starts, from 0 s on, not {start:g}..{end:g} s")

    @property
    def own_load(self) -> float:
        """What the arrivals are sped up by, without the headroom."""
        return self.rate_multiplier * (1.0 + self.growth)

    @property
    def load(self) -> float:
        """What the arrivals are sped up by."""
        return self.own_load * (1.0 + self.headroom)

    @property
    def assumed(self) -> tuple[str, ...]:
        """What the plan takes for granted, in words."""
        found: list[str] = []
        if self.prefix == "none":
            found.append("no prompt is found in a prefix cache")
        elif self.prefix == "share":
            found.append(f"{100 * self.hit_share:.3g} % of all prompt tokens are found in the prefix cache")
        front = f"{self.front_end_s * 1e3:.4g} ms"
        if self.front_end_s_per_token:
            front += f" and {self.front_end_s_per_token * 1e6:.4g} µs a prompt token"
        found.append(f"the front end takes {front}, the network {self.network_s * 1e3:.4g} ms")
        found.append(f"the host adds {self.host_gap_s * 1e3:.4g} ms to every step")
        if self.step_uncertainty:
            off = f"{100 * self.step_uncertainty:.2g} %"
            found.append(
                f"steps may be off by another {off}, as a replay found: the intervals are that much wider"
            )
        return tuple(found)

    def to_dict(self) -> dict[str, Any]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values["link"] = self.link.to_dict() if self.link else None
        values["window_s"] = list(self.window_s) if self.window_s else None
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Conditions:
        """What `to_dict` wrote; what is absent has its default. Raises ConditionError."""
        known = {field.name for field in fields(cls)}
        given = {name: value for name, value in values.items() if name in known}
        if given.get("link"):
            given["link"] = Link.from_dict(given["link"])
        if given.get("window_s"):
            given["window_s"] = (float(given["window_s"][0]), float(given["window_s"][1]))
        return cls(**given)


def plain(conditions: Conditions) -> dict[str, Any]:
    """Only what differs from the defaults, for what is stored and compared."""
    default = Conditions().to_dict()
    return {name: value for name, value in conditions.to_dict().items() if value != default[name]}
