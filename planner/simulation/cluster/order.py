"""What happens in a cluster, and in which order at one instant.

The simulation goes from event to event. At equal times:

  0  PREFILLED    a prompt is computed, its first token is out: the router and the prefix pool know
  1  FINISHED     a request's last token is out: its client and the router know
  2  ENDS         a transfer ends, the one that joined its links first before the others; blocks come free, and the
                  request is ready on the decode side
  3  JOINS        a transfer's latency is over: it begins to load its links
  4  COMPUTED     push: a step has ended that computed a chunk, which is sent on unless the chunk before is on its way
  5  HANDED_OVER  a prefilled request reaches the decode pool's router
  6  PREALLOCATED push: word that the decode side has blocks reaches the prefill replica
  7  LEASE_ENDS   nobody began to pull a KV cache in time
  8  LOST         a replica makes no more schedules; or, its last step over, gives up its requests
  9  ARRIVAL      a request reaches the cluster's router, which sends it on at once
 10  a replica's schedule, the prefill replicas' before the decode replicas', in the order of their pools

Within one kind: the order in which the events came up. A schedule at time t therefore knows all that happened up to
and including t, and what it causes at t is dealt with before the next replica's schedule. A replica's own results
(who emitted a token, who is finished and gives back seat and blocks) are known to its own next schedule as
`planner.simulation.reference` says, and to others as events at the end of the step.

A replica with nothing to do, or that made an empty schedule with no results outstanding, sleeps until an event
touches it, and then makes its next schedule at that event's time.
"""

from __future__ import annotations

(
    PREFILLED,
    FINISHED,
    ENDS,
    JOINS,
    COMPUTED,
    HANDED_OVER,
    PREALLOCATED,
    LEASE_ENDS,
    LOST,
    ARRIVAL,
    SCHEDULE,
) = range(11)

#: Why a request was not served: 0 it was.
SERVED, NEVER_FITS, QUEUE_FULL, NO_REPLICA, TOO_LATE = range(5)
REFUSALS = (
    "served",
    "never fits",
    "queue full",
    "no replica left that could serve it",
    "predicted TTFT above its limit",
)
