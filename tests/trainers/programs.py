"""What a trainer is made of: drawn from a seed, as plain data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Any

LAYERS = ("linear", "mlp", "conv", "layernorm", "batchnorm", "scale", "counted", "dropout")
WRAPPINGS = ("plain", "ddp", "fsdp", "hsdp", "tp", "fsdp+tp")
OF_DTENSORS = ("fsdp", "hsdp", "tp", "fsdp+tp")
"""Wrappings in which parameters are DTensors."""
SAME_SAMPLES = ("plain", "tp", "fsdp+tp")
"""Wrappings in which all ranks have to train on the same samples."""
FUSED = ("adam", "adamw")
"""Optimizers that have a fused step on CPUs, with any of their tensors."""
OPTIONS: dict[str, tuple[dict[str, Any], ...]] = {
    "sgd": ({}, {"momentum": 0.9, "nesterov": True}, {"momentum": 0.5, "maximize": True}),
    "adam": ({}, {"amsgrad": True}, {"betas": (0.8, 0.9)}),
    "adamw": ({}, {"amsgrad": True}, {"eps": 1e-6}),
    "adagrad": ({}, {"lr_decay": 0.1}),
    "adadelta": ({}, {"rho": 0.8}),
    "adamax": ({},),
    "nadam": ({}, {"decoupled_weight_decay": True}),
    "radam": ({},),
    "rmsprop": ({}, {"momentum": 0.5, "centered": True}),
    "rprop": ({},),
    "asgd": ({}, {"t0": 1.0}),
    "adafactor": ({},),
    "lbfgs": ({"max_iter": 2, "history_size": 3},),
}
ON_PLAIN_TENSORS = ("lbfgs", "rprop", "adafactor")
"""Optimizers whose steps torch does not do on DTensors."""
SCHEDULERS = (
    *("step", "exponential", "cosine", "linear", "restarts", "lambda", "multistep", "onecycle"),
    *("sequential", "chained", "plateau", "cyclic"),
)
VALUES = {
    "progress": 0.3,
    "tensors": 0.3,
    "loader": 0.3,
    "own": 0.3,
    "own_values": 0.3,
    "own_strictly": 0.1,
}
"""What else is in a state, and how often; the last three are each rank's own."""


@dataclass(frozen=True)
class Layer:
    """One that maps `width` features to as many."""

    kind: str
    has_bias: bool
    is_bf16: bool
    is_frozen: bool
    owner: tuple[int, int]
    """The optimizer, and the group of it, that has its parameters."""


@dataclass(frozen=True)
class Stepper:
    """An optimizer and its scheduler."""

    kind: str
    options: dict[str, Any]
    groups: tuple[dict[str, Any], ...]
    """The options of each group."""
    way: dict[str, bool]
    """How a step is computed: `foreach`, `fused`."""
    scheduler: str | None
    has_empty: bool
    has_tensor_rate: bool


@dataclass(frozen=True)
class Wrapping:
    kind: str
    is_compiled: bool = False
    is_recomputed: bool = False
    is_fine: bool = True
    """FSDP has a group of parameters for each layer."""


@dataclass(frozen=True)
class Program:
    seed: int
    world: int
    width: int
    hidden: int
    layers: dict[str, Layer]
    is_tied: bool
    has_spare: bool
    """A head that is never used."""
    steppers: tuple[Stepper, ...]
    group: int
    """Of the first optimizer, that has the embedding and the heads."""
    has_scaler: bool
    average: str | None
    """A moving average of the weights: torch's AveragedModel, or a second model."""
    values: tuple[str, ...]
    wrapping: Wrapping
    with_own_samples: bool
    """Ranks train on samples of their own."""
    steps: tuple[frozenset[str], ...]
    """The layers that take part in each step before the save."""
    later: tuple[frozenset[str], ...]
    """And after it."""


@dataclass(frozen=True)
class Setting:
    """What programs that are played together have in common."""

    world: int
    other_world: int
    is_alone: bool
    """Without torch.distributed, where the world is one process; likewise the other one."""
    is_other_alone: bool
    options: dict[str, Any]
    """Of the Checkpointer."""


