"""A site's own faults: commands that really run, and are undone."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpckit.faults import site_faults as drill_site
from hpckit.faults.fault_plan import DrillError, ImpossibleDrillError
from hpckit.faults.site_faults import load_site
from tests.integration.run.runs import REPO

FAULTS = """
parted:
  do: [sh, -c, "echo $1 $2 > did", sh, "{host}", "{other}"]
gone:
  do: [sh, -c, "echo $1 $2 > did", sh, "{host}", "{job}; touch no"]
  undo: [cp, did, undone]
  after_s: 0.1
  rate: 2
  restarts: false
stuck:
  do: ["true"]
  undo: [sh, -c, "echo cannot >&2; exit 3"]
  after_s: 0.01
refused:
  do: [sh, -c, "echo no rights >&2; exit 1"]
"""


def write(folder: Path, text: str) -> Path:
    (path := folder / "faults.yaml").write_text(text)
    return path


def test_a_fault_is_done_to_its_victim_and_undone(tmp_path: Path) -> None:
    site = load_site(write(tmp_path, FAULTS))
    assert site.faults["gone"].rate == 2
    assert not site.faults["gone"].restarts
    site.play("gone", "n1", 1, "77")
    assert (tmp_path / "did").read_text() == "n1 77; touch no\n"
    assert site.settle() == []
    assert (tmp_path / "undone").exists()
    assert not (tmp_path / "no").exists()


def test_a_fault_between_two_nodes_takes_two(tmp_path: Path) -> None:
    site = load_site(write(tmp_path, FAULTS))
    site.play("parted", "n1", 0, "77", "n3")
    assert (tmp_path / "did").read_text() == "n1 n3\n"
    with pytest.raises(
        ImpossibleDrillError, match="parted: this requires two nodes, but only one trains"
    ):
        site.play("parted", "n1", 0, "77")


def test_what_cannot_be_done_or_undone_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drill_site, "UNDO_S", 0.0)
    site = load_site(write(tmp_path, FAULTS))
    with pytest.raises(DrillError, match="no rights"):
        site.play("refused", "n1", 1, None)
    site.play("stuck", "n1", 1, None)
    (problem,) = site.settle()
    assert problem.startswith("not undone: sh -c")
    assert problem.endswith("cannot")
    assert site.settle() == []


def test_what_another_fault_stands_in_the_way_of_is_undone_later(tmp_path: Path) -> None:
    later = """
gone:
  do: ["true"]
  undo: [sh, -c, "test -e other || { touch other; exit 1; }"]
  after_s: 0.01
"""
    site = load_site(write(tmp_path, later))
    site.play("gone", "n1", 1, None)
    assert site.settle() == []
    assert (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("gone: {do: []}", "gone.do: "),
        ("gone: {undo: [true]}", "gone.do: "),
        ("gone: {do: [a], after: 3}", "gone.after: "),
        ("gone: {do: [a], rate: 0}", "gone.rate: "),
        ("worker: {do: [a]}", "'worker' is the name of another fault"),
        ("a b: {do: [a]}", "'a b' is the name of another fault, or not a plain word"),
        ("[1, 2]", ""),
        ("a: {", ""),
        ("a: 2020-01-01", ""),
    ],
)
def test_what_is_no_file_of_faults_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ValueError, match=f"{path}: .*{problem}"):
        load_site(path)


def test_the_devclusters_own_are_some() -> None:
    site = load_site(REPO / "slurm/devcluster/faults.yaml")
    assert {"gone", "cut", "controller"} <= site.faults.keys()
