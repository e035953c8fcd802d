"""The simulator's machine code, made before anybody waits for it: at a worker's start, or by the first job if it comes
sooner.

    python -m planner.simulation.ready

compiles the kernels into the cache (compiled.cache_folder) and notes there that it has, first for vLLM's plans, then
for the other engines. Who comes while it runs waits for it, who comes later finds nothing to do. It ends with the
process that started it. A process of its own: compiling holds the interpreter for seconds at a time.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from calibration.engine.parent import end_with
from planner.simulation import kernel
from planner.simulation.kernel import cluster
from planner.simulation.kernel.compiled import cache_folder, kernel_version
from planner.simulation.knobs import Knobs, PolicyKnobs, SglangKnobs, VllmKnobs

#: One of each assembler: vLLM's; that of TensorRT-LLM, and of the policies that every plan is compared with; SGLang's.
IN_ORDER: Final[Knobs] = VllmKnobs(max_num_batched_tokens=1, max_num_seqs=1, num_blocks=1)
APART: Final[Knobs] = PolicyKnobs(1, 1, 1, policy="fair-share")
PREFILL_FIRST: Final[Knobs] = SglangKnobs(1, 1, 100)
VLLM, ALL = "vllm", "all"
PARENT: Final = "RIDGELINE_WARM_UP_PARENT"
ASK_S: Final = 0.25


def is_ready(engine: str = ALL) -> bool:
    """Nothing is left to compile for plans of this engine (ALL: of any); also where machine code can be kept nowhere,
    since waiting would change nothing."""
    stamp = _stamp(VLLM if engine == VLLM else ALL)
    return stamp is None or stamp.exists()


def start() -> subprocess.Popen[bytes]:
    """A process that compiles, unless somebody does or has."""
    return subprocess.Popen(
        [sys.executable, "-m", "planner.simulation.ready"],
        env=os.environ | {PARENT: str(os.getpid())},
        stdin=subprocess.DEVNULL,
        cwd=Path(__file__).resolve().parents[2],
    )


def wait(on_wait: Callable[[], None], engine: str = ALL) -> None:
    """Return when what plans of this engine need is compiled. `on_wait` is asked several times a second; what it
    raises ends the wait.

    Where compiling fails the caller goes on: the simulator then compiles what it needs by itself, and says why not.
    """
    if is_ready(engine):
        return
    process = start()
    try:
        while process.poll() is None and not is_ready(engine):
            on_wait()
            time.sleep(ASK_S)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def compile_for_vllm() -> None:
    kernel.warm_up(IN_ORDER)
    cluster.warm_up(IN_ORDER)
    kernel.warm_up(APART)


def compile_for_others() -> None:
    kernel.warm_up(PREFILL_FIRST)
    cluster.warm_up(APART, PREFILL_FIRST)


def _stamp(stage: str) -> Path | None:
    folder = cache_folder()
    return None if folder is None else folder / f"ready-{stage}-{kernel_version()}"


def main() -> None:
    if PARENT in os.environ:
        end_with(int(os.environ[PARENT]))
    for stage, work in ((VLLM, compile_for_vllm), (ALL, compile_for_others)):
        _once(_stamp(stage), work)


def _once(stamp: Path | None, work: Callable[[], None]) -> None:
    if stamp is None or stamp.exists():
        return
    stamp.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with stamp.with_name(f"{stamp.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.exists():
            work()
            stamp.touch()


if __name__ == "__main__":
    main()
