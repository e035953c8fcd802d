"""llm-d: vLLM's own arguments inside the containers, and a plugin that decides which prompts are prefilled apart.

llm-d recommends KV blocks of 128 tokens for transfers; a plan keeps the block it was computed with and says so.
`prefix-based-pd-decider` sends a prompt to the prefill pool when at least `nonCachedTokens` of it are not cached on the
decode side; 0 never does. A plan's threshold is the longest prompt that stays on the decode pool, so the decider's
value is one more. Source: llm-d's guides and the decider in its inference scheduler.
"""

from __future__ import annotations

from typing import Any, Final

RECOMMENDED_BLOCK_TOKENS: Final = 128
DECIDER: Final = "prefix-based-pd-decider"


def decider(local_prefill_tokens: int) -> dict[str, Any]:
    """The plugin's entry. Prompts of up to `local_prefill_tokens` (>= 0) are prefilled on the decode pool."""
    if local_prefill_tokens < 0:
        raise ValueError("local_prefill_tokens must not be negative")
    return {"type": DECIDER, "parameters": {"nonCachedTokens": local_prefill_tokens + 1}}


def block_remark(block_tokens: int) -> str | None:
    if block_tokens == RECOMMENDED_BLOCK_TOKENS:
        return None
    return (
        f"llm-d recommends KV blocks of {RECOMMENDED_BLOCK_TOKENS} tokens for transfers; this plan was computed with "
        f"{block_tokens}, and another block size is another plan."
    )
