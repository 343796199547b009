"""The programs that `python -m tests.trainers` plays."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.effort import EFFORT, times
from tests.trainers.changes import Change, draw_changes, draw_elsewhere
from tests.trainers.playing import CASES, CHANGES
from tests.trainers.programs import WRAPPINGS, Program, draw_program, draw_setting
from tests.trainers.ranks import SEEDS, play

SEEDS_OF_2000 = -(-2000 // CASES)


def drawn(seed: int) -> tuple[Program, list[Change]]:
    setting = draw_setting(seed // SEEDS)
    program = draw_program(seed, setting)
    return program, [
        *draw_changes(program, setting, CHANGES),
        draw_elsewhere(program, setting),
    ]


def test_programs_follow_from_their_seed_and_are_of_all_kinds() -> None:
    """Or many cases of them are few."""
    every = [drawn(seed) for seed in range(SEEDS_OF_2000)]
    assert every == [drawn(seed) for seed in range(SEEDS_OF_2000)]
    wrappings = Counter(program.wrapping.kind for program, _ in every)
    worlds = Counter(program.world for program, _ in every)
    kinds = Counter(change.kind for _, changes in every for change in changes)
    optimizers = Counter(one.kind for program, _ in every for one in program.steppers)
    schedulers = Counter(one.scheduler for program, _ in every for one in program.steppers)
    assert wrappings.keys() == {*WRAPPINGS}
    assert worlds.keys() == {1, 2, 3, 4}
    assert (len(kinds), len(optimizers), len(schedulers)) == (24, 13, 13)
    assert min(*kinds.values(), *optimizers.values(), *schedulers.values()) >= 3


@pytest.mark.timeout(600 * max(1.0, EFFORT))
def test_what_comes_back_is_what_was_saved_whatever_the_program_is(tmp_path: Path) -> None:
    """As torch's own state dicts say; and what does not fit is refused, and changes nothing."""
    seeds = range(times(SEEDS_OF_2000))
    played, failed = play(seeds, tmp_path / "trainers", streams=3)
    assert not failed, "\n\n".join(failed)
    cases, tiers = Counter[str](), Counter[str]()
    for one in played:
        cases += one.cases
        tiers += one.tiers
    assert cases.total() >= len(seeds) * CASES
    assert min(tiers["memory"], tiers["store"]) > 50
    assert sum(one.refused for one in played) > 400
