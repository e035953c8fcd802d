"""Sessions found in what prompts share, and the model of generating/sessions.py fitted to them.

A request *continues* an earlier one when its prompt begins with all whole blocks of that one's prompt and is longer
than that prompt and its answer together. Where several do, the one with the most blocks is continued, then the latest;
each is continued once. A block that more than two whole blocks follow is no conversation's: that is where texts part
that many prompts begin with. What the first requests of sessions share is the system prompt: as many blocks as the
middle one of those that share any, where at least half do; there are as many different ones as uniform draws would
need to meet as often (the inverse of the sum of squared shares).

Sessions are cut at both ends of what is looked at. Whether a request is continued is therefore only asked of those
with time left for it, and a session counts as begun here only after the earlier ones had time to go on (PATIENCE mean
pauses); the number of turns is geometric, so its mean follows from the share that goes on. A prompt shorter than
a block leaves nothing to be recognised by: with large blocks the first turns count as requests of their own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from planner.traffic.fitting.arrivals import fitted_arrivals, short
from planner.traffic.fitting.lengths import fitted_lengths
from planner.traffic.generating.arrivals import Arrivals, OnOff, Replayed, starts
from planner.traffic.generating.lengths import Lengths
from planner.traffic.generating.sessions import Sessions
from planner.traffic.model import Integers, PrefixHashes, Traffic
from planner.traffic.shaping.arrays import take

FEWEST_CONTINUED = 50
FEWEST_STARTS = 50
MOST_FOLLOWERS = 2
PATIENCE = 5.0
MOST_SYSTEM_TOKENS = 1_000_000  # what a model may have
NONE = -1


@dataclass(frozen=True, slots=True)
class SessionFit:
    """`arrivals` and `lengths` by kind; their rate is that of requests, their prompt what is new in a turn."""

    sessions: Sessions
    arrivals: dict[str, Arrivals]
    lengths: dict[str, Lengths]


def fitted_sessions(traffic: Traffic, key: str) -> SessionFit | str:
    """Or why there are none: nothing says what prompts share, or too little of it goes on."""
    hashes = traffic.prefix_hashes
    if hashes is None:
        return "it has no prefix hashes"
    if hashes.block_tokens is None:
        return "its prefix hashes agree with no size of a block"
    parent = continued(traffic, hashes, hashes.block_tokens)
    turns = np.flatnonzero(parent != NONE)
    if len(turns) < FEWEST_CONTINUED:
        return f"{len(turns):,} requests continue an earlier one, and {FEWEST_CONTINUED} are needed"
    pause_s = float(np.mean(traffic.arrival_s[turns] - traffic.arrival_s[parent[turns]]))
    patience_s = min(PATIENCE * pause_s, traffic.duration_s / 4)
    goes_on = np.zeros(traffic.requests, bool)
    goes_on[parent[turns]] = True
    share = float(goes_on[traffic.arrival_s <= traffic.duration_s - patience_s].mean())
    first = np.flatnonzero((parent == NONE) & (traffic.arrival_s >= patience_s))
    if pause_s <= 0.0:
        return "all turns of a session come at once"
    if len(first) < FEWEST_STARTS:
        return f"{len(first):,} sessions begin, and {FEWEST_STARTS} are needed"
    mean_turns = min(200.0, 1.0 / max(1e-3, 1.0 - share))
    system_blocks, prompts = _system_prompts(hashes, np.flatnonzero(parent == NONE))
    system_tokens = min(MOST_SYSTEM_TOKENS, system_blocks * hashes.block_tokens)
    sessions = Sessions(
        mean_turns=short(mean_turns), mean_pause_s=min(86_400.0, short(pause_s)), system_tokens=system_tokens,
        system_prompts=prompts, longest_tokens=max(2, int(traffic.prompt_tokens.max())),
        block_tokens=min(4_096, hashes.block_tokens),
    )  # fmt: skip
    begun = replace(take(traffic, first, "starts"), prefix_hashes=None)
    begun = replace(begun, arrival_s=begun.arrival_s - begun.arrival_s[0])
    processes = {
        kind: _rounded(starts(process, 1 / sessions.mean_turns, 0.0))
        for kind, process in fitted_arrivals(begun, key).items()
        if kind != "replayed"  # its counts are of requests, not of sessions
    }
    new = _new_tokens(traffic, parent, system_tokens)
    asked = np.sort(np.concatenate((turns, first)))
    texts = replace(take(traffic, asked, "turns"), prompt_tokens=new[asked], prefix_hashes=None)
    laws = fitted_lengths(texts, key)
    del laws["empirical"]  # it draws whole prompts
    return SessionFit(sessions, processes, laws) if processes else "its sessions begin all at once"


def whole_blocks(traffic: Traffic) -> PrefixHashes | None:
    """The hashes without those of partial blocks: some traces name such a block as the whole one that comes of it,
    others do not, and a cache keeps whole ones."""
    hashes = traffic.prefix_hashes
    if hashes is None or hashes.block_tokens is None:
        return hashes
    counts = np.diff(hashes.offsets)
    kept = _whole_counts(traffic, hashes, hashes.block_tokens)
    within = np.arange(len(hashes.flat)) - np.repeat(hashes.offsets[:-1], counts)
    offsets = np.concatenate(([0], np.cumsum(kept))).astype(np.int64)
    return PrefixHashes(hashes.flat[within < np.repeat(kept, counts)], offsets, hashes.block_tokens)


def _rounded(process: Arrivals) -> Arrivals:
    if isinstance(process, OnOff):
        return replace(process, on_rate_per_s=short(process.on_rate_per_s))
    return (
        process if isinstance(process, Replayed) else replace(process, rate_per_s=short(process.rate_per_s))
    )


def continued(traffic: Traffic, hashes: PrefixHashes, block_tokens: int) -> Integers:
    """int64[N]: the request that each continues, NONE where it begins something."""
    whole = _whole_counts(traffic, hashes, block_tokens)
    names, codes = np.unique(hashes.flat, return_inverse=True)
    last = np.full(traffic.requests, NONE, np.int64)  # code of the last whole block
    has = whole > 0
    last[has] = codes[hashes.offsets[:-1][has] + whole[has] - 1]
    is_last = np.zeros(len(names), bool)
    is_last[last[has]] = True
    is_last &= _followers(codes, hashes.offsets, whole, len(names)) <= MOST_FOLLOWERS
    parent = np.full(traffic.requests, NONE, np.int64)
    waiting: dict[int, int] = {}  # by last whole block, the latest request that nobody continues yet
    grown = traffic.prompt_tokens + traffic.output_tokens
    for request in range(traffic.requests):
        start = hashes.offsets[request]
        own = codes[start : start + whole[request]]
        for code in own[is_last[own]][::-1].tolist():
            earlier = waiting.get(code)
            if earlier is not None and traffic.prompt_tokens[request] > grown[earlier]:
                parent[request] = earlier
                del waiting[code]
                break
        if has[request] and is_last[last[request]]:
            waiting[int(last[request])] = request
    return parent


def _whole_counts(traffic: Traffic, hashes: PrefixHashes, block_tokens: int) -> Integers:
    """int64[N]: how many of a prompt's blocks are whole."""
    return np.minimum(traffic.prompt_tokens // block_tokens, np.diff(hashes.offsets))


def _followers(codes: Integers, offsets: Integers, whole: Integers, names: int) -> Integers:
    """How many different whole blocks follow each block, int64[names]."""
    request = np.repeat(np.arange(len(whole)), np.diff(offsets))
    within = np.arange(len(codes)) - offsets[:-1][request]
    at = np.flatnonzero(within + 1 < whole[request])
    pairs = np.unique(codes[at] * np.int64(names) + codes[at + 1])
    return np.bincount(pairs // names, minlength=names).astype(np.int64)


def _system_prompts(hashes: PrefixHashes, first: Integers) -> tuple[int, int]:
    """Blocks that sessions begin with together, and how many different such beginnings there are."""
    seen: set[int] = set()
    shared = []
    for request in first.tolist():
        own = hashes.flat[hashes.offsets[request] : hashes.offsets[request + 1]].tolist()
        shared.append(next((at for at, name in enumerate(own) if name not in seen), len(own)))
        seen.update(own)
    found = np.array(shared)
    if np.mean(found > 0) < 0.5:
        return 0, 1
    blocks = int(np.median(found[found > 0]))
    long = first[np.diff(hashes.offsets)[first] >= blocks]
    _, uses = np.unique(hashes.flat[hashes.offsets[long] + blocks - 1], return_counts=True)
    return blocks, int(np.clip(round(1.0 / float(np.sum((uses / uses.sum()) ** 2))), 1, 100_000))


def _new_tokens(traffic: Traffic, parent: Integers, system_tokens: int) -> Integers:
    """What each turn adds to the text: int64[N], at least 1."""
    before = np.where(parent == NONE, system_tokens, 0)
    goes_on = parent != NONE
    before[goes_on] = (traffic.prompt_tokens + traffic.output_tokens)[parent[goes_on]]
    return np.maximum(1, traffic.prompt_tokens - before)
