"""A folder of runs as a team has them: some train, some were forked, some are damaged."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from checkpointing.store.store import Store
from hpckit.cli.logs import find_first_error
from hpckit.rundir.directory import RunDir, run_name
from hpckit.rundir.fork_record import ForkRecord, write_fork
from hpckit.serve.run_catalog import RunCatalog
from hpckit.serve.run_reader import RunReader
from hpckit.serve.site import RunSite
from tests.unit.checkpointing.store.tensor_checkpoints import make
from tests.unit.hpckit.report.sample_runs import ran, submitted, write
from tests.unit.hpckit.specs_and_processes import make_spec

HOSTILE = "<script>alert(1)<|script>&amp;\"'`"
"""A name of a directory, which is shown and never run."""
_FRAME = '  File "/work/somebody/project/train.py", line 7, in loss\n    return of(batch)\n'
TRACEBACK = f"Traceback (most recent call last):\n{_FRAME * 30}<b>ValueError</b>"
STEPS = (100, 200, 300, 400)


@dataclass(frozen=True)
class ServedFolder:
    """The folder, and the directories in it."""

    root: Path
    trained: RunDir
    """It is done, with an error in its logs and a store of checkpoints."""
    fork: RunDir
    """It was forked from `trained`."""
    hostile: RunDir
    torn: RunDir
    """The last line of its events is not whole, one before it is no event, its spec is no spec."""
    begun: RunDir
    """A submission without a spec, as while it is being made."""
    broken: RunDir
    """Its events are a folder."""

    def site(self, every_s: float | None = 2.0) -> RunSite:
        catalog = RunCatalog([], [self.root])
        reader = RunReader(lambda overview, events: None, every_s or 0.0)
        return RunSite(catalog, reader, find_first_error, every_s)


def make_runs(root: Path) -> ServedFolder:
    """Make the folder, with more than one lost attempt and one of each kind of damage."""
    trained = ran(root / "gpt-1a2b3c4d", lives=3, per_life=20)
    _fail(trained)
    store = make_checkpoints(trained)
    fork = ran(root / "gpt-lower-rate-5e6f7a8b", lives=1, per_life=90)
    write_fork(fork, ForkRecord(trained.name, str(trained.path), store, 20, "0000000020-01234567"))
    hostile = ran(root / HOSTILE)
    torn = ran(root / "torn-9a8b7c6d")
    torn.spec(1).write_text("train: [")
    with open(torn.events, "a") as file:
        file.write('{"time": 2, "kin\n{"time": 3.0, "kind": "step", "st')
    begun = RunDir(root / "begun-00000001")
    begun.submission(1).mkdir(parents=True)
    broken = submitted(root / "broken-00000002")
    broken.events.mkdir()
    (root / "notes").mkdir()  # which is no run
    return ServedFolder(root, trained, fork, hostile, torn, begun, broken)


def make_checkpoints(run: RunDir) -> str:
    """Make a store in the run directory, with a checkpoint of each of `STEPS`."""
    rng = np.random.default_rng(0)
    weight, frozen = (rng.standard_normal((40, 50)).astype("f4") for _ in range(2))
    store = Store.open(run.checkpoints, create=True)
    for step in STEPS:
        weight = weight + np.float32(1)
        tensors = {"model/w": ("float32", weight), "model/<i>": ("float32", frozen)}
        name, losses = run_name(make_spec()), {"loss": 100.0 / step}
        make(store, step, tensors, {"epoch": step}, run=name, metrics=losses)
    store.close()
    return str(run.checkpoints)


def _fail(run: RunDir) -> None:
    folder = run.node_logs(1, 0)
    folder.mkdir(parents=True)
    error = {"rank": 3, "type": "ValueError", "message": "bad", "traceback": TRACEBACK, "time": 5.0}
    (folder / "rank3.attempt0.error.json").write_text(json.dumps(error))
    (run.logs / "supervisor.log").write_text("began\n<i>ended</i>\n")


def go_on(run: RunDir, step: int) -> None:
    """Add a step to the events of a run."""
    of = {"generation": 2, "attempt": 0, "step": step, "loss": 0.125, "step_s": 1.0}
    write(run, {"time": 5000.0, "kind": "step", **of})
