"""What the run loop costs: steps by `run.steps`, against a bare loop over the same model.

    .venv/bin/python -m benchmarks.run_loop [--rounds 20] [--steps 60] [--batch 2] [--width 64]

Both arms take batches from a loader of their own and do the same forward and backward passes,
clipping and AdamW step, on the same model in one process; the bare one has no run, no parts of
steps, no records. The run loop writes a record every ten steps, to events and TensorBoard, beats,
asks whether to leave and to save, and says when each part of a step begins and ends. It does not
save, and traces no step. --batch and --width make the length of a step, which should be some 10 ms.

*run_loop_processor* has the processor time of the thread that trains, in the same blocks: what is
left of the comparison where other work takes the processors away. It leaves out what is waited for.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.ab import Comparison, interleave, report
from data import Batch, pack_folder, python_stdlib
from hpckit.launch.compose import compose_spec
from hpckit.plan.flops import per_token
from hpckit.run.board import Board
from hpckit.run.directory import RunDir
from hpckit.run.environment import NodeEnvironment, WorkerEnvironment
from hpckit.run.modelcheck import decoder_of
from hpckit.run.spec import RunSpec
from hpckit.training.language_model import build_loader, sample_mean
from hpckit.training.optim import build_optimizer
from hpckit.training.parallel.trainee import Gradients, Trainee
from hpckit.training.parts import Timed, untimed
from hpckit.training.run import TrainingRun
from hpckit.training.windows import task

BARE, LOOP = "bare loop", "run loop"
_ALONE = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--width", type=int, default=64)
    settings = parser.parse_args()
    torch.set_num_threads(1)
    os.environ |= _ALONE
    with tempfile.TemporaryDirectory(prefix="hpckit-benchmark-") as folder:
        _compare(settings, Path(folder))


def _compare(settings: argparse.Namespace, folder: Path) -> None:
    spec = _spec(settings, folder)
    run = TrainingRun(spec, _environment(folder))
    loops = Loops(spec, run)
    measured = interleave(loops.arms(settings.steps), settings.rounds + 1)
    loops.close()
    kept = {arm: seconds[1:] for arm, seconds in measured.items()}  # the first round warms up
    report(Comparison("run_loop", BARE, "s per step", kept), vars(settings))
    cpu = {arm: seconds[1:] for arm, seconds in loops.processor_s.items()}
    report(Comparison("run_loop_processor", BARE, "processor s per step", cpu), vars(settings))


class Loops:
    """One model, and two loops that train it."""

    def __init__(self, spec: RunSpec, run: TrainingRun) -> None:
        self._run, self._clip = run, spec.optim.grad_clip
        self._trainee = Trainee(spec, run.mesh, run.device)
        self._optimizer = build_optimizer(self._trainee.module, spec.optim)
        self._gradients: dict[Timed, Gradients] = {
            timed: self._trainee.gradients(run.share, sample_mean, timed)
            for timed in (untimed, run.timed)
        }
        self._flops = per_token(decoder_of(spec))
        self.processor_s: dict[str, list[float]] = {BARE: [], LOOP: []}
        self._loader, bare = build_loader(spec, run), build_loader(spec, run)
        run.track(model=self._trainee.module, optimizer=self._optimizer, loader=self._loader)
        self._bare, self._batches = iter(bare), run.steps(self._loader)

    def arms(self, steps: int) -> dict[str, Callable[[], float]]:
        def block(arm: str, step: Callable[[], None]) -> float:
            begun_s, used_s = time.perf_counter(), time.thread_time()
            for _ in range(steps):
                step()
            ended_s = time.perf_counter()
            self.processor_s[arm].append((time.thread_time() - used_s) / steps)
            return (ended_s - begun_s) / steps

        loops = {BARE: self._step, LOOP: self._step_of_run}
        return {arm: partial(block, arm, step) for arm, step in loops.items()}

    def _step(self) -> None:
        self._train(next(self._bare), untimed)

    def _step_of_run(self) -> None:
        loss, norm, count = self._train(next(self._batches), self._run.timed)
        self._run.log(loss=loss, grad_norm=norm, tokens=count, flops=count * self._flops)

    def _train(self, batch: Batch, timed: Timed) -> tuple[Tensor, Tensor, int]:
        with timed("host_to_device"):
            given = task(batch.data.to(self._run.device))
        self._optimizer.zero_grad()
        loss = self._gradients[timed](*given)
        with timed("optimizer"):
            norm = self._trainee.clip(self._clip)
            self._optimizer.step()
        return loss, norm, given.targets.numel()

    def close(self) -> None:
        assert next(self._batches, None) is None, "all steps are done"
        self._run.finish()
        self._run.close()


def _spec(settings: argparse.Namespace, folder: Path) -> RunSpec:
    source, left_out = python_stdlib()
    (folder / "texts").mkdir()
    for path in sorted(source.glob("*.py")):
        if path.name not in left_out:
            (folder / "texts" / f"{path.stem}.txt").write_bytes(path.read_bytes())
    pack_folder(folder / "texts", folder / "shards")
    sizes = (f"model.width={settings.width}", f"train.global_batch={settings.batch}")
    return compose_spec(
        [
            *("model=gpt_nano", *sizes, "cluster.device=cpu", "checkpoint.every_steps=1000000"),
            *(f"data.shards={folder / 'shards'}", f"train.micro_batch={settings.batch}"),
            *(f"train.steps={(settings.rounds + 1) * settings.steps}", "train.trace_share=0"),
        ]
    )


def _environment(folder: Path) -> WorkerEnvironment:
    run = RunDir(folder / "run")
    run.path.mkdir()
    _, board = Board.create(1)
    return WorkerEnvironment(
        at=NodeEnvironment(run, submission=1, generation=1, node=0, nodes=1),
        rank=0,
        local_rank=0,
        local_world_size=1,
        world_size=1,
        attempt=0,
        device="cpu",
        board=board,
        is_memory_here=False,
    )


if __name__ == "__main__":
    main()
