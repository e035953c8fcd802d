"""An engine as the simulators see it: parameters of two ways to assemble a step, and no name.

All engines share one rule: a request has `computed` tokens catching up with `known = prompt + generated`, a step
computes some of them, and the step that catches up emits one more. What differs is who gets how many.

Assembler A puts decodes and prompt chunks into one token budget. It serves the running requests as they stand in the
list (IN_ORDER: vLLM V1), or decodes and chunks apart (APART: Sarathi, Orca, TensorRT-LLM, the generic policies).
Assembler B runs a prefill batch whenever one can be formed and decodes otherwise (PREFILL_FIRST: SGLang, vLLM V0).

The engines' own knobs (`knobs/`) become a Profile; the simulators read nothing else. Tokens, blocks (SGLang: pages).

`lag` 1 is asynchronous (overlap) scheduling. How vLLM does it was compared with recordings of its scheduler; there are
none of SGLang's and TensorRT-LLM's with overlap on, so those profiles follow vLLM's rule: a result is applied one
schedule late.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.simulation.arrays import Bools, Ints

NO_LIMIT = 1 << 40

IN_ORDER, APART, PREFILL_FIRST = 0, 1, 2  # assembler
FITS, RESERVES, ESTIMATES = 0, 1, 2  # what an admission asks of the KV pool
MOST_ESTIMATED = 4096  # most tokens still to come of one request that an estimate counts
STEPS_AHEAD = (
    20  # decode steps for each request that the ratio of the estimate allows after a shortage of blocks
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Defaults are what an engine without that rule does."""

    assembler: int
    seats: int
    block_size: int
    num_blocks: int
    lag: int = 0  # schedules that a result is applied late
    budget: int = NO_LIMIT  # tokens per step; prefill first: per prefill batch
    chunked: bool = (
        True  # a prompt may be computed in parts; without (and ESTIMATES) one above the budget runs alone
    )
    longest: int = NO_LIMIT  # most tokens of prompt and outputs together

    # KV blocks
    admission: int = FITS  # all known tokens fit | prompt + limit are free for good | an estimate by ratio
    watermark_blocks: int = 0  # FITS: left free by an admission while somebody runs
    watermark_alone: bool = False  # a prompt that does not fit beside it never starts
    whole_prompt: bool = False  # an admission takes the blocks of all known tokens, not of the chunk
    spare_block: bool = False  # a decode asks for a free block even when it needs none

    # the queue
    by_priority: bool = False  # by (priority, arrival, tie), else first come, first served
    fewest_outputs: bool = (
        False  # victim: fewest outputs, to the queue's end; else the last admitted, to its front
    )

    # assembler A, in order
    threshold: int = 0  # most tokens of one request while it is not alone; 0: no limit
    adaptive: bool = False  # at least an equal share of the budget
    interval: int = 1  # prefills only every so many steps while somebody decodes
    caching: bool = False  # full blocks of known tokens can be found again (see prefix, reference_prefix)
    named_ahead: int = 0  # tokens behind a block that its name covers too
    dropped_hits: int = 0  # blocks at the end of a hit that are computed anew

    # assembler A, apart
    decode_quota: int = NO_LIMIT  # tokens for decodes before the prompts get theirs
    decodes_limited: bool = True  # decodes stay within the budget
    unit: int = 1  # a truncated chunk is a multiple of it
    equal_progress: bool = False  # prompts get one unit each, in rounds; else first come, first served
    time_share: float = 1.0  # most of the time that prefills get while somebody decodes

    # speculative decoding
    drafts: int = 0  # tokens guessed for every request that decodes; a step checks them beside the known one
    acceptance_rate: float = 0.0  # of a draft, if those before it are accepted
    lookahead: int = 0  # tokens beyond those of its row that a running request takes blocks for
    draft_s: float = 0.0  # seconds of guessing after every step
    luck_seed: int = 0

    # assembler B
    mixed: bool = False  # decodes join a prefill batch
    ratio: float = 0.0  # ESTIMATES: share of the outputs still to come that running requests will need
    least_ratio: float = 0.0
    ratio_decay: float = 0.0  # per decode step
    gap: int = 0  # decode-only steps after a prefill batch ...
    gap_least_decodes: int = 0  # ... while at least so many decode

    def possible(self, prompt: Ints, output: Ints, limit: Ints) -> Bools:
        """bool[N]: can the request be admitted, and again after its last token but one?

        It needs KV for its prompt and all its outputs but the last, which is never read back; with drafts also for
        those of its last row, for the lookahead, and (lag 1) for drafts in flight that may turn out to be accepted.
        """
        known = prompt + output - 1
        fits = self._blocks(known + (1 + self.lag) * self.drafts + self.lookahead) <= self.num_blocks
        if self.watermark_alone:
            fits &= self._blocks(prompt) + self.watermark_blocks <= self.num_blocks
        if self.admission == RESERVES:
            fits &= self._blocks(prompt + limit) <= self.num_blocks
        if self.admission == ESTIMATES:
            to_come = np.minimum(limit, output - 1 + MOST_ESTIMATED)
            fits &= prompt + to_come + self.block_size < self.num_blocks * self.block_size
        fits &= prompt + output <= self.longest
        if not self.chunked and self.admission != ESTIMATES:
            fits &= (prompt if self.admission == RESERVES else known) <= self.budget
        return np.asarray(fits, dtype=np.bool_)

    @property
    def first_row_blocks(self) -> int:
        """Blocks that are kept for the first row of a hand-off beyond those of what was transferred."""
        return -(-(1 + self.drafts + self.lookahead) // self.block_size) if self.drafts else 0

    def _blocks(self, tokens: Ints) -> Ints:
        return -(-tokens // self.block_size)
