"""What MkDocs makes the site of: the pages of the repository, each at its place in it.

So a link from page to page holds in a checkout, in a browser of code, and in the site.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("benchmarks", "checkpointing", "data", "docs", "examples", "hpckit", "slurm", "tests")
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


def pages() -> list[Path]:
    """Every page of the repository, once; folders that tools hide are no part of it."""
    found = [*ROOT.glob("*.md"), *(path for room in ROOMS for path in (ROOT / room).rglob("*.md"))]
    return sorted(path for path in found if not _is_hidden(path.relative_to(ROOT)))


def links(page: Path) -> set[str]:
    """What a page links to inside the repository, from where it lies."""
    found: list[str] = LINK.findall(page.read_text(encoding="utf-8"))
    return {link for link in found if "://" not in link}


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def on_files(files: Any, config: Any) -> Any:
    """MkDocs' event: its files are the theme's, the pages, and other files that pages link to."""
    from mkdocs.structure.files import File, Files

    linked = {(page.parent / link).resolve() for page in pages() for link in links(page)}
    paths = {*pages(), *(path for path in linked if path.is_file()), ROOT / "docs/site.css"}
    names = sorted(path.relative_to(ROOT).as_posix() for path in paths)
    ours = [File(name, str(ROOT), config.site_dir, config.use_directory_urls) for name in names]
    kept = [file for file in files if not file.abs_src_path.startswith(str(ROOT / "docs"))]
    return Files([*kept, *ours])
