"""The scheduling knobs of vLLM V1, under vLLM's own names, checked where they are made."""

from __future__ import annotations

from dataclasses import dataclass

from planner.simulation.knobs.checks import at_least, one_of
from planner.simulation.knobs.speculation import ASYNCHRONOUS, SpeculativeConfig
from planner.simulation.profile import IN_ORDER, Profile

FCFS = "fcfs"
PRIORITY = "priority"
POLICIES = (FCFS, PRIORITY)


@dataclass(frozen=True, slots=True)
class VllmKnobs:
    """What decides how vLLM V1 assembles a step (spec: `--help` names of vLLM 0.33).

    `num_blocks` counts usable KV blocks: vLLM keeps one more for itself. `watermark` is a share of that whole
    pool. `long_prefill_token_threshold` 0 means no cap on a request's chunk; `adaptive_threshold` raises the cap
    to an equal share of the budget. `prefill_schedule_interval` N lets prefills run only every N-th step while
    decodes run. `prefix_caching` (vLLM's default is on) lets requests share cached blocks and find them again.
    `speculative_config`: how many tokens are guessed, and how often they are right.
    Raises ValueError naming the knob when a value cannot work.
    """

    max_num_batched_tokens: int
    max_num_seqs: int
    num_blocks: int
    block_size: int = 16
    long_prefill_token_threshold: int = 0
    adaptive_threshold: bool = False
    prefill_schedule_interval: int = 1
    policy: str = FCFS
    watermark: float = 0.0
    async_scheduling: bool = True
    prefix_caching: bool = False
    speculative_config: SpeculativeConfig | None = None

    def __post_init__(self) -> None:
        at_least(
            self,
            1,
            "max_num_batched_tokens",
            "max_num_seqs",
            "num_blocks",
            "block_size",
            "prefill_schedule_interval",
        )
        if self.long_prefill_token_threshold < 0:
            raise ValueError(
                f"long_prefill_token_threshold must not be negative: {self.long_prefill_token_threshold}"
            )
        one_of("policy", self.policy, POLICIES)
        if not 0.0 <= self.watermark < 1.0:
            raise ValueError(f"watermark must be in [0, 1), not {self.watermark}")
        self._check_speculation()

    def _check_speculation(self) -> None:
        speculation = self.speculative_config
        if speculation is None or speculation.num_speculative_tokens == 0:
            return
        if self.max_num_batched_tokens <= speculation.lookahead_tokens:
            raise ValueError(
                f"max_num_batched_tokens must be more than the {speculation.lookahead_tokens} tokens that method"
                f" {speculation.method!r} guesses, not {self.max_num_batched_tokens}"
            )
        if self.async_scheduling and speculation.method not in ASYNCHRONOUS:
            raise ValueError(
                f"async_scheduling: vLLM does not schedule asynchronously with method {speculation.method!r},"
                f" only with {', '.join(ASYNCHRONOUS)}"
            )

    @property
    def watermark_blocks(self) -> int:
        """Blocks an admission leaves free while something runs (the pool includes vLLM's reserved block)."""
        return int(self.watermark * (self.num_blocks + 1))

    @property
    def profile(self) -> Profile:
        speculation = self.speculative_config or SpeculativeConfig(0, 0.0)
        return Profile(
            assembler=IN_ORDER,
            seats=self.max_num_seqs,
            block_size=self.block_size,
            num_blocks=self.num_blocks,
            lag=int(self.async_scheduling),
            budget=self.max_num_batched_tokens,
            watermark_blocks=self.watermark_blocks,
            by_priority=self.policy == PRIORITY,
            threshold=self.long_prefill_token_threshold,
            adaptive=self.adaptive_threshold,
            interval=self.prefill_schedule_interval,
            caching=self.prefix_caching,
            named_ahead=speculation.named_ahead if self.prefix_caching else 0,
            drafts=speculation.num_speculative_tokens,
            acceptance_rate=speculation.acceptance_rate,
            lookahead=speculation.lookahead_tokens,
            draft_s=speculation.draft_s,
            luck_seed=speculation.seed,
        )
