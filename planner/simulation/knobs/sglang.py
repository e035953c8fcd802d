"""The scheduling knobs of SGLang, under SGLang's own names, checked where they are made.

Overlap scheduling follows vLLM's asynchronous rule: no recording of SGLang's own is behind it.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.simulation.knobs.checks import at_least, not_simulated
from planner.simulation.profile import ESTIMATES, PREFILL_FIRST, Profile

CHUNKING_OFF = -1
LEAST_RATIO_SHARE = 0.14  # of the initial ratio


@dataclass(frozen=True, slots=True)
class SglangKnobs:
    """What decides how SGLang 0.5.23 assembles a step; `max_total_tokens` is its KV pool.

    A prompt waits until its tokens, its outputs, and the share `new_token_ratio` of all outputs still to come of the
    running requests fit the pool. The ratio starts at `init_new_token_ratio`, falls with every decode step to
    `min_new_token_ratio` (None: 0.14 of the initial one) within `new_token_ratio_decay_steps`, and jumps when decodes
    run out of pages and a request is sent back to the queue. `enable_mixed_chunk` lets decodes join prefill
    batches; `prefill_decode_interval` N makes N decode steps follow a prefill batch while at least
    `prefill_decode_interval_min_bs` requests decode. A `chunked_prefill_size` of -1 switches chunking off: whole
    prompts share a batch while they stay below `max_prefill_tokens`, and a longer one runs alone.

    `overlap_schedule`: SGLang's loop picks batch k, launches it, and only then waits for the results of batch k-1;
    so batch k is picked when step k-2 has ended, which is lag 1 here (`Scheduler.event_loop_overlap`). Known and not
    simulated: a request whose last token is in flight is still in the decode batch and gets one more row (SGLang
    frees "the one extra delayed token" afterwards), whatever ended it; here only its seat and pages stay taken. With
    `SGLANG_DISABLE_CONSECUTIVE_PREFILL_OVERLAP` two prefill batches in a row do not overlap.
    `speculative_num_steps` is not simulated for SGLang and refused.
    """

    chunked_prefill_size: int
    max_running_requests: int
    max_total_tokens: int
    page_size: int = 1
    max_prefill_tokens: int = 16384
    enable_mixed_chunk: bool = False
    init_new_token_ratio: float = 0.7
    min_new_token_ratio: float | None = None
    new_token_ratio_decay_steps: int = 600
    prefill_decode_interval: int = 0
    prefill_decode_interval_min_bs: int = 0
    overlap_schedule: bool = True
    speculative_num_steps: int = 0

    def __post_init__(self) -> None:
        at_least(self, 1, "page_size", "max_running_requests", "new_token_ratio_decay_steps")
        at_least(self, 0, "prefill_decode_interval", "prefill_decode_interval_min_bs")
        at_least(self, self.page_size, "max_prefill_tokens", "max_total_tokens")
        not_simulated(self, "SGLang", "speculative_num_steps")
        if self.chunked_prefill_size != CHUNKING_OFF and self.chunked_prefill_size < self.page_size:
            raise ValueError(
                f"chunked_prefill_size must be at least {self.page_size}, or {CHUNKING_OFF} to switch chunking off,"
                f" not {self.chunked_prefill_size}"
            )
        if self.enable_mixed_chunk and not self.is_chunked:
            raise ValueError("enable_mixed_chunk: without chunked prefill SGLang does not mix batches")
        if not 0.0 <= self.init_new_token_ratio <= 1.0:
            raise ValueError(f"init_new_token_ratio must be in [0, 1], not {self.init_new_token_ratio}")
        if not 0.0 <= self.least_ratio <= self.init_new_token_ratio:
            raise ValueError(
                f"min_new_token_ratio must be in [0, {self.init_new_token_ratio}], not {self.least_ratio}"
            )

    @property
    def is_chunked(self) -> bool:
        return self.chunked_prefill_size != CHUNKING_OFF

    @property
    def least_ratio(self) -> float:
        if self.min_new_token_ratio is None:
            return self.init_new_token_ratio * LEAST_RATIO_SHARE
        return self.min_new_token_ratio

    @property
    def num_blocks(self) -> int:
        """Whole pages of the pool."""
        return self.max_total_tokens // self.page_size

    @property
    def profile(self) -> Profile:
        return Profile(
            assembler=PREFILL_FIRST,
            seats=self.max_running_requests,
            block_size=self.page_size,
            num_blocks=self.num_blocks,
            lag=int(self.overlap_schedule),
            budget=min(self.chunked_prefill_size, self.max_prefill_tokens)
            if self.is_chunked
            else self.max_prefill_tokens,
            chunked=self.is_chunked,
            admission=ESTIMATES,
            fewest_outputs=True,
            mixed=self.enable_mixed_chunk,
            ratio=self.init_new_token_ratio,
            least_ratio=self.least_ratio,
            ratio_decay=(self.init_new_token_ratio - self.least_ratio) / self.new_token_ratio_decay_steps,
            gap=self.prefill_decode_interval,
            gap_least_decodes=self.prefill_decode_interval_min_bs,
        )
