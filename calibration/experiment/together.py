"""What the ranks of one model say to each other beside their steps, while their surroundings are measured.

Transfers begin together, because a sequence's KV leaves all ranks at once and they share the host's memory and links
(as nearly as a barrier lets go of them: transfers of less than some 0.1 ms may miss each other). Ranks that decode
beside their transfers stop after the same step, or one would wait in a sum for ever. Both go over gloo groups of their
own: the sums of the steps run meanwhile, in another thread. One rank waits for nobody.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from calibration.engine.ranks import PATIENCE


class Together:
    """Of `ranks` processes that have joined (engine.ranks.join); made by all of them at the same point."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        several = ranks > 1
        self._meeting = dist.new_group(backend="gloo", timeout=PATIENCE) if several else None
        self._going_on = dist.new_group(backend="gloo", timeout=PATIENCE) if several else None

    def meet(self) -> None:
        """Returns when all ranks have come here."""
        if self._meeting is not None:
            dist.barrier(group=self._meeting)

    def any_of(self, stop: bool) -> bool:
        """Whether any rank says so; all are asked, from the one thread of each that decodes."""
        if self._going_on is None:
            return stop
        said = torch.tensor([int(stop)])
        dist.all_reduce(said, op=dist.ReduceOp.MAX, group=self._going_on)
        return bool(said.item())


#: One process, which is the whole model.
ALONE = Together(1)
