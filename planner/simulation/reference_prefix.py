"""vLLM's prefix cache in plain Python: every block of the pool, who holds it, and what it is known to contain.

A block whose tokens are all scheduled and known gets its name and can be hit by the next prompt that begins alike.
Blocks are shared by counting their holders. One without a holder is free, but keeps its content until it is taken
for something else: free blocks queue, first those without a name, then the least recently used; of one request the
tail goes first, since nobody can use the tail without the beginning. Two prompts computed side by side may leave
two copies of a block; the older one is hit. Source: vLLM 0.33.0 (block pool, KV cache manager): blocks without a
name have gone to the front of the queue since May 2026 (before, to its end, which matters for one block a request).

With a drafter that reads ahead (EAGLE, MTP) its KV in a block depends on the token behind the block too. So vLLM's
hashes cover that token, and a block gets its name when that is known (`Profile.named_ahead`); where KV caches are also
loaded from elsewhere they do not, and the last block of every hit is computed anew (`Profile.dropped_hits`).

Two differences, on purpose. Tokens that a victim of preemption was given in the very step that preempts it were
never computed, so their blocks lose their names; vLLM leaves them, to be hit. And a block at the end of a hit that is
computed anew and that only its own request could hit loses its name at once; vLLM leaves it, beside the new copy.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

Name = tuple[int, ...]
OWN = 2  # parts of a name that only one request has


@dataclass(slots=True, eq=False)
class Block:
    number: int
    name: Name | None = None
    holders: int = 0


@dataclass(slots=True)
class Held:
    """A request's blocks, in order; the first `named` are full and known."""

    blocks: list[Block] = field(default_factory=list)
    named: int = 0


class PrefixCache:
    """The pool. `shared` names each request's leading blocks; all later ones are its own."""

    def __init__(self, blocks: int, block_tokens: int, shared: Sequence[Sequence[int]]) -> None:
        self.block_tokens = block_tokens
        self.queue = OrderedDict((number, Block(number)) for number in range(blocks))
        self.copies: dict[Name, dict[int, Block]] = {}
        self.held: dict[int, Held] = {}
        self.shared = shared

    def name(self, request: int, position: int) -> Name:
        shared = self.shared[request]
        return (shared[position],) if position < len(shared) else (request, position)

    def hits(self, request: int, known_tokens: int) -> list[Block]:
        """The cached blocks that a request with so many known tokens begins with; one token is left to compute."""
        found: list[Block] = []
        while (len(found) + 1) * self.block_tokens < known_tokens:
            copies = self.copies.get(self.name(request, len(found)))
            if not copies:
                break
            found.append(next(iter(copies.values())))
        return found

    def drop(self, blocks: list[Block]) -> None:
        """Blocks of a hit are computed anew by a request that is about to be admitted."""
        for block in blocks:
            if block.name is not None and len(block.name) == OWN:
                self._forget(block)
                self.queue.move_to_end(block.number, last=False)

    def hold(self, request: int, hits: list[Block]) -> None:
        """A request is admitted with these hits."""
        for block in hits:
            if block.holders == 0:
                del self.queue[block.number]
            block.holders += 1
        self.held[request] = Held(list(hits), len(hits))

    def extend(self, request: int, count: int) -> None:
        """Take `count` blocks from the front of the queue; what they contained is forgotten."""
        for _ in range(count):
            _, block = self.queue.popitem(last=False)
            self._forget(block)
            block.holders = 1
            self.held[request].blocks.append(block)

    def learn(self, request: int, tokens: int) -> None:
        """The first so many tokens of a request are known and scheduled: their full blocks can be hit."""
        held = self.held[request]
        for position in range(held.named, tokens // self.block_tokens):
            block = held.blocks[position]
            block.name = self.name(request, position)
            self.copies.setdefault(block.name, {})[block.number] = block
            held.named += 1

    def release(self, request: int, computed_tokens: int) -> int:
        """A request that has computed so many tokens loses its blocks. Returns how many are free now."""
        held = self.held.pop(request)
        for block in held.blocks[computed_tokens // self.block_tokens : held.named]:
            self._forget(block)
        freed = 0
        for block in reversed(held.blocks):
            block.holders -= 1
            if block.holders == 0:
                freed += 1
                self.queue[block.number] = block
                if block.name is None:
                    self.queue.move_to_end(block.number, last=False)
        return freed

    def _forget(self, block: Block) -> None:
        if block.name is None:
            return
        copies = self.copies[block.name]
        del copies[block.number]
        if not copies:
            del self.copies[block.name]
        block.name = None
