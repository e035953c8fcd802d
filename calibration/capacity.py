"""How many tokens of KV cache does the device have room for, with each token budget?

An engine gives its KV pool what a limit leaves after the weights and the largest step's working memory; that step
is as large as the token budget, so a larger budget has a smaller pool. Formulas for the working memory miss what
allocators and libraries keep (one gave 54,400 tokens where the server had 41,408, and TTFT was 20 % off), so it is
measured: the largest steps of each budget are run and the peak is read.

    kv_tokens(budget) = (limit - other - working(budget)) / KV bytes per token, in whole blocks

`other`: weights and whatever else stays. Between two measured budgets the larger one's pool holds (the smaller is
never overstated); beyond the largest nothing is known and the largest one's is given. Units: tokens, bytes.
Measured, because a formula gave 54,400 tokens where a server had 41,408; vLLM profiles its own pool in the same way
when it starts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

MAX_ROWS = 64
MAX_BUDGET_TOKENS = 1 << 24
#: Of a pool: a simulation keeps some bytes for each of its blocks, and no device holds a tenth of this.
MAX_POOL_TOKENS = 100_000_000
MAX_BYTES = 1 << 50
MAX_LABEL = 200
MAX_RANKS = 1024


@dataclass(frozen=True, slots=True)
class KVCapacity:
    """Rows by growing `budget_tokens`: the working memory of its largest step and the tokens left for the pool.

    `working_bytes` never falls and `kv_tokens` never rises from row to row. `label` says what was measured and how.
    `ranks`: what share the model; the tokens are the model's (each rank holds its heads of every token, so the rank
    with the least room decides), the bytes are of the rank that needs most.
    Raises ValueError for an empty table, unequal lengths or values out of order.
    """

    budget_tokens: tuple[int, ...]
    working_bytes: tuple[int, ...]
    kv_tokens: tuple[int, ...]
    label: str = ""
    ranks: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.ranks <= MAX_RANKS:
            raise ValueError(f"ranks must be 1 to {MAX_RANKS}")
        if not 0 < len(self.budget_tokens) == len(self.working_bytes) == len(self.kv_tokens) <= MAX_ROWS:
            raise ValueError(
                f"a KV capacity needs 1 to {MAX_ROWS} budgets, each with its bytes and its tokens"
            )
        if self.budget_tokens[0] < 1 or any(a >= b for a, b in pairwise(self.budget_tokens)):
            raise ValueError("budget_tokens must be positive and increase")
        if self.working_bytes[0] < 0 or any(a > b for a, b in pairwise(self.working_bytes)):
            raise ValueError("working_bytes must not be negative and never fall")
        if self.kv_tokens[-1] < 0 or any(a < b for a, b in pairwise(self.kv_tokens)):
            raise ValueError("kv_tokens must not be negative and never rise")
        if self.kv_tokens[0] > MAX_POOL_TOKENS:
            raise ValueError(f"kv_tokens must be at most {MAX_POOL_TOKENS:,}")
        if self.budget_tokens[-1] > MAX_BUDGET_TOKENS or self.working_bytes[-1] > MAX_BYTES:
            raise ValueError("budget_tokens or working_bytes are larger than any device has")

    @classmethod
    def constant(cls, kv_tokens: int, label: str = "", ranks: int = 1) -> KVCapacity:
        """The same pool whatever the budget: what an import knows, which names one number."""
        return cls((1,), (0,), (kv_tokens,), label, ranks)

    @classmethod
    def measured(
        cls,
        working_bytes: Mapping[int, int],
        *,
        available_bytes: int,
        kv_bytes_per_token: int,
        block_tokens: int = 16,
        label: str = "",
    ) -> KVCapacity:
        """From the working memory measured at each budget, where pool and working memory share `available_bytes`.

        A step within a smaller budget is within a larger one, so a larger budget never counts as needing less.
        """
        budgets = sorted(working_bytes)
        working = tuple(accumulate((max(0, working_bytes[b]) for b in budgets), max))
        most = MAX_POOL_TOKENS // block_tokens
        blocks = (
            min(most, max(0, available_bytes - w) // (kv_bytes_per_token * block_tokens)) for w in working
        )
        return cls(tuple(budgets), working, tuple(n * block_tokens for n in blocks), label)

    @classmethod
    def of_ranks(cls, each: Sequence[KVCapacity], label: str = "") -> KVCapacity:
        """What ranks with these pools of the same budgets hold together: of each budget the fewest tokens, and the
        working memory of the rank that needs most. Raises ValueError."""
        budgets = each[0].budget_tokens
        if any(one.budget_tokens != budgets for one in each):
            raise ValueError("ranks must be measured at the same budgets")
        working = tuple(map(max, zip(*(one.working_bytes for one in each), strict=True)))
        tokens = tuple(map(min, zip(*(one.kv_tokens for one in each), strict=True)))
        return cls(budgets, working, tokens, label, len(each))

    def tokens(self, budget_tokens: int) -> int:
        """Tokens of the pool beside steps of up to `budget_tokens`."""
        for budget, tokens in zip(self.budget_tokens, self.kv_tokens, strict=True):
            if budget_tokens <= budget:
                return tokens
        return self.kv_tokens[-1]

    def to_dict(self) -> dict[str, Any]:
        return {
            "budget_tokens": list(self.budget_tokens),
            "working_bytes": list(self.working_bytes),
            "kv_tokens": list(self.kv_tokens),
            "label": self.label,
            "ranks": self.ranks,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> KVCapacity:
        """Inverse of `to_dict`; raises ValueError for anything else."""
        names = ("budget_tokens", "working_bytes", "kv_tokens")
        budgets, working, tokens = (_whole_numbers(values.get(name), name) for name in names)
        label, ranks = values.get("label", ""), values.get("ranks", 1)
        if not isinstance(label, str) or len(label) > MAX_LABEL:
            raise ValueError(f"label must be a text of at most {MAX_LABEL} characters")
        if not isinstance(ranks, int) or isinstance(ranks, bool):
            raise ValueError("ranks must be a whole number")
        return cls(budgets, working, tokens, label, ranks)


def _whole_numbers(value: Any, name: str) -> tuple[int, ...]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise ValueError(f"{name} must be a list")
    if not all(isinstance(v, int) and not isinstance(v, bool) for v in value):
        raise ValueError(f"{name} must be whole numbers")
    return tuple(value)
