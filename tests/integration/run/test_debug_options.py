"""The options of `debug=` on real runs: canary, overfit, profile, deterministic."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
import torch

from hpckit.rundir.directory import RunDir
from hpckit.rundir.sample_ledger import read_ledgers
from hpckit.system.atomic_files import read_json
from hpckit.trainer.parallel.process_group import make_deterministic
from tests.integration.rank_worlds import run_world, whole
from tests.integration.run.runs import DRILLED, command, complete, history, losses
from tests.integration.trainer.test_parallel_model import Training, spec_of

ONE = ("launch.nodes=1", "debug.ledger=false")


def test_a_canary_is_recorded_then_holds_back_what_differs(tmp_path: Path, shards: Path) -> None:
    golden = tmp_path / "golden.json"
    bird = (*ONE, "debug=canary", f"debug.canary.file={golden}", "debug.canary.steps=4")

    def launch(*overrides: str) -> tuple[int, str]:
        return complete(tmp_path, command(tmp_path, shards, *bird, *overrides))

    status, output = launch()
    assert status == 2, output
    assert "does not exist" in output
    status, output = launch("debug.canary.mode=record", "debug.profile.start=2")
    assert status == 0, output
    recorded = json.loads(golden.read_text())
    assert len(recorded["steps"]) == 4
    assert recorded["steps"][0].keys() == {"loss", "grad_norm"}
    (run,) = (RunDir(path) for path in tmp_path.glob("t-*"))
    assert {path.name.split("rank")[1] for path in run.profile.iterdir()} == {
        "0.pt.trace.json.gz",
        "0.txt",
    }
    status, output = launch()
    assert status == 0, output
    recorded["steps"][2]["loss"] *= 1.01
    golden.write_text(json.dumps(recorded))
    status, output = launch()  # though the one before is done
    assert status == 70, output
    assert "step 3: loss is" in output
    new = {path.name for path in tmp_path.glob("t-*")} - {run.name}
    (checked,) = (RunDir(tmp_path / name) for name in new if ".old" not in name)
    verdict = read_json(checked.verdict)
    assert verdict["kind"] == "permanent"
    assert f"{checked.name}.old1" in new


def test_one_batch_is_learnt_by_heart_and_stays_the_same_after_a_preemption(
    tmp_path: Path, shards: Path
) -> None:
    overrides = ("debug=overfit", "debug.ledger=true", "debug.drill.preempt_at=[20]", DRILLED)
    about = ("launch.nodes=1", "optim.lr=1e-2", "train.log_every=1", "model.seq_len=16")
    status, output = complete(tmp_path, command(tmp_path, shards, *about, *overrides))
    assert status == 0, output
    run = RunDir(next(tmp_path.glob("t-*")))
    assert len(history(run).lives) == 2
    taken = {tuple(entry.keys) for entry in read_ledgers(run.ledger)}
    assert len(taken) == 1
    found = losses(run)
    assert found[60] < 0.2 * found[1]


def twice(rank: int, tmp: Path) -> list[bool]:
    make_deterministic(seed=1)
    runs = []
    for _ in range(2):
        training = Training(spec_of("fsdp", "gpt_nano", "launch.nodes=2"))
        runs.append((list(training.steps()), whole(training.state)))
    (steps, tensors), (again, others) = runs
    with pytest.raises(RuntimeError, match="deterministic"):  # or it would not be on
        torch.zeros(3).put_(torch.tensor([0, 0]), torch.ones(2), accumulate=False)
    return [steps == again, *(torch.equal(tensors[n], others[n]) for n in tensors)]


def test_deterministic_gives_the_same_bits_twice(tmp_path: Path) -> None:
    for found in run_world(2, partial(twice), tmp_path):
        assert len(found) > 10
        assert all(found)
