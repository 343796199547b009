"""Several runs of one command line: what they are, and when none of them is submitted."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpckit.config.spec import RunSpec
from hpckit.config.spec_parser import SpecError
from hpckit.rundir.directory import RunDir
from hpckit.rundir.lock import RunHeldError, hold_all
from hpckit.submit.arrays import sweep
from hpckit.submit.arrays.override_product import MOST, multiply, varying
from hpckit.submit.arrays.sweep import SweepTask, plan
from hpckit.submit.compose import compose_spec
from hpckit.submit.preparation import hold_runs

BASE = ["model=gpt_nano", "cluster=slurm", "cluster.device=cpu", "data.shards=/data"]


def planned(tmp_path: Path, *overrides: str) -> list[SweepTask]:
    return plan([*BASE, *overrides], compose_spec, lambda spec, run: [], tmp_path)


@pytest.mark.parametrize(
    ("words", "runs"),
    [
        (["a=1,2", "b=x,y"], ["a=1 b=x", "a=1 b=y", "a=2 b=x", "a=2 b=y"]),
        (["a=range(1,4)"], ["a=1", "a=2", "a=3"]),
        (["a='1,2'", "b=[1,2]"], ["a='1,2' b=[1,2]"]),
        (["+user_config.x=1,2"], ["+user_config.x=1", "+user_config.x=2"]),
        (["a=/data/x-{0..9}.tar"], ["a=/data/x-{0..9}.tar"]),
        (["a='x y','$(id)'"], ["a='x y'", "a='$(id)'"]),
    ],
)
def test_the_product(words: list[str], runs: list[str]) -> None:
    assert [" ".join(run) for run in multiply(words)] == runs
    assert varying(["a=1", "b=2"], ["a=1,2", "b=2"]) == "a=1"


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("a=interval(0,1)", "names no values; write key=1,2,3"),
        ("a=glob(*)", "names no values"),
        (f"a=range(0,{MOST + 1})", "are more than the 1000 of one job array"),
    ],
)
def test_what_is_no_list_of_values_is_refused(word: str, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        multiply([word])


def test_each_run_has_its_own_directory_and_spec(tmp_path: Path) -> None:
    tasks = planned(tmp_path, "train.seed=1,2", "optim.lr=1e-3,1e-4")
    assert len({task.run.path for task in tasks}) == 4
    assert [(task.spec.train.seed, task.spec.optim.lr) for task in tasks] == [
        *((1, 1e-3), (1, 1e-4), (2, 1e-3), (2, 1e-4))
    ]
    assert tasks[1].differs == "train.seed=1 optim.lr=0.0001"


def test_all_that_is_wrong_is_told_once_with_the_runs_that_have_it(tmp_path: Path) -> None:
    def check(spec: RunSpec, run: RunDir) -> list[str]:
        return ["root: is full", *(["seed: is bad"] if spec.train.seed == 2 else [])]

    words = [*BASE, "train.seed=1,2,2", "optim.lr=1,2"]
    with pytest.raises(SpecError) as caught:
        plan(words, compose_spec, check, tmp_path)
    assert caught.value.violations == [
        "root: is full",
        "seed: is bad (with train.seed=2 optim.lr=1 and 3 more)",
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train.seed=1,1"], "train.seed=1 and train.seed=1 are the same run"),
        (["launch.nodes=1,2"], "are the same run, .*sweep over what changes the experiment"),
        (["name=a,b", "launch.nodes=1,2"], "differ in cluster or launch"),
    ],
)
def test_runs_that_cannot_be_one_array_are_refused(
    tmp_path: Path, words: list[str], said: str
) -> None:
    with pytest.raises(SpecError, match=said):
        planned(tmp_path, *words)


def test_none_is_touched_where_one_of_them_is_under_way(tmp_path: Path) -> None:
    tasks = planned(tmp_path, "train.seed=1,2,3", f"root={tmp_path}")
    runs = [(task.spec, task.run) for task in tasks]
    with hold_all([tasks[2].run.lock], "me"), pytest.raises(RunHeldError), hold_runs(runs, "it"):
        raise AssertionError("two hold a run")
    with hold_runs(runs, "it"), pytest.raises(RunHeldError), hold_all([tasks[0].run.lock], "me"):
        raise AssertionError("two hold a run")


def test_a_task_finds_its_run_and_code_by_its_number(tmp_path: Path) -> None:
    tasks = planned(tmp_path, "train.seed=1,2", f"root={tmp_path}")
    folder = sweep.next_folder(tasks[0].spec, tmp_path)
    assert folder == tmp_path / "gpt-sweep-001"
    sweep.write_folder(folder, [(tasks[0], 1), (tasks[1], 4)])
    assert (folder / "runs" / "1").readlink() == tasks[1].run.path
    assert (folder / "code" / "1").readlink() == tasks[1].run.code(4)
    assert sweep.next_folder(tasks[0].spec, tmp_path).name == "gpt-sweep-002"
    assert (sweep.place(folder).after, sweep.place(folder).comment) == ((), f"hpckit:{folder}")
