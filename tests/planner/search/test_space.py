"""What is tried, what is not, and that each of those says why."""

import numpy as np
import pytest

from calibration.steptime import linear_model
from planner.search.combinations import combinations
from planner.search.engines import distance_from_defaults
from planner.search.space import Bounds, SearchSpace, SpaceError, default_space
from planner.simulation.knobs import VllmKnobs

GPU = Bounds(step_tokens=2176, batch=256)
DEMO = Bounds(step_tokens=512, batch=16)


def test_the_default_space_stays_inside_what_was_measured() -> None:
    for bounds in (GPU, DEMO, Bounds(16, 1)):
        space = default_space(bounds, max_replicas=4)
        assert max(space.budgets_tokens) <= bounds.step_tokens
        assert max(space.max_num_seqs) <= bounds.batch
        assert 0 in space.chunk_caps_tokens
        assert space.max_replicas == 4
        found, _ = combinations(space, bounds, 1 << 20, 4096)
        assert any(c.status == "not tried" for c in found)
        assert {c.status for c in found} <= {"not tried", "invalid"}


def test_the_default_space_of_a_measured_gpu() -> None:
    space = default_space(GPU)
    assert space.budgets_tokens == (192, 256, 384, 512, 768, 1024, 1536, 2048)
    assert space.chunk_caps_tokens == (0, 256, 512, 1024)
    assert space.max_num_seqs == (16, 32, 64, 128, 256)


def test_bounds_are_read_from_the_model() -> None:
    high = np.array([2176.0, 256.0, 256.0, 1e6, 16384.0, 1e7, 18432.0])
    assert Bounds.of(linear_model(1.0)._replace(high=high)) == GPU
    assert Bounds.of(linear_model(1.0)).step_tokens == 1 << 20


def test_rejected_combinations_keep_their_reason() -> None:
    space = SearchSpace((128, 512, 4096), (0,), (16, 256, 512))
    found, repeats = combinations(space, GPU, 41_408, 8192)
    assert repeats == 0
    status = {(c.knobs.max_num_batched_tokens, c.knobs.max_num_seqs): c for c in found}
    assert len(status) == 9
    assert status[(128, 256)].status == "invalid"
    assert "128" in status[(128, 256)].reason
    assert status[(4096, 16)].status == "not covered"
    assert "2,176" in status[(4096, 16)].reason
    assert status[(512, 512)].status == "not covered"
    assert status[(512, 16)].status == "not tried"
    assert all(c.reason for c in found if c.status != "not tried")
    assert all(c.knobs.num_blocks == 2587 for c in found)


def test_caps_that_never_bind_are_counted_not_tried() -> None:
    found, repeats = combinations(SearchSpace((256, 512), (0, 256, 512), (16, 32)), GPU, 41_408, 8192)
    pairs = [(c.knobs.max_num_batched_tokens, c.knobs.long_prefill_token_threshold) for c in found]
    assert sorted(set(pairs)) == [(256, 0), (512, 0), (512, 256)]
    assert repeats == 2 * 3


def test_starving_prefill_is_warned_about_but_tried() -> None:
    (only,), _ = combinations(SearchSpace((256,), (0,), (256,)), GPU, 41_408, 8192)
    assert only.status == "not tried"
    assert "prefill starves" in only.warnings[0]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"budgets_tokens": ()}, "budgets_tokens"),
        ({"budgets_tokens": (0,)}, "budgets_tokens"),
        ({"budgets_tokens": (512, 512)}, "budgets_tokens"),
        ({"budgets_tokens": (1 << 21,)}, "budgets_tokens"),
        ({"chunk_caps_tokens": (-1,)}, "chunk_caps_tokens"),
        ({"max_num_seqs": (0,)}, "max_num_seqs"),
        ({"max_replicas": 0}, "max_replicas"),
        ({"max_replicas": 100_000}, "max_replicas"),
        ({"block_tokens": 0}, "block_tokens"),
        ({"budgets_tokens": tuple(range(1, 9000)), "max_num_seqs": (1, 2, 3)}, "budgets_tokens"),
    ],
)
def test_an_unusable_space_is_refused_beside_the_field(changes: dict[str, object], field: str) -> None:
    with pytest.raises(SpaceError) as caught:
        SearchSpace(**({"budgets_tokens": (512,)} | changes))  # type: ignore[arg-type]
    assert caught.value.field == field


def test_a_space_survives_its_dictionary() -> None:
    space = SearchSpace((512, 256), (0, 128), (16,), max_replicas=3, async_scheduling=False)
    assert SearchSpace.from_dict(space.to_dict()) == space


def test_simpler_means_nearer_to_the_defaults() -> None:
    def far(budget: int, seqs: int, cap: int = 0) -> tuple[int, float]:
        return distance_from_defaults(VllmKnobs(budget, seqs, 100, long_prefill_token_threshold=cap))

    assert far(2048, 256) == (0, 0.0)
    assert far(2048, 256) < far(1024, 256) < far(512, 256) < far(1024, 128)
    assert far(2048, 256) < far(2048, 256, 1024) < far(2048, 256, 256)
