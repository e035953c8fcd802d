"""The scheduling knobs of SGLang, under SGLang's own names, checked where they are made."""

from __future__ import annotations

from dataclasses import dataclass

from planner.simulation.knobs.checks import at_least
from planner.simulation.profile import ESTIMATES, PREFILL_FIRST, Profile

LEAST_RATIO_SHARE = 0.14  # of the initial ratio


@dataclass(frozen=True, slots=True)
class SglangKnobs:
    """What decides how SGLang 0.5.23 assembles a step; `max_total_tokens` is its KV pool.

    A prompt waits until its tokens, its outputs, and the share `new_token_ratio` of all outputs still to come of the
    running requests fit the pool. The ratio starts at `init_new_token_ratio`, falls with every decode step to
    `min_new_token_ratio` (None: 0.14 of the initial one) within `new_token_ratio_decay_steps`, and jumps when decodes
    run out of pages and a request is sent back to the queue. `enable_mixed_chunk` lets decodes join prefill
    batches; `prefill_decode_interval` N makes N decode steps follow a prefill batch while at least
    `prefill_decode_interval_min_bs` requests decode. Chunking cannot be switched off here.
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

    def __post_init__(self) -> None:
        at_least(self, 1, "page_size", "max_running_requests", "new_token_ratio_decay_steps")
        at_least(self, 0, "prefill_decode_interval", "prefill_decode_interval_min_bs")
        at_least(self, self.page_size, "chunked_prefill_size", "max_prefill_tokens", "max_total_tokens")
        if not 0.0 <= self.init_new_token_ratio <= 1.0:
            raise ValueError(f"init_new_token_ratio must be in [0, 1], not {self.init_new_token_ratio}")
        if not 0.0 <= self.least_ratio <= self.init_new_token_ratio:
            raise ValueError(
                f"min_new_token_ratio must be in [0, {self.init_new_token_ratio}], not {self.least_ratio}"
            )

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
            budget=min(self.chunked_prefill_size, self.max_prefill_tokens),
            admission=ESTIMATES,
            fewest_outputs=True,
            mixed=self.enable_mixed_chunk,
            ratio=self.init_new_token_ratio,
            least_ratio=self.least_ratio,
            ratio_decay=(self.init_new_token_ratio - self.least_ratio) / self.new_token_ratio_decay_steps,
            gap=self.prefill_decode_interval,
            gap_least_decodes=self.prefill_decode_interval_min_bs,
        )
