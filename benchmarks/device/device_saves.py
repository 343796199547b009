"""What saves and restores of a state on a device take: a GPU, or the CPU.

    python -m benchmarks.device.device_saves [--device auto] [--mib 512] [--rounds 5]
                                                [--width 1024] [--folder /tmp]

Base of the stalls and restores is a copy of all tensors between the device and buffers in host
memory that were written before, and are pinned for a GPU. A stall is what the call that saves
takes, and what the optimizer's step waits for after it; the time between, in which matrices are
multiplied as in `staging_stall`, is not part of it. "compute beside" is how long these take beside
the copy, and "compute alone" without one. "durable" is the time from the call to the end of the
wait for it, and *device_restores* is from the node's memory and from files in the page cache, each
compared with what was saved. Every time ends when the device has done what it was given.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.checkpoint.dcp_saves import KeptAsync, Sync, alone
from benchmarks.checkpoint.save_methods import HpckitSaveMethod, SaveMethod
from benchmarks.common.arm_comparison import ArmComparison, interleave, report
from benchmarks.common.scratch import scratch
from benchmarks.common.training_model import StillAdamW, TrainedModel
from benchmarks.common.training_state import layer

COPY, ALONE = "bare copy", "compute alone"
_BESIDE = 10.0  # bare copies that forward and backward last


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    settings = parser.parse_args()
    has_gpu = torch.cuda.is_available()
    if settings.device == "cuda" and not has_gpu:
        parser.error("--device cuda: torch finds no GPU on this machine")
    is_cuda = settings.device == "cuda" or (settings.device == "auto" and has_gpu)
    logging.getLogger("checkpointing").setLevel(logging.ERROR)  # a trainer goes without close()
    with scratch(settings.folder) as folder, alone():
        _compare(settings, folder, torch.device("cuda" if is_cuda else "cpu"))


def _compare(settings: argparse.Namespace, folder: Path, device: torch.device) -> None:
    trained = state_on(device, settings.mib << 20, settings.width)
    card = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    about = {**vars(settings), "folder": str(folder), "card": card, "bytes": trained.nbytes}
    bench = DeviceBench(trained, folder, device)
    stalls = interleave(bench.save_arms(), settings.rounds + 1)
    restores = interleave(bench.restore_arms(), settings.rounds + 1)
    bench.close()
    beside = {ALONE: stalls.pop(ALONE), "compute beside": bench.beside_s}
    durable = bench.durable_s
    tables = {"device_stalls": (COPY, stalls), "device_restores": (COPY, restores)}
    tables |= {"device_interference": (ALONE, beside), "device_durable": (Sync.name, durable)}
    for name, (base, measured) in tables.items():
        kept = {arm: seconds[1:] for arm, seconds in measured.items()}  # the first round warms up
        report(ArmComparison(name, base, "s", kept), about)
    print(f"{card}: {trained.nbytes / 1e9:.2f} GB in {len(trained.tensors)} tensors")


def state_on(device: torch.device, size: int, width: int) -> TrainedModel:
    """Returns a model and its optimizer, of which a step changes nothing, with at least so many
    bytes on a device."""
    model, held = nn.Module(), 0
    optimizer_state: dict[Tensor, dict[str, Tensor]] = {}
    while held < size:
        for name, shape in layer(width).items():
            parameter = nn.Parameter(torch.randn(shape, device=device))
            model.register_parameter(f"{name}_{len(optimizer_state)}".replace(".", "_"), parameter)
            moments = {k: torch.randn(shape, device=device) for k in ("exp_avg", "exp_avg_sq")}
            optimizer_state[parameter] = {"step": torch.tensor(1.0), **moments}
            held += 3 * parameter.nbytes
    optimizer = StillAdamW(model.parameters(), lr=1e-4)
    optimizer.state.update(optimizer_state)
    return TrainedModel(model, optimizer)


class DeviceBench:
    """A state on a device, and the methods that save and restore it.

    Attributes:
        beside_s: seconds of the computation beside each overlapped save.
        durable_s: seconds until each save of an arm was durable, by arm.
    """

    def __init__(self, trained: TrainedModel, folder: Path, device: torch.device) -> None:
        self._trained, self._folder, self._device = trained, folder, device
        self._tensors = list(trained.tensors.values())
        is_cuda = device.type == "cuda"
        self._buffers = [torch.zeros_like(t, device="cpu") for t in self._tensors]
        if is_cuda:
            self._buffers = [buffer.pin_memory() for buffer in self._buffers]
        self._saved = [tensor.clone() for tensor in self._tensors]
        self._blocking = HpckitSaveMethod("hpckit", folder / "blocking", trained, overlap=False)
        self._overlapped = HpckitSaveMethod("hpckit, overlapped", folder / "overlapped", trained)
        self._peers: list[SaveMethod] = [Sync(folder, trained), KeptAsync(folder, trained)]
        self._left = HpckitSaveMethod("left", folder / "left", trained)
        self._factor = torch.randn(1024, 1024, device=device)
        self._products = 20
        self.beside_s: list[float] = []
        self.durable_s: dict[str, list[float]] = {}
        copy_s = min(self._seconds(self._copy_out) for _ in range(5))
        self._compute()
        compute_s = min(self._seconds(self._compute) for _ in range(5))
        self._products = max(1, round(20 * _BESIDE * copy_s / compute_s))

    def save_arms(self) -> dict[str, Callable[[], float]]:
        ways: list[SaveMethod] = [self._blocking, *self._peers]
        return {
            COPY: partial(self._seconds, self._copy_out),
            **{way.name: partial(self._stall, way, overlaps=False) for way in ways},
            ALONE: partial(self._seconds, self._compute),
            self._overlapped.name: partial(self._stall, self._overlapped, overlaps=True),
        }

    def restore_arms(self) -> dict[str, Callable[[], float]]:
        for way in (self._blocking, *self._peers, self._left):
            way.save()
            way.before_step()
            way.wait()
        return {
            COPY: partial(self._restored, self._copy_in),
            "hpckit, from memory": self._from_memory,
            **{
                way.name: partial(self._restored, way.load)
                for way in (self._blocking, self._peers[0])
            },
        }

    def close(self) -> None:
        for way in (self._blocking, self._overlapped, *self._peers, self._left):
            way.close()

    def _stall(self, way: SaveMethod, *, overlaps: bool) -> float:
        begun_s = time.perf_counter()
        stall_s = self._seconds(way.save, waits=not overlaps)
        if overlaps:
            self.beside_s.append(self._seconds(self._compute))
        stall_s += self._seconds(way.before_step)
        way.wait()
        if not overlaps:
            self.durable_s.setdefault(way.name, []).append(time.perf_counter() - begun_s)
        way.clear()
        return stall_s

    def _from_memory(self) -> float:
        self._left.drop()
        self._left = HpckitSaveMethod("left", self._folder / "left", self._trained, restore=False)
        seconds = self._restored(self._left.load)
        if self._left.tier != "memory":
            raise AssertionError(f"it was restored from the {self._left.tier}")
        self._left.save()
        self._left.before_step()
        self._left.wait()
        return seconds

    def _restored(self, load: Callable[[], object]) -> float:
        for tensor in self._tensors:
            tensor.zero_()
        seconds = self._seconds(load)
        if not all(map(torch.equal, self._tensors, self._saved)):
            raise AssertionError("a tensor is not what was saved")
        return seconds

    def _copy_out(self) -> None:
        for buffer, tensor in zip(self._buffers, self._tensors, strict=True):
            buffer.copy_(tensor, non_blocking=True)

    def _copy_in(self) -> None:
        for buffer, tensor in zip(self._buffers, self._tensors, strict=True):
            tensor.copy_(buffer, non_blocking=True)

    def _compute(self) -> None:
        result = self._factor
        for _ in range(self._products):
            result = torch.mm(self._factor, result).clamp_(-1, 1)

    def _seconds(self, work: Callable[[], object], *, waits: bool = True) -> float:
        """Returns the seconds of some work; with `waits`, until the device has done it."""
        self._synchronize()
        begun_s = time.perf_counter()
        work()
        if waits:
            self._synchronize()
        return time.perf_counter() - begun_s

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize()


if __name__ == "__main__":
    main()
