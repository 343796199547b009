"""A program as live objects, and its training."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer, lr_scheduler
from torch.optim.swa_utils import AveragedModel

from checkpointing import PerRank
from tests.trainers.nets import WORDS, Net, wrap
from tests.trainers.programs import SAME_SAMPLES, Program, Stepper

_CLASSES: dict[str, Any] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "adagrad": torch.optim.Adagrad,
    "adadelta": torch.optim.Adadelta,
    "adamax": torch.optim.Adamax,
    "nadam": torch.optim.NAdam,
    "radam": torch.optim.RAdam,
    "rmsprop": torch.optim.RMSprop,
    "rprop": torch.optim.Rprop,
    "asgd": torch.optim.ASGD,
    "adafactor": torch.optim.Adafactor,
    "lbfgs": torch.optim.LBFGS,
}
_OPTIMIZERS = ("optimizer", "optimizer.model")
"""Their names in the state."""


class Loader:
    """It has a place, and a state for it."""

    def __init__(self, place: int) -> None:
        self.place = place

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place, "seen": {self.place: "here"}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.place = state["place"]


class Trainer:
    """A program on this rank; `state` is what it saves and restores."""

    def __init__(self, program: Program, weights: int) -> None:
        """
        Args:
            weights: the seed of the weights.
        """
        torch.manual_seed(weights)
        self.program, self.rank = program, dist.get_rank() if dist.is_initialized() else 0
        self.net = Net(program)
        self.module = wrap(self.net, program, program.wrapping)
        self.optimizers = [self._optimizer(n, one) for n, one in enumerate(program.steppers)]
        self.schedulers = [
            _scheduler(one.scheduler, optimizer)
            for one, optimizer in zip(program.steppers, self.optimizers, strict=True)
        ]
        self.scaler = (
            torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=2)
            if program.has_scaler
            else None
        )
        self.average = self._average()
        self.state: dict[str, Any] = {"model": self.module}
        self.state |= dict(zip(_OPTIMIZERS, self.optimizers, strict=False))
        self.state |= {f"scheduler{n}": s for n, s in enumerate(self.schedulers) if s is not None}
        self.state |= {"scaler": self.scaler} if self.scaler is not None else {}
        self.state |= {"average": self.average} if self.average is not None else {}
        self.state |= {name: self._value(name, 0) for name in program.values}

    def train(self, number: int, used: frozenset[str]) -> None:
        """Step `number`, in which these layers take part."""
        torch.manual_seed(number)  # of what is dropped
        words = self._samples(number)
        if self.program.steppers[0].kind == "lbfgs":
            closed: Any = self.optimizers[0].step
            closed(lambda: self._backward(words, used))
        else:
            self._backward(words, used)
            self._step()
        with warnings.catch_warnings():  # of schedulers before optimizers, where a scaler skips
            warnings.simplefilter("ignore")
            for scheduler in self.schedulers:
                if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau):
                    scheduler.step(1.0 + number)
                elif scheduler is not None:
                    scheduler.step()
        self._move_average()
        for name in self.program.values:
            self._advance(name, number)

    def take_gradients(self, number: int, used: frozenset[str]) -> None:
        """Those of a step that is not made."""
        torch.manual_seed(number)
        self._backward(self._samples(number), used)

    def freeze_as(self, other: Trainer) -> None:
        """Train the layers that another one of the same modules trains."""
        pairs = zip(self.net.parameters(), other.net.parameters(), strict=True)
        for parameter, its in pairs:
            parameter.requires_grad_(its.requires_grad)

    def forget_gradients(self) -> None:
        for parameter in self.net.parameters():
            parameter.grad = None

    def _samples(self, number: int) -> Tensor:
        is_own = (
            self.program.with_own_samples
            and self.program.wrapping.kind not in SAME_SAMPLES
            and self.program.steppers[0].kind != "lbfgs"  # it decides by the loss
            and (  # FSDP leaves these and their gradients as they are
                self.program.wrapping.kind == "ddp"
                or all(layer.kind != "scale" for layer in self.program.layers.values())
            )
        )
        seed = 8 * number + (self.rank if is_own else 0)
        return torch.randint(0, WORDS, (4,), generator=torch.Generator().manual_seed(seed))

    def _backward(self, words: Tensor, used: frozenset[str]) -> Tensor:
        self.forget_gradients()
        loss: Tensor = self.module(words, used).float().square().mean()
        scaled: Tensor = self.scaler.scale(loss) if self.scaler is not None else loss
        scaled.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def _step(self) -> None:
        for optimizer in self.optimizers:
            if self.scaler is None:
                optimizer.step()
            elif any(p.grad is not None for g in optimizer.param_groups for p in g["params"]):
                self.scaler.step(optimizer)
        if self.scaler is not None:
            self.scaler.update()

    def _move_average(self) -> None:
        if isinstance(self.average, AveragedModel):
            self.average.update_parameters(self.net)
        elif self.average is not None:
            _follow(self.average.parameters(), self.net.parameters(), None)

    def _average(self) -> nn.Module | None:
        if self.program.average == "averaged":
            return AveragedModel(self.net, multi_avg_fn=_follow)
        if self.program.average is None:
            return None
        net, kind = Net(self.program), self.program.wrapping.kind
        if kind not in ("plain", "ddp"):
            wrap(net, self.program, self.program.wrapping)
        return net

    def _optimizer(self, number: int, stepper: Stepper) -> Optimizer:
        groups: list[dict[str, Any]] = [{"params": [], **one} for one in stepper.groups]
        seen: set[Tensor] = set()
        for name, parameter in self.net.named_parameters():
            layer = self.program.layers.get(name.split(".")[1])  # of "layers.NAME.…"
            owner, group = layer.owner if layer is not None else (0, self.program.group)
            if owner == number and parameter not in seen:
                seen.add(parameter)
                groups[group]["params"].append(parameter)
        if stepper.has_empty:
            groups.append({"params": [], "lr": 0.7})
        if stepper.has_tensor_rate:
            for one in groups:
                one["lr"] = torch.tensor(one["lr"])
        meshes = {p.device_mesh if isinstance(p, DTensor) else None for p in seen}
        way = stepper.way if len(meshes) <= 1 else {}  # of which several cannot be stepped at once
        made: Optimizer = _CLASSES[stepper.kind](groups, **stepper.options, **way)
        return made

    def _value(self, name: str, number: int) -> Any:
        """As of a step."""
        kinds: dict[str, Callable[[], Any]] = {
            "progress": lambda: {
                "step": number,
                "loss": number / 3,
                "seen": [number, (number, "a")],
                "by": {number: None, "x": float("inf")},
            },
            "tensors": lambda: {
                "mean": torch.full((2, 3), number / 3),
                "more": [torch.ones(0), number],
            },
            "loader": lambda: Loader(number),
            "own": lambda: PerRank(Loader(10 * number + self.rank), "first"),
            "own_values": lambda: PerRank(
                own_values(number, self.rank),
                lambda every, rank, world: every[(rank + 1) % len(every)],
            ),
            "own_strictly": lambda: PerRank(Loader(10 * number + self.rank)),
        }
        return kinds[name]()

    def _advance(self, name: str, number: int) -> None:
        held = self.state[name]
        if isinstance(held, Loader):
            held.place = number
        elif isinstance(held, PerRank) and isinstance(held.held, Loader):
            held.held.place = 10 * number + self.rank
        elif isinstance(held, PerRank):
            held.held = own_values(number, self.rank)
        else:
            self.state[name] = self._value(name, number)


def own_values(number: int, rank: int) -> dict[str, Any]:
    """What a rank has of its own, as of a step."""
    return {"rank": rank, "step": number, "noise": torch.full((3,), number + rank / 8)}


@torch.no_grad()
def _follow(means: Any, parameters: Any, seen: Any) -> None:
    """Towards what the parameters are now."""
    for mean, parameter in zip(means, parameters, strict=True):
        mean.mul_(0.5).add_(parameter, alpha=0.5)


def _scheduler(kind: str | None, optimizer: Optimizer) -> Any:
    cycles = isinstance(optimizer, torch.optim.Adam)
    kinds: dict[str, Callable[[], Any]] = {
        "step": lambda: lr_scheduler.StepLR(optimizer, 2, 0.5),
        "exponential": lambda: lr_scheduler.ExponentialLR(optimizer, 0.9),
        "cosine": lambda: lr_scheduler.CosineAnnealingLR(optimizer, 10),
        "linear": lambda: lr_scheduler.LinearLR(optimizer, total_iters=4),
        "restarts": lambda: lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 2),
        "lambda": lambda: lr_scheduler.LambdaLR(optimizer, lambda n: 0.95**n),
        "multistep": lambda: lr_scheduler.MultiStepLR(optimizer, [1, 3]),
        "onecycle": lambda: lr_scheduler.OneCycleLR(
            optimizer, max_lr=0.1, total_steps=100, cycle_momentum=cycles
        ),
        "cyclic": lambda: lr_scheduler.CyclicLR(optimizer, 0.001, 0.1, cycle_momentum=cycles),
        "sequential": lambda: lr_scheduler.SequentialLR(
            optimizer,
            [
                lr_scheduler.LinearLR(optimizer, total_iters=2),
                lr_scheduler.ExponentialLR(optimizer, 0.9),
            ],
            [2],
        ),
        "chained": lambda: lr_scheduler.ChainedScheduler(
            [
                lr_scheduler.ConstantLR(optimizer, total_iters=2),
                lr_scheduler.ExponentialLR(optimizer, 0.9),
            ]
        ),
        "plateau": lambda: lr_scheduler.ReduceLROnPlateau(optimizer, patience=0),
    }
    return None if kind is None else kinds[kind]()
