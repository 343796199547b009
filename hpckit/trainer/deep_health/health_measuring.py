"""Measures all nodes and ranks: the workers of a run do before they train (`health=deep`), and as a
program of its own:

    python -m hpckit.trainer.deep_health.health_measuring --output FILE

The nodes measure at the same time, so that a machine that others use, too, slows all of them.
Rank 0 writes a `DeepHealthReport` as JSON after each part, so that a measurement that never ends
leaves what was measured before it.
"""

from __future__ import annotations

import argparse
import logging
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.distributed as dist

from checkpointing import CheckpointError
from hpckit.config.spec import RunSpec
from hpckit.ipc.heartbeat_table import WorkerPhase
from hpckit.ipc.process_environment import WorkerEnvironment
from hpckit.rundir.directory import checkpoint_root
from hpckit.system.atomic_files import write_text
from hpckit.trainer.collectives.collective_timing import (
    CollectiveTimer,
    node_exchanges,
    node_names,
    rank_exchanges,
)
from hpckit.trainer.deep_health.bandwidths import (
    CorruptDataError,
    disk_bandwidths,
    memory_bandwidth,
    store_bandwidths,
    transfer_bandwidths,
)
from hpckit.trainer.deep_health.health_figures import (
    HEALTH_REPORT,
    DeepHealthReport,
    HealthMeasurement,
    Measure,
    WrongResult,
)
from hpckit.trainer.deep_health.matrix_check import check_matrix_products
from hpckit.trainer.parallel.collectives import gather_texts
from hpckit.trainer.parallel.process_group import join_process_group

log = logging.getLogger(__name__)

_TEXT_BYTES = 256
_ELEMENT = 4  # bytes of an int32


@dataclass(frozen=True)
class HealthMeasuringOptions:
    """What is measured, and for how long."""

    output: Path
    """Where rank 0 writes the report."""
    seconds: float
    """Seconds of each single measurement."""
    disk: Path
    """Folder on the disk of each node."""
    store: str | None
    """URL of the checkpoint store; None: it is not measured."""


