"""A fork trains as its parent would have, as far as nothing else was asked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from checkpointing import list_run
from checkpointing.store import catalog
from checkpointing.store.store import Store
from hpckit.cli.main import app
from hpckit.rundir.directory import RunDir
from hpckit.rundir.fork_record import read_fork
from tests.integration.run.runs import PACED, REPO, STEPS, command, complete, history


@pytest.fixture(scope="module")
def parent(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """A run that keeps its checkpoints."""
    root = tmp_path_factory.mktemp("parent")
    words = ("launch.nodes=1", "checkpoint.keep.last=9", "debug.ledger=false", PACED)
    status, output = complete(root, command(root, shards, *words))
    assert status == 0, output
    return RunDir(next(root.glob("t-*")))


def typed(monkeypatch: pytest.MonkeyPatch, *words: object) -> Result:
    monkeypatch.chdir(REPO)
    result = CliRunner().invoke(app, ["fork", *map(str, words)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def losses(run: RunDir) -> dict[int, float]:
    return {step: event["loss"] for step, event in history(run).kept.items()}


def packs(parent: RunDir, name: str) -> dict[int, set[bytes]]:
    """The packs that each checkpoint of a run refers to, by step."""
    found, unreadable = catalog.committed(Store.open(parent.checkpoints), name)
    assert not unreadable
    return {one.stored.save.step: set(one.document.content().packs) for one in found}


def test_it_goes_on_as_its_parent_and_otherwise_where_it_is_asked_to(
    parent: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = min(packs(parent, parent.name))  # a save may be skipped while others are under way
    assert step < STEPS
    at = f"{parent.path}@{step}"
    refused = typed(monkeypatch, at, "model.width=96", "data.window=5")
    assert refused.exit_code == 2
    assert "model.width: cannot change" in refused.output
    assert "data.window: cannot change" in refused.output
    assert "nothing differs" in typed(monkeypatch, at).output
    missing = typed(monkeypatch, f"{parent.path}@15", "name=same")
    assert missing.exit_code == 2
    assert "has no checkpoint of step 15" in missing.output

    before = losses(parent)
    shown = typed(monkeypatch, at, "name=same", "--dry-run")
    assert shown.exit_code == 0
    assert f"kept: all of the state at step {step}" in shown.output
    assert not list(parent.path.parent.glob("same-*"))

    same = typed(monkeypatch, at, "name=same")
    assert same.exit_code == 0, same.output
    run = RunDir(next(parent.path.parent.glob("same-*")))
    mine = losses(run)
    assert mine == {one: loss for one, loss in before.items() if one > step}
    record = read_fork(run)
    assert record is not None
    assert (record.run, record.step) == (parent.name, step)
    status = CliRunner().invoke(app, ["status", str(run.path), "--json"])
    assert json.loads(status.stdout)["forked_from"]["step"] == step
    assert "forked from" in CliRunner().invoke(app, ["status", str(run.path)]).stdout
    first = list_run(parent.checkpoints, run.name)[0]
    assert first.source.startswith(f"run {parent.name}, checkpoint ")
    assert typed(monkeypatch, at, "name=same").exit_code != 0, "it is there"
    assert packs(parent, run.name)[step] == packs(parent, parent.name)[step], "nothing is copied"
