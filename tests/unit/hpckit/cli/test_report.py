"""`hpckit report` writes where it is told to, and on nothing that is not a report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hpckit.cli.main import app
from hpckit.report.page.page_file import MARKS
from hpckit.rundir.directory import RunDir
from tests.unit.hpckit.report.sample_runs import ran, submitted


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return ran(tmp_path / "run")


def typed(*words: object) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["report", *map(str, words)])
    return done.exit_code, done.stdout, done.stderr


def test_without_options_it_tells_and_writes_beside_the_run(run: RunDir) -> None:
    for _ in range(2):
        status, out, err = typed(run.path)
        assert status == 0, err
        assert "10 kept, 0 repeated" in out
        assert out.splitlines()[-1] == f"page         {run.report / 'report.html'}"
    assert MARKS["html"] in (run.report / "report.html").read_text()
    assert not list(run.report.glob(".*"))


@pytest.mark.parametrize("form", MARKS)
def test_each_format_is_known_by_its_ending_or_by_name(
    form: str, run: RunDir, tmp_path: Path
) -> None:
    named, asked = tmp_path / f"page.{form}", tmp_path / "page"
    assert typed(run.path, "--out", named)[:2] == (0, f"page         {named}\n")
    assert typed(run.path, "--out", asked, "--format", form)[0] == 0
    assert typed(run.path, "--out", named)[0] == 0, "a report may be replaced"
    assert MARKS[form] in named.read_text()[:1024]
    assert MARKS[form] in asked.read_text()[:1024]
    status, out, _ = typed(run.path, "--out", "-", "--format", form)
    assert status == 0
    assert MARKS[form] in out
    assert typed(run.path, "--format", form)[0] == 0
    assert (run.report / f"report.{form}").exists()


def test_json_is_printed_and_nothing_is_written(run: RunDir) -> None:
    status, out, _ = typed(run.path, "--json")
    assert (status, json.loads(out)["run"]) == (0, "run")
    assert not run.report.exists()


def test_several_runs_are_compared_in_the_folder_where_one_is(
    run: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    status, out, _ = typed(run.path, ran(tmp_path / "two").path)
    assert (status, out) == (0, f"page         {tmp_path / 'report.html'}\n")
    assert "2 runs: run, two" in (tmp_path / "report.html").read_text()
    assert not run.report.exists()


def test_what_is_no_report_is_left_alone(run: RunDir, tmp_path: Path) -> None:
    mine = tmp_path / "index.html"
    mine.write_text("<p>mine</p>")
    status, out, err = typed(run.path, "--out", mine)
    assert (status, out) == (2, "")
    assert f"error: {mine} is not a report of hpckit" in err
    assert mine.read_text() == "<p>mine</p>"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--out", "page.pdf"], "page.pdf does not end in any of .html, .md, .json; give --format"),
        (["--out", "/dev/null", "--format", "md"], "/dev/null is not a regular file"),
        (["--out", "/", "--format", "md"], "/ is a folder"),
        (["--json", "--out", "x.json"], "--json already means --format json --out -"),
        (["--json", "--format", "md"], "--json already means --format json --out -"),
    ],
)
def test_what_cannot_be_done_is_refused(run: RunDir, words: list[str], said: str) -> None:
    status, out, err = typed(run.path, *words)
    assert (status, bool(out)) == (2, "--json" in words)
    assert said in err
    assert not out or said in json.loads(out)["error"]


def test_a_run_named_twice_is_refused(run: RunDir) -> None:
    assert "is named twice" in typed(run.path, run.path)[2]


def test_a_run_that_never_started_has_a_page(tmp_path: Path) -> None:
    run = submitted(tmp_path / "run")
    status, out, _ = typed(run.path)
    assert status == 0
    assert "has not trained yet" in out
    assert "has not trained yet" in (run.report / "report.html").read_text()
