"""Shaping: one traffic becomes another by operations in order, recorded so that it can be made again.

recipe.py parses, applies and repeats · choosing.py, timing.py, kinds.py, lengths.py are the operations ·
arrays.py and prefixes.py keep together what belongs to a request."""

from planner.traffic.shaping.recipe import (
    MAX_OPERATIONS,
    OPERATIONS,
    Operation,
    Parent,
    merged_ids,
    operation_dict,
    parse_operations,
    remake,
    shape,
)

__all__ = [
    "MAX_OPERATIONS",
    "OPERATIONS",
    "Operation",
    "Parent",
    "merged_ids",
    "operation_dict",
    "parse_operations",
    "remake",
    "shape",
]
