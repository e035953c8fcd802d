"""Which part of a model a rank holds under tensor parallelism, and what the ranks say to each other.

Megatron's split, as serving engines use it: the first matrix of attention and feed-forward by columns (heads,
intermediate width), the second by rows, so that one sum over all ranks ends each half of a layer. The output head
is split by vocabulary; the embedding is kept whole (a look-up, not a product). With fewer KV heads than ranks each
rank keeps the one its query heads use: copies, which is why a token's KV bytes are max(kv_heads, ranks) heads.
A latent cache is one vector for all heads: every rank keeps all of it. Experts are split like any feed-forward,
so every rank works on every token and no tokens travel.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist

from calibration.architecture import Architecture


@dataclass(frozen=True, slots=True)
class Shard:
    """Rank `rank` of `size`; size 1 is the whole model."""

    rank: int = 0
    size: int = 1

    def part(self, count: int) -> slice:
        """This rank's contiguous share of `count` that divide evenly."""
        each = count // self.size
        return slice(self.rank * each, (self.rank + 1) * each)

    def heads(self, a: Architecture) -> int:
        return a.heads // self.size

    def kv_heads(self, a: Architecture) -> slice:
        """KV heads whose keys and values this rank caches."""
        if a.kv_heads >= self.size:
            return self.part(a.kv_heads)
        own = self.rank * a.kv_heads // self.size
        return slice(own, own + 1)

    def vocabulary(self, size: int) -> slice:
        """Rows of the output head: shares differ by one where the vocabulary does not divide."""
        return slice(self.rank * size // self.size, (self.rank + 1) * size // self.size)

    def total(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of x over all ranks, in place."""
        if self.size > 1:
            dist.all_reduce(x)
        return x

    def gathered(self, logits: torch.Tensor, vocab_size: int) -> torch.Tensor:
        """All ranks' columns of the logits, side by side: [S, vocab]."""
        if self.size == 1:
            return logits
        shares = [Shard(rank, self.size).vocabulary(vocab_size) for rank in range(self.size)]
        widest = max(share.stop - share.start for share in shares)
        padded = logits.new_zeros(self.size, logits.shape[0], widest)
        padded[self.rank, :, : logits.shape[1]] = logits
        dist.all_reduce(padded)
        return torch.cat([padded[rank, :, : s.stop - s.start] for rank, s in enumerate(shares)], dim=-1)

    def likeliest(self, logits: torch.Tensor, vocab_size: int) -> torch.Tensor:
        """Index of the largest logit of each row over all ranks: int64 [S]. Two numbers a row travel."""
        best, index = logits.max(dim=-1)
        if self.size == 1:
            return index
        index = index + self.vocabulary(vocab_size).start
        both = torch.zeros(self.size, 2, logits.shape[0], dtype=torch.float64, device=logits.device)
        both[self.rank, 0], both[self.rank, 1] = best.double(), index.double()
        dist.all_reduce(both)
        winner = both[:, 0].argmax(dim=0, keepdim=True)
        return both[:, 1].gather(0, winner).squeeze(0).long()


WHOLE = Shard()
