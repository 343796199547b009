"""How fast a trainer restores its state, against a bare copy and a plain read of the same bytes.

    python -m benchmarks.checkpoint.restore_speed [--mib 768] [--rounds 6] [--memory-rounds 12]
                                                 [--width 1024] [--tiers memory disk cold]
                                                 [--peers FOLDER] [--folder /tmp]

- *restore_memory*: from what a trainer that went without `close()` left in its node's memory. Base:
  `Tensor.copy_`, tensor by tensor. It is the median of five copies in a row, since a single one
  took between 0.03 and 0.2 s where a restore took 0.10 to 0.11. None of the peers has this without
  a launcher of its own. For "hpckit" the `Checkpointer` is created before the state is filled with
  zeros, so it has time to map the snapshot; for "hpckit, not mapped" it is created when the clock
  starts, but outside of it. "shared memory" and "shared memory, mapped" are the copy alone, which
  these two make. With `--mib 4 --width 64`, the times are what a restore costs without the bytes.
- *restore_disk*: from files in the page cache, and *restore_disk_cold*: from the disk; before each
  arm, outside its time, all files are taken out of the page cache; what the disk itself caches
  stays. Base: a plain read of files of 64 MiB straight into the state's tensors, which neither
  looks at the bytes nor keeps the state whole if one is damaged. A plain read into one buffer of a
  file's size, which stays in the processor's cache, is an arm beside it. "plain read, kept" is what
  a restore does at least that checks everything before it changes the state: it reads into new
  memory and computes checksums, in threads, and then copies. hpckit's saves are raw.

"hpckit, first" is the first `restore()` of a new trainer, which also plans its saves; their memory
is allocated after it has returned. "hpckit, fresh" is the same with `is_fresh=True`, as hpckit's
own trainer calls it: what is checked goes into the state immediately. "hpckit, unstepped" and
"hpckit, unstepped, fresh" are both for a trainer whose optimizer has not stepped, so that its state
does not exist. "hpckit" is another one of the same `Checkpointer`, which changes nothing before
everything is checked, as "hpckit, first". All other arms load into a state that holds zeros before,
and what they have loaded is compared with what was saved, outside the time. *..._processor* are the
same in processor time of the trainer's process, of all its threads, on a machine that others use.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch.optim import AdamW

from benchmarks.checkpoint.bare_restores import BareCopies, BareReads
from benchmarks.checkpoint.dcp_saves import Sync, alone
from benchmarks.checkpoint.peer_saves import more_peers
from benchmarks.checkpoint.save_methods import HpckitSaveMethod, SaveMethod
from benchmarks.common.arm_comparison import ArmComparison, interleave, report
from benchmarks.common.machine import forget, touch
from benchmarks.common.number_arguments import positive_int
from benchmarks.common.scratch import scratch
from benchmarks.common.training_model import holding, unstepped
from benchmarks.common.training_state import TrainingState
from benchmarks.store.store_writers import write_plainly

COPY, READ, READ_BUFFER = "bare copy", "plain read into the state", "plain read into one buffer"
SHARED, MAPPED, KEPT = "shared memory", "shared memory, mapped", "plain read, kept"
TIERS = ("memory", "disk", "cold")
COPIES = 5  # of which the median is the time of a bare copy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--mib", type=positive_int, default=768)
    parser.add_argument("--rounds", type=positive_int, default=6)
    parser.add_argument("--memory-rounds", type=positive_int, default=12)
    parser.add_argument("--tiers", nargs="+", choices=TIERS, default=list(TIERS))
    parser.add_argument("--width", type=positive_int, default=1024)
    parser.add_argument("--peers", type=Path, help="folder with more peers: see peer_saves.py")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    settings = parser.parse_args()
    logging.getLogger("checkpointing").setLevel(logging.ERROR)  # trainers go without close()
    with scratch(settings.folder) as folder, alone():
        _compare(settings, folder)


def _compare(settings: argparse.Namespace, folder: Path) -> None:
    bench = RestoreBench(TrainingState(settings.mib << 20, settings.width), folder)
    about = {k: str(v) if isinstance(v, Path) else v for k, v in vars(settings).items()}
    about["bytes"] = bench.nbytes
    if "memory" in settings.tiers:
        arms = bench.from_memory()
        _measure("restore_memory", COPY, bench, arms, about, settings.memory_rounds)
    if {"disk", "cold"} & set(settings.tiers):
        bench.save(more_peers(settings.peers, folder, bench.trained))
    if "disk" in settings.tiers:
        _measure("restore_disk", READ, bench, bench.from_disk(), about, settings.rounds)
    if "cold" in settings.tiers:
        arms = bench.from_disk(cold=True)
        _measure("restore_disk_cold", READ, bench, arms, about, settings.rounds)
    bench.close()
    print(f"{bench.nbytes / 1e9:.2f} GB")


def _measure(
    name: str,
    base: str,
    bench: RestoreBench,
    arms: Mapping[str, Callable[[], float]],
    about: Mapping[str, Any],
    rounds: int,
) -> None:
    processor: dict[str, list[float]] = {arm: [] for arm in arms}

    def measure(arm: str) -> float:
        seconds = arms[arm]()
        processor[arm].append(bench.processor_s)
        return seconds

    measured = interleave({arm: partial(measure, arm) for arm in arms}, rounds + 1)
    for what, unit, found in ((name, "s", measured), (f"{name}_processor", "cpu s", processor)):
        kept = {arm: seconds[1:] for arm, seconds in found.items()}  # the first round warms up
        report(ArmComparison(what, base, unit, kept), about)


class RestoreBench:
    """A state, and the methods that restore it."""

    def __init__(self, state: TrainingState, folder: Path) -> None:
        self.trained = holding(state)
        self.processor_s = 0.0  # processor time of this process in the arm that ran last
        self._state, self._folder = state, folder
        self._saved = {name: array.copy() for name, array in state.arrays.items()}
        self._saved_tensors = {n: t.clone() for n, t in self.trained.tensors.items()}
        self._bare_copies: BareCopies | None = None
        self._from_disk: list[SaveMethod] = []
        self._plain, self._left = folder / "plain", folder / "left"
        self._bare_reads = BareReads(state, self._plain)
        # two, for a trainer that comes to a run takes the place of the one that is there
        self._root, self._first_root = folder / "store", folder / "store-first"
        self._unstepped_root = folder / "store-unstepped"  # of an optimizer of torch's own class

    @property
    def nbytes(self) -> int:
        return self.trained.nbytes

    def from_memory(self) -> dict[str, Callable[[], float]]:
        """The arms."""
        self._leave_a_snapshot(HpckitSaveMethod("hpckit", self._left, self.trained))
        self._bare_copies = bare = BareCopies(self._state, self.trained)
        return {
            COPY: partial(self._timed, bare.copy, times=COPIES),
            SHARED: partial(
                self._timed, partial(bare.from_shared_memory, is_mapped=False), times=COPIES
            ),
            MAPPED: partial(
                self._timed, partial(bare.from_shared_memory, is_mapped=True), times=COPIES
            ),
            "hpckit": partial(self._left_in_memory, is_mapped=True),
            "hpckit, not mapped": partial(self._left_in_memory, is_mapped=False),
        }

    def save(self, more: list[SaveMethod]) -> None:
        """Restores once with every method."""
        write_plainly(self._state, self._plain)
        of_torch = holding(self._state, AdamW)
        for root, trained in (
            (self._root, self.trained),
            (self._first_root, self.trained),
            (self._unstepped_root, of_torch),
        ):
            saver = HpckitSaveMethod("hpckit", root, trained, compress=False)
            saver.save()
            saver.wait()
            saver.close()
        peers = [Sync(self._folder, self.trained), *more]
        for peer in peers:
            peer.save()
            peer.wait()
        self._from_disk = [HpckitSaveMethod("hpckit", self._root, self.trained), *peers]

    def from_disk(self, *, cold: bool = False) -> dict[str, Callable[[], float]]:
        """The arms."""
        bare = self._bare_reads
        arms: dict[str, Callable[[], float]] = {
            READ: partial(self._timed, bare.read, cold=cold),
            READ_BUFFER: partial(self._timed, bare.read_one_buffer, cold=cold, fills=False),
            KEPT: partial(self._timed, bare.read_checked, cold=cold),
            "hpckit, first": partial(self._first, cold=cold, is_fresh=False),
            "hpckit, fresh": partial(self._first, cold=cold, is_fresh=True),
            "hpckit, unstepped": partial(self._unstepped, cold=cold, is_fresh=False),
            "hpckit, unstepped, fresh": partial(self._unstepped, cold=cold, is_fresh=True),
        }
        return arms | {
            way.name: partial(self._timed, way.load, cold=cold) for way in self._from_disk
        }

    def close(self) -> None:
        for way in self._from_disk:
            way.close()
        if self._bare_copies is not None:
            self._bare_copies.close()

    def _timed(
        self,
        load: Callable[[], object],
        *,
        cold: bool = False,
        fills: bool = True,
        times: int = 1,
        prepare: Callable[[], object] = lambda: None,
    ) -> float:
        """Returns the seconds of `load`: the median, if it is called several times."""
        for array in self._state.arrays.values():
            array.fill(0)
        if cold:
            forget(self._folder)
        touch(3 * self.nbytes)
        prepare()
        seconds, processor_s = list[float](), list[float]()
        for _ in range(times):
            begun_s, cpu_s = time.perf_counter(), time.process_time()
            load()
            seconds.append(time.perf_counter() - begun_s)
            processor_s.append(time.process_time() - cpu_s)
        self.processor_s = median(processor_s)
        if fills:
            for name, array in self._state.arrays.items():
                if not np.array_equal(array, self._saved[name]):
                    raise AssertionError(f"{name} is not what was saved")
        return median(seconds)

    def _left_in_memory(self, *, is_mapped: bool) -> float:
        found: list[HpckitSaveMethod] = []

        def create() -> None:
            found.append(HpckitSaveMethod("hpckit", self._left, self.trained, restore=False))

        if not is_mapped:
            seconds = self._timed(lambda: found[0].load(), prepare=create)
        else:
            create()
            seconds = self._timed(found[0].load)
        way = found.pop()
        if way.tier != "memory":
            raise AssertionError(f"it was restored from the {way.tier}")
        self._leave_a_snapshot(way)
        return seconds

    def _leave_a_snapshot(self, way: HpckitSaveMethod) -> None:
        way.save()
        way.wait()
        way.drop()

    def _first(self, *, cold: bool, is_fresh: bool) -> float:
        way = HpckitSaveMethod(
            "hpckit, first", self._first_root, self.trained, restore=False, is_fresh=is_fresh
        )
        seconds = self._timed(way.load, cold=cold)
        way.close()
        return seconds

    def _unstepped(self, *, cold: bool, is_fresh: bool) -> float:
        trained = unstepped(self._state)
        way = HpckitSaveMethod(
            "hpckit, unstepped", self._unstepped_root, trained, restore=False, is_fresh=is_fresh
        )
        seconds = self._timed(way.load, cold=cold, fills=False)
        way.close()
        for name, tensor in trained.tensors.items():
            if not torch.equal(tensor, self._saved_tensors[name]):
                raise AssertionError(f"{name} is not what was saved")
        return seconds


if __name__ == "__main__":
    main()
