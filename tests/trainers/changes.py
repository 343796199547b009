"""What a program may be changed in before it goes on, and what is then right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from tests.trainers.programs import (
    OF_DTENSORS,
    ON_PLAIN_TENSORS,
    OPTIONS,
    SCHEDULERS,
    VALUES,
    Layer,
    Program,
    Setting,
    Stepper,
    draw_way,
    draw_wrapping,
)


@dataclass(frozen=True)
class Change:
    """A changed program, and what becomes of a restore into it."""

    kind: str
    program: Program
    says: str | None = None
    """Part of the refusal; None: it is not refused."""
    has_other_groups: bool = False
    """It is refused where parameters would take options that were not theirs."""
    is_same_tensors: bool = True
    """Every rank has the same part of each tensor."""
    goes_on: bool = True
    """It trains on as the program that was saved does."""
    trained: int = 0
    """Steps that it has made before the restore."""
    has_gradients: bool = False


_Draw = Callable[[Random, Program, Setting], "Change | None"]


def draw_changes(program: Program, setting: Setting, count: int) -> list[Change]:
    """No change and `count` others, in any order: the first one may come from memory."""
    draw = Random(f"changes {program.seed}")
    found = [Change("same", program)]
    for make in draw.sample(_ALL, len(_ALL)):
        change = make(draw, program, setting)
        if change is not None and len(found) <= count:
            found.append(change)
    return draw.sample(found, len(found))


def draw_elsewhere(program: Program, setting: Setting) -> Change:
    """The program in the other world."""
    draw = Random(f"elsewhere {program.seed}")
    moved = replace(program, world=setting.other_world)
    wrapping = draw_wrapping(draw, moved, is_alone=setting.is_other_alone)
    says = "was saved for each of" if "own_strictly" in program.values else None
    return Change(
        "elsewhere",
        replace(moved, wrapping=wrapping),
        says,
        is_same_tensors=False,
        goes_on=False,
        trained=draw.choice([0, 0, 1]),
    )


def _gradients(draw: Random, program: Program, setting: Setting) -> Change:
    return Change("gradients", program, has_gradients=True)


def _trained(draw: Random, program: Program, setting: Setting) -> Change:
    return Change("trained", program, trained=draw.randint(1, 2))


def _frozen(draw: Random, program: Program, setting: Setting) -> Change:
    layers = {
        name: replace(one, is_frozen=draw.random() < 0.5) for name, one in program.layers.items()
    }
    is_plain = program.wrapping.kind == "plain"  # others decide by it as they wrap
    trained = draw.choice([0, 1])
    return Change("frozen", replace(program, layers=layers), goes_on=is_plain, trained=trained)


def _rates(draw: Random, program: Program, setting: Setting) -> Change:
    rate = draw.choice([0.5, 0.001])
    steppers = [
        replace(one, groups=tuple({**group, "lr": group["lr"] * rate} for group in one.groups))
        for one in program.steppers
    ]
    return Change("rates", replace(program, steppers=tuple(steppers)))


def _ways(draw: Random, program: Program, setting: Setting) -> Change:
    steppers = [
        one if one.has_tensor_rate else replace(one, way=draw_way(draw, one.kind))
        for one in program.steppers
    ]
    return Change("ways", replace(program, steppers=tuple(steppers)), goes_on=False)


def _wrapping(draw: Random, program: Program, setting: Setting) -> Change:
    wrapping = draw_wrapping(draw, program, is_alone=setting.is_alone)
    return Change(
        "wrapping",
        replace(program, wrapping=wrapping),
        is_same_tensors=False,
        goes_on=False,
        trained=draw.choice([0, 0, 1]),
    )


def _reordered(draw: Random, program: Program, setting: Setting) -> Change | None:
    number, stepper = _some_stepper(draw, program)
    last = len(stepper.groups) - 1
    if last == 0:
        return None
    changed = _with_stepper(program, number, replace(stepper, groups=stepper.groups[::-1]))
    return _regrouped("reordered", changed, number, lambda name, group: last - group)


def _merged(draw: Random, program: Program, setting: Setting) -> Change | None:
    number, stepper = _some_stepper(draw, program)
    if len(stepper.groups) == 1 or _counts_groups(stepper):
        return None
    changed = _with_stepper(program, number, replace(stepper, groups=stepper.groups[:-1]))
    return _regrouped("merged", changed, number, lambda name, group: max(0, group - 1))


def _split(draw: Random, program: Program, setting: Setting) -> Change | None:
    number, stepper = _some_stepper(draw, program)
    if stepper.kind == "lbfgs" or _counts_groups(stepper):
        return None
    new, last = draw.randrange(len(stepper.groups)), len(stepper.groups)
    like = {**stepper.groups[new], **draw.choice([{}, {"lr": 0.7}, {"tag": "new"}])}
    moved = {name for name in program.layers if draw.random() < 0.5}
    changed = _with_stepper(program, number, replace(stepper, groups=(*stepper.groups, like)))
    return _regrouped(
        "split", changed, number, lambda name, group: last if name in moved else group
    )


def _emptied(draw: Random, program: Program, setting: Setting) -> Change | None:
    number, stepper = _some_stepper(draw, program)
    if stepper.kind == "lbfgs" or _counts_groups(stepper):
        return None
    changed = replace(stepper, has_empty=not stepper.has_empty)
    return _regrouped(
        "emptied", _with_stepper(program, number, changed), number, lambda name, group: group
    )


def _class(draw: Random, program: Program, setting: Setting) -> Change:
    number, stepper = _some_stepper(draw, program)
    out = {stepper.kind, "lbfgs"}
    out |= set(ON_PLAIN_TENSORS) if program.wrapping.kind in OF_DTENSORS else set()
    kin = {"adam": "adamw", "adamw": "adam"}  # they have the same tensors and options
    others = sorted(OPTIONS.keys() - out)
    kind = kin.get(stepper.kind, "sgd") if draw.random() < 0.5 else draw.choice(others)
    kind = kind if kind in others else others[0]
    options = stepper.options if kind == kin.get(stepper.kind) else {}
    changed = replace(stepper, kind=kind, options=options, way={}, has_tensor_rate=False)
    return Change("class", _with_stepper(program, number, changed), "was saved as")


def _fewer_optimizers(draw: Random, program: Program, setting: Setting) -> Change | None:
    if len(program.steppers) == 1:
        return None
    layers = {name: replace(one, owner=(0, 0)) for name, one in program.layers.items()}
    changed = replace(program, layers=layers, steppers=program.steppers[:1], group=0)
    return Change("fewer optimizers", changed, "optimizer.model")


def _added(draw: Random, program: Program, setting: Setting) -> Change:
    layers = {**program.layers, "new": Layer("linear", True, False, False, (0, 0))}
    return Change("added", replace(program, layers=layers), "layers.new.weight")


def _removed(draw: Random, program: Program, setting: Setting) -> Change | None:
    name = _some_layer(draw, program)
    layers = {one: layer for one, layer in program.layers.items() if one != name}
    return name and Change("removed", replace(program, layers=layers), f"layers.{name}.")


def _renamed(draw: Random, program: Program, setting: Setting) -> Change | None:
    name = _some_layer(draw, program)
    layers = {f"x{n}" if n == name else n: layer for n, layer in program.layers.items()}
    return name and Change("renamed", replace(program, layers=layers), f"layers.x{name}.")


def _width(draw: Random, program: Program, setting: Setting) -> Change:
    changed = replace(program, width=program.width + 2)
    return Change("width", changed, "tensors of another shape or dtype")


def _dtype(draw: Random, program: Program, setting: Setting) -> Change | None:
    names = [n for n, one in program.layers.items() if one.kind in ("linear", "mlp", "layernorm")]
    if not names or program.steppers[0].kind == "lbfgs":
        return None
    name = draw.choice(names)
    layer = replace(program.layers[name], is_bf16=not program.layers[name].is_bf16)
    changed = replace(program, layers={**program.layers, name: layer})
    return Change("dtype", changed, "tensors of another shape or dtype")


def _tied(draw: Random, program: Program, setting: Setting) -> Change:
    return Change("tied", replace(program, is_tied=not program.is_tied), "model/head.bias")


def _spare(draw: Random, program: Program, setting: Setting) -> Change:
    return Change("spare", replace(program, has_spare=not program.has_spare), "model/spare.weight")


def _scheduler(draw: Random, program: Program, setting: Setting) -> Change:
    number, stepper = _some_stepper(draw, program)
    kind = None if stepper.scheduler is not None else draw.choice(SCHEDULERS)
    changed = _with_stepper(program, number, replace(stepper, scheduler=kind))
    return Change("scheduler", changed, f"scheduler{number}")


def _value(draw: Random, program: Program, setting: Setting) -> Change:
    name = draw.choice([*VALUES])
    left = tuple(one for one in program.values if one != name)
    values = left if name in program.values else (*left, name)
    return Change("value", replace(program, values=values), name)


def _average(draw: Random, program: Program, setting: Setting) -> Change:
    kind = None if program.average is not None else "second"
    return Change("average", replace(program, average=kind), "average")


_ALL: list[_Draw] = [
    *(_gradients, _trained, _frozen, _rates, _ways, _wrapping, _wrapping, _wrapping),
    *(_reordered, _merged, _split, _emptied, _class, _fewer_optimizers, _added, _removed),
    *(_renamed, _width, _dtype, _tied, _spare, _scheduler, _value, _average),
]


def _some_stepper(draw: Random, program: Program) -> tuple[int, Stepper]:
    number = draw.randrange(len(program.steppers))
    return number, program.steppers[number]


def _counts_groups(stepper: Stepper) -> bool:
    """Whether the state of its scheduler has a tensor for each group."""
    return stepper.has_tensor_rate and stepper.scheduler is not None


def _some_layer(draw: Random, program: Program) -> Any:
    names = [name for name, layer in program.layers.items() if layer.kind != "dropout"]
    return draw.choice(names) if names else None


def _with_stepper(program: Program, number: int, stepper: Stepper) -> Program:
    steppers = [*program.steppers]
    steppers[number] = stepper
    return replace(program, steppers=tuple(steppers))


def _regrouped(
    kind: str, program: Program, number: int, group: Callable[[str, int], int]
) -> Change:
    """
    Args:
        number: the optimizer of which layers are in other groups: given a layer and its group.
    """
    layers = {
        name: replace(layer, owner=(number, group(name, layer.owner[1])))
        if layer.owner[0] == number
        else layer
        for name, layer in program.layers.items()
    }
    first = group("", program.group) if number == 0 else program.group
    has_schedulers = any(one.scheduler for one in program.steppers)  # they count groups
    return Change(
        kind,
        replace(program, layers=layers, group=first),
        has_other_groups=True,
        goes_on=not has_schedulers,
    )
