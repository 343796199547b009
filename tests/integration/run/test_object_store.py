"""A run whose checkpoints lie in a bucket."""

from __future__ import annotations

from pathlib import Path

import pytest

from checkpointing import list_checkpoints, verify
from hpckit.rundir.directory import RunDir
from tests.integration.run.runs import (
    DRILLED,
    ON_ONE_NODE,
    STEPS,
    command,
    complete,
    history,
    losses,
)
from tests.services.s3 import S3Place


def test_a_run_is_preempted_and_goes_on_from_a_bucket(
    tmp_path: Path,
    shards: Path,
    reference: RunDir,
    s3_url: S3Place,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in s3_url.env.items():
        monkeypatch.setenv(name, value)
    place = (*ON_ONE_NODE, f"checkpoint.url={s3_url.url}", "debug.drill.preempt_at=[13]")
    status, output = complete(tmp_path, command(tmp_path, shards, DRILLED, *place))
    assert status == 0, output
    run = RunDir(next(tmp_path.glob("t-*")))
    assert losses(run) == losses(reference)
    assert [life.end for life in history(run).lives] == ["preempted", "done"]
    assert history(run).interruptions[0].repeated == 0
    infos = list_checkpoints(s3_url.url, run.name)
    assert max(info.step for info in infos) == STEPS
    assert [verify(s3_url.url, info) for info in infos] == [[]] * len(infos)
    assert f"{len(infos)} kept" in output
    assert not run.checkpoints.exists()
    assert s3_url.secret_key not in output


def test_a_bucket_that_is_not_there_is_said_before_anything_starts(
    tmp_path: Path, shards: Path, s3_url: S3Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3_url.env.items():
        monkeypatch.setenv(name, value)
    status, output = complete(
        tmp_path, command(tmp_path, shards, "checkpoint.url=s3://no-such-bucket/ckpts")
    )
    assert status == 2, output
    (line,) = [text for text in output.splitlines() if text.startswith("error: ")]
    assert line.startswith("error: checkpoint.url: ")
    assert "no-such-bucket" in line
    assert not list(tmp_path.glob("t-*"))
