"""Three ways to divide one step between decodes and prompts that no engine has exactly: what a policy would gain.

Decode first gives every decode its token and the prompts what remains; prefill first does the opposite; fair share
gives prompts the part s of the step's token budget and decodes 1 - s, and what one side does not use passes to the
other. Shared by time instead, prompts are computed only while they have had no more than the part s of the engine's
time since both sides last had work together: a decode is one token however many a step holds, so shares of tokens
bound nothing when few requests decode beside a long prompt; shares of time do. KV rules are vLLM's.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.simulation.knobs.checks import at_least, one_of, share
from planner.simulation.profile import APART, Profile

DECODE_FIRST = "decode-first"
PREFILL_FIRST = "prefill-first"
FAIR_SHARE = "fair-share"
SCHEDULING_POLICIES = (DECODE_FIRST, PREFILL_FIRST, FAIR_SHARE)
TOKENS = "tokens"
TIME = "time"
SHARES_OF = (TOKENS, TIME)


@dataclass(frozen=True, slots=True)
class PolicyKnobs:
    """`prefill_share` and `share_of` count for fair share only. `num_blocks` counts usable KV blocks."""

    max_num_batched_tokens: int
    max_num_seqs: int
    num_blocks: int
    block_size: int = 16
    policy: str = DECODE_FIRST
    prefill_share: float = 0.5
    share_of: str = TOKENS
    async_scheduling: bool = True

    def __post_init__(self) -> None:
        at_least(self, 1, "max_num_batched_tokens", "max_num_seqs", "num_blocks", "block_size")
        one_of("policy", self.policy, SCHEDULING_POLICIES)
        one_of("share_of", self.share_of, SHARES_OF)
        share("prefill_share", self.prefill_share)

    @property
    def decode_quota(self) -> int:
        """Tokens of a step that decodes get before the prompts."""
        if self.policy == PREFILL_FIRST:
            return 0
        if self.policy == FAIR_SHARE and self.share_of == TOKENS:
            return self.max_num_batched_tokens - int(self.prefill_share * self.max_num_batched_tokens)
        return self.max_num_batched_tokens

    @property
    def profile(self) -> Profile:
        shares_time = self.policy == FAIR_SHARE and self.share_of == TIME
        return Profile(
            assembler=APART,
            seats=self.max_num_seqs,
            block_size=self.block_size,
            num_blocks=self.num_blocks,
            lag=int(self.async_scheduling),
            budget=self.max_num_batched_tokens,
            decode_quota=self.decode_quota,
            time_share=self.prefill_share if shares_time else 1.0,
        )
