"""A user's program, by which mypy and pyright check the types of the installed packages
(tests/installs.sh). It is not run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, assert_type

from checkpointing import (
    Checkpointer,
    CheckpointerOptions,
    CheckpointInfo,
    Last,
    Minutes,
    PerRank,
    SaveError,
    Steps,
    list_checkpoints,
)
from data import Batch, DataError, Loader, LoaderOptions, open_dataset
from hpckit import client


def train(shards: str, rank: int, world_size: int) -> Iterator[Batch]:
    """Trains with what every program uses."""
    try:
        loader = Loader(open_dataset(shards), global_batch=32, rank=rank, world_size=world_size)
    except DataError as error:
        raise SystemExit(f"no data: {error}") from error
    assert_type(loader.state_dict(), dict[str, Any])
    state: dict[str, object] = {"loader": loader, "seen": PerRank([0], other_world="error")}
    ckpt = Checkpointer("checkpoints", run="a", every=Minutes(10) | Steps(50), keep=[Last(3)])
    assert_type(ckpt.restore(state), int | None)
    step = ckpt.restore(state) or 0
    for batch in loader:
        assert_type(batch, Batch)
        yield batch
        step += 1
        client.step(step, loss=1.0)
        assert_type(client.should_stop(), bool)
        if ckpt.due(step) or client.should_stop():
            ckpt.save(step, state, {"loss": 1.0}, deadline_s=client.deadline_s())
            client.checkpointed(step)
    try:
        ckpt.close()
    except SaveError as error:
        print(error)


def configure(url: str) -> tuple[Checkpointer, Loader, list[CheckpointInfo]]:
    """Configures both by values, and lists checkpoints."""
    options = LoaderOptions(global_batch=32, rank=0, world_size=1)
    loader = Loader.from_options(open_dataset("shards"), options)
    ckpt = Checkpointer(url, CheckpointerOptions(run="a", slots=3))
    found = list_checkpoints(url, "a")
    assert_type(found, list[CheckpointInfo])
    return ckpt, loader, found
