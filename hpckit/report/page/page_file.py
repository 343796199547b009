"""Writes a page to a file, which may replace an earlier report but nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hpckit.report.page import json_record
from hpckit.report.page.page_content import PageContent
from hpckit.report.page.page_sections import page_of
from hpckit.report.page.render import html_page, markdown_page
from hpckit.report.page.run_comparison import document_of
from hpckit.system.atomic_files import write_text

MARKS = {"html": html_page.MARK, "md": markdown_page.MARK, "json": json_record.MARK}
"""What a page of each format has at its beginning."""
_HEAD = 1024  # bytes in which the mark is


class ForeignFileError(RuntimeError):
    """Raised if the file to write exists and is not a report of hpckit."""


def render(runs: Sequence[PageContent], form: str) -> str:
    """Render the page of one run, or of several, in a format of `MARKS`."""
    if form == "json":
        return json_record.as_json(runs)
    document = page_of(runs[0]) if len(runs) == 1 else document_of(runs)
    return html_page.html(document) if form == "html" else markdown_page.markdown(document)


def check_place(path: Path) -> None:
    """Check that a page may be written to `path`.

    Raises:
        ForeignFileError: the file at `path` is not a report.
        OSError: it cannot be read.
    """
    if path.is_dir():
        raise ForeignFileError(f"{path} is a folder; name a file in it")
    if not path.exists():
        return
    if not path.is_file():
        raise ForeignFileError(f"{path} is not a regular file; --out - prints the report")
    with open(path, "rb") as file:
        head = file.read(_HEAD)
    if head and not any(mark.encode() in head for mark in MARKS.values()):
        raise ForeignFileError(
            f"{path} is not a report of hpckit; remove it, or give another --out"
        )


def write_page(path: Path, page: str) -> None:
    """Write `page` to `path` and create its folder; an earlier report is replaced.

    Raises:
        ForeignFileError, OSError: see `check_place`; or it cannot be written.
    """
    check_place(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, page)
