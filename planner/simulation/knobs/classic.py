"""The knobs of three schedulers from the literature, under the names of Sarathi-Serve, which implements all three.

Orca batches whole prompts beside decodes and reserves KV for the longest possible request. vLLM V0 (here:
prefill first) runs whole prompts in batches of their own, before any decode. Sarathi cuts prompts into chunks that
fill what the decodes leave of a step. All schedule synchronously. Source: Sarathi-Serve 96f99117.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.simulation.knobs.checks import at_least
from planner.simulation.profile import APART, PREFILL_FIRST, Profile


@dataclass(frozen=True, slots=True)
class SarathiKnobs:
    """`chunk_size` is the token budget of a step; decodes come first and are never limited by it.

    `num_blocks` counts usable KV blocks; an admission leaves `watermark_blocks` of them free.
    """

    chunk_size: int
    max_num_seqs: int
    num_blocks: int
    block_size: int = 16
    watermark_blocks: int = 0

    def __post_init__(self) -> None:
        at_least(self, 1, "chunk_size", "max_num_seqs", "num_blocks", "block_size")
        at_least(self, 0, "watermark_blocks")

    @property
    def profile(self) -> Profile:
        return Profile(
            assembler=APART,
            seats=self.max_num_seqs,
            block_size=self.block_size,
            num_blocks=self.num_blocks,
            budget=self.chunk_size,
            watermark_blocks=self.watermark_blocks,
            watermark_alone=True,
            whole_prompt=True,
            spare_block=True,
            decodes_limited=False,
        )


@dataclass(frozen=True, slots=True)
class OrcaKnobs:
    """No token budget and no chunks. Each request holds KV for `max_model_len` tokens from its start, so the pool
    is counted in such slots: one block of the simulation is one slot."""

    max_num_seqs: int
    max_model_len: int
    num_blocks: int
    block_size: int = 16

    def __post_init__(self) -> None:
        at_least(self, 1, "max_num_seqs", "max_model_len", "num_blocks", "block_size")
        if self.slots < 1:
            raise ValueError(f"num_blocks: {self.num_blocks} blocks hold no request of max_model_len tokens")

    @property
    def slots(self) -> int:
        return self.num_blocks // -(-self.max_model_len // self.block_size)

    @property
    def profile(self) -> Profile:
        return Profile(
            assembler=APART,
            seats=self.max_num_seqs,
            block_size=self.max_model_len,
            num_blocks=self.slots,
            longest=self.max_model_len,
            chunked=False,
        )


@dataclass(frozen=True, slots=True)
class PrefillFirstKnobs:
    """`max_num_batched_tokens` bounds the known tokens of one prefill batch; a prompt is never cut."""

    max_num_batched_tokens: int
    max_num_seqs: int
    num_blocks: int
    block_size: int = 16
    watermark_blocks: int = 0

    def __post_init__(self) -> None:
        at_least(self, 1, "max_num_batched_tokens", "max_num_seqs", "num_blocks", "block_size")
        at_least(self, 0, "watermark_blocks")

    @property
    def profile(self) -> Profile:
        return Profile(
            assembler=PREFILL_FIRST,
            seats=self.max_num_seqs,
            block_size=self.block_size,
            num_blocks=self.num_blocks,
            budget=self.max_num_batched_tokens,
            chunked=False,
            watermark_blocks=self.watermark_blocks,
            watermark_alone=True,
            spare_block=True,
        )
