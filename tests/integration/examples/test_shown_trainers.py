"""What docs/your-trainer.md shows is what the programs do, and options that are there."""

from __future__ import annotations

import pytest

from docs.hooks import ROOT
from tests.integration.examples.launched_programs import PROGRAMS
from tests.unit.project.doc_blocks import Block, blocks

SHOWN = [block for block in blocks(ROOT / "docs/your-trainer.md") if block.about]


def test_each_program_is_shown() -> None:
    names = {path.name for path in PROGRAMS.glob("*_program.py")}
    adapted = {f"examples/{name}/after.py" for name in ("huggingface", "lightning")}
    assert {block.about for block in SHOWN} == names | adapted


@pytest.mark.parametrize("block", SHOWN, ids=lambda block: str(block.about))
def test_a_block_shows_the_lines_of_a_program_in_their_order(block: Block) -> None:
    folder = ROOT if block.about.startswith("examples/") else PROGRAMS
    program = (folder / block.about).read_text(encoding="utf-8").splitlines()
    lines = iter([line.strip() for line in program])
    shown = [line.strip() for line in block.text.splitlines() if line.strip() not in ("", "...")]
    assert shown
    assert [line for line in shown if line not in lines] == []
