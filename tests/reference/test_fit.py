"""The fit on real step times: a few points chosen by shape predict all other rows of the replay table."""

import json

import pytest

from calibration.sources.choosing import choose_points, in_domain
from calibration.sources.fit_check import fit_check
from calibration.sources.step_csv import read_step_csv
from calibration.steptime import Chunk, StepSample, StepShape, features_of, fit, gate, heldout_report

KV_TOKENS = 41_408  # what that server had room for


@pytest.fixture(scope="module")
def table(reference_data):
    return read_step_csv(reference_data / "replay" / "rtx4090-llama-3.1-8b" / "steps.csv.gz")


def test_forty_points_meet_the_bars_on_every_other_row(table):
    check = fit_check(table, points=40, seeds=5)
    assert check.failures == []
    assert check.scored > 6500
    assert all(seed.violations == 0 for seed in check.seeds)


def test_eighty_points_do_better_still(table):
    check = fit_check(table, points=80, seeds=3)
    assert check.mean("median") < 0.015
    assert check.mean("p90") < 0.055
    assert check.mean("p95") < 0.075


def test_an_imported_table_covers_what_its_server_can_run(table):
    possible = [s for s in table if in_domain(s.shape, KV_TOKENS)]
    roles = choose_points(possible, 400, seed=0)
    model = fit(roles, seed=0, bootstrap=20)
    report = heldout_report(model, [s for s in roles if s.role == "heldout"])
    assert gate(report, "gpu").passed
    assert sum(row.covered for row in report.rows) / len(report.rows) > 0.98
    assert 0.85 < report.inside < 0.97  # at a level of 0.9
    several = StepShape((), tuple(Chunk(200, 0) for _ in range(10)))
    last_tokens = StepShape((), (Chunk(3, 1500),))
    beyond = StepShape((), (Chunk(4096, 0),))
    assert model.covered(features_of([several, last_tokens, beyond])).tolist() == [True, True, False]


def test_a_published_prefill_curve_is_flat_and_then_linear(reference_data):
    """Case A42: prefill of Llama-2-7B in JetStream; a line through the origin is nine times off at 16 tokens."""
    cases = json.loads((reference_data / "cases" / "measured-cases.json").read_text())
    found = cases["cases"] if isinstance(cases, dict) else cases
    arms = next(case for case in found if case["id"] == "A42")["arms"]
    shapes = {arm["params"]["n"]: StepShape((), (Chunk(arm["params"]["n"], 0),)) for arm in arms}
    model = fit(
        [StepSample(shapes[a["params"]["n"]], (a["metrics"]["prefill_s"],)) for a in arms], bootstrap=0
    )
    seconds = dict(zip(shapes, model.predict_s(features_of(shapes.values())), strict=True))
    assert 0.9 <= seconds[64] / seconds[16] <= 1.25
    assert 1.8 <= seconds[2048] / seconds[1024] <= 2.2
    assert all(abs(seconds[a["params"]["n"]] / a["metrics"]["prefill_s"] - 1) < 0.05 for a in arms)
