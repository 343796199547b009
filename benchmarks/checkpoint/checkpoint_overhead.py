"""What a save costs training: seconds per step during a save, against no save.

    python -m benchmarks.checkpoint.checkpoint_overhead [--ranks 2] [--rounds 8] [--steps 12]

Trains the demo's GPT under FSDP2. A block is `--steps` optimizer steps; the saving arms start one
asynchronous save of model and optimizer after the first. A block is timed from its first step to
its last; what is still being written then is waited for outside the clock, so no arm pays for
another's save.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.multiprocessing.spawn import start_processes

from benchmarks.common.arm_comparison import ArmComparison, interleave, report
from benchmarks.common.machine import touch
from benchmarks.common.number_arguments import positive_int
from checkpointing import Checkpointer
from hpckit.config.rules.model import decoder_of
from hpckit.submit.compose import compose_spec
from hpckit.trainer.batches.token_windows import shifted
from hpckit.trainer.language_model import sample_mean
from hpckit.trainer.optim import build_optimizer
from hpckit.trainer.parallel.device_mesh import make_mesh
from hpckit.trainer.parallel.parallel_model import ParallelModel
from hpckit.trainer.parallel.process_group import join_process_group

OVERRIDES = ["model=gpt_tiny", "optim.warmup_steps=0"]
Save = Callable[[int], Callable[[], object] | None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--ranks", type=positive_int, default=2)
    parser.add_argument("--rounds", type=positive_int, default=8)
    parser.add_argument("--steps", type=positive_int, default=12)
    settings = parser.parse_args()
    store = tempfile.mkdtemp(prefix="hpckit-benchmark-")
    try:
        port = _free_port()
        start_processes(_rank, (settings, store, port), settings.ranks, start_method="spawn")  # type: ignore[no-untyped-call]
    finally:
        shutil.rmtree(store)


def _rank(rank: int, settings: argparse.Namespace, store: str, port: int) -> None:
    os.environ |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(settings.ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // settings.ranks))
    trainer = OverheadTrainer(settings, Path(store))
    measured = interleave(trainer.arms(), settings.rounds + 1)
    trainer.close()
    if rank == 0:
        kept = {arm: seconds[1:] for arm, seconds in measured.items()}  # the first round warms up
        comparison = ArmComparison("checkpoint_overhead", "no save", "s per step", kept)
        report(comparison, {**vars(settings), "bytes": trainer.state_bytes})


class OverheadTrainer:
    """A model in training, and the methods that save it."""

    def __init__(self, settings: argparse.Namespace, store: Path) -> None:
        self._spec = spec = compose_spec(OVERRIDES)
        join_process_group("cpu", 0, 300)
        self._parallel_model = ParallelModel(
            spec, make_mesh("cpu", spec.parallel), torch.device("cpu")
        )
        self._model = self._parallel_model.module
        self._tokens = torch.randint(0, 256, (4, decoder_of(spec).seq_len + 1))
        self._gradients = self._parallel_model.step_gradients(len(self._tokens), sample_mean)
        self.state_bytes = 3 * 4 * sum(p.numel() for p in self._model.parameters())
        self._optimizer = build_optimizer(self._model, spec.optim)
        self._steps: int = settings.steps
        self._store = store
        self._saves = 0
        self._ckpt = Checkpointer(str(store / "hpckit"), run="benchmark")
        self._group = dist.new_group(backend="gloo")

    def arms(self) -> dict[str, Callable[[], float]]:
        ways: dict[str, Save] = {
            "no save": lambda number: None,
            "hpckit": self._save_hpckit,
            "torch DCP async_save": self._save_dcp,
        }
        return {name: lambda save=save: self._block(save) for name, save in ways.items()}  # type: ignore[misc]

    def _block(self, save: Save) -> float:
        """Returns the seconds per step of a block that saves after its first step."""
        self._saves += 1
        touch(2 * self.state_bytes)
        dist.barrier()
        begun = time.monotonic()
        self._step()
        wait = save(self._saves)
        for _ in range(self._steps - 1):
            self._step()
        seconds = time.monotonic() - begun
        if wait:
            wait()
        return seconds / self._steps

    def _step(self) -> None:
        self._optimizer.zero_grad()
        self._gradients(*shifted(self._tokens))
        self._parallel_model.clip_gradients(self._spec.optim.grad_clip)
        self._optimizer.step()

    def _save_hpckit(self, number: int) -> Callable[[], object]:
        self._ckpt.save(number, {"model": self._model, "optimizer": self._optimizer})
        return self._ckpt.wait

    def _save_dcp(self, number: int) -> Callable[[], object]:
        state = {
            "model": get_model_state_dict(self._model),
            "optimizer": get_optimizer_state_dict(self._model, self._optimizer),
        }
        future = async_save(
            state,
            storage_writer=FileSystemWriter(self._store / f"dcp-{number}"),
            process_group=self._group,
        )
        assert isinstance(future, Future)
        return future.result

    def close(self) -> None:
        self._ckpt.close()
        dist.destroy_process_group()


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    main()
