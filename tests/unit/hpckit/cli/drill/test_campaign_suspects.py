"""The faults of a campaign make no node a suspect for other runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpckit.cli.drill.campaign import _own_suspects
from hpckit.submit.compose import compose_spec

WORDS = ["experiment=campaign", "cluster=slurm"]


def test_disturbed_runs_have_a_copy_of_the_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = tmp_path / "state" / "hpckit" / "suspects" / "c1"
    theirs.mkdir(parents=True)
    (theirs / "n7.json").write_text("{}")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    place = tmp_path / "a campaign, of x=1"
    place.mkdir()
    hook = "cluster.slurm.suspects.hook=[/site/report]"
    slurm = compose_spec([*WORDS, hook, *_own_suspects([*WORDS, hook], place)]).cluster.slurm
    assert slurm is not None
    assert slurm.suspects is not None
    assert slurm.suspects.folder == str(place / "suspects")
    assert (slurm.suspects.group, slurm.suspects.hook) == (None, ())
    assert (place / "suspects" / "c1" / "n7.json").read_text() == "{}"


def test_without_a_list_theirs_begins_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert _own_suspects(["experiment=campaign"], tmp_path) == []
    assert _own_suspects(WORDS, tmp_path)[0].endswith(f"folder='{tmp_path}/suspects'")
    assert list((tmp_path / "suspects").iterdir()) == []
