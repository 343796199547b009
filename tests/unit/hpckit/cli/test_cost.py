"""`hpckit cost`: what it prints of one run and of several."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hpckit.cli import cost
from hpckit.cli.common.command_output import CommandOutput
from hpckit.cli.main import app
from hpckit.report.cost.cost_summary import Prices, read_cost
from hpckit.rundir.directory import RunDir
from hpckit.rundir.fork_record import ForkRecord, write_fork
from tests.unit.hpckit.report.sample_runs import ran


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunDir, RunDir]:
    """A run of 10 steps of a second in two generations of one node, and one of 5 steps in one."""
    root = tmp_path_factory.mktemp("runs")
    return ran(root / "long", {"cluster.device": "cuda"}), ran(root / "short", lives=1)


def typed(*words: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["cost", *map(str, words)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def document(*words: object) -> Any:
    status, output = typed(*words, "--json")
    assert status == 0, output
    return json.loads(output)


def test_a_run_by_cause(runs: tuple[RunDir, RunDir]) -> None:
    (one,) = document(runs[0].path, "--gpu-price", 3600)["runs"]
    seconds = {cause: round(3600 * hours, 6) for cause, hours in one["node_hours"].items()}
    assert seconds == {
        "trained": 7.5,
        "lost: preempted": 6.0,
        "start-up": 4.0,
        "waiting for data": 2.5,
        "end: last save and exit": 2.0,
    }
    assert one["ettr"] == pytest.approx(10 / 22)
    assert one["money"] == pytest.approx(3600 * one["gpu_hours"])
    status, output = typed(runs[0].path, "--node-price", 10)
    assert status == 0
    for text in ("cause", "trained", "34.1%", "ETTR", "45.5%", "GPU-hours", "money"):
        assert text in output


def test_only_a_cause_without_node_hours_and_share_has_no_row(
    runs: tuple[RunDir, RunDir], capsys: pytest.CaptureFixture[str]
) -> None:
    hours = {"trained": 90_000.0, "start-up": 40.0, "end": 0.001}
    found = replace(read_cost(runs[0], Prices()), node_hours=hours)
    cost._print_run(found, CommandOutput(as_json=False))
    output = capsys.readouterr().out
    assert "90,000.00" in output
    assert re.search(r"start-up +40\.00 +0\.0%", output)
    assert "end" not in output.split()


def test_several_runs_and_their_sum(runs: tuple[RunDir, RunDir]) -> None:
    found = document("--root", runs[0].path.parent)
    assert sorted(one["runs"][0] for one in found["runs"]) == ["long", "short"]
    each = sum(one["total_node_hours"] for one in found["runs"])
    assert found["sum"]["total_node_hours"] == pytest.approx(each)
    assert found["sum"]["ettr"] is None
    output = typed(*(run.path for run in runs))[1]
    assert "long" in output
    assert "short" in output


@pytest.mark.parametrize("width", [24, 45, 60])
def test_a_narrow_terminal_cuts_no_number_and_no_name(
    runs: tuple[RunDir, RunDir], monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    root = runs[0].path.parent
    for words in ([], ["--by-user"]):
        output = typed("--root", root, "--node-price", 2, *words)[1]
        assert "…" not in output
        assert ("trained" in output) == (width > 40)


def test_what_each_user_has_cost(
    runs: tuple[RunDir, RunDir], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = runs[0].path.parent
    (mine,) = document("--root", root, "--by-user")["users"].items()
    assert mine == (runs[0].path.owner(), document("--root", root)["sum"])
    owners = {"long": "ada", "short": "bob"}
    monkeypatch.setattr(Path, "owner", lambda path: owners[path.name])
    users = document("--root", root, "--by-user")["users"]
    assert {user: one["runs"] for user, one in users.items()} == {"ada": ["long"], "bob": ["short"]}
    assert [*users] == ["ada", "bob"], "the most first"
    status, output = typed("--root", root, "--by-user", "--node-price", 2)
    assert status == 0
    for text in ("user", "ada", "bob", "money"):
        assert text in output


def test_a_lineage_has_parents_and_all_their_forks(tmp_path: Path) -> None:
    root, far = tmp_path / "runs", tmp_path / "far"
    parent, fork = ran(root / "parent"), ran(root / "fork", lives=1)
    ran(root / "other", lives=1)
    grandchild = ran(far / "grandchild", lives=1)
    write_fork(parent, ForkRecord("gone", str(root / "gone"), "store", 3, "3-a"))
    write_fork(fork, ForkRecord("parent", str(parent.path), "store", 5, "5-b"))
    write_fork(grandchild, ForkRecord("fork", str(fork.path), "store", 7, "7-c"))
    words = ["cost", str(fork.path), "--lineage", "--root", str(far)]
    found = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert [one["runs"] for one in found["runs"]] == [["parent"], ["fork"], ["grandchild"]]
    each = sum(one["total_node_hours"] for one in found["runs"])
    assert found["sum"]["total_node_hours"] == pytest.approx(each)
    steps = {one["run"]: one["from"]["step"] for one in found["forks"]}
    assert steps == {"parent": 3, "fork": 5, "grandchild": 7}
    assert found["missing"] == [str(root / "gone")]
    output = typed(*words[1:])[1]
    for text in (
        "step 5 of parent",
        "step 7 of fork",
        "gone, which a run was forked from, no longer exists",
    ):
        assert text in " ".join(output.split())


def test_no_run_and_impossible_prices(tmp_path: Path, runs: tuple[RunDir, RunDir]) -> None:
    status, output = typed("--root", tmp_path)
    assert status == 0
    assert "no run in" in output
    assert typed(runs[0].path, "--gpu-price", -1)[0] == 2
    assert typed(tmp_path / "none")[0] != 0


def test_a_run_that_cannot_be_read_is_left_out_of_all_and_refused_by_name(tmp_path: Path) -> None:
    ran(tmp_path / "sound")
    ran(tmp_path / "torn").spec(1).unlink()
    status, output = typed("--root", tmp_path)
    assert status == 0
    assert "torn is left out, also of the sum: " in output
    assert "spec.yaml does not exist" in output
    status, output = typed(tmp_path / "torn")
    assert status == 2
    found = json.loads(CliRunner().invoke(app, ["cost", "--root", str(tmp_path), "--json"]).stdout)
    assert [one["runs"] for one in found["runs"]] == [["sound"]]
    (left_out,) = found["left_out"]
    assert left_out["run"] == "torn"
    assert left_out["reason"].endswith("spec.yaml does not exist")


def test_a_relative_that_cannot_be_read_does_not_hide_the_cost_of_a_run(tmp_path: Path) -> None:
    parent, fork = ran(tmp_path / "parent"), ran(tmp_path / "fork", lives=1)
    write_fork(fork, ForkRecord("parent", str(parent.path), "store", 5, "5-b"))
    parent.spec(1).unlink()
    words = ["cost", str(fork.path), "--lineage", "--root", str(tmp_path), "--json"]
    found = json.loads(CliRunner().invoke(app, words).stdout)
    assert [one["runs"] for one in found["runs"]] == [["fork"]]
    assert [one["run"] for one in found["left_out"]] == ["parent"]
