"""What the run loop costs: steps by `run.steps`, against a bare loop and a loop in plain torch.

    python -m benchmarks.run.run_loop [--rounds 20] [--steps 60] [--batch 2] [--width 64]
        [--ranks 1 2]

All arms take batches from loaders of their own and train models with the same first parameters;
their losses are compared in the first round. The bare loop does the same forward and backward
passes, clipping and AdamW step as the run loop by hpckit's `ParallelModel`, without a run, step
phases and records. The loop in plain torch (`plain_torch_loop.py`) has the model,
DistributedDataParallel on several ranks, AdamW and clip_grad_norm_. The run loop writes a record
every ten steps to the events (and to TensorBoard, in another process), writes heartbeats, checks
for requests to leave or save, and marks the phases of a step. It does not save, and traces no step;
on several ranks the ranks agree by an exchange whether it is time to save. --batch (of a rank) and
--width determine the length of a step, which should be about 10 ms.

*run_loop_processor* has the processor time of the training thread in the same blocks, which is
comparable on a busy machine; it leaves out waiting. Names end in `_2_ranks` for two ranks; rank 0
measures.
"""

from __future__ import annotations

import argparse
import os
import socket
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from math import isclose
from pathlib import Path

import torch
from torch import Tensor
from torch.multiprocessing.spawn import spawn

from benchmarks.common.arm_comparison import ArmComparison, interleave, report
from benchmarks.common.number_arguments import positive_int
from benchmarks.run.plain_torch_loop import hand_step
from data import Batch, pack_folder, python_stdlib
from hpckit.config.rules.model import decoder_of
from hpckit.config.spec import RunSpec
from hpckit.ipc.heartbeat_table import HeartbeatTable
from hpckit.ipc.process_environment import NodeEnvironment, WorkerEnvironment
from hpckit.planner.model.flops import per_token
from hpckit.rundir.directory import RunDir
from hpckit.submit.compose import compose_spec
from hpckit.trainer.batches.token_windows import next_token_batch
from hpckit.trainer.language_model import build_loader, sample_mean
from hpckit.trainer.models.model_builder import make
from hpckit.trainer.optim import build_optimizer
from hpckit.trainer.parallel.parallel_model import ParallelModel
from hpckit.trainer.run_loop import TrainingRun
from hpckit.trainer.timing.step_phases import Timed, untimed

HAND, BARE, LOOP = "by hand", "bare loop", "run loop"
_CLOSE = 1e-3  # of losses, relative: sums in another order


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=positive_int, default=20)
    parser.add_argument("--steps", type=positive_int, default=60)
    parser.add_argument("--batch", type=positive_int, default=2)
    parser.add_argument("--width", type=positive_int, default=64)
    parser.add_argument("--ranks", type=positive_int, nargs="+", default=[1, 2])
    settings = parser.parse_args()
    for ranks in settings.ranks:
        with tempfile.TemporaryDirectory(prefix="hpckit-benchmark-") as folder:
            _compare_on(ranks, settings, Path(folder))


def _compare_on(ranks: int, settings: argparse.Namespace, folder: Path) -> None:
    spec = _spec(settings, ranks, folder)
    RunDir(folder / "run").path.mkdir()
    _, board = HeartbeatTable.create(ranks)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    about = (spec, ranks, settings, folder, board, port)
    spawn(_compare, about, nprocs=ranks)  # type: ignore[no-untyped-call]


def _compare(
    rank: int,
    spec: RunSpec,
    ranks: int,
    settings: argparse.Namespace,
    folder: Path,
    board: str,
    port: int,
) -> None:
    """Runs on each of `ranks`."""
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(ranks)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    run = TrainingRun(spec, _environment(folder, rank, ranks, board))
    loops = Loops(spec, run)
    measured = interleave(loops.arms(settings.steps), settings.rounds + 1)
    loops.close()
    if rank == 0:
        _report(measured, loops.processor_s, ranks, vars(settings))


def _report(
    measured: Mapping[str, list[float]],
    processor_s: Mapping[str, list[float]],
    ranks: int,
    settings: Mapping[str, object],
) -> None:
    """Measures all arms; the first round is a warm-up."""
    end = f"_{ranks}_ranks" if ranks > 1 else ""
    for name, unit, found in (
        ("run_loop", "s per step", measured),
        ("run_loop_processor", "processor s per step", processor_s),
    ):
        kept = {arm: seconds[1:] for arm, seconds in found.items()}
        report(ArmComparison(f"{name}{end}", BARE, unit, kept), settings)
        hand = {arm: kept[arm] for arm in (HAND, LOOP)}
        report(ArmComparison(f"{name}_by_hand{end}", HAND, unit, hand), settings)