def draw_setting(seed: int) -> Setting:
    draw = Random(f"setting {seed}")
    world = draw.choice([1] * 8 + [2] * 5 + [3, 4, 4])
    other = draw.choice([one for one in (1, 1, 2, 2, 3, 4) if one != world])
    options = {
        "overlap": draw.random() < 0.7,
        "staging": "buckets" if draw.random() < 0.2 else "slots",
        "check_replicas": draw.choice(["every", "every", 2, False]),
        "compress": draw.random() < 0.7,
    }
    is_alone = draw.random() < 0.5
    return Setting(world, other, world == 1 and is_alone, other == 1 and is_alone, options)


def draw_program(seed: int, setting: Setting) -> Program:
    draw = Random(f"program {seed}")
    steppers = tuple(_stepper(draw) for _ in range(draw.choice([1, 1, 2])))
    if any(one.kind == "lbfgs" for one in steppers):
        steppers = steppers[:1]
    kinds = [one.kind for one in steppers]
    layers = {str(number): _layer(draw, steppers) for number in range(draw.randint(1, 4))}
    uses = [_used(draw, layers) for _ in range(draw.choice([0, 1, 2, 2, 3]))]
    program = Program(
        seed=seed,
        world=setting.world,
        width=draw.choice([4, 6, 8]),
        hidden=draw.choice([5, 8, 12]),
        layers=layers,
        is_tied=draw.random() < 0.3,
        has_spare=draw.random() < 0.4,
        steppers=steppers,
        group=draw.randrange(len(steppers[0].groups)),
        has_scaler=draw.random() < 0.3 and "lbfgs" not in kinds,
        average=draw.choice([None, None, None, "averaged", "second"]),
        values=tuple(one for one, often in VALUES.items() if draw.random() < often),
        wrapping=Wrapping("plain"),
        with_own_samples=draw.random() < 0.6,
        steps=tuple(uses),
        later=tuple(_used(draw, layers) for _ in range(draw.choice([1, 2]))),
    )
    return replace(program, wrapping=draw_wrapping(draw, program, is_alone=setting.is_alone))


def draw_wrapping(draw: Random, program: Program, *, is_alone: bool) -> Wrapping:
    """One that torch can train this program in."""
    kinds = ["plain"] if is_alone else ["plain", "ddp", "ddp", *OF_DTENSORS]
    on_plain = program.has_scaler or program.average == "averaged"
    if on_plain or any(one.kind in ON_PLAIN_TENSORS for one in program.steppers):
        kinds = [kind for kind in kinds if kind not in OF_DTENSORS]
    kind = draw.choice(kinds)
    return Wrapping(
        kind,
        is_compiled=kind in ("plain", "ddp") and draw.random() < 0.03,
        is_recomputed=draw.random() < 0.15,
        is_fine=draw.random() < 0.6,
    )


def draw_way(draw: Random, kind: str) -> dict[str, bool]:
    ways: list[dict[str, bool]] = [{}, {}, {"foreach": True}, {"foreach": False}]
    if kind in FUSED:
        ways.append({"fused": True})
    return {} if kind == "lbfgs" else draw.choice(ways)


def _stepper(draw: Random) -> Stepper:
    kind = draw.choice(sorted(OPTIONS))
    way = draw_way(draw, kind)
    count = 1 if kind == "lbfgs" else draw.choice([1, 1, 2, 3])
    groups: list[dict[str, Any]] = [{"lr": draw.choice([0.1, 0.01, 0.003])} for _ in range(count)]
    for group in groups:
        if kind not in ("lbfgs", "rprop") and draw.random() < 0.5:
            group["weight_decay"] = draw.choice([0.0, 0.1])
        if draw.random() < 0.2:
            group["tag"] = draw.choice(["decay", ("a", 1), [1.5]])
    return Stepper(
        kind,
        draw.choice(OPTIONS[kind]),
        tuple(groups),
        way,
        draw.choice([None, None, *SCHEDULERS]),
        has_empty=draw.random() < 0.15 and kind != "lbfgs",
        has_tensor_rate=draw.random() < 0.15
        and kind in ("adam", "adamw")
        and not way.get("foreach"),
    )


def _layer(draw: Random, steppers: tuple[Stepper, ...]) -> Layer:
    number = draw.randrange(len(steppers))
    return Layer(
        draw.choice(LAYERS),
        has_bias=draw.random() < 0.7,
        is_bf16=draw.random() < 0.15 and steppers[number].kind != "lbfgs",
        is_frozen=draw.random() < 0.2,
        owner=(number, draw.randrange(len(steppers[number].groups))),
    )


def _used(draw: Random, layers: dict[str, Layer]) -> frozenset[str]:
    return frozenset(name for name in layers if draw.random() < 0.8)
