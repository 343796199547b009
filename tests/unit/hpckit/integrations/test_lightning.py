"""The callback and the environment of Lightning: what they report, and that all is saved."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader

from hpckit.ipc.heartbeat_table import WorkerPhase
from tests.unit.hpckit.integrations.launched_process import LaunchedProcess, launched

L = pytest.importorskip("lightning.pytorch", reason="the dev extra has Lightning")
pytestmark = pytest.mark.filterwarnings("ignore")

STEPS, PER_EPOCH = 12, 6


class Model(L.LightningModule):  # type: ignore[misc, name-defined, unused-ignore]
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 1))
        self.seen: list[tuple[int, float]] = []
        self.validated: list[int] = []
        self.stop_at = -1
        self.process: LaunchedProcess | None = None

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        loss = nn.functional.mse_loss(self.net(batch[0]), batch[0].sum(1, keepdim=True))
        self.seen.append((self.global_step + 1, loss.item()))
        if self.process is not None and self.global_step + 1 == self.stop_at:
            self.process.preempt()
        return loss

    def validation_step(self, batch: Any, index: int) -> None:
        if self.process is not None and not self.trainer.sanity_checking:
            assert self.process.heartbeat().phase is WorkerPhase.VALIDATING
        self.log("val_loss", self.net(batch[0]).mean())

    def on_validation_end(self) -> None:
        if not self.trainer.sanity_checking:
            self.validated.append(self.global_step)

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    return TensorDataset(torch.randn(4 * PER_EPOCH, 4, generator=generator))


def savers(folder: Path, *, with_saver: bool) -> list[Any]:
    from checkpointing.integrations.lightning import CheckpointerCallback

    if with_saver:
        return [CheckpointerCallback(folder / "store", run="r")]
    return [L.callbacks.ModelCheckpoint(dirpath=folder / "own", save_last=True)]


def fit(folder: Path, model: Model, seed: int, *, with_saver: bool, **options: Any) -> None:
    """Train, or go on, with what a user would write."""
    from hpckit.integrations.lightning import HpckitCallback

    L.seed_everything(seed)
    initial = Model().state_dict()
    model.load_state_dict(initial)
    stopping = L.callbacks.EarlyStopping("val_loss", patience=99)
    trainer = L.Trainer(
        callbacks=[stopping, HpckitCallback(), *savers(folder, with_saver=with_saver)],
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )
    loader = StatefulDataLoader(data(), 4) if not with_saver else DataLoader(data(), 4)
    ckpt_path = None if with_saver else "last"
    trainer.fit(model, loader, DataLoader(data(), 8), ckpt_path=ckpt_path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A model that was trained without an interruption, outside hpckit."""
    model = Model()
    fit(tmp_path_factory.mktemp("whole"), model, 0, with_saver=True)
    assert len(model.seen) == STEPS
    return model


@pytest.fixture
def at_sigterm() -> Iterator[list[int]]:
    """Signals that a handler of SIGTERM has got, which is there before the training."""
    got: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: got.append(number))
    yield got
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("stop_at", [2, PER_EPOCH, PER_EPOCH + 1])
def test_it_leaves_after_a_step_and_resumes_there(
    tmp_path: Path, whole: Model, stop_at: int
) -> None:
    begun, rest = Model(), Model()
    with launched(tmp_path / "run") as begun.process:
        begun.stop_at = stop_at
        with pytest.raises(SystemExit) as end:
            fit(tmp_path, begun, 0, with_saver=True)
        assert end.value.code == 0
        assert begun.process.checkpoints() == [stop_at]
    assert begun.validated == [step for step in whole.validated if step <= stop_at]
    with launched(tmp_path / "run") as rest.process:
        fit(tmp_path, rest, 9, with_saver=True)
        assert rest.process.heartbeat().phase is WorkerPhase.RUNNING
    # the batch after the save is not counted
    assert begun.seen[:stop_at] + rest.seen == whole.seen
    assert begun.validated + rest.validated == whole.validated


