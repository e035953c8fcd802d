"""Dynamo 1.6.1: vLLM's own arguments behind its worker module, and a frontend that routes.

A worker is `python -m dynamo.vllm` with `--disaggregation-mode agg|prefill|decode`; engine flags follow unchanged, and
the KV connector is Dynamo's business, so `--kv-transfer-config` is not repeated. The frontend deals requests in turn
unless told to follow KV caches. Source: the argument parsers of Dynamo 1.6.1.
"""

from __future__ import annotations

from typing import Final

from planner.serving_engines.roles import Role

VERSION: Final = "1.6.1"

MODES: Final[dict[Role, str]] = {"both": "agg", "prefill": "prefill", "decode": "decode"}

#: Flags this module may write beside the engine's own.
FLAGS: Final = {"--disaggregation-mode": "role", "--router-mode": "router"}


def worker_arguments(role: Role, engine_arguments: list[str]) -> list[str]:
    """Arguments of `python -m dynamo.vllm`, without the model: the role's mode, then vLLM's own flags."""
    if "--kv-transfer-config" in engine_arguments:
        raise ValueError("kv_transfer_config: Dynamo sets the connector itself")
    return ["--disaggregation-mode", MODES[role], *engine_arguments]


def frontend_arguments(*, follow_kv: bool) -> list[str]:
    """Arguments of `python -m dynamo.frontend`."""
    return ["--router-mode", "kv"] if follow_kv else []
