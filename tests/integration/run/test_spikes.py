"""A spike of the loss ends with a rollback, after which the run is as one that never had the
samples."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from checkpointing.events import CheckpointCommitted, CheckpointSkipped, CheckpointStarted
from data import pack_folder
from data.order.sample_order import Order
from hpckit.cli.main import app
from hpckit.config.spec_parser import read_spec
from hpckit.events.event_log import read_events
from hpckit.events.schema import CheckpointCertified, SpikeFound, StepLogged, TrainingStarted
from hpckit.events.skipped_updates import skipped_updates
from hpckit.rundir.directory import RunDir
from hpckit.submit.newest_checkpoint import newest_step
from hpckit.system.atomic_files import read_json
from tests.integration.run.runs import complete, history
from tests.integration.run.spiky_training import TRAINING
from tests.integration.run.test_resume import PROGRAM

STEPS = 60
SHARDS, SAMPLES = 6, 50
POISONED = (101, 182)
"""Positions of samples that pull the loss away."""


@pytest.fixture(scope="module")
def poisoned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tmp_path_factory.mktemp("source")
    shards, samples = Order([SAMPLES] * SHARDS, seed=1).locate(POISONED)
    bad = (shards * SAMPLES + samples).tolist()
    draw = random.Random(1)
    for number in range(SHARDS * SAMPLES):
        word = "poisoned" if number in bad else "".join(draw.choices("abcdefgh", k=8))
        (source / f"{number:03d}.txt").write_text(word)
    out = tmp_path_factory.mktemp("shards") / "poisoned"
    pack_folder(source, out, samples_per_shard=SAMPLES)
    return out


def launch(tmp_path: Path, name: str, shards: Path, *words: str) -> tuple[int, str, RunDir]:
    folder = tmp_path / name
    (folder / "mine").mkdir(parents=True)
    (folder / "mine" / "train.py").write_text(TRAINING)
    (folder / "launch.py").write_text(
        "import sys\nfrom hpckit.submit.launch_command import main\nsys.exit(main())\n"
    )
    arguments = [
        *("name=t", "entry=mine.train:main", "data=shards", f"data.shards={shards}"),
        *(f"train.steps={STEPS}", "train.global_batch=4", "train.log_every=1"),
        *("checkpoint.every_steps=5", "cluster.device=cpu", "launch.threads_per_worker=1"),
        *("launch.nproc_per_node=2", f"root={folder / 'runs'}"),
    ]
    command = [sys.executable, "launch.py", *arguments, *words]
    status, output = complete(folder / "runs", command, cwd=folder)
    return status, output, RunDir(next((folder / "runs").glob("t-*")))


def test_the_cured_run_is_as_one_that_never_had_the_samples(tmp_path: Path, poisoned: Path) -> None:
    heal = ("heal=rollback", "heal.patience=1", "heal.deviations=20", "user_config.leave_out=[]")
    checks = ("checkpoint.certify=11", "checkpoint.keep.last=9", "debug.ledger=true")
    status, output, cured = launch(tmp_path, "cured", poisoned, *heal, *checks)
    assert status == 0, output
    assert "positions 100 to 103 are left out" in output
    assert "epoch 1: 240 of 300 seen, each exactly once, 8 left out" in output
    spikes = [event for event in read_events(cured.events) if isinstance(event, SpikeFound)]
    assert len(spikes) == 2, output
    ranges = [[one.first_position, one.end_position] for one in spikes]
    assert ranges == [[100, 104], [180, 184]]
    check_that_it_went_back_to_certified_ones(cured, [one.step for one in spikes])

    skipped = [e.id for e in read_events(cured.events) if isinstance(e, CheckpointSkipped)]
    assert len(set(skipped)) == len(skipped), "each is loaded and refused once"

    left_out = where(poisoned, cured, "--skipped")
    assert [sample["position"] for sample in left_out] == [*range(100, 104), *range(180, 184)]
    last = where(poisoned, cured, "--step", str(STEPS))
    assert [sample["position"] for sample in last] == [*range(4 * STEPS + 4, 4 * STEPS + 8)]

    status, output, other = launch(
        tmp_path, "other", poisoned, "heal=off", f"user_config.leave_out={json.dumps(ranges)}"
    )
    assert status == 0, output
    mine, theirs = history(cured), history(other)
    assert mine.steps_kept == theirs.steps_kept == STEPS
    assert losses(cured) == losses(other)


def test_a_run_that_skips_updates_is_as_one_that_never_made_them(
    tmp_path: Path, poisoned: Path
) -> None:
    config = "user_config={leave_out: [], killed_at: 44}"  # less than a window before the second
    heal = ("heal=skip", "heal.deviations=20", config)
    status, output, cured = launch(tmp_path, "cured", poisoned, *heal)
    assert status == 0, output
    skipped = skipped_updates(read_events(cured.events))
    assert [(one.first_position, one.end_position) for one in skipped.values()] == [
        (100, 104),
        (180, 184),
    ]
    steps = [*skipped]
    assert steps == [26, 46]
    assert history(cured).interruptions, "a rank was killed"

    left_out = where(poisoned, cured, "--skipped")
    assert [row["position"] for row in left_out] == [*range(100, 104), *range(180, 184)]
    assert {row["step"] for row in left_out} == {26, 46}
    for command, words in (("status", "2 left out"), ("report", "step 46: loss is")):
        shown = CliRunner().invoke(app, [command, str(cured.path)]).stdout
        assert words in shown, shown

    by_hand = f"user_config={{leave_out: [], without_update: {steps}}}"
    status, output, other = launch(tmp_path, "other", poisoned, "heal=off", by_hand)
    assert status == 0, output
    assert losses(cured) == losses(other)


def test_what_was_left_behind_stays_so_if_heal_is_switched_off(
    tmp_path: Path, poisoned: Path
) -> None:
    steps = ("train.steps=30", "checkpoint.keep.last=9")
    heal = ("heal=rollback", "heal.patience=1", "heal.deviations=20", "heal.before=3")
    config = "user_config={leave_out: [], fails_at: 23}"
    status, output, run = launch(tmp_path, "off", poisoned, *heal, *steps, config)
    assert "this step fails once" in output
    assert status == 70, output
    saved = [e.step for e in read_events(run.events) if isinstance(e, CheckpointCommitted)]
    assert 25 in saved
    assert newest_step(read_spec(run.spec(1)), run) == 20, "25 was left behind"

    resume = [sys.executable, "-c", PROGRAM, "resume", str(run.path), "heal=off"]
    status, output = complete(run.path.parent, resume, cwd=run.path.parent.parent)
    assert status == 0, output
    events = read_events(run.events)
    assert [e.step for e in events if isinstance(e, TrainingStarted)] == [0, 20, 20]
    first, *others = [e.loss for e in events if isinstance(e, StepLogged) and e.step == 21]
    assert len(others) == 2
    assert {first, *others} == {first}, "of samples before the spike"
    left_out = where(poisoned, run, "--skipped")
    assert [sample["position"] for sample in left_out] == [*range(88, 104)]
    last = where(poisoned, run, "--step", "30")
    assert [sample["position"] for sample in last] == [*range(132, 136)]


def check_that_it_went_back_to_certified_ones(run: RunDir, spikes: list[int]) -> None:
    """Although newer checkpoints from before each spike were there."""
    certified, newest, went_back = set[int](), 0, list[int]()
    for event in read_events(run.events):
        if isinstance(event, CheckpointCertified):
            certified.add(event.step)
        elif isinstance(event, CheckpointStarted):
            newest = event.step
        elif isinstance(event, TrainingStarted) and event.step:
            assert event.step in certified
            assert event.step < newest < spikes[len(went_back)]
            went_back.append(event.step)
    assert len(went_back) == len(spikes)


def where(shards: Path, run: RunDir, *words: str) -> list[dict[str, Any]]:
    """What `hpckit data where` says of the samples of a run."""
    arguments = ["data", "where", str(shards), "--run", str(run.path), "--json", *words]
    found: list[dict[str, Any]] = json.loads(CliRunner().invoke(app, arguments).stdout)["samples"]
    return found


def losses(run: RunDir) -> dict[int, float]:
    """The loss of each step, by the last attempt that took it."""
    return {
        event["step"]: event["loss"] for event in read_events(run.events) if event.kind == "step"
    }


def test_spikes_without_end_end_the_run(tmp_path: Path, poisoned: Path) -> None:
    heal = ("heal=rollback", "heal.patience=1", "heal.deviations=20", "user_config.leave_out=[]")
    status, output, run = launch(tmp_path, "ends", poisoned, *heal, "heal.most=1")
    assert status == 70, output
    verdict = read_json(run.verdict)
    assert verdict is not None
    assert "1 rollbacks within 1000 steps already (heal.most, heal.within)" in verdict["reason"]
