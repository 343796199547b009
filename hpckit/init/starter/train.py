"""A training function that survives preemption: it learns the next byte of text.

hpckit launch experiment=first                              # here; Ctrl-C saves
hpckit launch experiment=first debug=drill launch.nodes=2   # is preempted at steps 40 and 80

Objects given to `run.track` are saved and restored, and the loop over `run.steps` continues at the
next sample. Everything else is a plain PyTorch loop. Replace the model, `Window` and `build_loader`
by your own.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from data import Loader, Sample, SampleContext, open_dataset
from hpckit import RunSpec, TrainingRun, training_run

BYTES = 256


def main(cfg: RunSpec) -> None:
    """The training function, which conf/experiment/first.yaml names as `entry`. It runs on every
    rank."""
    with training_run(cfg) as run:
        torch.manual_seed(cfg.train.seed)
        model = NextByte(cfg.user_config["width"]).to(run.device)
        spread = DistributedDataParallel(model) if run.world_size > 1 else model
        optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.optim.lr)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, cfg.train.steps)
        loader = build_loader(cfg, run)
        run.track(model=model, optimizer=optimizer, scheduler=scheduler, loader=loader)
        for batch in run.steps(loader):  # resumes first; saves and leaves on request
            with run.timed("host_to_device"):
                text = batch.data.to(run.device)
            with run.timed("forward"):
                loss = loss_of(spread, text)
            with run.timed("backward"):
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
            with run.timed("optimizer"):
                lr = optimizer.param_groups[0]["lr"]
                optimizer.step()
                scheduler.step()
            run.log(loss=loss.detach(), lr=lr)


class NextByte(nn.Module):
    """A model that scores each possible next byte, given the bytes before it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(BYTES, width)
        self.memory = nn.GRU(width, width, batch_first=True)
        self.scores = nn.Linear(width, BYTES)

    def forward(self, text: Tensor) -> Tensor:
        """Maps (batch, time) bytes to (batch, time, 256) scores."""
        remembered, _ = self.memory(self.embedding(text))
        scores: Tensor = self.scores(remembered)
        return scores


class Window:
    """A transform that cuts `length` bytes out of a sample, at an offset that depends on its
    position in the stream, so that a sample gives the same window again after a preemption."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __call__(self, sample: Sample, context: SampleContext) -> Tensor:
        """Returns (length,) bytes; a shorter sample is padded with zeros."""
        (content,) = (value for name, value in sample.items() if not name.startswith("__"))
        assert isinstance(content, bytes)
        start = int(context.rng.integers(max(1, len(content) - self.length + 1)))
        part = content[start : start + self.length].ljust(self.length, b"\0")
        return torch.tensor(list(part))


def build_loader(cfg: RunSpec, run: TrainingRun) -> Loader:
    """Returns a loader of this rank's part of each batch."""
    return Loader(
        open_dataset(cfg.data.shards or ""),
        global_batch=run.global_batch,
        rank=run.place.data,
        world_size=run.place.data_size,
        seed=cfg.train.seed,
        transform=Window(cfg.user_config["length"]),
        collate=torch.stack,
    )


def loss_of(model: nn.Module, text: Tensor) -> Tensor:
    """Returns the mean cross-entropy of each byte of (batch, time) after the first."""
    scores = model(text[:, :-1])
    return nn.functional.cross_entropy(scores.flatten(0, 1), text[:, 1:].flatten())
