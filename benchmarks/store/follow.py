"""Bytes that a follower reads per step of a bf16 run, of the bytes of a full copy.

    python -m benchmarks.store.follow [--steps 12] [--lrs 1e-6 1e-5 1e-4] [--every 1 10]

A byte model of 3.3 million parameters is trained on the sources of Python's standard library, with
AdamW and float32 master weights: `--earlier` steps at 1e-3, and then at each learning rate by a new
optimizer, of which the first `--settling` steps are not measured. Saved are the weights rounded to
bfloat16, as weights for inference are, once with differences to a keyframe (`depth=1`, the default
of `Checkpointer`) and once with differences to the save before (`depth=8`).

- *changed*: the share of the weights whose 16 bits differ from those of the step taken before. The
  field reports about 1 % between two steps of reinforcement learning.
- *read*: bytes that the follower has read of the store for a step, manifest and tables included, of
  the bytes of all weights: the mean, the least and the most.
- *full*: bytes that a new follower reads for the last step, which is what each step costs without
  one that holds the step before.
- *ideal*: *changed* weights as pairs of a position and a value, coded by their entropy if each
  weight changed by one unit of the last place with equal chance: a bound for such changes.

With `--stored float32` the weights are saved in float32, and the follower casts them: *full copy*
means the bytes as stored then, and *changed* still the weights in bfloat16.
"""

from __future__ import annotations

import argparse
import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import mean

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks.common.arm_comparison import write_record
from benchmarks.common.number_arguments import positive_float, positive_int
from benchmarks.common.scratch import scratch
from benchmarks.store.save_sizes import pieces
from benchmarks.store.small_training_run import SmallRun, build_model
from benchmarks.store.store_saves import StoreSaves
from checkpointing.follower.follower import Follower
from checkpointing.follower.follower_options import FollowerOptions
from checkpointing.format.torch_dtypes import torch_dtype
from checkpointing.store.write.chunk_encoding import ChunkEncoder
from checkpointing.store.write.part_writer import WriteOptions

RUN = "followed"
LONG = 100_000  # steps: the cosine decay has hardly begun


@dataclass(frozen=True)
class FollowedCase:
    """How a run is saved."""

    lr: float
    every: int  # steps between two saves
    saves: int
    stored: str  # dtype of the weights in the store


@dataclass
class FollowedArm:
    """One store that is followed."""

    lr: float
    every: int
    depth: int
    read: list[float] = field(default_factory=list)  # shares of the full copy
    seconds: list[float] = field(default_factory=list)
    first: float = 0.0
    full: float = 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--steps", type=positive_int, default=12, help="measured saves of each kind"
    )
    parser.add_argument("--lrs", type=positive_float, nargs="+", default=[1e-6, 1e-5, 1e-4])
    parser.add_argument("--every", type=positive_int, nargs="+", default=[1, 10])
    parser.add_argument("--earlier", type=int, default=200, help="steps at 1e-3 before all")
    parser.add_argument("--settling", type=int, default=40, help="steps before each measurement")
    parser.add_argument("--stored", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--depths", type=positive_int, nargs="+", default=[1, 8])
    settings = parser.parse_args()
    torch.set_num_threads(1)  # small matrices
    model = build_model()
    SmallRun(model, settings.earlier).train(settings.earlier)
    arms: list[FollowedArm] = []
    shares: dict[tuple[float, int], list[float]] = {}
    for lr in settings.lrs:
        run = SmallRun(copy.deepcopy(model), LONG, lr)
        run.train(settings.settling)
        for every in settings.every:
            with scratch() as folder:
                case = FollowedCase(lr, every, settings.steps, settings.stored)
                changed, found = measure(run, case, settings.depths, folder)
            shares[lr, every] = changed
            arms += found
    show(arms, shares)
    write_record(
        "follow",
        {
            "settings": vars(settings),
            "arms": [asdict(arm) for arm in arms],
            "changed": [[lr, every, found] for (lr, every), found in shares.items()],
        },
    )


def measure(
    run: SmallRun, case: FollowedCase, depths: Sequence[int], folder: Path
) -> tuple[list[float], list[FollowedArm]]:
    """Returns the shares of changed weights, and what was read of each store."""
    arms = [FollowedArm(case.lr, case.every, depth) for depth in depths]
    stores = [
        StoreSaves(folder / str(depth), WriteOptions(encoder=ChunkEncoder(depth=depth)), RUN)
        for depth in depths
    ]
    before, changed = rounded(run), list[float]()
    options = FollowerOptions(run=RUN, into=lambda *_: None, dtype="bfloat16")
    followers = []
    for arm, store in zip(arms, stores, strict=True):
        store.save(0, pieces(weights(run, case.stored)))
        followers.append(Follower(folder / str(arm.depth), options))
        taken = followers[-1].poll()
        assert taken is not None
        arm.first = taken.bytes / taken.full_bytes
    for number in range(1, case.saves + 1):
        run.train(case.every)
        now = rounded(run)
        changed.append(changed_share(before, now))
        for arm, store, follower in zip(arms, stores, followers, strict=True):
            store.save(number * case.every, pieces(weights(run, case.stored)))
            taken = follower.poll()
            assert taken is not None
            arm.read.append(taken.bytes / taken.full_bytes)
            arm.seconds.append(taken.seconds)
        before = now
    for arm, store, follower in zip(arms, stores, followers, strict=True):
        follower.close()
        with Follower(folder / str(arm.depth), options) as late:
            taken = late.poll()
            assert taken is not None
            arm.full = taken.bytes / taken.full_bytes
        store.close()
    return changed, arms


def weights(run: SmallRun, stored: str) -> dict[str, Tensor]:
    """Returns the weights in that dtype."""
    dtype = torch_dtype(stored)
    return {n: t.to(dtype) for n, t in run.state().items() if n.startswith("model/")}


def rounded(run: SmallRun) -> dict[str, Tensor]:
    """Returns the weights in bfloat16."""
    return weights(run, "bfloat16")


def changed_share(before: Mapping[str, Tensor], now: Mapping[str, Tensor]) -> float:
    """Returns the share of weights whose bits differ."""
    differing = sum(
        int((before[name].view(torch.int16) != tensor.view(torch.int16)).sum())
        for name, tensor in now.items()
    )
    return differing / sum(tensor.numel() for tensor in now.values())


def ideal(share: float) -> float:
    """Returns the entropy of such a change, up or down by one unit, of the 16 bits of a weight."""
    if not 0 < share < 1:
        return share / 16
    bits = -share * math.log2(share) - (1 - share) * math.log2(1 - share) + share
    return bits / 16


def show(arms: Sequence[FollowedArm], shares: Mapping[tuple[float, int], list[float]]) -> None:
    table = Table(box=None, header_style="bold", title="bytes per followed step / a full copy")
    for column in ("lr", "steps between", "changed", "ideal", "depth", "read"):
        table.add_column(column, justify="right")
    for column in ("least", "most", "full", "seconds"):
        table.add_column(column, justify="right")
    for arm in arms:
        changed = mean(shares[arm.lr, arm.every])
        table.add_row(
            *(f"{arm.lr:g}", str(arm.every), f"{changed:.2%}", f"{ideal(changed):.2%}"),
            *(str(arm.depth), f"{mean(arm.read):.2%}", f"{min(arm.read):.2%}"),
            *(f"{max(arm.read):.2%}", f"{arm.full:.1%}", f"{np.median(arm.seconds):.2f}"),
        )
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
