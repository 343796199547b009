"""What checkpointing/README.md shows is what the examples do, and runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

from typer.testing import CliRunner

from checkpointing import list_run
from hpckit.cli.main import app
from tests.effort import EFFORT
from tests.forkserver import WITH_IMPORTS
from tests.integration.service.running_services import REPOSITORY

FOLDER = REPOSITORY / "checkpointing"
README = (FOLDER / "README.md").read_text()
EXAMPLES = ("plain_loop", "lightning_trainer", "huggingface_trainer", "torchtitan_loop")


def blocks(name: str) -> list[str]:
    """Those that stand below `<!-- name -->`."""
    found = re.findall(rf"<!-- {re.escape(name)} -->\n\n((?:    .*\n|\n)+)", README)
    return [textwrap.dedent(block) for block in found]


def test_it_shows_the_lines_of_the_examples_in_their_order() -> None:
    for example in EXAMPLES:
        program = (FOLDER / f"examples/{example}.py").read_text().splitlines()
        lines = iter([line.strip() for line in program])
        (block,) = blocks(f"{example}.py")
        shown = [line.strip() for line in block.splitlines() if line.strip() not in ("", "...")]
        assert shown
        assert [line for line in shown if line not in lines] == [], example


def test_an_example_is_a_program_that_calls_its_main() -> None:
    for example in EXAMPLES:
        program = (FOLDER / f"examples/{example}.py").read_text()
        assert program.endswith('\n\nif __name__ == "__main__":\n    main()\n'), example


def test_dcp_both_ways_and_by_hand(tmp_path: Path) -> None:
    first, second = blocks("dcp")
    program = [sys.executable, "-c", f"{first}\n{second}"]
    may_share = WITH_IMPORTS if EFFORT <= 1 else {}  # or it needs no import of its own
    subprocess.run(program, cwd=tmp_path, env=os.environ | may_share, check=True)
    by_hand = README.partition("\nor by hand:\n")[2].partition("\n#")[0].splitlines()
    commands = [line.split()[1:] for line in by_hand if line.startswith("    hpckit ckpt")]
    assert len(commands) == 2
    places = ("folder", "ckpts", "ckpts/runs/by-hand", "folder-of-it")
    for command in commands:
        here = [str(tmp_path / word) if word in places else word for word in command]
        result = CliRunner().invoke(app, here)
        assert result.exit_code == 0, result.output
    assert [info.step for info in list_run(tmp_path / "ckpts", "by-hand")] == [100]
    assert (tmp_path / "folder-of-it/.metadata").exists()
    assert (tmp_path / "again/.metadata").exists()


def test_it_names_events_and_tests_that_exist() -> None:
    source = "".join(path.read_text() for path in FOLDER.glob("**/*.py"))
    told = README.partition("## Events")[2].partition("## What is promised")[0]
    kinds = re.findall(r"`([a-z]+_[a-z]+)`", told)
    assert len(kinds) > 8
    assert [kind for kind in kinds if f'"{kind}"' not in source] == []
    promised = README.partition("## What is promised")[2].partition("## Examples")[0]
    tests = re.findall(r"`((?:unit|faults|integration)/[^`]+\.py)`", promised)
    assert len(tests) > 8
    assert [name for name in tests if not list((REPOSITORY / "tests").glob(name))] == []
