"""One compiled entry for each assembler; nothing is compiled before it is called."""

from __future__ import annotations

from collections.abc import Callable

from calibration.steptime.scalar import StepTimeArrays
from planner.simulation.arrays import Ints
from planner.simulation.kernel import assemble_apart, assemble_mixed, assemble_prefill_first
from planner.simulation.kernel.assemble import bound
from planner.simulation.kernel.compiled import entry, inlined
from planner.simulation.kernel.decode_run import only_decodes
from planner.simulation.kernel.loop import advance
from planner.simulation.kernel.state import STATE, State
from planner.simulation.kernel.step_time import MODEL, as_floats
from planner.simulation.profile import APART, IN_ORDER, PREFILL_FIRST

PARTS = {
    IN_ORDER: ("in_order", assemble_mixed.assemble_mixed, assemble_mixed.queue_is_shut),
    APART: ("apart", assemble_apart.assemble_apart, assemble_apart.queue_is_shut),
    PREFILL_FIRST: (
        "prefill_first",
        assemble_prefill_first.assemble_prefill_first,
        assemble_prefill_first.queue_is_shut,
    ),
}


def _of_arrays(advance: Callable[[Ints, Ints, int], int]) -> Callable[[State, StepTimeArrays, int], int]:
    def advance_state(state: State, model: StepTimeArrays, most_schedules: int) -> int:
        models = as_floats([model])
        return advance(STATE.rows_of([state]), MODEL.rows_of(models), most_schedules)

    return advance_state


#: By `Profile.assembler`: make schedules until all is done (see `loop.advance`).
ADVANCE = {
    code: _of_arrays(
        entry(
            bound(
                advance,
                f"advance_{name}",
                assemble=assemble,
                only_decodes=inlined(
                    bound(only_decodes, f"only_decodes_{name}", queue_is_shut=queue_is_shut)
                ),
            )
        )
    )
    for code, (name, assemble, queue_is_shut) in PARTS.items()
}
