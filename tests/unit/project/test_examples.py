"""An example is a program before and after, whose difference is small, and which its page shows."""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest

from docs.hooks import ROOT
from tests.unit.project.doc_blocks import blocks

EXAMPLES = sorted(path.parent for path in (ROOT / "examples").glob("*/before.py"))
MOST_LINES = 10
"""That an example may add or change."""


def difference(folder: Path) -> list[str]:
    """How `after.py` differs, as its page shows it: as `diff -U1` does, but without dates."""
    before, after = (
        (folder / name).read_text(encoding="utf-8").splitlines()
        for name in ("before.py", "after.py")
    )
    lines = difflib.unified_diff(before, after, "before.py", "after.py", n=1, lineterm="")
    return [line.rstrip() for line in lines]


def test_each_framework_has_an_example() -> None:
    names = [folder.name for folder in EXAMPLES]
    assert names == ["ddp", "fsdp2", "huggingface", "lightning", "torchtitan"]


@pytest.mark.parametrize("folder", EXAMPLES, ids=lambda folder: str(folder.name))
def test_a_program_is_changed_in_few_lines(folder: Path) -> None:
    _, _, *lines = difference(folder)
    added = [line for line in lines if line.startswith("+")]
    assert 0 < len(added) <= MOST_LINES, "\n".join(added)


@pytest.mark.parametrize("folder", EXAMPLES, ids=lambda folder: str(folder.name))
def test_a_page_shows_the_difference(folder: Path) -> None:
    shown = [block.text.splitlines() for block in blocks(folder / "README.md")]
    found = difference(folder)
    assert [line.rstrip() for line in next(b for b in shown if b[0] == found[0])] == found, (
        "the page needs this block:\n" + "\n".join(f"    {line}".rstrip() for line in found)
    )


@pytest.mark.parametrize("folder", EXAMPLES, ids=lambda folder: str(folder.name))
def test_a_program_uses_only_what_is_public(folder: Path) -> None:
    """The top of `checkpointing`, the client and the integrations."""
    lines = (folder / "after.py").read_text(encoding="utf-8").splitlines()
    ours = [line for line in lines if line.startswith(("from hpckit", "from checkpointing"))]
    public = (
        "from checkpointing import ",
        "from checkpointing.integrations.",
        "from hpckit import client",
        "from hpckit.integrations.",
    )
    assert ours
    assert [line for line in ours if not line.startswith(public)] == []
