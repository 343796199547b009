"""The callback of Hugging Face's Trainer: what it reports, and that it leaves with all saved."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from checkpointing import Steps
from hpckit.ipc.heartbeat_table import WorkerPhase
from tests.unit.hpckit.integrations.launched_process import LaunchedProcess, launched

transformers = pytest.importorskip("transformers", reason="the dev extra has transformers")
pytest.importorskip("accelerate", reason="the dev extra has accelerate")

STEPS, PER_EPOCH = 12, 6


class Recording(transformers.Trainer):  # type: ignore[misc, name-defined, unused-ignore]
    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        loss: torch.Tensor = super().training_step(*args, **kwargs)
        self.seen.append((self.state.global_step + 1, float(loss)))
        return loss


class Observer(transformers.TrainerCallback):  # type: ignore[misc, name-defined, unused-ignore]
    """Calls a function with the number of finished steps, before the callback under test does."""

    def __init__(self, at_step: Callable[[int], None]) -> None:
        self._at_step = at_step
        self.evaluated: list[int] = []
        self.phases: set[WorkerPhase] = set()
        self.look: Callable[[], WorkerPhase] | None = None

    def on_step_end(self, args: Any, state: Any, control: Any, **held: Any) -> None:
        self._at_step(state.global_step)

    def on_prediction_step(self, args: Any, state: Any, control: Any, **held: Any) -> None:
        if self.look is not None:
            self.phases.add(self.look())

    def on_evaluate(self, args: Any, state: Any, control: Any, **held: Any) -> None:
        self.evaluated.append(state.global_step)


def made(folder: Path, seed: int, observer: Observer, saver: Any = None, **options: Any) -> Any:
    from hpckit.integrations.huggingface import HpckitTrainerCallback

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
    callbacks = [observer, HpckitTrainerCallback(saver)]
    trainer = Recording(
        model, arguments, train_dataset=data, eval_dataset=data[:4], callbacks=callbacks
    )
    trainer.seen = []
    return trainer


def saver_of(folder: Path) -> Any:
    from checkpointing.integrations.huggingface import CheckpointerTrainerCallback

    return CheckpointerTrainerCallback(folder / "store", run="r")


def fit(trainer: Any, saver: Any = None) -> None:
    from hpckit.integrations.huggingface import newest_checkpoint

    if saver is not None:
        saver.train(trainer)
    else:
        trainer.train(resume_from_checkpoint=newest_checkpoint(trainer.args.output_dir))


def stopped(folder: Path, stop_at: int, *, with_saver: bool, **options: Any) -> Any:
    """A training that is asked to leave after a step, and has ended the program."""

    def at_step(step: int) -> None:
        if step == stop_at:
            process.preempt()

    with launched(folder / "run") as process:
        saver = saver_of(folder) if with_saver else None
        trainer = made(folder, 0, Observer(at_step), saver, **options)
        with pytest.raises(SystemExit) as end:
            fit(trainer, saver)
        assert end.value.code == 0
        assert process.checkpoints() == [stop_at]
    return trainer


def resumed(folder: Path, *, with_saver: bool, **options: Any) -> tuple[Any, LaunchedProcess]:
    with launched(folder / "run") as process:
        saver = saver_of(folder) if with_saver else None
        trainer = made(folder, 9, Observer(lambda step: None), saver, **options)  # other weights
        fit(trainer, saver)
        assert process.heartbeat().phase is WorkerPhase.RUNNING
        assert process.heartbeat().step == STEPS
    return trainer, process


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[int, float]]:
    """Steps and losses of a training that nobody interrupts, outside hpckit."""
    folder = tmp_path_factory.mktemp("whole")
    trainer = made(folder, 0, Observer(lambda step: None))
    fit(trainer)
    assert len(trainer.seen) == STEPS
    found: list[tuple[int, float]] = trainer.seen
    return found


@pytest.mark.parametrize("with_saver", [False, True], ids=["own checkpoints", "Checkpointer"])
@pytest.mark.parametrize("stop_at", [2, PER_EPOCH, PER_EPOCH + 1])
def test_it_leaves_after_a_step_and_resumes_there(
    tmp_path: Path, whole: list[tuple[int, float]], stop_at: int, with_saver: bool
) -> None:
    begun = stopped(tmp_path, stop_at, with_saver=with_saver)
    rest, _ = resumed(tmp_path, with_saver=with_saver)
    assert [step for step, _ in begun.seen] == list(range(1, stop_at + 1))
    assert begun.seen + rest.seen == whole


def test_it_reports_steps_losses_evaluations_and_checkpoints(tmp_path: Path) -> None:
    with launched(tmp_path / "run") as process:
        observer = Observer(lambda step: None)
        observer.look = lambda: process.heartbeat().phase
        trainer = made(tmp_path, 0, observer, save_strategy="steps", save_steps=4)
        fit(trainer)
        assert observer.phases == {WorkerPhase.VALIDATING}
        assert observer.evaluated == [PER_EPOCH, STEPS]
        assert process.checkpoints() == [4, 8, 12]
        trainer.evaluate()  # nothing limits its time
        assert process.heartbeat().phase is WorkerPhase.RUNNING
    first, *_, last = process.events("step")
    logged = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert (first["step"], first["loss"], first["lr"]) == (
        1,
        logged[0]["loss"],
        logged[0]["learning_rate"],
    )
    assert last["step"] == STEPS
    assert "grad_norm" in last.fields


def test_a_commit_of_the_checkpointer_is_reported(tmp_path: Path) -> None:
    from checkpointing.integrations.huggingface import CheckpointerTrainerCallback

    with launched(tmp_path / "run") as process:
        saver = CheckpointerTrainerCallback(tmp_path / "store", run="r", every=Steps(5), slots=4)
        fit(made(tmp_path, 0, Observer(lambda step: None), saver), saver)
        *earlier, last = process.checkpoints()
    assert last == 12
    assert earlier in ([], [5], [10], [5, 10])  # a newer save may take the place of one that waits


def test_an_evaluation_that_decides_whether_to_save_is_left_out(tmp_path: Path) -> None:
    """It would find that a first loss is the best, and a later one may not be."""
    options = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "best"}
    options |= {"metric_for_best_model": "loss", "learning_rate": 10.0}  # which gets worse
    with launched(tmp_path / "run") as process:
        observer = Observer(lambda step: process.preempt() if step == 3 else None)
        with pytest.raises(SystemExit):
            fit(made(tmp_path, 0, observer, **options))
        assert process.checkpoints()[-1] == 3
        assert observer.evaluated == [1, 2]


def test_a_request_at_the_last_step_lets_the_training_end(tmp_path: Path) -> None:
    with launched(tmp_path / "run") as process:
        fit(made(tmp_path, 0, Observer(lambda step: process.preempt() if step == STEPS else None)))
        assert process.heartbeat().phase is WorkerPhase.RUNNING


def test_the_newest_complete_checkpoint_is_found(tmp_path: Path) -> None:
    from hpckit.integrations.huggingface import newest_checkpoint

    assert newest_checkpoint(tmp_path / "nothing") is None
    for step in (5, 40, 300, 1000):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        torch.save({"step": step}, folder / "optimizer.pt")
        torch.save({"step": step}, folder / "rng_state_0.pth")
        (folder / "trainer_state.json").write_text("{}")
    (tmp_path / "checkpoint-2000").write_text("a file")
    (tmp_path / "checkpoint-best").mkdir()
    assert newest_checkpoint(tmp_path) == str(tmp_path / "checkpoint-1000")
    (tmp_path / "checkpoint-1000/trainer_state.json").unlink()
    assert newest_checkpoint(tmp_path) == str(tmp_path / "checkpoint-300")
    (tmp_path / "checkpoint-300/trainer_state.json").write_text('{"epoch": 1.')
    assert newest_checkpoint(tmp_path) == str(tmp_path / "checkpoint-40")
    numbers = tmp_path / "checkpoint-40/rng_state_0.pth"
    numbers.write_bytes(numbers.read_bytes()[:-40])
    assert newest_checkpoint(tmp_path) == str(tmp_path / "checkpoint-5")


def test_the_callback_is_found_by_its_earlier_name() -> None:
    with pytest.warns(FutureWarning, match="HpckitCallback is HpckitTrainerCallback now"):
        from hpckit.integrations.huggingface import HpckitCallback
    assert HpckitCallback.__name__ == "HpckitTrainerCallback"
