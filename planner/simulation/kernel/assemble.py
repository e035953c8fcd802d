"""The assembler in use: the one place where serving engines differ.

An assembler makes one schedule. It reads the queues and the running list, takes and frees blocks, admits and
preempts, and leaves the batch in this form for the loop, which knows no engine:

- every request still in the steady set gets its one token,
- everybody else who got tokens is a row of `rows` (`now.rows` of them, the admitted from `now.admitted` on),
- `now.loose` and `loose` list the running requests outside the steady set from before the admissions, in order.

`queue_is_shut` says whether nobody can be admitted until a request leaves, which lets `decode_run` go on without
looking at the queue. With a second assembler these two become a choice by an integer among the knobs.
"""

from planner.simulation.kernel.assemble_mixed import assemble_mixed as assemble
from planner.simulation.kernel.assemble_mixed import queue_is_shut

__all__ = ["assemble", "queue_is_shut"]
