"""Where the points lie: inside the envelope and the pool, spread, heterogeneous, and apart from the held-out ones."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibration.experiment import (
    DEMO_ENVELOPE,
    BadEnvelope,
    Envelope,
    Region,
    neighbour,
    points,
    sentinels,
    warm_up,
)

DEMO = Region(DEMO_ENVELOPE, 100_000)


def of_role(listed, role):
    return [point.shape for point in listed if point.role == role]


def pool_tokens(shape):
    sizes = [context + 1 for context in shape.decode_contexts]
    sizes += [chunk.cached_tokens + chunk.query_tokens for chunk in shape.chunks]
    return sum(-(-size // 16) * 16 for size in sizes)


def check_inside(shape, region):
    envelope = region.envelope
    n, b, S, C, cmax, _, kvm = shape.features
    assert n <= envelope.max_step_tokens
    assert len(shape.decode_contexts) + len(shape.chunks) <= envelope.max_batch
    assert cmax < envelope.max_context_tokens
    assert kvm <= envelope.max_context_tokens
    assert all(context >= 1 for context in shape.decode_contexts)
    assert pool_tokens(shape) <= region.kv_tokens
    assert envelope.max_batch >= S
    assert b * 1 <= C or b == 0


envelopes = st.builds(
    lambda batch, context, extra: Envelope(batch, context, batch + extra),
    st.integers(1, 70),
    st.integers(2, 9_000),
    st.integers(0, 2_000),
)


@settings(max_examples=40, deadline=None)
@given(envelopes, st.sampled_from(["cpu", "gpu"]), st.integers(0, 5), st.floats(0.0, 1.0))
def test_every_point_is_inside_the_envelope_and_the_pool(envelope, kind, seed, pool_share):
    least = (-(-envelope.max_context_tokens // 16) + -(-envelope.max_step_tokens // 16)) * 16
    most = (envelope.max_batch + 1) * (envelope.max_context_tokens + 17)
    region = Region(envelope, int(least + pool_share * max(0, most - least)) // 16 * 16)
    listed = points(region, kind, seed)
    assert of_role(listed, "fit")
    for point in [*listed, *sentinels(region)]:
        check_inside(point.shape, region)
    for shape in warm_up(region):
        check_inside(shape, region)
    shapes = [point.shape for point in listed]
    assert len(set(shapes)) == len(shapes)


def test_the_same_seed_gives_the_same_points_and_another_one_others():
    assert points(DEMO, "cpu", 3) == points(DEMO, "cpu", 3)
    assert of_role(points(DEMO, "cpu", 3), "heldout") != of_role(points(DEMO, "cpu", 4), "heldout")


def test_the_demo_measures_every_small_batch_and_every_corner():
    fit = of_role(points(DEMO, "cpu", 0), "fit")
    decode = [shape for shape in fit if shape.kind == "decode"]
    assert {len(shape.decode_contexts) for shape in decode} == {*range(1, 9), 16}
    features = np.array([shape.features for shape in fit])
    n, _, _, C, cmax, P, _ = features.max(axis=0)
    assert (n, C, cmax) == (512, 16 * 1_023, 1_023)
    assert P == 2 * 256 * (767 + 257 / 2)
    assert features[:, 0].min() == 1
    mixed = np.array([shape.features for shape in fit if shape.kind == "mixed"])
    joint = mixed[(mixed[:, 3] == 15 * 1_023) & (mixed[:, 0] == 512)]
    assert len(joint) == 2  # without and with a prefix
    assert 40 <= len(fit) <= 80


def test_held_out_points_are_four_two_and_six_and_none_was_fitted():
    listed = points(DEMO, "cpu", 0)
    fit, held = of_role(listed, "fit"), of_role(listed, "heldout")
    assert [sum(shape.kind == kind for shape in held) for kind in ("decode", "prefill", "mixed")] == [4, 2, 6]
    assert not set(fit) & set(held)


def test_contexts_of_a_batch_differ_as_lognormal_sigma_one_half():
    region = Region(Envelope(256, 100_000, 8_192), 10**8)
    wide = [shape for shape in of_role(points(region, "gpu", 0), "fit") if len(shape.decode_contexts) == 256]
    wide = [shape for shape in wide if 500 < np.median(shape.decode_contexts) < 2_000]
    assert wide
    assert 0.4 < np.std(np.log(wide[0].decode_contexts)) < 0.6


def test_a_gpu_is_asked_at_a_size_and_the_next():
    region = Region(Envelope(64, 4_096, 2_048), 10**6)
    sizes = {
        len(shape.decode_contexts) for shape in of_role(points(region, "gpu", 0), "fit") if not shape.chunks
    }
    assert {8, 9, 32, 33} <= sizes


def test_a_small_pool_shrinks_contexts_instead_of_dropping_batches():
    region = Region(Envelope(64, 8_192, 2_048), 30_000)
    decode = [shape for shape in of_role(points(region, "gpu", 0), "fit") if not shape.chunks]
    largest = [shape for shape in decode if len(shape.decode_contexts) == 64]
    assert largest
    assert max(pool_tokens(shape) for shape in largest) > 25_000


def test_a_neighbour_is_near_and_inside():
    rng = np.random.default_rng(0)
    for point in points(DEMO, "cpu", 0):
        near = neighbour(point.shape, DEMO, rng)
        if near is not None:
            check_inside(near, DEMO)
            assert near.kind == point.shape.kind
            assert abs(len(near.decode_contexts) - len(point.shape.decode_contexts)) <= 5


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"max_batch": 0}, "max_batch"),
        ({"max_batch": True}, "max_batch"),
        ({"max_batch": 10**9}, "max_batch"),
        ({"max_context_tokens": 1}, "max_context_tokens"),
        ({"max_context_tokens": "1024"}, "max_context_tokens"),
        ({"max_step_tokens": 15}, "max_step_tokens"),
        ({"max_step_tokens": float("nan")}, "max_step_tokens"),
        ({"max_step_tokens": 10**5_000}, "max_step_tokens"),
    ],
)
def test_envelopes_nothing_can_be_measured_in(changes, field):
    with pytest.raises(BadEnvelope) as refusal:
        Envelope.from_dict(DEMO_ENVELOPE.to_dict() | changes)
    assert refusal.value.field == field


def test_envelope_round_trip_and_missing_fields():
    assert Envelope.from_dict(DEMO_ENVELOPE.to_dict()) == DEMO_ENVELOPE
    with pytest.raises(BadEnvelope, match="is missing"):
        Envelope.from_dict({"max_batch": 1})
    with pytest.raises(BadEnvelope, match="object"):
        Envelope.from_dict([])
