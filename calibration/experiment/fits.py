"""Whether a model, its KV pool and a step fit the device: asked before a job starts, answered in bytes.

needed = weights + KV pool + the largest step's activations. The pool must hold at least one sequence of the
envelope's longest context and one step, or there would be nothing to measure. By default it is a share of
free memory on a CPU (other things live there too) and what the weights leave on a GPU.
"""

from __future__ import annotations

from calibration.architecture import Architecture
from calibration.engine.cpu import has_bfloat16
from calibration.experiment.envelope import BadEnvelope, Envelope

BLOCK_TOKENS = 16
GPU_USABLE_SHARE = 0.9
CPU_USABLE_SHARE = 0.9
EIGHT_BITS = "float8"


class DoesNotFit(ValueError):
    """`.needed_bytes` are more than the `.free_bytes` of the device."""

    def __init__(self, message: str, needed_bytes: int, free_bytes: int) -> None:
        super().__init__(f"{message} (needed {needed_bytes:,} bytes, free {free_bytes:,} bytes)")
        self.needed_bytes = needed_bytes
        self.free_bytes = free_bytes


def check_fits(
    architecture: Architecture,
    envelope: Envelope,
    *,
    device: str,
    free_bytes: int,
    kv_tokens: int | None = None,
    kv_fraction: float = 0.25,
    dtype: str = "auto",
    tensor_parallel: int = 1,
) -> int:
    """Tokens of the KV pool, as asked or by default; raises DoesNotFit with bytes needed and free, and
    BadEnvelope for contexts the model does not have.

    `kv_fraction`: the share of free memory that is the default pool on a CPU. `tensor_parallel`: ranks that share
    weights and KV heads, each with `free_bytes` of its own; the bytes told are one rank's.
    """
    check_envelope(architecture, envelope)
    element_bytes = bytes_per_element(dtype, device)
    kv_bytes = architecture.kv_bytes_per_token(element_bytes, tensor_parallel) // tensor_parallel
    weight_bytes = (
        eight_bit_weight_bytes(architecture, tensor_parallel)
        if dtype == EIGHT_BITS
        else rank_weight_bytes(architecture, element_bytes, tensor_parallel)
    )
    fixed = weight_bytes + activation_bytes(architecture, envelope, element_bytes)
    least = smallest_pool_tokens(envelope)
    if kv_tokens is not None:
        if kv_tokens < least:
            message = (
                f"a KV pool of {kv_tokens:,} tokens is too small: one sequence of "
                f"{envelope.max_context_tokens:,} tokens and one step need {least:,}"
            )
            raise DoesNotFit(message, least * kv_bytes, kv_tokens * kv_bytes)
        chosen = kv_tokens
    else:
        cpu = device.startswith("cpu")
        usable = int(free_bytes * (CPU_USABLE_SHARE if cpu else GPU_USABLE_SHARE)) - fixed
        wanted = int(free_bytes * kv_fraction) if cpu else usable
        chosen = max(least, min(max(wanted, full_pool_tokens(envelope) * kv_bytes), usable) // kv_bytes)
        chosen -= chosen % BLOCK_TOKENS
    needed = fixed + chosen * kv_bytes
    if needed > free_bytes:
        message = (
            f"{architecture.name} does not fit {device}: weights {weight_bytes:,} bytes, "
            f"KV pool of {chosen:,} tokens {chosen * kv_bytes:,} bytes and a step's working memory"
        )
        raise DoesNotFit(message, needed, free_bytes)
    return chosen


def check_envelope(architecture: Architecture, envelope: Envelope) -> None:
    """Raises BadEnvelope for a model that is not run here, and when the envelope's contexts are longer than what
    the model, or its run here, can hold."""
    if not architecture.runnable:
        message = f"{architecture.name} can be described but not run here: {architecture.not_run_reason}"
        raise BadEnvelope("model", message)
    context = envelope.max_context_tokens
    if context > architecture.max_position_tokens:
        message = f"{architecture.name} has {architecture.max_position_tokens:,} positions, not {context:,}"
        raise BadEnvelope("max_context_tokens", message)


def rank_weight_bytes(architecture: Architecture, element_bytes: int, tensor_parallel: int = 1) -> int:
    """Weights of one rank: its share, but the whole embedding, which every rank looks tokens up in."""
    whole = architecture.weight_bytes(element_bytes)
    if tensor_parallel == 1:
        return whole
    embedding = architecture.vocab_size * architecture.hidden_size * element_bytes
    return embedding + (whole - embedding * (not architecture.tie_word_embeddings)) // tensor_parallel


def eight_bit_weight_bytes(architecture: Architecture, tensor_parallel: int = 1) -> int:
    """Weights of one rank whose projections and experts are stored in 8 bits, as most is needed of them: one layer is
    drawn in 16 bits, whole, before it is stored. In 16 bits stay embedding, head, and what a latent cache is made and
    multiplied out with; a scale of 4 bytes belongs to every row of a matrix, the shortest of which count for all."""
    a = architecture
    embedding = a.vocab_size * a.hidden_size
    head = 0 if a.tie_word_embeddings else embedding
    ups = 0
    if a.latent is not None:
        ups = a.layers * a.heads * a.latent.rank * (a.latent.nope_size + a.latent.value_size)
    stored = a.parameters - embedding - head - ups
    inner = a.experts.intermediate_size if a.experts is not None else a.intermediate_size
    shortest = min(a.hidden_size, a.query_size, inner) // tensor_parallel
    scales = stored * 4 // max(1, shortest)
    layer = stored // (a.experts.layers if a.experts is not None else a.layers)
    of_ranks = embedding if tensor_parallel > 1 else head  # a rank's rows of a tied head are a copy
    kept = 2 * (embedding + (of_ranks + ups) // tensor_parallel)
    return kept + (stored + scales) // tensor_parallel + 2 * layer


def smallest_pool_tokens(envelope: Envelope) -> int:
    """One longest sequence and one step beside it, in whole blocks: less cannot be measured in."""
    return _in_blocks(envelope.max_context_tokens + 1) + _in_blocks(envelope.max_step_tokens)


def full_pool_tokens(envelope: Envelope) -> int:
    """The largest batch, every sequence at the longest context: no point of the list needs more."""
    return (envelope.max_batch + 1) * _in_blocks(envelope.max_context_tokens + 1)


def activation_bytes(architecture: Architecture, envelope: Envelope, element_bytes: int) -> int:
    """Working memory of the largest step: a layer's tensors, logits, gathered pages and masks; generous."""
    a = architecture
    per_token = 8 * a.hidden_size + 4 * a.query_size + 4 * a.kv_size + 6 * a.intermediate_size
    if a.experts is not None:  # each token's row once for every expert it uses
        per_token += a.experts.per_token * (3 * a.experts.intermediate_size + 2 * a.hidden_size)
    logits = envelope.max_batch * a.vocab_size * 2
    gathered = full_pool_tokens(envelope) * 2 * a.kv_size
    if a.latent is not None:  # latents of all rows, and the keys and values made for one of them
        gathered = full_pool_tokens(envelope) * a.latent.elements
        gathered += 3 * (envelope.max_context_tokens + envelope.max_step_tokens) * a.query_size
    masks = envelope.max_step_tokens * envelope.max_context_tokens
    rotary = 4 * envelope.max_context_tokens * a.head_dim
    return (envelope.max_step_tokens * per_token + logits + gathered + masks + rotary) * element_bytes


def bytes_per_element(dtype: str, device: str) -> int:
    """Bytes of one weight. "auto" on a CPU: 2 where the processor has bfloat16, else 4 (the engine measures
    which is faster when it starts; this is asked before)."""
    if dtype == "auto":
        return 2 if not device.startswith("cpu") or has_bfloat16() else 4
    return {"float64": 8, "float32": 4}.get(dtype, 2)


def _in_blocks(tokens: int) -> int:
    return -(-tokens // BLOCK_TOKENS) * BLOCK_TOKENS
