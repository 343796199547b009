"""Pages name files that are there, and link to places that are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted(
    path
    for pattern in ("*.md", "docs/*.md", "*/*.md", "slurm/devcluster/*.md")
    for path in ROOT.glob(pattern)
)
_FILE = re.compile(r"`([\w./-]+\.(?:py|yaml|sbatch|md))`")
_LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
FILES = [
    path.relative_to(ROOT).as_posix()
    for room in ("hpckit", "checkpointing", "data", "slurm", "tests", "conf", "benchmarks")
    for path in (ROOT / room).rglob("*.*")
]


def is_there(name: str) -> bool:
    """From the top, or from any folder in it: pages leave out what they are about."""
    return (ROOT / name).exists() or any(path.endswith(f"/{name}") for path in FILES)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_and_links_of_a_page_are_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    linked = {link for link in _LINK.findall(text) if "://" not in link}
    missing = [name for name in sorted({*_FILE.findall(text)}) if not is_there(name)]
    missing += [link for link in sorted(linked) if not (page.parent / link).exists()]
    assert missing == []