@pytest.mark.parametrize("stop_at", [2, PER_EPOCH + 1])
def test_without_a_checkpointer_it_saves_beside_those_of_lightning(
    tmp_path: Path, whole: Model, stop_at: int
) -> None:
    begun, rest = Model(), Model()
    with launched(tmp_path / "run") as begun.process:
        begun.stop_at = stop_at
        with pytest.raises(SystemExit):
            fit(tmp_path, begun, 0, with_saver=False)
        assert begun.process.checkpoints()[-1] == stop_at
    assert (tmp_path / "own" / "last-stop.ckpt").exists()
    assert len(begun.seen) == stop_at
    with launched(tmp_path / "run") as rest.process:
        fit(tmp_path, rest, 9, with_saver=False)
        assert rest.process.checkpoints()[-1] == STEPS
    # Lightning does not save random numbers, so that the dropout is another one
    assert [step for step, _ in begun.seen + rest.seen] == list(range(1, STEPS + 1))


def test_a_handler_of_sigterm_stays_during_training(tmp_path: Path, at_sigterm: list[int]) -> None:
    class Terminating(Model):
        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            if self.global_step == 1:
                signal.raise_signal(signal.SIGTERM)
            return super().training_step(batch, index)

    model = Terminating()
    with launched(tmp_path / "run"):
        fit(tmp_path, model, 0, with_saver=True)
    assert at_sigterm == [signal.SIGTERM]
    assert len(model.seen) == STEPS  # Lightning's own would have ended training


def test_a_request_at_the_last_step_lets_the_training_end(tmp_path: Path) -> None:
    model = Model()
    with launched(tmp_path / "run") as model.process:
        model.stop_at = STEPS
        fit(tmp_path, model, 0, with_saver=False)
    assert model.validated == [PER_EPOCH, STEPS]


def test_steps_between_accumulations_are_not_reported(tmp_path: Path) -> None:
    model = Model()
    with launched(tmp_path / "run") as model.process:
        model.stop_at = 2
        with pytest.raises(SystemExit):
            fit(tmp_path, model, 0, with_saver=True, accumulate_grad_batches=2)
        assert model.process.heartbeat().step == 2
        assert model.process.checkpoints() == [2]
    assert len(model.seen) == 5  # of which the last is not counted


def test_without_anything_that_saves_it_warns(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from hpckit.integrations.lightning import HpckitCallback

    model = Model()
    with launched(tmp_path / "run") as model.process:
        model.stop_at = 1
        trainer = L.Trainer(
            callbacks=[HpckitCallback()],
            enable_checkpointing=False,
            accelerator="cpu",
            logger=False,
            enable_progress_bar=False,
        )
        with pytest.raises(SystemExit):
            trainer.fit(model, DataLoader(data(), 4))
        assert model.process.checkpoints() == []
    assert "nothing saves this training" in caplog.text


def test_the_environment_says_where_a_trainer_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hpckit.integrations.lightning import HpckitEnvironment, trainer_options

    assert trainer_options() == {}
    assert not HpckitEnvironment.detect()
    with pytest.raises(RuntimeError, match="has not started this process"):
        HpckitEnvironment()
    of_torchrun = {"RANK": "5", "LOCAL_RANK": "1", "GROUP_RANK": "2", "WORLD_SIZE": "6"}
    of_torchrun |= {"LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "node7", "MASTER_PORT": "29500"}
    of_slurm = {"SLURM_NTASKS": "1", "SLURM_JOB_ID": "9", "SLURM_PROCID": "0", "SLURM_NODEID": "0"}
    for name, value in (of_torchrun | of_slurm).items():
        monkeypatch.setenv(name, value)
    with launched(tmp_path / "run"):
        options = trainer_options()
        (environment,) = options["plugins"]
        assert HpckitEnvironment.detect()
        assert (options["devices"], options["num_nodes"]) == (2, 3)
        assert environment.creates_processes_externally
        assert (environment.world_size(), environment.global_rank()) == (6, 5)
        assert (environment.local_rank(), environment.node_rank()) == (1, 2)
        assert (environment.main_address, environment.main_port) == ("node7", 29500)
        environment.validate_settings(num_devices=2, num_nodes=3)
        with pytest.raises(ValueError, match="2 processes on each of 3 nodes"):
            environment.validate_settings(num_devices=3, num_nodes=2)
        trainer = L.Trainer(**options, accelerator="cpu", strategy="ddp", logger=False)
        connector = trainer._accelerator_connector
        assert connector.cluster_environment is environment
        assert (trainer.num_devices, trainer.num_nodes) == (2, 3)
