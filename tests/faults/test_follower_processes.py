"""A follower beside a saver and a pruner that keeps one step: killed at any moment, it never shows
a torn step, and is at the last one in the end."""

from __future__ import annotations

import os
import random
import secrets
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checkpointing.errors import CheckpointError
from checkpointing.follower.follower import Follower
from checkpointing.follower.shared_weights import SharedWeights, folder_of
from checkpointing.store.store import Store
from tests.effort import times
from tests.faults.following import (
    RUN,
    follow_into,
    prune_until,
    save_steps,
    weights_at,
)
from tests.forkserver import fork_server
from tests.services.s3 import S3Place
from tests.unit.checkpointing.follower.followed_stores import SeenSteps, written

KILLS = times(3)


@pytest.fixture
def name() -> Iterator[str]:
    """A name in shared memory."""
    name = f"test-{secrets.token_hex(4)}"
    yield name
    shutil.rmtree(folder_of(name), ignore_errors=True)


def started(function: Callable[..., None], *arguments: Any) -> ForkServerProcess:
    process = fork_server().Process(target=function, args=arguments)
    process.start()
    return process


def ended(process: ForkServerProcess) -> None:
    process.join(240)
    assert process.exitcode == 0


def wait_for_step(weights: SharedWeights, least: int, process: ForkServerProcess) -> int:
    """The step that is shared, once it is above `least`, and whole; the follower lives."""
    while True:
        try:
            held = weights.latest()
        except (FileNotFoundError, CheckpointError):
            held = None
        if held is not None:
            for tensor, expected in weights_at(held.step).items():
                assert np.array_equal(held.numpy(tensor), expected), held.step
            if held.step > least:
                return held.step
        assert process.is_alive() or process.exitcode == 0
        time.sleep(0.005)


def test_a_killed_follower_beside_a_pruner_never_shows_a_torn_step(
    tmp_path: Path, name: str
) -> None:
    url, last = str(tmp_path / "store"), 6 + 6 * KILLS
    save_steps(url, {}, 1, 1, 0)
    others = [
        started(save_steps, url, {}, 2, last, 0.05),
        started(prune_until, url, {}, last),
    ]
    weights, rng, step = SharedWeights(name), random.Random(1), 0
    for number in range(KILLS):
        follower = started(follow_into, url, {}, f"shm:{name}", last)
        step = wait_for_step(weights, step if step < last else last - 1, follower)
        time.sleep(rng.random() * 0.1 * (number + 1) / KILLS)
        if follower.exitcode is None and follower.pid is not None:
            os.kill(follower.pid, signal.SIGKILL)
        follower.join()
    follower = started(follow_into, url, {}, f"shm:{name}", last)
    assert wait_for_step(weights, last - 1, follower) == last
    for process in (follower, *others):
        ended(process)
    files = {path.name for path in folder_of(name).iterdir()}
    assert len(files - {"current", "state"}) <= 2
    with Follower(url, run=RUN, into=f"shm:{name}") as again:
        assert again.step == last
        assert again.poll() is None


def test_each_step_of_a_bucket_is_followed_to_the_last_bit(s3_url: S3Place, tmp_path: Path) -> None:
    save_steps(s3_url.url, s3_url.options, 1, 1, 0)
    into, seen = tmp_path / "into", SeenSteps()
    with (
        Follower(s3_url.url, run=RUN, into=into, options=s3_url.options, interval_s=0.05) as one,
        Follower(
            s3_url.url,
            run=RUN,
            into=seen,
            order="each",
            options=s3_url.options,
            interval_s=0.05,
        ) as other,
    ):
        saver = started(save_steps, s3_url.url, s3_url.options, 2, 6, 0)
        bytes_read = {taken.step: taken.bytes for taken in _until(other, 6)}
        assert list(_until(one, 6))[-1].step == 6
    ended(saver)
    expected = {n: a.tobytes() for n, a in weights_at(6).items()}
    assert written(into) == expected
    for step, tensors in zip(seen.steps, seen.tensors, strict=True):
        assert tensors == {n: a.tobytes() for n, a in weights_at(step).items()}
    assert seen.steps == list(range(seen.steps[0], 7))
    later = [size for step, size in bytes_read.items() if step != seen.steps[0]]
    full = sum(array.nbytes for array in weights_at(1).values())
    assert all(size < full / 4 for size in later)
    store = Store.open(s3_url.url, options=s3_url.options)
    assert [stored.save.step for stored in store.manifests(RUN)] == [6, 5, 4, 3, 2, 1]


def _until(follower: Follower, last: int) -> Iterator[Any]:
    for taken in follower.steps():
        yield taken
        if taken.step >= last:
            return
