"""The documents of `hpckit plan --out`, opened again by the libraries that wrote them."""

from __future__ import annotations

import builtins
import json
import sys
import zlib
from dataclasses import replace
from decimal import Decimal
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree
from zipfile import ZipFile

import docx
import pptx
import pytest
from openpyxl import load_workbook
from openpyxl.worksheet.worksheet import Worksheet
from typer.testing import CliRunner

from hpckit.cli.main import app
from hpckit.cli.plan.plan_document import PlannedRun, plan_document
from hpckit.cli.plan.plan_file import PACKAGES, check_file, write_plan
from hpckit.planner.assumptions import STORAGE_GBPS, UTILISATION
from hpckit.planner.gpu_cards import CARDS
from hpckit.planner.run_estimate import Assumptions, estimate
from hpckit.planner.run_totals import HourlyPrices, cost_cases, run_totals
from hpckit.report.page.office.workbook_file import new_workbook
from hpckit.report.page.page_document import (
    FactsBlock,
    PageDocument,
    Section,
    TableBlock,
    TextBlock,
)
from hpckit.report.page.render.html_page import html
from hpckit.report.page.render.markdown_page import markdown
from hpckit.submit.compose import compose_spec

WORDS = ["model=llama_8b", "precision=bf16", "launch.nodes=2", "launch.nproc_per_node=8"]
WORDS += ["train.micro_batch=1", "train.steps=100000"]
SECTIONS = ["Summary", "Cost", "Risks", "Hardware", "Strategy", "Memory of a GPU"]
SECTIONS += ["Time of a step", "Goodput", "Storage", "Assumptions"]


@cache
def planned(card: str = "H100", name: str = "gpt", gpu: float | None = 2.5) -> PlannedRun:
    spec = compose_spec(WORDS)
    made = estimate(spec, CARDS[card], Assumptions(UTILISATION, None, STORAGE_GBPS))
    prices = HourlyPrices(gpu=gpu)
    totals = run_totals(spec, made, prices)
    object.__setattr__(spec, "name", name)  # no spec has such a name
    return PlannedRun(spec, made, totals, prices)


def typed(*words: str) -> tuple[int, str, str]:
    """`hpckit plan WORDS`: exit status, output, and what went to standard error."""
    done = CliRunner().invoke(app, ["plan", *WORDS, *words], env={"COLUMNS": "80"})
    return done.exit_code, done.stdout, done.stderr


def test_a_plan_ends_with_where_its_file_is(tmp_path: Path) -> None:
    file = tmp_path / "new" / "plan.md"
    status, out, _ = typed("--card", "H100", "--gpu-price", "2.5", "--out", str(file))
    assert status == 0
    assert out.splitlines()[-1].split() == ["file", str(file)]
    text = file.read_text()
    assert "# Plan of gpt" in text
    assert [line[3:] for line in text.splitlines() if line.startswith("## ")] == SECTIONS


def test_totals_are_those_of_all_steps_with_their_losses() -> None:
    it = planned()
    totals, plan = it.totals, it.plan
    assert totals is not None
    assert plan.speed is not None
    assert plan.configured is not None
    assert totals.training_s == pytest.approx(100_000 * plan.speed.step.total)
    assert totals.wall_s == pytest.approx(totals.training_s / plan.configured.fraction)
    assert totals.gpu_hours == pytest.approx(16 * totals.wall_s / 3600)
    assert totals.node_hours == pytest.approx(totals.gpu_hours / 8)
    assert totals.money == pytest.approx(2.5 * totals.gpu_hours)
    assert totals.failures == pytest.approx(totals.wall_s / plan.configured.mtbf_s)
    assert (totals.kept, totals.kept_bytes) == (4, 4 * plan.checkpoint)
    assert totals.save_requests.put > 16  # each rank writes packs and its part record
    both = HourlyPrices(10.0, 2.5).money(totals.node_hours, totals.gpu_hours)
    assert both == pytest.approx(10 * totals.node_hours + 2.5 * totals.gpu_hours)
    found = json.loads(typed("--card", "H100", "--json")[1])
    assert found["totals"]["gpu_hours"] == pytest.approx(totals.gpu_hours)
    assert (found["totals"]["money"], found["file"]) == (None, None)


def test_a_batch_that_grows_takes_less_than_its_steps() -> None:
    ramp = "train.batch_ramp={start: 16, increment: 16, samples: 100000}"
    spec = compose_spec([*WORDS, "train.global_batch=64", ramp])
    made = estimate(spec, CARDS["H100"], Assumptions(UTILISATION, None, STORAGE_GBPS))
    totals = run_totals(spec, made, HourlyPrices())
    assert totals is not None
    assert made.speed is not None
    assert totals.training_s < 99_900 * made.speed.step.total


