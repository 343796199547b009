"""A real run that begins with another one's parameters, and adapts them through a preemption."""

from __future__ import annotations

from pathlib import Path

import torch

from checkpointing import Checkpoint, Store
from checkpointing.store.catalog import newest_first
from hpckit.events.event_log import read_events
from hpckit.rundir.directory import RunDir
from hpckit.trainer.models.lora import is_adapter
from tests.integration.run.runs import PACED, command, complete

FEW = ("launch.nodes=1", "debug.ledger=false", "optim.warmup_steps=1")


def parameters(run: RunDir) -> dict[str, torch.Tensor]:
    """Of the newest checkpoint, as raw elements."""
    store = Store.open(run.checkpoints)
    (name,) = [path.name for path in (run.checkpoints / "runs").iterdir()]
    newest = Checkpoint(store, newest_first(store, name)[0].stored)
    found = {tensor: torch.from_numpy(newest.read(tensor)) for tensor in newest.tensors(["model"])}
    store.close()
    return found


def test_it_begins_once_goes_on_by_itself_and_changes_adapters_alone(
    tmp_path: Path, shards: Path
) -> None:
    def launch(*overrides: str) -> tuple[int, str]:
        return complete(tmp_path, command(tmp_path, shards, *FEW, *overrides))

    status, output = launch("train.steps=3")
    assert status == 0, output
    (base,) = (RunDir(path) for path in tmp_path.glob("t-*"))
    tuning = ("lora=default", "train.steps=24", "debug.drill.preempt_at=[3]", PACED)
    status, output = launch(*tuning)
    assert status == 2, output
    assert "needs trained parameters" in output
    status, output = launch(*tuning, "init_from=checkpoint", f"init_from.path={base.path}")
    assert status == 0, output
    (tuned,) = (RunDir(path) for path in tmp_path.glob("t-*") if path != base.path)
    events = read_events(tuned.events)
    (read,) = [event for event in events if event.kind == "parameters_read"]
    assert read["path"] == str(base.path)
    assert read["id"].startswith("0000000003-")
    assert {event["generation"] for event in events if event.kind == "step"} == {1, 2}
    before, after = parameters(base), parameters(tuned)
    assert {name for name in after if name not in before} == set(filter(is_adapter, after))
    assert all(torch.equal(after[name], kept) for name, kept in before.items())
    learnt = [after[name] for name in after if name.endswith("lora_b")]
    assert all(b.any() for b in learnt)
