"""Workers that are forks, are programs, and cannot be forks: one and the same run."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpckit.rundir.directory import RunDir
from hpckit.system.child_processes import strays
from tests.integration.run.runs import (
    ALONE,
    DRILLED,
    ON_ONE_NODE,
    assert_same_run,
    command,
    complete,
    history,
    started,
)

USES_CUDA = """
import sys

if "hpckit.agent.watchdog" in sys.orig_argv:  # which forks the fork server
    import torch

    if torch.version.cuda is None:  # nothing would come of it
        torch.cuda._is_in_bad_fork = lambda: True
    else:
        torch._C._cuda_getDeviceCount()
"""
"""As what a site or a plug-in has every Python import."""


def test_programs_have_the_losses_of_forks(tmp_path: Path, shards: Path, reference: RunDir) -> None:
    words = command(tmp_path, shards, *ON_ONE_NODE, "launch.preload=false")
    status, output = complete(tmp_path, words)
    assert status == 0, output
    assert_same_run(RunDir(next(tmp_path.glob("t-*"))), reference)


def test_where_cuda_was_used_before_the_fork_the_run_goes_on_without_preload(
    tmp_path: Path, shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is preempted; it says once what was lost, and why."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(USES_CUDA)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    root = tmp_path / "runs"
    words = command(root, shards, *ALONE, DRILLED, "debug.drill.preempt_at=[37]")
    with started(root, words) as it:
        status, output = it.finish()
        events = it.events()
    assert status == 0, output
    story = history(it.run)
    assert [life.end for life in story.lives] == ["preempted", "done"]
    assert story.steps_kept == 60
    assert strays(it.run.path) == []
    (degraded,) = [event for event in events if event.kind == "degraded"]
    assert degraded["what"] == (
        "workers start without launch.preload: CUDA was used before the fork: before or while "
        "torch was imported, as by a sitecustomize, a plug-in of torch.backends or "
        "TORCH_CUDA_SANITIZER"
    )
    assert output.count("workers start without launch.preload") == 1
    told = [event for event in events if event.kind == "fork_unusable"]
    started_workers = [event for event in events if event.kind == "worker_started"]
    assert len(told) == len(started_workers), "each of them"
