"""A search by Optuna: what is searched; and who kills it loses no trial and begins none twice."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import optuna
import pytest
from optuna.distributions import (
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from hpckit.config.spec_parser import SpecError
from hpckit.examples.optuna_search import measured, open_study, parse
from hpckit.rundir.directory import RunDir
from tests.integration.run.runs import ALONE, REPO, SMALL, end_leftovers

TRIALS = 3


def test_sweeps_of_hydra_are_spaces_of_optuna() -> None:
    search = parse(
        [
            "train.steps=10",
            "optim.lr=tag(log,interval(1e-4,1e-2))",
            "optim.weight_decay=interval(0,1)",
            "model.layers=int(interval(1,8))",
            "train.seed=range(1,9,3)",
            "optim=adamw,muon",
            "user_config.name=choice('a b',c)",
        ]
    )
    assert search.fixed == ("train.steps=10",)
    assert search.space == {
        "optim.lr": FloatDistribution(1e-4, 1e-2, log=True),
        "optim.weight_decay": FloatDistribution(0.0, 1.0),
        "model.layers": IntDistribution(1, 8),
        "train.seed": CategoricalDistribution(["1", "4", "7"]),
        "optim": CategoricalDistribution(["adamw", "muon"]),
        "user_config.name": CategoricalDistribution(["a\\ b", "c"]),
    }


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train.steps=10"], "nothing to search"),
        (["optim.lr=glob(*)"], "names no values"),
        (["optim.lr=[1"], "optim.lr=[1"),
        (["optim.lr=interval(2,1)"], "low <= high"),
    ],
)
def test_what_cannot_be_searched_is_refused(words: list[str], said: str) -> None:
    with pytest.raises(SpecError, match=re.escape(said)):
        parse(words)


def test_a_study_of_something_else_is_refused(tmp_path: Path) -> None:
    of, more = parse(["optim.lr=1,2"]), parse(["optim.lr=1,2", "train.seed=1,2"])
    open_study(tmp_path / "a.log", of, "loss", False)
    open_study(tmp_path / "a.log", of, "loss", False)
    for other, metric, maximize in (
        (of, "loss", True),
        (of, "val_loss", False),
        (more, "loss", False),
    ):
        with pytest.raises(SpecError, match="give another file by --study"):
            open_study(tmp_path / "a.log", other, metric, maximize)


def test_a_file_that_is_no_study_and_a_wrong_key_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("no study\n")
    for file in ("a.log", "nowhere/b.log"):
        with pytest.raises(SpecError, match=f"--study .*{file}"):
            open_study(tmp_path / file, parse(["optim.lr=1,2"]), "loss", False)
    program = [sys.executable, "-m", "hpckit.examples.optuna_search", "--metric=loss"]
    wrong = subprocess.run(
        [*program, f"--study={tmp_path / 'c.log'}", "optim.lrr=1,2"],
        cwd=REPO,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (wrong.returncode, wrong.stderr) == (
        2,
        "error: optim.lrr: unknown key; did you mean optim.lr?\n",
    )
    assert not (tmp_path / "c.log").exists()


def search(cwd: Path, shards: Path, *more: str) -> list[str]:
    program = [sys.executable, "-m", "hpckit.examples.optuna_search", f"--trials={TRIALS}"]
    places = (f"root={cwd / 'runs'}", f"data.shards={shards}", "train.steps=8")
    space = "optim.lr=tag(log,interval(1e-4,1e-1))"
    return [*program, "--metric=loss", "--at-once=2", *SMALL, *ALONE, *places, space, *more]


def test_killed_and_started_again_it_takes_up_its_trials(tmp_path: Path, shards: Path) -> None:
    study, root = tmp_path / "study.log", tmp_path / "runs"
    command = search(tmp_path, shards, f"--study={study}")
    try:
        first = subprocess.Popen(command, cwd=REPO, stdout=subprocess.PIPE, text=True)
        assert first.stdout is not None
        assert any(line.startswith("trial 1: ") for line in first.stdout)
        first.send_signal(signal.SIGKILL)
        first.wait()
        again = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=False)
        assert again.returncode == 0, again.stdout + again.stderr
    finally:
        end_leftovers(root)
    trials = optuna.load_study(
        study_name="study", storage=JournalStorage(JournalFileBackend(str(study)))
    ).trials
    assert [trial.state.name for trial in trials] == ["COMPLETE"] * TRIALS
    runs = [RunDir(path) for path in root.glob("t-*")]
    assert len(runs) == TRIALS
    assert {measured(run, "loss") for run in runs} == {trial.value for trial in trials}
    best = min(trials, key=lambda trial: trial.value or 0.0)
    assert f"best: trial {best.number}, loss" in again.stdout