def test_slower_cards_cost_more() -> None:
    it = planned(name="gpt")
    slow, fast = cost_cases(it.spec, it.plan, it.prices, [0.2, 0.4])
    assert slow.totals.gpu_hours > fast.totals.gpu_hours == it.totals.gpu_hours  # type: ignore[union-attr]


def test_a_plan_says_what_its_cost_is_of_and_how_speed_is_measured() -> None:
    text = markdown(plan_document(planned(), "now"))
    assert (
        "Storage, the transfer of data, and runs before and beside this one are not in it" in text
    )
    assert "divided by the 989 TFLOP/s of the card" in text
    assert "times the given prices" not in markdown(plan_document(planned(gpu=None), "now"))
    unknown = replace(planned(), plan=replace(planned().plan, speed=None), totals=None)
    assert "None is known beside" in markdown(plan_document(unknown, "now"))


def test_saves_by_steps_are_rarer_if_the_cards_are_slower() -> None:
    it = planned()
    (slow,) = cost_cases(it.spec, it.plan, it.prices, [UTILISATION / 2])
    assert slow.totals.interval_s > 1.5 * it.totals.interval_s  # type: ignore[union-attr]


@pytest.mark.parametrize("money", [99.99, 12345.6])
@pytest.mark.parametrize("lost", [0.0149, 0.0251, 0.3333])
def test_the_costs_in_the_table_add_up(money: float, lost: float) -> None:
    totals = planned().totals
    assert totals is not None
    totals = replace(totals, gpu_hours=1234.55, money=money, wall_s=1.0, training_s=1.0 - lost)
    blocks = plan_document(replace(planned(), totals=totals), "now").sections[1].blocks
    table = next(block for block in blocks if isinstance(block, TableBlock))
    for column in (1, 2, 3):
        cells = [row[column].replace(",", "").rstrip("%") for row in table.rows]
        counts, rest, total = map(Decimal, cells)
        assert counts + rest == total


@pytest.mark.parametrize("ending", [".html", *PACKAGES])
def test_a_plan_replaces_a_plan_and_nobody_elses_file(
    ending: str, files: dict[str, Path], tmp_path: Path
) -> None:
    file = tmp_path / f"plan{ending}"
    file.write_bytes(b"PK or %PDF or text of somebody else")
    status, out, err = typed("--card", "H100", "--out", str(file))
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert str(file) in err
    if ending in files:
        check_file(files[ending])
    file.write_bytes(b"")
    check_file(file)


class Elements(HTMLParser):
    """Opens and closes of a page; what it refers to."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.refers: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.refers += [str(value) for name, value in attrs if name in ("src", "href")]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.refers += [str(value) for name, value in attrs if name in ("src", "href")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("card", ["H100", "V100"])
def test_a_page_is_whole_and_needs_nothing_else(card: str) -> None:
    text = html(plan_document(planned(card, "a <b> & c"), "now"))
    parser = Elements()
    parser.feed(text)
    assert parser.open == []
    assert [to for to in parser.refers if not to.startswith("#")] == []
    assert "url(" not in text
    assert "prefers-color-scheme" in text
    assert "a &lt;b&gt; &amp; c" in text
    drawn = [f"<svg{part.split('</svg>')[0]}</svg>" for part in text.split("<svg")[1:]]
    assert len(drawn) == (2 if card == "H100" else 1)
    for picture in drawn:
        ElementTree.fromstring(picture)
    assert ("the speed is not" in text) is (card == "V100")


def test_risks_are_those_of_the_plan() -> None:
    assert "does not fit into the memory" not in markdown(plan_document(planned(), "now"))
    spec = compose_spec([*WORDS, "parallel=ddp"])
    made = estimate(spec, CARDS["A100-40"], Assumptions(UTILISATION, None, STORAGE_GBPS))
    tight = PlannedRun(spec, made, run_totals(spec, made, HourlyPrices()), HourlyPrices())
    text = markdown(plan_document(tight, "now"))
    assert "does not fit into the memory" in text
    assert "no price given" in text


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A plan in each format of the extra, of a run whose name is a formula."""
    folder = tmp_path_factory.mktemp("plans")
    found = {ending: folder / f"plan{ending}" for ending in PACKAGES}
    for path in found.values():
        write_plan(planned(name="=1+1 ≥ ü"), path)
    return found


