"""How long a save stalls training, against one bare copy of the state's bytes.

    python -m benchmarks.checkpoint.staging_stall [--mib 512] [--rounds 9] [--width 1024]
                                                 [--only stall|overlap] [--peers FOLDER]
                                                 [--folder /tmp]

The bare copy is `Tensor.copy_`, tensor by tensor, into buffers that were written before. A stall is
what the call that saves takes, and what the optimizer's step waits for after it.

- *staging_stall*: the step comes at once, so that all of the copy is waited for. "first" is the
  first save of a new `Checkpointer` after its `restore()` and as many steps as the memory of the
  save, which is allocated beside them, takes; a save that comes earlier waits for it.
- *staging_overlap*: between the call and the step, the CPU multiplies matrices in the place of
  forward and backward, for about ten times as long as a bare copy: one step of the GPT that
  `interference` trains takes longer than that, with its 32 tokens. "hpckit: sample" is
  the part of hpckit's stall that peers do not have: reading a sample of the state, by which writes
  during the copy are detected, as a save does it, with the thread that copies later as a helper;
  "hpckit without sample" is the difference, as no save is without. hpckit waits in a hook of the
  optimizer, whose own step does nothing here; peers are called before it.
- *staging_interference*: how much longer the matrices take because of the copy beside them.

Every save is at its end before the next arm begins. The state is the same in all of them: what has
not changed, hpckit does not write again, which makes the time between the arms shorter, and no arm.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

from benchmarks.checkpoint.dcp_saves import (
    Async,
    KeptAsync,
    OverlappedAsync,
    ProcessAsync,
    Sync,
    alone,
)
from benchmarks.checkpoint.peer_saves import more_peers
from benchmarks.checkpoint.save_methods import HpckitSaveMethod, SaveMethod
from benchmarks.common.arm_comparison import ArmComparison, interleave, report
from benchmarks.common.machine import shared_bytes, touch
from benchmarks.common.number_arguments import positive_int
from benchmarks.common.scratch import scratch
from benchmarks.common.training_model import TrainedModel, holding
from benchmarks.common.training_state import TrainingState
from checkpointing.staging.fingerprints import SampleMemory, TensorSample
from checkpointing.staging.replica_fingerprints import SMALL_BYTES
from checkpointing.staging.stager import stride_for

COPY, FIRST, ALONE = "bare copy", "hpckit, first", "compute alone"
SAMPLE = "hpckit: sample"
_WITHOUT = "hpckit without sample"
_BESIDE = 10.0  # bare copies that forward and backward last


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--mib", type=positive_int, default=512)
    parser.add_argument("--rounds", type=positive_int, default=9)
    parser.add_argument("--width", type=positive_int, default=1024)
    parser.add_argument("--only", choices=["stall", "overlap"], help="one of the first two tables")
    parser.add_argument("--peers", type=Path, help="folder with more peers: see peer_saves.py")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    settings = parser.parse_args()
    with scratch(settings.folder) as folder, alone():
        _compare(settings, folder)


def _compare(settings: argparse.Namespace, folder: Path) -> None:
    trained = holding(TrainingState(settings.mib << 20, settings.width))
    more = more_peers(settings.peers, folder, trained)
    bench = StagingBench(trained, folder, more, settings.only)
    measured = interleave(bench.arms(), settings.rounds + 1)
    bench.close()
    kept = {arm: seconds[1:] for arm, seconds in measured.items()}  # the first round warms up
    about = {**vars(settings), "bytes": trained.nbytes, "tensors": len(trained.tensors)}
    about = {k: str(v) if isinstance(v, Path) else v for k, v in about.items()}
    for name, arms in bench.tables().items():
        table = {arm: kept[key] for arm, key in arms.items()}
        if name == "staging_overlap":
            table[_WITHOUT] = [
                whole - part for whole, part in zip(table["hpckit"], table[SAMPLE], strict=True)
            ]
        report(ArmComparison(name, COPY, "s", table), about)
    if bench.beside_s:
        beside = {ALONE: kept[ALONE], **{arm: s[1:] for arm, s in bench.beside_s.items()}}
        report(ArmComparison("staging_interference", ALONE, "s", beside), about)
    print(f"{trained.nbytes / 1e9:.2f} GB in {len(trained.tensors)} tensors")
    if FIRST in kept:
        first = [a / b for a, b in zip(kept[FIRST], kept["hpckit"], strict=True)]
        print(f"hpckit, first / warm: {median(first):.2f} ({min(first):.2f} to {max(first):.2f})")


class StagingBench:
    """A state, and the methods that save it."""

    def __init__(
        self, trained: TrainedModel, folder: Path, more: list[SaveMethod], only: str | None = None
    ) -> None:
        """
        Args:
            only: the table whose methods are opened; None: both.
        """
        self._trained, self._folder = trained, folder
        self._tensors = list(trained.tensors.values())
        self._buffers = [tensor.clone() for tensor in self._tensors]
        self._ways: list[SaveMethod] = []
        if only != "overlap":
            self._ways = [
                HpckitSaveMethod("hpckit", folder / "blocking", trained, overlap=False),
                Sync(folder, trained),
                Async(folder, trained),
                KeptAsync(folder, trained),
                ProcessAsync(folder, trained),
                *more,
            ]
        self._overlapping: list[SaveMethod] = []
        if only != "stall":
            self._overlapping = [
                HpckitSaveMethod("hpckit", folder / "overlapping", trained),
                OverlappedAsync(folder, trained),
                *(way for way in more if way.name == "torch_checkpointing"),
            ]
        self._factor = torch.randn(512, 512)
        self._products = self._count_products()
        self._firsts = 0
        self._helper, self._sample_memory = ThreadPoolExecutor(1), SampleMemory()
        self._helper.submit(int).result()  # its thread has started
        self.beside_s: dict[str, list[float]] = {}  # by round

    def arms(self) -> dict[str, Callable[[], float]]:
        arms: dict[str, Callable[[], float]] = {COPY: lambda: _seconds(self._copy)}
        if self._ways:
            arms[FIRST] = self._first
            arms |= {way.name: partial(self._stall, way) for way in self._ways}
        if self._overlapping:
            arms[ALONE] = lambda: _seconds(self._compute)
            arms |= {_overlapped(way): partial(self._overlap, way) for way in self._overlapping}
            arms[SAMPLE] = self._sample
        return arms

    def tables(self) -> dict[str, dict[str, str]]:
        """Returns the names of the stall arms in the table, and their names in `arms`."""
        tables = {}
        if self._ways:
            blocking = [COPY, FIRST, *(way.name for way in self._ways)]
            tables["staging_stall"] = {arm: arm for arm in blocking}
        if self._overlapping:
            overlapping = {way.name: _overlapped(way) for way in self._overlapping}
            tables["staging_overlap"] = {COPY: COPY, **overlapping, SAMPLE: SAMPLE}
        return tables

    def close(self) -> None:
        for way in {id(way): way for way in [*self._ways, *self._overlapping]}.values():
            way.close()
        self._helper.shutdown()

    def _stall(self, way: SaveMethod) -> float:
        touch(2 * self._trained.nbytes)
        stall_s = _seconds(way.save) + _seconds(way.before_step)
        _end(way)
        return stall_s

    def _overlap(self, way: SaveMethod) -> float:
        touch(2 * self._trained.nbytes)
        stall_s = _seconds(way.save)
        self.beside_s.setdefault(way.name, []).append(_seconds(self._compute))
        stall_s += _seconds(way.before_step)
        _end(way)
        return stall_s

    def _first(self) -> float:
        self._firsts += 1
        folder = self._folder / f"first-{self._firsts}"
        touch(4 * self._trained.nbytes)
        before = shared_bytes()
        way = HpckitSaveMethod("first", folder, self._trained, overlap=False)
        while shared_bytes() < before + self._trained.nbytes:
            self._compute()
        stall_s = self._stall(way)
        way.close()
        shutil.rmtree(folder)
        return stall_s

    def _sample(self) -> float:
        touch(2 * self._trained.nbytes)
        large = [tensor for tensor in self._tensors if tensor.nbytes >= SMALL_BYTES]
        stride = stride_for(sum(tensor.nbytes for tensor in large))
        sample = partial(TensorSample, large, stride, 0, self._helper, self._sample_memory)
        taken_s = _seconds(sample)
        self._helper.submit(int).result()  # nothing of it is read in another arm
        return taken_s

    def _copy(self) -> None:
        for buffer, tensor in zip(self._buffers, self._tensors, strict=True):
            buffer.copy_(tensor)

    def _compute(self) -> None:
        result: Tensor = self._factor
        for _ in range(self._products):
            result = torch.mm(self._factor, result).clamp_(-1, 1)

    def _count_products(self) -> int:
        self._copy()
        # the least, because the memory, or a busy core, may be slow at first
        copy_s = min(_seconds(self._copy) for _ in range(9))
        self._products = 20
        self._compute()
        one_s = min(_seconds(self._compute) for _ in range(9)) / 20
        return max(1, round(_BESIDE * copy_s / one_s))


def _overlapped(way: SaveMethod) -> str:
    return f"{way.name}, overlapped"


def _end(way: SaveMethod) -> None:
    way.wait()
    way.clear()


def _seconds(work: Callable[[], object]) -> float:
    begun_s = time.perf_counter()
    work()
    return time.perf_counter() - begun_s


if __name__ == "__main__":
    main()
