"""What `manage.py simulate` refuses before it reads anything: numbers out of range, options with nothing to act on,
files that cannot be written.

Every option that is given does something, or is refused by its name. Seconds, requests, tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from planner.simulate_options import SimulateError

MOST_REPLICAS: Final = 1024
MOST: Final = 10**9
#: Least (not itself where it is 0 and `above`) and most of each number; none of them has a meaning beyond.
RANGES: Final[Mapping[str, tuple[float, float, bool]]] = {
    "replicas": (1, MOST_REPLICAS, False),
    "prefill": (1, MOST_REPLICAS, False),
    "decode": (1, MOST_REPLICAS, False),
    "link_gb_per_s": (0.0, 1e9, True),
    "link_latency_s": (0.0, 60.0, False),
    "message_s": (0.0, 60.0, False),
    "local_prefill_tokens": (0, MOST, False),
    "prefix_pool_gb_per_s": (0.0, 1e9, True),
    "prefix_pool_latency_s": (0.0, 60.0, False),
    "prefix_pool_blocks": (1, MOST, False),
    "rate_multiplier": (0.0, 1e6, True),
    "concurrency": (1, 10**6, False),
    "think_ms": (0.0, 1e9, False),
    "warm_up": (0, MOST, False),
    "queue_limit": (1, MOST, False),
    "ttft_limit_s": (0.0, 1e9, True),
    "hit_share": (0.0, 1.0, False),
    "host_gap_s": (0.0, 1.0, False),
    "host_gap_ms": (0.0, 1000.0, False),
    "series": (1, 100_000, False),
    "requests": (1, 10**6, False),
    "max_model_len": (1, MOST, False),
}
POOLS, PREFIX_POOL = "two pools: --prefill and --decode", "a prefix pool: --prefix-pool-gb-per-s"
#: Option, the option without which it does nothing, and what to say of that.
NEEDS: Final = (
    ("prefill_knobs", "prefill", POOLS),
    ("decode_knobs", "prefill", POOLS),
    ("link_gb_per_s", "prefill", POOLS),
    ("link_latency_s", "link_gb_per_s", "a link: --link-gb-per-s"),
    ("message_s", "prefill", POOLS),
    ("hand_off", "prefill", POOLS),
    ("local_prefill_tokens", "prefill", POOLS),
    ("prefix_pool_latency_s", "prefix_pool_gb_per_s", PREFIX_POOL),
    ("prefix_pool_blocks", "prefix_pool_gb_per_s", PREFIX_POOL),
    ("think_ms", "concurrency", "a closed loop: --concurrency"),
    ("series", "json", "--json, where it stands"),
)


def option_of(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def check(options: Mapping[str, Any]) -> None:
    """SimulateError for the first thing that cannot be."""
    for name, (least, most, above) in RANGES.items():
        _check_range(option_of(name), options[name], least, most, above=above)
    _check_topology(options)
    for name, needed, words in NEEDS:
        if options[name] is not None and not options[needed]:
            raise SimulateError(option_of(name), f"needs {words}")
    if options["router"] is not None and _replicas(options) == 1:
        raise SimulateError("--router", "has one replica only to send requests to")
    if options["concurrency"] and options["rate_multiplier"] is not None:
        raise SimulateError(
            "--rate-multiplier", "a closed loop (--concurrency) has no arrivals to make faster"
        )
    if options["host_gap_s"] is not None and options["host_gap_ms"] is not None:
        raise SimulateError("--host-gap-ms", "is --host-gap-s in milliseconds: give one of them")
    if options["hit_share"] is not None and options["prefix_pool_gb_per_s"] is not None:
        raise SimulateError(
            "--hit-share", "with a prefix pool hits follow from the traffic: they are not assumed"
        )
    _check_files(options)


def _check_range(option: str, value: float | None, least: float, most: float, *, above: bool) -> None:
    """None passes; NaN does not."""
    if value is None:
        return
    if not (value > least if above else value >= least):
        raise SimulateError(
            option, f"must be {'above' if above else 'at least'} {least:g}, not {_short(value)}"
        )
    if not value <= most:
        raise SimulateError(option, f"must be at most {most:g}, not {_short(value)}")


def _short(value: float) -> str:
    return f"{value:g}" if isinstance(value, float) or abs(value) < MOST else f"{str(value)[:20]}…"


def _check_topology(options: Mapping[str, Any]) -> None:
    """Either --replicas, or --prefill and --decode."""
    prefill, decode = options["prefill"], options["decode"]
    if (prefill is None) != (decode is None):
        missing = "--decode" if decode is None else "--prefill"
        raise SimulateError(missing, "two pools need both --prefill and --decode")
    if options["replicas"] is not None and prefill is not None:
        raise SimulateError("--replicas", "give either --replicas, or --prefill and --decode")


def _replicas(options: Mapping[str, Any]) -> int:
    """Of the larger pool."""
    return max(options["replicas"] or 1, options["prefill"] or 1, options["decode"] or 1)


def _check_files(options: Mapping[str, Any]) -> None:
    inputs = {option: Path(options[option]) for option in ("traffic", "calibration")}
    seen: dict[Path, str] = {}
    for option, path in outputs(options).items():
        try:
            whole = path.resolve()
            if not whole.parent.is_dir():
                raise SimulateError(option, f"there is no folder {path.parent}")
            for name, given in inputs.items():
                if given.is_file() and given.resolve() == whole:
                    raise SimulateError(option, f"would overwrite the {name} {path}")
            before = whole.exists()
            with whole.open("ab"):
                pass
            if not before:
                whole.unlink()
        except (OSError, ValueError) as error:
            if isinstance(error, SimulateError):
                raise
            raise cannot_write(option, path, error) from error
        if whole in seen:
            raise SimulateError(option, f"{seen[whole]} writes to {path} already")
        seen[whole] = option


def outputs(options: Mapping[str, Any]) -> dict[str, Path]:
    """The files that are to be written, by option."""
    files = {"--rows": options["rows"], "--microscope": (options["microscope"] or [None, None])[1]}
    return {option: Path(path) for option, path in files.items() if path is not None}


def cannot_write(option: str, path: Path, error: Exception) -> SimulateError:
    return SimulateError(option, f"{path} cannot be written: {getattr(error, 'strerror', None) or error}")


def check_requests(options: Mapping[str, Any], offered: int) -> None:
    """What depends on how many requests there are."""
    if (options["warm_up"] or 0) >= offered:
        raise SimulateError("--warm-up", f"leaves nothing to tell of: there are {offered:,} requests")