def measure_as_worker(spec: RunSpec, env: WorkerEnvironment) -> None:
    """Measures as a worker of a run, and reports its end. Collective."""
    deep, at = spec.health.deep, env.at
    assert deep is not None  # else there is no such check
    slurm = spec.cluster.slurm
    scratch = slurm.scratch if slurm is not None else None
    options = HealthMeasuringOptions(
        output=at.run.deep_health(at.generation),
        seconds=deep.seconds,
        disk=Path(scratch or tempfile.gettempdir()),
        store=checkpoint_root(spec, at.run),
    )
    join_process_group(env.device, env.local_rank, deep.timeout_s)
    measure_all(options, env.local_world_size, env.local_rank, is_cuda=env.device == "cuda")
    dist.destroy_process_group()
    env.attach_heartbeats().report(WorkerPhase.DONE, 0)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures as a program that torchrun has started. Collective."""
    parser = argparse.ArgumentParser(prog="health_measuring")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--seconds", type=float, default=0.5, help="of each measurement")
    parser.add_argument("--timeout-s", type=float, default=600.0, help="of each collective")
    parser.add_argument("--disk", type=Path, help="folder on the disk of each node; TMPDIR")
    parser.add_argument("--store", help="checkpoint store; by default not measured")
    given = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    is_cuda = given.device == "cuda" or (given.device == "auto" and torch.cuda.is_available())
    local_rank, local = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    join_process_group("cuda" if is_cuda else "cpu", local_rank, given.timeout_s)
    disk = given.disk or Path(tempfile.gettempdir())
    options = HealthMeasuringOptions(given.output, given.seconds, disk, given.store)
    measure_all(options, local, local_rank, is_cuda=is_cuda)
    dist.destroy_process_group()


def measure_all(
    options: HealthMeasuringOptions, local: int, local_rank: int, *, is_cuda: bool
) -> DeepHealthReport:
    """Measures everything and returns the report. Collective.

    Args:
        local: number of ranks of each node.

    Raises:
        RuntimeError: no node can use its disk or the checkpoint store.
    """
    device = torch.device("cuda", local_rank) if is_cuda else torch.device("cpu")
    measuring = HealthMeasuring(options, device, local)
    parts: list[tuple[str, Callable[[], None]]] = [
        ("matrix products", measuring.measure_matrix),
        ("memory", measuring.measure_memory),
        ("the disk", measuring.measure_disk),
        ("the checkpoint store", measuring.measure_store),
        ("links", measuring.measure_links),
    ]
    for what, part in parts:
        log.info("measuring %s", what)
        part()
        measuring.write(is_complete=part == parts[-1][1])
    dist.barrier()
    return measuring.report


class HealthMeasuring:
    """The measurements of one rank, which it exchanges with all others. Its methods are
    collective."""

    def __init__(self, options: HealthMeasuringOptions, device: torch.device, local: int) -> None:
        self._options, self._device, self._local = options, device, local
        self._timer = CollectiveTimer(device, options.seconds)
        self._rank = dist.get_rank()
        self._names = node_names(local)
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
        number = f"cuda:{device.index} {name}" if device.type == "cuda" else name
        self.report = DeepHealthReport(
            tuple(self._names), local, tuple(gather_texts(number, _TEXT_BYTES))
        )

    def write(self, *, is_complete: bool) -> None:
        """Writes the report so far, on rank 0."""
        self.report = replace(self.report, is_complete=is_complete)
        if self._rank == 0:
            text = HEALTH_REPORT.dump_json(self.report, indent=2).decode()
            write_text(self._options.output, text + "\n")

    def measure_matrix(self) -> None:
        """Compares matrix products with those of the CPU and of the other ranks, and times them."""
        found = check_matrix_products(self._device, self._options.seconds)
        self._add_of_ranks("matrix", found.flops)
        problem = "" if found.is_as_cpu else "a matrix product is not that of the CPU"
        if not found.is_repeatable:
            problem = "the same matrix product gave different results"
        problems = gather_texts(problem, _TEXT_BYTES)
        digests = self._timer.all_values(found.digest)
        usual = max(digests, key=digests.count)
        is_known = 2 * digests.count(usual) > len(digests)  # else it is unknown who is right
        for rank, digest in enumerate(digests):
            if is_known and digest != usual and not problems[rank]:
                problems[rank] = "a matrix product is not that of the other ranks"
        self._add_wrong(problems)

    def measure_memory(self) -> None:
        """Measures the memory, and on GPUs the copies between it and the host's."""
        seconds = self._options.seconds
        self._add_of_ranks("memory", memory_bandwidth(self._device, seconds))
        if self._device.type == "cuda":
            to_device, to_host = transfer_bandwidths(self._device, seconds)
            self._add_of_ranks("host_to_device", to_device)
            self._add_of_ranks("device_to_host", to_host)

    def measure_disk(self) -> None:
        """Measures the disk of each node, by its first rank."""
        folder = self._options.disk
        self._add_of_nodes("disk_write", "disk_read", lambda: disk_bandwidths(folder))

    def measure_store(self) -> None:
        """Measures the checkpoint store from each node, by its first rank."""
        if (url := self._options.store) is not None:
            self._add_of_nodes("store_write", "store_read", lambda: store_bandwidths(url))

    def measure_links(self) -> None:
        """Has pairs of nodes, and pairs of ranks in each node, reduce over the two of them."""
        pairs = PairReduction()
        found = [
            *node_exchanges(self._timer, self._names, self._local, pairs.prepare),
            *rank_exchanges(self._timer, self._names, self._local, pairs.prepare),
        ]
        self.report = replace(self.report, exchanges=tuple(found))
        self._add_wrong(gather_texts(pairs.problem(), _TEXT_BYTES))

    def _add_of_ranks(self, measure: Measure, value: float) -> None:
        values = self._timer.all_values(value)
        found = [
            HealthMeasurement(measure, rank // self._local, rank, one)
            for rank, one in enumerate(values)
        ]
        self._add(found)

    def _add_of_nodes(
        self, write: Measure, read: Measure, measured: Callable[[], tuple[float, float]]
    ) -> None:
        """Adds what the first rank of each node measures. A node that cannot use what others can
        has a problem.

        Raises:
            RuntimeError: no node can use it.
        """
        rates, problem = (0.0, 0.0), ""
        if self._rank % self._local == 0:
            try:
                rates = measured()
            except CorruptDataError as error:
                problem = str(error)
            except (OSError, CheckpointError) as error:
                problem = f"{write.partition('_')[0]}: {error}"
        problems = gather_texts(problem, _TEXT_BYTES)
        firsts = range(0, len(problems), self._local)
        if all(problems[rank] for rank in firsts):
            raise RuntimeError(f"on every node: {problems[0]}")
        self._add_wrong(problems)
        for measure, rate in ((write, rates[0]), (read, rates[1])):
            values = self._timer.all_values(rate)
            self._add(
                [
                    HealthMeasurement(measure, rank // self._local, None, values[rank])
                    for rank in firsts
                    if not problems[rank]
                ]
            )

    def _add(self, found: Sequence[HealthMeasurement]) -> None:
        self.report = replace(self.report, measurements=(*self.report.measurements, *found))

    def _add_wrong(self, problems: Sequence[str]) -> None:
        """Args:
        problems: of each rank; "": it has none.
        """
        wrong = [
            WrongResult(rank // self._local, rank, what)
            for rank, what in enumerate(problems)
            if what
        ]
        self.report = replace(self.report, wrong=(*self.report.wrong, *wrong))


class PairReduction:
    """An all-reduce of two ranks: they exchange their numbers and add them, which is compared
    exactly. No group of two is made for it, as there would be one for each pair."""

    def __init__(self) -> None:
        self._wrong: list[int] = []
        self._check: Callable[[], None] | None = None  # of the last pair

    def prepare(self, timer: CollectiveTimer, peer: int, size: int) -> Callable[[], object]:
        """Returns the call that reduces over this rank and `peer`."""
        self._check_last()
        rank = dist.get_rank()
        shape = (max(1, size // _ELEMENT),)
        sent = torch.full(shape, rank + 1, dtype=torch.int32, device=timer.device)
        received, total = torch.empty_like(sent), torch.empty_like(sent)

        def call() -> None:
            works = dist.batch_isend_irecv(
                [dist.P2POp(dist.isend, sent, peer), dist.P2POp(dist.irecv, received, peer)]
            )
            for work in works:
                work.wait()
            torch.add(sent, received, out=total)

        def check() -> None:
            if bool((total != rank + peer + 2).any()):
                self._wrong.append(peer)

        self._check = check
        return call

    def problem(self) -> str:
        """Returns what was wrong, or ""."""
        self._check_last()
        if not self._wrong:
            return ""
        ranks = ", ".join(map(str, sorted(set(self._wrong))[:8]))
        return f"a sum over this rank and rank {ranks} was wrong"

    def _check_last(self) -> None:
        if self._check is not None:
            self._check()
        self._check = None


if __name__ == "__main__":
    main()
