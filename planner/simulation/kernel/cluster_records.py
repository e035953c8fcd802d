"""What a cluster writes down beside its replicas' states: a request's way and its legs, events, links, the prefix pool.

Seconds, tokens, blocks, bytes; -1 is none, or not yet.
"""

from __future__ import annotations

import numpy as np

WAY = np.dtype(
    [
        ("arrival_s", np.float64),
        ("transfer_start_s", np.float64),
        ("kv_ready_s", np.float64),
        ("moved_bytes", np.float64),
        ("transfer_bytes", np.float64),  # this and the following: of the transfer on its way
        ("alone_bytes_per_s", np.float64),
        ("left_bytes", np.float64),  # at updated_s
        ("rate_bytes_per_s", np.float64),
        ("updated_s", np.float64),
        ("ends_s", np.float64),
        ("ttft_limit_s", np.float64),
        ("fetch_start_s", np.float64),
        ("fetch_s", np.float64),
        ("prompt", np.int32),
        ("output", np.int32),
        ("sender", np.int32),  # the prefill replica
        ("receiver", np.int32),  # the decode replica, by its position in its pool
        ("transfer_tokens", np.int32),
        ("transfers", np.int32),  # how many were begun: the number of the last
        ("on_its_way", np.int32),  # NO_TRANSFER, IN_LATENCY, ON_LINKS
        ("staged", np.int32),
        ("stagings", np.int32),
        ("abandoned", np.int32),
        ("computed_tokens", np.int32),  # push
        ("moved_tokens", np.int32),  # push
        ("prefill_sent", np.int32),  # push
        ("prefill_over", np.int32),
        ("handed_over", np.int32),  # it has a prefill leg
        ("fits", np.int32),
        ("refusal", np.int32),
        ("lost_kv", np.int32),
        ("present_tokens", np.int32),  # of the prompt, were on the decode side when it was staged there
        ("path", np.int32),  # of the transfer, in `paths`
        ("fetching", np.int32),  # it comes from the prefix pool
        ("rate_set", np.int32),  # used while links are shared out
    ],
    align=True,
)
NO_TRANSFER, IN_LATENCY, ON_LINKS = 0, 1, 2
AFTER_PREFILL_MODE, PULL_MODE, PUSH_MODE = 0, 1, 2
LEG = np.dtype(
    [
        ("entered_s", np.float64),
        ("rest_s", np.float64),
        ("entry", np.int64),
        ("ahead_pairs", np.int64),
        ("ahead_tokens", np.int32),
        ("booked_tokens", np.int32),
        ("booked_blocks", np.int32),
        ("tells", np.int32),  # its first token here will mean that its prompt is computed
        ("replica", np.int32),
        ("seen_waiting", np.int32),
        ("held", np.int32),  # prefill side: blocks kept after the end
        ("queued", np.int32),
        ("took_over", np.int32),  # decode side: it is among the committed
    ],
    align=True,
)
REPLICA = np.dtype(
    [
        ("outstanding_tokens", np.int64),
        ("queued", np.int64),
        ("queued_tokens", np.int64),
        ("prefill_tokens", np.int64),  # this and the following: see cluster_router
        ("active_blocks", np.int64),
        ("ahead_tokens", np.int64),
        ("ahead_pairs", np.int64),
        ("sent", np.int64),
        ("model", np.int64),
        ("asleep", np.int64),
        ("resting", np.int64),
        ("lost", np.int64),
    ]
)
EVENT = np.dtype(
    [
        ("time_s", np.float64),
        ("number", np.int64),
        ("kind", np.int32),
        ("subject", np.int32),
        ("tokens", np.int32),
        ("mark", np.int32),
        ("again", np.int32),
    ],
    align=True,
)
POOL = np.dtype(
    [
        ("most", np.int64),  # blocks
        ("size", np.int64),
        ("stored", np.int64),
        ("evicted", np.int64),
        ("oldest", np.int64),  # entry, -1 none
        ("newest", np.int64),
    ]
)
POOL_ENTRY = np.dtype(
    [
        ("count", np.int32),  # blocks; 0: it is not there
        ("older", np.int32),
        ("newer", np.int32),
    ]
)
LINK = np.dtype(
    [
        ("capacity_bytes_per_s", np.float64),
        ("busy_since_s", np.float64),
        ("busy_s", np.float64),
        ("bytes", np.float64),
        ("peak_bytes_per_s", np.float64),
        ("free_bytes_per_s", np.float64),  # this and the following are used while it is shared out
        ("without_rate", np.int64),
        ("active", np.int64),
        ("transfers", np.int64),
    ]
)
RUN = np.dtype(
    [
        ("think_s", np.float64),
        ("bytes_per_token", np.float64),
        ("message_s", np.float64),
        ("lease_s", np.float64),
        ("next_end_s", np.float64),  # of the transfers on links
        ("overlap_weight", np.float64),
        ("pool_bytes_per_token", np.float64),
        ("over_s", np.float64),  # when the last of those that are over was, or will be
        ("next_end", np.int64),  # its place in `active`
        ("active", np.int64),
        ("count", np.int64),
        ("prefill", np.int64),  # replicas
        ("decode", np.int64),
        ("mode", np.int64),
        ("chunk_tokens", np.int64),
        ("lease_ends", np.int64),
        ("closed_loop", np.int64),
        ("tell_finished", np.int64),  # as events: somebody is to know at the time
        ("arrivals_count", np.int64),  # arrivals may touch decode replicas
        ("queue_limited", np.int64),
        ("queue_requests", np.int64),
        ("queue_tokens", np.int64),
        ("warm_up_requests", np.int64),
        ("prefill_router", np.int64),
        ("decode_router", np.int64),
        ("keeps_accounts", np.int64),
        ("tells_prefills", np.int64),
        ("pooled", np.int64),  # there is a prefix pool
        ("prefill_turn", np.int64),
        ("decode_turn", np.int64),
        ("arrived", np.int64),
        ("sent", np.int64),  # closed loop
        ("over", np.int64),
        ("events", np.int64),
        ("numbered", np.int64),
        ("entries", np.int64),
        ("record", np.int64),
    ]
)
