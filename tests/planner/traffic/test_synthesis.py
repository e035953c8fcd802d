from __future__ import annotations

import numpy as np
import pytest

from planner.traffic import PRESETS, TrafficError, statistics, synthesise
from planner.traffic.distances import ks_chance, ks_distance
from planner.traffic.generating import generate
from planner.traffic.synthesis import LogNormal


def test_the_chat_preset_is_what_it_says() -> None:
    traffic = synthesise("chat", requests=50_000, seed=3)
    prompts, outputs = np.log(traffic.prompt_tokens), np.log(traffic.output_tokens)
    assert np.median(traffic.prompt_tokens) == pytest.approx(512, rel=0.02)
    assert np.median(traffic.output_tokens) == pytest.approx(200, rel=0.02)
    assert traffic.prompt_tokens.max() == 4_096
    assert traffic.output_tokens.max() == 1_024
    # The cut leaves the middle alone: the quartiles are still those of the lognormal (z = 0.6745).
    assert np.diff(np.percentile(prompts, [25, 75])) == pytest.approx(2 * 0.6745 * 1.0, rel=0.02)
    assert np.diff(np.percentile(outputs, [25, 75])) == pytest.approx(2 * 0.6745 * 0.7, rel=0.02)
    assert (traffic.prompt_tokens == 4_096).mean() == pytest.approx(
        PRESETS["chat"].prompt.share_at_cut, rel=0.1
    )
    figures = statistics(traffic)
    assert figures["rate_per_s"] == pytest.approx(4.0, rel=0.02)
    assert figures["interarrival_cv"] == pytest.approx(1.0, rel=0.02)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_gives_sound_traffic(name: str) -> None:
    preset = PRESETS[name]
    traffic = synthesise(name)
    assert traffic.requests == preset.requests
    assert traffic.rate_per_s == pytest.approx(preset.rate_per_s, rel=0.15)
    longest = preset.sessions.longest_tokens if preset.sessions else preset.prompt.cut_tokens
    assert traffic.prompt_tokens.max() <= longest
    assert preset.prompt.share_at_cut < 0.06
    assert traffic.recipe["seed"] == 0


def test_the_demo_preset_fits_the_demo_envelope() -> None:
    preset = PRESETS["demo"]
    assert preset.prompt.cut_tokens + preset.output.cut_tokens <= 1_024
    assert preset.prompt.cut_tokens <= 512


def test_the_code_preset_resembles_what_it_names() -> None:
    figures = statistics(synthesise("code", requests=50_000))
    assert figures["prompt_tokens"]["p50"] == pytest.approx(1_469, rel=0.03)
    assert figures["prompt_tokens"]["mean"] == pytest.approx(2_047.8, rel=0.1)
    assert figures["output_tokens"]["p50"] == pytest.approx(13, abs=1)
    assert figures["output_tokens"]["mean"] == pytest.approx(27.9, rel=0.1)
    assert figures["interarrival_cv"] == pytest.approx(3.0, rel=0.05)


@pytest.mark.parametrize(
    ("name", "prompt", "output", "hits"), [("conversation", 12_035, 343, 0.40), ("agents", 8_596, 182, 0.59)]
)
def test_presets_with_sessions_resemble_what_they_name(
    name: str, prompt: float, output: float, hits: float
) -> None:
    """Means and hit rates that Mooncake's paper prints, in the mean of three seeds."""
    found = [statistics(synthesise(name, requests=6_000, seed=seed)) for seed in range(3)]
    assert np.mean([f["prompt_tokens"]["mean"] for f in found]) == pytest.approx(prompt, rel=0.08)
    assert np.mean([f["output_tokens"]["mean"] for f in found]) == pytest.approx(output, rel=0.05)
    assert np.mean([f["prefix_hit_rate"] for f in found]) == pytest.approx(hits, abs=0.04)
    assert np.mean([f["rate_per_s"] for f in found]) == pytest.approx(PRESETS[name].rate_per_s, rel=0.05)


def test_the_reasoning_preset_resembles_what_it_names() -> None:
    figures = statistics(synthesise("reasoning", requests=30_000, seed=1))
    assert figures["output_tokens"]["mean"] == pytest.approx(11_900, rel=0.02)
    assert figures["output_tokens"]["max"] == 65_536


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_a_model_with_the_same_distributions(name: str) -> None:
    """Not the same numbers: presets without sessions keep their own streams, so that old recipes stay true."""
    made = synthesise(name, requests=4_000, seed=1)
    again = generate(PRESETS[name].model(), requests=4_000, seed=2)
    for column in ("prompt_tokens", "output_tokens"):
        distance = ks_distance(getattr(made, column), getattr(again, column))
        assert distance < (0.06 if PRESETS[name].sessions else 1.3 * ks_chance(4_000, 4_000))


def test_a_seed_repeats_and_another_differs() -> None:
    once, again, other = synthesise("chat", seed=1), synthesise("chat", seed=1), synthesise("chat", seed=2)
    assert np.array_equal(once.arrival_s, again.arrival_s)
    assert np.array_equal(once.prompt_tokens, again.prompt_tokens)
    assert not np.array_equal(once.prompt_tokens, other.prompt_tokens)


def test_a_duration_bounds_the_arrivals() -> None:
    traffic = synthesise("chat", duration_s=500, rate_per_s=8)
    assert traffic.duration_s <= 500
    assert traffic.requests == pytest.approx(4_000, rel=0.1)


def test_even_arrivals() -> None:
    traffic = synthesise("chat", requests=11, rate_per_s=2, interarrival_cv=0)
    assert traffic.arrival_s.tolist() == pytest.approx([i / 2 for i in range(11)])


def test_lengths_are_at_least_one_token() -> None:
    lengths = LogNormal(1.0, 3.0, 10).draw(1_000, np.random.default_rng(0))
    assert lengths.min() == 1
    assert lengths.max() == 10


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"rate_per_s": 0.0}, "rate_per_s"),
        ({"rate_per_s": float("nan")}, "rate_per_s"),
        ({"rate_per_s": float("inf")}, "rate_per_s"),
        ({"requests": 0}, "requests"),
        ({"requests": 10**9}, "requests"),
        ({"requests": 5, "duration_s": 5.0}, "requests"),
        ({"duration_s": -1.0}, "duration_s"),
        ({"duration_s": 1e12}, "duration_s"),
        ({"interarrival_cv": -1.0}, "interarrival_cv"),
        ({"interarrival_cv": float("nan")}, "interarrival_cv"),
        ({"seed": -1}, "seed"),
    ],
)
def test_senseless_wishes_name_their_field(options: dict[str, float], field: str) -> None:
    with pytest.raises(TrafficError) as caught:
        synthesise("chat", **options)  # type: ignore[arg-type]
    assert caught.value.field == field


def test_an_unknown_preset_is_refused_with_the_known_ones() -> None:
    with pytest.raises(TrafficError, match="chat, code, summary, conversation, agents, reasoning, demo"):
        synthesise("chats")
