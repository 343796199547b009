"""A training function, as a project of one's own, in which a rank computes wrongly from a step on;
and the same training without the fault, in one process."""

from __future__ import annotations

import inspect

import torch
from torch import Tensor, nn

from tests.unit.hpckit.trainer import bit_flips

BATCH = 12


def network() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))


def batch(step: int) -> Tensor:
    return torch.rand(12, 8, generator=torch.Generator().manual_seed(step))


def compute(model: nn.Module, given: Tensor) -> Tensor:
    loss: Tensor = (model(given) - given.mean(1, keepdim=True)).square().mean()
    loss.backward()  # type: ignore[no-untyped-call]
    return loss


MAIN = """
import time

import torch.distributed as dist

from hpckit import training_run
from hpckit.events.event_log import read_events
from hpckit.ipc.process_environment import WorkerEnvironment


def main(cfg):
    with training_run(cfg) as run:
        model = network()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        run.track(model=model, optimizer=optimizer)
        for _ in run.steps([0], other_world="next_epoch"):
            if run.step == cfg.user_config["wrong_from"] and (run.rank, run.world_size) == (1, 3):
                flip_products(model)
            given = batch(run.step).chunk(run.place.data_size)[run.place.data]
            run.note_computation(lambda rows: compute(model, rows), given)
            optimizer.zero_grad()
            loss = compute(model, given)
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= run.world_size
            optimizer.step()
            run.log(loss=loss.detach())
            if run.rank == 0 and run.step == cfg.user_config["saved_at"]:
                await_commit(run.step)


def await_commit(step):
    # steps of some milliseconds might overtake the save, which would then be skipped
    path = WorkerEnvironment.from_env().at.run.events
    while not any(
        one.kind == "checkpoint_committed" and one["step"] == step for one in read_events(path)
    ):
        time.sleep(0.05)
"""
TRAINING = "\n\n".join(
    [inspect.getsource(bit_flips), *(inspect.getsource(f) for f in (network, batch, compute)), MAIN]
)


def losses_without_fault(steps: int) -> list[float]:
    """The loss of each step, as all ranks together have it."""
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    found = []
    for step in range(steps):
        optimizer.zero_grad()
        found.append(float(compute(model, batch(step)).detach()))
        optimizer.step()
    return found
