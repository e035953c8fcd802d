"""The KV pool by token budget: what is left beside each budget's largest step, never overstated."""

import pytest

from calibration.capacity import KVCapacity

GIB = 1 << 30


def test_what_the_working_memory_leaves() -> None:
    """10 GiB for pool and working memory at 131,072 B a token: 1 GiB of work leaves 73,728 tokens, 3 GiB 57,344."""
    measured = KVCapacity.measured(
        {512: 1 * GIB, 2048: 3 * GIB}, available_bytes=10 * GIB, kv_bytes_per_token=131_072, label="here"
    )
    assert [measured.tokens(b) for b in (1, 512, 513, 2048, 9999)] == [73_728, 73_728, 57_344, 57_344, 57_344]
    assert KVCapacity.from_dict(measured.to_dict()) == measured


def test_a_larger_budget_never_needs_less_and_pools_are_whole_blocks() -> None:
    """A peak that was read lower at the larger budget is noise: the smaller one's steps are allowed there too."""
    measured = KVCapacity.measured(
        {64: 900, 128: 700, 256: 1_000}, available_bytes=10_000, kv_bytes_per_token=10
    )
    assert measured.working_bytes == (900, 900, 1_000)
    assert measured.kv_tokens == (896, 896, 896)  # 910 and 900 tokens, in blocks of 16
    assert KVCapacity.measured({64: 900}, available_bytes=100, kv_bytes_per_token=10).tokens(64) == 0


def test_one_known_pool_holds_for_every_budget() -> None:
    assert [KVCapacity.constant(41_408).tokens(b) for b in (1, 8192)] == [41_408, 41_408]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (((), (), ()), "1 to"),
        (((1, 2), (0,), (5, 5)), "1 to"),
        (((2, 2), (0, 0), (5, 5)), "increase"),
        (((1, 2), (3, 2), (5, 5)), "never fall"),
        (((1, 2), (2, 3), (5, 6)), "never rise"),
        (((1,), (-1,), (5,)), "negative"),
        (((1,), (0,), (1 << 50,)), "at most 100,000,000"),
    ],
)
def test_tables_out_of_order_are_refused(rows, words) -> None:
    with pytest.raises(ValueError, match=words):
        KVCapacity(*rows)


@pytest.mark.parametrize(
    "broken", [{"kv_tokens": "16"}, {"kv_tokens": [1.5]}, {"label": 3}, {"budget_tokens": None}]
)
def test_json_of_another_kind_is_refused(broken) -> None:
    with pytest.raises(ValueError):
        KVCapacity.from_dict(KVCapacity.constant(16).to_dict() | broken)


def test_ranks_hold_as_many_tokens_as_the_smallest_of_them():
    each = [KVCapacity((64, 256), (10, 40), (900, 500)), KVCapacity((64, 256), (20, 30), (800, 600))]
    together = KVCapacity.of_ranks(each, "two")
    assert together == KVCapacity((64, 256), (20, 40), (800, 500), "two", ranks=2)
    assert KVCapacity.from_dict(together.to_dict()) == together
    assert KVCapacity.from_dict({k: v for k, v in together.to_dict().items() if k != "ranks"}).ranks == 1
    with pytest.raises(ValueError, match="same budgets"):
        KVCapacity.of_ranks([each[0], KVCapacity((64,), (10,), (900,))])
    for ranks in (0, 4096, True, 1.5):
        with pytest.raises(ValueError, match="ranks must be"):
            KVCapacity.from_dict(together.to_dict() | {"ranks": ranks})
