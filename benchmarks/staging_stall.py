"""How long training stands still while a snapshot is staged, against one bare copy of its bytes.

    .venv/bin/python -m benchmarks.staging_stall [--mib 512] [--rounds 9] [--width 1024]

The bare copy is `Tensor.copy_`, tensor by tensor, into buffers that were written before. "first" is
the first snapshot of a new stager after `prepare`, whose own time is printed. "overlapped" is what
the call takes plus what the optimizer's step waits for the copy; in between the CPU multiplies
matrices, in the place of forward and backward, for about three times as long as a bare copy. How
much longer that takes because of the copy beside it is the second table.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor

from benchmarks.ab import Comparison, interleave, report
from benchmarks.training_state import TrainingState
from checkpointing.staging import StagePiece, Stager

_BESIDE = 3.0  # bare copies that forward and backward last


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--width", type=int, default=1024)
    settings = parser.parse_args()
    bench = Bench(settings.mib << 20, settings.width)
    measured = interleave(bench.arms(), settings.rounds + 1)
    bench.close()
    kept = {arm: seconds[1:] for arm, seconds in measured.items()}  # the first round warms up
    about = {**vars(settings), "bytes": bench.nbytes, "tensors": len(bench.tensors)}
    stall = {arm: kept[arm] for arm in ("bare copy", "blocking", "overlapped", "first")}
    report(Comparison("staging_stall", "bare copy", "s", stall), about)
    beside = {"compute alone": kept["compute alone"], "compute beside a copy": bench.beside_s[1:]}
    report(Comparison("staging_interference", "compute alone", "s", beside), about)
    warm = median(kept["blocking"])
    print(f"{bench.nbytes / 1e9:.2f} GB in {len(bench.tensors)} tensors")
    print(f"first / warm: {median(kept['first']) / warm:.2f}")
    print(f"prepare, before the first: {median(bench.prepare_s):.2f} s")


class Bench:
    """A state, and the ways to copy it."""

    def __init__(self, size: int, width: int) -> None:
        arrays = TrainingState(size, width).arrays
        self.tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        steps = {f"{name}.step": torch.tensor(1.0) for name in arrays if name.endswith("exp_avg")}
        self.tensors |= steps
        self.nbytes = sum(tensor.nbytes for tensor in self.tensors.values())
        self._pieces = [StagePiece(name, tensor) for name, tensor in self.tensors.items()]
        self._buffers = [tensor.clone() for tensor in self.tensors.values()]
        self._optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
        self._stager = Stager(2, optimizers=[self._optimizer])
        self._stager.prepare(self._pieces)
        self._factor = torch.randn(512, 512)
        self._products = self._count_products()
        self._saves = 0
        self.beside_s: list[float] = []  # by round
        self.prepare_s: list[float] = []

    def arms(self) -> dict[str, Callable[[], float]]:
        return {
            "bare copy": lambda: _seconds(self._copy),
            "blocking": lambda: _seconds(self._stage),
            "first": self._first,
            "compute alone": lambda: _seconds(self._compute),
            "overlapped": self._overlapped,
        }

    def close(self) -> None:
        self._stager.close()

    def _copy(self) -> None:
        for buffer, tensor in zip(self._buffers, self.tensors.values(), strict=True):
            buffer.copy_(tensor)

    def _stage(self) -> None:
        self._stager.stage(self._pieces, self._next_slot())

    def _first(self) -> float:
        stager = Stager(1)
        self.prepare_s.append(_seconds(lambda: stager.prepare(self._pieces)))
        first_s = _seconds(lambda: stager.stage(self._pieces))
        stager.close()
        return first_s

    def _overlapped(self) -> float:
        begun_s = time.perf_counter()
        overlap = self._stager.stage_overlapped([], self._pieces, self._next_slot())
        stall_s = time.perf_counter() - begun_s
        self.beside_s.append(_seconds(self._compute))
        self._optimizer.step()
        overlap.result()
        return stall_s + overlap.waited_s

    def _compute(self) -> None:
        result: Tensor = self._factor
        for _ in range(self._products):
            result = torch.mm(self._factor, result).clamp_(-1, 1)

    def _count_products(self) -> int:
        self._copy()
        copy_s = median(_seconds(self._copy) for _ in range(5))
        self._products = 20
        self._compute()
        one_s = median(_seconds(self._compute) for _ in range(5)) / 20
        return max(1, round(_BESIDE * copy_s / one_s))

    def _next_slot(self) -> int:
        self._saves += 1
        return self._saves % 2


def _seconds(work: Callable[[], object]) -> float:
    begun_s = time.perf_counter()
    work()
    return time.perf_counter() - begun_s


if __name__ == "__main__":
    main()
