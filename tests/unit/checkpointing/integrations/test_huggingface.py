"""Hugging Face's Trainer, broken off at any place and begun again: the same to the bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from checkpointing import Best, CheckpointError, Last, Steps, list_checkpoints
from tests.integration.checkpoint.single_process_saves import die
from tests.integration.checkpoint.store_damage import damage_newest

transformers = pytest.importorskip("transformers", reason="the dev extra has transformers")
pytest.importorskip("accelerate", reason="the dev extra has accelerate")


class KilledError(Exception):
    pass


class Recording(transformers.Trainer):  # type: ignore[misc, name-defined, unused-ignore]
    kill_at = -1

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        if self.state.global_step == self.kill_at:
            raise KilledError
        loss: torch.Tensor = super().training_step(*args, **kwargs)
        self.seen.append((self.state.global_step, float(loss)))
        return loss


def made(folder: Path, seed: int, **options: Any) -> Any:
    transformers.set_seed(seed)
    config = transformers.GPT2Config(
        vocab_size=16, n_positions=8, n_embd=8, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
    )
    model = transformers.GPT2LMHeadModel(config)
    tokens = torch.randint(16, (24, 8), generator=torch.Generator().manual_seed(1))
    data = [{"input_ids": row, "labels": row} for row in tokens]
    plain = {"num_train_epochs": 2, "per_device_train_batch_size": 4, "eval_strategy": "epoch"}
    plain |= {"save_strategy": "no", "report_to": [], "use_cpu": True, "disable_tqdm": True}
    arguments = transformers.TrainingArguments(
        output_dir=str(folder / "out"), logging_steps=1, seed=3, **(plain | options)
    )
    trainer = Recording(model, arguments, train_dataset=data, eval_dataset=data[:4])
    trainer.seen = []
    return trainer


def fit(
    root: Path, seed: int, kill_at: int = -1, every: int = 1, callback: Any = None, **options: Any
) -> Any:
    from checkpointing.integrations.huggingface import CheckpointerTrainerCallback

    trainer = made(root, seed, **options)
    trainer.kill_at = kill_at
    if callback is not None:
        trainer.add_callback(callback)
    keep = [Last(2), Best("eval_loss")]
    saver = CheckpointerTrainerCallback(
        root, run="r", every=Steps(every), slots=4, keep=keep, metrics=["eval_loss"]
    )
    closing = pytest.MonkeyPatch()
    try:
        if kill_at >= 0:  # the callback lets go of its Checkpointer, and must not close it
            closing.setattr(saver, "_forget", lambda: die(saver._ckpt))  # type: ignore[arg-type]
        saver.train(trainer)
        assert kill_at < 0
    except KilledError:
        pass
    finally:
        closing.undo()
    return trainer


@pytest.mark.parametrize("options", [{}, {"gradient_accumulation_steps": 2}])
def test_in_and_between_epochs(tmp_path: Path, options: dict[str, Any]) -> None:
    whole = fit(tmp_path / "whole", 0, **options)
    in_epoch = whole.state.max_steps // 2
    for kill_at in (2, in_epoch):
        root = tmp_path / str(kill_at)
        begun = fit(root, 0, kill_at, **options)
        rest = fit(root, 9, **options)  # from other weights
        assert begun.seen + rest.seen == whole.seen
        for name, tensor in whole.model.state_dict().items():
            assert torch.equal(rest.model.state_dict()[name], tensor), (kill_at, name)
        assert rest.state.epoch == whole.state.epoch
        losses = [entry["loss"] for entry in rest.state.log_history if "loss" in entry]
        assert losses == [e["loss"] for e in whole.state.log_history if "loss" in e]
    again = fit(root, 9, **options)
    assert (again.seen, again.state.global_step) == ([], whole.state.global_step)
    evaluated = [
        info.metrics
        for info in list_checkpoints(root)
        if info.state == "committed" and info.step > in_epoch
    ]
    assert evaluated
    assert all("eval_loss" in one for one in evaluated)


class Stopping(transformers.TrainerCallback):  # type: ignore[misc, name-defined, unused-ignore]
    def on_evaluate(self, args: Any, state: Any, control: Any, **held: Any) -> None:
        control.should_training_stop = True


def test_one_that_an_evaluation_stopped_goes_on_there(tmp_path: Path) -> None:
    whole = fit(tmp_path / "whole", 0, every=99)
    begun = fit(tmp_path / "r", 0, every=99, callback=Stopping())
    found = {info.step: info.metrics for info in list_checkpoints(tmp_path / "r")}
    evaluated = [entry["eval_loss"] for entry in begun.state.log_history if "eval_loss" in entry]
    assert found == {6: {"eval_loss": evaluated[-1]}}
    rest = fit(tmp_path / "r", 9, every=99)
    assert begun.seen + rest.seen == whole.seen


def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path) -> None:
    whole = fit(tmp_path / "whole", 0)
    root = tmp_path / "r"
    fit(root, 0)
    damage_newest(root)
    rest = fit(root, 9)
    assert rest.seen
    assert rest.seen == whole.seen[-len(rest.seen) :]


def test_plain_train_is_refused(tmp_path: Path) -> None:
    from checkpointing.integrations.huggingface import CheckpointerTrainerCallback

    trainer = made(tmp_path, 0)
    trainer.add_callback(CheckpointerTrainerCallback(tmp_path / "r", run="r"))
    with pytest.raises(CheckpointError, match=r"call saver\.train\(trainer\)"):
        trainer.train()
    assert not (tmp_path / "r").exists()


def test_the_callback_is_found_by_its_earlier_name() -> None:
    with pytest.warns(
        FutureWarning, match="CheckpointerCallback is CheckpointerTrainerCallback now"
    ):
        from checkpointing.integrations.huggingface import CheckpointerCallback
    assert CheckpointerCallback.__name__ == "CheckpointerTrainerCallback"
