"""Schedulers to compare with, which no flag of a current engine starts: three from the literature, three generic.

Sarathi (chunks beside decodes), Orca (whole prompts beside decodes) and prefill first (vLLM V0) exist in Sarathi-Serve
96f99117, a research code without a table of checked flags. The generic policies (`PolicyKnobs`) exist nowhere as
such: a plan shows what they would gain, and recommends the engine's nearest only where an engine module has one.
The rules are those without which these schedulers go wrong or stand still. Tokens, sequences.
Source: Sarathi-Serve 96f99117 (its schedulers/), Orca (Yu et al., OSDI 2022), vLLM V0. In Sarathi-Serve more decodes
than the chunk size make the chunk negative.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from planner.serving_engines.rules import (
    WORTHWHILE_CHUNK_TOKENS,
    PolicySupport,
    RuleViolation,
    error,
    warning,
)
from planner.simulation.knobs import (
    DECODE_FIRST,
    FAIR_SHARE,
    PREFILL_FIRST,
    OrcaKnobs,
    PolicyKnobs,
    PrefillFirstKnobs,
    SarathiKnobs,
)

VERSION: Final = "Sarathi-Serve 96f99117"

ClassicKnobs = SarathiKnobs | OrcaKnobs | PrefillFirstKnobs | PolicyKnobs

#: By the kind of knobs.
POLICIES: Final[Mapping[type, tuple[PolicySupport, ...]]] = {
    SarathiKnobs: (
        PolicySupport(DECODE_FIRST, "always"),
        PolicySupport(PREFILL_FIRST, "never"),
        PolicySupport(FAIR_SHARE, "never"),
    ),
    OrcaKnobs: (
        PolicySupport(DECODE_FIRST, "nearest", (), "decodes and whole prompts share steps without a budget"),
        PolicySupport(PREFILL_FIRST, "never"),
        PolicySupport(FAIR_SHARE, "never"),
    ),
    PrefillFirstKnobs: (
        PolicySupport(DECODE_FIRST, "never"),
        PolicySupport(PREFILL_FIRST, "always", (), "decodes are left out of prefill steps altogether"),
        PolicySupport(FAIR_SHARE, "never"),
    ),
    PolicyKnobs: (
        PolicySupport(DECODE_FIRST, "option", ("policy",)),
        PolicySupport(PREFILL_FIRST, "option", ("policy",)),
        PolicySupport(FAIR_SHARE, "option", ("policy", "prefill_share", "share_of")),
    ),
}


def violations(knobs: ClassicKnobs, max_model_len: int) -> tuple[RuleViolation, ...]:
    """Rules that `knobs` break or strain, for requests of up to `max_model_len` (>= 1) tokens."""
    if isinstance(knobs, OrcaKnobs):
        return _orca(knobs, max_model_len)
    found: list[RuleViolation] = []
    seats = knobs.max_num_seqs
    if isinstance(knobs, SarathiKnobs):
        name, budget = "chunk_size", knobs.chunk_size
        if budget <= seats:
            found.append(error(name, f"{seats} decodes would make the chunk of {budget} negative"))
    else:
        name, budget = "max_num_batched_tokens", knobs.max_num_batched_tokens
    if isinstance(knobs, PrefillFirstKnobs) and budget < max_model_len:
        found.append(
            error(name, f"prompts are never cut, so the budget of {budget} must hold {max_model_len}")
        )
    pool_tokens = knobs.num_blocks * knobs.block_size
    if pool_tokens < max_model_len:
        found.append(_too_long(pool_tokens, max_model_len))
    if not found and not isinstance(knobs, PrefillFirstKnobs) and budget < seats + WORTHWHILE_CHUNK_TOKENS:
        message = f"{seats} running decodes leave {budget - seats} of {budget} tokens for prompts"
        found.append(warning(name, message))
    return tuple(found)


def _orca(knobs: OrcaKnobs, max_model_len: int) -> tuple[RuleViolation, ...]:
    if knobs.max_model_len < max_model_len:
        return (
            error("max_model_len", f"reserves {knobs.max_model_len} tokens for requests of {max_model_len}"),
        )
    if knobs.slots < knobs.max_num_seqs:
        message = f"the pool holds {knobs.slots} requests of max_model_len, below max_num_seqs"
        return (warning("max_num_seqs", message),)
    return ()


def _too_long(pool_tokens: int, max_model_len: int) -> RuleViolation:
    return error(
        "max_model_len",
        f"the KV pool of {pool_tokens} tokens cannot hold one request of max_model_len {max_model_len}",
    )
