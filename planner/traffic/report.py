"""The hygiene report: what was left out, repaired and assumed on the way from a file to its traffic.

Each finding is of one kind. "excluded" rows are no requests, "repaired" values differ from the file's, "assumed"
is what the file does not say and somebody may know better, "noted" is kept as it stands.
"""

from __future__ import annotations

from typing import Literal

Kind = Literal["excluded", "repaired", "assumed", "noted"]
KINDS: tuple[Kind, ...] = ("excluded", "repaired", "assumed", "noted")
_OF: dict[str, Kind] = {
    **dict.fromkeys(("zero_output", "zero_prompt", "failed", "longer_than_model", "hash_ids_left_out",
                     "events_not_read"), "excluded"),
    **dict.fromkeys(("unsorted", "zero_output_kept", "grid_spread", "max_tokens_missing", "max_tokens_below_output",
                     "length_unit", "runs_joined", "blank_lines", "multi_line_fields"), "repaired"),
    **dict.fromkeys(("time_unit", "turn_service_assumed", "session_prompts", "distribution", "no_tail", "sessions",
                     "cumulative_counts", "encoding", "no_time_column", "rate_not_used", "survivors_only",
                     "times_start_again"), "assumed"),
}  # fmt: skip


def kind_of(code: str) -> Kind:
    """The kind of a finding, by its code."""
    return _OF.get(code, "noted")
