"""The programs that `python -m tests.trainers` plays."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

from tests.effort import EFFORT, some, times
from tests.trainers.changes import Change, draw_changes, draw_elsewhere
from tests.trainers.playing import CASES, CHANGES
from tests.trainers.programs import WRAPPINGS, Program, draw_program, draw_setting
from tests.trainers.ranks import SEEDS, play

WORLDS = (1, 2, 3, 4)
"""Sizes that programs are drawn for."""


ONCE = (39, 196, 773, 1246, 1376, 1379, 1576, 1789, 1940, 2017)
"""Programs that have each kind of everything once at least, most of them on few ranks."""
TWICE = (
    *(2, 3, 4, 5, 6, 19, 21, 22, 30, 31, 75, 134, 135, 156, 157, 192, 195, 582, 587, 748, 749),
    *(948, 950, 953, 1494, 1707),
)
"""Others that have each kind twice."""


def chosen_seeds(count: int) -> list[int]:
    """So many, those that were chosen first."""
    others = (seed for seed in range(count) if seed not in (*ONCE, *TWICE))
    return list(islice((*ONCE, *TWICE, *others), count))


PLAYED = chosen_seeds(times(len(ONCE + TWICE)) if EFFORT > 1 else len(ONCE))
"""Some 60 restores, with an effort of 1."""


def drawn(seed: int) -> tuple[Program, list[Change]]:
    setting = draw_setting(seed // SEEDS)
    program = draw_program(seed, setting)
    return program, [
        *draw_changes(program, setting, CHANGES),
        draw_elsewhere(program, setting),
    ]


def test_programs_follow_from_their_seed_and_are_of_all_kinds() -> None:
    """Or many cases of them are few."""
    every = [drawn(seed) for seed in PLAYED]
    assert every == [drawn(seed) for seed in PLAYED]
    wrappings = Counter(program.wrapping.kind for program, _ in every)
    worlds = Counter(program.world for program, _ in every)
    kinds = Counter(change.kind for _, changes in every for change in changes)
    optimizers = Counter(one.kind for program, _ in every for one in program.steppers)
    schedulers = Counter(one.scheduler for program, _ in every for one in program.steppers)
    assert wrappings.keys() == {*WRAPPINGS}
    assert worlds.keys() == {*WORLDS}
    assert (len(kinds), len(optimizers), len(schedulers)) == (24, 13, 13)
    most_seldom = min(*wrappings.values(), *worlds.values(), *kinds.values())
    assert min(most_seldom, *optimizers.values(), *schedulers.values()) >= some([1], [3])[-1]


@pytest.mark.timeout(600 * max(1.0, EFFORT))
def test_what_comes_back_is_what_was_saved_whatever_the_program_is(tmp_path: Path) -> None:
    """As torch's own state dicts say; and what does not fit is refused, and changes nothing."""
    played, failed = play(PLAYED, tmp_path / "trainers", streams=2)
    assert not failed, "\n\n".join(failed)
    cases, tiers = Counter[str](), Counter[str]()
    for one in played:
        cases += one.cases
        tiers += one.tiers
    assert cases.total() >= len(PLAYED) * CASES
    assert min(tiers["memory"], tiers["store"]) > 0.15 * len(PLAYED)
    assert sum(one.refused for one in played) > 1.2 * len(PLAYED)
