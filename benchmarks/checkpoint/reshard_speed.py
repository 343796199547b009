"""How long a restore onto another number of ranks or another dimension takes, against the same.

    python -m benchmarks.checkpoint.reshard_speed [--mib 384] [--rounds 6] [--width 768]

Worlds of two and of three ranks over gloo, processes of one thread each, on this machine. A state
of DTensors is saved by each of them, and loaded again: in the layout that it was saved in, by a
world of another size, and cut along the other dimension. Files are in the page cache; hpckit's are
raw. Time is that of the slowest rank, from a barrier on. hpckit reads by `load()`, which reads as
`restore()` does and needs no service; torch DCP by `load`.

A table for each number of ranks that load. All loads are into tensors that hold zeros before; what
came is compared with what was saved, outside the time.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from functools import partial
from statistics import median

from benchmarks.checkpoint.reshard_worlds import ReshardJob, ReshardWorld
from benchmarks.common.arm_comparison import ArmComparison, interleave, report
from benchmarks.common.number_arguments import positive_int
from benchmarks.common.scratch import scratch

SAME_2, SAME_3 = "hpckit, 2 ranks", "hpckit, 3 ranks"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--mib", type=positive_int, default=384)
    parser.add_argument("--rounds", type=positive_int, default=6)
    parser.add_argument("--width", type=positive_int, default=768)
    settings = parser.parse_args()
    size = settings.mib << 20
    with scratch() as folder:
        worlds = {ranks: ReshardWorld(ranks, folder, size, settings.width) for ranks in (2, 3)}
        try:
            _compare(worlds, settings)
        finally:
            for world in worlds.values():
                world.close()


def _compare(worlds: Mapping[int, ReshardWorld], settings: argparse.Namespace) -> None:
    for world in worlds.values():
        for tool in ("hpckit", "dcp"):
            world.do(ReshardJob("save", tool, f"ranks-{world.ranks}", 0))
    onto = {2: _onto_two(worlds[2]), 3: _onto_three(worlds[3])}
    measured = interleave({**onto[2], **onto[3]}, settings.rounds + 1)
    kept = {arm: seconds[1:] for arm, seconds in measured.items()}  # the first round warms up
    for ranks, base in ((2, SAME_2), (3, SAME_3)):
        table = {arm: kept[arm] for arm in onto[ranks]}
        report(ArmComparison(f"reshard_onto_{ranks}", base, "s", table), vars(settings))
    for arm, base in (
        ("torch DCP, 3 -> 2 ranks", "torch DCP, 2 ranks"),
        ("torch DCP, Shard(0) -> Shard(1)", "torch DCP, 2 ranks"),
        ("torch DCP, 2 -> 3 ranks", "torch DCP, 3 ranks"),
    ):
        ratio = median(a / b for a, b in zip(kept[arm], kept[base], strict=True))
        print(f"{arm} / {base}: {ratio:.2f}")


def _onto_two(world: ReshardWorld) -> dict[str, Callable[[], float]]:
    arms: dict[str, Callable[[], float]] = {}
    for name, tool in (("hpckit", "hpckit"), ("torch DCP", "dcp")):
        arms |= {
            f"{name}, 2 ranks": partial(world.do, ReshardJob("load", tool, "ranks-2", 0)),
            f"{name}, 3 -> 2 ranks": partial(world.do, ReshardJob("load", tool, "ranks-3", 0)),
            f"{name}, Shard(0) -> Shard(1)": partial(
                world.do, ReshardJob("load", tool, "ranks-2", 1)
            ),
        }
    return arms


def _onto_three(world: ReshardWorld) -> dict[str, Callable[[], float]]:
    arms: dict[str, Callable[[], float]] = {}
    for name, tool in (("hpckit", "hpckit"), ("torch DCP", "dcp")):
        arms |= {
            f"{name}, 3 ranks": partial(world.do, ReshardJob("load", tool, "ranks-3", 0)),
            f"{name}, 2 -> 3 ranks": partial(world.do, ReshardJob("load", tool, "ranks-2", 0)),
        }
    return arms


if __name__ == "__main__":
    main()
