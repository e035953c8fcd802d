"""A column that grows chunk by chunk in one piece of memory.

Chunks kept in a list and joined at the end are there twice for a moment, and what is freed then lies between what
stays, where the next large array does not fit. Growing in place costs neither: the system moves pages, not bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

_LEAST = 1 << 16
PART = 100_000
Scalar = TypeVar("Scalar", bound=np.generic)


class Growing(Generic[Scalar]):
    """Holds `len()` values. A chunk of a wider type (floats after whole numbers) widens the whole column."""

    def __init__(self) -> None:
        self._array: NDArray[Scalar] | None = None
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def append(self, chunk: NDArray[Scalar]) -> None:
        if self._array is None:
            self._array = np.empty(max(_LEAST, len(chunk)), chunk.dtype)
        elif chunk.dtype != self._array.dtype:
            self._array = self._array.astype(np.result_type(chunk.dtype, self._array.dtype))
        end = self._length + len(chunk)
        if end > len(self._array):
            # Nobody else holds this array: `taken` gives it away and forgets it.
            self._array.resize(max(end, len(self._array) + len(self._array) // 8), refcheck=False)
        self._array[self._length : end] = chunk
        self._length = end

    def taken(self) -> NDArray[Scalar]:
        """All values, at least one; the column is empty afterwards."""
        if self._array is None:
            raise ValueError("nothing was added")
        array, self._array = self._array, None
        array.resize(self._length, refcheck=False)
        self._length = 0
        return array


def parts(count: int, size: int = PART) -> Iterator[slice]:
    """Slices of an array of length `count`, so that what is worked out on the way stays small."""
    return (slice(start, min(start + size, count)) for start in range(0, count, size))
