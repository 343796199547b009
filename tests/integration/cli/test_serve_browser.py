"""The web view in a real browser: opened by its address, followed by its links, refreshed by
itself, and laid out on a phone and a desk."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.integration.cli.team_view import TOKEN, TeamView, team_view
from tests.services.browser import Browser
from tests.services.page_layout import layout_problems
from tests.services.processes import ServiceError
from tests.unit.hpckit.serve.served_runs import HOSTILE, ServedFolder, go_on, make_runs

WITHIN_S = 120.0
_READY = "document.readyState === 'complete' && document.body.offsetWidth > 0"
_INLINE_SCRIPT = """(() => {
  const script = document.createElement("script");
  script.textContent = "window.ran = true";
  document.body.append(script);
  return window.ran === true;
})()"""
"""Whether a script runs that is in the page itself, as a hostile name would have it."""


def until(chromium: Browser, condition: str) -> None:
    """Wait for an expression to be true in the page, which may be another one by then."""
    deadline_s = time.monotonic() + WITHIN_S
    while time.monotonic() < deadline_s:
        try:
            if chromium.run(condition):
                return
        except ServiceError:  # the page is being replaced
            pass
        time.sleep(0.05)
    raise AssertionError(f"never in the page: {condition}")


def go(chromium: Browser, address: str) -> None:
    """Open an address of the view, and wait for its page."""
    chromium.run(f"location.assign({address!r})")
    there = f"location.href.split('?')[0] === {address.partition('?')[0]!r}"
    until(chromium, f"{there} && {_READY}")


@pytest.fixture
def runs(tmp_path: Path) -> ServedFolder:
    return make_runs(tmp_path / "runs")


def at_width(chromium: Browser, width: int, folder: Path, *, is_dark: bool = False) -> None:
    """Set the screen, which an empty page shows."""
    (folder / "empty.html").write_text("<!doctype html><title>empty</title>")
    chromium.open(folder / "empty.html", width, is_dark=is_dark)


def shown(chromium: Browser) -> str:
    return str(chromium.run("document.body.innerText"))


def test_a_team_looks_at_its_runs(chromium: Browser, runs: ServedFolder, tmp_path: Path) -> None:
    at_width(chromium, 1280, tmp_path)
    with team_view(runs.site(1.0)) as view:
        go(chromium, f"{view.url}?token={TOKEN}")
        assert chromium.run("location.search") == "", "the token is in a cookie"
        assert chromium.run("document.cookie") == "", "which no script reads"
        assert HOSTILE in shown(chromium)
        assert chromium.run(_INLINE_SCRIPT) is False
        _sees_a_step(chromium, runs)
        _follows_links(chromium, runs)
        _is_laid_out(chromium, view, tmp_path)
        go(chromium, view.url)
    # the server has ended
    until(chromium, "document.getElementById('connection').innerText.includes('Not refreshed')")
    assert "does not answer" in shown(chromium)


def _sees_a_step(chromium: Browser, runs: ServedFolder) -> None:
    chromium.run("window.unchanged = true")
    go_on(runs.hostile, 11)
    until(chromium, "document.body.innerText.includes('11 of 10')")
    assert chromium.run("window.unchanged"), "the page was not loaded again"


def _follows_links(chromium: Browser, runs: ServedFolder) -> None:
    def click(words: str, condition: str) -> None:
        link = f"[...document.querySelectorAll('a, button')].find(e => e.innerText === {words!r})"
        chromium.run(f"{link}.click()")
        until(chromium, f"{_READY} && {condition}")

    name = runs.trained.name
    click(name, f"document.title === {name!r}")
    assert "reached its last step" in shown(chromium)
    click("Checkpoints", "!!document.querySelector('form')")
    chromium.run("document.querySelector('input[name=keep]').value = 'last=1'")
    click("Preview", "document.body.innerText.includes('3 checkpoints of 4 are removed')")
    click("Compare", "document.body.innerText.includes('2 tensors')")
    assert "model/w" in shown(chromium)
    click("First error and log", "document.body.innerText.includes('ValueError')")
    click("Report", "!!document.querySelector('svg')")
    click(f"← {name}", "!!document.querySelector('nav.of-run')")
    click("Lineage", "document.title === 'Lineage'")
    assert chromium.run("document.querySelectorAll('.lineage line.from').length") == 1
    click("Nodes", "document.title === 'Nodes'")


def _is_laid_out(chromium: Browser, view: TeamView, folder: Path) -> None:
    """Look at each page as it is on a phone in the dark, and on a desk."""
    key = "gpt-1a2b3c4d"
    pages = ["", "lineage.html", "nodes.html"]
    pages += [f"runs/{key}/{name}.html" for name in ("index", "checkpoints", "error")]
    wrong = {}
    for width, is_dark in ((360, True), (1280, False)):
        at_width(chromium, width, folder, is_dark=is_dark)
        for page in pages:
            go(chromium, f"{view.url}{page}")
            count, problems = layout_problems(chromium)
            assert count > 5
            if problems:
                wrong[page, width] = problems
    assert wrong == {}
