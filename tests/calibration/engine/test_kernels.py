"""The GPU's kernels, run on the CPU by Triton's interpreter, against float64 written out.

Fresh random inputs; outputs and whatever lies beside a row's own tokens in its pages are NaN before. float32 inputs,
so that 1e-5 (sums of a few dozen numbers near 1) is far above rounding and far below any misplaced token. Shapes are
small but crooked: three query heads a KV head, heads of 24, a last page with one token.
"""

import math

import numpy as np
import pytest
import torch

pytest.importorskip("triton")
from calibration.engine.kernels import chunks, decode, experts, rows, store

PAGE = 16
CLOSE = 1e-5


def close(ours, wanted, tolerance=CLOSE):
    assert ours.shape == wanted.shape
    assert torch.isfinite(ours).all()
    assert float((ours.double() - wanted.double()).abs().max()) < tolerance


def normal(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng([seed, *shape]).standard_normal(shape)).float()


def poison(monkeypatch):
    """Until undone, what is allocated without values is NaN."""

    def poisoned(fresh):
        def filled(*arguments, **options):
            made = fresh(*arguments, **options)
            return made.fill_(float("nan")) if made.is_floating_point() else made

        return filled

    monkeypatch.setattr(torch, "empty", poisoned(torch.empty))
    monkeypatch.setattr(torch.Tensor, "new_empty", poisoned(torch.Tensor.new_empty))


def test_the_interpreter_runs_them():
    import triton

    assert triton.knobs.runtime.interpret


def test_norms_and_gates():
    x, y, weight = normal(3, 40), normal(3, 40, seed=1), normal(40)
    wanted = x.double() / (x.double() ** 2).mean(-1, keepdim=True).add(1e-5).sqrt() * weight
    close(rows.norm(x, weight, 1e-5), wanted)
    wide = normal(3, 90)
    apart = wide[:, 7:47]  # rows that lie apart, as the parts of a fused projection do
    close(rows.norm(apart, weight, 1e-5), rows.norm(apart.contiguous(), weight, 1e-5).double())
    total, normed = rows.add_norm(x, y, weight, 1e-5)
    close(total, x.double() + y)
    close(normed, rows.norm(total, weight, 1e-5).double())
    gate, up = normal(2, 70).double().split(35, dim=-1)
    close(rows.gate(normal(2, 70), gelu=False), gate / (1 + torch.exp(-gate)) * up)
    inner = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)
    close(rows.gate(normal(2, 70), gelu=True), 0.5 * gate * (1 + torch.tanh(inner)) * up)


def turned(x, position, cos, sin):
    left, right = x.double().chunk(2, dim=-1)
    c, s = cos[position, 0].double(), sin[position, 0].double()
    return torch.cat((left * c - right * s, right * c + left * s), dim=-1)


@pytest.mark.parametrize("normed", [False, True])
def test_heads_are_turned_and_stored_and_a_padded_row_stores_nothing(normed):
    n, heads, kv_heads, width = 3, 3, 1, 24
    qkv, cos, sin = normal(n, (heads + 2 * kv_heads) * width), normal(9, 1, 12), normal(9, 1, 12, seed=1)
    pool = torch.full((2, PAGE, 2, kv_heads, width), float("nan"))
    positions, slots = torch.tensor([4, 8, 0]), torch.tensor([17, 3, -1])
    norms = (normal(width), normal(width, seed=1)) if normed else None
    queries = store.store(qkv, pool, cos, sin, positions, slots, norms, 1e-6)
    flat, parts = pool.flatten(0, 1), qkv.view(n, -1, width).double()
    for row in range(n):
        expected = parts[row].clone()
        if norms:
            scale = (expected**2).mean(-1, keepdim=True).add(1e-6).rsqrt()
            expected[:heads] = (expected * scale)[:heads] * norms[0]
            expected[heads : heads + 1] = (expected * scale)[heads : heads + 1] * norms[1]
        close(queries[row], turned(expected[:heads], positions[row], cos, sin))
        if slots[row] >= 0:
            close(flat[slots[row], 0], turned(expected[heads : heads + 1], positions[row], cos, sin))
            close(flat[slots[row], 1], expected[heads + 1 :])
    assert torch.isfinite(flat).flatten(1).all(1).nonzero().flatten().tolist() == [3, 17]


