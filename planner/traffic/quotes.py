"""Quotes as RFC 4180 has them, found for a whole block at once.

A quoted field begins and ends with a quote, and a quote inside is written twice. So the bytes after an odd number
of quotes are inside, whatever they are, and two quotes side by side leave that as it was. This holds as long as
every opening quote stands at the beginning of a field (or right after a closing one: the pair that means one) and
every closing quote at the end of a field (or right before another).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.traffic.numbers import Bytes, Mask, Positions

QUOTE = ord('"')


@dataclass(frozen=True, slots=True)
class Quotes:
    """Of a block: where its quotes are, and for every byte whether it stands inside quotes (opening ones included)."""

    at: Positions
    inside: Mask

    @property
    def open_at_end(self) -> bool:
        """The last field goes on in the next block."""
        return len(self.at) % 2 == 1


def find_quotes(data: Bytes, delimiter: int) -> Quotes | None:
    """None where quotes stand otherwise than RFC 4180 has them."""
    is_quote = data == QUOTE
    at = np.flatnonzero(is_quote)
    opening, closing = at[0::2], at[1::2]
    before = data[np.maximum(opening - 1, 0)]
    opens = (opening == 0) | (before == delimiter) | (before == 10) | (before == QUOTE)
    after = data[np.minimum(closing + 1, len(data) - 1)]
    closes = (after == delimiter) | (after == 10) | (after == 13) | (after == QUOTE)
    if not opens.all() or not closes.all():
        return None
    inside = np.cumsum(is_quote, dtype=np.uint8) & 1  # the count may wrap: only its last bit matters
    return Quotes(at, inside.view(np.bool_))


def without(positions: Positions, starts: Positions, ends: Positions) -> bool:
    """Whether none of the sorted `positions` lies in any of the fields from `starts` to `ends`."""
    return bool((np.searchsorted(positions, starts) == np.searchsorted(positions, ends)).all())
