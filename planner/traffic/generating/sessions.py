"""Sessions: requests that belong together and share the beginning of their prompts.

A session is one text that grows: a system prompt that many sessions share, then what the user sends and what the model
answers, turn by turn. Turn k is a request whose prompt is the text so far; its prefix hashes name the blocks of that
text, so turn k + 1 finds what turn k left in a prefix cache, and the first turn finds the system prompt. A hash stands
for (session, block) or, for blocks that lie wholly inside the system prompt, for (system prompt, block): the format of
traces that planner/simulation/prefix.py reads. The number of turns is geometric; the pause is exponential and
counts from one request to the next of its session, the answer included. A session ends early when its next prompt
would be longer than the longest context. Sessions have been coming for a while before time 0, so that the mix of
turns is that of steady use from the first request on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from planner.traffic import described
from planner.traffic.model import MAX_TOKENS, Floats, Integers, PrefixHashes
from planner.traffic.shaping.prefixes import check_count, mixed

MOST_TURNS = 1_000
WARM_PAUSES = 6  # of the mean session length: after so long all but 0.3 % of older sessions are over


@dataclass(frozen=True, slots=True, kw_only=True)
class Sessions:
    TITLE: ClassVar = "Sessions with growing prompts"
    ABOUT: ClassVar = (
        "Lengths are of what is new in each turn; prompts hold the system prompt and the conversation so far, and say "
        "which blocks they share."
    )

    mean_turns: float = described.number("Turns", "on average", default=4.0, low=1, high=200)
    mean_pause_s: float = described.number(
        "Pause",
        "s on average",
        default=30.0,
        above=0,
        high=86_400,
        help="From a request to the next of its session.",
    )
    system_tokens: int = described.whole("System prompt", "tokens", default=0, low=0, high=1_000_000)
    system_prompts: int = described.whole(
        "Different system prompts",
        "in all",
        default=1,
        low=1,
        high=100_000,
        help="Sessions choose one at random.",
    )
    longest_tokens: int = described.whole(
        "Longest prompt", "tokens", default=131_072, low=2, high=MAX_TOKENS, help="A session ends before it."
    )
    block_tokens: int = described.whole("Prefix blocks of", "tokens", default=64, low=1, high=4_096)

    @property
    def warm_up_s(self) -> float:
        return WARM_PAUSES * self.mean_turns * self.mean_pause_s if self.mean_turns > 1 else 0.0


@dataclass(frozen=True, slots=True)
class Turns:
    """All requests of all sessions, in no order: session, number in it, arrival, lengths."""

    session: Integers
    system: Integers
    arrival_s: Floats
    prompt_tokens: Integers
    output_tokens: Integers


def turns_per_session(sessions: Sessions, count: int, rng: np.random.Generator) -> Integers:
    return np.minimum(rng.geometric(1 / sessions.mean_turns, count), MOST_TURNS).astype(np.int64)


def grow(
    sessions: Sessions,
    starts_s: Floats,
    turns: Integers,
    new: Integers,
    output: Integers,
    rng: np.random.Generator,
) -> Turns:
    """Turns of sessions that begin at `starts_s`; `new` and `output` are tokens of every turn, sessions in order."""
    session = np.repeat(np.arange(len(turns)), turns)
    first = np.repeat(np.cumsum(turns) - turns, turns)
    pause_s = rng.exponential(sessions.mean_pause_s, len(session))
    pause_s[np.arange(len(session)) == first] = 0.0
    waited = np.cumsum(pause_s)
    arrival_s = starts_s[session] + waited - waited[first]
    added = np.cumsum(new + output)
    before = added - (new + output)  # of all turns before, of this session and of earlier ones
    prompt = sessions.system_tokens + new + before - before[first]
    system = rng.integers(0, sessions.system_prompts, len(turns))[session]
    # Prompts only grow, so what is dropped is the rest of a session; its first turn is cut to fit instead.
    is_first = np.arange(len(session)) == first
    prompt = np.where(is_first, np.minimum(prompt, sessions.longest_tokens), prompt)
    kept = prompt <= sessions.longest_tokens
    return Turns(session[kept], system[kept], arrival_s[kept], prompt[kept], output[kept])


def block_hashes(sessions: Sessions, turns: Turns, seed: int) -> PrefixHashes:
    """Of the turns in their order. TrafficError for more than a file may have."""
    size = sessions.block_tokens
    counts = -(-turns.prompt_tokens // size)
    check_count(int(counts.sum()), "requests")
    offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    block = np.arange(int(offsets[-1])) - np.repeat(offsets[:-1], counts)
    # The system prompt's own whole blocks; names below 2^60 are of sessions, above of system prompts.
    is_system = block < sessions.system_tokens // size
    owner = np.where(is_system, np.repeat(turns.system, counts) + 2**33, np.repeat(turns.session, counts))
    names = owner.astype(np.uint64) * np.uint64(2**27) + block.astype(np.uint64)
    return PrefixHashes(mixed(names, seed), offsets, size)
