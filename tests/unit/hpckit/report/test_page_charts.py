"""Pictures are well-formed, stay inside their frame, and draw what they were given."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpckit.report.page.page_document import (
    Lane,
    Plot,
    PlotLine,
    PlotMark,
    SharesBlock,
    Stretch,
    TimelineBlock,
)
from hpckit.report.page.render.plot_axes import axis, label, span_axis, time_axis
from hpckit.report.page.render.plot_svg import draw_plot, kind_of
from hpckit.report.page.render.timeline_svg import draw_shares, draw_timeline
from tests.effort import times
from tests.unit.hpckit.report.sample_runs import HOSTILE

SVG = "{http://www.w3.org/2000/svg}"
FINITE = st.floats(allow_nan=False, allow_infinity=False)


def drawn(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(text)


def words(picture: ElementTree.Element) -> list[str]:
    return [str(one.text) for one in picture.iter(f"{SVG}text")]


@settings(max_examples=times(25))
@given(low=FINITE, high=FINITE, is_log=st.booleans())
def test_an_axis_holds_its_values(low: float, high: float, is_log: bool) -> None:
    low, high = min(low, high), max(low, high)
    made = axis(low, high, 5, may_be_log=is_log)
    assert 2 <= len(made.ticks) <= 14
    assert list(made.ticks) == sorted(made.ticks)
    for value in (low, high):
        if abs(value) <= 1e300:
            assert -1e-6 <= made.at(value) <= 1 + 1e-6


@settings(max_examples=times(25))
@given(high=st.floats(min_value=1e-6, max_value=1e18) | st.just(0.0) | st.just(5e-324))
def test_a_span_begins_at_nothing_and_ends_where_it_ends(high: float) -> None:
    made = span_axis(high, 5)
    assert made.ticks[0] == 0.0
    assert made.at(high) == pytest.approx(1.0 if high > 1e-9 else 0.0)
    assert len(made.ticks) <= 7


def test_times_are_in_the_unit_that_suits_them() -> None:
    assert [time_axis(s, 5)[2] for s in (0, 90, 150, 9000, 1e6)] == ["s", "s", "min", "h", "d"]


def test_numbers_on_an_axis_are_short() -> None:
    assert [label(value) for value in (0, 20, 1500, 2.5e6, 3e9, 1e15, 0.125, 1e-7)] == [
        *("0", "20", "1,500", "2.5M", "3G", "1e+15", "0.125", "1e-07"),
    ]
    assert label(500_000, (0.0, 500_000, 1e6)) == "0.5M"


@settings(max_examples=times(25))
@given(
    points=st.lists(st.tuples(st.integers(0, 2**62), FINITE | st.none()), min_size=1, max_size=30)
)
def test_curves_stay_inside_their_frame(points: list[tuple[int, float | None]]) -> None:
    if all(value is None for _, value in points):
        return
    picture = drawn(draw_plot(Plot("t", "loss", [PlotLine("a", sorted(points, key=_step), 0)])))
    numbers = [float(n) for path in picture.iter(f"{SVG}path") for n in _numbers(path)]
    assert numbers
    assert all(0 <= n <= 1000 for n in numbers)


def _step(point: tuple[int, float | None]) -> int:
    return point[0]


def _numbers(path: ElementTree.Element) -> list[str]:
    return re.findall(r"[-\d.e]+", path.attrib["d"].replace("h0", ""))


def test_a_curve_is_broken_where_there_is_no_number_and_lone_points_are_dots() -> None:
    line = PlotLine("a", [(1, 1.0), (2, 2.0), (3, None), (4, 3.0)], 0)
    picture = drawn(draw_plot(Plot("t", "loss", [line])))
    kinds = {path.attrib["class"]: path.attrib["d"] for path in picture.iter(f"{SVG}path")}
    assert kinds["line c0"].count("M") == 1
    assert kinds["dots c0"].count("M") == 1


def test_interruptions_are_marked_and_names_that_would_overlap_left_out() -> None:
    marks = [PlotMark(step, f"g{step}", f"end at {step}") for step in (10, 11, 12, 60)]
    picture = drawn(draw_plot(Plot("t", "loss", [PlotLine("a", [(0, 1.0), (100, 2.0)], 0)], marks)))
    lines = [one for one in picture.iter(f"{SVG}line") if one.attrib["class"] == "mark"]
    assert [one.attrib["x1"] for one in lines] == ["10.00%", "11.00%", "12.00%", "60.00%"]
    assert [str(one[0].text) for one in lines] == [f"end at {step}" for step in (10, 11, 12, 60)]
    assert [word for word in words(picture) if word.startswith("g")] == ["g10", "g60"]


def test_axes_have_units_and_wide_ranges_are_logarithmic() -> None:
    plot = Plot("t", "loss", [PlotLine("a", [(1, 0.01), (2, 50.0)], 0)])
    assert {"loss, logarithmic", "step", "0.1", "100"} <= set(words(drawn(draw_plot(plot))))
    flat = Plot("t", "tokens/s", [PlotLine("a", [(1, 0.01), (2, 50.0)], 0)], from_zero=True)
    assert {"tokens/s", "step", "0", "50"} <= set(words(drawn(draw_plot(flat))))


def test_many_lines_are_told_apart() -> None:
    assert len({kind_of(number) for number in range(24)}) == 24


def test_a_timeline_has_a_row_for_each_lane_and_says_its_unit() -> None:
    stretches = (Stretch(0, 60, "start", "1: start"), Stretch(60, 300, "train", "1: training"))
    lanes = [Lane("1: done", stretches), Lane("2: done", (Stretch(300, 300.01, "train", "2"),))]
    picture = drawn(draw_timeline(TimelineBlock("t", lanes, 600.0, "12:00:00", ())))
    bars = [(one.attrib["x"], one.attrib["width"]) for one in picture.iter(f"{SVG}rect")]
    assert bars == [("0.00%", "10.00%"), ("10.00%", "40.00%"), ("50.00%", "0.20%")]
    assert "min since 12:00:00" in words(picture)


def test_shares_fill_the_bar() -> None:
    picture = drawn(draw_shares(SharesBlock("t", [("a", 1.0), ("b", 3.0)])))
    wide = [float(one.attrib["width"].rstrip("%")) for one in picture.iter(f"{SVG}rect")]
    assert wide == [25.0, 75.0]


def test_hostile_names_are_text_and_nothing_else() -> None:
    plot = Plot(
        HOSTILE, HOSTILE, [PlotLine(HOSTILE, [(1, 1.0)], 0)], [PlotMark(1, HOSTILE, HOSTILE)]
    )
    lanes = [Lane(HOSTILE, (Stretch(0, 1, "train", HOSTILE),))]
    for picture in (
        draw_plot(plot),
        draw_timeline(TimelineBlock(HOSTILE, lanes, 1.0, HOSTILE, ())),
        draw_shares(SharesBlock(HOSTILE, [(HOSTILE, 1.0)])),
    ):
        assert not any(one.tag == f"{SVG}script" for one in drawn(picture).iter())
        assert "alert('1')" in "".join(drawn(picture).itertext())
