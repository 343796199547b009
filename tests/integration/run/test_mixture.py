"""A run on a mixture that is killed, and resumed on another world with other weights, takes the
samples that plain Python counts off, and says what it takes of each source."""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import Path

from typer.testing import CliRunner

from data.order.mixture import segment
from hpckit.cli.main import app
from hpckit.rundir.directory import RunDir
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

STEPS, BATCH, BLOCK, SEED = 24, 8, 16, 1
SHARDS = {"web": (40, 30), "code": (20, 7)}
"""Samples of each shard."""
LAUNCH = (
    *(
        PACED,
        "name=t",
        "model=gpt_nano",
        "data=mixture",
        "data.text=bytes",
        "data.mixture.unit=samples",
    ),
    *(f"data.mixture.block={BLOCK}", f"train.steps={STEPS}", f"train.global_batch={BATCH}"),
    *("train.micro_batch=4", "train.log_every=1", "optim.warmup_steps=5", "cluster.device=cpu"),
    *("launch.threads_per_worker=1", "checkpoint.every_steps=5", "debug.ledger=true"),
    "data.mixture.stages=[{step: 4, weights: {web: 1, code: 1}}]",
    *("data.mixture.sources.web.weight=3", "data.mixture.sources.code.weight=1"),
)


def write_sources(folder: Path) -> list[str]:
    """Write the shards; return the overrides that name them."""
    found = []
    for name, counts in SHARDS.items():
        (folder / name).mkdir()
        for shard, count in enumerate(counts):
            files = [(f"{name}{shard}-{i:02d}.txt", b"text " * 20) for i in range(count)]
            write_tar(folder / name / f"s-{shard}.tar", files)
        found.append(f"data.mixture.sources.{name}.shards={folder / name}")
    return found


def due(stages: list[tuple[int, tuple[int, int]]]) -> list[str]:
    """The sample at each position, as `key#number`."""
    orders = [
        [
            f"{name}{shard}-{sample:02d}#{sum(counts[:shard]) + sample}"
            for epoch in range(9)
            for shard, sample in reference.epoch_order(counts, SEED, 48, 8, epoch)
        ]
        for name, counts in SHARDS.items()
    ]
    found, taken = list[str](), [0, 0]
    for (begin, weights), (end, _) in pairwise([*stages, (STEPS * BATCH, (1, 1))]):
        parts, count = segment(0, weights).parts, end - begin
        for which in reference.mixture(parts, SEED, BLOCK, -(-count // BLOCK), begin)[:count]:
            found.append(orders[which][taken[which]])
            taken[which] += 1
    return found


def test_killed_and_resumed_on_another_world_with_other_weights(tmp_path: Path) -> None:
    launch = [sys.executable, "launch.py", *LAUNCH, f"root={tmp_path}", *write_sources(tmp_path)]
    with started(tmp_path, [*launch, *ON_ONE_NODE]) as it:
        await_commit(it, 10)
        run = it.run
    weights = ["data.mixture.sources.web.weight=1", "data.mixture.sources.code.weight=4"]
    resume = [sys.executable, "-c", PROGRAM, "resume", str(run.path), "launch.nproc_per_node=1"]
    status, output = complete(tmp_path, [*resume, *weights, "data.mixture.stages=[]"])
    assert status == 0, output
    first, last = history(run).lives
    assert (first.world_size, last.world_size, last.end_step) == (2, 1, STEPS)
    begun = last.start_step * BATCH
    expected = due([(0, (3, 1)), (4 * BATCH, (1, 1)), (begun, (1, 4))])
    taken: dict[int, list[tuple[int, str]]] = {}
    for entry in kept(run):
        taken.setdefault(entry.step, []).extend(zip(entry.positions, entry.keys, strict=True))
    assert [key for step in sorted(taken) for _, key in sorted(taken[step])] == expected

    changes = [event for event in history(run).mixture_changes if event.reason == "resume"]
    assert [(event.step, event.position) for event in changes] == [(last.start_step, begun)]
    assert changes[0].after == {"web": 0.2, "code": 0.8}
    planned = [event for event in history(run).mixture_changes if event.reason == "stage"]
    assert {event.after["web"] for event in planned} == {0.5}
    of_web = sum(key.startswith("web") for key in expected)
    shown = history(run).sources
    assert (shown["web"]["samples"], shown["code"]["samples"]) == (of_web, len(expected) - of_web)
    assert shown["web"]["epochs"] == of_web / sum(SHARDS["web"])
    assert 0 < shown["code"]["loss"] < 9
    told = CliRunner().invoke(app, ["status", str(run.path)], catch_exceptions=False)
    assert f"web: {of_web} samples (" in told.stdout
    record = json.loads((run.path / "verdict.json").read_text())
    assert record["kind"] == "done"
    again, output = complete(tmp_path, [*launch, *ON_ONE_NODE])
    assert (again, "is done; nothing to do" in output) == (0, True), "it is the same run"
    assert [RunDir(path).name for path in tmp_path.glob("t-*")] == [run.name]
