"""A run on images, preempted and resumed on another world, is the run that never was."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpckit.config.entry_points import IMAGES
from hpckit.events.event_log import read_events
from hpckit.rundir.directory import RunDir
from hpckit.rundir.sample_ledger import count_epochs, kept_entries, read_ledgers
from tests.integration.run.runs import command, complete, history, losses, samples_by_step
from tests.pictures import write_pictures

STEPS, SAMPLES = 18, 48
RUN = (
    *("model=resnet_nano", "model.sync_norm=true", "data=images", "optim=sgd", f"entry={IMAGES}"),
    *(f"train.steps={STEPS}", "train.micro_batch=8", "optim.base_batch=8", "optim.lr=0.05"),
)


def run_of(root: Path, shards: Path, *overrides: str) -> RunDir:
    held_out = ("train.validate_every=9", f"data.validation={shards}")
    status, output = complete(root, command(root, shards, *RUN, *held_out, *overrides))
    assert status == 0, output
    return RunDir(next(root.glob("t-*")))


def test_preempted_and_resumed_on_another_world(tmp_path: Path) -> None:
    shards = write_pictures(tmp_path / "shards", SAMPLES)
    reference = run_of(tmp_path / "reference", shards, "launch.nodes=1")
    drill = ("debug.drill.preempt_at=[7]", "debug.drill.nodes=[2,1]", "parallel=fsdp")
    drilled = "entry=tests.integration.run.drilled_training:of_images"
    run = run_of(tmp_path / "run", shards, *drill, drilled)
    story = history(run)
    assert [life.world_size for life in story.lives] == [2, 1]
    assert [life.end for life in story.lives] == ["preempted", "done"]
    assert story.lives[1].start_step >= 7
    assert samples_by_step(run) == samples_by_step(reference)
    entries = kept_entries(read_ledgers(run.ledger), STEPS)
    assert all(count.exact for count in count_epochs(entries, SAMPLES, STEPS * 8))
    assert losses(run) == pytest.approx(losses(reference), rel=1e-3)
    records = [*story.kept.values()]
    assert records[-1]["loss"] < records[0]["loss"] / 2
    assert records[0]["accuracy"] < 0.9 < records[-1]["accuracy"] <= 1
    assert all(record["samples_per_s"] > 0 for record in records)
    first, last = validated(run)
    assert [*validated(reference)] == [pytest.approx(each, rel=1e-3) for each in (first, last)]
    assert last["val_loss"] < first["val_loss"]
    assert 0.5 < last["val_accuracy"] <= 1


def validated(run: RunDir) -> list[dict[str, float]]:
    """What each validation found."""
    told = [event for event in read_events(run.events) if event.kind == "validated"]
    return [{name: event[name] for name in ("step", "val_loss", "val_accuracy")} for event in told]
