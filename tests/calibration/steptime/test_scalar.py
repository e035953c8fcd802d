import numba
import numpy as np
import pytest

from calibration.steptime import StepFeatures, constant_model, linear_model, scalar, step_seconds
from calibration.steptime.vectorised import steps_seconds


def some_arrays():
    """Arrays with every part in use: a box, a hull, a check model, residuals, the tables of a made-up law."""
    n = np.arange(513.0)
    base = 0.002 + np.hypot(0.004, 2e-5 * n)
    theta = np.array([0.0, 1e-5, 3e-6, 1e-16, 2e-7, 1e-6, 4e-4, 2e-6, 3e-7, 2e-7, 1e-8, 0.1, 0.3, 0.7, 0.0])
    low = np.array([1.0, 0, 0, 0, 0, 0, 0])
    high = np.array([512.0, 64, 65, 64 * 1024, 1024, 512 * 1500, 1536])
    return scalar.StepTimeArrays(
        low, high, theta,
        decode_tokens_s=base,
        chunk_tokens_s=base * 1.1,
        residual_s=np.linspace(-1e-4, 1e-4, 17),
        check_decode_s=base * 1.02,
        check_chunk_s=base * 1.08,
        check=np.array([1e-5, 3e-6, 2e-7, 0, 4e-4, 2e-6, 2e-7, 1e-8, 2e-7]),
        decode_context_low=n * 8,
        decode_context_high=n * 1024,
        log_tokens=np.log1p(n),
        facets=np.array([[1.0, 1.0, 1.0, -28.0], [-1.0, 0.2, 0.1, -1.5]]),
    )  # fmt: skip


def probe(count, seed=3):
    """Random steps, some of them outside the box: (n, b, S, C, cmax, P, kvm) rows."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        b = int(rng.integers(0, 80))
        cmax = float(rng.integers(0, 1400)) if b else 0.0
        C = float(int(cmax * b * rng.uniform(0.2, 1)))
        q, p = int(rng.integers(0, 3) > 0) * int(rng.integers(1, 500)), int(rng.integers(0, 1500))
        if b + q:
            pairs = q * (p + (q + 1) / 2)
            walked = max(cmax, p + q) if q else 0.0
            rows.append((float(b + q), float(b), float(b + 1), C, cmax, pairs, walked))
    return np.array(rows)


def test_numba_compiles_it_unchanged_and_agrees_bitwise():
    jitted = numba.njit(step_seconds)
    outcomes = {True: 0, False: 0}
    for arrays in (some_arrays(), with_surface(some_arrays())):
        for row in probe(1000):
            seconds, covered = step_seconds(arrays, *row)
            assert jitted(arrays, *row) == (seconds, covered)
            outcomes[bool(covered)] += 1
    assert min(outcomes.values()) > 200  # the probe reaches both answers


def with_surface(arrays):
    """The same with a surface over rows and contexts, up to 32 rows."""
    rng = np.random.default_rng(8)
    steps = rng.uniform(0, 1e-5, (33, scalar.SURFACE_WIDTH))
    surface = np.cumsum(np.cumsum(steps, axis=0), axis=1)
    return arrays._replace(check=np.r_[arrays.check, surface.ravel()])


@pytest.mark.parametrize("cubed", [0.0, 1.0])
@pytest.mark.parametrize("surfaced", [False, True], ids=["lines", "surface"])
def test_over_arrays_it_is_the_same(cubed, surfaced):
    arrays = with_surface(some_arrays()) if surfaced else some_arrays()
    arrays.theta[scalar.CUBED] = cubed
    rows = probe(400)
    seconds, covered = steps_seconds(arrays, StepFeatures.from_matrix(rows))
    one_by_one = [step_seconds(arrays, *row) for row in rows]
    assert np.allclose(seconds, [s for s, _ in one_by_one], rtol=1e-12)
    assert covered.tolist() == [c for _, c in one_by_one]


def test_the_surface_counts_beside_a_chunk_alone():
    plain, surfaced = some_arrays(), with_surface(some_arrays())
    decode, mixed = (4.0, 4.0, 4.0, 400.0, 100.0, 0.0, 0.0), (40.0, 4.0, 5.0, 400.0, 100.0, 666.0, 100.0)
    assert step_seconds(surfaced, *decode) == step_seconds(plain, *decode)
    knots, table = scalar.SURFACE_CONTEXTS, surfaced.check[scalar.CHECK_SIZE :].reshape(33, -1)
    added = 0.7 * np.interp(400.0, knots, table[4])
    assert step_seconds(surfaced, *mixed)[0] == pytest.approx(
        step_seconds(plain, *mixed)[0] + added, rel=1e-12
    )


def test_outside_the_box_is_the_nearest_measured_step_and_uncovered():
    arrays = some_arrays()
    inside = (64.0, 64.0, 64.0, 64 * 1024.0, 1024.0, 0.0, 0.0)
    seconds, covered = step_seconds(arrays, *inside)
    assert covered
    assert step_seconds(arrays, 64.0, 64.0, 64.0, 64 * 4096.0, 4096.0, 0.0, 0.0) == (seconds, False)


def test_decode_hull_is_an_interval_of_contexts_at_each_batch():
    arrays = some_arrays()
    assert step_seconds(arrays, 4.0, 4.0, 4.0, 32.0, 8.0, 0.0, 0.0)[1]
    assert not step_seconds(arrays, 4.0, 4.0, 4.0, 31.0, 8.0, 0.0, 0.0)[1]
    assert not step_seconds(arrays, 4.0, 4.0, 4.0, 4097.0, 1024.0, 0.0, 0.0)[1]


def test_disagreement_with_the_check_model_is_not_covered_but_priced():
    arrays = some_arrays()
    row = (32.0, 32.0, 32.0, 3200.0, 100.0, 0.0, 0.0)
    seconds, covered = step_seconds(arrays, *row)
    check_s = arrays.check_decode_s
    off = arrays._replace(check_decode_s=check_s * 1.2)
    assert covered
    assert step_seconds(off, *row) == (pytest.approx(seconds + 0.3 * 0.2 * check_s[32]), False)


def test_helpers_cover_everything_and_price_as_they_say():
    assert step_seconds(constant_model(0.01), 10**6, 0.0, 1.0, 0.0, 0.0, 1e9, 1e6) == (0.01, True)
    linear = linear_model(
        1.0, token_s=2.0, row_s=3.0, logit_s=5.0, decode_context_s=7.0, mixed_s=11.0, pair_s=13.0
    )
    seconds, covered = step_seconds(linear, 2.0, 2.0, 2.0, 30.0, 20.0, 0.0, 0.0)
    assert covered
    assert seconds == pytest.approx(1 + 2 * 2 + 3 * 2 + 5 * 2 + 7 * 30, rel=1e-12)
    seconds, covered = step_seconds(linear, 6.0, 2.0, 3.0, 30.0, 20.0, 4.0, 20.0)
    assert covered
    assert seconds == pytest.approx(1 + 12 + 6 + 15 + 210 + 11 + 52, rel=1e-12)
