"""What saves and restores of a state on a device take: a GPU, or the CPU.

    python -m benchmarks.device.device_saves [--device auto] [--mib 512] [--rounds 5]
                                                [--width 1024] [--folder /tmp]

Base of the stalls and restores is a copy of all tensors between the device and buffers in host
memory that were written before, and are pinned for a GPU; it is the median of five in a row. A
stall is what the call that saves takes, and what the optimizer's step waits for after it; the time
between, in which matrices are multiplied as in `staging_stall`, is not part of it.
*device_interference* is how long these take beside the copy of an arm that overlaps, and alone: on
a GPU, with what is queued before them on the stream that trains, such as hpckit's fingerprints.
*device_durable* is the time from the call to the end of the wait for it. Every number changes
before each save, so that nothing of an earlier one is referred to. *device_restores* is from the
node's memory and from files in the page cache, each compared with what was saved. Every time ends
when the device has done what it was given; a copy that overlaps is not waited for before the step.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import torch
from torch import Tensor, nn

from benchmarks.checkpoint.dcp_saves import KeptAsync, OverlappedThreadAsync, Sync, alone
from benchmarks.checkpoint.save_methods import HpckitSaveMethod, SaveMethod
from benchmarks.common.arm_comparison import ArmComparison, interleave, report
from benchmarks.common.number_arguments import positive_int
from benchmarks.common.scratch import scratch
from benchmarks.common.training_model import StillAdamW, TrainedModel
from benchmarks.common.training_state import layer

COPY, ALONE = "bare copy", "compute alone"
_BESIDE = 10.0  # bare copies that forward and backward last
_COPIES = 5  # of which the median is the time of a bare copy
_CHANGE = 1e-3  # standard deviation of what is added to every number before a save


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--mib", type=positive_int, default=512)
    parser.add_argument("--rounds", type=positive_int, default=5)
    parser.add_argument("--width", type=positive_int, default=1024)
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
    beside = {ALONE: stalls.pop(ALONE), **bench.beside_s}
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
        beside_s: seconds of the computation beside each overlapped save, by arm.
        durable_s: seconds until each save of an arm was durable, by arm.
    """

    def __init__(self, trained: TrainedModel, folder: Path, device: torch.device) -> None:
        self._trained, self._folder, self._device = trained, folder, device
        self._tensors = list(trained.tensors.values())
        is_cuda = device.type == "cuda"
        self._buffers = [torch.zeros_like(t, device="cpu") for t in self._tensors]
        if is_cuda:
            self._buffers = [buffer.pin_memory() for buffer in self._buffers]
        self._saved: list[Tensor] = []
        self._blocking = HpckitSaveMethod("hpckit", folder / "blocking", trained, overlap=False)
        self._overlapping: list[SaveMethod] = [
            HpckitSaveMethod("hpckit, overlapped", folder / "overlapped", trained),
            OverlappedThreadAsync(folder, trained),
        ]
        self._peers: list[SaveMethod] = [Sync(folder, trained), KeptAsync(folder, trained)]
        self._left = HpckitSaveMethod("left", folder / "left", trained)
        self._factor = torch.randn(1024, 1024, device=device)
        self._products = 20
        self.beside_s: dict[str, list[float]] = {}
        self.durable_s: dict[str, list[float]] = {}
        copy_s = self._copied(self._copy_out)
        self._compute()
        compute_s = min(self._seconds(self._compute) for _ in range(5))
        self._products = max(1, round(20 * _BESIDE * copy_s / compute_s))

    def save_arms(self) -> dict[str, Callable[[], float]]:
        ways: list[SaveMethod] = [self._blocking, *self._peers]
        return {
            COPY: partial(self._copied, self._copy_out),
            **{way.name: partial(self._stall, way) for way in ways},
            ALONE: partial(self._seconds, self._compute),
            **{way.name: partial(self._overlapped_stall, way) for way in self._overlapping},
        }

    def restore_arms(self) -> dict[str, Callable[[], float]]:
        self._saved = [tensor.clone() for tensor in self._tensors]
        for way in (self._blocking, *self._peers, self._left):
            way.save()
            way.before_step()
            way.wait()
        return {
            COPY: partial(self._copied, self._copy_in),
            "hpckit, from memory": self._from_memory,
            self._blocking.name: self._from_files,
            self._peers[0].name: partial(self._restored, self._peers[0].load),
        }

    def close(self) -> None:
        for way in (self._blocking, *self._overlapping, *self._peers, self._left):
            way.close()

    def _stall(self, way: SaveMethod) -> float:
        self._change()
        begun_s = time.perf_counter()
        stall_s = self._seconds(way.save) + self._seconds(way.before_step)
        way.wait()
        self.durable_s.setdefault(way.name, []).append(time.perf_counter() - begun_s)
        way.clear()
        return stall_s

    def _overlapped_stall(self, way: SaveMethod) -> float:
        """Returns the stall of a save whose copy nothing here waits for: not the call, and after
        the computation and the step, only the stream that trains is waited for."""
        self._change()
        begun_s = time.perf_counter()
        way.save()
        stall_s = time.perf_counter() - begun_s
        begun_s = time.perf_counter()
        self._compute()
        self._await_training()
        self.beside_s.setdefault(way.name, []).append(time.perf_counter() - begun_s)
        begun_s = time.perf_counter()
        way.before_step()
        self._await_training()
        stall_s += time.perf_counter() - begun_s
        way.wait()
        way.clear()
        return stall_s

    def _change(self) -> None:
        """Changes every number, and waits until that is done."""
        for tensor in self._tensors:
            tensor.add_(torch.randn_like(tensor), alpha=_CHANGE)
        self._synchronize()

    def _copied(self, copy: Callable[[], None]) -> float:
        return median(self._seconds(copy) for _ in range(_COPIES))

    def _from_files(self) -> float:
        seconds = self._restored(self._blocking.load)
        _require_tier(self._blocking, "store")
        return seconds

    def _from_memory(self) -> float:
        self._left.drop()
        self._left = HpckitSaveMethod("left", self._folder / "left", self._trained, restore=False)
        seconds = self._restored(self._left.load)
        _require_tier(self._left, "memory")
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

    def _seconds(self, work: Callable[[], object]) -> float:
        """Returns the seconds of some work, until the device has done it."""
        self._synchronize()
        begun_s = time.perf_counter()
        work()
        self._synchronize()
        return time.perf_counter() - begun_s

    def _synchronize(self) -> None:
        """Waits for all streams of the device."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _await_training(self) -> None:
        """Waits for the stream that trains, and not for copies on another one."""
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()


def _require_tier(way: HpckitSaveMethod, tier: str) -> None:
    if way.tier != tier:
        raise AssertionError(f"{way.name} was restored from the {way.tier}, not from the {tier}")


if __name__ == "__main__":
    main()
