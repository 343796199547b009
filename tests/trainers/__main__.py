"""`python -m tests.trainers`: one program with all of its changes, or many."""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.integration.service.running_services import kill_all
from tests.trainers.changes import draw_changes, draw_elsewhere
from tests.trainers.playing import CASES, CHANGES
from tests.trainers.programs import draw_program, draw_setting
from tests.trainers.ranks import SEEDS, play


def describe(seed: int) -> None:
    setting = draw_setting(seed // SEEDS)
    program = draw_program(seed, setting)
    print(setting, program, sep="\n")
    for change in (
        *draw_changes(program, setting, CHANGES),
        draw_elsewhere(program, setting),
    ):
        print(f"  {change.kind}: {change.program.wrapping.kind}, refused by {change.says!r}")


def main() -> int:
    """The exit status: 1 if anything failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, help="of the one program to play")
    parser.add_argument("--first", type=int, default=0, help="seed of the first of many")
    parser.add_argument("--cases", type=int, default=2000, help="restores to try, in all")
    parser.add_argument("--streams", type=int, default=3, help="worlds at once")
    asked = parser.parse_args()
    seeds = [asked.seed] if asked.seed is not None else _seeds(asked.first, asked.cases)
    if asked.seed is not None:
        describe(asked.seed)
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="hpckit-") as folder:
        os.environ["HPCKIT_RUNTIME_DIR"] = folder
        try:
            played, failed = play(seeds, Path(folder) / "trainers", min(asked.streams, len(seeds)))
        finally:
            kill_all()
    cases, tiers = Counter[str](), Counter[str]()
    for one in played:
        cases += one.cases
        tiers += one.tiers
    for kind, count in cases.most_common():
        print(f"{kind:20} {count:7,}")
    print(
        f"{cases.total():,} restores, {sum(one.refused for one in played):,} refused, "
        f"{dict(tiers)}, {len(failed)} failures, {time.monotonic() - began_s:.0f} s"
    )
    return int(bool(failed))


def _seeds(first: int, cases: int) -> list[int]:
    return list(range(first, first - (-cases // CASES)))


if __name__ == "__main__":
    raise SystemExit(main())
