"""Real sequences on the engines of a replay: which token ids each request has, and which blocks hold their KV.

The simulator counts blocks; an engine needs to know which. Each engine has a list of free blocks; a request's table
there grows with what is computed of it and is given back when the scheduler has taken its blocks away. Prompts are
random and seeded; what an engine samples becomes the sequence, so that a decode really continues its prompt. Tokens,
blocks of `block_tokens`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from calibration.engine.interface import ServedStep
from planner.simulation.reference_requests import Request, Row


@dataclass(slots=True)
class Blocks:
    """One engine's pool: `tables` by request, and the scheduler's requests they are for."""

    free: list[int]
    block_tokens: int
    tables: dict[int, list[int]] = field(default_factory=dict)
    owners: dict[int, Request] = field(default_factory=dict)

    @classmethod
    def of(cls, count: int, block_tokens: int, seed: int) -> Blocks:
        """Handed out in a random order, as those of a pool in use are."""
        return cls(np.random.default_rng([seed, 5]).permutation(count).tolist(), block_tokens)

    def reclaim(self) -> None:
        """Takes back what the scheduler has released."""
        for index in [index for index, request in self.owners.items() if request.blocks == 0]:
            self.free += self.tables.pop(index)
            del self.owners[index]

    def grow(self, request: Request, tokens: int) -> list[int]:
        """The request's table, long enough for so many tokens. RuntimeError where the pool is empty."""
        table = self.tables.setdefault(request.index, [])
        self.owners[request.index] = request
        missing = -(-tokens // self.block_tokens) - len(table)
        if missing > len(self.free):
            raise RuntimeError(
                "the engine's KV pool has fewer blocks than the scheduler counts: this is a defect"
            )
        table += [self.free.pop() for _ in range(missing)]
        return table


@dataclass(slots=True)
class Sequences:
    """Token ids of every request, prompt and outputs, by index. `differing`: how often a token that was computed twice
    (by both pools, or after a preemption) came out another: rounding can do that, lost KV does it nearly always."""

    prompt_tokens: list[int]
    vocabulary: int
    seed: int
    known: dict[int, list[int]] = field(default_factory=dict)
    computed_twice: int = 0
    differing: int = 0

    def ids(self, index: int) -> list[int]:
        if index not in self.known:
            random = np.random.default_rng([self.seed, 6, index])
            self.known[index] = random.integers(0, self.vocabulary, self.prompt_tokens[index]).tolist()
        return self.known[index]

    def step(self, rows: list[Row], blocks: Blocks) -> tuple[ServedStep, list[Row]]:
        """The batch as an engine takes it, decodes first, and its rows in that order."""
        blocks.reclaim()
        rows = sorted(rows, key=lambda row: row.tokens > 1)
        ids: list[int] = []
        for row in rows:
            own = self.ids(row.request.index)[row.cached : row.cached + row.tokens]
            # A row beyond what is known: an asynchronous scheduler's, for a sequence that has ended in the meantime.
            ids += own + [0] * (row.tokens - len(own))
        tables = [list(blocks.grow(row.request, row.cached + row.tokens)) for row in rows]
        step = ServedStep(
            ids,
            [row.tokens for row in rows],
            [row.cached for row in rows],
            tables,
            [row.emits for row in rows],
        )
        return step, rows

    def learn(self, rows: list[Row], sampled: list[int]) -> None:
        """What the step sampled, in the order of its rows that emit."""
        emitting = [row for row in rows if row.emits]
        for row, token in zip(emitting, sampled, strict=True):
            ids, position = self.ids(row.request.index), row.cached + row.tokens
            if position == len(ids):
                ids.append(token)
            elif position < len(ids):
                self.computed_twice += 1
                self.differing += ids[position] != token
