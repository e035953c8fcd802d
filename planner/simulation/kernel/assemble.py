"""Where serving engines differ: the two parts that an assembler brings, one entry compiled for each assembler.

An assembler makes one schedule. It reads the queue and the running list, takes and frees blocks, admits and
preempts, and leaves the batch in this form for the loop, which knows no engine:

- every request still in the steady set gets its one token, or `now.paused` says that none of them does,
- everybody else who got tokens is a row of `rows` (`now.rows` of them, the admitted from `now.admitted` on),
- `now.loose` and `loose` list the running requests outside the steady set from before the admissions, in order.

`queue_is_shut` says whether nobody can be admitted until a request leaves, which lets `decode_run` go on without
looking at the queue. The functions of the loop name both; `bound` makes copies of those functions in which the names
mean one assembler's parts, so a plan for one engine compiles only what that engine needs.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar, cast

from planner.simulation.kernel.state import State

Function = TypeVar("Function", bound=Callable[..., Any])


def assemble(state: State) -> None:
    """Make one schedule: rows, blocks and queues of the next step."""
    raise NotImplementedError


def queue_is_shut(state: State) -> bool:
    """While only decodes run and nobody leaves: can the head of the queue not be admitted, now or later?"""
    raise NotImplementedError


def bound(function: Function, name: str, **parts: Callable[..., Any]) -> Function:
    """A copy of the function, not compiled yet, in which global names mean these parts."""
    plain = cast(FunctionType, function)
    copy = FunctionType(plain.__code__, {**plain.__globals__, **parts}, name, plain.__defaults__)
    copy.__qualname__ = name
    return cast(Function, copy)
