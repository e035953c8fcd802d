"""The scheduling knobs of TensorRT-LLM's no-evict scheduler, under its own names, checked where they are made.

Its rules are read, none was executed; overlap scheduling follows vLLM's asynchronous rule.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.simulation.knobs.checks import at_least, not_simulated, one_of
from planner.simulation.profile import APART, RESERVES, Profile

FIRST_COME_FIRST_SERVED = "FIRST_COME_FIRST_SERVED"
EQUAL_PROGRESS = "EQUAL_PROGRESS"
CHUNKING_POLICIES = (FIRST_COME_FIRST_SERVED, EQUAL_PROGRESS)


@dataclass(frozen=True, slots=True)
class TrtLlmKnobs:
    """What decides how TensorRT-LLM assembles a step with `GUARANTEED_NO_EVICT`.

    A request starts when its prompt and all its outputs fit beside what the running ones will need to their end, so
    nobody is ever preempted. A chunk that ends inside a prompt is a multiple of `tokens_per_block`.
    `num_blocks` counts usable KV blocks.

    `overlap_scheduler`: its loop launches batch k with the tokens of batch k-1 still on the device and handles the
    results of k-1 after that, so batch k is put together when step k-2 has ended: lag 1 here. A request that the next
    step will complete by its length is marked (GENERATION_TO_COMPLETE) and not scheduled again, as here; one that
    ends by a stop token gets one more row, which is not simulated. Source: `PyExecutor._executor_loop_overlap` and
    `_update_request_states_tp`, read, not executed. `max_draft_len` (speculative decoding) is not simulated for
    TensorRT-LLM and refused.
    """

    max_num_tokens: int
    max_batch_size: int
    num_blocks: int
    tokens_per_block: int = 32
    enable_chunked_prefill: bool = False
    context_chunking_policy: str = FIRST_COME_FIRST_SERVED
    overlap_scheduler: bool = True
    max_draft_len: int = 0

    def __post_init__(self) -> None:
        at_least(self, 1, "max_num_tokens", "max_batch_size", "num_blocks", "tokens_per_block")
        not_simulated(self, "TensorRT-LLM", "max_draft_len")
        one_of("context_chunking_policy", self.context_chunking_policy, CHUNKING_POLICIES)
        if self.enable_chunked_prefill:
            at_least(self, self.tokens_per_block, "max_num_tokens")

    @property
    def profile(self) -> Profile:
        return Profile(
            assembler=APART,
            seats=self.max_batch_size,
            block_size=self.tokens_per_block,
            num_blocks=self.num_blocks,
            lag=int(self.overlap_scheduler),
            budget=self.max_num_tokens,
            chunked=self.enable_chunked_prefill,
            admission=RESERVES,
            unit=self.tokens_per_block,
            equal_progress=self.enable_chunked_prefill and self.context_chunking_policy == EQUAL_PROGRESS,
        )
