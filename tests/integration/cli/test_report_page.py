"""Pages of reports in a real browser: nothing overlaps or is cut off, light and dark, on a phone, a
tablet and a desk."""

from __future__ import annotations

import io
from pathlib import Path
from statistics import median

import pytest
from PIL import Image

from hpckit.cli.plan.plan_document import plan_document
from hpckit.report.page.page_file import render
from hpckit.report.page.render.html_page import html
from hpckit.rundir.fork_record import ForkRecord
from tests.effort import some
from tests.services.browser import Browser
from tests.services.page_layout import layout_problems
from tests.unit.hpckit.cli.measured_figures import bench_pages
from tests.unit.hpckit.cli.plan.test_plan_documents import planned
from tests.unit.hpckit.report.eventful_runs import EVERY, died, eventful
from tests.unit.hpckit.report.sample_runs import HOSTILE, content, ran, submitted

WIDTHS = (360, 768, 1440)
FULL = ("eventful", "compared")
"""The pages with the most on them."""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Pages of runs to which much has happened, of one that died, of one that never began, of one
    whose name is hostile, and of several runs."""
    folder = tmp_path_factory.mktemp("pages")
    parent = eventful(folder / "runs" / "llama-13b-pretraining-with-a-long-name-1a2b3c4d")
    store = str(parent.checkpoints)
    begun = ForkRecord(parent.name, str(parent.path), store, 150 * EVERY, "000000750000-01234567")
    fork = eventful(folder / "runs" / "llama-13b-lower-rate-5e6f7a8b", 2, begun)
    runs = {
        "eventful": [parent],
        "fork": [fork],
        "died": [died(folder / "dead" / "resnet-9a8b7c6d")],
        "empty": [submitted(folder / "empty" / "mnist-0a1b2c3d")],
        "hostile": [ran(folder / "hostile" / HOSTILE.replace("/", "").replace("\x00", ""))],
        "compared": [parent, fork, ran(folder / "runs" / "small-4d5e6f7a", lives=3)],
    }
    made = {}
    for name, those in runs.items():
        made[name] = folder / f"{name}.html"
        made[name].write_text(render([content(run) for run in those], "html"))
    return made


FAULTS = {
    "overlap": '<p style="margin: 0">one line</p><p style="margin: -1.2em 0 0 0">another</p>',
    "cut off": '<div style="width: 50px; overflow: hidden; white-space: nowrap">words words</div>',
    "px wide": '<div style="width: 400px">x</div>',
    "outside of the screen": '<p style="margin: 0 0 0 -20px">words</p>',
    "outside of its box": '<p style="width: 30px">incomprehensible</p>',
    "text of 9 px": '<p style="font-size: 9px">words</p>',
    "contrast": '<p style="color: #999">words</p>',
}


def test_each_fault_of_a_layout_is_found(chromium: Browser, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    for fault, body in FAULTS.items():
        page.write_text(f"<!doctype html><meta charset=utf-8><body>{body}<p>else all is well</p>")
        chromium.open(page, 360)
        found = layout_problems(chromium)[1]
        assert found, fault
        assert all(fault in one for one in found), (fault, found)


def test_nothing_overlaps_is_cut_off_or_too_small(
    chromium: Browser, pages: dict[str, Path]
) -> None:
    others = [(name, width) for name in pages for width in WIDTHS]
    usual = [(name, width) for name, width in others if width == WIDTHS[0] or name in FULL]
    wrong = {}
    for name, width in some(usual, [one for one in others if one not in usual]):
        chromium.open(pages[name], width)
        count, problems = layout_problems(chromium)
        assert count > 20
        if problems:
            wrong[name, width] = problems
    assert wrong == {}


def test_dark_pages_are_as_readable(chromium: Browser, pages: dict[str, Path]) -> None:
    for name, width in (*(("eventful", width) for width in WIDTHS), ("compared", WIDTHS[-1])):
        chromium.open(pages[name], width, is_dark=True)
        assert layout_problems(chromium)[1] == [], (name, width)


def test_pages_of_plans_and_measurements_are_readable_in_the_dark_on_a_phone(
    chromium: Browser, tmp_path: Path
) -> None:
    page, wrong = tmp_path / "page.html", {}
    for name, document in (bench_pages() | {"plan": plan_document(planned(), "now")}).items():
        page.write_text(html(document))
        chromium.open(page, WIDTHS[0], is_dark=True)
        count, wrong[name] = layout_problems(chromium)
        assert count > 20
    assert not any(wrong.values()), wrong


def test_pictures_of_a_page_are_light_or_dark(chromium: Browser, pages: dict[str, Path]) -> None:
    lightness = []
    for is_dark in (False, True):
        chromium.open(pages["died"], WIDTHS[0], is_dark=is_dark)
        shown = Image.open(io.BytesIO(chromium.picture())).convert("L")
        assert shown.width == WIDTHS[0]
        assert shown.height > 3000, "the picture is of the whole page"
        assert len(set(shown.resize((90, 900)).tobytes())) > 20, "something is drawn"
        lightness.append(median(shown.resize((36, 360)).tobytes()))
    assert lightness[0] > 240
    assert lightness[1] < 40


def test_a_reader_chooses_the_axis_without_scripts(
    chromium: Browser, pages: dict[str, Path]
) -> None:
    chromium.open(pages["eventful"], 1440)
    shown = "[...document.querySelectorAll('.plot.lin, .plot.log')].map(e => e.offsetHeight > 0)"
    assert chromium.run(shown) == [False, True], "a spike makes it logarithmic"
    chromium.run("document.querySelector('label[for=p1lin]').click()")
    assert chromium.run(shown) == [True, False]


def test_one_colour_has_one_meaning_in_all_pictures(
    chromium: Browser, pages: dict[str, Path]
) -> None:
    chromium.open(pages["eventful"], 1440)
    colours = chromium.run(
        "Object.fromEntries(['svg path.line.train:not(.behind)', 'svg rect.train:not(.soft)'].map("
        "kind => [kind, [...new Set([...document.querySelectorAll(kind)].map(e => "
        "getComputedStyle(e)[kind.includes('path') ? 'stroke' : 'fill']))]]))"
    )
    assert len({colour for found in colours.values() for colour in found}) == 1
    others = chromium.run(
        "['train','start','lost','data','save','checks','valid','eval','slow','cure','other',"
        "'parent'].map(name => getComputedStyle(document.body).getPropertyValue('--' + name))"
    )
    assert len(set(others)) == len(others)
