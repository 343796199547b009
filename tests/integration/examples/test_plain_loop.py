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

EVERY = 10  # steps between two saves of the example
LAST = 400  # steps of a millisecond or two: who kills at a step may be some late
LAST_OF_TWO = 200  # of two ranks, whose steps take several


def steps(last: int) -> tuple[str, int]:
    return "--steps", last


@pytest.fixture(scope="module")
def forks() -> Iterator[ForkedExample]:
    with forked("plain_loop") as forks:
        yield forks


@pytest.mark.parametrize(
    ("launcher", "ranks", "last"),
    [((), None, LAST), (TORCHRUN, 2, LAST_OF_TWO)],
    ids=["alone", "torchrun"],
)
def test_killed_it_goes_on_as_if_nothing_had_been(
    tmp_path: Path, forks: ForkedExample, launcher: Sequence[str], ranks: int | None, last: int
) -> None:
    reference, root, words = tmp_path / "reference", tmp_path / "root", steps(last)
    with beside(partial(run, "plain_loop", reference, *words, launcher=launcher)) as finished:
        first = forks.run(root, *words, ranks=ranks, kill_at=30)
        second = forks.run(root, *words, ranks=ranks, kill_at=100)
        restored = (min(second.losses) - 1) // EVERY * EVERY  # the first line was missing once
        kill_service(root, "plain", durable=restored)
        third = forks.run(root, *words, ranks=ranks)
        whole = finished.result()
    assert sorted(whole.losses) == list(range(1, last + 1))
    assert min(first.losses) == 1
    assert 1 < min(second.losses) <= min(third.losses)
    assert max(third.losses) == last
    for part in (first, second, third):
        assert part.losses.items() <= whole.losses.items()
    assert_same_end(root, reference, "plain")


def test_what_two_ranks_saved_one_goes_on_with(tmp_path: Path, forks: ForkedExample) -> None:
    root = tmp_path / "root"
    words = steps(LAST_OF_TWO)
    forks.run(root, *words, ranks=2, kill_at=50)
    alone = forks.run(root, *words)
    assert sorted(alone.losses) == list(range(min(alone.losses), LAST_OF_TWO + 1))
    assert min(alone.losses) > 1
    assert forks.run(root, *words).losses == {}  # nothing is left to do
