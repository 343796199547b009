"""Calls of Slurm's programs."""

from __future__ import annotations

import pytest

from hpckit.slurm.slurm_query import SlurmCallError, query


def test_the_error_of_a_call_says_what_the_program_said_last() -> None:
    assert query(["echo", "n1"], 20) == "n1\n"
    with pytest.raises(SlurmCallError, match=r": fatal: no configuration source$"):
        query(
            ["sh", "-c", "echo error: no DNS >&2; echo fatal: no configuration source >&2; exit 1"],
            20,
        )
    with pytest.raises(SlurmCallError, match=r"^false: exit status 1$"):
        query(["false"], 20)