def test_a_word_document_has_all_sections_and_charts(files: dict[str, Path]) -> None:
    made = docx.Document(str(files[".docx"]))
    heads = [one.text for one in made.paragraphs if one.style.name == "Heading 1"]  # type: ignore[union-attr]
    assert heads == SECTIONS
    assert made.core_properties.title == "Plan of =1+1 ≥ ü"
    assert len(made.inline_shapes) == 2
    cells = [cell.text for table in made.tables for row in table.rows for cell in row.cells]
    assert "GPU-hours" in cells
    assert sum("<w:tblHeader" in table._tbl.xml for table in made.tables) == 6


def test_slides_have_all_sections_and_native_charts(files: dict[str, Path]) -> None:
    made = pptx.Presentation(str(files[".pptx"]))
    titles = [slide.shapes.title.text for slide in made.slides if slide.shapes.title]
    assert {*SECTIONS} <= {*titles}
    assert titles[0] == "Plan of =1+1 ≥ ü"
    charts = [shape.chart for s in made.slides for shape in s.shapes if shape.has_chart]
    assert [len(chart.plots[0].categories) for chart in charts] == [5, 1]
    tables = [shape.table for s in made.slides for shape in s.shapes if shape.has_table]
    heads = [tuple(cell.text for cell in table.rows[0].cells) for table in tables]
    assert len({*heads}) == len(heads) == 6  # each is whole on one slide
    assert made.slide_width is not None
    for slide in made.slides:
        for shape in slide.shapes:
            assert shape.left >= 0
            assert shape.left + shape.width <= made.slide_width


def test_a_workbook_calculates_the_cost_by_formulas(files: dict[str, Path]) -> None:
    made = load_workbook(files[".xlsx"])
    assert {*SECTIONS, "Calculation", "Numbers"} == {*made.sheetnames}
    title = made["Summary"]["A1"]
    assert (title.value, title.data_type) == ("Plan of =1+1 ≥ ü", "s")
    sheet = made["Calculation"]
    cells: dict[Any, Any] = {row[0].value: row[1].value for row in sheet.iter_rows(min_row=3)}
    totals = planned().totals
    assert totals is not None
    assert cells["price of a GPU-hour"] == 2.5
    hours = cells["steps with the whole batch"] * cells["seconds of a step"] / cells["goodput"]
    assert hours / 3600 * 16 == pytest.approx(totals.gpu_hours)
    assert sheet.row_dimensions[14].height is None  # whose formula is long
    assert cells["cost"] == '=IF(COUNT(B8:B9)=0,"give a price",B12*B8+B13*B9)'
    assert cells["price of a node-hour"] is None  # and not a price of 0
    rows = made["Numbers"].iter_rows(min_row=2)
    numbers: dict[Any, Any] = {row[0].value: row[1].value for row in rows}
    assert numbers["totals.gpu_hours"] == pytest.approx(totals.gpu_hours)
    with ZipFile(files[".xlsx"]) as archive:
        assert len([name for name in archive.namelist() if "charts/chart" in name]) == 2


def test_a_text_that_looks_like_a_formula_is_a_text() -> None:
    document = PageDocument(
        "=1+1", "now", [Section("=2", [TextBlock("=3"), FactsBlock([("=4", "=5")])])]
    )
    sheet = new_workbook(document).active
    assert isinstance(sheet, Worksheet)
    found = {cell.value: cell.data_type for row in sheet.iter_rows() for cell in row if cell.value}
    assert found == {**{f"={text}": "s" for text in ("1+1", "2", "3", "4", "5")}, "as of now": "s"}


def test_a_pdf_has_all_sections(files: dict[str, Path]) -> None:
    content = files[".pdf"].read_bytes()
    assert content.startswith(b"%PDF-")
    streams = content.split(b"stream\n")[1::2]
    text = b"".join(_inflated(one.removesuffix(b"\nend")) for one in streams)
    for section in SECTIONS:
        assert f"({section})".encode() in text, section


def _inflated(stream: bytes) -> bytes:
    try:
        return zlib.decompress(stream)
    except zlib.error:
        return b""


@pytest.mark.parametrize("ending", PACKAGES)
def test_a_missing_package_is_one_sentence(
    ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = {".pdf": "fpdf", ".docx": "docx", ".xlsx": "openpyxl", ".pptx": "pptx"}[ending]
    real = builtins.__import__

    def refuse(name: str, *rest: Any) -> Any:
        if name.partition(".")[0] == gone:
            raise ModuleNotFoundError(f"No module named {gone!r}", name=gone)
        return real(name, *rest)

    for name in [*sys.modules]:
        if name.startswith(("hpckit.report.page.office", "hpckit.cli.plan.plan_workbook")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", refuse)
    status, out, err = typed("--card", "H100", "--out", str(tmp_path / f"plan{ending}"))
    assert (status, out) == (2, "")
    (line,) = err.splitlines()
    assert PACKAGES[ending] in line
    assert "pip install 'hpckit-torch[documents]'" in line
