"""Puts a page where it is wanted, and on nothing that is not ours."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hpckit.report.page import html, markdown, record
from hpckit.report.page.compare import document_of
from hpckit.report.page.content import Content
from hpckit.report.page.sections import page_of
from hpckit.run.durable import write_text

MARKS = {"html": html.MARK, "md": markdown.MARK, "json": record.MARK}
"""What a page of each format has at its beginning."""
_HEAD = 1024  # bytes in which that is


class NotOursError(RuntimeError):
    """There is something else at that place."""


def render(runs: Sequence[Content], form: str) -> str:
    """The page of one run, or of several beside each other, in a format of `MARKS`."""
    if form == "json":
        return record.as_json(runs)
    document = page_of(runs[0]) if len(runs) == 1 else document_of(runs)
    return html.html(document) if form == "html" else markdown.markdown(document)


def check_place(path: Path) -> None:
    """
    Raises:
        NotOursError: at `path` is something that no report has put there.
        OSError: it cannot be looked at.
    """
    if path.is_dir():
        raise NotOursError(f"{path} is a folder; name a file in it")
    if not path.exists():
        return
    if not path.is_file():
        raise NotOursError(f"{path} is no regular file; --out - prints the report")
    with open(path, "rb") as file:
        head = file.read(_HEAD)
    if head and not any(mark.encode() in head for mark in MARKS.values()):
        raise NotOursError(f"{path} is no report of hpckit's; remove it, or give another --out")


def put(path: Path, page: str) -> None:
    """Write `page` to `path`, whose folder is made; an earlier report is replaced.

    Raises:
        NotOursError, OSError: see `check_place`; or it cannot be written.
    """
    check_place(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, page)
