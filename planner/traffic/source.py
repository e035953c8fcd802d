"""What whatever makes traffic may use: random numbers of its own, and stored traffics, by id."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from planner.traffic.errors import refuse
from planner.traffic.model import Traffic


@dataclass(frozen=True, slots=True)
class Source:
    rng: np.random.Generator
    others: Mapping[str, Traffic]

    def traffic(self, key: str) -> Traffic:
        found = self.others.get(key)
        if found is None:
            raise refuse("There is no such traffic here.", code="option", field="traffic")
        return found
