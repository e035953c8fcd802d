"""Figures: JSON without NaN, units on every axis, a table beside, shapes and dashes as second cue."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from calibration import charts
from calibration.steptime import Chunk, StepSample, StepShape, StepTimeModel, fit


@pytest.fixture(scope="module")
def model(fitted_samples) -> StepTimeModel:
    return fit([s for s in fitted_samples if s.role == "fit"], seed=0, bootstrap=8)


def named(figure: dict[str, Any]) -> list[str]:
    return [t["name"] for t in figure["data"] if t.get("name") and t.get("showlegend", True)]


@pytest.mark.parametrize("name", charts.FIGURES)
@pytest.mark.parametrize("fitted", [True, False])
def test_figures_are_json_with_units_and_a_table(name, fitted, fitted_samples, model) -> None:
    figure = charts.figure(name, fitted_samples, model if fitted else None)
    json.dumps(figure, allow_nan=False)
    for axis in ("xaxis", "yaxis"):
        assert re.search(r"\[[^\]]+\]$", figure["layout"][axis]["title"]["text"])
    assert bool(figure["table"]["rows"]) != bool(figure["empty"])
    for row in figure["table"]["rows"]:
        assert len(row) == len(figure["table"]["columns"])


@pytest.mark.parametrize("name", charts.FIGURES)
def test_nothing_measured_says_so(name) -> None:
    figure = charts.figure(name, [], None)
    assert figure["empty"]
    assert figure["table"]["rows"] == []


def test_curves_differ_in_colour_and_in_dash(fitted_samples, model) -> None:
    figure = charts.figure("decode", fitted_samples, model)
    lines = [t for t in figure["data"] if t["mode"] == "lines" and t.get("showlegend", True)]
    assert len(lines) == 3
    assert len({t["line"]["color"] for t in lines}) == 3
    assert len({t["line"]["dash"] for t in lines}) == 3


def test_held_out_points_differ_in_shape_and_show_their_prediction(fitted_samples, model) -> None:
    figure = charts.figure("decode", fitted_samples, model)
    held_out = [
        t for t in figure["data"] if t.get("marker", {}).get("symbol") == charts.HELD_OUT and t["x"][0]
    ]
    measured = [s for s in fitted_samples if s.kind == "decode" and s.role == "heldout"]
    assert sum(len(t["x"]) for t in held_out) == len(measured)
    for trace in held_out:
        ends = [y + up - down for y, up, down in zip(trace["y"], trace["error_y"]["array"],
                                                     trace["error_y"]["arrayminus"], strict=True)]  # fmt: skip
        assert all(f"predicted {end:.4g} ms" in text for end, text in zip(ends, trace["text"], strict=True))
    assert "held out" in named(figure)


def test_what_was_not_measured_is_dotted(fitted_samples, model) -> None:
    figure = charts.figure("decode", fitted_samples, model)
    dotted = [t for t in figure["data"] if t["mode"] == "lines" and t["line"].get("dash") == "dot"]
    assert dotted
    solid = next(t for t in figure["data"] if t["mode"] == "lines" and t.get("name") == "256")
    assert solid["y"][-1] is None
    assert dotted[0]["y"][-1] is not None


def test_without_a_fit_there_are_points_and_their_legend(fitted_samples) -> None:
    figure = charts.figure("decode", fitted_samples, None)
    assert all(t["mode"] == "markers" for t in figure["data"])
    assert named(figure)[:3] == ["16", "256", "1,000"]


def test_accuracy_counts_every_point(fitted_samples, model) -> None:
    rows = charts.figure("accuracy", fitted_samples, model)["table"]["rows"]
    assert sum(int(row[2].replace(",", "")) for row in rows) == len(fitted_samples)


def test_accuracy_of_a_refused_calibration_comes_from_its_report(calibration_result) -> None:
    rows = calibration_result["heldout"]["rows"]
    figure = charts.figure("accuracy", [], None, rows)
    assert sum(len(t["x"]) for t in figure["data"]) == len(rows)
    assert {row[1] for row in figure["table"]["rows"]} == {"held out"}


def test_many_points_are_thinned_in_the_picture_only() -> None:
    samples = [StepSample(StepShape((100 + i,) * 2), (0.01 + i * 1e-6,)) for i in range(700)]
    rows = [{"kind": "decode", "measured_s": 0.01, "predicted_s": 0.011, "error": 0.1}] * 700
    figure = charts.figure("accuracy", samples, None, rows)
    assert len(figure["data"][0]["x"]) <= charts.MAX_DRAWN
    assert figure["table"]["rows"][0][2] == "700"


def test_names_are_no_markup_in_labels() -> None:
    figure = charts.figure("decode", [], None, title='<a href="javascript:alert(1)">x</a> & <b>y</b>')
    assert "<" not in figure["title"]
    assert figure["title"].startswith("&lt;a href=")


def test_steps_in_words() -> None:
    shape = StepShape((1000, 1048), (Chunk(256, 512), Chunk(16, 0)))
    words = charts.shape_words(StepSample(shape, (0.01,)))
    assert words == "2 decodes × 1,024 tokens + chunk 256 after 512 cached + chunk 16"


def test_an_unknown_figure_is_refused() -> None:
    with pytest.raises(KeyError):
        charts.figure("pie", [], None)


def test_one_repeat_has_no_spread() -> None:
    table = charts.figure("decode", [StepSample(StepShape((100,)), (0.0123,))], None)["table"]
    assert table["rows"] == [["1 decode × 100 tokens", "fit", "12.3", "–", "–", "–"]]


def test_the_device_s_ceilings_are_drawn_under_each_curve(fitted_samples, model):
    from calibration.architecture import PRESETS
    from calibration.roofline import Ceilings, floor_of

    floor = floor_of(PRESETS["demo"], Ceilings(1e10, 1e11))
    plain = charts.figure("decode", fitted_samples, model)
    drawn = charts.figure("decode", fitted_samples, model, floor=floor)
    assert (
        len(drawn["data"])
        == len(plain["data"]) + sum(1 for t in plain["data"] if t.get("fill"))
        > len(plain["data"])
    )
    assert "ceilings" in drawn["note"]
    assert "ceilings" not in plain["note"]
