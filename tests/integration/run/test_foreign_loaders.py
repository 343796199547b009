"""Runs over loaders of other libraries are killed, resumed, and the runs that nothing
interrupted."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from hpckit.events.event_log import read_events
from hpckit.rundir.directory import RunDir
from hpckit.system.atomic_files import read_json
from tests.integration.cli.run_commands import HPCKIT
from tests.integration.run.runs import ALONE, command, complete, history, losses
from tests.integration.run.test_user_code import attempts

TRAIN = ("train.steps=20", "train.global_batch=4", "debug.ledger=false", "optim.warmup_steps=1")
ENTRY = "entry=tests.integration.run.foreign_loaders:"
TWO_RANKS = (*ALONE, "launch.nproc_per_node=2")


def train(root: Path, shards: Path, entry: str, *more: str) -> tuple[int, str, RunDir]:
    root.mkdir(exist_ok=True)
    overrides = (*TRAIN, f"{ENTRY}{entry}", "user_config.dropout=0.1", "checkpoint.every_steps=4")
    status, output = complete(root, command(root, shards, *overrides, *more))
    return status, output, RunDir(next(root.glob("t-*")))


def killed_once(folder: Path, step: int) -> tuple[str, str]:
    (folder / "flag").touch()
    return f"user_config.flag={folder / 'flag'}", f"user_config.killed_at={step}"


def losses_by_step(run: RunDir) -> dict[int, list[float]]:
    """Those of all attempts."""
    found = defaultdict(list)
    for event in read_events(run.events):
        if event.kind == "step":
            found[event["step"]].append(event["loss"])
    return found


def test_a_stateful_loader_resumes_exactly_on_as_many_ranks_and_is_refused_on_others(
    tmp_path: Path, shards: Path
) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    status, output, reference = train(whole, shards, "stateful", *TWO_RANKS)
    assert status == 0, output
    once = (*killed_once(tmp_path, 13), "retry=none")
    status, output, run = train(cut, shards, "stateful", *TWO_RANKS, *once)
    assert (status, read_json(run.verdict)["kind"]) == (70, "crash"), output
    started = attempts(run)

    resume = [HPCKIT, "resume", str(run.path)]
    status, output = complete(cut, [*resume, "launch.nproc_per_node=1", "retry=default"])
    verdict = read_json(run.verdict)
    assert (status, verdict["kind"]) == (70, "permanent"), output
    assert "has the positions of 2 ranks, and here are 1" in verdict["reason"]
    assert 'The rule is other_world="error"' in verdict["reason"]
    assert attempts(run) == started + 1

    status, output = complete(cut, [*resume, "launch.nproc_per_node=2"])
    assert status == 0, output
    assert history(run).lives[-1].start_step in (4, 8, 12)
    assert losses(run) == losses(reference)
    assert len(losses(run)) == 20  # over two epochs
    told = next(event for event in read_events(run.events) if event.kind == "training_started")
    assert told["loader"].endswith(".StatefulDataLoader")
    assert "degraded" not in {event.kind for event in read_events(run.events)}


@pytest.mark.parametrize("entry", ["crops", "stateless"])
def test_an_iterable_of_ones_own_takes_the_same_steps_again(
    tmp_path: Path, shards: Path, entry: str
) -> None:
    more = (*ALONE, *killed_once(tmp_path, 19))
    status, output, run = train(tmp_path / "runs", shards, entry, *more)
    assert status == 0, output
    found = losses_by_step(run)
    assert [*found] == [*range(1, 21)]
    _, again = history(run).lives
    begin = again.start_step
    assert begin in (4, 8, 12, 16)
    repeated = [step for step, each in found.items() if len(each) == 2]
    assert repeated == [*range(begin + 1, 19)]
    assert [len({*each}) for each in found.values()] == [1] * 20
    skipped = [event for event in read_events(run.events) if event.kind == "degraded"]
    assert [event["subject"] for event in skipped] == ([] if entry == "crops" else ["loader"])
    if skipped:
        said = f"{begin} batches of DataLoader were read again and discarded in"
        assert skipped[0]["what"].startswith(said)
        assert said in run.rank_log(1, 0, 0).read_text()


def test_a_webdataset_pipeline_continues_on_another_number_of_ranks(
    tmp_path: Path, shards: Path
) -> None:
    plain = "user_config.dropout=0.0"
    status, output, reference = train(tmp_path / "whole", shards, "converted", *TWO_RANKS, plain)
    assert status == 0, output
    drill = (
        "debug=drill",
        "debug.drill.preempt_at=[7]",
        "debug.drill.nodes=[2,1]",
        "launch.nodes=2",
        "user_config.asked_at=9",
    )
    status, output, run = train(tmp_path / "cut", shards, "converted", *drill, plain)
    assert status == 0, output
    assert [life.world_size for life in history(run).lives] == [2, 1]
    assert losses(run) == pytest.approx(losses(reference), rel=1e-4)
    assert len(losses(run)) == 20


def test_an_error_in_the_first_step_is_met_twice_and_not_ten_times(
    tmp_path: Path, shards: Path
) -> None:
    status, output, run = train(tmp_path / "runs", shards, "broken", *ALONE)
    assert status == 70, output
    verdict = read_json(run.verdict)
    assert (verdict["kind"], attempts(run)) == ("permanent", 2)
    assert verdict["reason"] == (
        "rank 0: KeyError: 'no such column' (twice before the first step, with the same message)"
    )
