"""What `hpckit bench collectives` refuses before it starts anything."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from hpckit.cli.main import app


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--sizes 4KiB,12q", "--sizes: '12q' is not a size: write 5GB"),
        ("--operations all_reduce,foo", "--operations: 'foo' is not one of all_reduce, all_gather"),
        ("train.steps=4", "train.steps: has no effect on a program"),
        ("launch.nproc_per_node=0", "launch.nproc_per_node: must be greater than or equal to 1"),
    ],
)
def test_a_wrong_argument_is_named(words: str, told: str) -> None:
    done = CliRunner().invoke(app, ["bench", "collectives", *words.split()])
    assert done.exit_code == 2
    assert done.stderr.startswith(f"error: {told}")
