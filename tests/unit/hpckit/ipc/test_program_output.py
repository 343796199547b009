"""Steps that are read from lines of output."""

from __future__ import annotations

import re

import pytest

from hpckit.ipc.program_output import parse_line

NANO = re.compile(r"iter (?P<step>\d+): loss (?P<loss>\S+), time (?P<ms>\S+)ms")


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("iter 10: loss 3.21, time 12.5ms", (10, {"loss": 3.21, "ms": 12.5})),
        ("[rank0] iter 0: loss nan?, time 1,024ms", (0, {"ms": 1024.0})),
        ("step 10", None),
        ("", None),
    ],
)
def test_a_line(line: str, found: tuple[int, dict[str, float]] | None) -> None:
    assert parse_line(line, NANO) == found


def test_a_step_that_is_no_number() -> None:
    assert parse_line("step x", re.compile(r"step (?P<step>\w)")) is None
