"""Speculative decoding as vLLM's `--speculative-config` states it, and what a simulation needs beside it.

A draft model guesses k tokens; the next step computes them with the last known one, as k + 1 query tokens of one row,
and keeps the guesses up to the first wrong one and one token of its own. What a verification row is for the step-time
law, and why (features as in `calibration.steptime.scalar.step_seconds`):

  n  += k + 1   all of them go through every matrix product
  S  += k + 1   each needs its logits, to be checked or sampled from
  b  += 1       attention reads the request's context once for all k + 1 queries, as for one: engines run such rows
  C, cmax       with their decode kernels (vLLM: uniform decode of k + 1 query tokens), bound by that read
  P, kvm        unchanged: it is no chunk

What the scheduler does with drafts is read from vLLM 0.33.0 (v1/core: sched/scheduler.py, kv_cache_manager.py). A
request asks for the drafter's slots from its first step on; who is passed over keeps the drafts; blocks of accepted
tokens can be found again, those of rejected ones cannot; a newcomer with a single token to compute gets a row as long
as the others'. Not simulated: the slot that a draft model takes from the budget for each row (`draft_model`), drafts
whose number follows the batch size, MTP with several modules.

The k + 1 queries' own share of the attention's arithmetic is neglected, and a calibration seldom measured decode-only
steps with more query tokens than rows: for them the law leans on what it learned from prompts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from planner.simulation.knobs.checks import one_of

#: Drafters with a KV cache of their own beside the target's: they want slots for the tokens they will guess.
WITH_KV: Final = ("eagle", "eagle3", "mtp", "draft_model")
METHODS: Final = (*WITH_KV, "ngram", "ngram_gpu", "medusa", "suffix")
#: Drafters whose KV of a token depends on the next token.
READ_AHEAD: Final = ("eagle", "eagle3", "mtp")
#: vLLM schedules asynchronously only with these.
ASYNCHRONOUS: Final = (*WITH_KV, "ngram_gpu")


@dataclass(frozen=True, slots=True)
class SpeculativeConfig:
    """`num_speculative_tokens` drafts each step (0: none), of which each is accepted with probability
    `acceptance_rate` if those before it were (vLLM's metric: accepted / drafted of the first position).

    draft_step_s: seconds of one pass of the draft model. Every step that computes something is followed by
    `num_speculative_tokens` of them: vLLM's drafters also run over the chunks of prompts, whose KV they need. 0, the
    default, assumes drafting to be free, which only guessing without a model (ngram, suffix) comes near to.
    seed: see `luck`. ValueError names the field.
    """

    num_speculative_tokens: int
    acceptance_rate: float
    method: str = "eagle3"
    draft_step_s: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.num_speculative_tokens < 0:
            raise ValueError(f"num_speculative_tokens must not be negative: {self.num_speculative_tokens}")
        if not 0.0 <= self.acceptance_rate <= 1.0:
            raise ValueError(f"acceptance_rate must be in [0, 1], not {self.acceptance_rate}")
        one_of("method", self.method, METHODS)
        if not 0.0 <= self.draft_step_s < math.inf:
            raise ValueError(f"draft_step_s must be finite and not negative, not {self.draft_step_s}")

    @property
    def lookahead_tokens(self) -> int:
        """Slots that a running request asks for beyond the tokens it computes."""
        return self.num_speculative_tokens if self.method in WITH_KV else 0

    @property
    def named_ahead(self) -> int:
        """Tokens behind a KV block that its name covers too: the drafter's KV in the block depends on them (MTP with
        one module; several read further)."""
        return int(self.num_speculative_tokens > 0 and self.method in READ_AHEAD)

    @property
    def draft_s(self) -> float:
        """Seconds of drafting after every step."""
        return self.num_speculative_tokens * self.draft_step_s
