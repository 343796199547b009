"""Lightning's Trainer, broken off at any place and begun again: the same to the bit."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from checkpointing import Steps, StructureError
from tests.integration.checkpoint.single_process_saves import die

L = pytest.importorskip("lightning.pytorch", reason="the dev extra has Lightning")
pytestmark = pytest.mark.filterwarnings("ignore")

BATCHES = 6  # in an epoch


class KilledError(Exception):
    pass


class Model(L.LightningModule):  # type: ignore[misc, name-defined, unused-ignore]
    def __init__(self, kill_at: tuple[str, int] | None = None) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 1)
        )
        self.kill_at, self.seen = kill_at, list[tuple[int, float]]()
        self.stop_at = -1

    def die(self, where: str) -> None:
        if self.kill_at == (where, self.global_step):
            raise KilledError

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        self.die("step")
        loss = nn.functional.mse_loss(self.net(batch[0]), batch[0].sum(1, keepdim=True))
        self.seen.append((self.global_step, loss.item()))
        return loss

    def validation_step(self, batch: Any, index: int) -> None:
        self.log("val_loss", self.net(batch[0]).mean())

    def on_train_epoch_start(self) -> None:
        self.die("epoch start")

    def on_train_batch_end(self, *args: Any) -> None:
        self.trainer.should_stop = self.global_step == self.stop_at

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        every_step = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 20)
        every_epoch = torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 2], 0.5)
        return [optimizer], [{"scheduler": every_step, "interval": "step"}, every_epoch]


class Counting(DataLoader[Any]):
    """One that can go to a batch by itself, and counts those that it reads."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.at = self.read = 0

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        order = torch.arange(len(self.dataset)).reshape(-1, 4)  # type: ignore[arg-type]
        for number in range(self.at, len(order)):
            self.at, self.read = number + 1, self.read + 1
            yield [torch.stack([self.dataset[int(i)][0] for i in order[number]])]
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at % BATCHES}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class Unsized(Counting):
    def __len__(self) -> int:
        raise TypeError("it has no length")


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    return TensorDataset(torch.randn(4 * BATCHES, 4, generator=generator))


