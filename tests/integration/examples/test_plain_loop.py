"""The plain loop, alone and by torchrun with FSDP2: killed, started again, the same to the bit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from tests.integration.examples.example_programs import (
    TORCHRUN,
    ForkedExample,
    assert_same_end,
    beside,
    forked,
    kill_service,
    run,
)

STEPS = ("--steps", 400)  # of a millisecond or two: who kills at a step may be some late


@pytest.fixture(scope="module")
def forks() -> Iterator[ForkedExample]:
    with forked("plain_loop") as forks:
        yield forks


@pytest.mark.parametrize(
    ("launcher", "ranks"), [((), None), (TORCHRUN, 2)], ids=["alone", "torchrun"]
)
def test_killed_it_goes_on_as_if_nothing_had_been(
    tmp_path: Path, forks: ForkedExample, launcher: Sequence[str], ranks: int | None
) -> None:
    reference, root = tmp_path / "reference", tmp_path / "root"
    with beside(partial(run, "plain_loop", reference, *STEPS, launcher=launcher)) as finished:
        first = forks.run(root, *STEPS, ranks=ranks, kill_at=30)
        second = forks.run(root, *STEPS, ranks=ranks, kill_at=120)
        kill_service(root, "plain")
        third = forks.run(root, *STEPS, ranks=ranks)
        whole = finished.result()
    assert sorted(whole.losses) == list(range(1, 401))
    assert min(first.losses) == 1
    assert 1 < min(second.losses) <= min(third.losses)
    assert max(third.losses) == 400
    for part in (first, second, third):
        assert part.losses.items() <= whole.losses.items()
    assert_same_end(root, reference, "plain")


def test_what_two_ranks_saved_one_goes_on_with(tmp_path: Path, forks: ForkedExample) -> None:
    root = tmp_path / "root"
    forks.run(root, *STEPS, ranks=2, kill_at=100)
    alone = forks.run(root, *STEPS)
    assert sorted(alone.losses) == list(range(min(alone.losses), 401))
    assert min(alone.losses) > 1
    assert forks.run(root, *STEPS).losses == {}  # nothing is left to do
