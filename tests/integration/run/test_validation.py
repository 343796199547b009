"""Runs that are validated: training stays as it is, and a preemption costs no number."""

from __future__ import annotations

import json
import math
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from typer.testing import CliRunner

from checkpointing import CheckpointInfo, list_checkpoints
from data import Batch, Loader, ShardWriter, in_order, open_dataset
from hpckit.cli.main import app
from hpckit.events.event_log import read_events
from hpckit.rundir.directory import RunDir
from hpckit.trainer.errors import TrainingError
from hpckit.trainer.validation import over_ranks, sample_means
from tests.integration.rank_worlds import run_world
from tests.integration.run.runs import (
    ON_ONE_NODE,
    assert_same_run,
    command,
    complete,
    history,
)

EVERY = ("train.validate_every=20", "train.validate_samples=30", "checkpoint.keep.best=val_loss")


def launched(root: Path, shards: Path, *overrides: str) -> tuple[RunDir, str]:
    about = (*ON_ONE_NODE, *EVERY, f"data.validation={shards}", *overrides)
    status, output = complete(root, command(root, shards, *about))
    assert status == 0, output
    return RunDir(next(root.glob("t-*"))), output


def found(run: RunDir) -> dict[int, float]:
    return {step: event["val_loss"] for step, event in history(run).validated.items()}


def test_a_run_is_validated_and_trains_as_without(
    tmp_path: Path, shards: Path, reference: RunDir
) -> None:
    run, output = launched(tmp_path / "whole", shards)
    assert_same_run(run, reference)
    losses = found(run)
    assert list(losses) == [20, 40, 60]
    assert losses[60] < losses[20]
    assert f"val_loss {losses[60]:.4g} at step 60" in output
    kept = history(run).kept
    assert all(kept[step]["validation_s"] > 0 for step in (21, 41))
    assert kept[20]["validation_s"] == 0
    _best_is_marked(run, losses)
    drill = ("debug.drill.preempt_at=[40]", "entry=tests.integration.run.slow_validation:main")
    again, _ = launched(tmp_path / "again", shards, *drill)
    first, second = history(again).lives
    assert (first.end_step, first.end, second.start_step) == (40, "preempted", 40)
    assert found(again) == losses
    told = [e for e in read_events(again.events) if e.kind == "validated"]
    assert [(e["step"], e["generation"]) for e in told] == [(20, 1), (40, 2), (60, 2)]
    assert_same_run(again, reference)
    _best_is_marked(again, losses)


def _best_is_marked(run: RunDir, losses: dict[int, float]) -> None:
    best = min(losses, key=losses.__getitem__)
    there = {info.step: info for info in newest(run)}
    assert there[best].metrics["val_loss"] == losses[best]
    # step 40 is saved before it is validated, and again, if no later save overtakes that
    saves = Counter(info.step for info in newest(run))
    first = {life.start_step for life in history(run).lives if saves[life.start_step] == 1}
    assert all(
        ("val_loss" in info.metrics) == (step in losses)
        for step, info in there.items()
        if step not in first
    )
    text = hpckit("ckpt", "ls", str(run.path), "--json")
    marked = [one["step"] for one in json.loads(text)["checkpoints"] if "best" in one["marks"]]
    assert marked == [best]
    shown = json.loads(hpckit("ckpt", "show", str(run.path), "best", "--json"))
    assert shown["step"] == best


def newest(run: RunDir) -> list[CheckpointInfo]:
    """Of those of one step the last."""
    return sorted(list_checkpoints(str(run.checkpoints)), key=lambda info: info.created)


def hpckit(*arguments: str) -> str:
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def measured(rank: int, tmp: Path) -> dict[str, float]:
    dataset = in_order(open_dataset(tmp / "shards"), samples=10)
    loader = Loader(
        dataset, global_batch=6, rank=rank, world_size=3, tail="pad", epochs=1,
        transform=lambda sample, _: float(sample["txt"]), collate=torch.tensor,
    )  # fmt: skip

    def measure(batch: Batch) -> dict[str, torch.Tensor]:
        return {"value": batch.data, "one": torch.ones(len(batch.data))}

    batches = list(loader)
    means = sample_means(batches, measure, torch.device("cpu"))
    with pytest.raises(TrainingError, match="for each of the 2 samples"):
        sample_means(batches, lambda batch: {"x": torch.ones(3)}, torch.device("cpu"))
    with pytest.raises(TrainingError, match="no samples"):
        sample_means([], measure, torch.device("cpu"))
    with pytest.raises(TrainingError, match=r"\['a'\] and \['b'\]"):
        over_ranks({"b" if dist.get_rank() else "a": 1.0})
    return {**means, **over_ranks({"rank": rank, "nan": math.nan})}


def test_each_sample_counts_once_over_ranks_and_padding(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "shards" / "x-%06d.tar", max_samples=8) as writer:
        for number in range(16):
            writer.write({"__key__": f"{number:02}", "txt": str(number)})
    first = [*range(5), *range(8, 13)]  # of each of two shards
    for answer in run_world(3, partial(measured), tmp_path):
        assert answer["value"] == pytest.approx(sum(first) / 10)
        assert (answer["one"], answer["rank"]) == (1.0, 1.0)
        assert math.isnan(answer["nan"])