def fit(
    root: Path,
    seed: int,
    kill_at: tuple[str, int] | None = None,
    loader: Any = None,
    every: int = 1,
    stop_at: int = -1,
    **options: Any,
) -> tuple[Model, Any]:
    from checkpointing.integrations.lightning import CheckpointerCallback

    L.seed_everything(seed)
    model = Model(kill_at)
    model.stop_at = stop_at
    saver = CheckpointerCallback(root, run="r", metrics=["val_loss"], every=Steps(every), slots=4)
    options = {"max_epochs": 3} | options
    stopping = L.callbacks.EarlyStopping("val_loss", patience=99)
    trainer = L.Trainer(
        **options,
        callbacks=[saver, stopping],
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    loader = DataLoader(data(), 4, shuffle=True) if loader is None else loader
    try:
        trainer.fit(model, loader, DataLoader(data(), 8))
    except KilledError:
        assert saver._ckpt is not None
        die(saver._ckpt)
        saver._ckpt = None
    else:
        assert kill_at is None
    return model, trainer


def assert_goes_on(tmp_path: Path, places: list[tuple[str, int]], **options: Any) -> None:
    """From each place: the losses of the rest, and all weights at the end, are the same."""
    whole, ended = fit(tmp_path / "whole", 0, **options)
    for number, place in enumerate(places):
        root = tmp_path / str(number)
        begun, _ = fit(root, 0, place, **options)
        rest, trainer = fit(root, 77, **options)  # other seeds, other weights, another order
        assert begun.seen + rest.seen == whole.seen, place
        for name, tensor in whole.state_dict().items():
            assert torch.equal(rest.state_dict()[name], tensor), (place, name)
        assert trainer.global_step == ended.global_step
        assert trainer.current_epoch == ended.current_epoch
        rates = [c.scheduler.get_last_lr() for c in trainer.lr_scheduler_configs]
        assert rates == [c.scheduler.get_last_lr() for c in ended.lr_scheduler_configs]
        stopping = trainer.early_stopping_callback
        assert torch.equal(stopping.best_score, ended.early_stopping_callback.best_score)
        assert stopping.wait_count == ended.early_stopping_callback.wait_count


def test_in_and_between_epochs(tmp_path: Path) -> None:
    assert_goes_on(tmp_path, [("step", 2), ("step", 6), ("epoch start", 6)])


def test_by_steps_with_validation_inside_epochs(tmp_path: Path) -> None:
    options = {"max_steps": 15, "max_epochs": -1, "val_check_interval": 3}
    assert_goes_on(tmp_path, [("step", 3), ("step", 5), ("step", 12)], **options)


def test_between_accumulations(tmp_path: Path) -> None:
    assert_goes_on(tmp_path, [("step", 1), ("step", 4)], accumulate_grad_batches=2)


def test_a_run_that_has_ended_goes_on_with_more_epochs(tmp_path: Path) -> None:
    whole, _ = fit(tmp_path / "whole", 0, max_epochs=4)
    fit(tmp_path / "r", 0, max_epochs=2)
    again, trainer = fit(tmp_path / "r", 5, max_epochs=2)
    assert (again.seen, trainer.global_step) == ([], 2 * BATCHES)
    more, _ = fit(tmp_path / "r", 6, max_epochs=4)
    assert more.seen == whole.seen[2 * BATCHES :]
    assert all(torch.equal(more.state_dict()[n], t) for n, t in whole.state_dict().items())


def test_a_loader_that_can_is_asked_to_go_to_its_batch(tmp_path: Path) -> None:
    whole, _ = fit(tmp_path / "whole", 0, loader=Counting(data(), 4))
    begun, _ = fit(tmp_path / "r", 0, ("step", 9), loader=Counting(data(), 4))
    loader = Counting(data(), 4)
    rest, _ = fit(tmp_path / "r", 7, loader=loader)
    assert begun.seen + rest.seen == whole.seen
    assert loader.read == len(rest.seen)


def test_a_loader_without_a_length_goes_to_the_batch_after_the_last_trained_on(
    tmp_path: Path,
) -> None:
    whole, _ = fit(tmp_path / "whole", 0, loader=Unsized(data(), 4))
    for step in (1, 5, 6, 9):  # Lightning has read one batch more
        root = tmp_path / str(step)
        begun, _ = fit(root, 0, ("step", step), loader=Unsized(data(), 4))
        loader = Unsized(data(), 4)
        rest, _ = fit(root, 7, loader=loader)
        assert begun.seen + rest.seen == whole.seen, step
        assert loader.read == len(rest.seen), step


def test_a_sampler_that_is_told_the_epoch_goes_on_in_its_order(tmp_path: Path) -> None:
    def loader() -> DataLoader[Any]:
        return DataLoader(data(), 4, sampler=DistributedSampler(data(), 1, 0))

    whole, _ = fit(tmp_path / "whole", 0, loader=loader())
    begun, _ = fit(tmp_path / "r", 0, ("step", 9), loader=loader())
    rest, _ = fit(tmp_path / "r", 7, loader=loader())
    assert begun.seen + rest.seen == whole.seen


@pytest.mark.parametrize("stop", [{"max_steps": 8}, {"stop_at": 8}])
def test_one_that_was_stopped_inside_an_epoch_goes_on_there(
    tmp_path: Path, stop: dict[str, int]
) -> None:
    options: dict[str, Any] = {"every": 99, "val_check_interval": 2}  # nothing is due but the end
    whole, _ = fit(tmp_path / "whole", 0, **options)
    begun, _ = fit(tmp_path / "r", 0, **(options | stop))
    rest, _ = fit(tmp_path / "r", 7, **options)
    assert len(begun.seen) == 8
    assert begun.seen + rest.seen == whole.seen


def test_what_cannot_be_resumed_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fit(tmp_path, 0, ("step", 3))
    with pytest.raises(Exception, match="is it the same data"):
        fit(tmp_path, 0, loader=DataLoader(TensorDataset(torch.zeros(8, 4)), 4))

    class Adding(Model):
        def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            checkpoint["more"] = 1

    from checkpointing.integrations.lightning import CheckpointerCallback

    saver = CheckpointerCallback(tmp_path, run="r", every=Steps(1))
    trainer = L.Trainer(max_epochs=1, callbacks=[saver], accelerator="cpu", logger=False)
    other = Adding()
    other.net.append(nn.Linear(1, 1))
    with caplog.at_level(logging.WARNING, "checkpointing"), pytest.raises(StructureError):
        trainer.fit(other, DataLoader(data(), 4))
    assert "Adding.on_save_checkpoint() is not called" in caplog.text
