"""The checkpoint manager of torchtitan: what it reports, and that it leaves with all saved.

torchtitan's Trainer needs a GPU, so that a loop like its own calls the manager here.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from hpckit.ipc.heartbeat_table import WorkerPhase
from tests.unit.hpckit.integrations.launched_process import LaunchedProcess, launched

pytest.importorskip("torchtitan", reason="the dev extra has torchtitan")

STEPS = 8


class Validator:
    def __init__(self, process: LaunchedProcess | None) -> None:
        self._process = process

    def validate(self, step: int) -> int:
        if self._process is not None:
            assert self._process.heartbeat().phase is WorkerPhase.VALIDATING
        return step


def train(
    folder: Path,
    process: LaunchedProcess | None = None,
    stop_at: int = -1,
    seen: list[tuple[int, str]] | None = None,
) -> list[tuple[int, str]]:
    """Steps and losses of torchtitan's parts in a loop like that of its Trainer."""
    from torchtitan.components.dataloader import ParallelAwareDataloader
    from torchtitan.components.metrics import BaseLogger
    from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw

    from checkpointing.examples.torchtitan_loop import Numbers, TrainProgress
    from hpckit.integrations.torchtitan import HpckitCheckpoints

    seen = [] if seen is None else seen
    torch.manual_seed(0)
    model = nn.Linear(64, 1)
    adamw = default_adamw(lr=1e-3)
    adamw.implementation = "for-loop"
    optimizers = adamw.build(model_parts=[model])
    schedulers = LRSchedulersContainer.Config(warmup_steps=5).build(
        optimizers=optimizers, training_steps=STEPS
    )
    loader = ParallelAwareDataloader(Numbers(0), 0, 1, batch_size=4)
    trainer: Any = TrainProgress()
    trainer.metrics_processor = SimpleNamespace(logger=BaseLogger())
    checkpoints = HpckitCheckpoints.Config(enable=True, interval=100).build(
        dataloader=loader,
        model_parts=[model],
        optimizers=optimizers,
        lr_schedulers=schedulers,
        states={"train_state": trainer},
        sd_adapter=None,
        base_folder=str(folder),
    )
    trainer.validator = Validator(process)
    checkpoints.load()
    assert not any(optimizer.state for optimizer in optimizers) or trainer.step > 0, "a step"
    batches = iter(loader)
    while trainer.step < STEPS:
        trainer.step += 1
        x = next(batches)
        loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
        loss.backward()  # type: ignore[no-untyped-call]
        checkpoints.maybe_wait_for_staging()
        optimizers.step()
        schedulers.step()
        optimizers.zero_grad()
        seen.append((trainer.step, float(loss.detach()).hex()))
        logged = {"loss_metrics/global_avg_loss": float(loss.detach()), "tflops": 1.0}
        trainer.metrics_processor.logger.log(logged, trainer.step)
        if process is not None and trainer.step == stop_at:
            process.preempt()
        checkpoints.save(trainer.step, last_step=trainer.step == STEPS)
        assert trainer.validator.validate(trainer.step) == trainer.step
    checkpoints.close()
    return seen


@pytest.mark.parametrize("stop_at", [1, 5])
def test_it_leaves_after_a_step_and_resumes_there(tmp_path: Path, stop_at: int) -> None:
    whole = train(tmp_path / "whole")
    begun: list[tuple[int, str]] = []
    with launched(tmp_path / "run") as process:
        with pytest.raises(SystemExit) as end:
            train(tmp_path / "r", process, stop_at, begun)
        assert end.value.code == 0
        assert process.checkpoints() == [stop_at]
        assert process.events("step")[0]["loss"] == float.fromhex(begun[0][1])
        assert "tflops" not in process.events("step")[0].fields
    with launched(tmp_path / "run") as process:
        rest = train(tmp_path / "r", process)
        assert process.heartbeat().phase is WorkerPhase.RUNNING
        assert process.heartbeat().step == STEPS
        assert process.checkpoints() == [stop_at, STEPS]
    assert begun + rest == whole


def test_a_manager_that_is_not_enabled_leaves_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from hpckit.integrations.torchtitan import HpckitCheckpoints

    parts = dict.fromkeys(("dataloader", "optimizers", "lr_schedulers", "sd_adapter"))
    with launched(tmp_path / "run") as process:
        manager = HpckitCheckpoints.Config(enable=False).build(
            **parts, model_parts=[], states={}, base_folder=str(tmp_path)
        )
        assert not manager.save(1)
        process.preempt()
        with pytest.raises(SystemExit):
            manager.save(2)
        assert process.checkpoints() == []
    assert "step 2 is not saved" in caplog.text
