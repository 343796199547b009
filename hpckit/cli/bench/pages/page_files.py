"""Prints what a command has measured as tables, writes it as a page and as numbers, and prints
where both are."""

from __future__ import annotations

import json
import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpckit.cli.common.command_errors import CommandError
from hpckit.cli.common.command_output import CommandOutput, table
from hpckit.report.page.json_record import HEAD
from hpckit.report.page.page_document import CommandsBlock, PageDocument, Section, TableBlock
from hpckit.report.page.page_file import ForeignFileError, check_place
from hpckit.report.page.render.html_page import html
from hpckit.system.atomic_files import write_text
from hpckit.text.json_values import plain


def check_page(path: Path | None) -> None:
    """Check that a page can be written to `path`, and its numbers beside it, before hours are spent
    on them. Its folder is made.

    Raises:
        CommandError: it does not end in .html, or another file is there.
        OSError: its folder cannot be written.
    """
    if path is None:
        return
    if path.suffix != ".html":
        raise CommandError(f"--out: {path} must end in .html")
    try:
        for file in (path, _numbers_file(path)):
            check_place(file)
    except ForeignFileError as error:
        raise CommandError(str(error)) from None
    check_folder(path)


def check_folder(path: Path) -> None:
    """Check that files can be written to the folder of `path`, which is made.

    Raises:
        OSError: they cannot.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=path.parent):
        pass


def _numbers_file(page: Path) -> Path:
    return page.with_suffix(".json")


def typed_command() -> str:
    """Return the command that was typed, for a page."""
    return shlex.join(["hpckit", *sys.argv[1:]])


def print_table(out: CommandOutput, block: TableBlock, folded: Sequence[str] = ()) -> None:
    """Print a table of a page; its columns of words are on the left.

    Args:
        folded: columns whose cells are wrapped.
    """
    right = tuple(name for name in block.head if name not in block.words)
    shown = table(*block.head, right=right, folded=folded)
    for row in block.rows:
        shown.add_row(*row)
    out.table(shown)


def write_page_files(
    out: CommandOutput, document: PageDocument, numbers: Mapping[str, Any], path: Path
) -> None:
    """Write the page to `path` and the numbers beside it, and print where they are.

    Raises:
        OSError: one of them cannot be written.
    """
    section = Section("Command", (CommandsBlock((typed_command(),)),))
    whole = PageDocument(document.title, document.as_of, (*document.sections, section))
    file = _numbers_file(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, html(whole))
    write_text(file, json.dumps(plain({**HEAD, **numbers}), indent=2, allow_nan=False) + "\n")
    out.line()
    out.fact("page", str(path.absolute()))
    out.fact("numbers", str(file.absolute()))
    out.document({**numbers, "page": str(path.absolute()), "numbers": str(file.absolute())})
