"""The Muon optimizer, which updates matrices by their orthogonalised momentum, and all other
parameters by AdamW.

Jordan et al., "Muon: An optimizer for hidden layers in neural networks" (2024); Liu et al., "Muon
is Scalable for LLM Training" (2025). `torch.optim.Muon` would multiply DTensors as they are
sharded, which takes a collective for every product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.linalg import matrix_norm
from torch.optim import Optimizer
from torch.optim.adamw import adamw

from hpckit.torch_internals import foreach_lerp, foreach_lerp_, foreach_mul_
from hpckit.trainer.optim.gathered_matrices import MatrixGather
from hpckit.trainer.parallel.local_tensor import local

RMS = 0.2
"""Root mean square of an update at a learning rate of 1. It is about that of AdamW (Liu et al.
2025, section 2.2), so that one learning rate fits both."""
ITERATIONS = 5
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Iterations of Newton-Schulz, and the coefficients of their polynomial a x + b x^3 + c x^5, which
moves values in (0, 1] towards 1. It is steep at 0, so that few iterations suffice, but the values
end anywhere from about 0.7 to 1.2 (Jordan et al. 2024)."""
_LEAST = 1e-7  # least norm to divide by


class Muon(Optimizer):
    """The Muon optimizer. A step is a collective of the ranks over which the parameters are
    sharded.

    Args:
        groups: parameter groups. One with "momentum" has matrices or stacks of them; one with
            "beta1", "beta2" and "eps" is updated by AdamW. All have "weight_decay".
    """

    def __init__(self, groups: Iterable[dict[str, Any]], lr: float) -> None:
        super().__init__(groups, {"lr": lr})
        self._gathers: dict[DeviceMesh, MatrixGather] = {}

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update all parameters that have a gradient."""
        assert closure is None
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if "momentum" in group:
                self._step_matrices(parameters, group)
            else:
                self._step_adamw(parameters, group)

    def _step_matrices(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        lr, momentum = group["lr"], group["momentum"]
        for parameter in parameters:
            if not self.state[parameter]:
                self.state[parameter]["momentum"] = torch.zeros_like(parameter)
        gradients = [local(p.grad) for p in parameters if p.grad is not None]
        momenta = [local(self.state[p]["momentum"]) for p in parameters]
        foreach_lerp_(momenta, gradients, 1 - momentum)
        if lr == 0:  # checkpointing takes such a step to create a state that it can load into
            return
        directions = foreach_lerp(gradients, momenta, momentum)  # Nesterov momentum
        updates = self._orthogonalise(parameters, directions)
        parts = [local(p) for p in parameters]
        foreach_mul_(parts, 1 - lr * group["weight_decay"])
        for parameter, part, update in zip(parameters, parts, updates, strict=True):
            part.add_(update, alpha=-lr * RMS * max(parameter.shape[-2:]) ** 0.5)

    def _orthogonalise(self, parameters: Sequence[Tensor], parts: Sequence[Tensor]) -> list[Tensor]:
        """Return this rank's parts of the orthogonalised matrices."""
        found = [part.bfloat16().contiguous() for part in parts]
        sharded: dict[DeviceMesh, list[tuple[DTensor, Tensor]]] = {}
        for number, parameter in enumerate(parameters):
            if isinstance(parameter, DTensor) and parameter.device_mesh.size() > 1:
                pair = parameter, found[number]
                sharded.setdefault(parameter.device_mesh, []).append(pair)
            else:
                found[number] = orthogonalised(found[number])
        for mesh, pairs in sharded.items():
            if mesh not in self._gathers:
                self._gathers[mesh] = MatrixGather(mesh)
            self._gathers[mesh].compute(pairs, orthogonalised)
        return found

    def _step_adamw(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        for parameter in parameters:
            if not (state := self.state[parameter]):
                state["step"] = torch.tensor(0.0)
                state["exp_avg"] = torch.zeros_like(parameter)
                state["exp_avg_sq"] = torch.zeros_like(parameter)
        states = [self.state[p] for p in parameters]
        adamw(
            [local(p) for p in parameters],
            [local(p.grad) for p in parameters if p.grad is not None],
            [local(state["exp_avg"]) for state in states],
            [local(state["exp_avg_sq"]) for state in states],
            [],
            [state["step"] for state in states],
            foreach=True,
            amsgrad=False,
            maximize=False,
            lr=group["lr"],
            **{name: group[name] for name in ("beta1", "beta2", "eps", "weight_decay")},
        )


def orthogonalised(matrices: Tensor) -> Tensor:
    """Return `matrices` with all singular values near 1, by Newton-Schulz iterations in bf16.

    Args:
        matrices: (..., rows, columns).

    Returns:
        bf16 of the same shape.
    """
    a, b, c = COEFFICIENTS
    is_tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.float().mT if is_tall else matrices.float()
    x = (x / matrix_norm(x, keepdim=True).clamp(min=_LEAST)).bfloat16()
    for _ in range(ITERATIONS):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    out: Tensor = x.mT if is_tall else x
    return out
