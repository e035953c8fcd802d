"""A small server that logs as vLLM does: decodes first, chunks within the budget, times of a known law.

Written from the documented form of the log, with what the log leaves out kept beside it, so that what is made of the
log can be compared with what was.
"""

from dataclasses import dataclass

import numpy as np

from calibration.steptime import Chunk, StepShape

HEAD = """\
INFO 10-05 11:59:00 [api_server.py:1839] vLLM API server version {version}
(EngineCore_DP0 pid=7) INFO 10-05 11:59:01 [core.py:93] Initializing a V1 LLM engine (v{version}) with config: \
model='m', enable_prefix_caching=False, enable_chunked_prefill=True
INFO 10-05 11:59:02 [scheduler.py:230] Chunked prefill is enabled with max_num_batched_tokens={budget}.
(EngineCore_DP0 pid=7) INFO 10-05 11:59:20 [kv_cache_utils.py:1291] GPU KV cache size: {pool:,} tokens
"""


def law(shape: StepShape) -> float:
    n, b, _, C, _, P, _ = shape.features
    return (
        0.004
        + (0.006**3 + (3e-5 * n) ** 3) ** (1 / 3)
        + 1e-5 * b
        + 6e-8 * C * (1.6 if P else 1.0)
        + 1.5e-9 * P
    )


@dataclass
class Served:
    text: str
    shapes: list[StepShape]


def serve(
    *, requests=120, budget=512, pool=60_000, usage=True, version="0.27.1", seed=0, first=0, noise=0.01, timer=1.0,
    rate=6.0,
) -> Served:  # fmt: skip
    """`first`: iterations cut from the beginning of the log. `timer`: share of a step's time that is logged."""
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(1 / rate, requests))
    waiting = [[int(p), int(o), float(a), 0, 0] for p, o, a in zip(
        rng.integers(20, 1_500, requests), rng.integers(2, 120, requests), arrivals, strict=True)]  # fmt: skip
    running, lines, shapes, now = [], [], [], 0.0
    while waiting or running:
        if not running and waiting[0][2] > now:
            now = waiting[0][2]
        while waiting and waiting[0][2] <= now and len(running) < 24:
            running.append(waiting.pop(0))
        decodes = [r for r in running if r[3] >= r[0]]
        left, chunks = budget - len(decodes), []
        for r in running:
            if r[3] < r[0] and left > 0:
                take = min(left, r[0] - r[3])
                chunks.append((r, take))
                left -= take
        shape = StepShape(
            tuple(r[3] + r[4] - 1 for r in decodes),
            tuple(Chunk(q, r[3], r[3] + q == r[0]) for r, q in chunks),
        )
        seconds = law(shape) * float(np.exp(noise * rng.standard_normal()))
        now += seconds + 0.0005
        for r in decodes:
            r[4] += 1
        for r, take in chunks:
            r[3] += take
            r[4] += r[3] == r[0]
        running = [r for r in running if r[4] < r[1]]
        held = sum(-(-(r[3] + max(0, r[4] - 1)) // 16) * 16 for r in running)
        second = int(now)
        where = "[loggers.py:182] Engine 000: " if usage else "[core.py:349] "
        stamp = f"INFO 10-05 12:{second // 60:02d}:{second % 60:02d} {where}"
        tail = f", GPU KV cache usage: {100 * held / pool:.1f}%" if usage else ""
        lines.append(
            f"{stamp}Iteration({len(shapes)}): {len(chunks)} context requests, {sum(q for _, q in chunks)} context "
            f"tokens, {len(decodes)} generation requests, {len(decodes)} generation tokens, iteration elapsed time: "
            f"{seconds * timer * 1e3:.2f} ms{tail}"
        )
        if len(shapes) % 40 == 0:
            lines.append(
                "INFO 10-05 12:00:00 [loggers.py:127] Engine 000: Avg prompt throughput: 12.0 tokens/s"
            )
        shapes.append(shape)
    head = HEAD.format(version=version, budget=budget, pool=pool)
    kept = [line for line in lines if "Iteration(" in line][first:] if first else lines
    return Served(head + "\n".join(kept) + "\n", shapes)