class Loops:
    """Returns the three loops, each with a model of its own."""

    def __init__(self, spec: RunSpec, run: TrainingRun) -> None:
        self._run = run
        self._flops = per_token(decoder_of(spec))
        self._steps = hand_step(make(decoder_of(spec), spec.train.seed), spec.optim)
        self._bare = HpckitTrainedModel(spec, run, untimed)
        self._trained = HpckitTrainedModel(spec, run, run.timed)
        self.processor_s: dict[str, list[float]] = {HAND: [], BARE: [], LOOP: []}
        self._losses: dict[str, float] = {}
        loader = build_loader(spec, run)
        run.track(model=self._trained.module, optimizer=self._trained.optimizer, loader=loader)
        self._batches = run.steps(loader)
        self._own = {arm: iter(build_loader(spec, run)) for arm in (HAND, BARE)}

    def arms(self, steps: int) -> dict[str, Callable[[], float]]:
        def block(arm: str, step: Callable[[], Tensor]) -> float:
            begun_s, used_s = time.perf_counter(), time.thread_time()
            for _ in range(steps):
                loss = step()
            ended_s = time.perf_counter()
            self.processor_s[arm].append((time.thread_time() - used_s) / steps)
            self._compare(arm, float(loss))
            return (ended_s - begun_s) / steps

        loops = {HAND: self._step_by_hand, BARE: self._step, LOOP: self._step_of_run}
        return {arm: partial(block, arm, step) for arm, step in loops.items()}

    def _compare(self, arm: str, loss: float) -> None:
        """Checks in the first round that all loops have the same loss."""
        if arm not in self._losses:
            self._losses[arm] = loss
            first = next(iter(self._losses.values()))
            assert isclose(loss, first, rel_tol=_CLOSE), self._losses

    def _step_by_hand(self) -> Tensor:
        return self._steps(next(self._own[HAND]).data.tokens)

    def _step(self) -> Tensor:
        return self._bare.step(next(self._own[BARE]))[0]

    def _step_of_run(self) -> Tensor:
        loss, norm, count = self._trained.step(next(self._batches))
        self._run.log(loss=loss, grad_norm=norm, tokens=count, flops=count * self._flops)
        return loss

    def close(self) -> None:
        assert next(self._batches, None) is None, "all steps are done"
        self._run.finish()
        self._run.close()


class HpckitTrainedModel:
    """A model that hpckit has parallelised, and its step."""

    def __init__(self, spec: RunSpec, run: TrainingRun, timed: Timed) -> None:
        self._device, self._timed, self._clip = run.device, timed, spec.optim.grad_clip
        self._parallel_model = ParallelModel(spec, run.mesh, run.device)
        self.module = self._parallel_model.module
        self.optimizer = build_optimizer(self.module, spec.optim)
        self._gradients = self._parallel_model.step_gradients(run.local_batch, sample_mean, timed)

    def step(self, batch: Batch) -> tuple[Tensor, Tensor, int]:
        with self._timed("host_to_device"):
            given = next_token_batch(batch.data.to(self._device))
        self.optimizer.zero_grad()
        loss = self._gradients(*given)
        with self._timed("optimizer"):
            norm = self._parallel_model.clip_gradients(self._clip)
            self.optimizer.step()
        return loss, norm, given.targets.numel()


def _spec(settings: argparse.Namespace, ranks: int, folder: Path) -> RunSpec:
    source, left_out = python_stdlib()
    (folder / "texts").mkdir()
    for path in sorted(source.glob("*.py")):
        if path.name not in left_out:
            (folder / "texts" / f"{path.stem}.txt").write_bytes(path.read_bytes())
    pack_folder(folder / "texts", folder / "shards")
    sizes = (f"model.width={settings.width}", f"train.global_batch={settings.batch * ranks}")
    seldom = (
        ("checkpoint.every_steps=null", "checkpoint.every_minutes=100000")
        if ranks > 1
        else ("checkpoint.every_steps=1000000",)
    )
    return compose_spec(
        [
            *("model=gpt_nano", *sizes, "cluster.device=cpu", f"launch.nproc_per_node={ranks}"),
            *(f"data.shards={folder / 'shards'}", f"train.micro_batch={settings.batch}"),
            *(f"train.steps={(settings.rounds + 1) * settings.steps}", "train.trace_share=0"),
            *("parallel=ddp", *seldom),
        ]
    )


def _environment(folder: Path, rank: int, ranks: int, board: str) -> WorkerEnvironment:
    run = RunDir(folder / "run")
    return WorkerEnvironment(
        at=NodeEnvironment(run, submission=1, generation=1, node=0, nodes=1),
        rank=rank,
        local_rank=rank,
        local_world_size=ranks,
        world_size=ranks,
        attempt=0,
        device="cpu",
        heartbeat_table=board,
        is_memory_here=False,
    )


if __name__ == "__main__":
    main()
