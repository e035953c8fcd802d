"""Experts: which of them each token uses, and their feed-forwards in plain torch.

Routing is the families' own (softmax or sigmoid, limited to the best groups or not), because how evenly tokens
spread decides how many experts' weights a small batch reads. With random weights they spread as evenly as chance
allows. A loop over the experts that got tokens, with their rows gathered: fair on a CPU core.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from calibration.architecture import Experts
from calibration.engine.model_weights import MixtureWeights
from calibration.engine.products import linear

GROUP_SCORES = 2  # of its best experts make a group's score (DeepSeek-V3)
Activation = Callable[[torch.Tensor], torch.Tensor]


def route(x: torch.Tensor, weights: MixtureWeights, experts: Experts) -> tuple[torch.Tensor, torch.Tensor]:
    """(experts picked, int64 [n, per_token]; their weights, [n, per_token]) for x [n, hidden]. Nothing here waits for
    the device: it can be captured in a graph."""
    scores = F.linear(x, weights.router)
    scores = scores.float() if scores.dtype.itemsize < 4 else scores
    scores = scores.sigmoid() if experts.sigmoid else scores.softmax(dim=-1)
    ranked = scores if weights.correction is None else scores + weights.correction
    if experts.groups > 1:
        grouped = ranked.view(len(x), experts.groups, -1)
        best = grouped.topk(min(GROUP_SCORES, grouped.shape[-1]), dim=-1).values.sum(dim=-1)
        kept = best.topk(experts.top_groups, dim=-1).indices
        allowed = torch.zeros_like(best, dtype=torch.bool).scatter_(1, kept, True)
        ranked = grouped.masked_fill(~allowed.unsqueeze(-1), float("-inf")).flatten(1)
    picked = ranked.topk(experts.per_token, dim=-1).indices
    shares = scores.gather(1, picked)
    if experts.normalised:
        shares = shares / shares.sum(dim=-1, keepdim=True)
    return picked, (shares * experts.scale).to(x.dtype)


def run_experts(
    x: torch.Tensor, picked: torch.Tensor, shares: torch.Tensor, weights: MixtureWeights, activate: Activation
) -> torch.Tensor:
    """Weighted sum of the picked experts' outputs [n, hidden]."""
    per_token = picked.shape[1]
    order = picked.flatten().argsort(stable=True)
    counts = torch.bincount(picked.flatten(), minlength=len(weights.router)).tolist()
    rows = x[order // per_token]
    parts = []
    for expert, part in enumerate(rows.split(counts)):
        if len(part):
            parts.append(linear(activate(linear(part, weights.gate_up[expert])), weights.down[expert]))
    result = torch.empty(len(order), x.shape[1], dtype=x.dtype, device=x.device)
    result[order] = torch.cat(parts)
    return torch.bmm(shares.unsqueeze(1), result.view(len(x), per_token, -1)).squeeze(1)
