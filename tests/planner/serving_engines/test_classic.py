"""Rules of the schedulers that no flag starts."""

from __future__ import annotations

import pytest

from planner.serving_engines import classic
from planner.serving_engines.rules import expressible
from planner.simulation.knobs import (
    SCHEDULING_POLICIES,
    OrcaKnobs,
    PolicyKnobs,
    PrefillFirstKnobs,
    SarathiKnobs,
)


@pytest.mark.parametrize(
    ("knobs", "found"),
    [
        (SarathiKnobs(512, 128, 1_000), []),
        (SarathiKnobs(128, 128, 1_000), [("error", "chunk_size")]),
        (SarathiKnobs(200, 128, 1_000), [("warning", "chunk_size")]),
        (SarathiKnobs(512, 128, 255), [("error", "max_model_len")]),
        (OrcaKnobs(8, 4_096, 8 * 256), []),
        (OrcaKnobs(8, 4_096, 8 * 256 - 1), [("warning", "max_num_seqs")]),
        (OrcaKnobs(8, 4_095, 8 * 256), [("error", "max_model_len")]),
        (PrefillFirstKnobs(4_096, 128, 1_000), []),
        (PrefillFirstKnobs(4_095, 128, 1_000), [("error", "max_num_batched_tokens")]),
        (PolicyKnobs(512, 128, 1_000), []),
        (PolicyKnobs(200, 128, 1_000), [("warning", "max_num_batched_tokens")]),
    ],
)
def test_rules(knobs: classic.ClassicKnobs, found: list[tuple[str, str]]) -> None:
    violations = classic.violations(knobs, 4_096)
    assert [(violation.severity, violation.field) for violation in violations] == found


def test_policies() -> None:
    reach = {
        kind: [expressible(support, policy) for policy in SCHEDULING_POLICIES]
        for kind, support in classic.POLICIES.items()
    }
    assert reach == {
        SarathiKnobs: [True, False, False],
        OrcaKnobs: [False, False, False],
        PrefillFirstKnobs: [False, True, False],
        PolicyKnobs: [True, True, True],
    }
