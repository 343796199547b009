"""Writes the pages of a site as files, for a wiki or any server of files."""

from __future__ import annotations

from pathlib import Path

from hpckit.serve.pages.page_shell import MARK
from hpckit.serve.site import PageNotFoundError, RunSite
from hpckit.system.atomic_files import write_text

_HEAD = 1024  # bytes in which the mark is


class ForeignFolderError(RuntimeError):
    """Raised if a folder holds other files than those of an earlier export."""


def check_folder(folder: Path) -> None:
    """Check that pages may be written to `folder`.

    Raises:
        ForeignFolderError: it is neither new, nor empty, nor of an earlier export.
        OSError: it cannot be read.
    """
    if not folder.exists():
        return
    if not folder.is_dir():
        raise ForeignFolderError(f"{folder} is not a folder; name a new one")
    index = folder / "index.html"
    if index.is_file():
        with open(index, "rb") as file:
            if MARK.encode() in file.read(_HEAD):
                return
    if any(folder.iterdir()):
        raise ForeignFolderError(
            f"{folder} has other files than those of hpckit serve --export; name a new folder"
        )


def export_site(site: RunSite, folder: Path) -> int:
    """Write all pages to `folder`, and return how many. Pages of an earlier export are replaced,
    and those of runs that there are no more stay.

    Raises:
        ForeignFolderError, OSError: see `check_folder`; or a page cannot be written.
    """
    check_folder(folder)
    written = 0
    for address in site.addresses():
        try:
            text = site.page(address, {}).text
        except PageNotFoundError:  # the run was removed meanwhile
            continue
        path = folder / address
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text.encode("utf-8", "backslashreplace").decode("utf-8"))
        written += 1
    return written
