"""Which models can be split among how many ranks; asked before anything starts, so without torch."""

from __future__ import annotations

from calibration.architecture import Architecture


class CannotShard(ValueError):
    """The model's sizes do not divide among so many ranks; the message says which."""


def check_shards(a: Architecture, size: int) -> None:
    """Raises CannotShard where the model does not divide among `size` ranks."""
    if size < 1:
        raise CannotShard("a model needs at least one rank")
    widths = {"attention heads": a.heads}
    widths |= {"columns of the feed-forward": a.intermediate_size}
    if a.experts is not None:
        widths |= {"columns of an expert": a.experts.intermediate_size}
        if a.experts.shared_intermediate_size:
            widths |= {"columns of the shared expert": a.experts.shared_intermediate_size}
    for what, count in widths.items():
        if count % size:
            raise CannotShard(f"{a.name} has {count:,} {what}, which do not divide among {size} ranks")
    if a.latent is None and a.kv_heads % size and size % a.kv_heads:
        raise CannotShard(
            f"{a.name} has {a.kv_heads} KV heads, which neither divide among {size} ranks nor {size} by them"
        )
