"""A run whose batch and sequences grow is killed on two ranks, and resumed on one with a dataset
that has grown: each step has the samples that plain Python counts off."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from typer.testing import CliRunner

from hpckit.cli.main import app
from tests.integration.run.runs import (
    ON_ONE_NODE,
    PACED,
    await_commit,
    complete,
    history,
    kept,
    started,
)
from tests.integration.run.test_resume import PROGRAM
from tests.unit.data.order import order_reference as reference
from tests.unit.data.tars import write_tar

STEPS, SEED = 60, 1
"""So many steps are long enough to kill the run before the last epochs, on a busy machine too."""
COUNTS = (30, 20)
"""Samples of each shard."""
MORE = 40
"""Samples of the shard that is added."""
LAUNCH = (
    *(PACED, "name=t", "model=gpt_nano", "data=shards", f"train.steps={STEPS}"),
    *("train.global_batch=8", "train.batch_ramp={start: 2, increment: 2, samples: 60}"),
    *("train.sequence_ramp={start: 16, samples: 60}", "train.micro_batch=1", "train.log_every=1"),
    *("optim.schedule_unit=samples", "optim.warmup_steps=5", "cluster.device=cpu"),
    *("launch.threads_per_worker=1", "checkpoint.every_steps=5", "debug.ledger=true"),
)


def enumerated(*epochs: tuple[int, ...]) -> list[list[str]]:
    """The samples of each step, as `key#number`, of epochs with shards of these counts."""
    every = [
        f"s{shard}-{sample:02d}#{sum(counts[:shard]) + sample}"
        for epoch, counts in enumerate(epochs)
        for shard, sample in reference.epoch_order(counts, SEED, 48, 8, epoch)
    ]
    steps, seen = list[list[str]](), 0
    for _ in range(STEPS):
        size = 2 + 2 * min(3, seen * 3 // 60)
        steps.append(sorted(every[seen : seen + size]))
        seen += size
    return steps


def write_shard(folder: Path, shard: int, count: int) -> None:
    files = [(f"s{shard}-{i:02d}.txt", b"text " * 20) for i in range(count)]
    write_tar(folder / f"s-{shard}.tar", files)


def test_killed_on_two_ranks_and_resumed_on_one(tmp_path: Path) -> None:
    shards = tmp_path / "shards"
    shards.mkdir()
    for shard, count in enumerate(COUNTS):
        write_shard(shards, shard, count)
    launch = [sys.executable, "launch.py", *LAUNCH, f"root={tmp_path}", f"data.shards={shards}"]
    with started(tmp_path, [*launch, *ON_ONE_NODE]) as it:
        await_commit(it, 10)
        run = it.run
    write_shard(shards, 2, MORE)
    resume = [sys.executable, "-c", PROGRAM, "resume", str(run.path), "launch.nproc_per_node=1"]
    status, output = complete(tmp_path, [*resume, "data.grow=next_epoch"])
    assert status == 0, output
    assert json.loads((run.path / "verdict.json").read_text())["kind"] == "done"
    first, last = history(run).lives
    assert (first.world_size, last.world_size, last.end_step) == (2, 1, STEPS)
    taken: dict[int, list[str]] = {}
    for entry in kept(run):
        taken.setdefault(entry.step, []).extend(entry.keys)
    larger = (*COUNTS, MORE)
    begun, begin = last.start_step, last.position or 0
    epoch = -(-begin // sum(COUNTS))
    expected = enumerated(*([COUNTS] * epoch), *([larger] * 8))
    assert [sorted(taken[step]) for step in sorted(taken)] == expected

    records = history(run).kept
    sizes = [len(each) for each in expected]
    assert [records[step]["batch"] for step in range(1, STEPS + 1)] == sizes
    seen = [sum(sizes[:step]) for step in range(STEPS)]
    lengths = [16 << min(2, before * 2 // 60) for before in seen]
    assert [records[step]["sequence_length"] for step in range(1, STEPS + 1)] == lengths
    warm = 6e-4 * (seen[7] / 8 + 1) / 5
    assert abs(records[8]["lr"] - warm) < 1e-9, "the warm-up counts samples"
    assert (last.position, last.seen) == (seen[begun], seen[begun])
    where = ["data", "where", str(shards), "--json", "--run", str(run.path)]
    for step, version in ((9, 1), (STEPS, 2)):
        told = CliRunner().invoke(app, [*where, "--step", str(step)], catch_exceptions=False)
        assert told.exit_code == 0, told.output
        found = json.loads(told.stdout)
        assert sorted(one["key"] for one in found["samples"]) == sorted(
            key.partition("#")[0] for key in expected[step - 1]
        )
        assert found["dataset_version"]["number"] == version
    (growth,) = history(run).dataset_growths
    assert (growth.step, growth.before, growth.after) == (begun, 2, 3)
    assert (growth.position, growth.epoch) == (epoch * sum(COUNTS), epoch)
    (shards / "s-1.tar").unlink()
    refused, output = complete(
        tmp_path, [*resume, f"train.steps={STEPS + 10}", "data.grow=next_epoch"]
    )
    assert refused != 0
    assert "s-1.tar are missing" in output
