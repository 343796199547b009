"""How far the loss of a run with dropout moves on another number of ranks.

    python -m benchmarks.run.dropout_worlds [--seeds 1 2 3] [--steps 120]
        [--arms 1 masks 2 4 resized]

Random numbers follow from the seed, the step and the rank, so that another number of ranks draws
other dropout masks over the same samples. For each seed, a small GPT with dropout of 0.1 trains
with a fixed global batch in these arms:

- *1*: on one rank, which is the reference. *masks*: the same with other masks, which is what
  dropout by itself makes of a loss.
- *2*, *4*: on as many ranks.
- *resized*: on two nodes of one rank, which are preempted in the middle, and then on one.

For each arm and seed: whether all steps had the samples of the reference, and by how much of itself
the loss differs, at most over all steps (`step`), over all means of ten steps (`ten`), and in the
mean of the last twenty (`end`). These are real runs of `launch.py`, on this machine.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from benchmarks.common.arm_comparison import write_record
from benchmarks.common.number_arguments import positive_int
from data import pack_folder, python_stdlib
from hpckit.config.rules.model import decoder_of
from hpckit.config.spec import RunSpec
from hpckit.events.event_log import read_events
from hpckit.report.history import build_history
from hpckit.rundir.directory import RunDir
from hpckit.rundir.sample_ledger import kept_entries, read_ledgers
from hpckit.trainer.batches.byte_text import PADDING
from hpckit.trainer.batches.token_windows import next_token_batch
from hpckit.trainer.language_model import build_loader, sample_mean
from hpckit.trainer.run_loop import training_run

REFERENCE = "1"
DROPOUT = 0.1
ARMS: dict[str, tuple[str, ...]] = {
    REFERENCE: (),
    "masks": ("user_config.skipped=1",),
    "2": ("launch.nproc_per_node=2",),
    "4": ("launch.nproc_per_node=4",),
    "resized": ("launch.nodes=2", "debug=drill", "debug.drill.nodes=[2,1]"),
}
_REPO = Path(__file__).resolve().parents[2]
_RUN = (
    *("name=t", "entry=benchmarks.run.dropout_worlds:train"),
    *("model=gpt_nano", "data=shards", "train.global_batch=16", "train.log_every=1"),
    *("optim.lr=3e-3", "debug.ledger=true", "cluster.device=cpu", "launch.threads_per_worker=1"),
    *("launch.nodes=1", "launch.nproc_per_node=1", "checkpoint.every_steps=1000000"),
)


class DropoutGPT(nn.Module):
    """A decoder of two layers with dropout."""

    def __init__(self, vocab: int, width: int, length: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocab, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, 2, 4 * width, DROPOUT, batch_first=True)
        self.layers, self.drop = nn.TransformerEncoder(layer, 2), nn.Dropout(DROPOUT)
        self.head = nn.Linear(width, vocab)

    def forward(self, tokens: Tensor) -> Tensor:
        """Returns logits (batch, time, vocab) for (batch, time) tokens."""
        time = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(time, device=tokens.device)
        h = self.drop(self.tokens(tokens) + self.places.weight[:time])
        logits: Tensor = self.head(self.layers(h, mask=mask, is_causal=True))
        return logits


def train(cfg: RunSpec) -> None:
    """The training function of the runs. `user_config.skipped`: how many random numbers each step
    draws before its dropout masks."""
    with training_run(cfg) as run:
        torch.manual_seed(cfg.train.seed)
        shape = decoder_of(cfg)
        model = DropoutGPT(shape.vocab, shape.width, shape.seq_len).to(run.device)
        spread = DistributedDataParallel(model) if run.world_size > 1 else model
        optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.optim.lr)
        loader = build_loader(cfg, run)
        run.track(model=model, optimizer=optimizer, loader=loader)
        for batch in run.steps(loader):
            torch.rand(cfg.user_config["skipped"])
            inputs, targets, _ = next_token_batch(batch.data.to(run.device))
            logits = spread(inputs.clamp(min=0)).flatten(0, 1)
            losses = cross_entropy(
                logits, targets.flatten(), ignore_index=PADDING, reduction="none"
            )
            loss = sample_mean(losses.view_as(targets), targets)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            run.log(loss=loss.detach())


@dataclass(frozen=True)
class TrainedArm:
    """What a run did."""

    losses: list[float]
    """Of each step, over all ranks."""
    samples: list[list[str]]
    """Keys of the samples of each step, sorted."""
    worlds: list[int]
    """Numbers of ranks, one after the other."""


@dataclass(frozen=True)
class Deviation:
    """How far the losses of an arm are from those of the reference, as shares of these."""

    step: float
    """The largest of one step."""
    ten: float
    """The largest of a mean over ten steps in a row."""
    end: float
    """That of the mean of the last twenty steps."""


BAND = Deviation(step=0.05, ten=0.02, end=0.01)
"""What docs/promises.md states."""


def deviation(losses: Sequence[float], reference: Sequence[float]) -> Deviation:
    """
    Raises:
        ValueError: the numbers of steps differ, or are less than twenty.
    """
    if len(losses) != len(reference) or len(losses) < 20:
        raise ValueError(f"{len(losses)} and {len(reference)} steps cannot be compared")

    def largest(width: int) -> float:
        ends = range(width, len(losses) + 1)
        return max(_apart(losses[n - width : n], reference[n - width : n]) for n in ends)

    return Deviation(largest(1), largest(10), _apart(losses[-20:], reference[-20:]))


def _apart(losses: Sequence[float], reference: Sequence[float]) -> float:
    return abs(sum(losses) / sum(reference) - 1)


def train_arm(folder: Path, shards: Path, arm: str, seed: int, steps: int) -> TrainedArm:
    """Trains one arm in the new folder `folder`.

    Raises:
        RuntimeError: the run failed.
    """
    places = (f"root={folder}", f"data.shards={shards}", f"train.seed={seed}")
    size = (f"train.steps={steps}", "user_config.skipped=0")
    half = (f"debug.drill.preempt_at=[{steps // 2}]",) if arm == "resized" else ()
    words = [*_RUN, *places, *size, *ARMS[arm], *half]
    chosen = {word.partition("=")[0]: word for word in words}  # the last one of each key
    done = subprocess.run(
        [sys.executable, str(_REPO / "launch.py"), *chosen.values()],
        cwd=_REPO,
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{arm}: {done.stdout}{done.stderr}")
    run = RunDir(next(folder.glob("t-*")))
    events = read_events(run.events)
    kept = sorted(build_history(events).kept.items())
    keys: dict[int, list[str]] = {}
    for entry in kept_entries(read_ledgers(run.ledger), steps):
        keys.setdefault(entry.step, []).extend(entry.keys)
    return TrainedArm(
        losses=[float(event["loss"]) for _, event in kept],
        samples=[sorted(found) for _, found in sorted(keys.items())],
        worlds=[event["world_size"] for event in events if event.kind == "training_started"],
    )


def make_shards(folder: Path) -> Path:
    """Packs sources of the standard library, and returns where."""
    out = folder / "shards"
    pack_folder(python_stdlib()[0] / "encodings", out, suffixes=(".py",), samples_per_shard=50)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=positive_int, default=120)
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    settings = parser.parse_args()
    found: dict[str, list[Deviation]] = {arm: [] for arm in settings.arms if arm != REFERENCE}
    with tempfile.TemporaryDirectory(prefix="hpckit-benchmark-") as name:
        shards = make_shards(Path(name))
        for seed in settings.seeds:
            place = Path(name) / f"seed-{seed}"
            whole = train_arm(place / REFERENCE, shards, REFERENCE, seed, settings.steps)
            print(f"seed {seed}: loss {whole.losses[0]:.3f} to {whole.losses[-1]:.3f}", flush=True)
            for arm, deviations in found.items():
                trained = train_arm(place / arm, shards, arm, seed, settings.steps)
                assert trained.samples == whole.samples, f"{arm}, seed {seed}: other samples"
                deviations.append(deviation(trained.losses, whole.losses))
                print(f"seed {seed}, {arm}: the same samples; {deviations[-1]}", flush=True)
    show(found)
    write_record(
        "dropout_worlds",
        {
            "settings": vars(settings),
            "deviations": {arm: [asdict(one) for one in seeds] for arm, seeds in found.items()},
        },
    )


def show(found: Mapping[str, Sequence[Deviation]]) -> None:
    table = Table(title="dropout_worlds", box=None, header_style="bold", title_justify="left")
    for title in ("arm", "step", "ten", "end"):
        table.add_column(title, justify="left" if title == "arm" else "right")
    for arm, seeds in found.items():
        most = (max(getattr(one, part) for one in seeds) for part in ("step", "ten", "end"))
        table.add_row(arm, *(f"{value:.2%}" for value in most))
    Console().print(table)


if __name__ == "__main__":
    main()
