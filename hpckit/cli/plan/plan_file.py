"""Writes a plan to a file in the format that its ending names."""

from __future__ import annotations

import time
from io import BytesIO
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from hpckit.cli.common.command_errors import CommandError
from hpckit.cli.plan.plan_document import PlannedRun, plan_document
from hpckit.distribution import NAME
from hpckit.report.page.page_document import PageDocument
from hpckit.report.page.page_file import ForeignFileError, check_place
from hpckit.report.page.render.html_page import html
from hpckit.report.page.render.markdown_page import markdown
from hpckit.system.atomic_files import write_text

PACKAGES = {
    ".pdf": "fpdf2",
    ".docx": "python-docx",
    ".xlsx": "openpyxl",
    ".pptx": "python-pptx",
}
"""Packages of the extra `documents` by the ending of what they write."""
ENDINGS = (".html", ".md", *PACKAGES)


def check_file(path: Path) -> None:
    """Check that a plan can be written to `path`.

    Raises:
        CommandError: its ending names no format, or another file is there.
        OSError: the file that is there cannot be read.
    """
    if path.suffix not in ENDINGS:
        raise CommandError(f"--out: {path} must end in {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}")
    if path.suffix in PACKAGES and path.is_file():
        if not _is_own(path.read_bytes()):
            raise CommandError(
                f"{path} was not written by hpckit; remove it, or give another --out"
            )
        return
    try:
        check_place(path)
    except ForeignFileError as error:
        raise CommandError(str(error)) from None


def _is_own(content: bytes) -> bool:
    """Return whether a file of an office program, or a PDF, names hpckit as its author, or is
    empty."""
    if not content or content.startswith(b"%PDF"):
        return not content or b"/Creator (hpckit)" in content
    try:
        with ZipFile(BytesIO(content)) as archive:
            return b">hpckit<" in archive.read("docProps/core.xml")
    except (BadZipFile, KeyError):
        return False


def write_plan(planned: PlannedRun, path: Path) -> None:
    """Write the plan, and create its folder.

    Raises:
        CommandError: a package is missing.
        OSError: it cannot be written.
    """
    document = plan_document(planned, time.strftime("%Y-%m-%d %H:%M"))
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".html":
        write_text(path, html(document))
    elif path.suffix == ".md":
        write_text(path, markdown(document))
    else:
        try:
            _write_office(planned, document, path)
        except ModuleNotFoundError as error:
            package = PACKAGES[path.suffix]
            raise CommandError(
                f"--out: a file that ends in {path.suffix} needs {package}, of the extra "
                f"documents: pip install '{NAME}[documents]', with the wheel's path for the name"
            ) from error


def _write_office(planned: PlannedRun, document: PageDocument, path: Path) -> None:
    if path.suffix == ".pdf":
        from hpckit.report.page.office.pdf_file import write_pdf

        write_pdf(document, path)
    elif path.suffix == ".docx":
        from hpckit.report.page.office.word_file import write_word

        write_word(document, path)
    elif path.suffix == ".pptx":
        from hpckit.report.page.office.slides_file import write_slides

        write_slides(document, path)
    else:
        from hpckit.cli.plan.plan_workbook import write_workbook

        write_workbook(planned, document, path)
