"""The compiled simulator that plans run: the reference's rules at tens of millions of tokens a second.

`simulate` takes and returns what `reference.simulate` does. The first call for an assembler loads its machine code
from numba's cache, or compiles it (ten seconds of CPU time, once): `warm_up` does that at a worker's start.
"""

from __future__ import annotations

import numpy as np

from calibration.steptime.scalar import StepTimeArrays, constant_model
from planner.simulation.arrays import Floats, Ints
from planner.simulation.clocks import check_clock
from planner.simulation.kernel.entries import ADVANCE
from planner.simulation.kernel.loop import FINISHED, RECORD_FULL
from planner.simulation.kernel.results import Recorder, outcome
from planner.simulation.kernel.state import build
from planner.simulation.knobs import Knobs, VllmKnobs
from planner.simulation.outcome import Outcome
from planner.simulation.prefix import PrefixBlocks
from planner.simulation.workload import prepare

WITHOUT_PAUSE = 1 << 62


def simulate(
    arrival_s: Floats,
    prompt_tokens: Ints,
    output_tokens: Ints,
    priority: Ints | None,
    knobs: Knobs,
    step_time: StepTimeArrays | None = None,
    clock: str = "seconds",
    record_steps: bool = False,
    host_gap_s: float = 0.0,
    tie: Ints | None = None,
    max_tokens: Ints | None = None,
    prefix: PrefixBlocks | None = None,
    assumed_hit_share: float = 0.0,
    bin_s: float = 0.0,
) -> Outcome:
    """Run the workload to its end; parameters and errors as in `reference.simulate`."""
    check_clock(clock, step_time)
    profile = knobs.profile
    workload = prepare(
        arrival_s, prompt_tokens, output_tokens, priority, profile, tie, max_tokens, prefix, assumed_hit_share
    )
    advance = ADVANCE[profile.assembler]
    state = build(
        workload,
        profile,
        count_steps=clock == "steps",
        record=record_steps,
        host_gap_s=host_gap_s,
        bin_s=bin_s,
    )
    model = constant_model(0.0) if step_time is None else step_time
    recorder = Recorder()
    status = RECORD_FULL
    while status == RECORD_FULL:
        status = advance(state, model, WITHOUT_PAUSE)
        if record_steps:
            recorder.drain(state)
    if status != FINISHED:
        raise RuntimeError(
            "the simulation came to a stop with requests left: this is a defect, please report it"
        )
    return outcome(
        state, workload, arrival_s, prompt_tokens, output_tokens, recorder if record_steps else None
    )


def warm_up(*knobs: Knobs) -> None:
    """Load or compile the kernel for the assemblers of these knobs; by default for vLLM's alone."""
    one = np.ones(1, dtype=np.int64)
    for each in knobs or (VllmKnobs(max_num_batched_tokens=1, max_num_seqs=1, num_blocks=1),):
        simulate(np.zeros(1), one, one, None, each, constant_model(1.0))
