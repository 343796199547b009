"""Training functions over loaders of other libraries. `user_config.killed_at`: the step in which
rank 0 is killed, once in the whole run. `user_config.asked_at`: the step in which the first
generation waits until it is asked to leave."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import webdataset as wds
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

from data import from_wds
from hpckit import training_run
from hpckit.config.spec import RunSpec
from hpckit.events.event_log import read_events
from hpckit.ipc.heartbeat_table import WorkerRequest
from hpckit.ipc.process_environment import WorkerEnvironment
from hpckit.trainer.rank_agreement import PACE_S
from hpckit.trainer.run_loop import TrainingRun

WIDTH = 8


class Samples(Dataset[Tensor]):
    """Forty samples, each with noise that is drawn as it is read."""

    def __getitem__(self, index: int) -> Tensor:
        own = torch.Generator().manual_seed(index)
        return torch.randn(WIDTH, generator=own) + 0.1 * torch.randn(WIDTH)

    def __len__(self) -> int:
        return 40


class Crops:
    """Random crops without an end, whose state is that of numpy's generator."""

    def __init__(self, batch: int, rank: int) -> None:
        self._batch, self._rng = batch, np.random.default_rng(rank)
        self._text = np.random.default_rng(7).standard_normal(1000)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            begins = self._rng.integers(0, 900, self._batch)
            crops = [self._text[begin : begin + WIDTH + 1] for begin in begins]
            both = torch.from_numpy(np.stack(crops)).float()
            yield both[:, :-1], both[:, 1:]

    def state_dict(self) -> dict[str, Any]:
        return {"rng": self._rng.bit_generator.state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._rng.bit_generator.state = state["rng"]


def stateful(cfg: RunSpec) -> None:
    """Over torchdata's loader with a sampler that deals the samples to the ranks."""

    def loader(run: TrainingRun) -> Any:
        place = run.place
        sampler = StatefulDistributedSampler(Samples(), place.data_size, place.data)
        return StatefulDataLoader(Samples(), batch_size=run.local_batch, sampler=sampler)

    _train(cfg, loader)


def stateless(cfg: RunSpec) -> None:
    """Over torch's own loader."""
    _train(cfg, lambda run: DataLoader(Samples(), batch_size=run.local_batch, shuffle=True))


def crops(cfg: RunSpec) -> None:
    """Over an iterable of the user's own, as a nanoGPT-like trainer has it."""
    _train(cfg, lambda run: Crops(run.local_batch, run.place.data))


def converted(cfg: RunSpec) -> None:
    """Over a webdataset pipeline."""

    def loader(run: TrainingRun) -> Any:
        shards = sorted(map(str, Path(cfg.data.shards or "").glob("*.tar")))
        pipeline = wds.WebDataset(shards, shardshuffle=100).map(_letters)
        batched = pipeline.batched(run.local_batch, collation_fn=torch.stack)
        return from_wds(batched.repeat(), global_batch=run.global_batch)

    _train(cfg, loader)


def broken(cfg: RunSpec) -> None:
    """With an error in the first step."""
    _train(cfg, lambda run: (dict[str, int]()["no such column"] for _ in range(9)))


def _letters(sample: Mapping[str, Any]) -> Tensor:
    return torch.tensor([*sample["py"][:WIDTH]]).float() / 255


def _train(cfg: RunSpec, build: Any) -> None:
    with training_run(cfg) as run:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(cfg.user_config["dropout"]))
        spread = DistributedDataParallel(model) if run.world_size > 1 else model
        optimizer = torch.optim.AdamW(model.parameters(), 0.01)
        run.track(model=model, optimizer=optimizer)
        for batch in run.steps(build(run)):
            x, y = batch if isinstance(batch, tuple | list) else (batch, batch)
            loss = (spread(x) - y).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss.detach())
            _die(cfg, run)
            _await_request(cfg, run)


def _await_request(cfg: RunSpec, run: TrainingRun) -> None:
    env, asked_at = WorkerEnvironment.from_env(), cfg.user_config.get("asked_at")
    if env.at.generation > 1 or asked_at is None:
        return
    time.sleep(2 * PACE_S)  # ranks agree after each step that is not shorter
    if run.step + 1 == asked_at:
        heartbeats = env.attach_heartbeats()
        while heartbeats.request() is WorkerRequest.NONE:
            time.sleep(0.05)


def _await_records(step: int) -> None:
    """Until there is a checkpoint to resume from, and the record of this step, which threads
    write."""
    path = WorkerEnvironment.from_env().at.run.events
    while True:
        events = read_events(path)
        steps = {event["step"] for event in events if event.kind == "step"}
        if step in steps and any(event.kind == "checkpoint_committed" for event in events):
            return
        time.sleep(0.05)


def _die(cfg: RunSpec, run: TrainingRun) -> None:
    flag = Path(cfg.user_config.get("flag", "/nowhere"))
    if run.rank == 0 and run.step + 1 == cfg.user_config.get("killed_at") and flag.exists():
        flag.unlink()
        _await_records(run.step)
        os.kill(os.getpid(), signal.SIGKILL)
