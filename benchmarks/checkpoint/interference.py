"""How much training slows down while a save is written: seconds per step, against no save.

    python -m benchmarks.checkpoint.interference [--mib 384] [--rounds 8] [--steps 8]
                                                [--peers FOLDER] [--folder /tmp]

A GPT trains on one core with one thread: forward, backward, AdamW. Whatever saves has another core:
hpckit's service by `Budget(cpu=1, cpus=...)`, the processes of its peers, and the threads that they
start for a save. So contention for cores is excluded; Python's lock, memory, caches and the
kernel's work remain.

The value of an arm is the mean of the steps between the return of the call that saves and the end
of its save, or the first step alone if the save ends before. The copy is made before that call
returns (`overlap=False`), because `staging_stall` measures it. Without a save, the value is the
mean of `--steps` steps.

A save that ends sooner is beside fewer steps, each of which it slows down more. So it is also
printed what a save costs training in all: the time of the steps from the return of the call to the
end of the save, less as many steps without a save, in steps.

"plain direct write" is the limit: another process on the core that saves writes as many bytes past
the page cache and does nothing else (`direct_writer.py`).
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import mean, median

import torch
from torch.nn import functional

from benchmarks.checkpoint.dcp_saves import Async, KeptAsync, ProcessAsync, alone
from benchmarks.checkpoint.direct_writer import DirectWrite
from benchmarks.checkpoint.peer_saves import more_peers
from benchmarks.checkpoint.save_methods import HpckitSaveMethod, SaveMethod
from benchmarks.common.arm_comparison import ArmComparison, interleave, report
from benchmarks.common.machine import keep_to, starting_on, touch
from benchmarks.common.number_arguments import positive_int
from benchmarks.common.scratch import scratch
from benchmarks.common.training_model import VOCAB, TrainedModel, gpt
from checkpointing.service.config import Budget

IDLE = "no save"
WIDTH, TOKENS = 512, 32  # a step is short against a save


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--mib", type=positive_int, default=384)
    parser.add_argument("--rounds", type=positive_int, default=8)
    parser.add_argument("--steps", type=positive_int, default=8)
    parser.add_argument("--peers", type=Path, help="folder with more peers: see peer_saves.py")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    settings = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        parser.error("two cores are needed: one that trains and one that saves")
    with scratch(settings.folder) as folder, alone():
        _compare(settings, folder, trains=cores[0], saves=cores[-1])


def _compare(settings: argparse.Namespace, folder: Path, *, trains: int, saves: int) -> None:
    torch.set_num_threads(1)
    trainer = InterferenceTrainer(gpt(settings.mib << 20, WIDTH, TOKENS), settings.steps, saves)
    trainer.step()  # the optimizer's state is there from now on
    ways = _ways(settings.peers, folder, trainer.trained, trains, saves)
    measured = interleave(trainer.arms(ways), settings.rounds + 1)
    for way in ways:
        way.close()
    kept = {arm: seconds[1:] for arm, seconds in measured.items()}  # the first round warms up
    steps = {arm: median(counts[1:]) for arm, counts in trainer.steps.items()}
    about = {
        **{k: str(v) if isinstance(v, Path) else v for k, v in vars(settings).items()},
        "bytes": trainer.trained.nbytes,
        "cores": {"trains": trains, "saves": saves},
        "steps_per_save": steps,
        "steps_lost": {arm: trainer.lost(arm, measured[IDLE])[1:] for arm in steps},
    }
    report(ArmComparison("interference", IDLE, "s per step", kept), about)
    print(f"{trainer.trained.nbytes / 1e9:.2f} GB")
    for arm, count in steps.items():
        lost = trainer.lost(arm, measured[IDLE])[1:]
        print(
            f"steps while a save is written: {count:3.0f}, steps that it costs: "
            f"{median(lost):.2f} ({min(lost):.2f} to {max(lost):.2f})  {arm}"
        )


def _ways(
    peers: Path | None, folder: Path, trained: TrainedModel, trains: int, saves: int
) -> list[SaveMethod]:
    budget = Budget(cpu=1, cpus=(saves,))
    hpckit: list[SaveMethod] = [
        HpckitSaveMethod("hpckit", folder / "compressed", trained, overlap=False, budget=budget),
        HpckitSaveMethod(
            "hpckit, raw", folder / "raw", trained, overlap=False, compress=False, budget=budget
        ),
    ]
    keep_to({trains})
    with starting_on({saves}):
        others: list[SaveMethod] = [
            Async(folder, trained),
            KeptAsync(folder, trained),
            ProcessAsync(folder, trained),
            *more_peers(peers, folder, trained),
            DirectWrite(folder, trained.nbytes, budget.nice),
        ]
    return hpckit + others


class InterferenceTrainer:
    """A trainer that saves at intervals."""

    def __init__(self, trained: TrainedModel, steps: int, saves: int) -> None:
        """
        Args:
            steps: in the arm that does not save.
            saves: the core for what is started by a save.
        """
        self.trained, self._idle_steps, self._saves = trained, steps, saves
        self._tokens = torch.randint(0, VOCAB, (1, TOKENS + 1))
        self.steps: dict[str, list[int]] = {}  # that counted, by arm and round
        self._whole: dict[str, list[list[float]]] = {}  # seconds of all steps, by arm and round

    def arms(self, ways: list[SaveMethod]) -> dict[str, Callable[[], float]]:
        arms: dict[str, Callable[[], float]] = {IDLE: self._idle}
        return arms | {way.name: partial(self._beside, way) for way in ways}

    def lost(self, arm: str, idle_s: list[float]) -> list[float]:
        """Returns how many steps fewer were made because of the save of an arm, by round.

        Args:
            idle_s: seconds of a step without a save, by round.
        """
        rounds = zip(self._whole[arm], idle_s, strict=True)
        return [sum(took_s) / alone_s - len(took_s) for took_s, alone_s in rounds]

    def step(self) -> float:
        """Returns the seconds that it took."""
        begun_s = time.perf_counter()
        logits = self.trained.model(self._tokens[:, :-1])
        loss = functional.cross_entropy(logits.view(-1, VOCAB), self._tokens[:, 1:].view(-1))
        loss.backward()  # type: ignore[no-untyped-call]
        self.trained.optimizer.step()
        self.trained.optimizer.zero_grad(set_to_none=False)
        return time.perf_counter() - begun_s

    def _idle(self) -> float:
        return mean(self.step() for _ in range(self._idle_steps))

    def _beside(self, way: SaveMethod) -> float:
        with starting_on({self._saves}):
            touch(2 * self.trained.nbytes)
            way.save()
            way.before_step()
        took_s = [self.step()]
        while not way.is_done():
            took_s.append(self.step())
        way.wait()
        way.clear()
        self._whole.setdefault(way.name, []).append(took_s)
        whole = took_s[:-1] or took_s  # the save has ended in the last one
        self.steps.setdefault(way.name, []).append(len(whole))
        return mean(whole)


if __name__ == "__main__":
    main()
