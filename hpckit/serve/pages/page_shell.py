"""What all pages have: the head, the ways to the others, and when they were read. Pure, but for the
files of styles and scripts."""

from __future__ import annotations

import time
from dataclasses import dataclass
from importlib.resources import files

from hpckit.report.page.render.stylesheet import STYLE
from hpckit.serve.pages.html_elements import Content, Html, tag

MARK = '<meta name="generator" content="hpckit serve">'
"""Text that identifies a page of a view."""
NAVIGATION = (("index.html", "Runs"), ("lineage.html", "Lineage"), ("nodes.html", "Nodes"))
_NO_SCRIPT = "script-src 'none'; object-src 'none'; base-uri 'none'; form-action 'none'"


@dataclass(frozen=True)
class PageFrame:
    """Where a page is, and whether a server answers for it."""

    up: str
    """From the page to the top: "" or "../../"."""
    every_s: float | None
    """Seconds after which a page is refreshed; None: it is a file."""

    @property
    def is_served(self) -> bool:
        return self.every_s is not None

    def run(self, key: str, page: str = "index.html") -> str:
        """Return the address of a page of a run."""
        return f"{self.up}runs/{key}/{page}"


def page(
    frame: PageFrame, title: str, main: Content, now: float, *, here: str = "", is_live: bool = True
) -> str:
    """Return a whole page.

    Args:
        here: the entry of the navigation that it is.
        is_live: whether its content is refreshed, if a server answers for it.
    """
    refreshes = frame.is_served and is_live
    entries = [
        tag("a", name, href=f"{frame.up}{to}", aria_current="page" if to == here else None)
        for to, name in NAVIGATION
    ]
    head = [
        Html('<meta charset="utf-8">'),
        Html(MARK),
        Html('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        tag("title", title),
        tag("link", rel="stylesheet", href=f"{frame.up}style.css"),
    ]
    if refreshes:
        head.append(tag("script", src=f"{frame.up}live.js", defer=True))
    if not frame.is_served:
        head.append(tag("meta", http_equiv="Content-Security-Policy", content=_NO_SCRIPT))
    read = time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(now))
    top = tag(
        "header",
        tag("nav", *entries, aria_label="pages"),
        tag("p", f"as of {read}", class_="note", id="read", data_live=refreshes),
        tag("p", class_="alert", id="connection", role="status", hidden=True)
        if refreshes
        else None,
        class_="top",
    )
    body = tag("main", tag("h1", title), main, id="main", data_live=refreshes)
    every = f"{1000 * frame.every_s:.0f}" if refreshes and frame.every_s else None
    whole = tag("html", tag("head", *head), tag("body", top, body), lang="en", data_every_ms=every)
    return f"<!doctype html>{whole}\n"


def breadcrumbs(frame: PageFrame, key: str, name: str, here: str) -> Html:
    """Return the ways to the pages of a run, of which `here` is one."""
    known = {
        "index.html": "State",
        "report.html": "Report",
        "checkpoints.html": "Checkpoints",
        "error.html": "First error and log",
    }
    entries = [
        tag("a", words, href=frame.run(key, to), aria_current="page" if to == here else None)
        for to, words in known.items()
    ]
    return tag("nav", *entries, aria_label=f"pages of {name}", class_="of-run")


def stylesheet() -> str:
    """Return the style of the report, and what only these pages have."""
    return STYLE + _asset("style.css")


def script() -> str:
    """Return the script that refreshes pages."""
    return _asset("live.js")


def _asset(name: str) -> str:
    return (files("hpckit.serve") / "assets" / name).read_text(encoding="utf-8")
