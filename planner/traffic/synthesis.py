"""Traffic made up from a few numbers: built-in presets and the synthesis behind them.

Lengths are lognormal, as public chat traces are to a fair approximation: ln(length) is normal, so `median`
and `sigma` say all. They are rounded to whole tokens, at least one. **The cut clips**: a longer draw becomes
the cut itself, as when a client trims a prompt to what the service takes. So the median stays what it says,
and a stated share of the requests sits exactly at the cut. Prompt and output are drawn independently. Presets with
sessions (generating/sessions.py) draw what is new in each turn, and prompts grow. Arrivals: see arrivals.py.
The seed is part of the recipe: the same recipe gives the same traffic.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from math import erf, log, sqrt

import numpy as np

from planner.traffic.arrivals import arrival_times_s
from planner.traffic.errors import refuse
from planner.traffic.generating import Sessions, SyntheticModel, generate
from planner.traffic.generating.arrivals import Gamma, Poisson
from planner.traffic.generating.lengths import LogNormalLengths
from planner.traffic.model import Integers, Traffic, positive_number


@dataclass(frozen=True, slots=True)
class LogNormal:
    """Token counts: lognormal with this median and sigma (of the logarithm), clipped at `cut_tokens`."""

    median_tokens: float
    sigma: float
    cut_tokens: int

    def draw(self, count: int, rng: np.random.Generator) -> Integers:
        lengths = np.rint(self.median_tokens * np.exp(self.sigma * rng.standard_normal(count)))
        return np.clip(lengths, 1, self.cut_tokens).astype(np.int64)

    @property
    def share_at_cut(self) -> float:
        """Expected share of draws that the cut clips."""
        return 0.5 * (1 - erf(log(self.cut_tokens / self.median_tokens) / self.sigma / sqrt(2)))


@dataclass(frozen=True, slots=True)
class Preset:
    """A kind of use with its usual lengths and rhythm. `resembles` names the public figures behind it."""

    name: str
    title: str
    prompt: LogNormal
    output: LogNormal
    rate_per_s: float
    requests: int
    resembles: str
    interarrival_cv: float = 1.0
    sessions: Sessions | None = None

    def model(self, rate_per_s: float | None = None, interarrival_cv: float | None = None) -> SyntheticModel:
        """The same as a model, to be changed part by part."""
        rate = self.rate_per_s if rate_per_s is None else rate_per_s
        cv = self.interarrival_cv if interarrival_cv is None else interarrival_cv
        lengths = LogNormalLengths(
            prompt_median_tokens=self.prompt.median_tokens, prompt_sigma=self.prompt.sigma,
            prompt_largest_tokens=self.prompt.cut_tokens, output_median_tokens=self.output.median_tokens,
            output_sigma=self.output.sigma, output_largest_tokens=self.output.cut_tokens,
        )  # fmt: skip
        arrivals = Poisson(rate_per_s=rate) if cv == 1 else Gamma(rate_per_s=rate, cv=cv)
        return SyntheticModel(arrivals, lengths, self.sessions)


_ALL = (
    Preset(
        name="chat",
        title="Chat",
        prompt=LogNormal(512, 1.0, 4_096),
        output=LogNormal(200, 0.7, 1_024),
        rate_per_s=4.0,
        requests=2_000,
        resembles="Open chat services, between two public sets: ShareGPT (means of 161 prompt and 338 output tokens; "
        "Kwon et al. 2023, the vLLM paper) and Azure's conversation trace of 2023 (medians of 1,020 and 129; Patel et "
        "al. 2024, Splitwise). Medians here 512 and 200, every request by itself; rate chosen.",
    ),
    Preset(
        name="code",
        title="Code completion",
        prompt=LogNormal(1_469, 1.0, 7_437),
        output=LogNormal(13, 1.2, 1_899),
        rate_per_s=2.566,
        requests=2_000,
        interarrival_cv=3.0,
        resembles="Azure's code trace of 2023: prompt median 1,469 and mean 2,048, output median 13 and mean "
        "28, largest 7,437 and 1,899, 2.57 requests per second; gaps with a CV of 3, the median inside its "
        "busy minutes (its idle minutes, which lift the whole trace to 13, are left out).",
    ),
    Preset(
        name="summary",
        title="Document summary",
        prompt=LogNormal(5_500, 0.6, 16_384),
        output=LogNormal(260, 0.4, 1_024),
        rate_per_s=0.5,
        requests=1_000,
        resembles="arXiv papers and their abstracts (Cohan et al. 2018: 4,938 and 220 words on average), at "
        "about 1.3 tokens a word; rate chosen.",
    ),
    Preset(
        name="conversation",
        title="Conversations",
        prompt=LogNormal(3_100, 1.3, 100_000),
        output=LogNormal(250, 0.8, 2_000),
        rate_per_s=3.34,
        requests=2_000,
        sessions=Sessions(mean_turns=1.7, mean_pause_s=60.0, system_tokens=300, longest_tokens=120_000),
        resembles="Mooncake's conversation trace (Qin et al. 2025): 12,031 requests in an hour, mean prompt 12,035 and "
        "output 343 tokens, 40 % of the prompts' blocks found in an endless cache. Lengths are of what is new in a "
        "turn; prompts of later turns hold the conversation so far.",
    ),
    Preset(
        name="agents",
        title="Agents with tools",
        prompt=LogNormal(1_300, 1.4, 60_000),
        output=LogNormal(95, 1.1, 4_000),
        rate_per_s=6.56,
        requests=2_000,
        sessions=Sessions(
            mean_turns=1.9, mean_pause_s=20.0, system_tokens=2_300, system_prompts=100, longest_tokens=120_000
        ),
        resembles="Mooncake's tool and agent trace (Qin et al. 2025): 23,608 requests in an hour, mean prompt 8,596 "
        "and output 182 tokens, 59 % of the prompts' blocks found in an endless cache. A hundred tools with a "
        "system prompt of 2,300 tokens each; lengths are of what is new in a turn.",
    ),
    Preset(
        name="reasoning",
        title="Reasoning",
        prompt=LogNormal(150, 0.8, 4_096),
        output=LogNormal(9_000, 0.75, 65_536),
        rate_per_s=0.2,
        requests=1_000,
        resembles="DeepSeek-R1 on competition mathematics: 12,000 tokens a question on average, at most 65,536 (card "
        "of DeepSeek-R1-0528, which itself needs 23,000). Mean output here 11,900; prompts of a question's length and "
        "the rate are chosen.",
    ),
    Preset(
        name="demo",
        title="Demo",
        prompt=LogNormal(96, 0.6, 384),
        output=LogNormal(24, 0.5, 96),
        rate_per_s=0.5,
        requests=300,
        resembles="Nothing in public: short chat turns that stay inside what the demo calibration of a small "
        "model on one CPU thread covers (prompt and output together at most 480 tokens).",
    ),
)
PRESETS: dict[str, Preset] = {preset.name: preset for preset in _ALL}


def synthesise(
    preset: str | Preset,
    *,
    requests: int | None = None,
    duration_s: float | None = None,
    rate_per_s: float | None = None,
    interarrival_cv: float | None = None,
    seed: int = 0,
) -> Traffic:
    """Traffic like `preset` (a name of PRESETS or one's own). What is not given comes from the preset.

    Raises TrafficError, with the field, for an unknown preset or a number that makes no sense.
    """
    if isinstance(preset, str):
        if preset not in PRESETS:
            known = ", ".join(PRESETS)
            raise refuse(f"There is no preset {preset!r}; there are {known}.", code="preset", field="preset")
        preset = PRESETS[preset]
    if requests is None and duration_s is None:
        requests = preset.requests
    if isinstance(seed, bool) or not 0 <= seed < 2**63:
        raise refuse("seed must be a whole number from 0.", code="option", field="seed")
    rate = preset.rate_per_s if rate_per_s is None else rate_per_s
    cv = preset.interarrival_cv if interarrival_cv is None else interarrival_cv
    if preset.sessions is not None:
        if not (np.isfinite(cv) and 0 <= cv <= 100):
            raise refuse("interarrival_cv must be 0 to 100.", code="option", field="interarrival_cv")
        positive_number(rate, "rate_per_s", "requests per second")
        made = generate(
            preset.model(rate, cv), requests=requests, duration_s=duration_s, seed=seed, name=preset.name
        )
        said = {"name": preset.name, "title": preset.title, "resembles": preset.resembles}
        return replace(made, recipe={"preset": said, **made.recipe})
    # One stream each: a longer traffic begins with the shorter one's lengths.
    arrivals_rng, prompts_rng, outputs_rng = np.random.default_rng(seed).spawn(3)
    arrival_s = arrival_times_s(
        rate, requests=requests, duration_s=duration_s, interarrival_cv=cv, rng=arrivals_rng
    )
    n = len(arrival_s)
    return Traffic(
        arrival_s=arrival_s,
        prompt_tokens=preset.prompt.draw(n, prompts_rng),
        output_tokens=preset.output.draw(n, outputs_rng),
        source=preset.name,
        format="synthetic",
        recipe={
            "preset": {key: value for key, value in asdict(preset).items() if key != "sessions"},
            "requests": requests,
            "duration_s": duration_s,
            "rate_per_s": float(rate),
            "interarrival_cv": float(cv),
            "seed": seed,
            "cut": "clip",
        },
    )
