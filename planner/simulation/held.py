"""What a replica holds over time, in plain Python: the account that `kernel.held` keeps compiled."""

from __future__ import annotations

from dataclasses import dataclass, field

from planner.simulation.arrays import Floats
from planner.simulation.time_bins import add_held, add_step, new_bins, no_bins


@dataclass(slots=True)
class Held:
    """Blocks and seats held since `since_s`, block-seconds before; bins float64[bins, SUMS] where bin_s > 0."""

    bin_s: float = 0.0
    bins: Floats = field(default_factory=no_bins)
    blocks: int = 0
    seats: int = 0
    since_s: float = 0.0
    kv_block_s: float = 0.0

    @classmethod
    def from_start(cls, bin_s: float) -> Held:
        return cls(bin_s, new_bins() if bin_s > 0.0 else no_bins())

    @property
    def series(self) -> Floats | None:
        return self.bins if self.bin_s > 0.0 else None

    def settle(self, now_s: float) -> None:
        """Until now it was held: onto the account."""
        self.kv_block_s += self.blocks * (now_s - self.since_s)
        if self.bin_s > 0.0:
            self.bin_s = add_held(
                self.bins, self.bin_s, self.since_s, now_s, float(self.blocks), float(self.seats)
            )
        self.since_s = now_s

    def hold(self, now_s: float, blocks: int, seats: int) -> None:
        """From now on this is held."""
        self.settle(now_s)
        self.blocks, self.seats = blocks, seats

    def give_up(self, now_s: float, blocks: int) -> None:
        """So many blocks come free at a time that is no schedule's."""
        self.hold(now_s, self.blocks - blocks, self.seats)

    def close(self, end_s: float) -> None:
        """The run is over."""
        if end_s > self.since_s:
            self.settle(end_s)

    def note_step(self, start_s: float, end_s: float, tokens: int, emitted: int) -> None:
        if self.bin_s > 0.0:
            self.bin_s = add_step(self.bins, self.bin_s, start_s, end_s, float(tokens), float(emitted))
