"""What each operation keeps, changes and refuses, by hand and for any traffic; recipes give the same bits again."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.traffic import PrefixHashes, Traffic, TrafficError, curves, from_npz_bytes, to_npz_bytes
from planner.traffic.identity import arrays_sha256
from planner.traffic.shaping import (
    OPERATIONS,
    Parent,
    merged_ids,
    operation_dict,
    parse_operations,
    remake,
    shape,
)

ARRAYS = ("arrival_s", "prompt_tokens", "output_tokens", "max_tokens", "priority", "request_class")


def traffic_of(n: int = 400, seed: int = 0, *, bare: bool = False, block: int = 16) -> Traffic:
    """Requests with everything a request can have; every third prompt begins as the others of its kind do."""
    rng = np.random.default_rng(seed)
    prompts = np.maximum(1, rng.lognormal(4, 1, n)).astype(np.int64)
    outputs = np.maximum(1, rng.lognormal(3, 1, n)).astype(np.int64)
    arrival_s = np.concatenate(([0.0], np.cumsum(rng.exponential(0.5, n - 1))))
    if bare:
        return Traffic(arrival_s, prompts, outputs, "bare", "columns")
    counts = -(-prompts // block)
    offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    flat = np.arange(int(offsets[-1]), dtype=np.uint64) + np.uint64(1000)
    for i in range(0, n, 3):
        shared = min(int(counts[i]), 4)
        flat[offsets[i] : offsets[i] + shared] = np.arange(shared) + i % 2 * 10
    return Traffic(
        arrival_s, prompts, outputs, "full", "columns", max_tokens=outputs + 5,
        priority=rng.integers(0, 3, n), request_class=rng.integers(0, 2, n).astype(np.int16),
        class_names=("chat", "batch"), prefix_hashes=PrefixHashes(flat, offsets, block),
    )  # fmt: skip


FULL, BARE = traffic_of(), traffic_of(seed=1, bare=True)
PARENT, OTHER = Parent("a", "full", FULL), Parent("b", "bare", BARE)


def shaped(*operations: dict[str, Any], parent: Parent = PARENT, seed: int = 0) -> Traffic:
    return shape(parent, parse_operations(list(operations)), seed=seed, others=[parent, OTHER])


def rows(traffic: Traffic) -> list[tuple[Any, ...]]:
    """Requests without their times: lengths, cap, priority, name of the class, hashes."""
    hashes = traffic.prefix_hashes
    return [
        (
            int(traffic.prompt_tokens[i]), int(traffic.output_tokens[i]),
            None if traffic.max_tokens is None else int(traffic.max_tokens[i]),
            None if traffic.priority is None else int(traffic.priority[i]),
            None if traffic.request_class is None else traffic.class_names[traffic.request_class[i]],
            None if hashes is None else tuple(hashes.flat[hashes.offsets[i] : hashes.offsets[i + 1]].tolist()),
        )
        for i in range(traffic.requests)
    ]  # fmt: skip


# One by one ----------------------------------------------------------------------------------------------------


def test_a_window_is_half_open_and_starts_at_zero() -> None:
    made = Traffic(np.arange(10.0), np.arange(1, 11), np.arange(1, 11), "x", "columns")
    cut = shaped({"op": "window", "from_s": 3, "to_s": 6}, parent=Parent("a", "x", made))
    assert cut.arrival_s.tolist() == [0, 1, 2]
    assert cut.prompt_tokens.tolist() == [4, 5, 6]
    assert rows(shaped({"op": "window", "to_s": 50})) == rows(FULL)[: int((FULL.arrival_s < 50).sum())]


def test_thinning_keeps_the_duration_and_compressing_keeps_the_requests() -> None:
    big = Parent("a", "big", traffic_of(40_000, bare=True))
    thin, fast = (
        shaped({"op": "thin", "share": 0.25}, parent=big),
        shaped({"op": "compress_time", "factor": 0.25}, parent=big),
    )
    assert thin.requests == pytest.approx(10_000, rel=0.05)
    assert thin.duration_s == pytest.approx(big.traffic.duration_s, rel=0.01)
    assert fast.requests == 40_000
    assert fast.duration_s == pytest.approx(4 * big.traffic.duration_s)
    assert thin.rate_per_s == pytest.approx(fast.rate_per_s, rel=0.05)
    rate = shaped({"op": "thin", "rate_per_s": 1}, {"op": "compress_time", "rate_per_s": 7}, parent=big)
    assert rate.requests == pytest.approx(20_000, rel=0.05)
    assert rate.rate_per_s == pytest.approx(7)


def test_thinning_bursts_brings_them_nearer_to_poisson_and_compressing_does_not() -> None:
    """Independent thinning with p shrinks (index of dispersion - 1) to p times itself (Cox and Isham 1980)."""
    rng = np.random.default_rng(4)
    starts_s = np.sort(rng.uniform(0, 40_000, 4_000))
    arrival_s = np.sort((starts_s[:, None] + rng.uniform(0, 1, (4_000, 10))).ravel())
    arrival_s -= arrival_s[0]
    bursts = Traffic(arrival_s, np.ones(40_000, np.int64), np.ones(40_000, np.int64), "x", "columns")
    excess = curves.index_of_dispersion(bursts.arrival_s, 50) - 1
    assert excess == pytest.approx(9, rel=0.2)
    parent = Parent("a", "x", bursts)
    thin = shaped({"op": "thin", "share": 0.3}, parent=parent)
    assert curves.index_of_dispersion(thin.arrival_s, 50) - 1 == pytest.approx(0.3 * excess, rel=0.15)
    slow = shaped({"op": "compress_time", "factor": 0.3}, parent=parent)
    assert curves.interarrival_cv(slow.arrival_s) == pytest.approx(curves.interarrival_cv(bursts.arrival_s))


def test_repeating_keeps_the_rate_and_asks_new_prompts_unless_told() -> None:
    again = shaped({"op": "repeat", "times": 3})
    assert again.requests == 3 * FULL.requests
    assert again.rate_per_s == pytest.approx(FULL.rate_per_s)
    assert [row[:5] for row in rows(again)] == [row[:5] for row in rows(FULL)] * 3
    hits = [int(curves.prefix_hits(t.prefix_hashes)[0].sum()) for t in (FULL, again)]
    assert hits[1] == 3 * hits[0]
    same = shaped({"op": "repeat", "times": 3, "prefixes": "same"})
    assert rows(same) == rows(FULL) * 3


def test_merging_adds_the_rates_and_names_the_kinds() -> None:
    both = shaped({"op": "merge", "traffic": "b", "offset_s": 10, "its_class": "extra"})
    assert both.requests == FULL.requests + BARE.requests
    assert sorted(row[:2] for row in rows(both)) == sorted(row[:2] for row in rows(FULL) + rows(BARE))
    of_other = np.array([name == "extra" for *_, name, _ in rows(both)])
    assert both.arrival_s[of_other] == pytest.approx(BARE.arrival_s + 10)
    assert both.arrival_s[~of_other] == pytest.approx(FULL.arrival_s)
    assert [row for row, other in zip(rows(both), of_other, strict=True) if not other] == rows(FULL)
    assert (both.max_tokens[of_other] == both.output_tokens[of_other]).all()  # no cap means: the output is it
    assert [one.code for one in both.warnings] == ["merged_prefixes"]


@pytest.mark.parametrize(("sharing", "factor"), [("apart", 2), ("shared", None)])
def test_merged_with_itself_a_traffic_shares_its_prompts_or_does_not(sharing, factor) -> None:
    both = shaped({"op": "merge", "traffic": "a", "prefixes": sharing})
    hits, blocks = (part.sum() for part in curves.prefix_hits(both.prefix_hashes))
    alone = curves.prefix_hits(FULL.prefix_hashes)[0].sum()
    assert hits == (factor * alone if factor else alone + blocks / 2)


def test_a_filter_and_its_inverse_part_the_requests() -> None:
    conditions = {
        "prompt_min_tokens": 30,
        "output_max_tokens": 40,
        "classes": ["chat"],
        "from_s": 5,
        "to_s": 150,
    }
    kept, left = (shaped({"op": "filter", **conditions, "leave_out": out}) for out in (False, True))
    assert kept.requests + left.requests == FULL.requests
    assert kept.prompt_tokens.min() >= 30
    assert kept.output_tokens.max() <= 40
    assert {row[4] for row in rows(kept)} == {"chat"}
    assert sorted(map(repr, rows(kept) + rows(left))) == sorted(map(repr, rows(FULL)))


def test_classes_by_length_and_priority() -> None:
    split = shaped({"op": "classify", "by": "prompt", "limits_tokens": [20, 100]})
    assert split.class_names == ("prompt up to 20", "prompt 21 to 100", "prompt above 100")
    for code, (low, high) in enumerate([(0, 20), (20, 100), (100, 10**9)]):
        tokens = FULL.prompt_tokens[split.request_class == code]
        assert ((tokens > low) & (tokens <= high)).all()
    named = shaped(
        {"op": "classify", "by": "total", "limits_tokens": [50], "names": ["short", "long"], "combine": True}
    )
    assert set(named.class_names) == {"chat / short", "chat / long", "batch / short", "batch / long"}
    by_priority = shaped({"op": "classify", "by": "priority"})
    assert by_priority.class_names == ("priority 0", "priority 1", "priority 2")
    assert [row[:2] for row in rows(by_priority)] == [row[:2] for row in rows(FULL)]


def test_lengths_round_half_to_even_and_never_fall_below_one() -> None:
    made = Traffic(np.arange(5.0), np.array([1, 2, 3, 5, 7]), np.array([1, 2, 3, 5, 7]), "x", "columns",
                   max_tokens=np.array([1, 4, 4, 6, 9]))  # fmt: skip
    parent = Parent("a", "x", made)
    half = shaped({"op": "scale_lengths", "of": "output", "factor": 0.5}, parent=parent)
    assert half.output_tokens.tolist() == [1, 1, 2, 2, 4]  # 0.5 -> 0 -> 1, 1.5 -> 2, 2.5 -> 2, 3.5 -> 4
    assert half.max_tokens.tolist() == [1, 2, 2, 3, 4]
    assert half.prompt_tokens.tolist() == [1, 2, 3, 5, 7]
    assert [(one.code, one.count) for one in half.warnings] == [("raised_to_one", 1)]
    assert shaped(
        {"op": "add_tokens", "of": "prompt", "tokens": -3}, parent=parent
    ).prompt_tokens.tolist() == [1, 1, 1, 2, 4]
    clip = {"op": "clip_lengths", "of": "output", "min_tokens": 2, "max_tokens": 5}
    clipped = shaped(clip, parent=parent)
    assert (clipped.output_tokens.tolist(), clipped.max_tokens.tolist()) == ([2, 2, 3, 5, 5], [2, 4, 4, 5, 5])


def test_hashes_follow_their_prompts() -> None:
    """The number of blocks fits; what is kept is the beginning; what is added nobody shares."""
    for operation in ({"op": "scale_lengths", "factor": 0.4}, {"op": "scale_lengths", "factor": 2.3},
                      {"op": "clip_lengths", "min_tokens": 40, "max_tokens": 90},
                      {"op": "add_tokens", "tokens": 7}):  # fmt: skip
        made = shaped(operation)
        hashes, old = made.prefix_hashes, FULL.prefix_hashes
        assert np.array_equal(np.diff(hashes.offsets), -(-made.prompt_tokens // 16))
        known = set(old.flat.tolist())
        for i in range(made.requests):
            new, was = (h.flat[h.offsets[i] : h.offsets[i + 1]].tolist() for h in (hashes, old))
            before, after = int(FULL.prompt_tokens[i]), int(made.prompt_tokens[i])
            keeps = min(len(new), len(was)) if after <= before else before // 16
            assert new[:keeps] == was[:keeps]
            assert not known & set(new[keeps:])
        fresh = [h for h in hashes.flat.tolist() if h not in known]
        assert len(set(fresh)) == len(fresh)


def test_bursts_come_on_top_and_share_what_others_share() -> None:
    burst = {"op": "add_bursts", "bursts": 3, "requests": 50, "length_s": 2, "placed": "even"}
    made = shaped(burst)
    assert made.requests == FULL.requests + 150
    base, peak = (curves.burst_counts(t.arrival_s, width_s=2.0).count.max() for t in (FULL, made))
    assert peak >= base + 20
    counts = np.bincount(np.unique(FULL.prefix_hashes.flat, return_inverse=True)[1])
    values = np.unique(FULL.prefix_hashes.flat)
    shared, own = set(values[counts > 1].tolist()), set(values[counts == 1].tolist())
    flat = made.prefix_hashes.flat.tolist()
    assert sum(h in own for h in flat) == len(own)  # nobody's own text is asked twice
    assert sum(h in shared for h in flat) > sum(counts[counts > 1])
    assert np.array_equal(np.diff(made.prefix_hashes.offsets), -(-made.prompt_tokens // 16))


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    st.lists(st.floats(0, 1e5, allow_subnormal=False), min_size=2, max_size=8), st.integers(2, 60),
    st.one_of(st.just(0.0), st.floats(0, 1e-9)),
)  # fmt: skip
def test_copies_follow_each_other_without_a_gap(gaps: list[float], times: int, gap_s: float) -> None:
    """Rounding must not make the beginning of a copy come before the end of the one before."""
    arrival_s = np.concatenate(([0.0], np.cumsum(gaps)))
    one = np.ones(len(arrival_s), np.int64)
    parent = Parent("a", "x", Traffic(arrival_s, one, one, "x", "columns"))
    made = shaped({"op": "repeat", "times": times, "gap_s": gap_s}, parent=parent)
    assert made.requests == times * len(arrival_s)
    assert made.duration_s == pytest.approx(times * parent.traffic.duration_s + (times - 1) * gap_s)


def test_a_grid_is_taken_off() -> None:
    made = Traffic(
        np.repeat(np.arange(0, 30, 3.0), 4), np.ones(40, np.int64), np.ones(40, np.int64), "x", "columns"
    )
    spread = shaped({"op": "spread_grid"}, parent=Parent("a", "x", made))
    assert np.diff(spread.arrival_s) == pytest.approx(0.75)
    assert [one.code for one in shaped({"op": "spread_grid"}).warnings] == ["no_grid"]


# For any traffic and any chain -----------------------------------------------------------------------------------

STEPS = st.one_of(
    st.builds(lambda a: {"op": "window", "from_s": 0, "to_s": a}, st.floats(1, 300)),
    st.builds(lambda p: {"op": "thin", "share": p}, st.floats(0.3, 1)),
    st.builds(lambda f: {"op": "compress_time", "factor": f}, st.floats(0.1, 10)),
    st.builds(lambda s: {"op": "repeat", "times": 2, "prefixes": s}, st.sampled_from(["apart", "same"])),
    st.builds(lambda i, s: {"op": "merge", "traffic": i, "prefixes": s}, st.sampled_from("ab"),
              st.sampled_from(["apart", "shared", "drop"])),
    st.builds(lambda n: {"op": "filter", "prompt_max_tokens": n}, st.integers(60, 500)),
    st.builds(lambda n: {"op": "classify", "by": "output", "limits_tokens": [n], "combine": True}, st.integers(2, 80)),
    st.builds(lambda o, f: {"op": "scale_lengths", "of": o, "factor": f}, st.sampled_from(["prompt", "output"]),
              st.floats(0.01, 5)),
    st.builds(lambda n: {"op": "clip_lengths", "max_tokens": n}, st.integers(1, 200)),
    st.builds(lambda n: {"op": "add_tokens", "of": "prompt", "tokens": n}, st.integers(-50, 50)),
    st.builds(lambda n: {"op": "add_bursts", "bursts": n, "requests": 7}, st.integers(1, 4)),
    st.just({"op": "spread_grid"}),
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.lists(STEPS, min_size=1, max_size=4), st.integers(0, 5), st.booleans())
def test_any_chain_is_sound_and_its_recipe_gives_the_same_bits(steps, seed, bare) -> None:
    parent = Parent("a", "x", BARE if bare else FULL)
    made = shape(parent, parse_operations(steps), seed=seed, others=[parent, OTHER])
    assert made.arrival_s[0] == 0
    assert (np.diff(made.arrival_s) >= 0).all()
    assert min(made.prompt_tokens.min(), made.output_tokens.min()) >= 1
    if made.max_tokens is not None:
        assert (made.max_tokens >= made.output_tokens).all()
    if made.prefix_hashes is not None:
        counts = np.diff(made.prefix_hashes.offsets)
        has = counts > 0
        assert np.array_equal(counts[has], -(-made.prompt_tokens[has] // 16))
    recipe = json.loads(json.dumps(made.recipe))
    kept = {key: from_npz_bytes(to_npz_bytes(t)) for key, t in {"a": parent.traffic, "b": BARE}.items()}
    again = remake(recipe, kept)
    for name in ARRAYS:
        one, two = getattr(made, name), getattr(again, name)
        assert (one is None and two is None) or (one.dtype == two.dtype and one.tobytes() == two.tobytes())
    assert arrays_sha256(from_npz_bytes(to_npz_bytes(made))) == recipe["arrays_sha256"]


def test_a_seed_repeats_and_another_differs() -> None:
    thin = {"op": "thin", "share": 0.5}
    digests = [arrays_sha256(shaped(thin, seed=seed)) for seed in (1, 1, 2)]
    assert digests[0] == digests[1] != digests[2]


def test_a_recipe_is_not_played_on_something_else() -> None:
    made = shaped({"op": "merge", "traffic": "b"})
    assert [parent["id"] for parent in made.recipe["shape"]["parents"]] == ["a", "b"]
    with pytest.raises(TrafficError, match="another one now"):
        remake(made.recipe, {"a": BARE, "b": BARE})
    with pytest.raises(TrafficError, match="no longer there"):
        remake(made.recipe, {"a": FULL})
    with pytest.raises(TrafficError, match="Something else came out"):
        remake({**made.recipe, "arrays_sha256": "0"}, {"a": FULL, "b": BARE})


def test_what_is_known_of_the_parent_is_said_of_the_parent() -> None:
    first = shaped({"op": "scale_lengths", "factor": 0.001})
    second = shaped({"op": "window", "to_s": 50}, parent=Parent("c", "tiny", first))
    assert [one.code for one in second.warnings] == ["parent_raised_to_one"]
    assert second.warnings[0].message.startswith("tiny: ")
    assert (second.source, second.format, second.rows_read) == ("tiny", "shaped", second.requests)


# What is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operations", "field"),
    [
        ([], "operations"), ("x", "operations"), ([{"op": "thin", "share": 0.5}] * 21, "operations"),
        ([{"op": "dance"}], "operations.0.op"), ([5], "operations.0.op"), ([{}], "operations.0.op"),
        ([{"op": "thin", "share": 0.5}, {"op": "thin"}], "operations.1.share"),
        ([{"op": "thin", "share": 0.5, "rate_per_s": 1}], "operations.0.share"),
        ([{"op": "thin", "share": 0}], "operations.0.share"), ([{"op": "thin", "share": "0.5"}], "operations.0.share"),
        ([{"op": "thin", "share": True}], "operations.0.share"),
        ([{"op": "thin", "share": float("nan")}], "operations.0.share"),
        ([{"op": "thin", "rate_per_s": 1e9}], "operations.0.rate_per_s"),
        ([{"op": "thin", "shares": 1}], "operations.0.shares"),
        ([{"op": "window", "from_s": 5, "to_s": 5}], "operations.0.to_s"),
        ([{"op": "window", "from_s": 1e9}], "operations.0.from_s"),
        ([{"op": "compress_time", "factor": 1e-9}], "operations.0.factor"),
        ([{"op": "repeat", "times": 2.5}], "operations.0.times"),
        ([{"op": "repeat", "times": 1}], "operations.0.times"),
        ([{"op": "repeat", "times": 100}, {"op": "repeat", "times": 1000}], "operations.1.times"),
        ([{"op": "repeat", "times": 9_000}], "operations.0.times"),
        ([{"op": "merge"}], "operations.0.traffic"), ([{"op": "merge", "traffic": "z"}], "operations.0.traffic"),
        ([{"op": "merge", "traffic": "b", "prefixes": "?"}], "operations.0.prefixes"),
        ([{"op": "filter"}], "operations.0.prompt_min_tokens"),
        ([{"op": "filter", "classes": ["x"]}], "operations.0.classes"),
        ([{"op": "filter", "classes": []}], "operations.0.classes"),
        ([{"op": "filter", "prompt_min_tokens": 9, "prompt_max_tokens": 3}], "operations.0.prompt_max_tokens"),
        ([{"op": "filter", "prompt_min_tokens": 10**8}], "operations.0.prompt_min_tokens"),
        ([{"op": "classify"}], "operations.0.limits_tokens"),
        ([{"op": "classify", "limits_tokens": [5, 5]}], "operations.0.limits_tokens"),
        ([{"op": "classify", "limits_tokens": [5], "names": ["a"]}], "operations.0.names"),
        ([{"op": "classify", "by": "priority", "names": ["a"]}], "operations.0.names"),
        ([{"op": "scale_lengths", "factor": 1e6}], "operations.0.factor"),
        ([{"op": "scale_lengths", "factor": 1e4}], "operations.0.factor"),
        ([{"op": "clip_lengths"}], "operations.0.min_tokens"),
        ([{"op": "clip_lengths", "min_tokens": 5, "max_tokens": 4}], "operations.0.max_tokens"),
        ([{"op": "add_tokens"}], "operations.0.tokens"),
        ([{"op": "add_bursts", "bursts": 100_000, "requests": 1000}], "operations.0.bursts"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_names_its_field(operations: Any, field: str) -> None:
    with pytest.raises(TrafficError) as caught:
        shape(PARENT, parse_operations(operations), others=[PARENT, OTHER])
    assert caught.value.field == field


def test_all_problems_come_at_once() -> None:
    with pytest.raises(TrafficError) as caught:
        parse_operations([{"op": "thin", "share": 2, "x": 1}, {"op": "repeat", "times": "a"}])
    assert [one.field for one in caught.value.errors] == [
        "operations.0.x",
        "operations.0.share",
        "operations.1.times",
    ]


def test_other_block_sizes_do_not_mix() -> None:
    other = Parent("c", "other", traffic_of(20, block=512))
    with pytest.raises(TrafficError) as caught:
        shape(PARENT, parse_operations([{"op": "merge", "traffic": "c"}]), others=[other])
    assert caught.value.field == "operations.0.prefixes"
    dropped = parse_operations([{"op": "merge", "traffic": "c", "prefixes": "drop"}])
    assert shape(PARENT, dropped, others=[other]).prefix_hashes is None


@pytest.mark.parametrize("op", OPERATIONS)
def test_operations_are_written_as_they_are_read(op: str) -> None:
    needed = {"merge": {"traffic": "b"}, "scale_lengths": {"factor": 2}, "add_tokens": {"tokens": 4},
              "add_bursts": {"bursts": 1, "requests": 2}}  # fmt: skip
    written = {"op": op, **needed.get(op, {})}
    (operation,) = parse_operations([written])
    assert operation_dict(operation) == written
    assert operation.sentence()
    assert merged_ids([operation]) == (["b"] if op == "merge" else [])
