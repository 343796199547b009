"""Pictures are well-formed, stay inside their frame, and draw what they were given."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpckit.report.page.colour_meanings import Meaning, of_run
from hpckit.report.page.page_document import (
    Lane,
    Plot,
    PlotLine,
    PlotMark,
    SharePart,
    SharesBlock,
    Stretch,
    TimelineBlock,
)
from hpckit.report.page.render.plot_axes import axis, label, may_be_log, span_axis, time_axis
from hpckit.report.page.render.plot_svg import draw_plot
from hpckit.report.page.render.stylesheet import STYLE
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
    made = axis(low, high, 5, is_log=is_log and may_be_log(min(low, 1e300)))
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


def test_a_span_may_begin_later() -> None:
    made = span_axis(1_100_000, 5, 900_000)
    assert list(made.ticks) == [900_000, 950_000, 1_000_000, 1_050_000, 1_100_000]
    assert [made.at(step) for step in (900_000, 1_000_000, 1_100_000)] == [0.0, 0.5, 1.0]
    assert span_axis(7, 5, 7).at(7) == 0.0
    assert span_axis(2, 5, least_step=1.0).ticks == (0, 1, 2)


def test_a_logarithmic_axis_has_ticks_for_few_and_for_many_powers() -> None:
    assert axis(0.9, 3.6, 5, is_log=True).ticks == (1, 2, 3, 4)
    assert axis(2.1, 30, 5, is_log=True).ticks == (2, 5, 10, 20, 50)
    assert axis(1e-3, 1e2, 5, is_log=True).ticks == (1e-3, 1e-2, 1e-1, 1, 10, 100)


def test_times_are_in_the_unit_that_suits_them() -> None:
    assert [time_axis(s, 5)[2] for s in (0, 90, 150, 9000, 1e6)] == ["s", "s", "min", "h", "d"]


def test_numbers_on_an_axis_are_short() -> None:
    assert [label(value) for value in (0, 20, 1500, 25_000, 2.5e6, 3e9, 1e15, 0.125, 1e-7)] == [
        *("0", "20", "1,500", "25k", "2.5M", "3G", "1e+15", "0.125", "1e-7"),
    ]
    assert label(500_000, (0.0, 500_000, 1e6)) == "0.5M"
    assert [label(n * 5e-5, (5e-5, 15e-5)) for n in (1, 2, 3)] == ["5e-5", "1e-4", "1.5e-4"]


@settings(max_examples=times(25))
@given(
    points=st.lists(st.tuples(st.integers(0, 2**62), FINITE | st.none()), min_size=1, max_size=30)
)
def test_curves_stay_inside_their_frame(points: list[tuple[float, float | None]]) -> None:
    if all(value is None for _, value in points):
        return
    picture = drawn(
        draw_plot(Plot("t", "loss", [PlotLine("a", sorted(points, key=_step), "run0")]))
    )
    numbers = [float(n) for path in picture.iter(f"{SVG}path") for n in _numbers(path)]
    assert numbers
    assert all(0 <= n <= 1000 for n in numbers)


def _step(point: tuple[float, float | None]) -> float:
    return point[0]


def _numbers(path: ElementTree.Element) -> list[str]:
    return re.findall(r"[-\d.e]+", path.attrib["d"].replace("h0", ""))


def test_a_curve_is_broken_where_there_is_no_number_and_lone_points_are_dots() -> None:
    line = PlotLine("a", [(1, 1.0), (2, 2.0), (3, None), (4, 3.0)], "train")
    picture = drawn(draw_plot(Plot("t", "loss", [line])))
    kinds = {path.attrib["class"]: path.attrib["d"] for path in picture.iter(f"{SVG}path")}
    assert kinds["line train"].count("M") == 1
    assert kinds["dots train"].count("M") == 1


def test_interruptions_are_marked_and_names_that_would_overlap_left_out() -> None:
    marks = [PlotMark(step, f"g{step}", f"end at {step}", "lost") for step in (10, 11, 12, 60)]
    line = PlotLine("a", [(0, 1.0), (100, 2.0)], "train")
    picture = drawn(draw_plot(Plot("t", "loss", [line], marks)))
    lines = [one for one in picture.iter(f"{SVG}line") if one.attrib["class"] == "mark lost"]
    assert [one.attrib["x1"] for one in lines] == ["10.00%", "11.00%", "12.00%", "60.00%"]
    assert [str(one[0].text) for one in lines] == [f"end at {step}" for step in (10, 11, 12, 60)]
    assert [word for word in words(picture) if word.startswith("g")] == ["g10", "g60"]


def test_axes_have_units_and_wide_ranges_are_logarithmic() -> None:
    plot = Plot("t", "loss", [PlotLine("a", [(1, 0.01), (2, 50.0)], "train")])
    assert {"loss, logarithmic", "step", "0.1", "10"} <= set(words(drawn(draw_plot(plot))))
    flat = Plot("t", "tokens/s", [PlotLine("a", [(1, 0.01), (2, 50.0)], "train")], from_zero=True)
    assert {"tokens/s", "step", "0", "50"} <= set(words(drawn(draw_plot(flat))))


def test_values_that_do_not_count_do_not_widen_the_axis() -> None:
    kept = PlotLine("loss", [(1, 2.0), (2, 3.0)], Meaning.TRAIN)
    lost = PlotLine("lost", [(1, 3000.0), (2, 2.5)], Meaning.LOST, are_dots=True, may_leave=True)
    both = draw_plot(Plot("Loss", "loss", [kept, lost]))
    path = re.compile('class="line train" d="([^"]*)"')
    assert path.findall(both) == path.findall(draw_plot(Plot("Loss", "loss", [kept])))
    assert 'class="dots lost" d="M500.0 0.0h0' in both
    wide = draw_plot(Plot("Loss", "loss", [replace(lost, may_leave=False), kept]))
    assert path.findall(wide) != path.findall(both)


def test_many_runs_are_told_apart() -> None:
    assert len({of_run(number) for number in range(24)}) == 24


def test_what_a_mouse_points_at_is_said_in_numbers() -> None:
    lines = [PlotLine("loss", [(1, 1.0), (100, 2.5)], "train"), PlotLine("", [(1, 9.0)], "run0")]
    marks = [PlotMark(100, "2", "end of 2", "lost")]
    picture = drawn(draw_plot(Plot("t", "loss", lines, marks)))
    said = [str(one[0].text) for one in picture.iter(f"{SVG}rect")]
    assert said == ["loss: 1 at step 1", "loss: 2.5 at step 100\nend of 2"]


def test_a_mouse_finds_each_point_of_a_logarithmic_axis() -> None:
    points = [(1.0, 5.0), (2.0, 6.0), (1000.0, 7.0)]
    line = PlotLine("fp32", points, "run0", has_dots=True)
    plot = Plot("t", "samples/s", [line], over="samples", is_over_log=True)
    shown = list(drawn(draw_plot(plot)).iter(f"{SVG}rect"))
    assert [str(one[0].text) for one in shown] == [
        *("fp32: 5 at 1 samples", "fp32: 6 at 2 samples", "fp32: 7 at 1,000 samples"),
    ]
    assert [round(float(one.attrib["x"].rstrip("%"))) for one in shown] == [0, 10, 98]


def contrast(one: str, other: str) -> float:
    """As WCAG 2.2 computes it, of colours such as `#1f6fc4` or `#fff`."""
    lights = []
    for colour in (one, other):
        digits = colour.lstrip("#")
        digits = "".join(2 * digit for digit in digits) if len(digits) == 3 else digits
        parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
        linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
        lights.append(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2])
    return (max(lights) + 0.05) / (min(lights) + 0.05)


def test_each_meaning_has_a_colour_that_is_seen_on_light_and_dark_pages() -> None:
    light, dark = STYLE.split("@media (prefers-color-scheme: dark)")
    for part in (light, dark.partition("} }")[0]):
        colours = dict(re.findall(r"--([a-z0-9]+): (#[0-9a-f]+);", part))
        meant = {meaning.split()[0] for meaning in Meaning}
        assert meant < colours.keys()
        assert len({colours[name] for name in meant}) == len(meant)
        seen = meant - {Meaning.OTHER} | {f"run{number}" for number in range(8)}
        assert {n for n in seen if contrast(colours[n], colours["page"]) < 3} == set()
        assert contrast(colours["soft"], colours["box"]) > 4.5


def test_a_timeline_has_a_row_for_each_lane_and_says_its_unit() -> None:
    stretches = (Stretch(0, 60, "start", "1: start"), Stretch(60, 300, "train", "1: training"))
    lanes = [Lane("1: done", stretches), Lane("2: done", (Stretch(300, 300.01, "train", "2"),))]
    picture = drawn(draw_timeline(TimelineBlock("t", lanes, 600.0, "12:00:00", ())))
    bars = [(one.attrib["x"], one.attrib["width"]) for one in picture.iter(f"{SVG}rect")]
    assert bars == [("0.00%", "10.00%"), ("10.00%", "40.00%"), ("50.00%", "0.20%")]
    assert "min since 12:00:00" in words(picture)


def test_shares_fill_the_bar() -> None:
    parts = [SharePart("a", 1.0, "train"), SharePart("b", 3.0, "lost")]
    picture = drawn(draw_shares(SharesBlock("t", [("", parts)])))
    wide = [float(one.attrib["width"].rstrip("%")) for one in picture.iter(f"{SVG}rect")]
    assert wide == [25.0, 75.0]


def test_bars_of_several_runs_have_lengths_that_can_be_compared() -> None:
    bars = [("x", [SharePart("a", 1.0, "train")]), ("y", [SharePart("a", 4.0, "train")])]
    picture = drawn(draw_shares(SharesBlock("t", bars)))
    assert [one.attrib["width"] for one in picture.iter(f"{SVG}rect")] == ["25.00%", "100.00%"]
    assert words(picture) == ["x", "y"]


def test_hostile_names_are_text_and_nothing_else() -> None:
    line, mark = PlotLine(HOSTILE, [(1, 1.0)], "train"), PlotMark(1, HOSTILE, HOSTILE, "lost")
    plot = Plot(HOSTILE, HOSTILE, [line], [mark])
    lanes = [Lane(HOSTILE, (Stretch(0, 1, "train", HOSTILE),))]
    for picture in (
        draw_plot(plot),
        draw_timeline(TimelineBlock(HOSTILE, lanes, 1.0, HOSTILE, ())),
        draw_shares(SharesBlock(HOSTILE, [(HOSTILE, [SharePart(HOSTILE, 1.0, "train")])])),
    ):
        assert not any(one.tag == f"{SVG}script" for one in drawn(picture).iter())
        assert "alert('1')" in "".join(drawn(picture).itertext())
