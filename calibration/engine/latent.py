"""Multi-head latent attention (DeepSeek-V2) in plain torch: what is cached is one vector a token and layer.

A token's vector holds `rank` elements, from which every head's key and value are made, and `rotary_size` that
carry the position and are shared by all heads. Two ways to the same scores, as serving engines have them:
  chunk    keys and values of the row's past are made from the latents first, then attention as usual: most work,
           but once for all queries of the chunk
  decode   absorbed: the query is multiplied into the latent's space instead (q W_k), attends over the latents as
           if they were one KV head, and the result is multiplied out (W_v): nothing is made from the past
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from calibration.architecture import Latent
from calibration.engine.attention import RowPlan, softmaxed
from calibration.engine.model_weights import LatentWeights


def attend_latent(
    queries: torch.Tensor,
    pages: torch.Tensor,
    rows: tuple[RowPlan, ...],
    weights: LatentWeights,
    latent: Latent,
) -> torch.Tensor:
    """[n, heads, value_size] for queries [n, heads, nope + rotary] over gathered latents [kv tokens, rank + rotary]."""
    n, heads, width = queries.shape
    scale = width**-0.5
    result = queries.new_empty(n, heads, latent.value_size)
    decoding = [row for row in rows if row.decodes]
    if decoding:
        at = [row.blocks[0].queries.start for row in decoding]
        absorbed = absorb(queries[at], weights, latent).unsqueeze(1)
        sums = []
        for query, row in zip(absorbed, decoding, strict=True):
            past = pages[row.blocks[0].keys].unsqueeze(0)
            sums.append(softmaxed(query, past, past[..., : latent.rank], None, scale, 0.0))
        result[at] = multiplied_out(torch.cat(sums), weights)
    for row in rows:
        if row.decodes:
            continue
        keys, values = _made(pages[row.keys], weights, latent)
        for block in row.blocks:
            seen = slice(block.keys.start - row.keys.start, block.keys.stop - row.keys.start)
            query = queries[block.queries].transpose(0, 1)
            mixed = softmaxed(query, keys[:, seen], values[:, seen], block.mask, scale, 0.0)
            result[block.queries] = mixed.transpose(0, 1)
    return result


def absorb(queries: torch.Tensor, weights: LatentWeights, latent: Latent) -> torch.Tensor:
    """Queries in the latent's space: [n, heads, rank + rotary]."""
    nope, rotary = queries.split([latent.nope_size, latent.rotary_size], dim=-1)
    moved = torch.bmm(nope.transpose(0, 1), weights.key_up).transpose(0, 1)
    return torch.cat((moved, rotary), dim=-1)


def multiplied_out(mixed: torch.Tensor, weights: LatentWeights) -> torch.Tensor:
    """[n, heads, value_size] from weighted sums of latents [n, heads, rank]."""
    return torch.bmm(mixed.transpose(0, 1), weights.value_up.transpose(1, 2)).transpose(0, 1)


def _made(past: torch.Tensor, weights: LatentWeights, latent: Latent) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys [heads, tokens, nope + rotary] and values [heads, tokens, value] of latents [tokens, rank + rotary]."""
    vectors, rotary = past.split([latent.rank, latent.rotary_size], dim=-1)
    heads = weights.key_up.shape[0]
    nope, values = (
        F.linear(vectors, up.flatten(0, 1)).view(len(past), heads, -1).transpose(0, 1)
        for up in (weights.key_up, weights.value_up)
    )
    return torch.cat((nope, rotary.expand(heads, -1, -1)), dim=-1), values
