"""Scalars in the files that a real SummaryWriter writes."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch.utils.tensorboard import SummaryWriter

from hpckit.ipc.program_scalars import ScalarFiles, loss_tag


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ({"loss", "val_loss"}, "loss"),
        ({"Loss/train", "Loss/test", "lr"}, "Loss/train"),
        ({"train/loss", "eval/loss", "train/aux_loss"}, "train/loss"),
        ({"train_loss_step", "validation_loss"}, "train_loss_step"),
        ({"accuracy", "glossary", "eval/loss"}, None),
        (set(), None),
    ],
)
def test_the_training_loss_is_found_by_its_words(tags: set[str], expected: str | None) -> None:
    assert loss_tag(tags) == expected


def test_new_files_are_read_as_they_grow(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    with SummaryWriter(folder / "old") as old:
        old.add_scalar("loss", 9.0, 900)
    files = ScalarFiles(folder)
    assert list(files.read()) == []
    with SummaryWriter(folder / "new") as writer:
        for step in (1, 2):
            writer.add_scalar("Loss/train", 1 / step, step)
            writer.add_scalar("lr", 0.5, step)
        writer.add_text("note", "no number", 2)
        writer.flush()
        assert list(files.read()) == [
            (1, {"Loss/train": 1.0, "lr": 0.5, "loss": 1.0}),
            (2, {"Loss/train": 0.5, "lr": 0.5, "loss": 0.5}),
        ]
        assert list(files.read()) == []
        writer.add_scalar("lr", 0.25, 3, new_style=True)
    assert list(files.read()) == [(3, {"lr": 0.25})]


def test_a_folder_that_is_made_later_and_a_damaged_file(tmp_path: Path) -> None:
    files = ScalarFiles(tmp_path / "runs")
    assert list(files.read()) == []
    with SummaryWriter(tmp_path / "runs") as writer:
        writer.add_scalar("loss", 2.0, 7)
    (tmp_path / "runs/events.out.tfevents.1.damaged").write_bytes(b"no records" * 9)
    assert list(files.read()) == [(7, {"loss": 2.0})]