def test_a_latent_is_normed_its_key_turned_and_the_queries_with_it():
    rank, rotary, nope = 20, 8, 12
    queries, entry, weight = normal(2, 2, nope + rotary), normal(2, 5 + rank + rotary)[:, 5:], normal(rank)
    cos, sin, pool = (
        normal(9, 1, 4),
        normal(9, 1, 4, seed=1),
        torch.full((1, PAGE, rank + rotary), float("nan")),
    )
    before = queries.clone()
    out = store.store_latent(
        queries, entry, pool, cos, sin, torch.tensor([7, 2]), torch.tensor([6, -1]), weight, 1e-6
    )
    close(out[..., :nope], before[..., :nope])
    for row, position in enumerate((7, 2)):
        close(out[row, :, nope:], turned(before[row, :, nope:], position, cos, sin))
    close(pool[0, 6, :rank], rows.norm(entry[:1, :rank], weight, 1e-6)[0].double())
    close(pool[0, 6, rank:], turned(entry[0, rank:], 7, cos, sin))
    assert int(torch.isfinite(pool[0, :, 0]).sum()) == 1


class Pages:
    """A pool where only the rows' own tokens are numbers."""

    def __init__(self, lengths, kv_heads, width, rank=0):
        blocks = [-(-length // PAGE) for length in lengths]
        shape = (width,) if rank else (2, kv_heads, width)
        self.pool = torch.full((sum(blocks) + 2, PAGE, *shape), float("nan"))
        order = iter(np.random.default_rng(5).permutation(len(self.pool)).tolist())
        self.tables = torch.full((len(lengths), max(blocks) + 1), 99_999, dtype=torch.int32)
        self.lengths = torch.tensor(lengths, dtype=torch.int32)
        self.tokens = []
        for row, (length, count) in enumerate(zip(lengths, blocks, strict=True)):
            values = normal(length, *shape, seed=row)
            self.tokens.append(values.double())
            for block in range(count):
                self.tables[row, block] = page = next(order)
                part = values[block * PAGE : (block + 1) * PAGE]
                self.pool[page, : len(part)] = part


def attended(query, tokens, kv_head, position, scale, window, cap, rank):
    """Attention of one query head at `position`, in float64."""
    first = max(0, position - window + 1) if window else 0
    seen = tokens[first : position + 1]
    keys, values = (seen, seen[:, :rank]) if rank else (seen[:, 0, kv_head], seen[:, 1, kv_head])
    scores = keys @ query.double() * scale
    if cap:
        scores = torch.tanh(scores / cap) * cap
    return torch.softmax(scores, dim=0) @ values


#: heads, kv_heads, width, rank, window, cap
ATTENTION = {
    "grouped": (6, 2, 24, 0, None, 0.0),
    "window-and-cap": (3, 1, 16, 0, 21, 1.5),
    "latent": (3, 3, 28, 20, None, 0.0),
}


@pytest.mark.parametrize("kind", sorted(ATTENTION))
def test_decode_rows_over_their_pages(kind):
    heads, kv_heads, width, rank, window, cap = ATTENTION[kind]
    lengths = [1, 33, 150, 0]  # one token, a page with one, more than two tiles, a padded row
    pages = Pages(lengths, kv_heads, width, rank)
    queries = normal(4, heads, width, seed=9)
    out = torch.full((4, heads, rank or width), float("nan"))
    decode.attend_decodes(
        queries, pages.pool, pages.tables, pages.lengths, out,
        scale=0.3, window=window, cap=cap, rank=rank, processors=4,
    )  # fmt: skip
    group = heads // kv_heads
    for row, length in enumerate(lengths[:3]):
        wanted = [attended(queries[row, head], pages.tokens[row], head // group, length - 1, 0.3, window, cap, rank)
                  for head in range(heads)]  # fmt: skip
        close(out[row], torch.stack(wanted))
    assert (out[3] == 0).all()


def test_a_batch_is_split_until_the_processors_are_full_and_no_further():
    assert [decode.splits_for(rows, 8, 132) for rows in (1, 8, 32, 64, 256)] == [32, 8, 2, 1, 1]
    assert all(decode.splits_for(b, k, p) & -decode.splits_for(b, k, p) == decode.splits_for(b, k, p)
               for b in (1, 3, 7) for k in (1, 5) for p in (2, 108))  # fmt: skip


@pytest.mark.parametrize("kind", sorted(ATTENTION))
def test_chunks_and_decodes_in_one_kernel(kind):
    """A decode row, a later chunk that starts within a page, a first chunk longer than a tile of queries."""
    heads, kv_heads, width, rank, window, cap = ATTENTION[kind]
    counts, lengths = [1, 5, 40], [70, 38, 40]
    pages = Pages(lengths, kv_heads, width, rank)
    queries = normal(sum(counts), heads, width, seed=9)
    out = torch.full((sum(counts), heads, rank or width), float("nan"))
    starts = np.concatenate(([0], np.cumsum(counts)))
    step = chunks.queries_of_tile(heads, 1 if rank else kv_heads)
    tiles = [(row, first) for row, count in enumerate(counts) for first in range(0, count, step)]
    chunks.attend_chunks(
        queries, pages.pool, pages.tables, pages.lengths, torch.from_numpy(starts).int(),
        tuple(torch.tensor(part, dtype=torch.int32) for part in zip(*tiles, strict=True)), out,
        scale=0.3, window=window, cap=cap, rank=rank,
    )  # fmt: skip
    assert torch.isfinite(out).all()
    group = heads // kv_heads
    for row, (count, length) in enumerate(zip(counts, lengths, strict=True)):
        for index in {0, count // 2, count - 1}:
            token = int(starts[row]) + index
            wanted = [
                attended(queries[token, head], pages.tokens[row], head // group, length - count + index, 0.3, window,
                         cap, rank)
                for head in range(heads)
            ]  # fmt: skip
            close(out[token], torch.stack(wanted))


def latent_in_full(query, tokens, position, weights, head, rank, scale):
    """One query head at `position` over keys and values that are made for every token, in float64: nothing absorbed."""
    seen = tokens[: position + 1]
    keys = torch.cat((seen[:, :rank] @ weights.key_up[head].double().T, seen[:, rank:]), dim=-1)
    values = seen[:, :rank] @ weights.value_up[head].double().T
    return torch.softmax(keys @ query.double() * scale, dim=0) @ values


#: heads, nope, rotary, value, rank: crooked, and DeepSeek's own proportions
LATENTS = {"crooked": (3, 12, 8, 10, 20), "as-deepseek": (4, 16, 8, 16, 64)}


@pytest.mark.parametrize("unified", [True, False])
@pytest.mark.parametrize("sizes", sorted(LATENTS))
def test_latent_chunks_are_absorbed_and_are_what_keys_and_values_made_would_give(sizes, unified, monkeypatch):
    """Whole latent attention as a step has it, decodes before chunks: a first chunk of more than a tile of queries, one
    that starts within a page after others, one of a single token that fills its page, a prompt's last of two. Whatever
    is not a row's own token is NaN, and so is every output before."""
    from calibration.architecture import Latent
    from calibration.engine.batch import StepBatch
    from calibration.engine.kernels.operations import TritonOperations
    from calibration.engine.kernels.plan import paged_plan
    from calibration.engine.kv_cache import PagedKVCache
    from calibration.engine.model_weights import LatentWeights

    heads, nope, rotary, value, rank = LATENTS[sizes]
    counts, lengths = [1, 1, 40, 5, 1, 2], [70, 1, 40, 38, 16, 131]
    pages = Pages(lengths, 1, rank + rotary, rank)
    empty = torch.empty(0)
    weights = LatentWeights(
        empty, empty, normal(heads, nope, rank, seed=1) / rank**0.5, normal(heads, value, rank, seed=2) / rank**0.5,
        empty, empty,
    )  # fmt: skip
    total = sum(counts)
    tables = [
        row[: -(-length // PAGE)].numpy().astype(np.int64)
        for row, length in zip(pages.tables, lengths, strict=True)
    ]
    batch = StepBatch(
        np.zeros(total, dtype=np.int64), np.array(counts), np.array(lengths) - counts, tuple(tables),
        np.ones(len(counts), dtype=np.bool_),
    )  # fmt: skip
    operations = TritonOperations(PagedKVCache((pages.pool,), PAGE))
    plan = paged_plan(batch, PAGE, torch.device("cpu"), chunks.queries_of_tile(heads, 1), unified=unified)
    assert plan.decodes == (0 if unified else 2)
    queries = normal(total, heads, nope + rotary, seed=9)
    poison(monkeypatch)
    out = operations.attend_latent(0, queries, plan, weights, Latent(rank, rotary, nope, value))
    monkeypatch.undo()
    scale, row_of = (nope + rotary) ** -0.5, np.repeat(np.arange(len(counts)), counts)
    first = np.cumsum([0, *counts])
    for token, row in enumerate(row_of.tolist()):
        position = lengths[row] - counts[row] + token - int(first[row])
        wanted = [
            latent_in_full(queries[token, head], pages.tokens[row], position, weights, head, rank, scale)
            for head in range(heads)
        ]
        close(out[token], torch.stack(wanted))


def test_rows_meet_their_own_expert_s_matrix():
    """Unevenly: one expert has more rows than a block, one has none."""
    n, per_token, number, inputs, outputs = 21, 2, 5, 24, 40
    picked = torch.from_numpy(
        np.random.default_rng(2).choice([0, 1, 2, 4], size=(n, per_token), p=[0.7, 0.1, 0.1, 0.1])
    )
    x, weights = normal(n, inputs), normal(number, outputs, inputs)
    places = experts.sort_by_expert(picked, number)
    assert int(places.block_ends[-1]) <= places.blocks
    ours = experts.grouped_product(x, weights, places, per_token)
    flat = picked.flatten()[places.order]
    assert (flat.diff() >= 0).all()
    wanted = torch.stack(
        [weights[e].double() @ x[o // per_token].double() for e, o in zip(flat, places.order, strict=True)]
    )
    close(ours, wanted)
    close(experts.grouped_product(ours, weights.mT.contiguous(), places, 0),
          torch.stack([weights[e].double().T @ row for e, row in zip(flat, wanted, strict=True)]), 1e-3)  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_experts_in_eight_bits_multiply_what_was_stored(dtype, monkeypatch):
    """Against float64: exactly the product of what the 8 bits stand for, row by row and column by column scaled; and as
    near to the product of what they were made from as the dense products are (test_products.py)."""
    from calibration.engine.products import FP8, quantised

    n, per_token, number, inputs, outputs = 21, 2, 5, 80, 40
    picked = torch.from_numpy(
        np.random.default_rng(2).choice([0, 1, 2, 4], size=(n, per_token), p=[0.7, 0.1, 0.1, 0.1])
    )
    x, weights = normal(n, inputs).to(dtype), normal(number, outputs, inputs, seed=1).to(dtype)
    x[3] *= 100
    weights[2, 7] *= 1_000  # neither a large row nor a large column takes the others' bits
    stored, rows_stored = quantised(weights), quantised(x)
    assert stored.values.dtype is FP8 and stored.scale.shape == (number, outputs, 1)
    places = experts.sort_by_expert(picked, number)
    poison(monkeypatch)
    ours = experts.grouped_product(x, stored, places, per_token)
    monkeypatch.undo()
    assert ours.dtype is dtype and torch.isfinite(ours).all()
    flat, tokens = picked.flatten()[places.order], places.order // per_token

    def product(left, right):
        return torch.stack([right[e].double() @ left[t].double() for e, t in zip(flat, tokens, strict=True)])

    wanted = product(rows_stored.restored(), [stored[e].restored() for e in range(number)])
    norms = weights.double().norm(dim=-1) / inputs**0.5
    spread = x[tokens].double().norm(dim=-1, keepdim=True) * norms[flat]
    # The interpreter cuts off where a device rounds to bfloat16: a whole last bit of its 8.
    rounding = CLOSE * spread + (0 if dtype is torch.float32 else 2**-7 * wanted.abs())
    assert bool(((ours.double() - wanted).abs() < rounding).all())
    exact = product(x, weights)
    assert 0.01 < float(((ours.double() - exact).abs() / spread).max()) < 0.2
    # From sorted rows, as the second product of a feed-forward takes them.
    again = experts.grouped_product(ours, quantised(weights.mT.contiguous()), places, 0)
    second = [quantised(weights[e].T.contiguous()).restored().double() for e in range(number)]
    back = quantised(ours).restored().double()
    wanted = torch.stack([second[e] @ row for e, row in zip(flat, back, strict=True)])
    spread = back.norm(dim=-1, keepdim=True) * torch.stack([second[e].norm(dim=-1) for e in flat.tolist()])
    rounding = CLOSE * spread + (0 if dtype is torch.float32 else 2**-7 * wanted.abs())
    assert bool(((again.double() - wanted).abs() < rounding).all())


def test_experts_of_a_layer_in_eight_bits_by_kernels_and_by_plain_torch():
    """Both ways through a mixture, routed alike, against a float64 forward of what the 8 bits stand for, in which the
    activations are rounded to 8 bits as well and nothing else is; and near the mixture before its weights were stored.

    A value that float32 puts on the other side of an 8-bit step is off by a sixteenth; one of 48 is 0.01 of a sum."""
    from calibration.architecture import Experts
    from calibration.engine.kernels.operations import TritonOperations
    from calibration.engine.kv_cache import PagedKVCache
    from calibration.engine.mixture import route
    from calibration.engine.model_weights import MixtureWeights
    from calibration.engine.products import quantised
    from calibration.engine.torch_operations import TorchOperations

    shape = Experts(experts=6, per_token=2, intermediate_size=48, layers=1)
    x = normal(13, 64)
    gate_up, down = normal(6, 96, 64, seed=1) / 8, normal(6, 64, 48, seed=2) / 7
    weights = MixtureWeights(normal(6, 64, seed=3), gate_up, down)
    eight = MixtureWeights(weights.router, quantised(gate_up), quantised(down))
    picked, shares = route(x, eight, shape)

    def forward(up, out, rounded):
        result = torch.zeros(13, 64, dtype=torch.float64)
        for row in range(13):
            for expert, share in zip(picked[row].tolist(), shares[row].double(), strict=True):
                inner = up[expert] @ rounded(x[row : row + 1])[0].double()
                gate, value = inner.chunk(2)
                inner = (gate / (1 + torch.exp(-gate)) * value).float()
                result[row] += share * (out[expert] @ rounded(inner[None])[0].double())
        return result

    exact = forward(
        eight.gate_up.restored().double(),
        eight.down.restored().double(),
        lambda rows: quantised(rows).restored(),
    )
    before = forward(gate_up.double(), down.double(), lambda rows: rows)
    spread = float(before.std())
    cache = PagedKVCache((torch.zeros(1, PAGE, 2, 1, 16),), PAGE)
    for operations in (TritonOperations(cache), TorchOperations(cache)):
        ours = operations.experts(x, eight, shape).double()
        assert float((ours - exact).abs().max()) < 0.02 * spread
        assert float((ours - exact).abs().median()) < CLOSE * spread
        assert 0.01 * spread < float((ours - before).abs().max()) < 0.3 * spread
