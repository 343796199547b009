"""How often a straggler is named: where there is none, and where one rank is slower.

    python -m benchmarks.run.straggler_windows [--windows 4000] [--slow-windows 100]

The times of ranks are drawn at random with several kinds of noise, and each window of traced steps
is judged as in a run. For each noise and number of ranks, the table has the number of windows that
name a rank if all are equal, which are false alarms, and the share of windows that name the right
rank alone if it is 5, 20 and 100 % slower. Seeds are fixed, so the figures are the same on each
machine; only the processor time of a window is not.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable

from benchmarks.common.number_arguments import positive_int
from hpckit.events.step_phases import PARTS
from hpckit.trainer.timing.straggler_cost import WINDOW, RankPlace, RankTime, what_if

_NOISES: dict[str, Callable[[random.Random], float]] = {
    "normal, 1 %": lambda rng: rng.gauss(0, 0.01),
    "normal, 5 %": lambda rng: rng.gauss(0, 0.05),
    "normal, 20 %": lambda rng: max(-0.9, rng.gauss(0, 0.2)),
    "log-normal, 30 %": lambda rng: rng.lognormvariate(0, 0.3) - 1,
    "heavy tails": lambda rng: (
        rng.gauss(0, 0.01) + (rng.paretovariate(1.2) if rng.random() < 0.1 else 0)
    ),
}
_RANKS, _SLOW, _SLOW_RANK = (3, 4, 8), (0.05, 0.2, 1.0), 1


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--windows", type=positive_int, default=4000)
    parser.add_argument("--slow-windows", type=positive_int, default=100)
    args = parser.parse_args()
    alarms = 0
    for name, noise in _NOISES.items():
        for ranks in _RANKS:
            rng, places = random.Random(1), [RankPlace(rank, 0) for rank in range(ranks)]
            named = [_named(rng, places, noise, 0.0) for _ in range(args.windows)]
            false = sum(bool(one) for one in named)
            alarms += false
            right = []
            for slow in _SLOW:
                found = [_named(rng, places, noise, slow) for _ in range(args.slow_windows)]
                right.append(sum(one == [_SLOW_RANK] for one in found) / args.slow_windows)
            each = ", ".join(f"{s:.0%} slower {r:.0%}" for s, r in zip(_SLOW, right, strict=True))
            print(f"{name}, {ranks} ranks: {false} false alarms; named if {each}", flush=True)
    windows = args.windows * len(_NOISES) * len(_RANKS)
    print(f"{alarms} false alarms in {windows} windows")
    for ranks in (64, 1024, 8192):
        print(f"{_milliseconds(ranks):.1f} ms of processor time per window of {ranks} ranks")


def _named(
    rng: random.Random,
    places: list[RankPlace],
    noise: Callable[[random.Random], float],
    slow: float,
) -> list[int]:
    """Returns the ranks that are named in a window in which one rank is slower by this share."""
    window = []
    for _ in range(WINDOW):
        own = [1 + noise(rng) for _ in places]
        own[_SLOW_RANK] *= 1 + slow
        step_s = max(own) + 0.1
        window.append([_rank_time(step_s, one) for one in own])
    found = what_if(window, places)
    return [one.rank for one in found.slow] if found is not None else []


def _milliseconds(ranks: int) -> float:
    rng, places = random.Random(1), [RankPlace(rank // 8, 0) for rank in range(ranks)]
    window = [[_rank_time(1.2, 1 + rng.gauss(0, 0.01)) for _ in places] for _ in range(WINDOW)]
    begun_s = time.process_time()
    what_if(window, places)
    return (time.process_time() - begun_s) * 1000


def _rank_time(step_s: float, own_s: float) -> RankTime:
    phases = dict.fromkeys(PARTS, 0.0)
    phases["forward"] = own_s / 3
    return RankTime(step_s, own_s, phases)


if __name__ == "__main__":
    main()
