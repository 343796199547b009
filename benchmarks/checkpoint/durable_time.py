"""How long a save takes from save() to durable, against writing the same bytes with fsync.

    python -m benchmarks.checkpoint.durable_time [--mib 768] [--rounds 6] [--width 1024]
                                                [--nice 10] [--folder /tmp]

Base: the state's bytes, one thread, files of 64 MiB, fsync after each. Time runs from the call that
saves to the end of the wait for it; nothing is trained meanwhile. Every save is of a state in which
every number has changed. "hpckit, raw" writes the same bytes as the base and gives them hashes;
"hpckit" is as it comes: it compresses, and refers to earlier saves, only while the store is slower
than that; "hpckit, compress=True" does so for all. Their stores keep all saves.

"durable_time_processor" is the processor time of the same saves, of this process and those that it
has started: the services of hpckit, and what DCP starts. It says little about elapsed time, and can
be compared on a machine that others use.

torchsnapshot and torch_checkpointing are no arms: they do not fsync, so no time of theirs is that
of a durable save. torch DCP fsyncs its files, and not their folders.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks.checkpoint.dcp_saves import KeptAsync, ProcessAsync, Sync, alone
from benchmarks.checkpoint.save_methods import HpckitSaveMethod, SaveMethod
from benchmarks.common.arm_comparison import ArmComparison, interleave, report
from benchmarks.common.machine import MARK, processor_s, touch
from benchmarks.common.number_arguments import positive_int
from benchmarks.common.scratch import scratch
from benchmarks.common.training_model import holding
from benchmarks.common.training_state import TrainingState
from benchmarks.store.store_writers import PLAIN_WRITE, write_plainly
from checkpointing.service.config import Budget


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--mib", type=positive_int, default=768)
    parser.add_argument("--rounds", type=positive_int, default=6)
    parser.add_argument("--width", type=positive_int, default=1024)
    parser.add_argument("--nice", type=int, default=Budget().nice, help="of hpckit's services")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    settings = parser.parse_args()
    os.environ[MARK] = str(os.getpid())
    with scratch(settings.folder) as folder, alone():
        _compare(settings, folder)


def _compare(settings: argparse.Namespace, folder: Path) -> None:
    state = TrainingState(settings.mib << 20, settings.width)
    bench = DurableTimeBench(state, folder, Budget(nice=settings.nice))
    measured = interleave(bench.arms(), settings.rounds + 1)
    bench.close()
    kept = {arm: seconds[1:] for arm, seconds in measured.items()}  # the first round warms up
    about = {**vars(settings), "folder": str(settings.folder), "bytes": state.nbytes}
    report(ArmComparison("durable_time", PLAIN_WRITE, "s", kept), about)
    used = {arm: seconds[1:] for arm, seconds in bench.processor_s.items()}
    report(ArmComparison("durable_time_processor", PLAIN_WRITE, "s", used), about)
    base_s = kept[PLAIN_WRITE]
    print(
        f"{state.nbytes / 1e9:.2f} GB, written plainly at {state.nbytes / min(base_s) / 1e9:.2f} "
        "GB/s at best"
    )


class DurableTimeBench:
    """A state, and the methods that write it.

    Attributes:
        processor_s: processor time of each save so far, by arm, in seconds.
    """

    def __init__(self, state: TrainingState, folder: Path, budget: Budget) -> None:
        trained = holding(state)
        self.processor_s: dict[str, list[float]] = {}
        self._state, self._plain = state, folder / "plain"
        self._ways: list[SaveMethod] = [
            HpckitSaveMethod("hpckit, raw", folder / "raw", trained, compress=False, budget=budget),
            HpckitSaveMethod("hpckit", folder / "default", trained, budget=budget),
            HpckitSaveMethod(
                "hpckit, compress=True", folder / "always", trained, compress=True, budget=budget
            ),
            Sync(folder, trained),
            KeptAsync(folder, trained),
            ProcessAsync(folder, trained),
        ]

    def arms(self) -> dict[str, Callable[[], float]]:
        arms: dict[str, Callable[[], float]] = {PLAIN_WRITE: self._written}
        return arms | {way.name: partial(self._saved, way) for way in self._ways}

    def close(self) -> None:
        for way in self._ways:
            way.close()

    def _written(self) -> float:
        self._prepare()
        with self._processor_of(PLAIN_WRITE):
            begun_s = time.perf_counter()
            write_plainly(self._state, self._plain)
            seconds = time.perf_counter() - begun_s
        shutil.rmtree(self._plain)
        return seconds

    def _saved(self, way: SaveMethod) -> float:
        self._prepare()
        with self._processor_of(way.name):
            begun_s = time.perf_counter()
            way.save()
            way.wait()
            seconds = time.perf_counter() - begun_s
        way.clear()
        return seconds

    @contextmanager
    def _processor_of(self, arm: str) -> Iterator[None]:
        before_s = processor_s()
        yield
        self.processor_s.setdefault(arm, []).append(processor_s() - before_s)

    def _prepare(self) -> None:
        self._state.step()
        os.sync()
        touch(self._state.nbytes * 3 // 2)


if __name__ == "__main__":
    main()
