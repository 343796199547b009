"""Runs a training program as it is, and records what each step of its optimizer does.

    python recorded_program.py SECONDS PROGRAM [ARGUMENT ...]

On each rank it prints a line after each step, whatever framework trains: the number of the step by
the optimizer's own count, the losses whose gradients went into it, and a hash of the parameters,
all to the last bit. A step takes at least SECONDS, so that a run can be interrupted at a step.
"""

from __future__ import annotations

import os
import runpy
import sys
import time
from functools import wraps
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

END = "the end of the program"


class Recorder:
    """What is printed of each step."""

    def __init__(self, least_s: float) -> None:
        self._least_s = least_s
        self._losses: list[str] = []
        self._has_begun = False

    def loss(self, loss: torch.Tensor) -> None:
        self._losses.append(float(loss.detach()).hex())

    def before_step(self, optimizer: Optimizer, *_: Any) -> None:
        if not self._has_begun:
            self._has_begun = True
            say(f"begins with {digest(optimizer)}")

    def after_step(self, optimizer: Optimizer, *_: Any) -> None:
        losses, self._losses = self._losses, []
        if losses:  # torchtitan's container of optimizers is one, too
            say(f"step {steps(optimizer)} loss {','.join(losses)} parameters {digest(optimizer)}")
            time.sleep(self._least_s)


def say(what: str) -> None:
    """Print a line by one write, as several ranks may write to one pipe."""
    sys.stdout.write(f"rank {os.environ['RANK']} {what}\n")
    sys.stdout.flush()


def steps(optimizer: Optimizer) -> int:
    """How many steps the optimizer has made, which is a part of its state."""
    return int(next(iter(optimizer.state.values()))["step"])


def digest(optimizer: Optimizer) -> str:
    """A hash of this rank's part of all parameters."""
    found = blake2b(digest_size=8)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            local: Any = getattr(parameter, "_local_tensor", parameter)
            found.update(local.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()


def main() -> None:
    recorder = Recorder(float(sys.argv[1]))
    tensors: Any = torch.Tensor
    backward = tensors.backward

    @wraps(backward)
    def recorded(loss: torch.Tensor, *args: Any, **options: Any) -> None:
        recorder.loss(loss)
        backward(loss, *args, **options)

    tensors.backward = recorded
    register_optimizer_step_pre_hook(recorder.before_step)
    register_optimizer_step_post_hook(recorder.after_step)
    program = Path(__file__).parent / sys.argv[2]
    sys.argv = [str(program), *sys.argv[3:]]
    sys.path.insert(0, str(program.parent))
    runpy.run_path(str(program), run_name="__main__")
    say(END)


if __name__ == "__main__":
    main()
